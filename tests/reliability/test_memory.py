"""No leak over repeated calls; the forecast is the peak; what cannot fit is refused before it is allocated."""

from __future__ import annotations

import multiprocessing
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from reliability.measure_memory import REQUESTS, Request, measure_leak, measure_peak, settle, status

import permutohedral as ph
from permutohedral.memory import _kept_memory, available_memory, check_rows
from permutohedral.ops import dispatch

_REFUSAL = next(backend for backend in dispatch._BACKENDS if backend.name == "native").refusal("cpu")
needs_native = pytest.mark.skipif(_REFUSAL is not None, reason=f"the native backend does not run here: {_REFUSAL}")

# of the forecast
PEAK_TOLERANCE = 0.2
# bytes per call: a tensor of one number is larger
LARGEST_GROWTH = 200


def in_a_process(function: object, argument: object) -> dict[str, object]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result: dict[str, object] = pool.apply(function, (argument,))  # type: ignore[arg-type]
    return result


@needs_native
@pytest.mark.parametrize("number", [1, 16])
def test_the_peak_is_the_forecast(number: int) -> None:
    request: Request = replace(REQUESTS[number], points=REQUESTS[number].points // 2)
    measured = in_a_process(measure_peak, request)
    assert abs(float(str(measured["ratio"])) - 1) <= PEAK_TOLERANCE, measured


def peak_of_a_pyramid(arguments: tuple[int, int, float]) -> dict[str, object]:
    """The peak of building a pyramid on points near a sphere, and its forecast."""
    points, levels, radius = arguments
    torch.manual_seed(0)
    torch.set_num_threads(2)
    features = torch.nn.functional.normalize(torch.randn(points, 3)) * radius
    ph.build_pyramid(features[:1000], levels)
    settle()
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    pyramid = ph.build_pyramid(features, levels)
    numbers = [level.num_lattice_points for level in pyramid.levels]
    forecast = ph.forecast_memory(points, 3, channels=0, num_lattice_points=numbers, levels=levels)
    return {"ratio": (status("VmHWM") - before) / forecast.total, "lattice_points": numbers}


@needs_native
def test_the_peak_of_a_pyramid_is_the_forecast() -> None:
    measured = in_a_process(peak_of_a_pyramid, (500_000, 3, 150.0))
    assert abs(float(str(measured["ratio"])) - 1) <= 0.1, measured


def test_nothing_leaks() -> None:
    measured = in_a_process(measure_leak, 600)
    assert float(str(measured["growth_per_call"])) < LARGEST_GROWTH, measured


def test_a_request_that_cannot_fit_is_refused() -> None:
    """The features repeat one point, so that asking costs nothing; the tables would take terabytes."""
    features = torch.zeros(1, 3).expand(10**11, 3)
    with pytest.raises(
        ph.MemoryLimitError, match=r"100,000,000,000 points in 3 dimensions would take 3,200,000,000,000 b"
    ):
        ph.build_lattice(features)
    lattice = ph.build_lattice(torch.zeros(1, 2))
    with pytest.raises(ph.MemoryLimitError, match=r"3 rows with 1,000,000,000,000 channels"):
        ph.splat(torch.zeros(1, 1).expand(1, 10**12), lattice)
    with pytest.raises(ph.MemoryLimitError, match="more than what cpu has free"):
        check_rows(2**40, 16, torch.zeros(1))


def test_the_limit_of_the_process_counts() -> None:
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
