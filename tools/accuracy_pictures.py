"""How close the bilateral filter of photographs comes to its definition, and how long it takes.

    python tools/accuracy_pictures.py --photographs FOLDER --before PYTHON     writes results/accuracy-pictures.json

PYTHON is the interpreter of an installation of the version that times are judged by, whose lattice is timed in turn
with ours (`tools/time_lattice.py`); without it times are judged by the lattice of this version. The exact filter is
`method="exact"` at every pixel, whose rounding and truncation are far below the errors. Times are processor times of
one thread, so that other work on the machine counts little. OpenCV is timed beside if it is installed; it measures
colors by the sum of the absolute differences of their channels, so its results are those of another filter.
`tools/accuracy.py` puts the figures into docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.reporting.markdown import markdown_table
from permutohedral.reporting.provenance import find_commit, find_processor
from permutohedral.reporting.quality import relative_error

ROOT = Path(__file__).resolve().parents[1]
JSON_FILE = ROOT / "results" / "accuracy-pictures.json"

NOISES = (0.0, 25 / 255)
SIGMAS_SPACE = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
SIGMAS_RANGE = (0.02, 0.05, 0.1, 0.2, 0.5)
NUM_PHOTOGRAPHS = 3
# beyond this bandwidth OpenCV is no competitor
MOST_OF_OPENCV = 8.0
# of everything that is timed
REPETITIONS = 4
# what is aimed at: relative error, error at the worst pixel, and time over the faster one of the lattice as it was and
# OpenCV
GOAL_ERROR, GOAL_WORST, GOAL_TIME = 0.01, 0.03, 4 / 3


def read(path: Path) -> Tensor:
    """`[3, height, width]`, white being 1."""
    from PIL import Image

    with Image.open(path) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255


class Earlier:
    """The lattice of another installation, which stays alive and answers one picture after another.

    Args:
        python: the interpreter of that installation.
    """

    def __init__(self, python: Path) -> None:
        command = [str(python), str(Path(__file__).with_name("time_lattice.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.commit = find_commit(Path(self._answer()))

    def _answer(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else b""
        if not line:
            raise RuntimeError("the other installation ended; its message is above")
        return line.decode().strip()

    def milliseconds(self, image: Tensor, sigma_space: float, sigma_range: float) -> float:
        """Processor time of one filter."""
        asked = {"shape": list(image.shape), "sigma_space": sigma_space, "sigma_range": sigma_range}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n" + image.contiguous().numpy().tobytes())
        self._process.stdin.flush()
        return float(self._answer())


def timed(runs: dict[str, Callable[[], Any]]) -> dict[str, tuple[float, Any]]:
    """Least processor time in milliseconds, and the result: each in turn, so that the machine is the same for all.

    The one called "before" tells its time itself.
    """
    found: dict[str, tuple[float, Any]] = {}
    for _ in range(REPETITIONS):
        for name, run in runs.items():
            started = time.process_time()
            result = run()
            taken = result if name == "before" else 1e3 * (time.process_time() - started)
            found[name] = min(taken, found.get(name, (math.inf, None))[0]), result
    return found


def opencv_filter(image: Tensor, reach: float, sigma_space: float, sigma_range: float) -> Callable[[], Any] | None:
    """OpenCV's filter with a window that reaches so many standard deviations; None if it is not installed."""
    try:
        import cv2
    except ImportError:
        return None
    cv2.setNumThreads(1)
    pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    return lambda: cv2.bilateralFilter(pixels, 2 * round(reach * sigma_space) + 1, sigma_range, sigma_space)


def measure(image: Tensor, sigma_space: float, sigma_range: float, earlier: Earlier | None) -> dict[str, Any]:
    """Errors and times of the methods on one picture."""
    exact = ph.bilateral_filter(image, sigma_space, sigma_range, method="exact").double()
    found: dict[str, Any] = {"explained": ph.explain_bilateral(image, sigma_space, sigma_range)}
    runs: dict[str, Callable[[], Any]] = {
        method: partial(ph.bilateral_filter, image, sigma_space, sigma_range, method=method)
        for method in ("separable", "auto")
    }
    # of the same window, and of its own, which leaves out a third of the Gaussian
    for name, reach in (("opencv", 3.0), ("opencv_narrow", 1.5)):
        run = opencv_filter(image, reach, sigma_space, sigma_range) if sigma_space <= MOST_OF_OPENCV else None
        found[name] = None
        if run is not None:
            runs[name] = run
    found["before"] = None
    if earlier is not None:
        runs["before"] = partial(earlier.milliseconds, image, sigma_space, sigma_range)
    for name, (milliseconds, result) in timed(runs).items():
        if name.startswith(("opencv", "before")):
            found[name] = milliseconds
            continue
        worst = float((result.double() - exact).abs().max())
        found[name] = {"error": relative_error(result, exact), "worst": worst, "milliseconds": milliseconds}
    return found


