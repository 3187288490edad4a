"""How many bits of a code each part of a key gets: the same for all, or as many as the range of the data needs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.build.embedding import find_simplex, tile_rows
from permutohedral.ops.triton.build.packed_table import (
    EXTENT,
    ITEM_EXTENT,
    ITEM_SHIFT,
    LOW,
    NO_ROOM,
    SHIFT,
    UNIT,
    PackedTable,
)
from permutohedral.ops.triton.runtime import cdiv, launch

# a code is a positive int64
_CODE_BITS = 63
_ITEM_BITS = 12
_LARGEST_DIGIT_BITS = 30


@triton.jit
def unit_of(table, DIGIT_BITS: tl.constexpr, CORNER_BITS: tl.constexpr, D: tl.constexpr):
    """The UNIT of a header that gives every coordinate DIGIT_BITS; of any other, which is read, if they are 0."""
    if DIGIT_BITS > 0:
        # a one at the lowest bit of each
        unit: tl.constexpr = (((1 << (D * DIGIT_BITS)) - 1) // ((1 << DIGIT_BITS) - 1)) << CORNER_BITS
        return tl.full([], unit, tl.int64)
    else:
        return tl.load(table + UNIT)


@triton.jit
def pack_evenly(
    table, low, DIGIT_BITS: tl.constexpr, CORNER_BITS: tl.constexpr, ITEM_BITS: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Write a header that gives every coordinate DIGIT_BITS, from the quotients `low` on (see `lowest_cell`)."""
    row = tl.arange(0, ROWS)
    tl.store(table + LOW + row, tl.max(low, axis=1).to(tl.int64), mask=row < D)
    tl.store(table + SHIFT + row, (CORNER_BITS + row * DIGIT_BITS).to(tl.int64), mask=row < D)
    tl.store(table + EXTENT + row, tl.full([ROWS], 1 << DIGIT_BITS, tl.int64), mask=row < D)
    tl.store(table + ITEM_SHIFT, CORNER_BITS + D * DIGIT_BITS)
    tl.store(table + ITEM_EXTENT, 1 << ITEM_BITS)
    tl.store(table + UNIT, unit_of(table, DIGIT_BITS, CORNER_BITS, D))


@triton.jit(do_not_specialize=["num_points"])
def range_kernel(
    features, batch, bounds, num_points,
    STRIDE: tl.constexpr, HAS_BATCH: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Lower `bounds`, int32 `[2 ROWS + 1]`: to the quotients, to their negatives, to the negative of each item."""
    row = tl.arange(0, ROWS)
    low = tl.full([ROWS, BLOCK], 2**30, tl.int32)
    high = tl.full([ROWS, BLOCK], 2**30, tl.int32)
    item = tl.zeros([BLOCK], tl.int32)
    for start in range(tl.program_id(0) * BLOCK, num_points, tl.num_programs(0) * BLOCK):
        point = tl.minimum(start + tl.arange(0, BLOCK), num_points - 1)
        cell, _, _, _ = find_simplex(features, point, STRIDE, D, ROWS)
        low = tl.minimum(low, cell)
        high = tl.minimum(high, -cell)
        if HAS_BATCH:
            item = tl.minimum(item, -tl.load(batch + point))
    tl.atomic_min(bounds + row, tl.min(low, axis=1), mask=row < D, sem="relaxed")
    tl.atomic_min(bounds + ROWS + row, tl.min(high, axis=1), mask=row < D, sem="relaxed")
    if HAS_BATCH:
        tl.atomic_min(bounds + 2 * ROWS, tl.min(item, axis=0), sem="relaxed")


@triton.jit
def pack_by_range_kernel(header, bounds, CORNER_BITS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    """Give every coordinate as many bits as its range needs."""
    row = tl.arange(0, ROWS)
    low = tl.load(bounds + row, mask=row < D, other=0).to(tl.int64)
    high = -tl.load(bounds + ROWS + row, mask=row < D, other=0).to(tl.int64)
    # the corners of a simplex reach one cell below its origin
    extent = high - low + 2
    bits = tl.zeros([ROWS], tl.int64)
    for k in range(32):
        bits += (extent > (tl.full([ROWS], 1, tl.int64) << k)).to(tl.int64)
    bits = tl.where(row < D, bits, 0)
    items = 1 - tl.minimum(tl.load(bounds + 2 * ROWS), 0).to(tl.int64)
    room = tl.full([], 1, tl.int64) << tl.maximum(63 - CORNER_BITS - tl.sum(bits, axis=0), 0)
    tl.store(header + LOW + row, low - 1, mask=row < D)
    tl.store(header + EXTENT + row, extent, mask=row < D)
    before = CORNER_BITS + tl.cumsum(bits, axis=0) - bits
    tl.store(header + SHIFT + row, before, mask=row < D)
    tl.store(header + UNIT, tl.sum(tl.where(row < D, tl.full([ROWS], 1, tl.int64) << before, 0), axis=0))
    tl.store(header + ITEM_SHIFT, CORNER_BITS + tl.sum(bits, axis=0))
    tl.store(header + ITEM_EXTENT, items)
    if (tl.sum(bits, axis=0) > 63 - CORNER_BITS) | (items > room):
        tl.store(header + NO_ROOM, 1)


def even_bits(d: int, batched: bool) -> tuple[int, int]:
    """Bits of a digit and of the item where all coordinates get the same."""
    item_bits = _ITEM_BITS if batched else 0
    return min((_CODE_BITS - d.bit_length() - item_bits) // d, _LARGEST_DIGIT_BITS), item_bits


def pack_by_range(table: PackedTable, features: Tensor, batch: Tensor | None) -> None:
    """Write the header of an empty table: every coordinate gets the bits that its range needs."""
    points, d = features.shape
    rows = tile_rows(d)
    bounds = torch.full((2 * rows + 1,), 2**30, dtype=torch.int32, device=features.device)
    launch(
        range_kernel, (min(cdiv(points, 128), 1024),),
        (features, features if batch is None else batch, bounds), (points,),
        STRIDE=features.stride(0), HAS_BATCH=batch is not None, D=d, ROWS=rows, BLOCK=128, num_warps=4,
    )  # fmt: skip
    launch(
        pack_by_range_kernel, (1,), (table.storage, bounds), (),
        CORNER_BITS=d.bit_length(), D=d, ROWS=rows, num_warps=1,
    )  # fmt: skip
