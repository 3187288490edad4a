"""Memory: no leak over repeated calls, forecasts bound peaks, and requests that do not fit raise early."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import permutohedral as ph
from permutohedral.lattice.memory import _kept_memory, available_memory, check_rows
from permutohedral.ops import dispatch

_BLOCKER = next(backend for backend in dispatch._BACKENDS if backend.name == "native").blocker("cpu")
needs_native = pytest.mark.skipif(_BLOCKER is not None, reason=f"the native backend does not run here: {_BLOCKER}")

# the forecast is an upper bound, and at most this factor above the peak
LARGEST_EXCESS = 2.0
# bytes per call: a tensor of one number is larger
LARGEST_GROWTH = 200


def run_in_process(function: Callable[[], float]) -> float:
    """Call a function of this module in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function)


def status(field: str) -> int:
    """Return the bytes in a line of /proc/self/status."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) * 1024


def settle() -> None:
    """Return freed memory to the system."""
    gc.collect()
    if _BLOCKER is None:
        from permutohedral import _native

        _native.limit_kept_memory(0)
        _native.limit_kept_memory(1 << 29)
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def measure_peak(function: Callable[[], None]) -> int:
    """Return the peak memory of a call, in bytes."""
    settle()
    # resets the peak to the memory in use, see proc(5)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    function()
    return status("VmHWM") - before


def peak_of_scattered_points() -> float:
    """Return the share of its forecast that a learned filter of scattered points takes."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    features, values, weight = 100 * torch.randn(1_000_000, 3), torch.rand(1_000_000, 4), torch.randn(15, 4, 4)
    lattices: list[ph.Lattice] = []

    def run(number: int = 1_000_000) -> None:
        lattices[:] = [ph.build_lattice(features[:number], neighborhood_size=1)]
        ph.permutohedral_filter(values[:number], lattices[0], weight)

    run(500)
    peak = measure_peak(run)
    return peak / ph.lattice.forecast_memory(len(features), 3, 1, 8, lattices[0].num_lattice_points).total


def peak_of_an_image() -> float:
    """Return the share of its forecast that a Gaussian filter over positions and colors takes."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    row, column = torch.meshgrid(torch.arange(724), torch.arange(724), indexing="ij")
    waves = torch.stack([(row / 90).sin(), (column / 70).cos(), ((row + column) / 110).sin()], dim=-1)
    colors = (waves + 0.1 * torch.randn(724, 724, 3)).reshape(-1, 3)
    features = torch.cat([torch.stack([row, column], dim=-1).reshape(-1, 2) / 8, colors * 3], dim=1)
    values = torch.rand(len(features), 3)
    lattices: list[ph.Lattice] = []

    def run(number: int = len(features)) -> None:
        lattices[:] = [ph.build_lattice(features[:number], neighborhood_size=0, separable=True)]
        ph.gaussian_filter(values[:number], lattices[0])

    run(500)
    peak = measure_peak(run)
    numbers = lattices[0].num_lattice_points
    return peak / ph.lattice.forecast_memory(len(features), 5, 0, 6, numbers, separable=True, ordered=True).total


def peak_of_a_pyramid() -> float:
    """Return the share of its forecast that a pyramid on points near a sphere takes."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    features = torch.nn.functional.normalize(torch.randn(500_000, 3)) * 150
    ph.levels.build_pyramid(features[:1000], 3)
    pyramids: list[ph.levels.LatticePyramid] = []
    peak = measure_peak(lambda: pyramids.append(ph.levels.build_pyramid(features, 3)))
    numbers = [level.num_lattice_points for level in pyramids[0].levels]
    return peak / ph.lattice.forecast_memory(len(features), 3, channels=0, num_lattice_points=numbers, levels=3).total


@pytest.mark.parametrize("function", [peak_of_scattered_points, peak_of_an_image, peak_of_a_pyramid])
def test_the_forecast_bounds_the_peak(function: Callable[[], float]) -> None:
    assert 1 / LARGEST_EXCESS <= run_in_process(function) <= 1


def growth_per_call() -> float:
    """Return the growth of memory in bytes per call, forward and backward, over several shapes."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    layer = ph.nn.PermutohedralConv(4, 4, dimension=3, learn_sigma=True)
    # pages that allocators take by chance count little among many calls
    calls, used = 2000, []
    for number in range(calls):
        points = 200 + 37 * (number % 7)
        features = torch.randn(points, 3, requires_grad=True)
        layer(torch.randn(points, 4), features).square().mean().backward()
        with torch.no_grad():
            ph.bilateral_filter(torch.rand(1, 12, 12 + number % 5), sigma_space=2.0, sigma_color=0.2)
        layer.zero_grad(set_to_none=True)
        if number % (calls // 10) == calls // 10 - 1:
            settle()
            used.append(status("VmRSS"))
    # the first calls fill the caches of the allocators
    return (used[-1] - used[2]) / (calls * 0.7)


@needs_native
def test_nothing_leaks() -> None:
    assert run_in_process(growth_per_call) < LARGEST_GROWTH


def test_rejects_a_request_that_does_not_fit() -> None:
    """The features repeat one point, so that they take no memory; the tables would take terabytes."""
    features = torch.zeros(1, 3).expand(10**11, 3)
    with pytest.raises(
        ph.errors.MemoryLimitError, match=r"100,000,000,000 points in 3 dimensions would take 3,200,000,000,000 b"
    ):
        ph.build_lattice(features)
    lattice = ph.build_lattice(torch.zeros(1, 2))
    with pytest.raises(ph.errors.MemoryLimitError, match=r"3 rows with 1,000,000,000,000 channels"):
        ph.splat(torch.zeros(1, 1).expand(1, 10**12), lattice)
    with pytest.raises(ph.errors.MemoryLimitError, match="more than what cpu has free"):
        check_rows(2**40, 16, torch.zeros(1))


def test_the_limit_of_the_process_counts() -> None:
    resource: Any = pytest.importorskip("resource", reason="limits of processes are POSIX's")
    before = resource.getrlimit(resource.RLIMIT_AS)
    free = available_memory(torch.device("cpu"))
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), before[1]))
    try:
        limited = available_memory(torch.device("cpu"))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert limited - _kept_memory() <= 1 << 29 < free
