"""Embed the points and insert the vertices they touch into the table, in one pass over the points.

The parts of a key have the same number of bits in its code, or as many as the range of the data needs.

The lane that makes a slot also draws its row number. Other lanes that need the number wait for it at the end. A lane
that still has to draw a number never waits, so the wait ends.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.build.embedding import find_simplex, lowest_cell, tile_rows, weights_from
from permutohedral.ops.triton.build.hash_table import (
    BAD_FEATURE,
    COUNT,
    EXTENT,
    FULL,
    ITEM_EXTENT,
    ITEM_SHIFT,
    LOW,
    NO_ROOM,
    SHIFT,
    UNIT,
    PackedTable,
    entry_of,
    insert,
    is_any,
    load_number,
    store_lanes,
)
from permutohedral.ops.triton.build.neighbors import TapPairs, fill_mirrored_taps
from permutohedral.ops.triton.kernel import HAS_PTX, cdiv, empty_corners, kernel

# points of a program: a single warp needs no barrier to know that all its probes have ended
INSERT_BLOCK = 32
# four rows for each thread
_UNPACK_BLOCK, _UNPACK_WARPS = 256, 2
# Pixels that are near each other touch the same slots, and the first makes the others wait. So programs that run at the
# same time take their points from many parts of the whole, each of several blocks. Where a part has many corners to
# write, fewer parts were faster: in up to three dimensions, and in more.
_PARTS, _FEWER_PARTS, _BLOCKS_OF_A_PART = 512, 64, 16
# registers of a thread that were fastest on an H200, by rows of a tile (2 and 3, 4 to 7 dimensions): fewer than the
# compiler would take let more warps wait for memory, until they spill
_MOST_REGISTERS = {4: 48, 8: 72}
# a code is a positive int64
_CODE_BITS = 63
_ITEM_BITS = 12
_LARGEST_DIGIT_BITS = 30
# looks at a number that another lane draws: some milliseconds
_MOST_WAITS = tl.constexpr(1 << 16)


@triton.jit
def unit_of(table, DIGIT_BITS: tl.constexpr, CORNER_BITS: tl.constexpr, D: tl.constexpr):
    """Return the UNIT of a header that gives every coordinate DIGIT_BITS; 0 for reading it from the header."""
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


@kernel(sizes=["num_points"], options=["num_warps"])
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


@kernel(options=["num_warps"])
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
    """Return the bits of a digit and of the item if all coordinates get the same."""
    item_bits = _ITEM_BITS if batched else 0
    return min((_CODE_BITS - d.bit_length() - item_bits) // d, _LARGEST_DIGIT_BITS), item_bits


def pack_by_range(table: PackedTable, features: Tensor, batch: Tensor | None) -> None:
    """Write the header of an empty table that gives every coordinate the bits its range needs."""
    points, d = features.shape
    rows = tile_rows(d)
    bounds = torch.full((2 * rows + 1,), 2**30, dtype=torch.int32, device=features.device)
    ranges = range_kernel[features.stride(0), batch is not None, d, rows, 128, 4]
    tensors = features, features if batch is None else batch, bounds
    ranges((min(cdiv(points, 128), 1024), 1, 1), tensors, (points,))
    pack_by_range_kernel[d.bit_length(), d, rows, 1]((1, 1, 1), (table.storage, bounds), ())


@triton.jit
def pack_digits(
    header, cell, low, DIGIT_BITS: tl.constexpr, CORNER_BITS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr
):
    """Return codes of cells without item and corner, int64 `[BLOCK]`, one step of each digit, and if they fit."""
    row = tl.arange(0, ROWS)[:, None]
    coordinate = row < D
    digit = cell - low
    if DIGIT_BITS > 0:
        shift = CORNER_BITS + row.to(tl.int64) * DIGIT_BITS
        fits = (digit > 0) & (digit < (1 << DIGIT_BITS))
    else:
        shift = tl.load(header + SHIFT + row, mask=coordinate, other=0)
        fits = (digit > 0) & (digit < tl.load(header + EXTENT + row, mask=coordinate, other=0))
    room = tl.min((fits | (row >= D)).to(tl.int32), axis=0) > 0
    code = tl.sum(tl.where(coordinate, digit.to(tl.int64) << shift, 0), axis=0)
    return code, tl.where(coordinate, tl.full([1, 1], 1, tl.int64) << shift, 0), room


@triton.jit
def draw_numbers(table, codes, slot, code, created, PTX: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Assign numbers to the created slots and store the numbers; return them, -1 for the other lanes."""
    made = created.to(tl.int32)
    total = tl.sum(made, axis=0)
    number = tl.full([ROWS, BLOCK], -1, tl.int32)
    if tl.sum(total, axis=0) > 0:
        first = tl.atomic_add(table + COUNT, tl.sum(total, axis=0).to(tl.int64), sem="relaxed").to(tl.int32)
        before = (tl.cumsum(total, axis=0) - total)[None, :] + tl.cumsum(made, axis=0) - made
        number = tl.where(created, first + before, -1)
        store_lanes(entry_of(table, slot) + 1, number.to(tl.int64) + 1, created, PTX)
        store_lanes(codes + number, code, created, PTX)
    return number