def summarize(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean error, the worst pixel and the median time over the photographs."""
    row: dict[str, Any] = {"chosen": sorted({each["explained"].partition(":")[0] for each in found})}
    for method in ("separable", "auto"):
        row[method] = {
            "error": statistics.mean(each[method]["error"] for each in found),
            "worst": max(each[method]["worst"] for each in found),
            "milliseconds": statistics.median(each[method]["milliseconds"] for each in found),
        }
    for name in ("opencv", "opencv_narrow", "before"):
        times = [each[name] for each in found if each[name] is not None]
        row[name] = statistics.median(times) if times else None
    # ratios within one picture, then their median
    over: dict[str, list[float]] = {"over_separable": [], "over_fastest": [], "over_now": []}
    for each in found:
        ours, lattice = each["auto"]["milliseconds"], each["separable"]["milliseconds"]
        over["over_separable"].append(ours / lattice)
        opencv = each["opencv"] or math.inf
        over["over_fastest"].append(ours / min(each["before"] or lattice, opencv))
        over["over_now"].append(ours / min(lattice, opencv))
    row.update({name: statistics.median(ratios) for name, ratios in over.items()})
    return row


def run(folder: Path, before: Path | None = None) -> dict[str, Any]:
    """Measure every bandwidth on every photograph, with and without noise."""
    torch.set_num_threads(1)
    # sources may change while it runs
    commit = find_commit()
    earlier = None if before is None else Earlier(before)
    paths = sorted(folder.glob("*.jpg"))
    paths = paths[:: max(1, len(paths) // NUM_PHOTOGRAPHS)][:NUM_PHOTOGRAPHS]
    rows = []
    for noise in NOISES:
        generator = torch.Generator().manual_seed(0)
        photographs = [image + noise * torch.randn(image.shape, generator=generator) for image in map(read, paths)]
        for sigma_space in SIGMAS_SPACE:
            for sigma_range in SIGMAS_RANGE:
                found = [measure(image, sigma_space, sigma_range, earlier) for image in photographs]
                setting = {"noise": noise, "sigma_space": sigma_space, "sigma_range": sigma_range}
                rows.append({**setting, "photographs": len(found), **summarize(found)})
                print(json.dumps(rows[-1]), flush=True)
    return {
        "what": "bilateral filter of photographs against its definition",
        "command": "python tools/accuracy_pictures.py --photographs FOLDER" + " --before PYTHON" * (before is not None),
        "photographs": [path.stem for path in paths],
        "processor": find_processor(),
        "commit": commit,
        "commit_before": None if earlier is None else earlier.commit,
        "version": ph.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "rows": rows,
    }


def missed(row: dict[str, Any], time_ratio: str = "over_fastest") -> str:
    """Which of the goals the automatic method misses, its time being judged by one of the ratios of a row."""
    auto = row["auto"]
    missing = [
        name
        for name, fails in (
            ("error", auto["error"] > GOAL_ERROR),
            ("worst pixel", auto["worst"] > GOAL_WORST),
            ("time", row[time_ratio] > GOAL_TIME),
        )
        if fails
    ]
    return ", ".join(missing)


def render(report: dict[str, Any]) -> list[str]:
    """The section of the page, in lines of Markdown."""
    table = []
    for row in report["rows"]:
        separable, auto = row["separable"], row["auto"]
        before, opencv = ("" if row[name] is None else f"{row[name]:.0f} ms" for name in ("before", "opencv"))
        table.append(
            [
                f"{round(255 * row['noise'])}/255, {row['sigma_space']:g} px, {row['sigma_range']:g}",
                f"{separable['error']:.4f}",
                f"{separable['worst']:.3f}",
                before,
                f"{separable['milliseconds']:.0f} ms",
                opencv,
                " or ".join(row["chosen"]),
                f"{auto['error']:.4f}",
                f"{auto['worst']:.3f}",
                f"{auto['milliseconds']:.0f} ms",
                f"{row['over_fastest']:.2f}",
                f"{row['over_separable']:.2f}",
                missed(row),
            ]
        )
    headers = ["noise, bandwidths", "separable: error", "worst", "time before", "time", "OpenCV"]
    headers += ["auto takes", "error", "worst", "time", "time / fastest", "time / separable", "misses"]
    count, today = (sum(not missed(row, name) for row in report["rows"]) for name in ("over_fastest", "over_now"))
    return [
        markdown_table(headers, table, text_columns=range(len(headers))),
        "",
        f"{count} of {len(table)} rows miss nothing; {today} would, were times judged by the lattice of this version.",
        f"Measured at commit {report['commit'][:7]}{_before_in_words(report)}.",
    ]


def _before_in_words(report: dict[str, Any]) -> str:
    before = report["commit_before"]
    return ", with nothing before it to compare with" if before is None else f", *before* being {before[:7]}"


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description="Measure the bilateral filter of photographs against its definition.")
    parser.add_argument("--photographs", type=Path, required=True, help="folder of JPEG files, of which some are taken")
    parser.add_argument("--before", type=Path, help="Python of an installation whose lattice times are judged by")
    arguments = parser.parse_args()
    measured = run(arguments.photographs, arguments.before)
    JSON_FILE.write_text(json.dumps(measured, indent=2) + "\n")


if __name__ == "__main__":
    main()
