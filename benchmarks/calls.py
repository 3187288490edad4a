"""Python calls of the operations: what a call costs before and after the kernels, independent of the machine.

`python -m benchmarks calls` prints, for each operation on 50 points, the number of Python functions that its second
call enters, and the number of files of the package that they are in.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import permutohedral as ph

_PACKAGE = str(Path(ph.__file__).parent)
Run = Callable[[], object]


def operations() -> dict[str, Run]:
    """Return the operations, by name; those that are no training step run without gradients."""
    torch.manual_seed(0)
    values, features, image = torch.rand(50, 4), 3 * torch.rand(50, 3), torch.rand(3, 16, 16)
    lattice = ph.build_lattice(features)
    separable = ph.build_lattice(features, neighborhood_size=0, separable=True)
    layer = ph.nn.PermutohedralConv(4, 4, 3)
    splatted, weight = ph.splat(values, lattice), layer.weight.detach()

    def step() -> None:
        layer(values, lattice).sum().backward()

    return {
        "splat": lambda: ph.splat(values, lattice),
        "slice": lambda: ph.slice(splatted, lattice),
        "convolve": lambda: ph.convolve(splatted, weight, lattice),
        "build_lattice": lambda: ph.build_lattice(features),
        "layer on a lattice": lambda: layer(values, lattice),
        "layer with features": lambda: layer(values, features),
        "training step on a lattice": step,
        "gaussian_filter on a lattice": lambda: ph.gaussian_filter(values, separable),
        "bilateral_filter of 16 x 16": lambda: ph.bilateral_filter(image, sigma_space=2.0, sigma_color=0.2),
    }


def trace_calls(run: Run) -> list[tuple[str, str]]:
    """Return the file and the name of each Python function that a call enters."""
    calls: list[tuple[str, str]] = []

    def record(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls.append((frame.f_code.co_filename, frame.f_code.co_qualname))

    gc.disable()
    sys.setprofile(record)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def count_calls(name: str, run: Run) -> tuple[list[tuple[str, str]], int]:
    """Return the calls of the second call of an operation, and the number of files of the package they are in."""
    with torch.set_grad_enabled("step" in name):
        run()
        # without the lambda that starts the operation
        calls = trace_calls(run)[1:]
    return calls, len({file for file, _ in calls if file.startswith(_PACKAGE)})


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks calls", description=__doc__)
    parser.add_argument("--list", metavar="OPERATION", help="also print the calls of one operation")
    given = parser.parse_args(arguments)
    print(f"{'operation':30} {'calls':>6} {'files':>6}")
    for name, run in operations().items():
        calls, files = count_calls(name, run)
        print(f"{name:30} {len(calls):6} {files:6}")
        if name == given.list:
            print("\n".join(f"    {Path(file).name:22} {function}" for file, function in calls))
    return 0