@triton.jit
def wait_for_numbers(table, slot, number, wanted, PTX: tl.constexpr):
    """Return the numbers in the slots once other lanes have drawn them; 0 for lanes that are not `wanted`."""
    waiting = wanted & (number < 0)
    waits = 0
    while is_any(waiting) & (waits < _MOST_WAITS):
        number = tl.maximum(number, load_number(entry_of(table, slot) + 1, waiting, PTX).to(tl.int32) - 1)
        waiting = waiting & (number < 0)
        waits += 1
    if is_any(waiting):
        tl.store(table + FULL, 1)
    return tl.maximum(number, 0)


@kernel(sizes=["num_points", "corner_stride", "capacity", "parts"], options=["num_warps", "maxnreg"])
def insert_points_kernel(
    features, batch, table, codes, vertices, barycentric, num_points, corner_stride, capacity, parts,
    STRIDE: tl.constexpr, HAS_BATCH: tl.constexpr, DIGIT_BITS: tl.constexpr, ITEM_BITS: tl.constexpr,
    CORNER_BITS: tl.constexpr, PTX: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Embed a block of points, insert their corners, list the code of every row number.

    `vertices` and `barycentric` are `[d + 1, points]`, `corner_stride` elements from one corner to the next. With
    DIGIT_BITS = 0 the header of the table holds how to pack a key; otherwise every coordinate gets DIGIT_BITS, around
    the first point. The number of programs is a multiple of `parts`.
    """
    row = tl.arange(0, ROWS)[:, None]
    block = (tl.program_id(0) % parts) * (tl.num_programs(0) // parts) + tl.program_id(0) // parts
    position = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = position < num_points
    # lanes beyond the end repeat the last point
    point = tl.minimum(position, num_points - 1)
    if DIGIT_BITS > 0:
        low = lowest_cell(features, 1 << (DIGIT_BITS - 1), D, ROWS, BLOCK)
        if tl.program_id(0) == 0:
            pack_evenly(table, low, DIGIT_BITS, CORNER_BITS, ITEM_BITS, D, ROWS)
    else:
        low = tl.load(table + LOW + row, mask=row < D, other=0).to(tl.int32)
    # after a failure the blocks that follow need not try
    flag = table + tl.zeros([1, 1], tl.int32)
    failed = tl.maximum(tl.load(flag + FULL), tl.load(flag + NO_ROOM)) > 0
    cell, rank, delta, valid = find_simplex(features, point, STRIDE, D, ROWS)
    place = position[None, :] + row.to(tl.int64) * corner_stride
    real = (row <= D) & inside[None, :]
    weights = tl.maximum(weights_from(delta, rank, D, ROWS) + (row == 0).to(delta.dtype), 0.0)
    tl.store(barycentric + place, weights, mask=real)

    base, units, room = pack_digits(table, cell, low, DIGIT_BITS, CORNER_BITS, D, ROWS)
    if HAS_BATCH:
        item = tl.load(batch + point).to(tl.int64)
        valid = valid & (item >= 0)
        if DIGIT_BITS > 0:
            room = room & (item < (1 << ITEM_BITS))
            base += item << (CORNER_BITS + D * DIGIT_BITS)
        else:
            room = room & (item < tl.load(table + ITEM_EXTENT))
            base += item << tl.load(table + ITEM_SHIFT)
    usable = valid & room
    if tl.min(usable.to(tl.int32), axis=0) == 0:
        if tl.min(valid.to(tl.int32), axis=0) == 0:
            tl.store(table + BAD_FEATURE, 1)
        if tl.min(room.to(tl.int32), axis=0) == 0:
            tl.store(table + NO_ROOM, 1)

    # corner j lies one cell lower along the j coordinates of largest rank; rows beyond d repeat corner 0
    corner = tl.where(row <= D, row, 0)
    lower = rank[None, :, :] > D - corner[:, :, None]
    code = base[None, :] - tl.sum(tl.where(lower, units[None, :, :], 0), axis=1) + corner
    wanted = tl.broadcast_to(usable[None, :] & ~failed, [ROWS, BLOCK])
    # not EMPTY, and never a real code: corner d+1 does not occur
    code = tl.where(wanted, code, D + 1)
    if PTX:
        wanted = wanted & (row <= D)
    unit = unit_of(table, DIGIT_BITS, CORNER_BITS, D)
    slot, number, created, lost = insert(table, code, unit, wanted, capacity, CORNER_BITS, PTX, D)
    if is_any(lost):
        tl.store(table + FULL, 1)
    number = tl.maximum(number, draw_numbers(table, codes, slot, code, created, PTX, ROWS, BLOCK))
    tl.store(vertices + place, wait_for_numbers(table, slot, number, wanted & ~lost, PTX), mask=real)


@triton.jit
def move_rows(table, other, code, number, capacity, CORNER_BITS: tl.constexpr, PTX: tl.constexpr, D: tl.constexpr):
    """Insert rows of a table into another one, and copy the header."""
    if tl.program_id(0) == 0:
        # without its last words, which are unused
        word = tl.arange(0, 128)
        tl.store(other + word, tl.load(table + word))
    unit = tl.load(table + UNIT)
    slot, _, created, _ = insert(other, code, unit, code >= 0, capacity, CORNER_BITS, PTX, D)
    tl.store(entry_of(other, slot) + 1, number.to(tl.int64) + 1, mask=created)


@kernel(sizes=["most_rows", "other_capacity", "taps"], options=["num_warps"])
def unpack_kernel(
    table, codes, keys, other, neighbors, partners, most_rows, other_capacity, taps,
    MOVE: tl.constexpr, PAIRED: tl.constexpr, CORNER_BITS: tl.constexpr, PTX: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the keys of all lattice points, or of the first `most_rows`.

    With MOVE also insert them into another table of that many rows, and do nothing if there are more. With PAIRED
    prepare `neighbors [taps, rows]` for `find_neighbors_kernel`.
    """
    num_rows = tl.load(table + COUNT).to(tl.int32)
    if MOVE:
        num_rows = tl.where(num_rows <= most_rows, num_rows, 0)
    num_rows = tl.minimum(num_rows, most_rows)
    first = tl.program_id(0) * BLOCK
    if first < num_rows:
        place = first + tl.arange(0, BLOCK)[None, :]
        inside = place < num_rows
        number = tl.minimum(place, num_rows - 1)
        code = tl.load(codes + number)
        if PAIRED:
            fill_mirrored_taps(neighbors, partners, first, num_rows, taps, BLOCK)
        if MOVE:
            move_rows(table, other, code, number, other_capacity, CORNER_BITS, PTX, D)
        corner = code & ((1 << CORNER_BITS) - 1)
        key = keys + number.to(tl.int64) * (D + 1)
        # the digits end where the item begins
        end = tl.load(table + ITEM_SHIFT)
        tl.store(key, (code >> end).to(tl.int32), mask=inside)
        for i in tl.static_range(D - 1, -1, -1):
            shift = tl.load(table + SHIFT + i)
            digit = (code >> shift) & ((tl.full([], 1, tl.int64) << (end - shift)) - 1)
            coordinate = (digit + tl.load(table + LOW + i)) * (D + 1) + corner
            tl.store(key + 1 + i, coordinate.to(tl.int32), mask=inside)
            end = shift


class Insertion(NamedTuple):
    """Points that were inserted into a table.

    Attributes:
        table: the vertices that the points touch.
        codes: int64 `[capacity of the table]`, the code of each row number; only drawn numbers are written.
        vertices: int32 `[points, d + 1]`, corner by corner in memory; between levels `[points, 2]`.
        barycentric: `[points, d + 1]`, corner by corner in memory.
        dimension: d.
    """

    table: PackedTable
    codes: Tensor
    vertices: Tensor
    barycentric: Tensor
    dimension: int


def insert_points(features: Tensor, batch: Tensor | None, capacity: int, by_range: bool) -> Insertion:
    """Queue the insertion of all points into a new table. The flags in its header report failures.

    Args:
        features, batch: see `index_points`; the features of a point are contiguous.
        capacity: of the table.
        by_range: give each coordinate the bits that its range needs, not the same for all.
    """
    (points, d), device = features.shape, features.device
    table = PackedTable.empty(capacity, device)
    codes = torch.empty(capacity, dtype=torch.int64, device=device)
    vertices = empty_corners(points, d + 1, torch.int32, device)
    barycentric = empty_corners(points, d + 1, features.dtype, device)
    has_batch, rows = batch is not None, tile_rows(d)
    if by_range:
        pack_by_range(table, features, batch)
    digit_bits, item_bits = even_bits(d, has_batch)
    variant = insert_points_kernel[
        features.stride(0), has_batch, 0 if by_range else digit_bits, item_bits, d.bit_length(), HAS_PTX, d, rows,
        INSERT_BLOCK, cdiv(INSERT_BLOCK, 32), _MOST_REGISTERS.get(rows) if HAS_PTX else None,
    ]  # fmt: skip
    tensors = features, features if batch is None else batch, table.storage, codes, vertices, barycentric
    blocks = cdiv(points, INSERT_BLOCK)
    parts = max(min(blocks // _BLOCKS_OF_A_PART, _PARTS if d <= 3 else _FEWER_PARTS), 1)
    variant((cdiv(blocks, parts) * parts, 1, 1), tensors, (points, vertices.stride(1), capacity, parts))
    return Insertion(table, codes, vertices, barycentric, d)


def unpack_keys(insertion: Insertion, keys: Tensor, other: PackedTable, pairs: TapPairs | None = None) -> None:
    """Write the keys of as many rows as `keys` has; insert them into `other` if it is another table.

    With `pairs`, prepare their neighbors for `search_into`: as many columns as there are lattice points.
    """
    table, (rows, columns) = insertion.table, keys.shape
    neighbors, partners = (keys, keys) if pairs is None else pairs
    move = other is not table
    blocks = (INSERT_BLOCK, cdiv(INSERT_BLOCK, 32)) if move else (_UNPACK_BLOCK, _UNPACK_WARPS)
    variant = unpack_kernel[(move, pairs is not None, (columns - 1).bit_length(), HAS_PTX, columns - 1, *blocks)]
    tensors = table.storage, insertion.codes, keys, other.storage, neighbors, partners
    variant(variant.tiles(rows, 1), tensors, (rows, other.capacity, neighbors.shape[0]))
