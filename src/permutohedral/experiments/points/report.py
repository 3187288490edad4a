"""The point cloud table: accuracies over the seeds, the confusion of solids, and what the clouds look like."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from permutohedral.data.solids import SOLIDS, make_clouds
from permutohedral.experiments.experiment import Experiment
from permutohedral.experiments.points.run import PointsConfig, run
from permutohedral.experiments.result import Result, by_row, headline_of_accuracy, write_text
from permutohedral.experiments.training import RunOptions
from permutohedral.reporting.figure import new_figure, save_figure
from permutohedral.reporting.markdown import markdown_table
from permutohedral.reporting.provenance import name_machine

ROWS = ("pointwise_position", "position", "pointwise_normal", "position_normal_values", "position_normal")


def points_table(results: Sequence[Result]) -> str:
    """A Markdown table: mean accuracy over the seeds ± their sample standard deviation.

    >>> metrics = [{"accuracy": {"all": share}, "weights": 7000} for share in (0.9, 0.92)]
    >>> runs = [Result("points", "a", {"title": "A"}, m, s) for s, m in enumerate(metrics)]
    >>> print(points_table(runs))
    | Network | Weights | Seeds | Accuracy |
    | --- | ---: | ---: | ---: |
    | A | 7,000 | 2 | 0.910 ± 0.014 |
    """
    lines = []
    for runs in by_row(results).values():
        accuracy = np.array([run.metrics["accuracy"]["all"] for run in runs])
        spread = f" ± {accuracy.std(ddof=1):.3f}" if len(runs) > 1 else ""
        cells = [runs[0].config["title"], f"{runs[0].metrics['weights']:,}", str(len(runs))]
        lines.append([*cells, f"{accuracy.mean():.3f}{spread}"])
    return markdown_table(["Network", "Weights", "Seeds", "Accuracy"], lines)


def write_points_report(results: Sequence[Result], options: RunOptions, command: str) -> list[Path]:
    """Write `report.md`, `clouds.png` and `confusion.png` into the output folder.

    Args:
        results: of at least one row and seed.
        options: of the run that made them.
        command: that makes them again.
    """
    folder, environment, config = options.output, results[0].environment, results[0].config
    machine = name_machine(environment["hardware"])
    draw_clouds(config["noise"], folder / "clouds.png")
    draw_confusion(results, folder / "confusion.png")
    lines = [
        "# Solids from point clouds",
        "",
        f"Share of {config['test_clouds']:,} scans of {len(SOLIDS)} solids that are recognized: mean over the seeds ± "
        f"sample standard deviation. Trained on {config['train_clouds']:,} other scans; noise of {config['noise']:g} "
        "of the radius, seen from one side, up to 40 % of the rest cut away.",
        "",
        points_table(results),
        "",
        f"Made with `{command}` on {machine}, {environment['threads']} thread(s), shared with other work. All figures "
        "with their settings and commits are in `runs/`.",
        "",
        "![The clouds](clouds.png)",
        "![Which solids are taken for which](confusion.png)",
        "",
    ]
    path = folder / "report.md"
    write_text(path, "\n".join(lines))
    return [path]


def draw_clouds(noise: float, path: Path) -> None:
    """Draw two scans of each solid as the viewer sees them, brighter where nearer."""
    clouds = make_clouds(200, seed=3, noise=noise)
    figure = new_figure(1.5 * len(SOLIDS), 3.3)
    axes = figure.subplots(2, len(SOLIDS), squeeze=False)
    for label, name in enumerate(SOLIDS):
        chosen = (clouds.labels == label).nonzero()[:2]
        for axis, number in zip(axes[:, label], chosen, strict=False):
            x, y, depth = clouds.select(number).positions.T
            axis.scatter(x, y, c=depth, s=4, cmap="viridis")
            axis.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal", xticks=[], yticks=[])
        axes[0, label].set_title(name, fontsize=9)
    save_figure(figure, path)


def draw_confusion(results: Sequence[Result], path: Path) -> None:
    """Draw for every row which solids are taken for which, in percent, all seeds together."""
    rows = by_row(results)
    figure = new_figure(2.6 * len(rows) + 0.6, 4.0)
    axes = figure.subplots(1, len(rows), squeeze=False)
    names = list(SOLIDS)
    for axis, runs in zip(axes[0], rows.values(), strict=True):
        counts = torch.tensor([run.metrics["confusion"] for run in runs]).sum(dim=0).double()
        share = (100 * counts / counts.sum(dim=1, keepdim=True).clamp_min(1)).numpy()
        axis.imshow(share, cmap="Blues", vmin=0, vmax=100)
        for (y, x), value in np.ndenumerate(share):
            if value >= 0.5:
                axis.text(x, y, f"{value:.0f}", ha="center", va="center", fontsize=6, color=_readable(value))
        axis.set_title(runs[0].config["title"].replace(", ", ",\n"), fontsize=8)
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        axis.set_yticks(range(len(names)), names if axis is axes[0, 0] else [], fontsize=7)
        axis.set_xlabel("taken for, %", fontsize=8)
    save_figure(figure, path)


def _readable(value: Any) -> str:
    return "white" if value > 50 else "black"


EXPERIMENTS = {
    "points": Experiment(
        name="points",
        config=PointsConfig,
        rows=ROWS,
        run=run,
        headline=headline_of_accuracy,
        tables=points_table,
        write_report=write_points_report,
        report_on="folder",
    )
}
