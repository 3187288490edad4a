"""How long a mean field with its gradients takes, beside one without: `python tools/crf_backward.py`.

Gradients are those with respect to energies and the weights of both kernels, of the sum of the logarithms of one label.
Lattices are part of either. Both get the same inputs, in turn; times are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from crf_speed import WEIGHTS, Case, clock, make

import permutohedral as ph
from permutohedral.reporting.atomic import write_bytes
from permutohedral.reporting.provenance import find_commit, find_processor

CASES = [
    Case((375, 500), 21, 5),
    Case((375, 500), 21, 10),
    Case((375, 500), 2, 5),
    Case((1024, 1024), 21, 5),
    Case((1024, 1024), 21, 10),
    Case((1024, 1024), 2, 10),
]


def ways(case: Case, device: str) -> dict[str, Callable[[], None]]:
    """What is measured, by name."""
    energies, *features = (each.to(device) for each in make(case))
    planes = energies.reshape(case.labels, *case.space)
    learned = [torch.tensor(weight, device=device, requires_grad=True) for weight in WEIGHTS]

    def run(gradients: bool) -> None:
        given = planes.clone().requires_grad_(gradients)
        weights: list[Any] = list(learned if gradients else WEIGHTS)
        pairs = zip(features, weights, strict=True)
        kernels = [ph.crf.Kernel(each, weight, space=case.space) for each, weight in pairs]
        logarithms = ph.crf.mean_field(given, kernels, case.steps, logarithms=True)
        if gradients:
            logarithms[0].sum().backward()

    return {"forward": lambda: run(False), "both": lambda: run(True)}


def measure(case: Case, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of each way, and their ratio."""
    functions = ways(case, arguments.device)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(arguments.repeats + 1):
        for name, function in functions.items():
            begin = clock(arguments.device, arguments.processor_time)
            function()
            times[name].append(clock(arguments.device, arguments.processor_time) - begin)
    # the first of each warms up
    row = {name: statistics.median(found[1:]) for name, found in times.items()}
    return {**row, "ratio": row["both"] / row["forward"]}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processor-time", action="store_true", help="for a machine that others use")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows: dict[str, Any] = {}
    for case in CASES:
        rows[case.name] = measure(case, arguments)
        print(case.name, {name: float(f"{value:.4g}") for name, value in rows[case.name].items()}, flush=True)
    if arguments.json is None:
        return
    clock_name = "processor" if arguments.processor_time else "wall"
    settings = {
        "hardware": torch.cuda.get_device_name() if arguments.device == "cuda" else find_processor(),
        "threads": arguments.threads,
        "clock": clock_name,
        "commit": find_commit(),
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(arguments.json, (json.dumps({**settings, "rows": rows}, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
