"""What `forecast_memory` answers, with the compiled core and without it; reliability/test_memory.py measures it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from permutohedral import memory
from permutohedral.errors import BackendUnavailable, InputError
from permutohedral.memory import MemoryForecast, forecast_memory

needs_core = pytest.mark.skipif(memory._compiled_core() is None, reason="the compiled core is not installed")


@needs_core
@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [
        ((1000, 3), {}, (32_000, 96_560, 240_000, 188_672, 18_000)),
        ((0, 2), {}, (0, 480, 0, 0, 0)),
        # by cells, a quarter of a byte for each
        ((10**6, 5, 1, 6, 10**5), {"ordered": True}, (48_000_000, 3_200_720, 25_200_000, 16_994_304, 14_400_000)),
        ((10**6, 3, 0, 32, 20_000), {"separable": True}, (32_000_000, 480_560, 720_000, 5_120_000, 68_080_000)),
        # hashed, scattered, and sorted before they are splatted
        (
            (5 * 10**6, 7, 1, 2),
            {"dtype": torch.float64},
            (480_000_000, 1_600_000_880, 40_800_000_000, 811_647_224, 1_180_000_000),
        ),
        # keys of two words
        (
            (200_000, 12, 0, 64, 10**6),
            {"separable": True},
            (20_800_000, 68_001_280, 108_000_000, 97_518_440, 443_200_000),
        ),
    ],
)
def test_the_forecast_of_the_core(
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[int, ...],
    options: dict[str, Any],
    expected: tuple[int, int, int, int, int],
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert forecast_memory(*arguments, **options) == MemoryForecast(*expected)


def test_a_pyramid_is_its_levels_and_the_tables_between() -> None:
    one, other = (forecast_memory(1000, 3, 1, 0, number) for number in (900, 300))
    both = forecast_memory(1000, 3, 1, 0, (900, 300), levels=2)
    assert both.simplices == one.simplices + other.simplices
    assert both.lattice_points == one.lattice_points + other.lattice_points
    assert both.neighbors == one.neighbors + other.neighbors + 4 * (15 * (900 + 300) + 2 * 900)
    assert forecast_memory(1000, 3, levels=3).total > forecast_memory(1000, 3, levels=2).total
    with pytest.raises(InputError, match="names 2 levels, but there are 3"):
        forecast_memory(1000, 3, num_lattice_points=(9, 3), levels=3)
    with pytest.raises(InputError, match="num_points must be at most"):
        forecast_memory(10**30, 3)


def test_without_triton_there_is_no_forecast_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "permutohedral.ops.triton.build.forecast", None)
    with pytest.raises(BackendUnavailable, match="asks the Triton backend, which cannot be loaded"):
        forecast_memory(1000, 3, device="cuda")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_forecast_of_a_gpu() -> None:
    # 2^20 slots of 16 bytes with a header of 144 words, and room for 65,536 lattice points
    found = forecast_memory(100_000, 3, num_lattice_points=45_000, device="cuda")
    assert found.lattice_points == 8 * (144 + 2 * 2**20) + 65_536 * 4 * 4
    assert found.neighbors == 65_536 * 15 * 4
    # 8 bytes for the code of each slot, while the neighbors are there
    assert found.scratch == 8 * 2**20 + found.neighbors
    # a coarse level has a table for as many lattice points as the fine one has
    both = forecast_memory(100_000, 3, num_lattice_points=(45_000, 11_000), levels=2, device="cuda")
    assert both.lattice_points == found.lattice_points + 8 * (144 + 2 * 2**17) + 11_000 * 4 * 4
    assert both.neighbors == found.neighbors + 4 * (2 * 45_000 + 15 * (45_000 + 2 * 11_000))
    # points that do not fit the first table are inserted again
    scattered = forecast_memory(2_000_000, 3, num_lattice_points=8_000_000, device="cuda")
    assert scattered.scratch > forecast_memory(2_000_000, 3, num_lattice_points=10**6, device="cuda").scratch + 2**25
    # more than 16 dimensions: wide keys
    assert (
        forecast_memory(100, 17, 0, num_lattice_points=1800, device="cuda").lattice_points == 8 * 4096 + 1800 * 18 * 4
    )


@needs_core
def test_more_threads_take_more_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = []
    for threads in (1, 4):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        scratch.append(forecast_memory(10**6, 3, num_lattice_points=10**6).scratch)
    assert scratch[0] < scratch[1]


def test_without_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors are the same, but nothing is sorted or looked up beside them; the reference takes more to build."""
    monkeypatch.setattr(memory, "_compiled_core", lambda: None)
    forecast = forecast_memory(10_000, dimension=3, channels=4, num_lattice_points=2_000)
    assert forecast.simplices == 10_000 * 4 * (4 + 4)
    assert forecast.lattice_points == 2_000 * 4 * 4
    assert forecast.neighbors == 2_000 * 15 * 4
    assert forecast.values == (2_000 * 4 + 10_000 * 2) * 4
    assert forecast.scratch == 10_000 * 4 * (2 * 4 + 8) * 8
    assert forecast.total == forecast.simplices + forecast.lattice_points + forecast.scratch
    assert memory._kept_memory() == 0


@pytest.mark.parametrize(
    ("statistics", "left"),
    # as much as was not used, and what the system keeps of files
    [("anon 300\ninactive_file 500\nactive_file 50\n", 700), ("anon 300\n", 200), (None, 200)],
)
def test_files_just_read_leave_the_memory_of_a_container_free(
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
