"""The tables of a lattice: the simplex around each point, and the lattice points at the taps of a filter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from permutohedral.errors import FeatureRangeError
from permutohedral.lattice.memory import MemoryLimit
from permutohedral.lattice.neighborhood import Neighborhood
from permutohedral.ops.backend import Backend
from permutohedral.ops.binding import TRACED
from permutohedral.ops.constants import axis_offsets, axis_opposite
from permutohedral.ops.simplices import Simplices
from permutohedral.ops.tracing import is_transformed

# features `[points, d]`, and the item of each point, None for one item
Points = tuple[Tensor, Tensor | None]
# sources, targets, neighbors, neighbors along the axes
Tables = tuple[Simplices, Simplices, Tensor, Tensor | None]


def build_tables(
    ops: Backend,
    sources: Points,
    targets: Points | None,
    neighborhood: Neighborhood,
    halo: int,
    separable: bool,
    limit: MemoryLimit,
) -> Tables:
    """Build all tables."""
    # one call finds one kind of neighbors, and may allocate before the number of lattice points is known
    if targets is None and not halo and limit.limit is None and (neighborhood.neighborhood_size == 0) == separable:
        return _index_with_neighbors(ops, *sources, neighborhood, separable, limit)
    if targets is None:
        source = target = index_points(ops, *sources)
    elif halo or separable:
        source, target = _index_jointly(ops, sources, targets)
    else:
        source, target = index_points(ops, *sources), _index_targets(ops, *targets)
    if halo:
        source, target = _grow_halo(ops, source, target, neighborhood.dimension, halo, limit)
    limit.check_neighbors(target.num_lattice_points, neighborhood, separable)
    neighbors = find_neighbors(ops, source, target, neighborhood)
    return source, target, neighbors, find_axis_neighbors(ops, source, neighborhood.dimension) if separable else None


def _index_with_neighbors(
    ops: Backend,
    features: Tensor,
    batch: Tensor | None,
    neighborhood: Neighborhood,
    separable: bool,
    limit: MemoryLimit,
) -> Tables:
    device, dimension = features.device, neighborhood.dimension
    if separable:
        taps = axis_offsets(dimension, device), axis_opposite(dimension, device)
    else:
        taps = neighborhood.offsets(device), neighborhood.opposite(device)

    def check(num_lattice_points: int) -> None:
        limit.check_neighbors(num_lattice_points, neighborhood, separable)

    *tables, neighbors = ops.index_with_neighbors(features, batch, *taps, check)
    source = Simplices(*tables, backend=ops.name)
    if separable:
        return source, source, find_neighbors(ops, source, source, neighborhood), neighbors
    return source, source, neighbors, None


def index_points(ops: Backend, features: Tensor, batch: Tensor | None) -> Simplices:
    """Return the simplices around a set of points, on lattice points of their own."""
    return Simplices(*ops.index_points(features, batch), backend=ops.name)


def _index_targets(ops: Backend, features: Tensor, batch: Tensor | None) -> Simplices:
    """Return `index_points`, with the name of the targets in errors."""
    try:
        return index_points(ops, features, batch)
    except FeatureRangeError as error:
        raise FeatureRangeError(f"target_{error.message}") from None


def _index_jointly(ops: Backend, sources: Points, targets: Points) -> tuple[Simplices, Simplices]:
    """Both point sets on one set of lattice points."""
    num = sources[0].shape[0]
    batch = None if sources[1] is None or targets[1] is None else torch.cat([sources[1], targets[1]])
    try:
        both = index_points(ops, torch.cat([sources[0], targets[0]]), batch)
    except FeatureRangeError:
        # one by one, for an error with the right row
        index_points(ops, *sources)
        _index_targets(ops, *targets)
        raise
    source = replace(both, vertices=both.vertices[:num], barycentric=both.barycentric[:num])
    return source, replace(both, vertices=both.vertices[num:], barycentric=both.barycentric[num:])


def _grow_halo(
    ops: Backend, source: Simplices, target: Simplices, dimension: int, steps: int, limit: MemoryLimit
) -> tuple[Simplices, Simplices]:
    """Insert the lattice points up to `steps` away from those of `source`, which `target` shares."""
    ring = Neighborhood(dimension, 1)
    offsets = torch.nn.functional.pad(ring.offsets(source.keys.device), (1, 0))
    keys, table = source.keys, source.table[:0]
    renumber = torch.arange(keys.shape[0], dtype=torch.int32, device=keys.device)
    for _ in range(steps):
        limit.check_halo(keys.shape[0], ring)
        # tap 0 is the center, so the first rows are the lattice points that are already there
        keys, inverse, table = ops.index_keys((keys + offsets[:, None]).flatten(0, 1))
        renumber = _renumber(renumber, inverse)
    grown = Simplices(keys, _renumber(source.vertices, renumber), source.barycentric, table, backend=ops.name)
    if target is source:
        return grown, grown
    return grown, replace(grown, vertices=_renumber(target.vertices, renumber), barycentric=target.barycentric)


def _renumber(vertices: Tensor, numbers: Tensor) -> Tensor:
    # index_select takes int32, where indexing would copy the vertices to int64 first
    rows = vertices.flatten()
    # but torch.vmap of torch 2.6 takes int64 only
    return numbers.index_select(0, rows.long() if is_transformed() else rows).view(vertices.shape)


def find_neighbors(ops: Backend, source: Simplices, target: Simplices, neighborhood: Neighborhood) -> Tensor:
    """Return the source lattice point at each tap of every target lattice point: int32 `[filter_size, targets]`."""
    if neighborhood.neighborhood_size == 0 and source.keys is target.keys:
        rows = source.num_lattice_points
        if source.keys.device.type == "cpu" and isinstance(rows, int) and not torch.compiler.is_compiling():
            # torch would wake its threads for this, whose busy-waiting delays those of the backend
            return torch.from_numpy(np.arange(rows, dtype=np.int32))[None]
        return torch.arange(rows, dtype=torch.int32, device=source.keys.device)[None]
    device = source.keys.device
    offsets, opposite = neighborhood.offsets(device), None
    if source.keys is target.keys:
        opposite = neighborhood.opposite(device)
    return ops.find_neighbors(source.keys, lookup_table(ops, source), target.keys, offsets, opposite)


def find_axis_neighbors(ops: Backend, source: Simplices, dimension: int) -> Tensor:
    """Return the neighbors one step ahead and back along each axis: int32 `[2 (d + 1), lattice_points]`."""
    along = dimension, source.keys.device
    taps = axis_offsets(*along), axis_opposite(*along)
    return ops.find_neighbors(source.keys, lookup_table(ops, source), source.keys, *taps)


def lookup_table(ops: Backend, simplices: Simplices) -> Tensor:
    """Return the lookup table if the present backend made it, else an empty one: the backend then makes its own."""
    return simplices.table if ops is TRACED or simplices.backend == ops.name else simplices.table[:0]
