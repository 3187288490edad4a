"""The table of the LDraw parts: accuracies over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from permutohedral.experiments.experiment import Experiment
from permutohedral.experiments.parts.run import PartsConfig, run
from permutohedral.experiments.result import Result, by_row, headline_of_accuracy, write_text
from permutohedral.experiments.training import RunOptions
from permutohedral.reporting.markdown import markdown_table
from permutohedral.reporting.provenance import name_machine, short_commit

ROWS = ("pointwise", "lattice_flat", "lattice")
SHARES = ("all", "mean of the categories")


def parts_table(results: Sequence[Result]) -> str:
    """A Markdown table: mean accuracies over the seeds ± their sample standard deviation.

    >>> metrics = [{"accuracy": dict.fromkeys(SHARES, share), "weights": 7000} for share in (0.5, 0.52)]
    >>> runs = [Result("parts", "a", {"title": "A"}, m, s) for s, m in enumerate(metrics)]
    >>> print(parts_table(runs).splitlines()[2])
    | A | 7,000 | 2 | 0.510 ± 0.014 | 0.510 ± 0.014 |
    """
    lines = []
    for runs in by_row(results).values():
        cells = [runs[0].config["title"], f"{runs[0].metrics['weights']:,}", str(len(runs))]
        for name in SHARES:
            accuracy = np.array([run.metrics["accuracy"][name] for run in runs])
            spread = f" ± {accuracy.std(ddof=1):.3f}" if len(runs) > 1 else ""
            cells.append(f"{accuracy.mean():.3f}{spread}")
        lines.append(cells)
    return markdown_table(["Network", "Weights", "Seeds", "Accuracy", "Mean of the categories"], lines)


def write_parts_report(results: Sequence[Result], options: RunOptions, command: str) -> list[Path]:
    """Write `report.md` into the output folder.

    Args:
        results: of at least one row and seed.
        options: of the run that made them.
        command: that makes them again.
    """
    environment, metrics, config = results[0].environment, results[0].metrics, results[0].config
    machine, commit = name_machine(environment["hardware"]), short_commit(environment["commit"])
    lines = [
        "# Categories of toy parts",
        "",
        f"Share of {metrics['parts']:,} LDraw parts of {metrics['categories']} categories that are recognized from "
        f"{config['points']} points of their surface: mean over the seeds ± sample standard deviation. No variant of "
        "a part that is tested was learned.",
        "",
        parts_table(results),
        "",
        f"Made with `{command}` on {machine} at {commit}. All figures with their settings are in `runs/`.",
        "",
    ]
    path = options.output / "report.md"
    write_text(path, "\n".join(lines))
    return [path]


EXPERIMENTS = {
    "parts": Experiment(
        name="parts",
        config=PartsConfig,
        rows=ROWS,
        run=run,
        headline=headline_of_accuracy,
        tables=parts_table,
        write_report=write_parts_report,
        report_on="folder",
    )
}
