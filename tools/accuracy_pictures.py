"""Measure how close the bilateral filter of photographs comes to the exact one, and how long it takes.

    python tools/accuracy_pictures.py --photographs FOLDER     writes results/accuracy-pictures.json

The default folder is `bsds500/test` in the folder that PERMUTOHEDRAL_DATA names. The exact filter is `method="exact"`.
Times are processor times of one thread, so that other work on the machine counts little.
`tools/accuracy.py --render` puts the figures into docs/research/accuracy.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import permutohedral as ph
from experiments.data.bsds500 import read_pixels
from experiments.markdown import markdown_table
from experiments.provenance import find_commit, find_processor
from experiments.quality import relative_error

ROOT = Path(__file__).resolve().parents[1]
JSON_FILE = ROOT / "results" / "accuracy-pictures.json"

NOISES = (0.0, 25 / 255)
SIGMAS_SPACE = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
SIGMAS_RANGE = (0.02, 0.05, 0.1, 0.2, 0.5)
# in the table of the page
SHOWN_SIGMAS_RANGE = (0.1,)
NUM_PHOTOGRAPHS = 3
# of everything that is timed
REPETITIONS = 4
# goals: relative error, error at the worst pixel, and time relative to the lattice
GOAL_ERROR, GOAL_WORST, GOAL_TIME = 0.01, 0.03, 1.5
METHODS = ("lattice", "auto")


def timed(runs: Mapping[str, Callable[[], Tensor]]) -> dict[str, tuple[float, Tensor]]:
    """Return least processor times in milliseconds and results; the runs take turns on the same machine."""
    found: dict[str, tuple[float, Tensor]] = {}
    for _ in range(REPETITIONS):
        for name, run in runs.items():
            started = time.process_time()
            result = run()
            taken = 1e3 * (time.process_time() - started)
            found[name] = min(taken, found.get(name, (math.inf, None))[0]), result
    return found


def measure(image: Tensor, sigma_space: float, sigma_color: float) -> dict[str, Any]:
    """Measure errors and times of the methods on one image."""
    sigmas: dict[str, Any] = {"sigma_space": sigma_space, "sigma_color": sigma_color}
    exact = ph.bilateral_filter(image, **sigmas, method="exact").double()
    found: dict[str, Any] = {"chosen": ph.accuracy.explain_bilateral(image, **sigmas).method}
    runs = {method: partial(ph.bilateral_filter, image, **sigmas, method=method) for method in METHODS}
    for name, (milliseconds, result) in timed(runs).items():
        worst = float((result.double() - exact).abs().max())
        found[name] = {"error": relative_error(result, exact), "worst": worst, "milliseconds": milliseconds}
    return found


def summarize(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean error, the worst pixel and the median time over the photographs."""
    row: dict[str, Any] = {"chosen": sorted({each["chosen"] for each in found})}
    for method in METHODS:
        row[method] = {
            "error": statistics.mean(each[method]["error"] for each in found),
            "worst": max(each[method]["worst"] for each in found),
            "milliseconds": statistics.median(each[method]["milliseconds"] for each in found),
        }
    ratios = [each["auto"]["milliseconds"] / each["lattice"]["milliseconds"] for each in found]
    row["time_ratio"] = statistics.median(ratios)
    return row


def run(folder: Path) -> dict[str, Any]:
    """Measure every bandwidth on three photographs, with and without noise."""
    torch.set_num_threads(1)
    # before sources change
    commit = find_commit()
    paths = sorted(folder.glob("*.jpg"))
    paths = paths[:: max(1, len(paths) // NUM_PHOTOGRAPHS)][:NUM_PHOTOGRAPHS]
    rows = []
    for noise in NOISES:
        generator = torch.Generator().manual_seed(0)
        images = [torch.from_numpy(read_pixels(path)).permute(2, 0, 1).float() / 255 for path in paths]
        photographs = [image + noise * torch.randn(image.shape, generator=generator) for image in images]
        for sigma_space in SIGMAS_SPACE:
            for sigma_color in SIGMAS_RANGE:
                found = [measure(image, sigma_space, sigma_color) for image in photographs]
                setting = {"noise": noise, "sigma_space": sigma_space, "sigma_color": sigma_color}
                rows.append({**setting, "photographs": len(found), **summarize(found)})
                print(json.dumps(rows[-1]), flush=True)
    return {
        "what": "bilateral filter of photographs against the exact filter",
        "command": "python tools/accuracy_pictures.py --photographs FOLDER",
        "photographs": [path.stem for path in paths],
        "processor": find_processor(),
        "commit": commit,
        "version": ph.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "rows": rows,
    }


def missed(row: dict[str, Any]) -> str:
    """Return which goals the automatic method misses."""
    auto = row["auto"]
    is_missed = {
        "error": auto["error"] > GOAL_ERROR,
        "worst pixel": auto["worst"] > GOAL_WORST,
        "time": row["time_ratio"] > GOAL_TIME,
    }
    return ", ".join(name for name, fails in is_missed.items() if fails)


def render(report: dict[str, Any]) -> list[str]:
    """Return the section of the page, in lines of Markdown."""
    table = []
    for row in report["rows"]:
        if row["sigma_color"] not in SHOWN_SIGMAS_RANGE:
            continue
        cells = [f"{round(255 * row['noise'])}/255, {row['sigma_space']:g} px, {row['sigma_color']:g}"]
        lattice, auto = row["lattice"], row["auto"]
        cells += [f"{lattice['error']:.4f}", f"{lattice['worst']:.3f}", f"{lattice['milliseconds']:.1f}"]
        cells += [" or ".join(row["chosen"]), f"{auto['error']:.4f}", f"{auto['worst']:.3f}"]
        table.append([*cells, f"{row['time_ratio']:.2f}", missed(row)])
    headers = ["noise, bandwidths", "lattice: error", "worst", "ms"]
    headers += ["auto uses", "error", "worst", "time / lattice", "misses"]
    count = sum(not missed(row) for row in report["rows"])
    return [
        markdown_table(headers, table, text_columns=range(len(headers))),
        "",
        f"{count} of {len(report['rows'])} rows meet all goals. Measured at commit {report['commit'][:7]} on one core",
        f"of {report['processor']}.",
    ]


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description="Measure the bilateral filter of photographs against the exact one.")
    data = os.environ.get("PERMUTOHEDRAL_DATA")
    default = None if data is None else Path(data, "bsds500", "test")
    parser.add_argument(
        "--photographs", type=Path, default=default, required=default is None, help="folder of JPEG files"
    )
    JSON_FILE.write_text(json.dumps(run(parser.parse_args().photographs), indent=2) + "\n")


if __name__ == "__main__":
    main()
