"""Build the lattice: embed the points, number the vertices they touch.

One pass embeds and inserts (`insert_points_kernel`); the thread that makes a slot also draws its row number, which the
others read if it has been written by then and otherwise find afterwards (`resolve_kernel`). The host reads the number of
lattice points and the error flags together, once.
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
from permutohedral.ops.triton.launch import cdiv, has_ptx, on_device, power_of_two
from permutohedral.ops.triton.table import (
    BAD_FEATURE,
    COUNT,
    EXTENT,
    FULL,
    HEADER,
    ITEM_EXTENT,
    ITEM_SHIFT,
    LOW,
    NO_ROOM,
    SHIFT,
    PackedTable,
    capacity_for,
    insert,
)

# above it, the bits of a key are dealt out by the range of the data
_LARGEST_FIXED_DIMENSION = 7
# a code is a non-negative int64
_CODE_BITS = 63
_ITEM_BITS = 12
_DIGIT_BITS = 30
# points and warps of one program; a single warp needs no barrier to know that all its probes have ended
_INSERT_TILE = (32, 1)


@triton.jit
def fixed_packing_kernel(
    features, header, point_stride, column_stride, DIGIT_BITS: tl.constexpr, CORNER_BITS: tl.constexpr,
    ITEM_BITS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Give every coordinate the same number of bits, around the first point."""
    row = tl.arange(0, ROWS)
    # one column per lane of a warp, all of them the first point
    point = tl.zeros([32], tl.int32)
    cell, _, _, _ = find_simplex(features, point, point_stride, column_stride, D, ROWS)
    tl.store(header + LOW + row, tl.max(cell, axis=1).to(tl.int64) - (1 << (DIGIT_BITS - 1)), mask=row < D)
    tl.store(header + SHIFT + row, (CORNER_BITS + row * DIGIT_BITS).to(tl.int64), mask=row < D)
    tl.store(header + EXTENT + row, tl.full([ROWS], 1 << DIGIT_BITS, tl.int64), mask=row < D)
    tl.store(header + ITEM_SHIFT, CORNER_BITS + D * DIGIT_BITS)
    tl.store(header + ITEM_EXTENT, 1 << ITEM_BITS)


