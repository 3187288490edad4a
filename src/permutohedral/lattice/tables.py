"""The tables of a lattice: the simplex around each point, and the lattice points at the taps of a filter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from permutohedral.errors import FeatureRangeError
from permutohedral.lattice.memory import MemoryLimit
from permutohedral.lattice.neighborhood import Neighborhood
from permutohedral.ops import operators
from permutohedral.ops.composite import index_with_neighbors
from permutohedral.ops.constants import axis_offsets
from permutohedral.ops.contract import Declined
from permutohedral.ops.dispatch import backend_name
from permutohedral.ops.simplices import Simplices

# features `[points, d]`, and the item of each point, None for one item
Points = tuple[Tensor, Tensor | None]
# sources, targets, neighbors, neighbors along the axes
Tables = tuple[Simplices, Simplices, Tensor, Tensor | None]


def build_tables(
    sources: Points,
    targets: Points | None,
    neighborhood: Neighborhood,
    halo: int,
    separable: bool,
    limit: MemoryLimit,
) -> Tables:
    """Build all tables: in one call of the backend if it can, else one after another."""
    # one call finds one kind of neighbors, and allocates before the number of lattice points is known
    if targets is None and not halo and limit.limit is None and (neighborhood.size == 0) == separable:
        found = _build_fused(*sources, neighborhood, separable)
        if not isinstance(found, Declined):
            return found
    if targets is None:
        source = target = index_points(*sources)
    elif halo or separable:
        source, target = _index_jointly(sources, targets)
    else:
        source, target = index_points(*sources), _index_targets(*targets)
    if halo:
        source, target = _grow_halo(source, target, neighborhood.dimension, halo, limit)
    limit.check_neighbors(target.num_lattice_points, neighborhood, separable)
    neighbors = find_neighbors(source, target, neighborhood)
    return source, target, neighbors, find_axis_neighbors(source, neighborhood.dimension) if separable else None


def _build_fused(
    features: Tensor, batch: Tensor | None, neighborhood: Neighborhood, separable: bool
) -> Tables | Declined:
    def offsets() -> tuple[Tensor]:
        dimension, device = neighborhood.dimension, features.device
        return (axis_offsets(dimension, device) if separable else neighborhood.offsets(device),)

    found = index_with_neighbors.fuse((features, batch), offsets)
    if isinstance(found, Declined):
        return found
    *tables, neighbors = found
    source = Simplices(*tables, backend=backend_name(features))
    if separable:
        return source, source, find_neighbors(source, source, neighborhood), neighbors
    return source, source, neighbors, None


def index_points(features: Tensor, batch: Tensor | None) -> Simplices:
    """Return the simplices around a set of points, on lattice points of their own."""
    return Simplices(*operators.index_points(features, batch), backend=backend_name(features))


def _index_targets(features: Tensor, batch: Tensor | None) -> Simplices:
    """Return `index_points`, with the name of the targets in errors."""
    try:
        return index_points(features, batch)
    except FeatureRangeError as error:
        raise FeatureRangeError(f"target_{error.message}") from None


def _index_jointly(sources: Points, targets: Points) -> tuple[Simplices, Simplices]:
    """Both point sets on one set of lattice points."""
    num = sources[0].shape[0]
    batch = None if sources[1] is None or targets[1] is None else torch.cat([sources[1], targets[1]])
    try:
        both = index_points(torch.cat([sources[0], targets[0]]), batch)
    except FeatureRangeError:
        # one by one, for an error with the right row
        index_points(*sources)
        _index_targets(*targets)
        raise
    source = replace(both, vertices=both.vertices[:num], barycentric=both.barycentric[:num])
    return source, replace(both, vertices=both.vertices[num:], barycentric=both.barycentric[num:])


def _grow_halo(
    source: Simplices, target: Simplices, dimension: int, steps: int, limit: MemoryLimit
) -> tuple[Simplices, Simplices]:
    """Insert the lattice points up to `steps` away from those of `source`, which `target` shares."""
    ring = Neighborhood(dimension, 1)
    offsets = torch.nn.functional.pad(ring.offsets(source.keys.device), (1, 0))
    keys, table = source.keys, source.table[:0]
    renumber = torch.arange(keys.shape[0], dtype=torch.int32, device=keys.device)
    for _ in range(steps):
        limit.check_halo(keys.shape[0], ring)
        # tap 0 is the center, so the first rows are the lattice points that are already there
        keys, inverse, table = operators.index_keys((keys + offsets[:, None]).flatten(0, 1))
        renumber = inverse.index_select(0, renumber)
    grown = Simplices(keys, _renumber(source.vertices, renumber), source.barycentric, table, backend=backend_name(keys))
    if target is source:
        return grown, grown
    return grown, replace(grown, vertices=_renumber(target.vertices, renumber), barycentric=target.barycentric)


def _renumber(vertices: Tensor, numbers: Tensor) -> Tensor:
    # index_select takes int32, where indexing would copy the vertices to int64 first
    return numbers.index_select(0, vertices.flatten()).view(vertices.shape)


def find_neighbors(source: Simplices, target: Simplices, neighborhood: Neighborhood) -> Tensor:
    """Return the source lattice point at each tap of every target lattice point: int32 `[filter_size, targets]`."""
    if neighborhood.size == 0 and source.keys is target.keys:
        rows = source.num_lattice_points
        if source.keys.device.type == "cpu" and isinstance(rows, int) and not torch.compiler.is_compiling():
            # torch would wake its threads for this, whose busy-waiting delays those of the backend
            return torch.from_numpy(np.arange(rows, dtype=np.int32))[None]
        return torch.arange(rows, dtype=torch.int32, device=source.keys.device)[None]
    offsets = neighborhood.offsets(source.keys.device)
    return operators.find_neighbors(source.keys, lookup_table(source), target.keys, offsets)


def find_axis_neighbors(source: Simplices, dimension: int) -> Tensor:
    """Return the neighbors one step ahead and back along each axis: int32 `[2 (d + 1), lattice_points]`."""
    offsets = axis_offsets(dimension, source.keys.device)
    return operators.find_neighbors(source.keys, lookup_table(source), source.keys, offsets)


def lookup_table(simplices: Simplices) -> Tensor:
    """Return the lookup table if the present backend made it, else an empty one: the backend then makes its own."""
    if torch.compiler.is_compiling() or simplices.backend == backend_name(simplices.keys):
        return simplices.table
    return simplices.table[:0]
