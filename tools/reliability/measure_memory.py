"""Measures memory: leaks over many calls, and the peak against the forecast.

`python tools/reliability/measure_memory.py` writes `results/reliability/memory.json`.
"""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

import permutohedral as ph
from permutohedral import _native

ROOT = Path(__file__).resolve().parents[2]

CALLS = 10_000


@dataclass(frozen=True)
class Request:
    """A lattice and one filter on it.

    Attributes:
        points: how many.
        dimension: d.
        size: s of the filter; None for the separable Gaussian.
        channels: in, and out.
        spread: standard deviation of the points, or the extent of uniform ones if negative; "image" for pixels with
            their colors.
        dtype: of features and values.
    """

    points: int
    dimension: int
    size: int | None
    channels: int
    spread: float | str
    dtype: str = "float32"


REQUESTS = [
    Request(2_000_000, 3, 1, 4, 5.0),
    Request(2_000_000, 3, 1, 4, 100.0),
    Request(2_000_000, 5, 1, 4, 0.3),
    Request(1_000_000, 5, 1, 4, 4.0),
    Request(2_000_000, 5, None, 4, 4.0),
    Request(2_000_000, 2, 2, 16, 100.0, "float64"),
    Request(500_000, 8, None, 4, 2.0),
    Request(4_000_000, 5, None, 3, 0.5),
    Request(1_000_000, 4, None, 1, 3.0, "float64"),
    Request(300_000, 6, 1, 8, 1.0),
    Request(1_000_000, 4, None, 1, -20.0),
    Request(3_000_000, 3, None, 1, -50.0),
    Request(3_000_000, 3, 1, 32, -50.0),
    Request(3_000_000, 2, 1, 1, -300.0),
    Request(500_000, 10, None, 2, -8.0),
    Request(5_000_000, 1, 2, 1, -1000.0, "float64"),
    Request(1 << 20, 5, None, 3, "image"),
    Request(1 << 22, 5, None, 3, "image"),
    Request(1 << 20, 5, 1, 8, "image"),
]


def features_of(request: Request) -> Tensor:
    """Points as the request wants them."""
    dtype = getattr(torch, request.dtype)
    if isinstance(request.spread, str):
        side = int(request.points**0.5)
        row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        waves = torch.stack([(row / 90).sin(), (column / 70).cos(), ((row + column) / 110).sin()], dim=-1)
        colors = (waves + 0.1 * torch.randn(side, side, 3)).reshape(-1, 3)
        return torch.cat([torch.stack([row, column], dim=-1).reshape(-1, 2) / 8, colors * 3], dim=1).to(dtype)
    if request.spread < 0:
        return torch.rand(request.points, request.dimension, dtype=dtype) * -request.spread
    return torch.randn(request.points, request.dimension, dtype=dtype) * request.spread


def run(request: Request, features: Tensor, values: Tensor, weight: Tensor) -> ph.Lattice:
    """Build and filter."""
    separable = request.size is None
    lattice = ph.build_lattice(features, neighborhood_size=request.size or 0, separable=separable)
    if separable:
        ph.gaussian_filter(values, None, lattice=lattice)
    else:
        ph.permutohedral_filter(values, None, weight, lattice=lattice)
    return lattice


def status(field: str) -> int:
    """Bytes of a line of /proc/self/status."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) * 1024


def settle() -> None:
    """Give back what was freed, so that it is not counted."""
    gc.collect()
    _native.limit_kept_memory(0)
    _native.limit_kept_memory(1 << 29)
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def measure_peak(request: Request) -> dict[str, object]:
    """Peak of one request beyond its inputs, in a fresh process, and the forecast."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    features = features_of(request)
    values = torch.rand(len(features), request.channels, dtype=features.dtype)
    taps = ph.Neighborhood(request.dimension, request.size or 0).filter_size
    weight = torch.randn(taps, request.channels, request.channels, dtype=features.dtype)
    run(request, features[:500], values[:500], weight)
    settle()
    # resets the peak to what is in use now, see proc(5)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    lattice = run(request, features, values, weight)
    peak = status("VmHWM") - before
    forecast = ph.forecast_memory(
        len(features),
        request.dimension,
        request.size or 0,
        2 * request.channels,
        lattice.num_lattice_points,
        dtype=features.dtype,
        separable=request.size is None,
        ordered=isinstance(request.spread, str),
    )
    described = asdict(request) | {"lattice_points": lattice.num_lattice_points}
    return described | {"peak": peak, "forecast": forecast.total, "ratio": round(peak / forecast.total, 3)}


def measure_leak(calls: int) -> dict[str, object]:
    """Memory before and after many calls, forward and backward, of several shapes."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    layer = ph.nn.PermutohedralConvolution(4, 4, dimension=3, learn_scale=True)
    used = []
    for number in range(calls):
        points = 200 + 37 * (number % 7)
        features = torch.randn(points, 3, requires_grad=True)
        layer(torch.randn(points, 4), features).square().mean().backward()
        with torch.no_grad():
            ph.bilateral_filter(torch.rand(1, 12, 12 + number % 5), 2.0, 0.2)
        layer.zero_grad(set_to_none=True)
        if number % (calls // 10) == calls // 10 - 1:
            settle()
            used.append(status("VmRSS"))
    # the first calls fill what the allocators keep
    growth = (used[-1] - used[2]) / (calls * 0.7)
    return {"calls": calls, "bytes_in_use": used, "growth_per_call": round(growth, 2)}


def main() -> None:
    """Measure, each in a process of its own, and write."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, maxtasksperchild=1) as pool:
        peaks = []
        for request in REQUESTS:
            peaks.append(pool.apply(measure_peak, (request,)))
            print(peaks[-1], file=sys.stderr)
        leak = pool.apply(measure_leak, (CALLS,))
    result = {
        "command": "python tools/reliability/measure_memory.py",
        "backend": ph.explain_backend().split(":")[0],
        "leak": leak,
        "peaks": peaks,
        "worst_ratio": max((peak["ratio"] for peak in peaks), key=lambda ratio: abs(float(str(ratio)) - 1)),
    }
    path = ROOT / "results" / "reliability" / "memory.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
