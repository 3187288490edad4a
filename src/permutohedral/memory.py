"""How much memory a lattice takes, before any of it is allocated."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from permutohedral.errors import BackendUnavailable, InputError, MemoryLimitError
from permutohedral.neighborhood import Neighborhood, count_taps
from permutohedral.tensors import check_count

_INDEX_BYTES = 4
# a GPU's hash table: up to eight slots per lattice point, a 64-bit key and a 64-bit index in each
_TABLE_BYTES = 128
# Smaller requests are not compared with the free memory. Asking a GPU for that takes longer than most kernels run, so a
# GPU grants a share of its whole memory if that is more.
_NEGLIGIBLE_BYTES = 1 << 28
_NEGLIGIBLE_SHARE = 1 / 32


@dataclass(frozen=True)
class MemoryForecast:
    """Bytes that a lattice and one filter on it will take, besides the features and values themselves.

    Attributes:
        simplices: vertices and barycentric weights of all points.
        lattice_points: keys and lookup table.
        neighbors: the table of taps.
        scratch: temporary memory while the lattice is built, freed before the table of taps is made.
        values: splatted, blurred or convolved values, and the result; for points far apart, an ordered copy of the
            simplices.
        total: the peak; the scratch memory is free again when neighbors and values are allocated.

    >>> forecast = forecast_memory(1000, dimension=3)
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
        return self.simplices + self.lattice_points + max(self.scratch, self.neighbors + self.values)