@triton.jit
def range_kernel(
    features, batch, bounds, num_points, point_stride, column_stride,
    HAS_BATCH: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Lower `bounds`, int32 `[2 ROWS + 1]`: to the quotients, to their negatives, to the negative of the largest item."""
    row = tl.arange(0, ROWS)
    low = tl.full([ROWS, BLOCK], 2**30, tl.int32)
    high = tl.full([ROWS, BLOCK], 2**30, tl.int32)
    item = tl.zeros([BLOCK], tl.int32)
    for start in range(tl.program_id(0) * BLOCK, num_points, tl.num_programs(0) * BLOCK):
        point = tl.minimum(start + tl.arange(0, BLOCK), num_points - 1)
        cell, _, _, _ = find_simplex(features, point, point_stride, column_stride, D, ROWS)
        low = tl.minimum(low, cell)
        high = tl.minimum(high, -cell)
        if HAS_BATCH:
            item = tl.minimum(item, -tl.load(batch + point))
    tl.atomic_min(bounds + row, tl.min(low, axis=1), mask=row < D, sem="relaxed")
    tl.atomic_min(bounds + ROWS + row, tl.min(high, axis=1), mask=row < D, sem="relaxed")
    if HAS_BATCH:
        tl.atomic_min(bounds + 2 * ROWS, tl.min(item, axis=0), sem="relaxed")


@triton.jit
def tight_packing_kernel(bounds, header, CORNER_BITS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
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


@triton.jit
def insert_points_kernel(
    features, batch, header, codes, rows, slots, vertices, barycentric, num_points, point_stride, column_stride,
    capacity, HAS_BATCH: tl.constexpr, PUBLISH: tl.constexpr, PTX: tl.constexpr,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Embed a block of points, insert their corners. `vertices` and `barycentric` are `[d + 1, points]`."""
    row = tl.arange(0, ROWS)[:, None]
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    # lanes beyond the end repeat the last point
    point = tl.minimum(point, num_points - 1)
    cell, rank, delta, valid = find_simplex(features, point, point_stride, column_stride, D, ROWS)
    place = point[None, :] + row.to(tl.int64) * num_points
    real = (row <= D) & inside[None, :]
    weights = tl.maximum(weights_from(delta, rank, D, ROWS) + (row == 0).to(delta.dtype), 0.0)
    tl.store(barycentric + place, weights, mask=real)

    coordinate = row < D
    digit = cell.to(tl.int64) - tl.load(header + LOW + row, mask=coordinate, other=0)
    shift = tl.load(header + SHIFT + row, mask=coordinate, other=0)
    fits = (digit > 0) & (digit < tl.load(header + EXTENT + row, mask=coordinate, other=0))
    room = tl.min((fits | (row >= D)).to(tl.int32), axis=0) > 0
    base = tl.sum(tl.where(coordinate, digit << shift, 0), axis=0)
    if HAS_BATCH:
        item = tl.load(batch + point).to(tl.int64)
        room = room & (item < tl.load(header + ITEM_EXTENT))
        base += item << tl.load(header + ITEM_SHIFT)
    if tl.min(valid.to(tl.int32), axis=0) == 0:
        tl.store(header + BAD_FEATURE, 1)
    if tl.min(room.to(tl.int32), axis=0) == 0:
        tl.store(header + NO_ROOM, 1)

    # corner j lies one cell lower along the j coordinates of largest rank; rows beyond d repeat corner 0
    corner = tl.where(row <= D, row, 0)
    unit = tl.where(coordinate, tl.full([1, 1], 1, tl.int64) << shift, 0)
    lower = rank[None, :, :] > D - corner[:, :, None]
    code = base[None, :] - tl.sum(tl.where(lower, unit[None, :, :], 0), axis=1) + corner
    # once the attempt has failed, the blocks that follow need not try
    flag = header + tl.zeros([1, 1], tl.int32)
    failed = tl.maximum(tl.load(flag + FULL), tl.load(flag + NO_ROOM)) >= 0
    wanted = (valid & room)[None, :] & ~failed
    code = tl.where(wanted, code, 0)
    if PTX:
        wanted = wanted & (row <= D)
    slot, created, lost = insert(codes, code, wanted, capacity, PTX)
    if tl.max(tl.max(lost.to(tl.int32), axis=1), axis=0) > 0:
        tl.store(header + FULL, 1)

    made = created.to(tl.int32)
    total = tl.sum(made, axis=0)
    number = tl.full([ROWS, BLOCK], -1, tl.int32)
    if tl.sum(total, axis=0) > 0:
        first = tl.atomic_add(header + COUNT, tl.sum(total, axis=0).to(tl.int64), sem="relaxed").to(tl.int32) + 1
        before = (tl.cumsum(total, axis=0) - total)[None, :] + tl.cumsum(made, axis=0) - made
        number = tl.where(created, first + before, -1)
        tl.store(rows + slot, number, mask=created)
        tl.store(slots + number, slot, mask=created)
    if PUBLISH:
        known = tl.load(rows + slot, mask=real & (number < 0), other=-1)
        number = tl.maximum(number, known)
        tl.store(vertices + place, tl.where(number < 0, -2 - slot, number), mask=real)
    else:
        tl.store(vertices + place, -2 - slot, mask=real)


@triton.jit
def resolve_kernel(vertices, rows, num_entries, BLOCK: tl.constexpr):
    """Replace what stands for a slot, -2 - slot, by the row number in that slot."""
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    vertex = tl.load(vertices + entry, mask=entry < num_entries, other=0)
    open_ = vertex < -1
    if tl.max(open_.to(tl.int32), axis=0) > 0:
        tl.store(vertices + entry, tl.load(rows + (-2 - vertex), mask=open_, other=0), mask=open_)


@triton.jit
def unpack_kernel(
    header, codes, slots, keys, num_lattice_points, small_codes, small_rows, small_capacity,
    SHRINK: tl.constexpr, PTX: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the keys of all lattice points; with SHRINK also insert them into a smaller table."""
    row = tl.arange(0, ROWS)[:, None]
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < num_lattice_points
    number = tl.minimum(number, num_lattice_points - 1)
    code = tl.load(codes + tl.load(slots + number))
    if SHRINK:
        tile = tl.broadcast_to(code[None, :], [1, BLOCK])
        slot, created, _ = insert(small_codes, tile, tile >= 0, small_capacity, PTX)
        tl.store(small_rows + slot, tl.broadcast_to(number[None, :], [1, BLOCK]), mask=created)
    CORNER_BITS: tl.constexpr = 5 if D >= 16 else (4 if D >= 8 else (3 if D >= 4 else (2 if D >= 2 else 1)))
    corner = code & ((1 << CORNER_BITS) - 1)
    # row 0 is the item, row i + 1 coordinate i
    coordinate = (row >= 1) & (row <= D)
    shift = tl.load(header + SHIFT + row - 1, mask=coordinate, other=0)
    following = tl.load(header + SHIFT + row, mask=coordinate & (row < D), other=0)
    item_shift = tl.load(header + ITEM_SHIFT)
    following = tl.where(row < D, following, item_shift)
    digit = (code[None, :] >> shift) & ((tl.full([1, 1], 1, tl.int64) << (following - shift)) - 1)
    quotient = digit + tl.load(header + LOW + row - 1, mask=coordinate, other=0)
    value = tl.where(row == 0, (code >> item_shift)[None, :], quotient * (D + 1) + corner[None, :])
    place = number.to(tl.int64)[None, :] * (D + 1) + row
    tl.store(keys + place, value.to(tl.int32), mask=(row <= D) & inside[None, :])


@dataclass(frozen=True)
class _Insertion:
    """What one attempt at inserting all points left behind."""

    table: PackedTable
    slots: Tensor  # int32 [capacity], slot of each row number
    vertices: Tensor  # int32 [d + 1, points]
    barycentric: Tensor  # [d + 1, points]


def _pack(features: Tensor, batch: Tensor | None, header: Tensor, tight: bool) -> None:
    points, d = features.shape
    rows, corner_bits = tile_rows(d), d.bit_length()
    if not tight:
        item_bits = 0 if batch is None else _ITEM_BITS
        digit_bits = min((_CODE_BITS - corner_bits - item_bits) // d, _DIGIT_BITS)
        fixed_packing_kernel[(1,)](
            features, header, *features.stride(), DIGIT_BITS=digit_bits, CORNER_BITS=corner_bits,
            ITEM_BITS=item_bits, D=d, ROWS=rows, num_warps=1,
        )  # fmt: skip
        return
    bounds = torch.full((2 * rows + 1,), 2**30, dtype=torch.int32, device=features.device)
    range_kernel[(min(cdiv(points, 128), 1024),)](
        features, batch, bounds, points, *features.stride(), HAS_BATCH=batch is not None,
        D=d, ROWS=rows, BLOCK=128, num_warps=4,
    )  # fmt: skip
    tight_packing_kernel[(1,)](bounds, header, CORNER_BITS=corner_bits, D=d, ROWS=rows, num_warps=1)


def _insert(features: Tensor, batch: Tensor | None, capacity: int, tight: bool, publish: bool) -> _Insertion:
    points, d = features.shape
    device = features.device
    table = PackedTable.empty(capacity, device)
    _pack(features, batch, table.storage, tight)
    insertion = _Insertion(
        table,
        torch.empty(capacity, dtype=torch.int32, device=device),
        torch.empty(d + 1, points, dtype=torch.int32, device=device),
        torch.empty(d + 1, points, dtype=features.dtype, device=device),
    )
    block, warps = _INSERT_TILE
    insert_points_kernel[(cdiv(points, block),)](
        features, batch, table.storage, table.codes, table.rows, insertion.slots, insertion.vertices,
        insertion.barycentric, points, *features.stride(), capacity,
        HAS_BATCH=batch is not None, PUBLISH=publish, PTX=has_ptx(), D=d, ROWS=tile_rows(d), BLOCK=block,
        num_warps=warps,
    )  # fmt: skip
    return insertion


def _resolve(insertion: _Insertion) -> None:
    entries = insertion.vertices.numel()
    resolve_kernel[(cdiv(entries, 1024),)](insertion.vertices, insertion.table.rows, entries, BLOCK=1024)


def _sort_rows(insertion: _Insertion, num: int) -> None:
    """Renumber the lattice points in the order of their codes, which no scheduling changes."""
    slots = insertion.slots[:num].long()
    slots = slots[torch.argsort(insertion.table.codes[slots])]
    insertion.slots[:num] = slots.to(torch.int32)
    insertion.table.rows[slots] = torch.arange(num, dtype=torch.int32, device=slots.device)


def _finish(insertion: _Insertion, num: int, d: int) -> tuple[Tensor, Tensor]:
    """The keys, and the table: a smaller one if most of it is empty."""
    table = insertion.table
    small_capacity = capacity_for(num)
    shrink = table.capacity > 2 * small_capacity
    small = PackedTable.empty(small_capacity, table.storage.device) if shrink else table
    if shrink:
        small.storage[:HEADER] = table.storage[:HEADER]
    keys = torch.empty(num, d + 1, dtype=torch.int32, device=table.storage.device)
    unpack_kernel[(cdiv(num, 64),)](
        table.storage, table.codes, insertion.slots, keys, num, small.codes, small.rows, small.capacity,
        SHRINK=shrink, PTX=has_ptx(), D=d, ROWS=tile_rows(d), BLOCK=64, num_warps=2,
    )  # fmt: skip
    return keys, small.storage


def _first_capacity(num_entries: int) -> int:
    """Enough for any small lattice; a large one is rarely more than a sixth of what the points could touch."""
    return power_of_two(min(2 * num_entries, max(1 << 22, num_entries // 3)), 64)


@on_device
def index_points(features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    points, d = features.shape
    if points == 0 or d > LARGEST_TILE_DIMENSION:
        return wide.index_points(features, batch)
    publish = not torch.are_deterministic_algorithms_enabled()
    capacity, tight = _first_capacity(points * (d + 1)), d > _LARGEST_FIXED_DIMENSION
    while True:
        insertion = _insert(features, batch, capacity, tight, publish)
        last, bad, no_room, full = insertion.table.storage[COUNT.value : FULL.value + 1].tolist()
        if bad >= 0:
            raise range_error(features, key_limit(features.dtype))
        if no_room < 0 and full < 0:
            break
        if (no_room >= 0 and tight) or capacity >= capacity_for(points * (d + 1)):
            return wide.index_points(features, batch)
        tight = tight or no_room >= 0
        capacity = min(8 * capacity, capacity_for(points * (d + 1))) if full >= 0 else capacity
    num = last + 1
    if not publish:
        _sort_rows(insertion, num)
    keys, table = _finish(insertion, num, d)
    _resolve(insertion)
    return keys, insertion.vertices.T, insertion.barycentric.T, table
