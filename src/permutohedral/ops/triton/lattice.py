"""Build the lattice: embed the points, number the vertices they touch.

One pass embeds and inserts (`insert_points_kernel`); the thread that makes a slot also draws its row number, which the
others read if it has been written by then and otherwise find afterwards (`resolve_kernel`). The host reads the number
of lattice points and the error flags together, once. Where the points come in no spatial order the lattice points are
numbered along a space-filling curve: a convolution then finds neighbors near each other in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.primitives import key_limit, range_error
from permutohedral.ops.triton import wide
from permutohedral.ops.triton.embedding import LARGEST_TILE_DIMENSION, find_simplex, tile_rows, weights_from
from permutohedral.ops.triton.launch import cdiv, has_ptx, launch, on_device, power_of_two, rows_contiguous
from permutohedral.ops.triton.packing import fixed_bits, pack
from permutohedral.ops.triton.table import (
    BAD_FEATURE,
    COUNT,
    EXTENT,
    FAR_PAIRS,
    FULL,
    ITEM_EXTENT,
    ITEM_SHIFT,
    LOW,
    NO_ROOM,
    SAMPLES,
    SHIFT,
    PackedTable,
    capacity_for,
    codes_of,
    insert,
    rows_of,
)

# above it, the bits of a key are dealt out by the range of the data
_LARGEST_FIXED_DIMENSION = 7
# a single warp needs no barrier to know that all its probes have ended
_INSERT_BLOCK = 32
# the values of a smaller lattice stay in the cache of a large GPU, whatever their order
_WORTH_ORDERING = 1 << 21


@triton.jit
def pack_digits(header, cell, DIGIT_BITS: tl.constexpr, CORNER_BITS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    """The code of the cells without item and corner int64 `[BLOCK]`, one step of each digit, and whether they fit."""
    row = tl.arange(0, ROWS)[:, None]
    coordinate = row < D
    digit = cell - tl.load(header + LOW + row, mask=coordinate, other=0).to(tl.int32)
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
def draw_numbers(table, slots, slot, created, capacity, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Number the slots that were created and write the numbers down; -1 for the other lanes."""
    made = created.to(tl.int32)
    total = tl.sum(made, axis=0)
    number = tl.full([ROWS, BLOCK], -1, tl.int32)
    if tl.sum(total, axis=0) > 0:
        first = tl.atomic_add(table + COUNT, tl.sum(total, axis=0).to(tl.int64), sem="relaxed").to(tl.int32) + 1
        before = (tl.cumsum(total, axis=0) - total)[None, :] + tl.cumsum(made, axis=0) - made
        number = tl.where(created, first + before, -1)
        tl.store(rows_of(table, capacity) + slot, number, mask=created)
        tl.store(slots + number, slot, mask=created)
    return number


