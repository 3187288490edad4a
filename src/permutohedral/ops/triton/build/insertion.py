"""Embed the points and put the vertices they touch into the table, all in one pass over the points.

The lane that makes a slot also draws its row number; whoever else needs it waits for it at the end. Nobody who still
has to draw a number waits, so the wait ends.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.build.embedding import find_simplex, lowest_cell, tile_rows, weights_from
from permutohedral.ops.triton.build.host_report import Telling, tell_host, told_by_kernel
from permutohedral.ops.triton.build.key_packing import even_bits, pack_by_range, pack_evenly, unit_of
from permutohedral.ops.triton.build.neighbors import fill_seconds
from permutohedral.ops.triton.build.packed_table import (
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
from permutohedral.ops.triton.runtime import HAS_PTX, Bound, cdiv, empty_corners, power_of_two

# a single warp needs no barrier to know that all its probes have ended
_INSERT_BLOCK = 32
# four rows for each thread
_UNPACK_BLOCK, _UNPACK_WARPS = 256, 2
# Pixels that are near each other touch the same slots, and whoever comes first makes the others wait. So the programs
# that run at the same time take their points from many parts of the whole, each of several blocks. Where a part has
# many corners to write, fewer parts at a time were faster: in up to three dimensions, and in more.
_PARTS, _FEWER_PARTS, _BLOCKS_OF_A_PART = 512, 64, 16
# registers of a thread that were fastest for tiles of so many rows (2 and 3, 4 to 7 dimensions), measured on an H200
_MOST_REGISTERS = {4: 48, 8: 72}
# how often a lane asks for a number that another one draws: some milliseconds
_MOST_WAITS = tl.constexpr(1 << 16)


@triton.jit
def pack_digits(
    header, cell, low, DIGIT_BITS: tl.constexpr, CORNER_BITS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr
):
    """The code of the cells without item and corner int64 `[BLOCK]`, one step of each digit, and whether they fit."""
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
    """Number the slots that were created and write the numbers down; -1 for the other lanes."""
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
    """The numbers in the slots, which other lanes may still have to draw; 0 for lanes that are not `wanted`."""
    waiting = wanted & (number < 0)
    waits = 0
    while is_any(waiting) & (waits < _MOST_WAITS):
        number = tl.maximum(number, load_number(entry_of(table, slot) + 1, waiting, PTX).to(tl.int32) - 1)
        waiting = waiting & (number < 0)
        waits += 1
    if is_any(waiting):
        tl.store(table + FULL, 1)
    return tl.maximum(number, 0)


@triton.jit(do_not_specialize=["num_points", "corner_stride", "capacity", "parts"])
def insert_points_kernel(
    features, batch, table, codes, vertices, barycentric, num_points, corner_stride, capacity, parts,
    STRIDE: tl.constexpr, HAS_BATCH: tl.constexpr, DIGIT_BITS: tl.constexpr, ITEM_BITS: tl.constexpr,
    CORNER_BITS: tl.constexpr, PTX: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Embed a block of points, insert their corners, list the code of every row number.

    `vertices` and `barycentric` are `[d + 1, points]`, `corner_stride` elements from one corner to the next. With
    DIGIT_BITS = 0 the table's header says how to pack a key; else bits are dealt out evenly, around the first point.
    The number of programs is a multiple of the `parts`.
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
    # once the attempt has failed, the blocks that follow need not try
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
    # never empty, and in nobody's way: corner d+1 does not occur
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
    """Insert rows of a table into another one, with its header."""
    if tl.program_id(0) == 0:
        # but for its last words, which hold nothing
        word = tl.arange(0, 128)
        tl.store(other + word, tl.load(table + word))
    unit = tl.load(table + UNIT)
    slot, _, created, _ = insert(other, code, unit, code >= 0, capacity, CORNER_BITS, PTX, D)
    tl.store(entry_of(other, slot) + 1, number.to(tl.int64) + 1, mask=created)


@triton.jit(do_not_specialize=["most_rows", "other_capacity", "taps", "num_points"])
def unpack_kernel(
    table, codes, keys, other, neighbors, offsets, features, words, most_rows, other_capacity, taps, num_points,
    MOVE: tl.constexpr, TAPS: tl.constexpr, TOLD: tl.constexpr, STRIDE: tl.constexpr, CORNER_BITS: tl.constexpr,
    PTX: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the keys of all lattice points, or of the first `most_rows`; with MOVE also insert them into another table,
    which has room for so many, and do nothing if there are more. With TAPS prepare `neighbors [taps, rows]` beside it.
    """
    tell_host(table, features, words, num_points, TOLD, STRIDE, D)
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
        if TAPS > 0:
            fill_seconds(neighbors, offsets, first, num_rows, taps, D, TAPS, BLOCK)
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
    """What inserting all points gives.

    Attributes:
        table: the vertices that the points touch.
        codes: int64 `[capacity of the table]`, the code of each row number; as many are written as rows are drawn.
        vertices: int32 `[points, d + 1]`, corner by corner in memory.
        barycentric: `[points, d + 1]`, corner by corner in memory.
        dimension: d; from level to level there are other vertices than the corners of simplices.
    """

    table: PackedTable
    codes: Tensor
    vertices: Tensor
    barycentric: Tensor
    dimension: int


