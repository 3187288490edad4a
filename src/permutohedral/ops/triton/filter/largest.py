"""The point that has the largest value of each channel among the points around a lattice point.

The points of every lattice point are listed first, so that no atomic operations are needed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.filter.incidence import build_incidence
from permutohedral.ops.triton.kernel import WIDEST_TILE, kernel, on_device, power_of_two, rows_contiguous

# lattice points of a program, which takes as long as the one with the most points
_ROWS = 16
# points of one lattice point that are compared in parallel, if the average is at least as large
_ENTRIES = 32


@triton.jit
def winner_of_lanes(best, winner, ROWS: tl.constexpr, ENTRIES: tl.constexpr, BLOCK_C: tl.constexpr):
    """Reduce `[rows * entries, channels]` to the winners `[rows, channels]`, -1 for none."""
    last: tl.constexpr = 2**31 - 1
    best = tl.reshape(best, [ROWS, ENTRIES, BLOCK_C])
    winner = tl.reshape(winner, [ROWS, ENTRIES, BLOCK_C])
    is_nan = (winner >= 0) & (best != best)
    some_nan = tl.max(is_nan.to(tl.int32), axis=1) > 0
    most = tl.max(tl.where((winner >= 0) & ~is_nan, best, float("-inf")), axis=1)
    wins = is_nan | ((winner >= 0) & (best == most[:, None, :]) & ~some_nan[:, None, :])
    first = tl.min(tl.where(wins, winner, last), axis=1)
    return tl.where(first < last, first, -1)


@kernel(sizes=["num_rows"])
def find_largest_kernel(
    values, starts, counts, points, winners, num_rows,
    CROWDED: tl.constexpr, CHANNELS: tl.constexpr, VALUE_STRIDE: tl.constexpr, ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Compare the listed points of every lattice point; NaN is larger than any number, and of equals the first wins.

    With CROWDED, ENTRIES of a lattice point are compared in parallel.
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
        winner = winner_of_lanes(best, winner, BLOCK, ENTRIES, BLOCK_C)
        row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = row < num_rows
    place = row[:, None] * CHANNELS + channel[None, :]
    kept = inside[:, None] & (channel < CHANNELS)[None, :]
    tl.store(winners + place, winner, mask=kept)


@on_device
def find_largest(values: Tensor, vertices: Tensor, num_lattice_points: int) -> Tensor:
    shape = num_lattice_points, values.shape[1]
    winners = values.new_empty(shape, dtype=torch.int32)
    if winners.numel() == 0:
        return winners
    values = rows_contiguous(values)
    # the weights do not matter: a single one is read
    weights = values.new_zeros((1, 1), dtype=torch.float32).expand(vertices.shape)
    starts, counts, points, _ = build_incidence(vertices, weights, num_lattice_points)
    crowded = vertices.numel() >= _ENTRIES * num_lattice_points
    blocks = (_ENTRIES, 1) if crowded else (1, _ROWS)
    block_c = min(power_of_two(shape[1]), WIDEST_TILE)
    variant = find_largest_kernel[(crowded, shape[1], values.stride(0), *blocks, block_c)]
    variant(variant.tiles(*shape), (values, starts, counts, points, winners), (num_lattice_points,))
    return winners
