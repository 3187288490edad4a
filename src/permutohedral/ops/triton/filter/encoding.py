"""The permutohedral encoding: all levels in one kernel, and both gradients in another.

Symbols as in `ops/encoding.py`. A lane is a point on one of TOGETHER levels; the levels of a point are next to each
other, so that they write whole sectors of memory. Tiles over axes are `[ROWS, BLOCK]`, all in the registers of the
thread that owns the lane; tiles over channels are `[BLOCK, BLOCK_C]`. Programs of the same levels run one after
another, which keeps their tables in the cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops import encoding as reference
from permutohedral.ops.triton.kernel import cdiv, kernel, on_device, power_of_two, rows_contiguous, zeros

# most channels of a tile
_CHANNELS = 16
# bytes that are written together
_SECTOR = 32


@triton.jit
def lane_tile(
    num_points, LEVELS: tl.constexpr, CHANNELS: tl.constexpr, TOGETHER: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Return points and levels of the lanes, the last for those beyond it; channels; and which of the tile exist."""
    lane = tl.arange(0, BLOCK)
    point = tl.program_id(0).to(tl.int64) * (BLOCK // TOGETHER) + lane // TOGETHER
    level = tl.program_id(1) * TOGETHER + lane % TOGETHER
    channel = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    real = ((point < num_points) & (level < LEVELS))[:, None] & (channel < CHANNELS)
    return tl.minimum(point, num_points - 1), tl.minimum(level, LEVELS - 1), channel, real


@triton.jit
def load_axes(numbers, place, STEP: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    """Return D numbers that are STEP apart from `place [BLOCK]` on, as `[ROWS, BLOCK]`, zero below row D.

    One load of all axes spreads them over several threads, which exchange them through shared memory. Loads of one axis
    do not, but take the compiler too long for many axes.
    """
    row = tl.arange(0, ROWS)[:, None]
    if D > 8:
        tile = tl.load(numbers + place[None, :] + row * STEP, mask=row < D, other=0)
    else:
        tile = tl.zeros([ROWS, place.shape[0]], numbers.dtype.element_ty)
        for i in tl.static_range(D):
            tile = tl.where(row == i, tl.load(numbers + place + i * STEP)[None, :], tile)
    return tile


@triton.jit
def apply_transform(
    vectors, point, transforms, level, start, STRIDE: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr
):
    """Return `start` + A v, `[ROWS, BLOCK]`, for the rows `point` of `vectors`."""
    for j in tl.static_range(D):
        column = load_axes(transforms, level * (D * (D + 1)) + j, D + 1, D, ROWS).to(start.dtype)
        start = tl.fma(column, tl.load(vectors + point * STRIDE + j)[None, :], start)
    return start


@triton.jit
def find_corners(
    positions, directions, transforms, strides, point, level,
    STRIDE: tl.constexpr, ALONG: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Find the simplex of every lane.

    Returns three tiles over axes: the heights whose differences are the weights of the corners, the rank of each axis
    in descending order of the fractions, and the strides; and the row of the first corner before the modulus.
    """
    row = tl.arange(0, ROWS)[:, None]
    dtype: tl.constexpr = positions.dtype.element_ty
    offset = load_axes(transforms, level * (D * (D + 1)) + D, D + 1, D, ROWS).to(dtype)
    place = apply_transform(positions, point, transforms, level, offset, STRIDE, D, ROWS)
    cell = tl.floor(place)
    heights = tl.where(row < D, place - cell, -1.0)
    # count the larger ones, and the equal ones before: each pair is compared once
    later = tl.arange(0, ROWS)[None, :, None] > tl.arange(0, ROWS)[:, None, None]
    larger = (later & (heights[None, :, :] > heights[:, None, :])).to(tl.int32)
    rank = row + tl.sum(larger, axis=1) - tl.sum(larger, axis=0)
    stride = load_axes(strides, level * (D + 1), 1, D, ROWS)
    first = tl.sum(cell.to(tl.int32) * stride, axis=0) + tl.load(strides + level * (D + 1) + D)
    if ALONG:
        heights = apply_transform(directions, point, transforms, level, tl.zeros_like(place), D, D, ROWS)
    return heights, rank, stride, first


@triton.jit
def table_row(row, level, TABLE_SIZE: tl.constexpr):
    """Return the row in the table of all levels, int64, of a number that wraps around."""
    return level.to(tl.int64) * TABLE_SIZE + (row.to(tl.uint32, bitcast=True) % TABLE_SIZE).to(tl.int64)


@kernel(sizes=["num_points"], options=["num_warps"])
def encode_kernel(
    positions, directions, table, transforms, strides, output, num_points,
    STRIDE: tl.constexpr, ALONG: tl.constexpr, LEVELS: tl.constexpr, TABLE_SIZE: tl.constexpr, CHANNELS: tl.constexpr,
    D: tl.constexpr, ROWS: tl.constexpr, TOGETHER: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    point, level, channel, real = lane_tile(num_points, LEVELS, CHANNELS, TOGETHER, BLOCK, BLOCK_C)
    heights, rank, stride, row = find_corners(
        positions, directions, transforms, strides, point, level, STRIDE, ALONG, D, ROWS
    )
    dtype: tl.constexpr = positions.dtype.element_ty
    total = tl.zeros([BLOCK, BLOCK_C], dtype)
    above = tl.full([BLOCK], 0.0 if ALONG else 1.0, dtype)
    for k in tl.static_range(D + 1):
        height = tl.sum(tl.where(rank == k, heights, 0.0), axis=0) if k < D else tl.zeros_like(above)
        place = table_row(row, level, TABLE_SIZE)[:, None] * CHANNELS + channel
        total += (above - height)[:, None] * tl.load(table + place, mask=real, other=0.0).to(dtype)
        row += tl.sum(tl.where(rank == k, stride, 0), axis=0)
        above = height
    place = (point * LEVELS + level)[:, None] * CHANNELS + channel
    tl.store(output + place, total.to(output.dtype.element_ty), mask=real)


@kernel(sizes=["num_points"], options=["num_warps"])
def encode_backward_kernel(
    positions, directions, table, gradient, transforms, strides, to_positions, to_table, num_points,
    STRIDE: tl.constexpr, ALONG: tl.constexpr, FOR_POSITIONS: tl.constexpr, FOR_TABLE: tl.constexpr,
    LEVELS: tl.constexpr, TABLE_SIZE: tl.constexpr, CHANNELS: tl.constexpr,
    D: tl.constexpr, ROWS: tl.constexpr, TOGETHER: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Add to the gradient of the table; write that of the positions for each group of levels and channels."""
    point, level, channel, real = lane_tile(num_points, LEVELS, CHANNELS, TOGETHER, BLOCK, BLOCK_C)
    heights, rank, stride, row = find_corners(
        positions, directions, transforms, strides, point, level, STRIDE, ALONG, D, ROWS
    )
    dtype: tl.constexpr = positions.dtype.element_ty
    place = (point * LEVELS + level)[:, None] * CHANNELS + channel
    upper = tl.load(gradient + place, mask=real, other=0.0).to(dtype)
    above = tl.full([BLOCK], 0.0 if ALONG else 1.0, dtype)
    product = tl.zeros([BLOCK], dtype)
    slopes = tl.zeros([ROWS, BLOCK], dtype)
    for k in tl.static_range(D + 1):
        place = table_row(row, level, TABLE_SIZE)[:, None] * CHANNELS + channel
        if FOR_TABLE:
            height = tl.sum(tl.where(rank == k, heights, 0.0), axis=0) if k < D else tl.zeros_like(above)
            tl.atomic_add(to_table + place, (above - height)[:, None] * upper, mask=real, sem="relaxed")
            above = height
        if FOR_POSITIONS:
            before = product
            product = tl.sum(tl.load(table + place, mask=real, other=0.0).to(dtype) * upper, axis=1)
            # a larger fraction moves weight along its axis, from one corner to the next
            slopes = tl.where(rank == k - 1, (product - before)[None, :], slopes)
        row += tl.sum(tl.where(rank == k, stride, 0), axis=0)
    if FOR_POSITIONS:
        written = tl.program_id(0).to(tl.int64) * (BLOCK // TOGETHER) + tl.arange(0, BLOCK // TOGETHER)
        group = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)
        for j in tl.static_range(D):
            column = load_axes(transforms, level * (D * (D + 1)) + j, D + 1, D, ROWS).to(dtype)
            part = tl.sum(column * slopes, axis=0)
            part = tl.sum(tl.reshape(part, [BLOCK // TOGETHER, TOGETHER]), axis=1)
            tl.store(to_positions + (group * num_points + written) * D + j, part, mask=written < num_points)


def _tiles(positions: Tensor, table: Tensor) -> tuple[int, ...]:
    """Return D, ROWS, TOGETHER, BLOCK, BLOCK_C and the number of warps: one thread for each lane."""
    d, (levels, _, channels) = positions.shape[1], table.shape
    block_c = min(power_of_two(channels), _CHANNELS)
    together = min(max(_SECTOR // (block_c * table.element_size()), 1), power_of_two(levels))
    # pairs of axes take many registers
    block = 128 if d <= 8 else 64
    return d, power_of_two(d, 2), together, block, block_c, block // 32


def _grid(points: int, table: Tensor, tiles: tuple[int, ...]) -> tuple[int, int, int]:
    _, _, together, block, block_c, _ = tiles
    return cdiv(points * together, block), cdiv(table.shape[0], together), cdiv(table.shape[2], block_c)


@on_device
def encode(positions: Tensor, directions: Tensor | None, table: Tensor, transforms: Tensor, strides: Tensor) -> Tensor:
    points, (levels, table_size, channels) = positions.shape[0], table.shape
    output = table.new_empty(points, levels * channels)
    if output.numel():
        positions, tiles = rows_contiguous(positions), _tiles(positions, table)
        along = positions if directions is None else directions.contiguous()
        constants = positions.stride(0), directions is not None, levels, table_size, channels
        tensors = positions, along, table.contiguous(), transforms.contiguous(), strides.contiguous(), output
        encode_kernel[(*constants, *tiles)](_grid(points, table, tiles), tensors, (points,))
    return output


@on_device
def encode_backward(
    positions: Tensor,
    directions: Tensor | None,
    table: Tensor,
    gradient: Tensor,
    transforms: Tensor,
    strides: Tensor,
    for_positions: bool,
    for_table: bool,
) -> tuple[Tensor, Tensor]:
    (points, d), (levels, table_size, channels) = positions.shape, table.shape
    inputs = positions, directions, table, gradient, transforms, strides
    to_table = None
    if for_table and torch.are_deterministic_algorithms_enabled():
        # atomic additions have no fixed order
        to_table, for_table = reference.encode_backward(*inputs, False, True)[1], False
    tiles = _tiles(positions, table)
    grid = _grid(points, table, tiles)
    parts = positions.new_empty(grid[1] * grid[2], points, d) if for_positions else positions.new_empty(1, 0)
    sums = zeros(*(table.shape if for_table else (0,)), dtype=positions.dtype, device=table.device)
    if points and (for_positions or for_table):
        positions = rows_contiguous(positions)
        along = positions if directions is None else directions.contiguous()
        constants = positions.stride(0), directions is not None, for_positions, for_table, levels, table_size, channels
        tensors = (
            positions, along, table.contiguous(), gradient.contiguous(), transforms.contiguous(), strides.contiguous(),
            parts if for_positions else positions, sums if for_table else positions,
        )  # fmt: skip
        encode_backward_kernel[(*constants, *tiles)](grid, tensors, (points,))
    to_positions = parts[0] if len(parts) == 1 else parts.sum(dim=0)
    return to_positions, sums.to(table.dtype) if to_table is None else to_table
