"""The MNIST table: accuracies over the seeds as a table and a plot, the paper's beside ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from permutohedral.experiments.experiment import Experiment
from permutohedral.experiments.mnist.run import COLUMNS, MnistConfig, run
from permutohedral.experiments.result import Result, by_row, headline_of_accuracy, write_text
from permutohedral.experiments.training import RunOptions
from permutohedral.reporting.figure import new_figure, save_figure
from permutohedral.reporting.markdown import markdown_table
from permutohedral.reporting.provenance import name_machine

# the rows of the paper's table in its order, and ours
PAPER_ROWS = ("lenet", "pcnn", "lenet_100", "pcnn_100", "lenet_60", "pcnn_60", "lenet_20", "pcnn_20")
OUR_ROWS = ("original_only", "mixed", "original_only_distorted", "mixed_distorted")


def mnist_summary(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row for each name: mean accuracy of each column over the seeds, and their sample standard deviation."""
    rows = []
    for name, runs in by_row(results).items():
        # a result that was read has its columns in another order
        columns = [column for column in COLUMNS if column in runs[0].metrics["accuracy"]]
        accuracy = np.array([[run.metrics["accuracy"][column] for column in columns] for run in runs])
        spread = accuracy.std(axis=0, ddof=1) if len(runs) > 1 else np.full(len(columns), np.nan)
        paper = runs[0].config["paper"]
        rows.append(
            {
                "name": name,
                "title": runs[0].config["title"],
                "seeds": [run.seed for run in runs],
                "paper": None if paper is None else dict(zip(columns, paper, strict=True)),
                "mean": dict(zip(columns, accuracy.mean(axis=0).round(6).tolist(), strict=True)),
                "spread": dict(zip(columns, spread.round(6).tolist(), strict=True)) if len(runs) > 1 else None,
                "training_seconds": round(float(np.mean([run.seconds["training"] for run in runs])), 1),
            }
        )
    return rows


def mnist_table(results: Sequence[Result]) -> str:
    """A Markdown table: mean accuracy over the seeds ± their spread, the paper's in parentheses.

    >>> config = {"title": "PCNN", "paper": [0.9903]}
    >>> metrics = [{"accuracy": {"original": share}} for share in (0.99, 0.992)]
    >>> print(mnist_table([Result("mnist", "pcnn", config, m, s, {"training": 1.0}) for s, m in enumerate(metrics)]))
    | Network | Seeds | original |
    | --- | ---: | ---: |
    | PCNN | 2 | 0.9910 ± 0.0014 (0.9903) |
    """
    rows = mnist_summary(results)
    columns = list(rows[0]["mean"])
    lines = []
    for row in rows:
        cells = [row["title"], str(len(row["seeds"]))]
        for column in columns:
            spread = "" if row["spread"] is None else f" ± {row['spread'][column]:.4f}"
            paper = "" if row["paper"] is None else f" ({row['paper'][column]:.4f})"
            cells.append(f"{row['mean'][column]:.4f}{spread}{paper}")
        lines.append(cells)
    return markdown_table(["Network", "Seeds", *columns], lines)


def write_mnist_report(results: Sequence[Result], options: RunOptions, command: str) -> list[Path]:
    """Write `report.md`, `mnist.json` (summary and all results) and `accuracy.png` into the output folder.

    Args:
        results: of at least one row and seed.
        options: of the run that made them.
        command: that makes them again.
    """
    folder = options.output
    places = dict.fromkeys(_place(result) for result in results)
    content = {"summary": mnist_summary(results), "results": [asdict(result) for result in results]}
    write_text(folder / "mnist.json", json.dumps(content, indent=1, sort_keys=True) + "\n")
    draw_accuracy(results, folder / "accuracy.png")
    test_images = results[0].config["test_images"] or 10_000
    lines = [
        "# MNIST from scattered samples",
        "",
        f"Share of {test_images:,} test digits recognized at their pixels (original) or at random positions, as many "
        "as the given share of the pixels: mean over the seeds ± sample standard deviation (the paper's).",
        "",
        mnist_table(results),
        "",
        f"Made with `{command}` {' and '.join(places)}; commit, machine and time of each training are in `mnist.json`.",
        "",
        "![Accuracy over the share of samples](accuracy.png)",
        "",
    ]
    path = folder / "report.md"
    write_text(path, "\n".join(lines))
    return [path]


def _place(result: Result) -> str:
    """Where a result was made."""
    environment = result.environment
    machine = name_machine(environment["hardware"])
    return f"at commit `{environment['commit']}` on {machine} (backend {environment['backend']})"


def draw_accuracy(results: Sequence[Result], path: Path) -> None:
    """Draw the accuracy of every row over the share of samples: ours as lines, the paper's dashed.

    The axis of the accuracies is logit: as far from 0.99 to 0.999 as from 0.9 to 0.99.
    """
    rows = mnist_summary(results)
    panels = {
        "LeNet": [row for row in rows if row["paper"] is not None and row["name"].startswith("lenet")],
        "PCNN": [row for row in rows if row["paper"] is not None and not row["name"].startswith("lenet")],
        "Beyond the paper": [row for row in rows if row["paper"] is None],
    }
    panels = {title: shown for title, shown in panels.items() if shown}
    lowest = min(min(row["mean"].values()) for row in rows)
    figure = new_figure(1.0 + 3.6 * len(panels), 4.2)
    axes = figure.subplots(1, len(panels), squeeze=False)
    for axis, (title, shown) in zip(axes[0], panels.items(), strict=True):
        for number, row in enumerate(shown):
            _draw_row(axis, row, f"C{number}")
        if title == "Beyond the paper":
            _draw_best_of_paper(axis, rows)
        ticks = [0.1, 0.3, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995]
        axis.set_yscale("logit")
        axis.set(title=title, xlabel="test digits known at", ylim=(max(0.02, min(0.55, 0.9 * lowest)), 0.9975))
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_yticks([], minor=True)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8, loc="lower left")
    axes[0][0].set_ylabel("accuracy (dashed: the paper)")
    save_figure(figure, path)


def _draw_row(axis: Any, row: dict[str, Any], color: str) -> None:
    columns = list(row["mean"])
    spread = None if row["spread"] is None else list(row["spread"].values())
    axis.errorbar(columns, list(row["mean"].values()), yerr=spread, label=row["title"], color=color, marker="o", ms=3)
    if row["paper"] is not None:
        axis.plot(columns, list(row["paper"].values()), color=color, linestyle="--", linewidth=1)


def _draw_best_of_paper(axis: Any, rows: Sequence[dict[str, Any]]) -> None:
    papers = [row["paper"] for row in rows if row["paper"] is not None]
    if papers:
        best = {column: max(paper[column] for paper in papers) for column in papers[0]}
        axis.plot(list(best), list(best.values()), "k--", linewidth=1, label="best of the paper")


EXPERIMENTS = {
    "mnist": Experiment(
        name="mnist",
        config=MnistConfig,
        rows=PAPER_ROWS + OUR_ROWS,
        run=run,
        headline=headline_of_accuracy,
        tables=mnist_table,
        write_report=write_mnist_report,
        report_on="each row",
    )
}
