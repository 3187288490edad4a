"""The tables on rotation and scale: accuracy and change of the first layer over the seeds, as tables and a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from permutohedral.experiments.experiment import Experiment
from permutohedral.experiments.invariance.run import InvarianceConfig, run
from permutohedral.experiments.result import Result, by_row, headline_of_accuracy, write_text
from permutohedral.experiments.training import RunOptions
from permutohedral.reporting.figure import new_figure, save_figure
from permutohedral.reporting.markdown import markdown_table
from permutohedral.reporting.provenance import name_machine

_METRICS = ("accuracy", "accuracy_whole_circle", "change", "change_whole_circle")
_AS_IT_IS = {"rotation": "0", "scale": "1"}


def invariance_summary(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row for each name: mean over the seeds of everything measured, and the sample standard deviation."""
    rows = []
    for name, runs in by_row(results).items():
        row: dict[str, Any] = {
            "name": name,
            "title": runs[0].config["title"],
            "seeds": [run.seed for run in runs],
            "paper": runs[0].config.get("paper"),
            "weights": runs[0].metrics["weights"],
            "training_seconds": round(float(np.mean([run.seconds["training"] for run in runs])), 1),
        }
        for metric in _METRICS:
            if metric not in runs[0].metrics:
                continue
            # a result that was read has its columns in another order
            columns = sorted(runs[0].metrics[metric], key=float)
            figures = np.array([[run.metrics[metric][column] for column in columns] for run in runs])
            spread = figures.std(axis=0, ddof=1) if len(runs) > 1 else None
            row[metric] = dict(zip(columns, figures.mean(axis=0).round(6).tolist(), strict=True))
            row[f"{metric}_spread"] = (
                None if spread is None else dict(zip(columns, spread.round(6).tolist(), strict=True))
            )
        rows.append(row)
    return rows


def accuracy_table(results: Sequence[Result]) -> str:
    """A Markdown table: mean accuracy over the seeds ± their spread (the paper's), the best of each column in bold.

    >>> metrics = {"accuracy": {"0": 0.99, "30": 0.95}, "weights": 7}
    >>> print(accuracy_table([Result("rotation", "lenet", {"title": "LeNet"}, metrics, 0, {"training": 1.0})]))
    | Network | Seeds | upright | up to 30° |
    | --- | ---: | ---: | ---: |
    | LeNet | 1 | **0.9900** | **0.9500** |
    """
    rows = invariance_summary(results)
    columns = list(rows[0]["accuracy"])
    lines_of = _by_title(rows, "accuracy")
    best = {column: max(round(means[column], 4) for _, means, _ in lines_of) for column in columns}
    headings = [_accuracy_heading(results[0].experiment, column) for column in columns]
    lines = []
    for title, means, row in lines_of:
        cells = [title, str(len(row["seeds"]))]
        spread = row["accuracy_spread" if title == row["title"] else "accuracy_whole_circle_spread"]
        for column in columns:
            share = f"{means[column]:.4f}"
            cell = f"**{share}**" if round(means[column], 4) == best[column] else share
            cell += "" if spread is None else f" ± {spread[column]:.4f}"
            of_paper = row["paper"] is not None and title == row["title"] and column == _AS_IT_IS[results[0].experiment]
            cells.append(f"{cell} ({row['paper']:.4f})" if of_paper else cell)
        lines.append(cells)
    return markdown_table(["Network", "Seeds", *headings], lines)


def change_table(results: Sequence[Result]) -> str:
    """A Markdown table: how much the pooled output of the first layer changes, relative to itself."""
    rows = invariance_summary(results)
    columns = list(rows[0]["change"])
    degrees = "°" if results[0].experiment == "rotation" else ""
    headings = [f"{column}{degrees or ' x'}" for column in columns]
    lines = [
        [title, *(f"{change[column]:.3f}" for column in columns)] for title, change, _ in _by_title(rows, "change")
    ]
    return markdown_table(["First layer of", *headings], lines)


def invariance_tables(results: Sequence[Result]) -> str:
    """Both tables."""
    return f"{accuracy_table(results)}\n\n{change_table(results)}"


