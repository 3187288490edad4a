"""The largest value of each channel among the points around a lattice point, and what goes back to the winners.

The points of every lattice point are listed first, so that nothing is added or compared by atomic operations.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.filter.incidence import list_corners
from permutohedral.ops.triton.runtime import WIDEST_TILE, bind, on_device, power_of_two, rows_contiguous, tile

# lattice points of a program: it takes as long as the most crowded of them
_ROWS = 16
# points of one lattice point that are compared side by side, where there are at least as many on average
_ENTRIES = 32


@triton.jit
def best_of_lanes(best, winner, ROWS: tl.constexpr, ENTRIES: tl.constexpr, BLOCK_C: tl.constexpr):
    """`[rows * entries, channels]` to `[rows, channels]`: the largest and its winner, -1 where there is none."""
    last: tl.constexpr = 2**31 - 1
    best = tl.reshape(best, [ROWS, ENTRIES, BLOCK_C])
    winner = tl.reshape(winner, [ROWS, ENTRIES, BLOCK_C])
    is_nan = (winner >= 0) & (best != best)
    some_nan = tl.max(is_nan.to(tl.int32), axis=1) > 0
    most = tl.max(tl.where((winner >= 0) & ~is_nan, best, float("-inf")), axis=1)
    wins = is_nan | ((winner >= 0) & (best == most[:, None, :]) & ~some_nan[:, None, :])
    first = tl.min(tl.where(wins, winner, last), axis=1)
    most = tl.where(some_nan, float("nan"), tl.where(first < last, most, 0.0))
    return most, tl.where(first < last, first, -1)


@triton.jit(do_not_specialize=["num_rows"])
def splat_largest_kernel(
    values, starts, counts, points, output, winners, num_rows,
    CROWDED: tl.constexpr, CHANNELS: tl.constexpr, VALUE_STRIDE: tl.constexpr, ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Compare the listed points of every lattice point; NaN is larger than any number, and of equals the first wins.

    CROWDED, some ENTRIES of a lattice point are compared side by side.
    """
    lane = tl.arange(0, BLOCK * ENTRIES)
    row = tl.program_id(0).to(tl.int64) * BLOCK + lane // ENTRIES
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = row < num_rows
    begin = tl.load(starts + row, mask=inside, other=0)
    count = tl.load(counts + row, mask=inside, other=0).to(tl.int32)
    dtype: tl.constexpr = tl.float64 if values.dtype.element_ty == tl.float64 else tl.float32
    best = tl.zeros([BLOCK * ENTRIES, BLOCK_C], dtype)
    winner = tl.full([BLOCK * ENTRIES, BLOCK_C], -1, tl.int32)
    for step in range(0, tl.max(count, axis=0), ENTRIES):
        entry = step + lane % ENTRIES
        here = entry < count
        # weights, if any, are in the upper half
        point = tl.load(points + begin + entry, mask=here, other=0).to(tl.int32)[:, None]
        real = here[:, None] & (channel < CHANNELS)[None, :]
        place = values + point.to(tl.int64) * VALUE_STRIDE + channel[None, :]
        value = tl.load(place, mask=real, other=0.0).to(dtype)
        is_nan, was_nan = value != value, best != best
        more = (value > best) | (is_nan & ~was_nan)
        same = (value == best) | (is_nan & was_nan)
        better = here[:, None] & ((winner < 0) | more | (same & (point < winner)))
        best = tl.where(better, value, best)
        winner = tl.where(better, point, winner)
    if CROWDED:
        best, winner = best_of_lanes(best, winner, BLOCK, ENTRIES, BLOCK_C)
        row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = row < num_rows
    place = row[:, None] * CHANNELS + channel[None, :]
    kept = inside[:, None] & (channel < CHANNELS)[None, :]
    tl.store(output + place, best.to(output.dtype.element_ty), mask=kept)
    tl.store(winners + place, winner, mask=kept)


@triton.jit(do_not_specialize=["num_points", "num_rows", "corner_stride"])
def largest_gradient_kernel(
    gradient, winners, vertices, output, num_points, num_rows, corner_stride,
    VERTEX_STRIDE: tl.constexpr, CHANNELS: tl.constexpr, GRADIENT_STRIDE: tl.constexpr, CORNERS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sum, for every point, the gradients of the lattice points where it has won; those beyond `num_rows` have none."""
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = point < num_points
    dtype: tl.constexpr = tl.float64 if gradient.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros([BLOCK, BLOCK_C], dtype)
    for corner in tl.static_range(CORNERS):
        vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * corner_stride, mask=inside, other=0)
        new = inside & (vertex < num_rows)
        for earlier in tl.static_range(corner):
            new = new & (vertex != tl.load(vertices + point * VERTEX_STRIDE + earlier * corner_stride, mask=inside))
        real = new[:, None] & (channel < CHANNELS)[None, :]
        row = vertex.to(tl.int64)[:, None]
        winner = tl.load(winners + row * CHANNELS + channel[None, :], mask=real, other=-1)
        won = real & (winner == point[:, None])
        total += tl.load(gradient + row * GRADIENT_STRIDE + channel[None, :], mask=won, other=0.0).to(dtype)
    place = output + point[:, None] * CHANNELS + channel[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=inside[:, None] & (channel < CHANNELS)[None, :])


@on_device
def splat_largest(values: Tensor, vertices: Tensor, num_lattice_points: int) -> tuple[Tensor, Tensor]:
    shape = num_lattice_points, values.shape[1]
    output, winners = values.new_empty(shape), values.new_empty(shape, dtype=torch.int32)
    if output.numel() == 0:
        return output, winners
    values = rows_contiguous(values)
    # weights are of no importance, and are not read from memory but once
    weights = values.new_zeros((1, 1), dtype=torch.float32).expand(vertices.shape)
    starts, counts, points, _ = list_corners(vertices, weights, num_lattice_points)
    crowded = vertices.numel() >= _ENTRIES * num_lattice_points
    bound = bind(
        splat_largest_kernel, CROWDED=crowded, CHANNELS=shape[1], VALUE_STRIDE=values.stride(0),
        ENTRIES=_ENTRIES if crowded else 1, BLOCK=1 if crowded else _ROWS,
        BLOCK_C=min(power_of_two(shape[1]), WIDEST_TILE),
    )  # fmt: skip
    bound(bound.tiles(*shape), (values, starts, counts, points, output, winners), (num_lattice_points,))
    return output, winners


@on_device
def largest_gradient(gradient: Tensor, winners: Tensor, vertices: Tensor) -> Tensor:
    (points, corners), channels = vertices.shape, gradient.shape[1]
    output = gradient.new_empty(points, channels)
    if output.numel() > 0:
        gradient, winners = rows_contiguous(gradient), winners.contiguous()
        sizes = points, gradient.shape[0], vertices.stride(1)
        bound = bind(
            largest_gradient_kernel, VERTEX_STRIDE=vertices.stride(0), CHANNELS=channels,
            GRADIENT_STRIDE=gradient.stride(0), CORNERS=corners, **tile(channels),
        )  # fmt: skip
        bound(bound.tiles(points, channels), (gradient, winners, vertices, output), sizes)
    return output
