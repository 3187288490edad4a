"""The tables of docs/upsampling.md, out of what is under results/: for `tables.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from permutohedral.experiments.experiment import load_experiment
from permutohedral.reporting.markdown import markdown_table

RESULTS = Path(__file__).resolve().parents[1] / "results"


def upsampling(task: str) -> str:
    """Errors of a task of `permutohedral reproduce upsampling`, or of `features`, by factor."""
    from permutohedral.experiments.upsampling.report import upsampling_table

    experiment = "features" if task == "features" else "upsampling"
    if not (RESULTS / experiment).is_dir():
        raise FileNotFoundError(RESULTS / experiment)
    return upsampling_table(load_experiment(experiment).read_results(RESULTS / experiment), task)


def noisy_maps() -> str:
    """Errors and time of `tools/noisy_maps.py`."""
    rows = json.loads((RESULTS / "upsampling" / "noisy" / "cpu.json").read_text())["rows"]
    lines = [[name, f"{row['error']:.2f}", f"{row['milliseconds']:.0f}"] for name, row in rows.items()]
    return markdown_table(["", "error", "ms"], lines)


def upsampling_speed(machine: str) -> str:
    """Time and memory of `tools/upsampling_speed.py` beside torch's bilinear interpolation."""
    rows = json.loads((RESULTS / "upsampling" / "speed" / f"{machine}.json").read_text())["rows"]
    cells = []
    for name, row in rows.items():
        ours, theirs = row["permutohedral"], row["torch bilinear"]
        times = [f"{each['milliseconds']:.3g}" for each in (ours, theirs)]
        cells.append([name, *times, f"{ours['gigabytes']:.2f}"])
    return markdown_table(["", "ms", "torch bilinear, ms", "GB beyond the result"], cells)


TABLES: dict[str, Callable[[], str]] = {
    **{f"upsampling-{task}": partial(upsampling, task) for task in ("depth", "colors", "chroma", "kept", "features")},
    "upsampling-noisy": noisy_maps,
    **{f"upsampling-speed-{machine}": partial(upsampling_speed, machine) for machine in ("cpu", "h200")},
}
