"""Memory of lattices: forecasts, and checks before anything is allocated."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from permutohedral.errors import InputError, MemoryLimitError
from permutohedral.lattice.neighborhood import Neighborhood, count_taps
from permutohedral.lattice.tensors import check_count

_INDEX_BYTES = 4
# hash table of a GPU: up to eight slots per lattice point, each with a 64-bit key and a 64-bit index
_TABLE_BYTES = 128
# Smaller requests are not compared with the free memory. To query a GPU takes longer than most kernels, so a GPU grants
# a share of its whole memory if that is more.
_NEGLIGIBLE_BYTES = 1 << 28
_NEGLIGIBLE_SHARE = 1 / 32
# native backend: bits of one coordinate of a packed key, about; bytes of a table besides its keys, and per coordinate
_KEY_BITS, _TABLE_HEADER_BYTES, _TABLE_COORDINATE_BYTES = 6, 640, 40
# native backend: points of a chunk, and in how many lists an ordered point set has a lattice point at most
_CHUNK_POINTS, _LISTS_PER_LATTICE_POINT = 1 << 16, 4
# native backend: from this many corners per lattice point on, lattice points are numbered by cells
_SHARED_CORNERS, _CELLS_PER_LATTICE_POINT, _CELLS_PER_CORNER, _MAX_CELL_DIMENSION = 24, 512, 16, 6
_HUGE_PAGE_BYTES = 1 << 22
# measured peaks are up to 17 % above the sum of all requests, since blocks of the native core are reused whole
_ROUNDING_PART = 5
# Triton backend: rows and points of tables made before the number of lattice points is known; the first hash table
_GPU_ROWS_AHEAD, _GPU_MAX_POINTS_AHEAD = 1 << 16, 1 << 21
_GPU_CHEAP_SLOTS, _GPU_MIN_TABLE_BYTES, _GPU_MAX_PACKED_DIMENSION = 1 << 23, 1 << 25, 16
# Triton backend: bytes of the first hash table of a large point set, for each corner, at most
_GPU_FIRST_TABLE_BYTES = 8


@dataclass(frozen=True)
class MemoryForecast:
    """Upper bounds of the bytes of a lattice and one filter on it, without the features and values.

    Attributes:
        simplices: vertices and barycentric weights of all points.
        lattice_points: keys and lookup table.
        neighbors: the table of taps.
        scratch: temporary memory while the lattice is built.
        values: splatted, blurred or convolved values, and the result; for unordered points, a sorted copy of the
            simplices.
        total: the peak, with a tenth more for rounded allocations. The scratch memory is free again when neighbors
            and values are allocated.

    >>> import permutohedral as ph
    >>> forecast = ph.lattice.forecast_memory(1000, dimension=3)
    >>> forecast.total >= forecast.neighbors > 0
    True
    """

    simplices: int
    lattice_points: int
    neighbors: int
    scratch: int
    values: int

    @property
    def total(self) -> int:
        peak = self.simplices + self.lattice_points + max(self.scratch, self.neighbors + self.values)
        return peak + peak // _ROUNDING_PART


def forecast_memory(
    num_points: int,
    dimension: int,
    neighborhood_size: int = 1,
    channels: int = 1,
    num_lattice_points: int | Sequence[int] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    separable: bool = False,
    ordered: bool = False,
    levels: int = 1,
    device: torch.device | str = "cpu",
) -> MemoryForecast:
    """Return an upper bound of the memory of `build_lattice` and one filter without gradients.

    With `levels`, the bound is that of `build_pyramid` and one filter on its finest level. Nothing is allocated. The
    bounds are those of the native backend or, with `device="cuda"`, of the Triton one. Where the compiled core is not
    installed they are those of the reference backend, which sorts keys.

    Args:
        num_points: source and target points together.
        dimension: d of the features.
        neighborhood_size: s of the filter.
        channels: of the values, in and out together.
        num_lattice_points: from `statistics()` of a similar lattice; default: the upper bound num_points (d+1), which
            scattered points reach and images stay far below.
        dtype: of features and values.
        separable: for the separable Gaussian, which only needs a `neighborhood_size` of 0.
        ordered: consecutive points are near each other, as pixels are; building then takes less memory.
        levels: of a pyramid. `num_lattice_points` is then that of every level, the finest first, or one number that
            bounds them all.
        device: "cpu", or "cuda" for a GPU, which need not be present.

    >>> import permutohedral as ph
    >>> ph.lattice.forecast_memory(1_000_000, dimension=5, num_lattice_points=100_000, ordered=True).simplices // 2**20
    45
    """
    check_count("num_points", num_points)
    check_count("dimension", dimension, least=1)
    check_count("neighborhood_size", neighborhood_size)
    check_count("channels", channels)
    check_count("levels", levels, least=1)
    if not dtype.is_floating_point:
        raise InputError(f"dtype must be floating, got {dtype}")
    size, corners = torch.finfo(dtype).bits // 8, num_points * (dimension + 1)
    # 16-bit values are computed in 32 bits
    weight_size = max(size, 4)
    numbers = _on_levels(corners if num_lattice_points is None else num_lattice_points, levels)
    filter_size = count_taps(dimension, neighborhood_size)
    taps = filter_size + (2 * (dimension + 1) if separable else 0)
    simplices = corners * (_INDEX_BYTES + weight_size)
    # the Gaussian has two more buffers of the size of its input, and a channel for the mass
    rows = 3 * numbers[0] * (channels / 2 + 1) if separable else numbers[0] * channels
    values = int((rows + num_points * channels / 2) * size)
    # between two levels: the taps down and up, and two parents of each fine lattice point
    between = sum(filter_size * (fine + coarse) + 2 * fine for fine, coarse in pairwise(numbers))
    neighbors = (sum(numbers) * taps + between) * _INDEX_BYTES
    if torch.device(device).type == "cuda":
        lattice_points, neighbors, scratch = _gpu_tables(num_points, dimension, numbers, neighbors)
        # a failed first attempt leaves its simplices until the second one is done
        return MemoryForecast(levels * simplices, lattice_points, neighbors, scratch + simplices, values)
    tables, scratch = _cpu_tables(num_points, dimension, numbers, neighbors, ordered)
    if not ordered:
        # simplices sorted by lattice point
        values += simplices + num_points * _INDEX_BYTES
    return MemoryForecast(
        simplices=levels * simplices,
        lattice_points=sum(numbers) * (dimension + 1) * _INDEX_BYTES + tables,
        neighbors=neighbors,
        # while the finest lattice is built, the simplices of the others are not there yet
        scratch=max(scratch - (levels - 1) * simplices, 0),
        values=values,
    )


def _cpu_tables(
    num_points: int, dimension: int, numbers: Sequence[int], neighbors: int, ordered: bool
) -> tuple[int, int]:
    """Return the bytes of lookup tables and of temporary memory while a lattice is built on the CPU."""
    corners = num_points * (dimension + 1)
    if _compiled_core() is None:
        # reference backend: three keys of each corner, or one key and the words of sorting; the same for each lattice
        # point and each neighbor along one tap
        key, sorting = _INDEX_BYTES * (dimension + 1), 10 * 8
        indexed = corners * (key + max(2 * key, sorting))
        return 0, max(indexed, 2 * numbers[0] * (key + sorting) + neighbors)
    key_bytes = 8 * math.ceil((dimension + 1) * _KEY_BITS / 64)
    header = _TABLE_HEADER_BYTES + _TABLE_COORDINATE_BYTES * (dimension + 1)
    tables = sum(number * key_bytes + header for number in numbers)
    # each chunk of points lists the keys that it touches; a small cache leaves out some of the repetitions
    listed = min(corners, _LISTS_PER_LATTICE_POINT * numbers[0]) if ordered else corners
    chunks = min(num_points, _CHUNK_POINTS * torch.get_num_threads()) * (dimension + 1)
    hashed = listed * (key_bytes + _INDEX_BYTES) + (chunks + numbers[0]) * key_bytes
    # or a bit and a number for each cell of a grid of lattice points
    cells = min(_CELLS_PER_LATTICE_POINT * numbers[0], _CELLS_PER_CORNER * corners) // 4
    shares_corners = corners >= _SHARED_CORNERS * numbers[0] and dimension <= _MAX_CELL_DIMENSION
    scratch = max(hashed, cells) if shares_corners else hashed
    return tables, scratch + min(scratch, _HUGE_PAGE_BYTES)


def _gpu_tables(num_points: int, dimension: int, numbers: Sequence[int], neighbors: int) -> tuple[int, int, int]:
    """Return the bytes of keys and tables, of neighbors, and of temporary memory while a lattice is built on a GPU."""
    corners, key_bytes = num_points * (dimension + 1), (dimension + 1) * _INDEX_BYTES
    # keys and neighbors of a small lattice are made before their number is known
    ahead = min(corners, max(_GPU_ROWS_AHEAD, 3 * num_points)) if num_points <= _GPU_MAX_POINTS_AHEAD else 0
    rows = max(numbers[0], ahead)
    grown = neighbors * rows // max(numbers[0], 1) if ahead else neighbors
    tables = sum(number * _TABLE_BYTES for number in numbers) + _GPU_MIN_TABLE_BYTES
    kept = tables + (rows + sum(numbers[1:])) * key_bytes
    # 24 bytes in each slot of the first table, which has four slots for each corner at most, and later two thirds
    slots = 4 * corners if 2 * corners <= _GPU_CHEAP_SLOTS else max(2 * _GPU_CHEAP_SLOTS, corners // 3)
    if numbers[0] > slots // 4 or dimension > _GPU_MAX_PACKED_DIMENSION:
        slots += 4 * corners
    return kept, grown, 24 * slots + rows * key_bytes + grown


def _on_levels(num_lattice_points: int | Sequence[int], levels: int) -> list[int]:
    """Return the lattice points of every level."""
    given = list(num_lattice_points) if isinstance(num_lattice_points, Sequence) else [num_lattice_points] * levels
    for number in given:
        check_count("num_lattice_points", number)
    if len(given) != levels:
        raise InputError(f"num_lattice_points has {len(given)} numbers; pass one for each of {levels} levels")
    return given


def new_tensor(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return an uninitialized CPU tensor; large ones are in memory that the compiled core reuses.

    >>> new_tensor((2, 3), torch.float32).shape
    torch.Size([2, 3])
    """
    if _compiled_core() is None:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    from permutohedral.ops.native import bridge

    return bridge.empty(tuple(shape), dtype)