def write_invariance_report(results: Sequence[Result], options: RunOptions, command: str) -> list[Path]:
    """Write `report.md`, `<experiment>.json` (summary and all results) and `accuracy.png` into the
    output folder.

    Args:
        results: of at least one row and seed, all of one experiment.
        options: of the run that made them.
        command: that makes them again.
    """
    folder, experiment, environment = options.output, results[0].experiment, results[0].environment
    machine = name_machine(environment["hardware"])
    commits = " and ".join(dict.fromkeys(f"`{result.environment['commit']}`" for result in results))
    content = {"summary": invariance_summary(results), "results": [asdict(result) for result in results]}
    write_text(folder / f"{experiment}.json", json.dumps(content, indent=1, sort_keys=True) + "\n")
    draw_invariance(results, folder / "accuracy.png")
    what = "rotated at random, uniformly up to an angle" if experiment == "rotation" else "scaled by a factor"
    digits = f"{results[0].config['test_images'] or 10_000:,} test digits"
    if results[0].config["split"] == "validation":
        digits = "digits held out of the training set"
    lines = [
        f"# {'Rotated' if experiment == 'rotation' else 'Scaled'} digits",
        "",
        f"Share of {digits} that are recognized when {what}: mean over the seeds ± sample standard deviation "
        "(the paper's). All rows but the augmented one train on digits as they are.",
        "",
        accuracy_table(results),
        "",
        *_explain_circle(results),
        "Change of the first layer: the norm of the difference between its output for a digit and for the transformed "
        "digit, over the norm of the output; the largest response along the third coordinate where there is one.",
        "",
        change_table(results),
        "",
        f"Made with `{command}` at commit {commits} on {machine} (backend {environment['backend']}); "
        f"the time of each training is in `{experiment}.json`.",
        "",
        "![Errors and change of the first layer](accuracy.png)",
        "",
    ]
    path = folder / "report.md"
    write_text(path, "\n".join(lines))
    return [path]


def draw_invariance(results: Sequence[Result], path: Path) -> None:
    """Draw errors and change of the first layer over the transformation, a line for each row."""
    experiment, rows = results[0].experiment, invariance_summary(results)
    figure = new_figure(11.0, 4.4)
    axes = figure.subplots(1, 2, squeeze=False)
    titles = [row["title"] for row in rows]
    for axis, metric in zip(axes[0], ("accuracy", "change"), strict=True):
        for title, means, row in _by_title(rows, metric):
            points = {float(column): value for column, value in means.items()}
            if metric == "accuracy":
                # on a logarithmic axis no error at all would have no place
                points = {x: max(1 - share, 1e-4) for x, share in points.items()}
            else:
                points |= {float(_AS_IT_IS[experiment]): 0.0}
            number = titles.index(row["title"])
            # lines that cover each other are told apart by their widths
            style = {
                "color": f"C{number}",
                "linestyle": "-" if title == row["title"] else "--",
                "lw": max(1.0, 3.5 - 0.8 * number),
            }
            axis.plot(*zip(*sorted(points.items()), strict=True), label=title, marker="o", ms=3, **style)
        axis.grid(alpha=0.3, which="both")
        if experiment == "rotation":
            # most of what matters happens below 60 degrees
            axis.set_xscale("function", functions=(np.sqrt, np.square))
            axis.set_xticks([0, 10, 20, 30, 45, 60, 90, 180])
    errors, change = axes[0]
    errors.set_yscale("log")
    errors.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    errors.yaxis.set_minor_formatter(lambda share, _: f"{100 * share:g} %" if f"{share:e}"[0] in "25" else "")
    rotated = experiment == "rotation"
    errors.set_xlabel("largest rotation of the test digits, degrees" if rotated else "scale of the test digits")
    errors.set_ylabel("digits not recognized")
    change.set_xlabel("rotation, degrees" if rotated else "scale")
    change.set_ylabel("relative change of the first layer's output")
    handles, titles = change.get_legend_handles_labels()
    figure.legend(handles, titles, loc="outside lower center", ncols=5 if len(titles) <= 5 else 4, frameon=False)
    save_figure(figure, path)


def _by_title(rows: Sequence[dict[str, Any]], metric: str) -> list[tuple[str, dict[str, float], dict[str, Any]]]:
    """Title, means and row of each line; a stack of rotations has a second one, pooled over the whole circle."""
    lines = []
    for row in rows:
        lines.append((row["title"], row[metric], row))
        if f"{metric}_whole_circle" in row:
            lines.append((f"{row['title']}, all rotations", row[f"{metric}_whole_circle"], row))
    return lines


def _accuracy_heading(experiment: str, column: str) -> str:
    if experiment == "scale":
        return f"{column} x"
    return "upright" if column == _AS_IT_IS[experiment] else f"up to {column}°"


def _explain_circle(results: Sequence[Result]) -> list[str]:
    if not any("accuracy_whole_circle" in result.metrics for result in results):
        return []
    return ["*All rotations* is the same trained network with its stack extended to the whole circle afterwards.", ""]


EXPERIMENTS = {
    name: Experiment(
        name=name,
        config=InvarianceConfig,
        rows=("lenet", "pcnn", f"{name}_pcnn", "lenet_copies", "lenet_augmented"),
        run=run,
        headline=headline_of_accuracy,
        tables=invariance_tables,
        write_report=write_invariance_report,
        report_on="each row",
    )
    for name in ("rotation", "scale")
}
