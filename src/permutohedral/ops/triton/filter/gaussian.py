"""The normalized Gaussian: splat with a channel of ones, blur, slice and divide.

`filter_points` filters between points given by their features. It queues all steps before the host waits for the number
of lattice points, with room for as many as most point sets need. For many points it queues the splat only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.ops.constants import axis_offsets, axis_opposite
from permutohedral.ops.contract import SMALLEST_MASS, blur_gain
from permutohedral.ops.triton.build.hash_table import PackedTable
from permutohedral.ops.triton.build.lattice import (
    LARGEST_EVEN_DIMENSION,
    MOST_POINTS_AHEAD,
    Insertion,
    expected_rows,
    finish,
    insert_with_retry,
)
from permutohedral.ops.triton.build.neighbors import search_into, search_packed
from permutohedral.ops.triton.filter.blur import blur_rows
from permutohedral.ops.triton.filter.slice import slice_into
from permutohedral.ops.triton.filter.splat import splat_sums
from permutohedral.ops.triton.kernel import WIDEST_TILE, on_device

# a tile holds the mass next to all channels that are divided by it
_MOST_CHANNELS = WIDEST_TILE - 1
# vertices and weights of the sources, neighbors along the axes, vertices and weights of the targets
GaussianTables = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _filter(
    output: Tensor,
    values: Tensor,
    tables: GaussianTables,
    table: Tensor | None = None,
    sums: Tensor | None = None,
) -> None:
    """Fill `output`.

    Args:
        output, values, tables: see `filter_gaussian`.
        table: holds the number of lattice points, which is at most the number of rows.
        sums: the splatted first channels, if they are known.
    """
    vertices, barycentric, axis_neighbors, target_vertices, target_barycentric = tables
    # the gain of the blur cancels in the quotient
    added_mass = SMALLEST_MASS * blur_gain(vertices.shape[1] - 1)
    for first in range(0, values.shape[1], _MOST_CHANNELS):
        some = _some_channels(values, first)
        if sums is None:
            sums = splat_sums(some, vertices, barycentric, axis_neighbors.shape[1], 1)
        blurred, sums = blur_rows(sums, axis_neighbors, False, table), None
        part = output if some is values else output.new_empty(output.shape[0], some.shape[1])
        slice_into(part, blurred, target_vertices, target_barycentric, added_mass=added_mass)
        if part is not output:
            output[:, first : first + part.shape[1]] = part


def _some_channels(values: Tensor, first: int) -> Tensor:
    """Return as many channels as a tile holds."""
    return values if values.shape[1] <= _MOST_CHANNELS else values[:, first : first + _MOST_CHANNELS]


@on_device
def filter_gaussian(
    values: Tensor,
    vertices: Tensor,
    barycentric: Tensor,
    axis_neighbors: Tensor,
    target_vertices: Tensor,
    target_barycentric: Tensor,
) -> Tensor:
    output = values.new_empty(target_vertices.shape[0], values.shape[1])
    if values.shape[0] == 0 or output.numel() == 0:
        return output.zero_()
    tables = vertices, barycentric, axis_neighbors.contiguous(), target_vertices, target_barycentric
    _filter(output, values, tables)
    return output


def points_blocker(dimension: int) -> str | None:
    """Return the reason that `filter_points` cannot run, or None."""
    if dimension > LARGEST_EVEN_DIMENSION:
        return f"the kernels take at most {LARGEST_EVEN_DIMENSION} dimensions, got {dimension}"
    if torch.are_deterministic_algorithms_enabled():
        return "atomic additions have no fixed order, and deterministic algorithms are enabled"
    return None


@on_device
def filter_points(values: Tensor, features: Tensor, batch: Tensor | None) -> Tensor | None:
    """Run `filter_points`; None if keys do not fit one word."""
    points, d = features.shape
    rows, is_small = expected_rows(points, d), points <= MOST_POINTS_AHEAD

    def filter_ahead(insertion: Insertion) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the output, the offsets of the axes, and the sums of the first channels of many points."""
        vertices, barycentric = insertion.vertices, insertion.barycentric
        # images have one channel after another in memory, and so does their result
        output = torch.empty_like(values) if values.stride() == (1, points) else values.new_empty(values.shape)
        offsets = axis_offsets(d, features.device)
        if not is_small or insertion.by_range:
            return output, offsets, splat_sums(_some_channels(values, 0), vertices, barycentric, rows, 1)
        neighbors = torch.empty(offsets.shape[0], rows, dtype=torch.int32, device=features.device)
        search_into(neighbors, insertion.table, insertion.codes, offsets, True)
        tables = vertices, barycentric, neighbors, vertices, barycentric
        _filter(output, values, tables, insertion.table.storage)
        return output, offsets, None

    built = insert_with_retry(features, batch, filter_ahead)
    if built is None:
        return None
    insertion, number, ahead = built
    assert ahead is not None
    output, offsets, sums = ahead
    if number > rows or not is_small or insertion.by_range:
        vertices, barycentric = insertion.vertices, insertion.barycentric
        table, targets = insertion.table, insertion.codes
        if insertion.by_range:
            targets, _, _, storage = finish(insertion, number)
            table = PackedTable(storage)
        neighbors = search_packed(table, targets, number, offsets, axis_opposite(d, features.device))
        known = None if sums is None or number > rows else sums[:number]
        _filter(output, values, (vertices, barycentric, neighbors, vertices, barycentric), sums=known)
    return output
