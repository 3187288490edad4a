"""How many bits of a code each part of a key gets: decided on the device, written into the header of the table."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.embedding import find_simplex, tile_rows
from permutohedral.ops.triton.launch import cdiv, launch
from permutohedral.ops.triton.table import (
    BAD_FEATURE,
    COUNT,
    EMPTY,
    EXTENT,
    FAR_PAIRS,
    HEADER,
    ITEM_EXTENT,
    ITEM_SHIFT,
    LOW,
    NO_ROOM,
    SAMPLES,
    SHIFT,
    PackedTable,
)

# a code is a non-negative int64
_CODE_BITS = 63
_ITEM_BITS = 12
_LARGEST_DIGIT_BITS = 30
# words of the table that a program clears
_CLEAR_BLOCK = 1024


@triton.jit
def sample_order(features, header, num_points, STRIDE: tl.constexpr, D: tl.constexpr):
    """Note how many of some pairs of consecutive points lie more than two units apart."""
    here = (tl.arange(0, SAMPLES).to(tl.int64) * num_points) // SAMPLES
    there = tl.minimum(here + 1, num_points - 1)
    distance = tl.zeros([SAMPLES], features.dtype.element_ty)
    for j in tl.static_range(D):
        distance = tl.maximum(
            distance, tl.abs(tl.load(features + here * STRIDE + j) - tl.load(features + there * STRIDE + j))
        )
    tl.store(header + FAR_PAIRS, tl.sum((distance > 2.0).to(tl.int64), axis=0))


@triton.jit(do_not_specialize=["num_points", "num_words"])
def clear_kernel(
    table, features, num_points, num_words, STRIDE: tl.constexpr, DIGIT_BITS: tl.constexpr, CORNER_BITS: tl.constexpr,
    ITEM_BITS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Empty the table, and give every coordinate the same number of bits, around the first point."""
    word = HEADER + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(table + word, tl.full([BLOCK], EMPTY, tl.int64), mask=word < num_words)
    if tl.program_id(0) == 0:
        row = tl.arange(0, ROWS)
        # one column per lane of a warp, all of them the first point
        cell, _, _, _ = find_simplex(features, tl.zeros([32], tl.int32), STRIDE, D, ROWS)
        tl.store(table + LOW + row, tl.max(cell, axis=1).to(tl.int64) - (1 << (DIGIT_BITS - 1)), mask=row < D)
        tl.store(table + SHIFT + row, (CORNER_BITS + row * DIGIT_BITS).to(tl.int64), mask=row < D)
        tl.store(table + EXTENT + row, tl.full([ROWS], 1 << DIGIT_BITS, tl.int64), mask=row < D)
        tl.store(table + ITEM_SHIFT, CORNER_BITS + D * DIGIT_BITS)
        tl.store(table + ITEM_EXTENT, 1 << ITEM_BITS)
        tl.store(table + COUNT, -1)
        # the flags, one after another
        tl.store(table + BAD_FEATURE + tl.arange(0, 4), tl.full([4], -1, tl.int64))
        sample_order(features, table, num_points, STRIDE, D)


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


@triton.jit(do_not_specialize=["num_points"])
def tight_packing_kernel(
    header, bounds, features, num_points,
    STRIDE: tl.constexpr, CORNER_BITS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
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
    tl.store(header + SHIFT + row, CORNER_BITS + tl.cumsum(bits, axis=0) - bits, mask=row < D)
    tl.store(header + EXTENT + row, extent, mask=row < D)
    tl.store(header + ITEM_SHIFT, CORNER_BITS + tl.sum(bits, axis=0))
    tl.store(header + ITEM_EXTENT, items)
    if (tl.sum(bits, axis=0) > 63 - CORNER_BITS) | (items > room):
        tl.store(header + NO_ROOM, 1)
    sample_order(features, header, num_points, STRIDE, D)


def fixed_bits(d: int, batched: bool) -> tuple[int, int]:
    """Bits of a digit and of the item where all coordinates get the same."""
    item_bits = _ITEM_BITS if batched else 0
    return min((_CODE_BITS - d.bit_length() - item_bits) // d, _LARGEST_DIGIT_BITS), item_bits


def prepare_table(table: PackedTable, features: Tensor, batched: bool) -> None:
    """Empty a table, and give all coordinates the same bits in its header, around the first of the features."""
    points, d = features.shape
    digit_bits, item_bits = fixed_bits(d, batched)
    words = table.storage.numel()
    launch(
        clear_kernel, (cdiv(words - HEADER.value, _CLEAR_BLOCK),), table.storage, features, points, words,
        STRIDE=features.stride(0), DIGIT_BITS=digit_bits, CORNER_BITS=d.bit_length(), ITEM_BITS=item_bits, D=d,
        ROWS=tile_rows(d), BLOCK=_CLEAR_BLOCK, num_warps=4,
    )  # fmt: skip


def prepare_tight_table(table: PackedTable, features: Tensor, batch: Tensor | None) -> None:
    """The same, but every coordinate gets the bits that its range needs."""
    points, d = features.shape
    rows, stride = tile_rows(d), features.stride(0)
    table.storage.fill_(-1)
    bounds = torch.full((2 * rows + 1,), 2**30, dtype=torch.int32, device=features.device)
    launch(
        range_kernel, (min(cdiv(points, 128), 1024),), features, batch, bounds, points,
        STRIDE=stride, HAS_BATCH=batch is not None, D=d, ROWS=rows, BLOCK=128, num_warps=4,
    )  # fmt: skip
    launch(
        tight_packing_kernel, (1,), table.storage, bounds, features, points,
        STRIDE=stride, CORNER_BITS=d.bit_length(), D=d, ROWS=rows, num_warps=1,
    )  # fmt: skip
