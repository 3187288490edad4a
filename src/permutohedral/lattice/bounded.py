"""Lattices and pyramids of fixed size, built without waiting for the GPU, so that CUDA graphs can capture them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.neighborhood import neighborhood_of
from permutohedral.lattice.pyramid import MAX_LEVELS, LatticePyramid, LevelTables
from permutohedral.lattice.tensors import check_count, check_tensor
from permutohedral.ops.backend import Backend
from permutohedral.ops.binding import bind
from permutohedral.ops.constants import axis_offsets, axis_opposite
from permutohedral.ops.reference import coarse_shares, coarsen_vertices
from permutohedral.ops.simplices import Simplices


def build_bounded_lattice(
    features: Tensor, max_lattice_points: int, *, neighborhood_size: int = 1, separable: bool = False
) -> tuple[Lattice, Tensor]:
    """Build a lattice on a GPU without waiting for it, for steps that are captured as a CUDA graph.

    The lattice has `max_lattice_points` rows; those after the last lattice point are unused. The second result shows
    whether they were enough, and also reports features that are not finite or exceed some thousand units.

    Args:
        features: float32 or float64 `[points, d]` or `[batch, points, d]`, at least one point; d at most 7.
        max_lattice_points: room for the lattice points of all items together.
        neighborhood_size: s, the reach of the filters in lattice steps.
        separable: prepare for `gaussian_filter`'s separable method.

    Returns:
        The lattice, and int64 `[1]` on the GPU, the number of lattice points there are: if it is larger than
        `max_lattice_points`, results on this lattice mean nothing.

    Raises:
        InputError: features of a wrong shape or dtype, or not on a GPU.

    >>> import torch, permutohedral as ph
    >>> if torch.cuda.is_available():
    ...     features = 5 * torch.rand(1000, 2, device="cuda")
    ...     lattice, number = ph.lattice.build_bounded_lattice(features, 500)
    ...     assert int(number) <= lattice.num_lattice_points == 500
    """
    items, points, dimension = _check_features(features)
    check_count("max_lattice_points", max_lattice_points, least=1)
    neighborhood = neighborhood_of(dimension, neighborhood_size)
    batch = None
    if items is not None:
        # not cached: a graph keeps the tensors that are made while it is captured
        item = torch.arange(items, dtype=torch.int32, device=features.device)
        batch = item[:, None].expand(items, points).reshape(-1)
    ops = bind(features)
    *simplices, number = ops.index_points_bounded(features.reshape(-1, dimension), batch, max_lattice_points)
    source = Simplices(*simplices, bounded=True, backend=ops.name)
    device, along = features.device, None
    if separable:
        taps = axis_offsets(dimension, device), axis_opposite(dimension, device)
        along = _find_neighbors(ops, source, source.keys, *taps)
    lattice = Lattice(
        dimension=dimension,
        neighborhood_size=neighborhood_size,
        source=source,
        target=source,
        neighbors=_find_neighbors(
            ops, source, source.keys, neighborhood.offsets(device), neighborhood.opposite(device)
        ),
        axis_neighbors=along,
        batch_size=items,
        points_per_item=(points, points),
    )
    return lattice, number


def build_bounded_pyramid(
    features: Tensor, max_lattice_points: Sequence[int], *, neighborhood_size: int = 1
) -> tuple[LatticePyramid, Tensor]:
    """Build a pyramid on a GPU without waiting for it, for steps that are captured as a CUDA graph.

    Level l has `max_lattice_points[l]` rows; those after its last lattice point are unused. Operations between levels
    and normalizations leave them out.

    Args:
        features: float32 or float64 `[points, d]` or `[batch, points, d]`, at least one point; d at most 7.
        max_lattice_points: room for the lattice points of all items together, for each level, the finest first.
        neighborhood_size: s, the reach of the filters in steps of the level they are on.

    Returns:
        The pyramid, and int64 `[levels]` on the GPU, the number of lattice points of each level: if one is larger than
        its `max_lattice_points`, results on this pyramid mean nothing, and levels after it may have more.

    Raises:
        InputError: features of a wrong shape or dtype, or not on a GPU.

    >>> import torch, permutohedral as ph
    >>> if torch.cuda.is_available():
    ...     features = 5 * torch.rand(1000, 2, device="cuda")
    ...     pyramid, numbers = ph.levels.build_bounded_pyramid(features, [500, 200])
    ...     assert [level.num_lattice_points for level in pyramid.levels] == [500, 200]
    """
    if not isinstance(max_lattice_points, Sequence) or not 1 <= len(max_lattice_points) <= MAX_LEVELS:
        raise InputError(
            f"max_lattice_points must have a number for each of 1 to {MAX_LEVELS} levels, such as [60_000, 20_000], "
            f"got {max_lattice_points!r}"
        )
    for rows in max_lattice_points:
        check_count("max_lattice_points", rows, least=1)
    finest, number = build_bounded_lattice(features, max_lattice_points[0], neighborhood_size=neighborhood_size)
    levels, numbers, tables = [finest], [number], []
    for rows in max_lattice_points[1:]:
        coarse, between, number = _coarsen_bounded(levels[-1], rows)
        levels.append(coarse)
        tables.append(between)
        numbers.append(number)
    return LatticePyramid(tuple(levels), tuple(tables)), torch.cat(numbers)


def _coarsen_bounded(fine: Lattice, rows: int) -> tuple[Lattice, LevelTables, Tensor]:
    """Return the next coarser level with this many rows, the tables between, and its number of lattice points."""
    source, device = fine.source, fine.device
    offsets, opposite = fine.neighborhood.offsets(device), fine.neighborhood.opposite(device)
    ops = bind(source.keys, source.barycentric)
    keys, parents, table, number = ops.coarsen_keys_bounded(source.keys, source.table, rows)
    # in case of overflow some corners are missing: any row will do
    inside = parents.clamp(max=rows - 1)
    vertices = coarsen_vertices(source.vertices, keys, inside).clamp_(min=0)
    # linear in the weights, so that gradients flow to the features
    shares = coarse_shares(keys, inside, source.barycentric.detach())
    barycentric = ops.slice(shares, source.vertices, source.barycentric)
    coarse = Simplices(keys, vertices, barycentric, table, bounded=True, backend=source.backend)
    # the coarse lattice points among the fine ones
    places = torch.cat([keys[:, :1], 2 * keys[:, 1:]], dim=1)
    down = _find_neighbors(ops, source, places, offsets)
    up = ops.transpose_neighbors(down, opposite, fine.num_lattice_points)
    neighbors = _find_neighbors(ops, coarse, keys, offsets, opposite)
    return replace(fine, source=coarse, target=coarse, neighbors=neighbors), LevelTables(parents, down, up), number


def _find_neighbors(
    ops: Backend, source: Simplices, target_keys: Tensor, offsets: Tensor, opposite: Tensor | None = None
) -> Tensor:
    found = ops.find_neighbors(source.keys, source.table, target_keys, offsets, opposite)
    # the table also holds the lattice points beyond the last row
    return found.masked_fill_(found >= source.num_lattice_points, -1)


def can_be_bounded(features: Tensor) -> bool:
    """Return whether bounded lattices can be built on the device of the features.

    >>> can_be_bounded(torch.zeros(9, 2))
    False
    """
    return bind(features).has_bounded


def _check_features(features: Tensor) -> tuple[int | None, int, int]:
    """Return the number of items or None, of points, and the dimension; raise if a lattice cannot be built."""
    check_tensor("features", features)
    if features.dim() not in (2, 3) or not 1 <= features.shape[-1] <= 7 or features.numel() == 0:
        raise InputError(
            "features must be [points, dimension] or [batch, points, dimension] with points in 1 to 7 dimensions, got "
            f"shape {tuple(features.shape)}"
        )
    if features.dtype not in (torch.float32, torch.float64):
        raise InputError(f"features must be float32 or float64, got {features.dtype}; convert with .float()")
    if not can_be_bounded(features):
        raise InputError(
            f"a bounded lattice is for GPUs, got features on {features.device}; build_lattice does not wait there"
        )
    items = features.shape[0] if features.dim() == 3 else None
    return items, features.shape[-2], features.shape[-1]
