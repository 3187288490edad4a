"""The tables of a lattice: which lattice points enclose each point, and which lie where the taps of a filter point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from permutohedral.memory import MemoryLimit
from permutohedral.neighborhood import Neighborhood, axis_offsets
from permutohedral.ops import operators
from permutohedral.ops.one_call import in_one_call
from permutohedral.ops.shared_tensors import row_numbers
from permutohedral.simplices import Simplices

# features `[points, d]`, and the item of each point if there are several
Points = tuple[Tensor, Tensor | None]
# sources, targets, neighbors, neighbors along the axes
Tables = tuple[Simplices, Simplices, Tensor, Tensor | None]


def index_with_neighbors(
    features: Tensor, batch: Tensor | None, neighborhood: Neighborhood, separable: bool
) -> Tables | None:
    """All tables in one call of the backend, None where it has none for that, or two kinds of neighbors are wanted."""
    if (neighborhood.size == 0) != separable:
        return None
    run = in_one_call("index_with_neighbors", features, batch)
    if run is None:
        return None
    offsets = (
        axis_offsets(neighborhood.dimension, features.device) if separable else neighborhood.offsets(features.device)
    )
    found = run(features, batch, offsets)
    if found is None:
        return None
    *tables, neighbors = found
    source = Simplices(*tables)
    if separable:
        return source, source, find_neighbors(source, source, neighborhood), neighbors
    return source, source, neighbors, None


def index_in_steps(
    sources: Points,
    targets: Points | None,
    neighborhood: Neighborhood,
    halo: int,
    separable: bool,
    limit: MemoryLimit,
) -> Tables:
    """All tables, one after another."""
    if targets is not None and (halo or separable):
        source, target = _index_jointly(sources, targets)
    else:
        source, target = _index_apart(sources, targets)
    if halo:
        source, target = _grow_halo(source, target, neighborhood.dimension, halo, limit)
    limit.check_neighbors(target.num_lattice_points, neighborhood, separable)
    neighbors = find_neighbors(source, target, neighborhood)
    return source, target, neighbors, find_axis_neighbors(source, neighborhood.dimension) if separable else None


def _index_apart(sources: Points, targets: Points | None) -> tuple[Simplices, Simplices]:
    """Each point set on lattice points of its own."""
    if targets is None:
        source = Simplices(*operators.index_points(*sources))
        return source, source
    # a GPU is waited for once
    together = in_one_call("index_both", *sources, *targets)
    if together is None:
        return Simplices(*operators.index_points(*sources)), Simplices(*operators.index_points(*targets))
    source_tables, target_tables = together(*sources, *targets)
    return Simplices(*source_tables), Simplices(*target_tables)


def _index_jointly(sources: Points, targets: Points) -> tuple[Simplices, Simplices]:
    """Both point sets on one set of lattice points."""
    num = sources[0].shape[0]
    batch = None if sources[1] is None or targets[1] is None else torch.cat([sources[1], targets[1]])
    both = Simplices(*operators.index_points(torch.cat([sources[0], targets[0]]), batch))
    source = replace(both, vertices=both.vertices[:num], barycentric=both.barycentric[:num])
    return source, replace(both, vertices=both.vertices[num:], barycentric=both.barycentric[num:])


def _grow_halo(
    source: Simplices, target: Simplices, dimension: int, steps: int, limit: MemoryLimit
) -> tuple[Simplices, Simplices]:
    """Insert the lattice points up to `steps` away from those of `source`, which `target` shares."""
    ring = Neighborhood(dimension, 1)
    offsets = torch.nn.functional.pad(ring.offsets(source.keys.device), (1, 0))
    keys, table = source.keys, source.table
    renumber = torch.arange(keys.shape[0], dtype=torch.int32, device=keys.device)
    for _ in range(steps):
        limit.check_halo(keys.shape[0], ring)
        # tap 0 is the centre, so the first rows are the lattice points that are already there
        keys, inverse, table = operators.index_keys((keys + offsets[:, None]).flatten(0, 1))
        renumber = inverse.index_select(0, renumber)
    grown = replace(source, keys=keys, vertices=_renumber(source.vertices, renumber), table=table)
    if target is source:
        return grown, grown
    return grown, replace(target, keys=keys, vertices=_renumber(target.vertices, renumber), table=table)


def _renumber(vertices: Tensor, numbers: Tensor) -> Tensor:
    # index_select takes int32, where indexing would copy the vertices to int64 first
    return numbers.index_select(0, vertices.flatten()).view(vertices.shape)


def find_neighbors(source: Simplices, target: Simplices, neighborhood: Neighborhood) -> Tensor:
    """The source lattice point at each tap from every target lattice point: int32 `[filter_size, targets]`."""
    if neighborhood.size == 0 and source.keys is target.keys:
        rows = source.num_lattice_points
        if source.keys.device.type == "cpu" and isinstance(rows, int) and not torch.compiler.is_compiling():
            # torch would wake threads of its own for this, which then keep those of the backend waiting
            return torch.from_numpy(np.arange(rows, dtype=np.int32))[None]
        return row_numbers(rows, source.keys.device)
    offsets = neighborhood.offsets(source.keys.device)
    return operators.find_neighbors(source.keys, source.table, target.keys, offsets)


def find_axis_neighbors(source: Simplices, dimension: int) -> Tensor:
    """The same one step ahead and back along each axis: int32 `[2 (d + 1), lattice_points]`."""
    return operators.find_neighbors(source.keys, source.table, source.keys, axis_offsets(dimension, source.keys.device))
