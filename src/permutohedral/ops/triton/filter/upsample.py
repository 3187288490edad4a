"""Upsampling along a guide: splat, blur and slice the coarse samples, then add their residuals in the same way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.contract import CoarseGrid, Declined, GaussianTables
from permutohedral.ops.neighborhood import axis_offsets, blur_gain
from permutohedral.ops.triton.build.insertion import Insertion
from permutohedral.ops.triton.build.lattice import LARGEST_EVEN_DIMENSION, build_tables
from permutohedral.ops.triton.build.neighbors import search_counted, search_packed
from permutohedral.ops.triton.filter.blur import blur_rows
from permutohedral.ops.triton.filter.cells import (
    find_limit,
    find_missing,
    fits,
    split_sample,
    three_axes,
    write_features,
)
from permutohedral.ops.triton.filter.splat import splat_sums
from permutohedral.ops.triton.kernel import WIDEST_TILE, kernel, on_device, tile

# rows of lattice values that are made before their number is known, for two points: enough for most pictures
_ROWS_OF_TWO_POINTS = 3


@triton.jit
def between(place, coarse, fine, POINT: tl.constexpr, DTYPE: tl.constexpr):
    """Return the coarse samples below and above fine ones along an axis, and the share of the one above."""
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
    """Interpolate coarse samples `rows` linearly at the points that are `wanted`, `[BLOCK, BLOCK_C]`."""
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


@kernel(sizes=[
    "num_points", "num_rows", "first", "vertex_corner_stride", "weight_corner_stride", "depth", "height", "width",
    "fine_depth", "fine_height", "fine_width", "stride", "channel_stride",
])  # fmt: skip
def average_kernel(
    lattice_values, vertices, barycentric, rows, mass, maps, num_points, num_rows, first, vertex_corner_stride,
    weight_corner_stride, depth, height, width, fine_depth, fine_height, fine_width, stride, channel_stride,
    FIRST: tl.constexpr, POINT: tl.constexpr, LEAST_MASS: tl.constexpr, CHANNELS: tl.constexpr, CORNERS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Average blurred coarse samples at fine ones, whose corners begin at row `first`.

    Where the mass is below LEAST_MASS, interpolated samples fill the rest. The FIRST pass reads the mass from the
    channel after the last and stores it; results of later passes are added to the maps.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    channel = tl.arange(0, BLOCK_C)
    dtype: tl.constexpr = mass.dtype.element_ty
    width_of_rows: tl.constexpr = CHANNELS + 1 if FIRST else CHANNELS
    real = inside[:, None] & (channel < width_of_rows)[None, :]
    total = tl.zeros([BLOCK, BLOCK_C], dtype)
    for number in tl.static_range(CORNERS):
        corner = tl.cast(number, tl.int64)
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


def _upsample(
    rows: Tensor,
    tables: GaussianTables,
    first_target: int,
    grid: CoarseGrid,
    how: tuple[float, int, bool],
    table: Tensor | None = None,
) -> Tensor:
    """Return the upsampled maps.

    Args:
        rows, tables, grid: see `FusedFunctions.upsample_rows`.
        first_target: where the targets begin in their tables.
        how: least mass, steps, planes.
        table: holds the number of lattice points, which is at most the number of rows.
    """
    vertices, barycentric, axis_neighbors, target_vertices, target_barycentric = tables
    least_mass, steps, planes = how
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
        blocks = tile(channels + 1 if first else channels)
        variant = average_kernel[(first, grid.point, least, channels, vertices.shape[1], *blocks)]
        tensors = blurred, target_vertices, target_barycentric, given, mass, maps
        variant(variant.tiles(points, 1), tensors, sizes)
    return maps


@on_device
def upsample_rows(
    rows: Tensor, tables: GaussianTables, grid: CoarseGrid, least_mass: float, steps: int, planes: bool
) -> Tensor | Declined:
    _, barycentric, _, target_vertices, target_barycentric = tables
    along = target_vertices.stride(0), target_barycentric.stride(0)
    if rows.dtype != barycentric.dtype:
        return Declined("values and features differ in dtype")
    if rows.shape[1] >= WIDEST_TILE:
        return Declined(f"the kernels upsample at most {WIDEST_TILE - 1} channels, got {rows.shape[1]}")
    if along != (1, 1) or not fits(grid):
        return Declined("the grid has 2^31 samples or more, or its simplices are not those of index_points")
    if rows.numel() == 0 or len(target_vertices) == 0:
        return Declined("there are no samples or no channels")
    return _upsample(rows.contiguous(), tables, 0, grid, (least_mass, steps, planes))


@on_device
def upsample_map(
    rows: Tensor, guide: Tensor, grid: CoarseGrid, sigmas: Sequence[float], least_mass: float, steps: int, planes: bool
) -> Tensor | Declined:
    d = len(sigmas)
    declined = find_limit(guide, grid, sigmas)
    if declined is not None:
        return declined
    if torch.are_deterministic_algorithms_enabled():
        return Declined("atomic additions have no fixed order, and deterministic algorithms are enabled")
    if d > LARGEST_EVEN_DIMENSION:
        return Declined(f"the kernels take at most {LARGEST_EVEN_DIMENSION} feature dimensions, got {d}")
    if not 0 < rows.shape[1] < WIDEST_TILE:
        return Declined(f"the kernels upsample 1 to {WIDEST_TILE - 1} channels, got {rows.shape[1]}")
    if rows.dtype != torch.float32 or guide.numel() != grid.samples * (d - len(grid.fine)):
        return Declined("the kernels take float32 and a single item")
    rows, guide, cells, how = rows.contiguous(), guide.contiguous(), grid.cells, (least_mass, steps, planes)
    features = torch.empty(cells + grid.samples, d, dtype=torch.float32, device=guide.device)
    write_features(features, 0, guide, grid, sigmas)
    write_features(features, cells, guide, CoarseGrid(grid.fine, grid.fine, True), sigmas)
    # enough rows for most images
    offsets, room = axis_offsets(d, features.device), _ROWS_OF_TWO_POINTS * len(features) // 2

    def upsample_with(insertion: Insertion, neighbors: Tensor, table: Tensor | None) -> Tensor:
        # a part of the target corners would begin at an address that kernels are not compiled for
        corners, weights = insertion.vertices, insertion.barycentric
        return _upsample(rows, (corners[:cells], weights[:cells], neighbors, corners, weights), cells, grid, how, table)

    def upsample_ahead(insertion: Insertion) -> Tensor:
        neighbors = search_counted(insertion.table, insertion.codes, room, offsets, paired=True)
        return upsample_with(insertion, neighbors, insertion.table.storage)

    built = build_tables(features, None, upsample_ahead, finite=rows)
    if built is None:
        return Declined("the lattice exceeds the first table, or a value is not finite")
    insertion, number, maps = built
    assert maps is not None
    if number <= room:
        return maps
    neighbors = search_packed(insertion.table, insertion.codes, number, offsets, True)
    return upsample_with(insertion, neighbors, None)