@triton.jit(do_not_specialize=["num_points", "capacity"])
def insert_points_kernel(
    features, batch, table, slots, vertices, barycentric, num_points, capacity,
    STRIDE: tl.constexpr, HAS_BATCH: tl.constexpr, DIGIT_BITS: tl.constexpr, CORNER_BITS: tl.constexpr,
    PTX: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Embed a block of points, insert their corners. `vertices` and `barycentric` are `[d + 1, points]`."""
    row = tl.arange(0, ROWS)[:, None]
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    # lanes beyond the end repeat the last point
    point = tl.minimum(point, num_points - 1)
    cell, rank, delta, valid = find_simplex(features, point, STRIDE, D, ROWS)
    place = point[None, :] + row.to(tl.int64) * num_points
    real = (row <= D) & inside[None, :]
    weights = tl.maximum(weights_from(delta, rank, D, ROWS) + (row == 0).to(delta.dtype), 0.0)
    tl.store(barycentric + place, weights, mask=real)

    base, unit, room = pack_digits(table, cell, DIGIT_BITS, CORNER_BITS, D, ROWS)
    if HAS_BATCH:
        item = tl.load(batch + point).to(tl.int64)
        room = room & (item < tl.load(table + ITEM_EXTENT))
        base += item << tl.load(table + ITEM_SHIFT)
    if tl.min(valid.to(tl.int32), axis=0) == 0:
        tl.store(table + BAD_FEATURE, 1)
    if tl.min(room.to(tl.int32), axis=0) == 0:
        tl.store(table + NO_ROOM, 1)

    # corner j lies one cell lower along the j coordinates of largest rank; rows beyond d repeat corner 0
    corner = tl.where(row <= D, row, 0)
    lower = rank[None, :, :] > D - corner[:, :, None]
    code = base[None, :] - tl.sum(tl.where(lower, unit[None, :, :], 0), axis=1) + corner
    # once the attempt has failed, the blocks that follow need not try
    flag = table + tl.zeros([1, 1], tl.int32)
    failed = tl.maximum(tl.load(flag + FULL), tl.load(flag + NO_ROOM)) >= 0
    wanted = tl.broadcast_to((valid & room)[None, :] & ~failed, [ROWS, BLOCK])
    code = tl.where(wanted, code, 0)
    if PTX:
        wanted = wanted & (row <= D)
    slot, created, lost = insert(codes_of(table), code, wanted, capacity, PTX)
    if tl.max(tl.max(lost.to(tl.int32), axis=1), axis=0) > 0:
        tl.store(table + FULL, 1)
    number = draw_numbers(table, slots, slot, created, capacity, ROWS, BLOCK)
    known = tl.load(rows_of(table, capacity) + slot, mask=real & (number < 0), other=-1)
    number = tl.maximum(number, known)
    tl.store(vertices + place, tl.where(number < 0, -2 - slot, number), mask=real)


@triton.jit(do_not_specialize=["num_entries", "capacity"])
def resolve_kernel(vertices, table, num_entries, capacity, BLOCK: tl.constexpr):
    """Replace what stands for a slot, -2 - slot, by the row number in that slot."""
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    vertex = tl.load(vertices + entry, mask=entry < num_entries, other=0)
    unknown = vertex < -1
    if tl.max(unknown.to(tl.int32), axis=0) > 0:
        number = tl.load(rows_of(table, capacity) + (-2 - vertex), mask=unknown, other=0)
        tl.store(vertices + entry, number, mask=unknown)


@triton.jit(do_not_specialize=["num_rows"])
def order_kernel(table, slots, order, num_rows, EXACT: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    """What to sort the rows by: their codes, or 31 bits along a space-filling curve."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < num_rows
    code = tl.load(codes_of(table) + tl.load(slots + number, mask=inside, other=0), mask=inside, other=0)
    if EXACT:
        tl.store(order + number, code, mask=inside)
    else:
        BITS: tl.constexpr = 31 // D
        curve = tl.zeros([BLOCK], tl.int32)
        for i in tl.static_range(D):
            digit = (code >> tl.load(table + SHIFT + i)).to(tl.int32)
            for bit in tl.static_range(BITS):
                curve |= ((digit >> bit) & 1) << (bit * D + i)
        tl.store(order + number, curve, mask=inside)


@triton.jit(do_not_specialize=["num_rows", "capacity"])
def renumber_rows_kernel(table, slots, order, new_slots, new_number, num_rows, capacity, BLOCK: tl.constexpr):
    """Give the row `order[i]` the number i."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < num_rows
    old = tl.load(order + number, mask=inside, other=0)
    slot = tl.load(slots + old, mask=inside, other=0)
    tl.store(new_slots + number, slot, mask=inside)
    tl.store(new_number + old, number, mask=inside)
    tl.store(rows_of(table, capacity) + slot, number, mask=inside)


@triton.jit(do_not_specialize=["num_entries"])
def renumber_vertices_kernel(vertices, new_number, num_entries, BLOCK: tl.constexpr):
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < num_entries
    vertex = tl.load(vertices + entry, mask=inside, other=0)
    tl.store(vertices + entry, tl.load(new_number + vertex, mask=inside, other=0), mask=inside)


@triton.jit(do_not_specialize=["num_rows", "capacity", "small_capacity"])
def unpack_kernel(
    table, slots, keys, small, num_rows, capacity, small_capacity, SHRINK: tl.constexpr, CORNER_BITS: tl.constexpr,
    PTX: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the keys of all lattice points; with SHRINK also insert them into a smaller table."""
    row = tl.arange(0, ROWS)[:, None]
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < num_rows
    number = tl.minimum(number, num_rows - 1)
    code = tl.load(codes_of(table) + tl.load(slots + number))
    if SHRINK:
        if tl.program_id(0) == 0:
            word = tl.arange(0, 128)
            tl.store(small + word, tl.load(table + word))
        tile = code[None, :]
        slot, created, _ = insert(codes_of(small), tile, tile >= 0, small_capacity, PTX)
        tl.store(rows_of(small, small_capacity) + slot, number[None, :], mask=created)
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


@dataclass
class _Insertion:
    """What one attempt at inserting all points left behind."""

    table: PackedTable
    slots: Tensor  # int32 [capacity], slot of each row number
    vertices: Tensor  # int32 [d + 1, points]
    barycentric: Tensor  # [d + 1, points]


def _insert(features: Tensor, batch: Tensor | None, capacity: int, tight: bool) -> _Insertion:
    points, d = features.shape
    device = features.device
    table = PackedTable.empty(capacity, device)
    pack(table.storage, features, batch, tight)
    insertion = _Insertion(
        table,
        torch.empty(capacity, dtype=torch.int32, device=device),
        torch.empty(d + 1, points, dtype=torch.int32, device=device),
        torch.empty(d + 1, points, dtype=features.dtype, device=device),
    )
    launch(
        insert_points_kernel, (cdiv(points, _INSERT_BLOCK),), features, batch, table.storage, insertion.slots,
        insertion.vertices, insertion.barycentric, points, capacity, STRIDE=features.stride(0),
        HAS_BATCH=batch is not None, DIGIT_BITS=0 if tight else fixed_bits(d, batch is not None)[0],
        CORNER_BITS=d.bit_length(), PTX=has_ptx(), D=d, ROWS=tile_rows(d), BLOCK=_INSERT_BLOCK,
        num_warps=cdiv(_INSERT_BLOCK, 32),
    )  # fmt: skip
    entries = insertion.vertices.numel()
    launch(resolve_kernel, (cdiv(entries, 1024),), insertion.vertices, table.storage, entries, capacity, BLOCK=1024)
    return insertion


def _reorder(insertion: _Insertion, num: int, exact: bool) -> None:
    """Renumber the lattice points: in the order of their codes, which no scheduling changes, or along a curve."""
    table, slots = insertion.table.storage, insertion.slots
    capacity, d = insertion.table.capacity, insertion.vertices.shape[0] - 1
    keys = torch.empty(num, dtype=torch.int64 if exact else torch.int32, device=table.device)
    grid = (cdiv(num, 512),)
    launch(order_kernel, grid, table, slots, keys, num, EXACT=exact, D=d, BLOCK=512)
    order = torch.sort(keys).indices
    new_slots = torch.empty(num, dtype=torch.int32, device=table.device)
    new_number = torch.empty(num, dtype=torch.int32, device=table.device)
    launch(renumber_rows_kernel, grid, table, slots, order, new_slots, new_number, num, capacity, BLOCK=512)
    entries = insertion.vertices.numel()
    launch(renumber_vertices_kernel, (cdiv(entries, 1024),), insertion.vertices, new_number, entries, BLOCK=1024)
    insertion.slots = new_slots


def _finish(insertion: _Insertion, num: int, d: int) -> tuple[Tensor, Tensor]:
    """The keys, and the table: a smaller one if most of it is empty."""
    table = insertion.table
    small_capacity = capacity_for(num)
    shrink = table.capacity > 2 * small_capacity
    small = PackedTable.empty(small_capacity, table.storage.device) if shrink else table
    keys = torch.empty(num, d + 1, dtype=torch.int32, device=table.storage.device)
    launch(
        unpack_kernel, (cdiv(num, 32),), table.storage, insertion.slots, keys, small.storage, num, table.capacity,
        small.capacity, SHRINK=shrink, CORNER_BITS=d.bit_length(), PTX=has_ptx(), D=d, ROWS=tile_rows(d), BLOCK=32,
        num_warps=1,
    )  # fmt: skip
    return keys, small.storage


def _first_capacity(num_entries: int) -> int:
    """Enough for any small lattice; a large one is rarely more than a twelfth of what the points could touch."""
    return power_of_two(min(2 * num_entries, max(1 << 22, num_entries // 6)), 64)


@on_device
def index_points(features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    points, d = features.shape
    if points == 0 or d > LARGEST_TILE_DIMENSION:
        return wide.index_points(features, batch)
    features = rows_contiguous(features)
    capacity, largest = _first_capacity(points * (d + 1)), capacity_for(points * (d + 1))
    tight = d > _LARGEST_FIXED_DIMENSION
    while True:
        insertion = _insert(features, batch, capacity, tight)
        last, bad, no_room, full, far = insertion.table.storage[COUNT.value : FAR_PAIRS.value + 1].tolist()
        if bad >= 0:
            raise range_error(features, key_limit(features.dtype))
        if no_room < 0 and full < 0:
            break
        if (no_room >= 0 and tight) or (full >= 0 and capacity >= largest):
            return wide.index_points(features, batch)
        tight = tight or no_room >= 0
        capacity = min(8 * capacity, largest) if full >= 0 else capacity
    num = last + 1
    exact = torch.are_deterministic_algorithms_enabled()
    if exact or (num >= _WORTH_ORDERING and 2 * far > SAMPLES.value):
        _reorder(insertion, num, exact)
    keys, table = _finish(insertion, num, d)
    return keys, insertion.vertices.T, insertion.barycentric.T, table
