"""Embed the points and put the vertices they touch into the table: one pass over the points, another over its rest.

The thread that makes a slot also draws its row number, which the others read if it has been written by then
(`insert_points_kernel`) and otherwise find afterwards (`resolve_kernel`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.embedding import find_simplex, tile_rows, weights_from
from permutohedral.ops.triton.launch import cdiv, has_ptx, launch
from permutohedral.ops.triton.packing import fixed_bits, prepare_table, prepare_tight_table
from permutohedral.ops.triton.report import REPORT
from permutohedral.ops.triton.table import (
    BAD_FEATURE,
    COUNT,
    EXTENT,
    FULL,
    ITEM_EXTENT,
    ITEM_SHIFT,
    LOW,
    NO_ROOM,
    SHIFT,
    PackedTable,
    entry_of,
    insert,
    is_any,
    load_number,
    store_lanes,
)

# a single warp needs no barrier to know that all its probes have ended
_INSERT_BLOCK = 32
# words that a report of `resolve_kernel` has
REPORTED = tl.constexpr(5)


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
def draw_numbers(
    table, rows, slot, code, created, most_rows, PTX: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Number the slots that were created and write the numbers down; -1 for the other lanes."""
    made = created.to(tl.int32)
    total = tl.sum(made, axis=0)
    number = tl.full([ROWS, BLOCK], -1, tl.int32)
    if tl.sum(total, axis=0) > 0:
        first = tl.atomic_add(table + COUNT, tl.sum(total, axis=0).to(tl.int64), sem="relaxed").to(tl.int32) + 1
        before = (tl.cumsum(total, axis=0) - total)[None, :] + tl.cumsum(made, axis=0) - made
        number = tl.where(created, first + before, -1)
        store_lanes(entry_of(table, slot) + 1, number.to(tl.int64), created, PTX)
        listed = created & (number < most_rows)
        if rows.dtype.element_ty == tl.int64:
            store_lanes(rows + number, code, listed, PTX)
        else:
            store_lanes(rows + number, slot, listed, PTX)
    return number


