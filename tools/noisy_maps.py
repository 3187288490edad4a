"""How well and how fast the solver smooths noisy maps of full size: `python tools/noisy_maps.py --data FOLDER`.

Disparities of Middlebury with noise, whose standard deviation is 10 at half of the pixels and 40 at the others, in
units of 8 bits; the confidence is one over its square. Settings are chosen on two scenes, errors are means over five
others, milliseconds are processor time of one thread for the largest. OpenCV's solver is in few of its builds:
`--opencv PYTHON` names a Python that has one, such as that of Debian with its package python3-opencv.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.data.middlebury import load_scene
from permutohedral.reporting.atomic import write_bytes
from permutohedral.reporting.provenance import find_commit, find_processor

CHOSEN_ON, MEASURED_ON = ("cones", "teddy"), ("art", "books", "moebius", "tsukuba", "venus")
# bandwidths over positions, gray and color, smoothness, iterations
OURS = list(itertools.product((8.0, 16.0, 32.0), (0.1, 0.2), (0.03,), (1.0, 4.0, 16.0), (10,)))
# bandwidths over positions, luma and chroma, lambda, iterations
OPENCV = list(itertools.product((8.0, 16.0, 32.0), (8.0, 16.0), (8.0,), (8.0, 32.0, 128.0), (25,)))

# root mean square error and seconds
Score = tuple[float, float]


class Scene:
    """A noisy map, how sure it is, and what it should be."""

    def __init__(self, name: str, folder: Path | None) -> None:
        scene = load_scene(name, folder)
        self.name, self.color, self.truth = name, scene.color, scene.disparity
        generator = torch.Generator().manual_seed(0)
        deviation = torch.where(torch.rand(self.truth.shape, generator=generator) < 0.5, 10.0, 40.0)
        self.noisy = self.truth + deviation * torch.randn(self.truth.shape, generator=generator)
        self.confidence = (10 / deviation[0]).square()

    def error(self, found: Tensor) -> float:
        return float((found - self.truth).square().mean().sqrt())

    def write(self, folder: Path) -> None:
        arrays: dict[str, Any] = {
            "guide": (255 * self.color.movedim(0, -1)).round().to(torch.uint8).numpy(),
            "noisy": self.noisy[0].numpy(),
            "confidence": self.confidence.numpy(),
            "truth": self.truth[0].numpy(),
        }
        np.savez(folder / f"{self.name}.npz", **arrays)


def ours(scenes: Sequence[Scene], several: Sequence[tuple[Any, ...]]) -> list[list[Score]]:
    """The scores of each of several settings on each scene, lattice included."""
    found = []
    for space, gray, color, smoothness, iterations in several:
        scores = []
        for scene in scenes:
            began = time.process_time()
            guide = ph.opponent_colors(scene.color)
            solver = ph.BilateralSolver(guide, space, (gray, color, color))
            solved = solver(scene.noisy, scene.confidence, smoothness, iterations=iterations, tolerance=0.0)
            scores.append((scene.error(solved), time.process_time() - began))
        found.append(scores)
    return found


def by_opencv(python: str) -> Callable[[Sequence[Scene], Sequence[tuple[Any, ...]]], list[list[Score]]]:
    """The same by OpenCV, in a Python of its own."""

    def run(scenes: Sequence[Scene], several: Sequence[tuple[Any, ...]]) -> list[list[Score]]:
        with tempfile.TemporaryDirectory() as folder:
            for scene in scenes:
                scene.write(Path(folder))
            script = Path(__file__).with_name("opencv_solver.py")
            command = [python, str(script), folder, json.dumps(several)]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found: list[list[Score]] = json.loads(printed.splitlines()[-1])
        return found

    return run


def measure(run: Any, grid: Sequence[tuple[Any, ...]], sets: Sequence[Sequence[Scene]]) -> dict[str, Any]:
    """Choose settings on the first scenes, measure on the others."""
    means = [statistics.mean(error for error, _ in scores) for scores in run(sets[0], grid)]
    settings = grid[means.index(min(means))]
    (scores,) = run(sets[1], [settings])
    ends = [
        number for number, value in enumerate(settings)
        if len(values := sorted({each[number] for each in grid})) > 1 and value in (values[0], values[-1])
    ]  # fmt: skip
    error, seconds = statistics.mean(each for each, _ in scores), max(each for _, each in scores)
    return {"error": error, "milliseconds": 1000 * seconds, "settings": settings, "at_an_end": ends}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of the datasets")
    parser.add_argument("--opencv", help="a Python whose OpenCV has fastBilateralSolverFilter")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sets = [[Scene(name, arguments.data) for name in names] for names in (CHOSEN_ON, MEASURED_ON)]
    noise = statistics.mean(scene.error(scene.noisy) for scene in sets[1])
    rows: dict[str, Any] = {"noisy map": {"error": noise, "milliseconds": 0.0}}
    contenders: dict[str, tuple[Any, Any]] = {"bilateral_solver": (ours, OURS)}
    if arguments.opencv is not None:
        contenders["OpenCV fastBilateralSolverFilter"] = by_opencv(arguments.opencv), OPENCV
    with torch.no_grad():
        for name, (run, grid) in contenders.items():
            rows[name] = measure(run, grid, sets)
            print(name, rows[name], flush=True)
    if arguments.json is not None:
        settings = {"hardware": find_processor(), "threads": 1, "commit": find_commit()}
        write_bytes(arguments.json, (json.dumps({**settings, "rows": rows}, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
