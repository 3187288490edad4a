"""Measures on a GPU what the deterministic mode costs, and peaks of memory against the forecast.

`python tools/reliability/measure_gpu.py` writes `results/reliability/gpu.json`; another path may be named.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.benchmarks.environment import describe
from permutohedral.benchmarks.inputs import bilateral_problem, sphere_points, synthetic_image

ROOT = Path(__file__).resolve().parents[2]
BATCH, HEIGHT, WIDTH, CHANNELS = 8, 321, 481, 32
REPETITIONS = 20


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Switch torch's deterministic mode on or off; off afterwards."""
    torch.use_deterministic_algorithms(wanted)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def milliseconds(run: Callable[[], Any]) -> float:
    """Between two events of the GPU, the median."""
    found = []
    for _ in range(REPETITIONS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return float(statistics.median(found))


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors that must repeat from run to run."""
    if isinstance(result, ph.Lattice):
        return [result.source.keys, result.source.vertices, result.source.barycentric]
    return [result] if isinstance(result, Tensor) else list(result)


def measure_cost(what: str, run: Callable[[], Any]) -> dict[str, object]:
    """The times of both modes, and whether three runs of the deterministic one are equal to the bit."""
    for wanted in (False, True):
        with deterministic(wanted):
            run(), run()
    with deterministic(False):
        default = milliseconds(run)
    with deterministic(True):
        fixed = milliseconds(run)
        first, *others = (tensors_of(run()) for _ in range(3))
    equal = all(torch.equal(one, other) for found in others for one, other in zip(first, found, strict=True))
    return {"what": what, "default": default, "deterministic": fixed, "ratio": fixed / default, "equal": equal}


def picture(side: int) -> tuple[Tensor, Tensor]:
    """Features and values of a bilateral filter."""
    problem = bilateral_problem(synthetic_image(side, side), (16.0, 0.1), "synthetic")
    return problem.features.cuda(), problem.values.cuda()


def image_layer() -> tuple[Tensor, Tensor, torch.nn.Module]:
    """Values and positions of a batch of images, and a layer for them."""
    features = ph.position_features(HEIGHT, WIDTH, device="cuda").expand(BATCH, -1, -1).contiguous()
    values = torch.randn(BATCH, HEIGHT * WIDTH, CHANNELS, device="cuda")
    layer = ph.nn.PermutohedralConvolution(CHANNELS, CHANNELS, 2, 2, normalization="none", device="cuda")
    return values, features, layer


def costs() -> Iterator[dict[str, object]]:
    """What the deterministic mode costs each operation."""
    features, values = picture(1024)
    yield measure_cost(
        "bilateral filter, 1024 x 1024 colors, lattice included", lambda: ph.gaussian_filter(values, features)
    )
    points = sphere_points().cuda()
    lattice = ph.build_lattice(points, neighborhood_size=0)
    wide = torch.randn(len(points), CHANNELS, device="cuda")
    yield measure_cost("splat, 1,000,000 points, 32 channels", lambda: ph.splat(wide, lattice))
    cube = 11 * torch.rand(1_000_000, 5, device="cuda")
    yield measure_cost("lattice of 1,000,000 points, d = 5", lambda: ph.build_lattice(cube, neighborhood_size=0))
    values, features, layer = image_layer()
    tables = ph.build_lattice(features, neighborhood_size=2)
    leaves = [values.requires_grad_(), *layer.parameters()]
    gradient = torch.ones_like(layer(values, lattice=tables))
    yield measure_cost(
        f"layer of 32 to 32 channels, {BATCH} images of {WIDTH} x {HEIGHT}, forward and backward",
        lambda: torch.autograd.grad(layer(values, lattice=tables), leaves, gradient),
    )


def peak_of(run: Callable[[], Any]) -> int:
    """Bytes of the GPU beyond those in use before."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def peaks() -> Iterator[dict[str, object]]:
    """The first call builds a lattice of unknown size; the second knows what to expect."""
    for side in (1024, 4096):
        features, values = picture(side)
        found = [peak_of(lambda f=features, v=values: ph.gaussian_filter(v, f)) for _ in range(2)]  # type: ignore[misc]
        rows = ph.build_lattice(features, neighborhood_size=0).num_lattice_points
        forecast = ph.forecast_memory(len(features), 5, 0, 6, rows, separable=True, ordered=True).total
        yield describe_peak(f"bilateral filter, {side} x {side} colors", rows, found, forecast)
    values, features, layer = image_layer()
    with torch.no_grad():
        found = [peak_of(lambda: layer(values, features)) for _ in range(2)]
    rows = ph.build_lattice(features, neighborhood_size=0).num_lattice_points
    forecast = ph.forecast_memory(
        BATCH * HEIGHT * WIDTH, 2, 2, 2 * CHANNELS, rows, separable=False, ordered=True
    ).total  # fmt: skip
    yield describe_peak(f"layer of 32 to 32 channels, {BATCH} images of {WIDTH} x {HEIGHT}", rows, found, forecast)


def describe_peak(what: str, rows: int, found: list[int], forecast: int) -> dict[str, object]:
    """One row of the table of peaks."""
    return {
        "what": what, "lattice_points": rows, "first": found[0], "second": found[1], "forecast": forecast,
        "ratio": max(found) / forecast,
    }  # fmt: skip


def main() -> None:
    """Measure and write."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results" / "reliability" / "gpu.json"
    torch.manual_seed(0)
    result = {
        "command": "python tools/reliability/measure_gpu.py",
        "peaks": list(peaks()),
        "costs": list(costs()),
        "environment": describe(torch.device("cuda")),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
