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

# with heights above the ground; then with the positions alone, which shows what levels bring
ROWS = ("pointwise", "pointnet", "flat", "unet", "pointnet_positions", "flat_positions", "unet_positions")
# a shorter training; then what helps: each differs from unet, flat or those with positions alone in one setting
VARIANTS = (
    "unet_small",
    "unet_small_no_ground",
    "unet_one_place",
    "unet_no_augmentation",
    "unet_no_ground",
    "flat_no_ground",
    "unet_linear",
    "flat_coarse",
    # little is learned
    "unet_short",
    "flat_short",
    "flat_short_wide",
    "flat_short_small",
)

_TIMES = "steps.json"


def lidar_table(results: Sequence[Result]) -> str:
    """A Markdown table: means over the seeds ± their sample standard deviation.

    >>> iou = {place: dict.fromkeys(CLASSES, 0.5) for place in (HALVED, UNSEEN)}
    >>> metrics = {"miou": {HALVED: 0.875, UNSEEN: 0.7}, "iou": iou, "weights": 7000}
    >>> config = {"title": "A", "training": {"steps": 10, "batch_size": 8}}
    >>> print(lidar_table([Result("lidar", "a", config, metrics, 0)]).splitlines()[2])
    | A | 7,000 | 1 | 80 | 0.875 | 0.500 / 0.500 / 0.500 | 0.700 | 0.500 / 0.500 / 0.500 |
    """
    lines = []
    for runs in by_row(results).values():
        training = runs[0].config["training"]
        crops = f"{training['steps'] * training['batch_size']:,}"
        cells = [runs[0].config["title"], f"{runs[0].metrics['weights']:,}", str(len(runs)), crops]
        for place in (HALVED, UNSEEN):
            shares = np.array([run.metrics["miou"][place] for run in runs])
            spread = f" ± {shares.std(ddof=1):.3f}" if len(runs) > 1 else ""
            classes = [np.mean([run.metrics["iou"][place][each] for run in runs]) for each in CLASSES]
            cells += [f"{shares.mean():.3f}{spread}", " / ".join(f"{share:.3f}" for share in classes)]
        lines.append(cells)
    detail = " / ".join(CLASSES)
    places = [f"mIoU, other half of {HALVED}", detail, f"mIoU, {UNSEEN}, never seen", detail]
    return markdown_table(["Network", "Weights", "Seeds", "Crops learned", *places], lines)


def times_table(times: Mapping[str, Any]) -> str:
    """What `time_steps` wrote, as a Markdown table.

    >>> row = {"milliseconds": 12.34, "points": 1234.0, "dense_milliseconds": 23.4, "dense_points": 160000.0}
    >>> print(times_table({"rows": {"unet": row}}).splitlines()[2])
    | unet | 1,234 | 12.3 | 160,000 | 23.4 |
    """
    names = ("points", "milliseconds", "dense_points", "dense_milliseconds")
    rows = [
        [name, *(f"{row[each]:,.1f}" if "milli" in each else f"{row[each]:,.0f}" for each in names)]
        for name, row in times["rows"].items()
    ]
    return markdown_table(["Row", "Points of a step", "ms a step", "Points of a dense step", "ms a dense step"], rows)


def write_lidar_report(results: Sequence[Result], options: RunOptions, command: str) -> list[Path]:
    """Write `report.md` into the output folder.

    Args:
        results: of all rows and seeds.
        options: with the output folder.
        command: that made them.
    """
    times = read_times(options.output)
    lines = [
        "# Laser scans: ground, vegetation and buildings",
        "",
        f"mIoU is the mean over the classes of the intersection over the union of points. {HALVED.capitalize()}: "
        f"trained on the west half, tested on all points of the east half. {UNSEEN.capitalize()}: another country, "
        "another scanner, a fifteenth of the density; nothing of it was trained on. Points of overlapping flights, "
        "water, bridges, noise and such as nobody classified are seen and not counted.",
        "",
        lidar_table(results),
        "",
        f"Made with `{command}`: {'; '.join(_machines(results))}. All figures with their settings are in `runs/`.",
        "",
    ]
    if times is not None:
        machine, commit = name_machine(times["environment"]["hardware"]), short_commit(times["environment"]["commit"])
        lines += [
            f"A training step alone, without the drawing of the crops, on {machine} at {commit}: the median of 30. "
            f"Dense steps have crops of {HALVED} that are not thinned out.",
            "",
            times_table(times),
            "",
        ]
    path = options.output / "report.md"
    write_text(path, "\n".join(lines))
    return [path]


def _machines(results: Sequence[Result]) -> list[str]:
    """Which rows were made where, in words."""
    rows: dict[str, dict[str, None]] = {}
    for result in results:
        machine = name_machine(result.environment["hardware"])
        rows.setdefault(f"on {machine} at {short_commit(result.environment['commit'])}", {})[result.name] = None
    return [f"{', '.join(names)} {where}" for where, names in rows.items()]


def time_steps(configs: list[LidarConfig], options: RunOptions, tell: Tell) -> list[LidarConfig]:
    """Time a training step of each row and write the times; returns the same rows."""
    rows: dict[str, dict[str, float]] = {}
    # seeds and heights change nothing about the time
    networks = [(config.model, config.options) for config in configs]
    for config in (config for number, config in enumerate(configs) if networks[number] not in networks[:number]):
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
