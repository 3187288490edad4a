"""Memory forecasts and limits. reliability/test_memory.py compares forecasts with measured peaks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import permutohedral as ph
from permutohedral.errors import InputError, MemoryLimitError
from permutohedral.lattice import memory
from permutohedral.lattice.memory import forecast_memory

needs_core = pytest.mark.skipif(memory._compiled_core() is None, reason="the compiled core is not installed")


@needs_core
@pytest.mark.parametrize(
    ("arguments", "ordered", "lattice_points"),
    # the last has more lattice points than points, in scan order: a volume of noise
    [((10**6, 5, 1, 6), True, 10**5), ((10**6, 3, 1, 2), False, 10**6), ((96 * 128 * 128, 4, 0, 2), True, 5 * 10**6)],
)
def test_forecast_covers_required_tables(
    arguments: tuple[int, int, int, int], ordered: bool, lattice_points: int
) -> None:
    points, dimension, size, channels = arguments
    found = forecast_memory(*arguments, lattice_points, ordered=ordered)
    corners = points * (dimension + 1)
    assert found.simplices == 8 * corners
    # keys as they are and packed
    assert found.lattice_points >= lattice_points * (4 * (dimension + 1) + 8)
    assert found.neighbors == 4 * lattice_points * ph.lattice.Neighborhood(dimension, size).filter_size
    # every lattice point is listed at least once, with its number
    assert found.scratch >= lattice_points * 12
    assert found.values >= 4 * lattice_points * channels
    assert found.total <= forecast_memory(*arguments, corners, ordered=ordered).total


def test_pyramid_forecast_sums_levels() -> None:
    one, other = (forecast_memory(1000, 3, 1, 0, number) for number in (900, 300))
    both = forecast_memory(1000, 3, 1, 0, (900, 300), levels=2)
    assert both.simplices == one.simplices + other.simplices
    assert both.lattice_points == one.lattice_points + other.lattice_points
    assert both.neighbors == one.neighbors + other.neighbors + 4 * (15 * (900 + 300) + 2 * 900)
    assert forecast_memory(1000, 3, levels=3).total > forecast_memory(1000, 3, levels=2).total
    with pytest.raises(InputError, match="has 2 numbers; pass one for each of 3 levels"):
        forecast_memory(1000, 3, num_lattice_points=(9, 3), levels=3)
    with pytest.raises(InputError, match="num_points must be at most"):
        forecast_memory(10**30, 3)


@pytest.mark.parametrize(("points", "lattice_points"), [(100_000, 45_000), (2_000_000, 8_000_000), (4_500_000, 10**6)])
def test_gpu_forecast_needs_no_gpu(points: int, lattice_points: int) -> None:
    found = forecast_memory(points, 3, num_lattice_points=lattice_points, device="cuda")
    # a table at most half full, 16 bytes in each slot, and the keys
    assert found.lattice_points >= lattice_points * (2 * 16 + 4 * 4)
    assert found.neighbors >= lattice_points * 15 * 4
    assert found.scratch >= 24 * 2 * lattice_points
    both = forecast_memory(points, 3, num_lattice_points=(lattice_points, 11_000), levels=2, device="cuda")
    assert both.total > found.total


@pytest.mark.parametrize(("gibibytes", "fits"), [(139, True), (40, False)])
def test_gpu_limit_raises_before_allocation(gibibytes: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """450 million points in 5 dimensions, with the memory of the GPU injected."""
    monkeypatch.setattr(memory, "_whole_memory", lambda device: gibibytes << 30)
    monkeypatch.setattr(memory, "available_memory", lambda device: gibibytes << 30)
    limit = memory.MemoryLimit(None, torch.device("cuda"))
    if fits:
        limit.check_simplices(450_000_000, 5, 4)
    else:
        with pytest.raises(MemoryLimitError, match="450,000,000 points in 5 dimensions"):
            limit.check_simplices(450_000_000, 5, 4)


@pytest.mark.parametrize(
    ("statistics", "left"),
    # as much as was not used, and what the system keeps of files
    [("anon 300\ninactive_file 500\nactive_file 50\n", 700), ("anon 300\n", 200), (None, 200)],
)
def test_page_cache_counts_as_free_container_memory(
    statistics: str | None, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [(str(tmp_path), *names) for _, *names in memory._CONTROL_GROUPS]
    monkeypatch.setattr(memory, "_CONTROL_GROUPS", groups)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("800\n")
    if statistics is not None:
        (tmp_path / "memory.stat").write_text(statistics)
    assert memory._container_memory() == [left]
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._container_memory() == []
