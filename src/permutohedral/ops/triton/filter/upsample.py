"""Upsampling along a guide: coarse samples splat, blurred and sliced, and what they lack added in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.neighborhood import axis_offsets, blur_gain
from permutohedral.ops.guided_primitives import CoarseGrid, GaussianTables
from permutohedral.ops.triton.build.host_report import HostReports, Telling
from permutohedral.ops.triton.build.insertion import insert_points
from permutohedral.ops.triton.build.lattice import LARGEST_EVEN_DIMENSION, check_range, first_attempt, order
from permutohedral.ops.triton.build.neighbors import search_counted, search_packed
from permutohedral.ops.triton.build.packed_table import FULL
from permutohedral.ops.triton.filter.blur import blur_rows
from permutohedral.ops.triton.filter.cells import find_missing, fits, split_sample, takes, three_axes, write_features
from permutohedral.ops.triton.filter.splat import splat_sums
from permutohedral.ops.triton.runtime import WIDEST_TILE, Bound, bind, cdiv, on_device, tile

# rows of lattice values that are made before their number is known, for two points: enough for most pictures
_ROWS_OF_TWO_POINTS = 3


@triton.jit
def between(place, coarse, fine, POINT: tl.constexpr, DTYPE: tl.constexpr):
    """The coarse samples below and above fine ones along an axis, and the share of the one above."""
    # the middle of a cell, or its first sample
    middle: tl.constexpr = 0.0 if POINT else 0.5
    along = (place.to(DTYPE) + middle) * coarse / fine - middle
    along = tl.minimum(tl.maximum(along, 0.0), (coarse - 1).to(DTYPE))
    low = along.to(tl.int32)
    return low, tl.minimum(low + 1, coarse - 1), along - low.to(DTYPE)


@triton.jit
def interpolate(
    rows, point, wanted, channel, depth, height, width, fine_depth, fine_height, fine_width,
    POINT: tl.constexpr, CHANNELS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """`[BLOCK, BLOCK_C]`: coarse samples `rows` interpolated linearly at the points that are `wanted`."""
    fine = fine_depth.to(tl.int64) * fine_height * fine_width
    item = point // fine
    z, y, x = split_sample((point % fine).to(tl.int32), fine_height, fine_width)
    low_z, high_z, part_z = between(z, depth, fine_depth, POINT, DTYPE)
    low_y, high_y, part_y = between(y, height, fine_height, POINT, DTYPE)
    low_x, high_x, part_x = between(x, width, fine_width, POINT, DTYPE)
    total = tl.zeros([point.shape[0], channel.shape[0]], DTYPE)
    for corner in tl.static_range(8):
        here_z = high_z if corner & 4 else low_z
        here_y = high_y if corner & 2 else low_y
        here_x = high_x if corner & 1 else low_x
        weight = part_z if corner & 4 else 1.0 - part_z
        weight *= part_y if corner & 2 else 1.0 - part_y
        weight *= part_x if corner & 1 else 1.0 - part_x
        row = ((item * depth + here_z) * height + here_y) * width + here_x
        real = (wanted & (weight > 0.0))[:, None] & (channel < CHANNELS)[None, :]
        value = tl.load(rows + row[:, None] * CHANNELS + channel[None, :], mask=real, other=0.0)
        total += weight[:, None] * value.to(DTYPE)
    return total


@triton.jit(do_not_specialize=[
    "num_points", "num_rows", "first", "vertex_corner_stride", "weight_corner_stride", "depth", "height", "width",
    "fine_depth", "fine_height", "fine_width", "stride", "channel_stride",
])  # fmt: skip
def average_kernel(
    lattice_values, vertices, barycentric, rows, mass, maps, num_points, num_rows, first, vertex_corner_stride,
    weight_corner_stride, depth, height, width, fine_depth, fine_height, fine_width, stride, channel_stride,
    FIRST: tl.constexpr, POINT: tl.constexpr, LEAST_MASS: tl.constexpr, CHANNELS: tl.constexpr, CORNERS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Means of blurred coarse samples at fine ones, whose corners begin at the row `first`.

    Where less than LEAST_MASS reaches, they are interpolated, the more the less it is.
    The FIRST finds the mass in the channel after the last, and keeps it; further ones are added to the maps.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    channel = tl.arange(0, BLOCK_C)
    dtype: tl.constexpr = mass.dtype.element_ty
    width_of_rows: tl.constexpr = CHANNELS + 1 if FIRST else CHANNELS
    real = inside[:, None] & (channel < width_of_rows)[None, :]
    total = tl.zeros([BLOCK, BLOCK_C], dtype)
    for corner in tl.static_range(CORNERS):
        vertex = tl.load(vertices + first + point + corner * vertex_corner_stride, mask=inside, other=0)
        weight = tl.load(barycentric + first + point + corner * weight_corner_stride, mask=inside, other=0.0)
        place = lattice_values + vertex.to(tl.int64)[:, None] * width_of_rows + channel[None, :]
        total += weight[:, None] * tl.load(place, mask=real & (vertex < num_rows)[:, None], other=0.0)
    if FIRST:
        own = tl.sum(tl.where((channel == CHANNELS)[None, :], total, 0.0), axis=1)
        tl.store(mass + point, own, mask=inside)
    else:
        own = tl.load(mass + point, mask=inside, other=1.0)
    least = tl.full([1], LEAST_MASS, dtype)
    unreached = inside & (own < least)
    mean = total / tl.maximum(own, least)[:, None]
    if tl.max(unreached.to(tl.int32), axis=0) > 0:
        among = interpolate(
            rows, point, unreached, channel, depth, height, width, fine_depth, fine_height, fine_width, POINT, CHANNELS,
            dtype,
        )  # fmt: skip
        mean += tl.maximum(1.0 - own / least, 0.0)[:, None] * among
    fine = fine_depth.to(tl.int64) * fine_height * fine_width
    start = (point // fine) * fine * CHANNELS + (point % fine) * stride
    place = maps + start[:, None] + channel.to(tl.int64)[None, :] * channel_stride
    kept = inside[:, None] & (channel < CHANNELS)[None, :]
    if not FIRST:
        mean += tl.load(place, mask=kept, other=0.0)
    tl.store(place, mean, mask=kept)


@cache
def _bind_average(first: bool, point: bool, least_mass: float, channels: int, corners: int) -> Bound:
    shape = tile(channels + 1 if first else channels)
    return Bound(
        average_kernel, FIRST=first, POINT=point, LEAST_MASS=least_mass, CHANNELS=channels, CORNERS=corners, **shape
    )


def _upsample(
    rows: Tensor,
    tables: GaussianTables,
    first_target: int,
    grid: CoarseGrid,
    how: tuple[float, int, bool],
    table: Tensor | None = None,
) -> Tensor:
    """See `FusedPrimitives.upsample_rows`.

    Args:
        rows, tables, grid: see there.
        first_target: where the targets begin in their tables.
        how: least mass, steps, planes.
        table: from which the number of lattice points is read, which is at most that of the rows.
    """
    (vertices, barycentric, axis_neighbors, target_vertices, target_barycentric), (least_mass, steps, planes) = (
        tables,
        how,
    )
    points, channels, number = len(target_vertices) - first_target, rows.shape[1], axis_neighbors.shape[1]
    shape = (points // grid.samples, channels, grid.samples) if planes else (points, channels)
    maps, mass = rows.new_empty(shape), rows.new_empty(points)
    strides = (1, grid.samples) if planes else (channels, 1)
    corner_strides = target_vertices.stride(1), target_barycentric.stride(1)
    sizes = points, number, first_target, *corner_strides, *three_axes(grid.coarse), *three_axes(grid.fine), *strides
    least = least_mass * blur_gain(vertices.shape[1] - 1)
    for step in range(1 + steps):
        first = step == 0
        given = rows if first else find_missing(rows, maps, grid, planes)
        sums = splat_sums(given, vertices, barycentric, number, 1 if first else 0)
        blurred = blur_rows(sums, axis_neighbors, False, table)
        bound = _bind_average(first, grid.point, least, channels, vertices.shape[1])
        tensors = blurred, target_vertices, target_barycentric, given, mass, maps
        bound(bound.tiles(points, 1), tensors, sizes)
    return maps


@on_device
def upsample_rows(
    rows: Tensor, tables: GaussianTables, grid: CoarseGrid, least_mass: float, steps: int, planes: bool
) -> Tensor | None:
    _, barycentric, _, target_vertices, target_barycentric = tables
    along = target_vertices.stride(0), target_barycentric.stride(0)
    if rows.dtype != barycentric.dtype or rows.shape[1] >= WIDEST_TILE or along != (1, 1) or not fits(grid):
        return None
    if rows.numel() == 0 or len(target_vertices) == 0:
        return None
    return _upsample(rows.contiguous(), tables, 0, grid, (least_mass, steps, planes))


@triton.jit(do_not_specialize=["number"])
def refuse_kernel(values, table, number, BLOCK: tl.constexpr):
    """Have the table refused as a full one if a value is not finite."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + place, mask=place < number, other=0.0)
    # infinity less itself is not zero either
    if tl.max((value - value != 0.0).to(tl.int32), axis=0) > 0:
        tl.store(table + FULL, 1)