def forecast_memory(  # noqa: PLR0913 (what describes the request, and five options by name)
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
    """Forecast the memory of `build_lattice` and one filter without gradients, without allocating anything.

    With `levels`, of `build_pyramid` and one filter on its finest level.

    The figures are those of the backend, which is asked what it will allocate: the native one (measured in
    docs/reliability.md), or with `device="cuda"` the Triton one, where hash tables have a power of two of slots and
    tables that are made before their size is known some room. Where the compiled core is not installed, the scratch
    memory is that of the reference backend, which sorts the keys of all corners.

    Args:
        num_points: source and target points together.
        dimension: d of the features.
        neighborhood_size: s of the filter.
        channels: of the values, in and out together.
        num_lattice_points: as known from `statistics()` of a similar lattice; default: the upper bound
            num_points (d+1), which scattered points reach and images stay far below.
        dtype: of features and values.
        separable: for the separable Gaussian, which needs a `neighborhood_size` of 0 only.
        ordered: points that follow each other are near each other, as pixels are; building then takes less memory.
        levels: of a pyramid. `num_lattice_points` is then that of every level, the finest first, or one number that
            bounds them all.
        device: "cpu", or "cuda" for a GPU, which need not be there but for Triton.

    >>> forecast_memory(1_000_000, dimension=5, num_lattice_points=100_000, ordered=True).simplices // 2**20
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
    lattice_points, *coarse = _on_levels(corners if num_lattice_points is None else num_lattice_points, levels)
    taps = count_taps(dimension, neighborhood_size) + (2 * (dimension + 1) if separable else 0)
    # the Gaussian has two more buffers of the size of its input, and a channel for the mass
    rows = 3 * lattice_points * (channels / 2 + 1) if separable else lattice_points * channels
    simplices = corners * (_INDEX_BYTES + weight_size)
    if torch.device(device).type == "cuda":
        values = int((rows + num_points * channels / 2) * size)
        # neighbors along the axes alone, or without them, are looked up as the points are inserted
        together = 0 if separable == (neighborhood_size > 0) else 2 * (dimension + 1) if separable else taps
        points = num_points, dimension, simplices, ordered
        return _forecast_on_gpu(points, [lattice_points, *coarse], (taps, together), values)
    core = _compiled_core()
    tables = 0
    if core is None:
        # the reference backend, measured: for each corner its key as int64, twice, and eight more words while sorting
        scratch, order = 8 * corners * (2 * (dimension + 1) + 8), 0
    else:
        row_bytes = (channels / 2 + separable) * size
        request = (weight_size, row_bytes, ordered, torch.get_num_threads())
        tables, scratch, order = core.forecast(num_points, dimension, lattice_points, *request)
        tables += sum(core.forecast(num_points, dimension, number, *request)[0] for number in coarse)
    # between two levels: the taps down and up, and two parents of each fine lattice point
    pairs = pairwise([lattice_points, *coarse])
    between = sum(count_taps(dimension, neighborhood_size) * (fine + below) + 2 * fine for fine, below in pairs)
    return MemoryForecast(
        simplices=levels * simplices,
        lattice_points=(lattice_points + sum(coarse)) * (dimension + 1) * _INDEX_BYTES + tables,
        neighbors=((lattice_points + sum(coarse)) * taps + between) * _INDEX_BYTES,
        # while the finest lattice is built, the simplices of the others are not there yet
        scratch=max(scratch - (levels - 1) * simplices, 0),
        values=int((rows + num_points * channels / 2) * size) + order,
    )


def _forecast_on_gpu(
    points: tuple[int, int, int, bool], lattice_points: list[int], taps: tuple[int, int], values: int
) -> MemoryForecast:
    """Of a `PointSet`, levels with so many lattice points, and taps, of which some are looked up with the points."""
    try:
        from permutohedral.ops.triton.build.forecast import PointSet, forecast_tables
    except ImportError as error:
        raise BackendUnavailable(
            f"a forecast for GPUs asks the Triton backend, which cannot be loaded: {error}"
        ) from error

    given = PointSet(*points)
    found = forecast_tables(given, lattice_points, *taps)
    simplices = len(lattice_points) * given.simplices
    scratch = max(found.peak - simplices - found.lattice_points, 0)
    return MemoryForecast(simplices, found.lattice_points, found.neighbors, scratch, values)


def _on_levels(num_lattice_points: int | Sequence[int], levels: int) -> list[int]:
    """The lattice points of every level."""
    given = list(num_lattice_points) if isinstance(num_lattice_points, Sequence) else [num_lattice_points] * levels
    for number in given:
        check_count("num_lattice_points", number)
    if len(given) != levels:
        raise InputError(f"num_lattice_points names {len(given)} levels, but there are {levels}")
    return given


def new_tensor(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Uninitialized, on the CPU; if large, in memory that the compiled core keeps when it is freed, where there is one.

    >>> new_tensor((2, 3), torch.float32).shape
    torch.Size([2, 3])
    """
    if _compiled_core() is None:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    from permutohedral.ops.native import lending

    return lending.empty(tuple(shape), dtype)


def _compiled_core() -> ModuleType | None:
    """The compiled core, or None where it is not installed; `ops.native` reports one that cannot be loaded."""
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
    """Bytes that can still be allocated on `device`: what is free, within the limits of the container and the process.

    >>> available_memory(torch.device("cpu")) > 0
    True
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(0, min(free, *_container_memory(), *_process_memory())) + _kept_memory()


def _kept_memory() -> int:
    """Freed memory that the compiled core keeps for its next calls, and gives up where they need it."""
    core = _compiled_core()
    return 0 if core is None else core.kept_memory()


# of version 2 and of version 1: the folder of a control group, its limit, its use, and what of that is files just read
_CONTROL_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def _container_memory() -> list[int]:
    """What control groups leave to this process."""
    found = []
    for folder, limit, use, files in _CONTROL_GROUPS:
        # "max" is no number, and means no limit
        with contextlib.suppress(OSError, ValueError):
            left = int(Path(folder, limit).read_text()) - int(Path(folder, use).read_text())
            found.append(left + _kept_files(Path(folder, "memory.stat"), files))
    return found


def _kept_files(statistics: Path, name: str) -> int:
    """Contents of files that the system keeps to read them again: they count as used, and make room for what is not."""
    try:
        return int(dict(line.split() for line in statistics.read_text().splitlines())[name])
    except (OSError, ValueError, KeyError):
        return 0


def _process_memory() -> list[int]:
    """What `ulimit -v` leaves to this process."""
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
    """Refuses a request before it allocates. Inactive while tracing, where sizes are not known.

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
        """Whether the request is granted unchecked: then its description need not be formatted."""
        return self.limit is None and _is_negligible(needed, self.device)

    def check_simplices(self, num_points: int, dimension: int, element_size: int) -> None:
        """Raise unless the simplices of source and target points together fit."""
        if torch.compiler.is_compiling():
            return
        needed = num_points * (dimension + 1) * (_INDEX_BYTES + element_size)
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
    """Whether so many elements of the dtype of `like` are granted on its device without looking at what is free.

    >>> is_negligible(3, torch.zeros(1))
    True
    """
    return _is_negligible(elements * like.element_size(), like.device)


def check_rows(rows: int, channels: int, like: Tensor) -> None:
    """Raise unless a result `[rows, channels]` of the dtype and on the device of `like` fits what is free.

    Raises:
        MemoryLimitError: it does not.
    """
    if torch.compiler.is_compiling() or is_negligible(rows * channels, like):
        return
    MemoryLimit(None, like.device).check(
        rows * channels * like.element_size(), f"a result of {rows:,} rows with {channels:,} channels"
    )
