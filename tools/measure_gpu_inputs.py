"""How long calls on a GPU take whose inputs change from call to call: medians and 90th percentiles of wall time, and
what the kernels take of it.

Every call is timed by itself, with a synchronization behind it, on inputs that differ from those of the call before:
unrelated photographs, pictures of many sizes, clouds of a changing number of points.

    python tools/measure_gpu_inputs.py --data FOLDER --json results/gpu-inputs-h200.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.benchmarks.timing import kernel_seconds
from permutohedral.models.lattice_unet import LatticeUNet
from permutohedral.reporting.provenance import find_commit

SIDE, SIGMA_SPACE, SIGMA_RANGE = 1024, 16.0, 0.1
WARMUP = 10
PROFILED = 5


class Row(NamedTuple):
    """Milliseconds, and the calls that took them."""

    milliseconds: dict[str, float]
    calls: Sequence[Callable[[], Any]]


def wall_times(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Milliseconds of each call, from its start until the GPU has finished."""
    times = []
    for call in calls:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def summarize(times: list[float]) -> dict[str, float]:
    """Median, 90th percentile, largest, and how many."""
    ordered = sorted(times)
    return {
        "median": statistics.median(ordered),
        "p90": ordered[int(0.9 * (len(ordered) - 1) + 0.5)],
        "max": ordered[-1],
        "calls": len(ordered),
    }


def measure(calls: Sequence[Callable[[], Any]], passes: int) -> Row:
    """The last of several passes over all calls, after some warm-up calls."""
    wall_times(calls[:WARMUP])
    times: list[float] = []
    for _ in range(passes):
        times = wall_times(calls)
    return Row(summarize(times), calls)


def kernels_of(calls: Sequence[Callable[[], Any]]) -> float:
    """Milliseconds that the GPU computes in a call, the mean of some."""

    def run() -> None:
        for call in calls[:PROFILED]:
            call()

    return 1e3 * sum(kernel_seconds(run, 1).values()) / PROFILED


def load_photographs(folder: Path, number: int) -> list[Tensor]:
    """Photographs `[3, height, width]` between 0 and 1, as they are."""
    from PIL import Image

    paths = sorted(folder.rglob("*.jpg"))
    if len(paths) < number:
        sys.exit(f"{folder} holds {len(paths)} photographs, {number} are needed; --data names their folder")
    step = len(paths) // number
    arrays = [np.asarray(Image.open(path).convert("RGB"), dtype=np.float32) / 255 for path in paths[::step][:number]]
    return [torch.from_numpy(array).permute(2, 0, 1) for array in arrays]


def resize(photograph: Tensor, height: int, width: int) -> Tensor:
    """The middle square of a photograph, or all of it, in another size, on the GPU."""
    picture = photograph[None].cuda()
    if height == width:
        side = min(picture.shape[-2:])
        top, left = (picture.shape[-2] - side) // 2, (picture.shape[-1] - side) // 2
        picture = picture[..., top : top + side, left : left + side]
    resized = torch.nn.functional.interpolate(picture, (height, width), mode="bicubic", align_corners=False)
    return resized[0].clamp(0, 1).contiguous()


def pictures(folder: Path) -> dict[str, Row]:
    """The bilateral filter of photographs of one size and of many, and the steps that it is made of."""
    photographs = load_photographs(folder, 40)
    same = [resize(each, SIDE, SIDE) for each in photographs]
    draw = np.random.default_rng(0)
    many = [resize(each, *(int(extent) for extent in draw.integers(200, SIDE + 1, 2))) for each in photographs]
    features = [ph.bilateral_features(each, SIGMA_SPACE, SIGMA_RANGE) for each in same]
    values = [each.flatten(1).T.contiguous() for each in same]

    def bilateral(picture: Tensor) -> Callable[[], Tensor]:
        return lambda: ph.bilateral_filter(picture, SIGMA_SPACE, SIGMA_RANGE)

    return {
        "bilateral_filter, unrelated photographs of 1024 x 1024": measure([bilateral(each) for each in same], 3),
        "bilateral_filter, one photograph again and again": measure([bilateral(same[0])] * 40, 1),
        "bilateral_filter, sizes from 200 to 1024, second pass": measure([bilateral(each) for each in many], 2),
        "gaussian_filter, unrelated photographs, features given": measure(
            [partial(ph.gaussian_filter, *each) for each in zip(values, features, strict=True)], 3
        ),
        "build_lattice, unrelated photographs, separable": measure(
            [partial(ph.build_lattice, each, neighborhood_size=0, separable=True) for each in features], 3
        ),
    }


def _step(layers: torch.nn.Module, optimizer: torch.optim.Optimizer, run: Callable[[], Tensor]) -> None:
    optimizer.zero_grad(set_to_none=True)
    run().square().mean().backward()
    optimizer.step()