def insert_points(
    features: Tensor, batch: Tensor | None, capacity: int, by_range: bool, table: PackedTable | None = None
) -> Insertion:
    """Start inserting all points into a new table; whether they fit the kernel tells that follows: see `Telling`.

    Args:
        features, batch: see `index_points`; the features of a point are contiguous.
        capacity: of the table.
        by_range: whether the bits of a key are dealt out by the range of the data.
        table: an empty one of this capacity, if there is one.
    """
    points, d = features.shape
    device = features.device
    table = table or PackedTable.empty(capacity, device)
    codes = torch.empty(capacity, dtype=torch.int64, device=device)
    vertices = empty_corners(points, d + 1, torch.int32, device)
    barycentric = empty_corners(points, d + 1, features.dtype, device)
    if by_range:
        pack_by_range(table, features, batch)
    bound = _bind_insert(d, features.stride(0), batch is not None, by_range)
    tensors = features, features if batch is None else batch, table.storage, codes, vertices, barycentric
    blocks = cdiv(points, _INSERT_BLOCK)
    parts = max(min(blocks // _BLOCKS_OF_A_PART, _PARTS if d <= 3 else _FEWER_PARTS), 1)
    bound((cdiv(blocks, parts) * parts, 1, 1), tensors, (points, vertices.stride(1), capacity, parts))
    return Insertion(table, codes, vertices, barycentric, d)


@cache
def _bind_insert(d: int, stride: int, has_batch: bool, by_range: bool) -> Bound:
    digit_bits, item_bits = even_bits(d, has_batch)
    return Bound(
        insert_points_kernel, STRIDE=stride, HAS_BATCH=has_batch, DIGIT_BITS=0 if by_range else digit_bits,
        ITEM_BITS=item_bits, CORNER_BITS=d.bit_length(), PTX=HAS_PTX, D=d, ROWS=tile_rows(d), BLOCK=_INSERT_BLOCK,
        num_warps=cdiv(_INSERT_BLOCK, 32), **_register_limit(tile_rows(d)),
    )  # fmt: skip


def _register_limit(rows: int) -> dict[str, int]:
    """Fewer registers than the compiler would take let more warps wait for memory at once, until they spill."""
    return {"maxnreg": _MOST_REGISTERS[rows]} if HAS_PTX and rows in _MOST_REGISTERS else {}


def unpack_keys(
    insertion: Insertion,
    keys: Tensor,
    other: PackedTable,
    paired: tuple[Tensor, Tensor] | None = None,
    telling: Telling | None = None,
) -> None:
    """Write the keys of as many rows as `keys` has; an `other` table than the insertion's gets them, too.

    `paired`, neighbors `[taps, rows]` and their offsets, are prepared for `search_into`, as many columns as there are
    lattice points. With `telling` the host is told what became of the insertion.
    """
    table, (rows, columns) = insertion.table, keys.shape
    neighbors, offsets = (keys, keys) if paired is None else paired
    taps = 0 if paired is None else neighbors.shape[0]
    told, points, constants = told_by_kernel(telling, keys)
    bound = _bind_unpack(columns - 1, other is not table, power_of_two(taps) if taps else 0, *constants)
    tensors = table.storage, insertion.codes, keys, other.storage, neighbors, offsets, *told
    bound(bound.tiles(rows, 1), tensors, (rows, other.capacity, taps, points))


@cache
def _bind_unpack(d: int, move: bool, taps: int, told: int, stride: int) -> Bound:
    block, warps = (_INSERT_BLOCK, cdiv(_INSERT_BLOCK, 32)) if move else (_UNPACK_BLOCK, _UNPACK_WARPS)
    return Bound(
        unpack_kernel, MOVE=move, TAPS=taps, TOLD=told, STRIDE=stride, CORNER_BITS=d.bit_length(), PTX=HAS_PTX, D=d,
        BLOCK=block, num_warps=warps,
    )  # fmt: skip
