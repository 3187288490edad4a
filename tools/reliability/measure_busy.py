"""Time of filters on one thread and on two while other processes keep the cores busy.

`python tools/reliability/measure_busy.py` writes `results/reliability/busy.json`. One thread and two take turns, so
that whatever else the machine does meets both. Threads that wait without sleep would take longer than one thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from skimage import data

import permutohedral as ph

ROOT = Path(__file__).resolve().parents[2]

BUSY, THREADS, ROUNDS = (0, 1, 2, 4), (1, 2), 41


def calls() -> dict[str, Callable[[], object]]:
    """What is timed: a photograph of 481 x 321 pixels, 100,000 points, a layer on them, a step of its training, and
    what of that step is torch's own, a loss and its gradient."""
    picture = torch.from_numpy(data.astronaut().copy())[:321, :481].movedim(-1, 0).float().contiguous() / 255
    torch.manual_seed(0)
    points, values = 12 * torch.rand(100_000, 3), torch.rand(100_000, 8)
    layer = ph.nn.PermutohedralConvolution(8, 8, 3).requires_grad_(False)
    learning = ph.nn.PermutohedralConvolution(8, 8, 3)
    leaf = torch.rand(100_000, 8, requires_grad=True)
    return {
        "bilateral_filter": lambda: ph.bilateral_filter(picture, 8.0, 0.15),
        "gaussian_filter": lambda: ph.gaussian_filter(values, points),
        "PermutohedralConvolution": lambda: layer(values, points),
        "forward and backward": lambda: learning(values, points).backward(values),
        "forward and backward, with a loss": lambda: learning(values, points).square().sum().backward(),
        "the loss alone": lambda: leaf.square().sum().backward(),
    }


@contextmanager
def busy_processes(number: int) -> Any:
    """Others that compute without end."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        time.sleep(0.5)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def milliseconds(call: Callable[[], object]) -> dict[str, float]:
    """Medians for each number of threads."""
    times: dict[int, list[float]] = {threads: [] for threads in THREADS}
    for _ in range(ROUNDS):
        for threads in THREADS:
            torch.set_num_threads(threads)
            started = time.perf_counter()
            call()
            times[threads].append(1000 * (time.perf_counter() - started))
    return {str(threads): round(median(found), 2) for threads, found in times.items()}


def main() -> None:
    """Every call at every load."""
    rows = []
    load = os.getloadavg()[0]
    for number in BUSY:
        with busy_processes(number):
            for name, call in calls().items():
                found = milliseconds(call)
                rows.append({"call": name, "busy": number, "ms": found, "ratio": round(found["2"] / found["1"], 3)})
                print(rows[-1], flush=True)
    result = {
        "command": "python tools/reliability/measure_busy.py",
        "cores": os.cpu_count(),
        "load_before": load,
        "rounds": ROUNDS,
        "rows": rows,
    }
    path = ROOT / "results" / "reliability" / "busy.json"
    path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