@triton.jit(do_not_specialize=["num_points", "capacity", "most_rows"])
def insert_points_kernel(
    features, batch, table, rows, vertices, barycentric, num_points, capacity, most_rows,
    STRIDE: tl.constexpr, HAS_BATCH: tl.constexpr, DIGIT_BITS: tl.constexpr, CORNER_BITS: tl.constexpr,
    PTX: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Embed a block of points, insert their corners. `vertices` and `barycentric` are `[d + 1, points]`.

    `rows [most_rows]` lists the slot of each row number if it is int32, its code if it is int64. A row number of at
    least `most_rows` is taken for the last one below it.
    """
    row = tl.arange(0, ROWS)[:, None]
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = position < num_points
    # lanes beyond the end repeat the last point
    point = tl.minimum(position, num_points - 1)
    low = tl.load(table + LOW + row, mask=row < D, other=0).to(tl.int32)
    # once the attempt has failed, the blocks that follow need not try
    flag = table + tl.zeros([1, 1], tl.int32)
    failed = tl.maximum(tl.load(flag + FULL), tl.load(flag + NO_ROOM)) >= 0
    cell, rank, delta, valid = find_simplex(features, point, STRIDE, D, ROWS)
    place = position[None, :] + row.to(tl.int64) * num_points
    real = (row <= D) & inside[None, :]
    weights = tl.maximum(weights_from(delta, rank, D, ROWS) + (row == 0).to(delta.dtype), 0.0)
    tl.store(barycentric + place, weights, mask=real)

    base, unit, room = pack_digits(table, cell, low, DIGIT_BITS, CORNER_BITS, D, ROWS)
    if HAS_BATCH:
        item = tl.load(batch + point).to(tl.int64)
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
    code = base[None, :] - tl.sum(tl.where(lower, unit[None, :, :], 0), axis=1) + corner
    wanted = tl.broadcast_to(usable[None, :] & ~failed, [ROWS, BLOCK])
    code = tl.where(wanted, code, 0)
    if PTX:
        wanted = wanted & (row <= D)
    slot, number, created, lost = insert(table, code, wanted, capacity, PTX)
    if is_any(lost):
        tl.store(table + FULL, 1)
    number = tl.maximum(number, draw_numbers(table, rows, slot, code, created, most_rows, PTX, ROWS, BLOCK))
    # whoever made the slot may have numbered it by now, which the nearest cache does not know
    number = tl.maximum(number, load_number(entry_of(table, slot) + 1, real & (number < 0), PTX).to(tl.int32))
    tl.store(vertices + place, tl.where(number < 0, -2 - slot, tl.minimum(number, most_rows - 1)), mask=real)


@triton.jit(do_not_specialize=["num_entries", "most_rows"])
def resolve_kernel(vertices, table, report, num_entries, most_rows, BLOCK: tl.constexpr):
    """Replace what stands for a slot, -2 - slot, by the row number in that slot; tell the host count and flags."""
    if tl.program_id(0) == 0:
        # the count, then what follows the first flag
        word = tl.arange(0, REPORT)
        told = table + tl.where(word == 0, COUNT, BAD_FEATURE - 1 + word)
        tl.store(report + word, tl.load(told, mask=word < REPORTED, other=0), mask=word < REPORTED)
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    vertex = tl.load(vertices + entry, mask=entry < num_entries, other=0)
    unknown = vertex < -1
    if tl.max(unknown.to(tl.int32), axis=0) > 0:
        number = tl.load(entry_of(table, -2 - vertex) + 1, mask=unknown, other=0).to(tl.int32)
        # an attempt that failed leaves slots without a number
        tl.store(vertices + entry, tl.maximum(tl.minimum(number, most_rows - 1), 0), mask=unknown)


@triton.jit
def unpack_rows(
    table, slots, keys, other, num_rows, other_capacity, MOVE: tl.constexpr, CORNER_BITS: tl.constexpr,
    PTX: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)[:, None]
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < num_rows
    number = tl.minimum(number, num_rows - 1)
    code = tl.load(entry_of(table, tl.load(slots + number)))
    if MOVE:
        if tl.program_id(0) == 0:
            word = tl.arange(0, 128)
            tl.store(other + word, tl.load(table + word))
        tile = code[None, :]
        slot, _, created, _ = insert(other, tile, tile >= 0, other_capacity, PTX)
        tl.store(entry_of(other, slot) + 1, number.to(tl.int64)[None, :], mask=created)
    corner = code & ((1 << CORNER_BITS) - 1)
    # row 0 is the item, row i + 1 coordinate i
    coordinate = (row >= 1) & (row <= D)
    item_shift = tl.load(table + ITEM_SHIFT)
    shift = tl.load(table + SHIFT + row - 1, mask=coordinate, other=0)
    following = tl.load(table + SHIFT + row, mask=coordinate & (row < D), other=0)
    following = tl.where(row < D, following, item_shift)
    digit = (code[None, :] >> shift) & ((tl.full([1, 1], 1, tl.int64) << (following - shift)) - 1)
    quotient = digit + tl.load(table + LOW + row - 1, mask=coordinate, other=0)
    value = tl.where(row == 0, (code >> item_shift)[None, :], quotient * (D + 1) + corner[None, :])
    place = number.to(tl.int64)[None, :] * (D + 1) + row
    tl.store(keys + place, value.to(tl.int32), mask=(row <= D) & inside[None, :])


@triton.jit(do_not_specialize=["most_rows", "other_capacity"])
def unpack_kernel(
    table, slots, keys, other, most_rows, other_capacity, MOVE: tl.constexpr, CORNER_BITS: tl.constexpr,
    PTX: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the keys of all lattice points; with MOVE also insert them into another table."""
    num_rows = tl.minimum(tl.load(table + COUNT).to(tl.int32) + 1, most_rows)
    if tl.program_id(0) * BLOCK < num_rows:
        unpack_rows(
            table, slots, keys, other, num_rows, other_capacity, MOVE, CORNER_BITS, PTX, D, ROWS, BLOCK
        )  # fmt: skip


@dataclass
class Insertion:
    """The tables that an attempt at inserting all points fills."""

    table: PackedTable
    rows: Tensor  # [most_rows], of each row number the slot, int32, or the code, int64
    vertices: Tensor  # int32 [points, d + 1], corner by corner
    barycentric: Tensor  # [points, d + 1], corner by corner
    keys: Tensor | None = None  # int32 [at least lattice points, 1 + d], if they were unpacked ahead

    @staticmethod
    def empty(features: Tensor, capacity: int, rows: Tensor | None = None) -> Insertion:
        """Tables for `features` that hold nothing.

        Args:
            features: as of `index_points`.
            capacity: of the table.
            rows: where to list slots or codes, as many as row numbers are to be told apart; default: slots of them all.
        """
        points, d = features.shape
        shape, strides = (points, d + 1), (1, points)
        return Insertion(
            PackedTable(features.new_empty(PackedTable.words(capacity), dtype=torch.int64)),
            features.new_empty(capacity, dtype=torch.int32) if rows is None else rows,
            features.new_empty_strided(shape, strides, dtype=torch.int32),
            features.new_empty_strided(shape, strides),
        )


def insert_points(
    insertion: Insertion, features: Tensor, batch: Tensor | None, tight: bool, around: Tensor | None = None
) -> None:
    """Insert all points into the emptied table.

    Args:
        insertion: is filled but for what `resolve_vertices` does.
        features, batch: as of `index_points`.
        tight: whether the bits of a key are dealt out by the range of the data.
        around: the codes of two tables that were made around the same features are the same, unless they are `tight`.
    """
    points, d = features.shape
    table, rows = insertion.table, insertion.rows
    if tight:
        prepare_tight_table(table, features, batch)
    else:
        prepare_table(table, features if around is None else around, batch is not None)
    launch(
        insert_points_kernel, (cdiv(points, _INSERT_BLOCK),), features, batch, table.storage, rows,
        insertion.vertices, insertion.barycentric, points, table.capacity, rows.numel(), STRIDE=features.stride(0),
        HAS_BATCH=batch is not None, DIGIT_BITS=0 if tight else fixed_bits(d, batch is not None)[0],
        CORNER_BITS=d.bit_length(), PTX=has_ptx(), D=d, ROWS=tile_rows(d), BLOCK=_INSERT_BLOCK,
        num_warps=cdiv(_INSERT_BLOCK, 32),
    )  # fmt: skip


def resolve_vertices(insertion: Insertion, report: Tensor) -> None:
    """Finish the vertices, and write count and flags into `report`."""
    entries = insertion.vertices.numel()
    launch(
        resolve_kernel, (cdiv(entries, 1024),), insertion.vertices, insertion.table.storage, report, entries,
        insertion.rows.numel(), BLOCK=1024,
    )  # fmt: skip


def unpack_keys(insertion: Insertion, keys: Tensor, other: PackedTable) -> Tensor:
    """Write the keys of as many rows as `keys` has; an `other` table than the insertion's gets them, too."""
    table, (rows, columns) = insertion.table, keys.shape
    launch(
        unpack_kernel, (cdiv(rows, 32),), table.storage, insertion.rows, keys, other.storage, rows, other.capacity,
        MOVE=other is not table, CORNER_BITS=(columns - 1).bit_length(), PTX=has_ptx(), D=columns - 1,
        ROWS=tile_rows(columns - 1), BLOCK=32, num_warps=1,
    )  # fmt: skip
    return keys
