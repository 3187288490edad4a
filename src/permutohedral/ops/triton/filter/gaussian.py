"""The normalized Gaussian: splat with a channel of ones, blur, slice and divide.

Between points from their features alone (`filter_points`) the GPU is given all steps at once, with room for as many
lattice points as most point sets need; it reads their true number itself. The host then learns whether that was enough.
Of many points it is given the splat, and the host waits behind that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.neighborhood import axis_offsets, blur_gain
from permutohedral.ops.guided_primitives import GaussianTables
from permutohedral.ops.triton.build.host_report import HostReports, report
from permutohedral.ops.triton.build.insertion import insert_points
from permutohedral.ops.triton.build.lattice import (
    LARGEST_EVEN_DIMENSION,
    MOST_POINTS_AHEAD,
    Attempt,
    check_range,
    expected_rows,
    first_attempt,
    order,
)
from permutohedral.ops.triton.build.neighbors import search_counted, search_packed
from permutohedral.ops.triton.build.packed_table import PackedTable
from permutohedral.ops.triton.build.picture_features import write_features
from permutohedral.ops.triton.filter.blur import blur_rows
from permutohedral.ops.triton.filter.slice import slice_into
from permutohedral.ops.triton.filter.splat import splat_sums
from permutohedral.ops.triton.runtime import WIDEST_TILE, on_device

# a tile holds the mass beside all channels that are divided by it
_CHANNELS_AT_ONCE = WIDEST_TILE - 1


def _filter(
    output: Tensor,
    values: Tensor,
    tables: GaussianTables,
    smallest_mass: float,
    table: Tensor | None = None,
    sums: Tensor | None = None,
) -> None:
    """Fill `output`.

    Args:
        output, values, tables, smallest_mass: see `filter_gaussian`.
        table: from which the number of lattice points is read, which is at most that of the rows.
        sums: what the first channels have been splat to, if they have.
    """
    vertices, barycentric, axis_neighbors, target_vertices, target_barycentric = tables
    # that the mass has not been divided by the gain of the blur leaves the quotient as it is
    added_mass = smallest_mass * blur_gain(vertices.shape[1] - 1)
    for first in range(0, values.shape[1], _CHANNELS_AT_ONCE):
        some = _some_channels(values, first)
        if sums is None:
            sums = splat_sums(some, vertices, barycentric, axis_neighbors.shape[1], 1)
        blurred, sums = blur_rows(sums, axis_neighbors, False, table), None
        part = output if some is values else output.new_empty(output.shape[0], some.shape[1])
        slice_into(part, blurred, target_vertices, target_barycentric, added_mass=added_mass)
        if part is not output:
            output[:, first : first + part.shape[1]] = part


def _some_channels(values: Tensor, first: int) -> Tensor:
    """As many channels as a tile holds."""
    return values if values.shape[1] <= _CHANNELS_AT_ONCE else values[:, first : first + _CHANNELS_AT_ONCE]


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
    tables = vertices, barycentric, axis_neighbors.contiguous(), target_vertices, target_barycentric
    _filter(output, values, tables, smallest_mass)
    return output


@on_device
def filter_points(values: Tensor, features: Tensor, batch: Tensor | None, smallest_mass: float) -> Tensor | None:
    """`filter_gaussian` between the points themselves: see `FusedPrimitives`."""
    if features.shape[1] > LARGEST_EVEN_DIMENSION or torch.are_deterministic_algorithms_enabled():
        return None
    return _filter_points(values, first_attempt(features, batch), smallest_mass)


def _filter_points(
    values: Tensor, attempt: Attempt, smallest_mass: float, table: PackedTable | None = None
) -> Tensor | None:
    """The same on the current device, with an empty table if there is one.

    The values may also be a contiguous picture, `[channels, height, width]`.
    """
    features, batch, *_ = attempt
    points, dimension = features.shape
    # all that can wait is left until the GPU is busy
    insertion = insert_points(*attempt, table)
    with HostReports(features.device) as reports:
        telling = attempt.telling(reports.words[0])
        if values.dim() == 3:
            values = values.as_strided((points, values.shape[0]), (1, points))
        rows = expected_rows(points, dimension)
        at_once, sums, offsets = points <= MOST_POINTS_AHEAD, None, axis_offsets(dimension, features.device)
        corners = insertion.vertices, insertion.barycentric
        # pictures have their channels one after another, and get them back so
        output = torch.empty_like(values) if values.stride() == (1, points) else values.new_empty(values.shape)
        # before the host looks: most lattices have no more rows
        if at_once:
            neighbors = search_counted(insertion.table, insertion.codes, rows, offsets, telling)
            _filter(output, values, (*corners, neighbors, *corners), smallest_mass, insertion.table.storage)
        else:
            report(insertion.table, telling)
            sums = splat_sums(_some_channels(values, 0), *corners, rows, 1)
        told = reports.read(0)
    check_range(features, batch, told)
    if told.no_room or told.full:
        return None
    ordered, num = order(insertion, told), told.num_lattice_points
    fits = ordered is insertion and num <= rows
    if not (fits and at_once):
        corners = ordered.vertices, ordered.barycentric
        neighbors = search_packed(ordered.table, ordered.codes, num, offsets, True)
        known = None if sums is None or not fits else sums[:num]
        _filter(output, values, (*corners, neighbors, *corners), smallest_mass, sums=known)
    return output


@on_device
def filter_picture(
    image: Tensor, guide: Tensor, sigma_space: float, sigma_range: float, smallest_mass: float
) -> Tensor | None:
    """`filter_points` of the pixels of one picture, over position and color: see `FusedPrimitives`."""
    channels, height, width = guide.shape
    if channels + 2 > LARGEST_EVEN_DIMENSION or not image.is_contiguous():
        return None
    if torch.are_deterministic_algorithms_enabled():
        return None
    features = torch.empty(height * width, 2 + channels, dtype=torch.float32, device=guide.device)
    attempt = first_attempt(features, None)
    table = PackedTable.uncleared(attempt.capacity, guide.device)
    write_features(features, guide, sigma_space, sigma_range, table.storage)
    filtered = _filter_points(image, attempt, smallest_mass, table)
    return None if filtered is None else filtered.as_strided(image.shape, image.stride())
