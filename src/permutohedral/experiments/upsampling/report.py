"""The upsampling tables: errors by factor, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from permutohedral.experiments.experiment import Experiment
from permutohedral.experiments.result import Result, by_row, write_text
from permutohedral.experiments.training import RunOptions
from permutohedral.experiments.upsampling.run import UpsamplingConfig, run
from permutohedral.reporting.markdown import markdown_table
from permutohedral.reporting.provenance import name_machine

_DEPTH = ("depth_bicubic", "depth_gaussian", "depth_consistent", "depth_solver")
_COLORS = ("colors_bicubic", "colors_gaussian", "colors_affine", "colors_solver")
_CHROMA = ("chroma_bicubic", "chroma_gaussian", "chroma_solver")
_KEPT = (*("kept_linear", "kept_gaussian", "kept_filter", "kept_learned", "kept_learned_wide", "kept_linear_gray"),)
ROWS = {
    "upsampling": (*_DEPTH, *_COLORS, *_CHROMA, *_KEPT),
    "features": ("bicubic", "gaussian", "consistent", "affine", "solver"),
}
# need OpenCV with its contributed modules
MORE_ROWS = {
    "upsampling": (
        *("depth_opencv_guided", "depth_opencv_joint", "depth_opencv_dt"),
        *("colors_opencv_guided", "colors_opencv_joint", "colors_opencv_dt"),
    ),
    "features": ("opencv_guided", "opencv_dt"),
}

TITLES = {
    "depth": "Disparities along a photograph: root mean square error in units of 8 bits",
    "colors": "RGB along gray: PSNR in dB",
    "features": "24 channels of a network along the gray picture it sees: variance over mean square error in dB",
    "kept": "RGB along gray, of one pixel out of as many along each axis: PSNR in dB",
    "chroma": "RGB less gray along gray, which is added again: PSNR in dB",
}


def upsampling_table(results: Sequence[Result], task: str) -> str:
    """A Markdown table of the rows of a task, means over the pictures.

    >>> metrics = {"8": {"score": 3.25, "milliseconds": 800.4, "at_an_end": []}}
    >>> print(upsampling_table([Result("upsampling", "a", {"title": "A", "task": "depth"}, metrics, 0)], "depth"))
    |  | 8x | ms, 8x |
    | --- | ---: | ---: |
    | A | 3.25 | 800 |
    """
    rows = [runs[0] for runs in by_row(results).values() if runs[0].config["task"] == task]
    factors = sorted({factor for row in rows for factor in row.metrics}, key=int)
    timed = "8" if "8" in factors else factors[0]
    lines = []
    for row in rows:
        scores = [f"{row.metrics[factor]['score']:.2f}" if factor in row.metrics else "" for factor in factors]
        time = f"{row.metrics[timed]['milliseconds']:.0f}" if timed in row.metrics else ""
        lines.append([row.config["title"], *scores, time])
    return markdown_table(["", *(f"{factor}x" for factor in factors), f"ms, {timed}x"], lines)


def tables(results: Sequence[Result]) -> str:
    """The tables of all tasks that have rows."""
    tasks = [task for task in TITLES if any(result.config["task"] == task for result in results)]
    return "\n\n".join(f"{TITLES[task]}\n\n{upsampling_table(results, task)}" for task in tasks)


def headline(result: Result) -> str:
    """The score at each factor."""
    return ", ".join(f"{factor}x {found['score']:.2f}" for factor, found in result.metrics.items())


def write_upsampling_report(results: Sequence[Result], options: RunOptions, command: str) -> list[Path]:
    """Write `report.md` into the output folder.

    Args:
        results: of at least one row.
        options: of the run that made them.
        command: that makes them again.
    """
    environment = results[0].environment
    lines = [
        "# Upsampling along edges",
        "",
        "Coarse maps are means of cells, but for the table of pixels that were kept. Settings of every method are "
        "chosen on other pictures (cones and teddy of "
        "Middlebury; five of the val pictures of BSDS500) than those measured (art, books, moebius, tsukuba, venus; 50 "
        "test pictures, ten of features). Milliseconds are processor time for the largest picture, one run.",
        "",
        tables(results),
        "",
        f"Made with `{command}` on {name_machine(environment['hardware'])}, {environment['threads']} thread(s), shared "
        "with other work. The settings, and which of them lie at an end of their grid, are in the JSON files beside "
        "this one.",
        "",
    ]
    path = options.output / "report.md"
    write_text(path, "\n".join(lines))
    return [path]


EXPERIMENTS = {
    name: Experiment(
        name=name,
        config=UpsamplingConfig,
        rows=rows,
        run=run,
        headline=headline,
        tables=tables,
        write_report=write_upsampling_report,
        more_rows=MORE_ROWS[name],
        seeds=1,
        report_on="folder",
        flat=True,
    )
    for name, rows in ROWS.items()
}
