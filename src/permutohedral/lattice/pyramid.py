"""Pyramids: lattices of one set of points at steps of 1, 2, 4, ..., each computed exactly from the one before.

A vertex of the lattice is x = sum_j n_j e_j with e_j = (d+1) u_j - 1, and the lattice of `features / 2` consists of the
vertices whose n_j are all of one parity. Any other vertex is the midpoint of one edge between two of these, its parents
(x + e_S) / 2 and (x - e_S) / 2 in coarse coordinates, where S = {j : n_j odd} and e_S is the sum of its e_j. So every
function that is linear on the coarse simplices is linear on the fine ones: with P_{xJ} = 1 where x is the coarse vertex
J itself and 1/2 where J is one of its two parents,

    splat_coarse = P^T splat_fine        slice_coarse(l) = slice_fine(P l)

and the lattice points of a level follow from those of the level before, without the points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.lattice.lattice import Lattice, build_lattice
from permutohedral.lattice.memory import MemoryLimit
from permutohedral.lattice.neighborhood import Neighborhood
from permutohedral.lattice.tables import lookup_table
from permutohedral.ops.binding import bind
from permutohedral.ops.simplices import Simplices
from permutohedral.ops.tracing import breaks_graph, with_storable_results

# a coordinate has 31 bits, each level takes one of them
MAX_LEVELS = 30


@dataclass(frozen=True, eq=False)
class LevelTables:
    """Tables between a fine level and the next, coarse one.

    Attributes:
        parents: int32 `[fine lattice points, 2]`, rows of the coarse level: the ends of the edge whose midpoint a fine
            lattice point is; twice the same row where it is a coarse one itself. Unused rows of a bounded level have
            parents beyond the last row.
        down: int32 `[filter_size, coarse lattice points]`, rows of the fine level: the taps around each coarse lattice
            point, -1 where missing.
        up: int32 `[filter_size, fine lattice points]`, rows of the coarse level: the coarse lattice points among the
            taps around each fine one, -1 at all others.

    >>> import torch, permutohedral as ph
    >>> ph.levels.build_pyramid(torch.zeros(10, 2), num_levels=2).tables[0].parents.shape
    torch.Size([3, 2])
    """

    parents: Tensor
    down: Tensor
    up: Tensor

    def to(self, device: torch.device | str) -> LevelTables:
        """Return the tables on another device."""
        return LevelTables(self.parents.to(device), self.down.to(device), self.up.to(device))


@dataclass(frozen=True, eq=False)
class LatticePyramid:
    """Lattices of `features`, `features / 2`, `features / 4`, ..., and the tables between them.

    Build it with `build_pyramid`. It is frozen, can be pickled, and is tied to no values: reuse it.

    Attributes:
        levels: the finest lattice first; splat, convolve and slice work on each of them.
        tables: between each level and the next, one fewer than levels.

    >>> import torch, permutohedral as ph
    >>> ph.levels.build_pyramid(torch.rand(1000, 3) * 20, num_levels=3)
    LatticePyramid(dimension=3, neighborhood_size=1, points=1000, lattice_points=[..., ..., ...], device='cpu')
    """

    levels: tuple[Lattice, ...]
    tables: tuple[LevelTables, ...]

    @property
    def dimension(self) -> int:
        return self.levels[0].dimension

    @property
    def neighborhood(self) -> Neighborhood:
        return self.levels[0].neighborhood

    @property
    def device(self) -> torch.device:
        return self.levels[0].device

    def num_bytes(self) -> int:
        """Return the memory of all tables."""
        between = [table for each in self.tables for table in (each.parents, each.down, each.up)]
        return sum(level.statistics().num_bytes for level in self.levels) + sum(table.nbytes for table in between)

    def to(self, device: torch.device | str) -> LatticePyramid:
        """Return the pyramid on another device.

        >>> import torch, permutohedral as ph
        >>> ph.levels.build_pyramid(torch.rand(10, 2), num_levels=2).to("cpu").device
        device(type='cpu')
        """
        if self.levels[0].source.bounded and torch.device(device).type != self.device.type:
            raise InputError(f"device: a bounded pyramid stays on {self.device.type!r}, got {str(device)!r}")
        levels = tuple(level.to(device) for level in self.levels)
        return LatticePyramid(levels, tuple(table.to(device) for table in self.tables))

    def __repr__(self) -> str:
        counts = [level.num_lattice_points for level in self.levels]
        return (
            f"LatticePyramid(dimension={self.dimension}, neighborhood_size={self.neighborhood.neighborhood_size}, "
            f"points={self.levels[0].source.num_points}, lattice_points={counts}, device={str(self.device)!r})"
        )


@breaks_graph
@with_storable_results
def build_pyramid(
    features: Tensor,
    num_levels: int,
    *,
    neighborhood_size: int = 1,
    batch: Tensor | None = None,
    memory_limit: int | None = None,
) -> LatticePyramid:
    """Build the lattices of `features`, `features / 2`, ..., `features / 2**(levels - 1)`, and the tables between them.

    Gradients flow from results on every level to `features` through the barycentric weights.

    Args:
        features: float32 or float64 `[points, d]`, or `[batch, points, d]` with a lattice for each item.
        num_levels: number of lattices, at least 1.
        neighborhood_size: s, the reach of the filters in steps of the level they are on.
        batch: int `[points]`, the item of each point, for ragged batches. Items never mix.
        memory_limit: bytes the tables of a level may take; default: what the device has free.

    Raises:
        InputError: features of a wrong shape, dtype or device, NaN or infinite, or too large for a key.
        MemoryLimitError: the tables would exceed `memory_limit`.

    >>> import torch, permutohedral as ph
    >>> pyramid = ph.levels.build_pyramid(torch.rand(1000, 3) * 20, num_levels=3)
    >>> fine = ph.splat(torch.rand(1000, 4), pyramid.levels[0])
    >>> ph.levels.coarsen(fine, pyramid, level=0).shape[0] == pyramid.levels[1].num_lattice_points
    True
    """
    if type(num_levels) is not int or not 1 <= num_levels <= MAX_LEVELS:
        raise InputError(f"levels must be a whole number from 1 to {MAX_LEVELS}, got {num_levels!r}")
    built = [build_lattice(features, None, neighborhood_size=neighborhood_size, batch=batch, memory_limit=memory_limit)]
    tables: list[LevelTables] = []
    limit = MemoryLimit(memory_limit, features.device)
    for _ in range(num_levels - 1):
        coarse, between = _coarsen_lattice(built[-1], limit)
        built.append(coarse)
        tables.append(between)
    return LatticePyramid(tuple(built), tuple(tables))


def _coarsen_lattice(fine: Lattice, limit: MemoryLimit) -> tuple[Lattice, LevelTables]:
    neighborhood, device, source = fine.neighborhood, fine.device, fine.source
    ops = bind(source.keys, source.barycentric)
    fine_table = lookup_table(ops, source)
    keys, parents, table, vertices, barycentric = ops.coarsen_lattice(
        source.keys, fine_table, source.vertices, source.barycentric
    )
    limit.check_neighbors(fine.num_lattice_points + 2 * keys.shape[0], neighborhood, False)
    offsets, opposite = neighborhood.offsets(device), neighborhood.opposite(device)
    neighbors = ops.find_neighbors(keys, table, keys, offsets, opposite)
    # the coarse lattice points among the fine ones
    places = torch.cat([keys[:, :1], 2 * keys[:, 1:]], dim=1)
    down = ops.find_neighbors(source.keys, fine_table, places, offsets)
    up = ops.transpose_neighbors(down, opposite, fine.num_lattice_points)
    coarse = Simplices(keys, vertices, barycentric, table, backend=ops.name)
    return replace(fine, source=coarse, target=coarse, neighbors=neighbors), LevelTables(parents, down, up)
