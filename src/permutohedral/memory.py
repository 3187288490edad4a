"""How much memory a lattice takes, told before any of it is allocated."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from permutohedral.errors import MemoryLimitError
from permutohedral.neighborhood import Neighborhood, count_taps

_INDEX_BYTES = 4
# a backend's hash table: up to eight slots per lattice point, a 64-bit key and an index in each
_TABLE_BYTES = 96
# requests below this are not worth asking the system how much it has free
_NEGLIGIBLE_BYTES = 1 << 28


@dataclass(frozen=True)
class MemoryForecast:
    """Bytes that a lattice and one filter on it will take.

    Attributes:
        simplices: vertices and barycentric weights of all points.
        lattice_points: keys and lookup table.
        neighbors: the table of taps.
        values: splatted and convolved values.
        total: the sum.
    """

    simplices: int
    lattice_points: int
    neighbors: int
    values: int

    @property
    def total(self) -> int:
        return self.simplices + self.lattice_points + self.neighbors + self.values


def forecast_memory(
    num_points: int,
    dimension: int,
    neighborhood_size: int = 1,
    channels: int = 1,
    num_lattice_points: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    separable: bool = False,
) -> MemoryForecast:
    """Forecast the memory of `build_lattice` and one filter, without allocating anything.

    Args:
        num_points: source and target points together.
        dimension: d of the features.
        neighborhood_size: s of the filter.
        channels: of the values, in and out together.
        num_lattice_points: as known from `statistics()` of a similar lattice; default: the upper bound
            num_points (d+1), which scattered points reach and images stay far below.
        dtype: of features and values.
        separable: also count the neighbors of the separable Gaussian.

    >>> forecast_memory(1_000_000, dimension=5, num_lattice_points=100_000).total // 2**20
    81
    """
    bits = torch.finfo(dtype).bits // 8
    lattice_points = num_points * (dimension + 1) if num_lattice_points is None else num_lattice_points
    taps = count_taps(dimension, neighborhood_size) + (2 * (dimension + 1) if separable else 0)
    return MemoryForecast(
        simplices=num_points * (dimension + 1) * (_INDEX_BYTES + max(bits, 4)),
        lattice_points=lattice_points * ((dimension + 1) * _INDEX_BYTES + _TABLE_BYTES),
        neighbors=lattice_points * taps * _INDEX_BYTES,
        values=lattice_points * channels * bits,
    )


def available_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on `device`."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        with open("/proc/meminfo") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class MemoryLimit:
    """Refuses a request before it allocates. Inactive while tracing, where sizes are not known.

    Attributes:
        limit: bytes, or None for what the device has free.
        device: where the memory is.
    """

    limit: int | None
    device: torch.device

    def check(self, needed: int, what: str) -> None:
        """Raise unless `needed` bytes for `what` stay within the limit."""
        if self.limit is None and needed < _NEGLIGIBLE_BYTES:
            return
        limit = available_memory(self.device) if self.limit is None else self.limit
        if needed > limit:
            whose = f"what {self.device} has free" if self.limit is None else "memory_limit"
            raise MemoryLimitError(
                f"{what} would take {needed:,} bytes, more than {whose}, {limit:,} bytes; use fewer points, a smaller "
                "neighborhood_size or halo, or larger bandwidths (fewer lattice points)"
            )

    def check_simplices(self, num_points: int, dimension: int, element_size: int) -> None:
        if not torch.compiler.is_compiling():
            needed = num_points * (dimension + 1) * (_INDEX_BYTES + element_size)
            self.check(needed, f"the simplices of {num_points:,} points in {dimension} dimensions")

    def check_neighbors(self, num_lattice_points: int, neighborhood: Neighborhood) -> None:
        if not torch.compiler.is_compiling():
            taps = neighborhood.filter_size
            needed = num_lattice_points * taps * _INDEX_BYTES
            self.check(needed, f"a table of {taps:,} taps for {num_lattice_points:,} lattice points")

    def check_halo(self, num_lattice_points: int, neighborhood: Neighborhood) -> None:
        if not torch.compiler.is_compiling():
            candidates = num_lattice_points * neighborhood.filter_size
            needed = candidates * ((neighborhood.dimension + 1) * _INDEX_BYTES + _TABLE_BYTES)
            self.check(needed, f"the halo of {num_lattice_points:,} lattice points")
