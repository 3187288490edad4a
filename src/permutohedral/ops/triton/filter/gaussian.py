"""The normalized Gaussian: splat with a channel of ones, blur, slice and divide.

Between points from their features alone (`filter_points`) the host waits for the number of lattice points while the GPU
splats, and what follows has the size that it needs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.neighborhood import axis_offsets, blur_gain
from permutohedral.ops.triton.build.host_report import HostReports
from permutohedral.ops.triton.build.lattice import LARGEST_EVEN_DIMENSION, check_range, first_attempt, order
from permutohedral.ops.triton.build.neighbors import search_packed
from permutohedral.ops.triton.filter.blur import blur
from permutohedral.ops.triton.filter.slice import slice_into
from permutohedral.ops.triton.filter.splat import splat_sums
from permutohedral.ops.triton.runtime import WIDEST_TILE, on_device

# a tile holds the mass beside all channels that are divided by it
_CHANNELS_AT_ONCE = WIDEST_TILE - 1
# rows of lattice values that are made before their number is known: enough for most lattices
_FEWEST_ROWS = 1 << 16
_POINTS_PER_ROW = 4

# vertices and weights of the sources, neighbors along the axes, vertices and weights of the targets
GaussianTables = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _filter(output: Tensor, values: Tensor, tables: GaussianTables, smallest_mass: float, sums: Tensor | None) -> None:
    """Fill `output`; `sums` are what the first channels have been splat to, if they have."""
    vertices, barycentric, axis_neighbors, target_vertices, target_barycentric = tables
    # that the mass has not been divided by the gain of the blur leaves the quotient as it is
    added_mass = smallest_mass * blur_gain(vertices.shape[1] - 1)
    for first in range(0, values.shape[1], _CHANNELS_AT_ONCE):
        some = values[:, first : first + _CHANNELS_AT_ONCE]
        if sums is None:
            sums = splat_sums(some, vertices, barycentric, axis_neighbors.shape[1], 1)
        blurred, sums = blur(sums, axis_neighbors, False), None
        part = output if some.shape[1] == output.shape[1] else output.new_empty(output.shape[0], some.shape[1])
        slice_into(part, blurred, target_vertices, target_barycentric, added_mass=added_mass)
        if part is not output:
            output[:, first : first + part.shape[1]] = part


@on_device
def filter_gaussian(
    values: Tensor,
    vertices: Tensor,
    barycentric: Tensor,
    axis_neighbors: Tensor,
    target_vertices: Tensor,
    target_barycentric: Tensor,
    smallest_mass: float,
) -> Tensor:
    output = values.new_empty(target_vertices.shape[0], values.shape[1])
    if values.shape[0] == 0 or output.numel() == 0:
        return output.zero_()
    tables = vertices, barycentric, axis_neighbors, target_vertices, target_barycentric
    _filter(output, values, tables, smallest_mass, None)
    return output


@on_device
def filter_points(values: Tensor, features: Tensor, batch: Tensor | None, smallest_mass: float) -> Tensor | None:
    """`filter_gaussian` between the points themselves, None if the lattice must be built first: see `Primitives`."""
    points, dimension = features.shape
    if dimension > LARGEST_EVEN_DIMENSION or torch.are_deterministic_algorithms_enabled():
        return None
    attempt = first_attempt(features, batch)
    rows = max(_FEWEST_ROWS, points // _POINTS_PER_ROW)
    with HostReports(features.device) as reports:
        insertion = attempt.start(reports.words[0])
        # while the GPU does this, the host reads the report and prepares the rest
        splatted = splat_sums(values[:, :_CHANNELS_AT_ONCE], insertion.vertices, insertion.barycentric, rows, 1)
        told = reports.read(0)
    check_range(features, told)
    if told.no_room or told.full:
        return None
    ordered = order(insertion, told)
    num = told.num_lattice_points
    sums = splatted[:num] if ordered is insertion and num <= rows else None
    offsets = axis_offsets(dimension, features.device)
    neighbors = search_packed(insertion.table, ordered.codes, num, offsets, True)
    corners = ordered.vertices, ordered.barycentric
    output = values.new_empty(values.shape)
    _filter(output, values, (*corners, neighbors, *corners), smallest_mass, sums)
    return output
