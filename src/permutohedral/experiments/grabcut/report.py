"""The GrabCut table: how much of the photographs is cut out wrongly, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from permutohedral.experiments.experiment import Experiment
from permutohedral.experiments.grabcut.run import GrabcutConfig, run
from permutohedral.experiments.result import Result, by_row, write_text
from permutohedral.experiments.training import RunOptions
from permutohedral.reporting.markdown import markdown_table
from permutohedral.reporting.provenance import name_machine

ROWS = ("mixtures_lasso", "fixed_lasso", "learned_lasso", "mixtures_rect", "fixed_rect", "learned_rect")
# need OpenCV
MORE_ROWS = ("opencv_lasso", "opencv_rect")


def grabcut_table(results: Sequence[Result]) -> str:
    """A Markdown table, means over the photographs.

    >>> mean = {"wrong": 0.008, "wrong_of_unknown": 0.055, "intersection_over_union": 0.957}
    >>> metrics = {"mean": mean, "median_seconds": 0.08}
    >>> print(grabcut_table([Result("grabcut", "a", {"title": "A"}, metrics, 0)]))
    |  | wrong, % of all | wrong, % of unknown | IoU, % | seconds |
    | --- | ---: | ---: | ---: | ---: |
    | A | 0.80 | 5.50 | 95.7 | 0.08 |
    """
    lines = []
    for runs in by_row(results).values():
        means = runs[0].metrics["mean"]
        lines.append(
            [
                runs[0].config["title"],
                f"{100 * means['wrong']:.2f}",
                f"{100 * means['wrong_of_unknown']:.2f}",
                f"{100 * means['intersection_over_union']:.1f}",
                f"{runs[0].metrics['median_seconds']:.2f}",
            ]
        )
    return markdown_table(["", "wrong, % of all", "wrong, % of unknown", "IoU, %", "seconds"], lines)


def headline(result: Result) -> str:
    """The share of wrong pixels, and the time of a photograph."""
    return f"{100 * result.metrics['mean']['wrong']:.3f} % wrong, {result.metrics['median_seconds']:.2f} s"


def write_grabcut_report(results: Sequence[Result], options: RunOptions, command: str) -> list[Path]:
    """Write `report.md` into the output folder.

    Args:
        results: of at least one row.
        options: of the run that made them.
        command: that makes them again.
    """
    environment, photographs = results[0].environment, len(results[0].metrics["photographs"])
    lines = [
        "# Objects cut out of photographs",
        "",
        f"Means over {photographs} photographs of the GrabCut database: the share of wrong pixels among all that count "
        "(not those in which foreground and background mix), and among those that the trimap leaves unknown; "
        "intersection over union; the median of the seconds of processor time for a photograph, colors and lattices "
        "included. Settings are chosen, and parameters trained, on the other half of the photographs.",
        "",
        grabcut_table(results),
        "",
        f"Made with `{command}` on {name_machine(environment['hardware'])}, {environment['threads']} thread(s), shared "
        "with other work. All figures with their settings and commits are in the JSON files beside this one.",
        "",
    ]
    path = options.output / "report.md"
    write_text(path, "\n".join(lines))
    return [path]


EXPERIMENTS = {
    "grabcut": Experiment(
        name="grabcut",
        config=GrabcutConfig,
        rows=ROWS,
        run=run,
        headline=headline,
        tables=grabcut_table,
        write_report=write_grabcut_report,
        more_rows=MORE_ROWS,
        seeds=1,
        report_on="folder",
        flat=True,
    )
}
