"""The table of the laser scans: intersections over unions over the seeds, time of a step, and maps from above."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from permutohedral.data.lidar import CLASSES
from permutohedral.errors import InputError
from permutohedral.experiments.experiment import Experiment, Tell
from permutohedral.experiments.lidar.run import HALVED, UNSEEN, LidarConfig, run, time_step
from permutohedral.experiments.result import Result, by_row, describe_environment, write_text
from permutohedral.experiments.training import RunOptions
from permutohedral.reporting.markdown import markdown_table
from permutohedral.reporting.provenance import name_machine, short_commit

ROWS = ("pointwise", "pointnet", "flat", "unet")
# what helps: each differs from unet or flat in one setting
VARIANTS = ("unet_one_place", "unet_no_augmentation", "unet_no_ground", "flat_no_ground")

_TIMES = "steps.json"


def lidar_table(results: Sequence[Result], times: Mapping[str, Any] | None = None) -> str:
    """A Markdown table: means over the seeds ± their sample standard deviation.

    Args:
        results: of all rows and seeds.
        times: what `time_steps` wrote, if it did.

    >>> iou = {place: dict.fromkeys(CLASSES, 0.5) for place in (HALVED, UNSEEN)}
    >>> metrics = {"miou": {HALVED: 0.875, UNSEEN: 0.7}, "iou": iou, "weights": 7000}
    >>> times = {"rows": {"a": {"milliseconds": 12.34}}}
    >>> print(lidar_table([Result("lidar", "a", {"title": "A"}, metrics, 0)], times).splitlines()[2])
    | A | 7,000 | 1 | 0.875 | 0.500 / 0.500 / 0.500 | 0.700 | 0.500 / 0.500 / 0.500 | 12.3 |
    """
    lines = []
    for name, runs in by_row(results).items():
        cells = [runs[0].config["title"], f"{runs[0].metrics['weights']:,}", str(len(runs))]
        for place in (HALVED, UNSEEN):
            shares = np.array([run.metrics["miou"][place] for run in runs])
            spread = f" ± {shares.std(ddof=1):.3f}" if len(runs) > 1 else ""
            classes = [np.mean([run.metrics["iou"][place][each] for run in runs]) for each in CLASSES]
            cells += [f"{shares.mean():.3f}{spread}", " / ".join(f"{share:.3f}" for share in classes)]
        timed = (times or {"rows": {}})["rows"].get(name)
        lines.append([*cells, f"{timed['milliseconds']:.1f}" if timed else ""])
    detail = " / ".join(CLASSES)
    places = [f"mIoU, other half of {HALVED}", detail, f"mIoU, {UNSEEN}, never seen", detail]
    return markdown_table(["Network", "Weights", "Seeds", *places, "ms a step"], lines)


def write_lidar_report(results: Sequence[Result], options: RunOptions, command: str) -> list[Path]:
    """Write `report.md` into the output folder.

    Args:
        results: of all rows and seeds.
        options: with the output folder.
        command: that made them.
    """
    environment = results[0].environment
    times = read_times(options.output)
    timed = (
        f" Steps were timed alone, one row after another, on {name_machine(times['environment']['hardware'])}, without "
        f"the drawing of the crops: the median of 30 steps of about {max(_points(times)):,.0f} points."
        if times
        else ""
    )
    lines = [
        "# Laser scans: ground, vegetation and buildings",
        "",
        f"mIoU is the mean over the classes of the intersection over the union of points. {HALVED.capitalize()}: "
        f"trained on the west half, tested on all points of the east half. {UNSEEN.capitalize()}: another country, "
        "another scanner, a fifteenth of the density; nothing of it was trained on. Points of overlapping flights, "
        "water, bridges, noise and such as nobody classified are seen and not counted.",
        "",
        lidar_table(results, times),
        "",
        f"Made with `{command}` on {name_machine(environment['hardware'])} at {short_commit(environment['commit'])}."
        f"{timed} All figures with their settings are in `runs/`.",
        "",
    ]
    path = options.output / "report.md"
    write_text(path, "\n".join(lines))
    return [path]


def _points(times: Mapping[str, Any]) -> list[float]:
    return [row["points"] for row in times["rows"].values()]


def time_steps(configs: list[LidarConfig], options: RunOptions, tell: Tell) -> list[LidarConfig]:
    """Time a training step of each row and write the times; returns the same rows."""
    rows: dict[str, dict[str, float]] = {}
    for config in configs:
        rows[config.name] = time_step(config, options)
        tell(f"{config.title}: {rows[config.name]['milliseconds']:.1f} ms a step")
    content = {"rows": rows, "environment": describe_environment(options.device)}
    write_text(options.output / _TIMES, json.dumps(content, indent=2, sort_keys=True) + "\n")
    return configs


def read_times(folder: Path) -> dict[str, Any] | None:
    """What `time_steps` wrote, if it did.

    Raises:
        InputError: the file cannot be read.
    """
    path = folder / _TIMES
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not what --time-steps writes: {error!r}") from error
    return content


def headline(result: Result) -> str:
    """The mean intersections over unions of a result."""
    return " ".join(f"{place} {share:.4f}" for place, share in result.metrics["miou"].items())


EXPERIMENTS = {
    "lidar": Experiment(
        name="lidar",
        config=LidarConfig,
        rows=ROWS,
        more_rows=VARIANTS,
        run=run,
        headline=headline,
        tables=lidar_table,
        write_report=write_lidar_report,
        report_on="folder",
        flags={"time_steps": time_steps},
    )
}