def _compiled_core() -> ModuleType | None:
    """Return the compiled core, or None if it is not installed; `ops.native` reports one that cannot be loaded."""
    try:
        from permutohedral import _native
    except ImportError:
        return None
    return _native


@lru_cache(maxsize=64)
def _whole_memory(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory)


def _is_negligible(needed: int, device: torch.device) -> bool:
    if needed < _NEGLIGIBLE_BYTES:
        return True
    return device.type == "cuda" and needed < _NEGLIGIBLE_SHARE * _whole_memory(device)


def available_memory(device: torch.device) -> int:
    """Return the bytes that can still be allocated on `device`, within the limits of container and process.

    >>> available_memory(torch.device("cpu")) > 0
    True
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(0, min([_free_memory(), *_container_memory(), *_process_memory()])) + _kept_memory()


def _free_memory() -> int:
    """Return the free memory of the machine, with that of cached files; all memory where neither is reported."""
    if sys.platform == "win32":
        # MEMORYSTATUSEX: two numbers of 32 bits, the first its size, and seven of 64 bits; the second is what is free
        status = (ctypes.c_uint64 * 8)(64)
        ctypes.windll.kernel32.GlobalMemoryStatusEx(status)
        return int(status[2])
    with contextlib.suppress(OSError, KeyError, ValueError):
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    pages = sum(map(_read_pages, (b"vm.page_free_count", b"vm.page_pageable_external_count")))
    return (pages or os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")


def _read_pages(name: bytes) -> int:
    """Return a number of pages that macOS reports; zero on other systems."""
    pages = ctypes.c_uint32(0)
    with contextlib.suppress(AttributeError):
        size = ctypes.c_size_t(ctypes.sizeof(pages))
        ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(pages), ctypes.byref(size), None, 0)
    return pages.value


def _kept_memory() -> int:
    """Return the freed memory that the compiled core keeps for its next calls."""
    core = _compiled_core()
    return 0 if core is None else core.kept_memory()


# versions 2 and 1 of control groups: folder, limit, use, and cached files within the use
_CONTROL_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def _container_memory() -> list[int]:
    """Return what control groups leave to this process."""
    found = []
    for folder, limit, use, files in _CONTROL_GROUPS:
        # "max" is no number, and means no limit
        with contextlib.suppress(OSError, ValueError):
            left = int(Path(folder, limit).read_text()) - int(Path(folder, use).read_text())
            found.append(left)
            # cached files count as used, but are dropped when memory is needed
            statistics = dict(line.split() for line in Path(folder, "memory.stat").read_text().splitlines())
            found[-1] += int(statistics.get(files, 0))
    return found


def _process_memory() -> list[int]:
    """Return what `ulimit -v` leaves to this process."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return []
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return [limit - pages * os.sysconf("SC_PAGE_SIZE")]
    except (ImportError, OSError, ValueError):
        return []