def clouds() -> dict[str, Row]:
    """A training step of one layer on clouds of one and of changing size, and of three layers on one lattice."""
    draw = np.random.default_rng(0)
    layer = ph.nn.PermutohedralConvolution(16, 32, dimension=3).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)

    def cloud(points: int) -> Callable[[], None]:
        features, values = 20 * torch.rand(points, 3, device="cuda"), torch.randn(points, 16, device="cuda")
        return lambda: _step(layer, optimizer, lambda: layer(values, features))

    sizes = [int(number) for number in draw.integers(20_000, 60_001, 40)]
    found = {
        "training step, clouds of 20,000 to 60,000 points": measure([cloud(number) for number in sizes], 3),
        "training step, clouds of 40,000 points": measure([cloud(40_000) for _ in sizes], 3),
    }
    layers = torch.nn.ModuleList(ph.nn.PermutohedralConvolution(32, 32, dimension=3) for _ in range(3)).cuda()
    optimizer_of_three = torch.optim.SGD(layers.parameters(), lr=1e-3)

    def batch() -> Callable[[], None]:
        numbers = [int(number) for number in draw.integers(2_000, 2_601, 8)]
        features = 8 * torch.rand(sum(numbers), 3, device="cuda")
        items = torch.repeat_interleave(torch.arange(8), torch.tensor(numbers)).int().cuda()
        values = torch.randn(sum(numbers), 32, device="cuda")

        def run() -> Tensor:
            lattice = ph.build_lattice(features, batch=items)
            result = values
            for each in layers:
                result = torch.relu(each(result, lattice=lattice))
            return result

        return lambda: _step(layers, optimizer_of_three, run)

    batches = [batch() for _ in range(40)]
    found["training step, three layers on one lattice, 8 clouds of about 2,300 points"] = measure(batches, 3)
    # torch runs the backward pass of a GPU in a thread of its own, which it takes long to wake
    with torch.autograd.set_multithreading_enabled(False):
        found["the same, the backward pass in the calling thread"] = measure(batches, 3)
        found["training step of one layer, likewise"] = measure([cloud(number) for number in sizes], 3)
    return found


def networks() -> dict[str, Row]:
    """A training step of a U-Net on the levels of clouds that look like scans of hills with trees, pyramid included."""
    draw = np.random.default_rng(0)
    network = LatticeUNet(4, 3).cuda()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)

    def batch() -> Callable[[], None]:
        numbers = torch.from_numpy(draw.integers(19_000, 21_001, 8))
        total = int(numbers.sum())
        ground = 57 * torch.rand(total, 2, device="cuda")
        height = 3 * (ground / 9).sin().sum(dim=1) + 0.1 * torch.randn(total, device="cuda")
        tree = 12 * torch.rand(total, device="cuda") * (torch.rand(total, device="cuda") < 0.3)
        features, values = torch.column_stack([ground, height + tree]), torch.randn(total, 4, device="cuda")
        items = torch.repeat_interleave(torch.arange(8), numbers).int().cuda()
        return lambda: _step(network, optimizer, lambda: network(values, features, items))

    batches = [batch() for _ in range(40)]
    name = "training step, U-Net of four levels, 8 clouds of about 20,000 points"
    found = {name: measure(batches, 2)}
    with torch.autograd.set_multithreading_enabled(False):
        found[f"{name}, the backward pass in the calling thread"] = measure(batches, 2)
    return found


_FIRST_CALL = """
import time, torch
torch.zeros(1, device="cuda").sum().item(); torch.cuda.synchronize()
start = time.perf_counter()
import permutohedral as ph
ph.bilateral_filter(torch.rand(3, 512, 512, device="cuda"), 16.0, 0.1); torch.cuda.synchronize()
print(time.perf_counter() - start)
"""


def first_call() -> dict[str, float]:
    """Seconds of import and first call in a new process, beyond torch's own start; kernels are compiled already."""
    seconds = [
        float(subprocess.run([sys.executable, "-c", _FIRST_CALL], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    return {"median": statistics.median(seconds), "max": max(seconds), "calls": 3}


def main() -> None:
    """Measure, print a table, and write a file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs, such as BSDS500's")
    parser.add_argument("--json", type=Path, help="file to write")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this measures a GPU, and torch finds none")
    rows = {**pictures(options.data), **clouds(), **networks()}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("wall time, ms: median, 90th percentile, largest; of the kernels alone")
    for name, (figures, calls) in rows.items():
        # behind all times, which a profiler spoils
        figures["kernels"] = kernels_of(calls)
        print(f"{figures['median']:7.3f} {figures['p90']:7.3f} {figures['max']:7.3f} {figures['kernels']:7.3f}  {name}")
    start = first_call()
    print(f"{start['median']:7.2f} s  first call of a process, import included")
    if options.json is not None:
        result: dict[str, Any] = {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "commit": find_commit(),
        }
        result["milliseconds"] = {name: row.milliseconds for name, row in rows.items()}
        options.json.write_text(json.dumps({**result, "first_call_seconds": start}, indent=1) + "\n")


if __name__ == "__main__":
    main()