_refuse = bind(refuse_kernel, BLOCK=1024)


@on_device
def upsample_map(
    rows: Tensor, guide: Tensor, grid: CoarseGrid, sigmas: Sequence[float], least_mass: float, steps: int, planes: bool
) -> Tensor | None:
    d, deterministic = len(sigmas), torch.are_deterministic_algorithms_enabled()
    if not takes(guide, grid, sigmas) or guide.numel() != grid.samples * (d - len(grid.fine)) or deterministic:
        return None
    if rows.dtype != torch.float32 or not 0 < rows.shape[1] < WIDEST_TILE or d > LARGEST_EVEN_DIMENSION:
        return None
    rows, guide, cells, how = rows.contiguous(), guide.contiguous(), grid.cells, (least_mass, steps, planes)
    features = torch.empty(cells + grid.samples, d, dtype=torch.float32, device=guide.device)
    write_features(features, 0, guide, grid, sigmas)
    write_features(features, cells, guide, CoarseGrid(grid.fine, grid.fine, True), sigmas)
    attempt, offsets = first_attempt(features, None), axis_offsets(d, features.device)
    with HostReports(features.device) as reports:
        insertion = insert_points(features, None, attempt.capacity, attempt.by_range)
        _refuse((cdiv(rows.numel(), 1024), 1, 1), (rows, insertion.table.storage), (rows.numel(),))
        # before the host looks: most lattices have no more rows
        room = _ROWS_OF_TWO_POINTS * len(features) // 2
        telling = Telling(reports.words[0], features, False)
        neighbors = search_counted(insertion.table, insertion.codes, room, offsets, telling, paired=True)
        # a part of the corners would begin at an address that kernels are not compiled for
        corners, weights = insertion.vertices, insertion.barycentric
        tables = corners[:cells], weights[:cells], neighbors, corners, weights
        maps = _upsample(rows, tables, cells, grid, how, insertion.table.storage)
        told = reports.read(0)
    check_range(features, None, told)
    if told.no_room or told.full:
        return None
    number, ordered = told.num_lattice_points, order(insertion, told)
    if number <= room and ordered is insertion:
        return maps
    neighbors = search_packed(ordered.table, ordered.codes, number, offsets, True)
    tables = ordered.vertices[:cells], ordered.barycentric[:cells], neighbors, ordered.vertices, ordered.barycentric
    return _upsample(rows, tables, cells, grid, how)