class MemoryLimit(NamedTuple):
    """Reject requests that do not fit before they allocate. Inactive while tracing, where sizes are unknown.

    Attributes:
        limit: bytes, or None for what the device has free.
        device: where the memory is.
    """

    limit: int | None
    device: torch.device

    def check(self, needed: int, what: str) -> None:
        """Raise unless `needed` bytes for `what` stay within the limit."""
        if self._is_small(needed):
            return
        limit = available_memory(self.device) if self.limit is None else self.limit
        if needed > limit:
            whose = f"what {self.device} has free" if self.limit is None else "memory_limit"
            raise MemoryLimitError(
                f"{what} would take {needed:,} bytes, more than {whose}, {limit:,} bytes; use fewer points, a smaller "
                "neighborhood_size or halo, or larger bandwidths (fewer lattice points)"
            )

    def _is_small(self, needed: int) -> bool:
        """Return whether the request is granted unchecked."""
        return self.limit is None and _is_negligible(needed, self.device)

    def check_simplices(self, num_points: int, dimension: int, element_size: int) -> None:
        """Raise unless the simplices of source and target points fit, on a GPU with the first hash table."""
        if torch.compiler.is_compiling():
            return
        table = _GPU_FIRST_TABLE_BYTES if self.device.type == "cuda" else 0
        needed = num_points * (dimension + 1) * (_INDEX_BYTES + element_size + table)
        if not self._is_small(needed):
            self.check(needed, f"the simplices of {num_points:,} points in {dimension} dimensions")

    def check_neighbors(self, num_lattice_points: int, neighborhood: Neighborhood, separable: bool) -> None:
        if torch.compiler.is_compiling():
            return
        taps = neighborhood.filter_size + (2 * (neighborhood.dimension + 1) if separable else 0)
        needed = num_lattice_points * taps * _INDEX_BYTES
        if not self._is_small(needed):
            self.check(needed, f"a table of {taps:,} taps for {num_lattice_points:,} lattice points")

    def check_halo(self, num_lattice_points: int, neighborhood: Neighborhood) -> None:
        if not torch.compiler.is_compiling():
            candidates = num_lattice_points * neighborhood.filter_size
            needed = candidates * ((neighborhood.dimension + 1) * _INDEX_BYTES + _TABLE_BYTES)
            self.check(needed, f"the halo of {num_lattice_points:,} lattice points")


def is_negligible(elements: int, like: Tensor) -> bool:
    """Return whether `elements` of the dtype of `like` are granted without a look at the free memory.

    >>> is_negligible(3, torch.zeros(1))
    True
    """
    needed = elements * like.element_size()
    return needed < _NEGLIGIBLE_BYTES or _is_negligible(needed, like.device)


def check_rows(rows: int, channels: int, like: Tensor) -> None:
    """Raise unless a result `[rows, channels]` of the dtype and on the device of `like` fits what is free.

    Raises:
        MemoryLimitError: it does not.
    """
    if not torch.compiler.is_compiling():
        check_known_rows(rows, channels, like)


def check_known_rows(rows: int, channels: int, like: Tensor) -> None:
    """Run `check_rows` in a call that torch.compile does not trace."""
    needed = rows * channels * like.element_size()
    if needed < _NEGLIGIBLE_BYTES or _is_negligible(needed, like.device):
        return
    MemoryLimit(None, like.device).check(needed, f"a result of {rows:,} rows with {channels:,} channels")
