"""Build the lattice: embed the points, number the vertices they touch.

One pass embeds and inserts (`insert_points_kernel`); the thread that makes a slot also draws its row number, which the
others read if it has been written by then and otherwise find afterwards (`resolve_kernel`). The host reads the number
of lattice points and the error flags together, once, of sources and targets alike. Where the points come in no spatial
order the lattice points are numbered along a space-filling curve: a convolution then finds neighbors near each other in
memory.
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
from permutohedral.ops.triton.ordering import reorder
from permutohedral.ops.triton.packing import fixed_bits, prepare_table
from permutohedral.ops.triton.report import REPORT, abandon_reports, reports_on
from permutohedral.ops.triton.table import (
    BAD_FEATURE,
    COUNT,
    EXTENT,
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
    roomy_capacity,
    rows_of,
)

# above it, the bits of a key are dealt out by the range of the data
_LARGEST_FIXED_DIMENSION = 7
# a single warp needs no barrier to know that all its probes have ended
_INSERT_BLOCK = 32
# the values of a smaller lattice stay in the cache of a large GPU, whatever their order
_WORTH_ORDERING = 1 << 21
# words that a report of `resolve_kernel` has
REPORTED = tl.constexpr(5)
# by device and shape of the points, how many lattice points there were the time before: the next are often as many
_sizes: dict[tuple[object, ...], int] = {}
_MOST_SIZES = 1024


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
def resolve_kernel(vertices, table, report, num_entries, capacity, BLOCK: tl.constexpr):
    """Replace what stands for a slot, -2 - slot, by the row number in that slot; tell the host count and flags."""
    if tl.program_id(0) == 0:
        word = tl.arange(0, REPORT)
        tl.store(report + word, tl.load(table + COUNT + word, mask=word < REPORTED, other=0), mask=word < REPORTED)
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    vertex = tl.load(vertices + entry, mask=entry < num_entries, other=0)
    unknown = vertex < -1
    if tl.max(unknown.to(tl.int32), axis=0) > 0:
        number = tl.load(rows_of(table, capacity) + (-2 - vertex), mask=unknown, other=0)
        tl.store(vertices + entry, number, mask=unknown)


@triton.jit
def unpack_rows(
    table, slots, keys, other, num_rows, other_capacity, MOVE: tl.constexpr, CORNER_BITS: tl.constexpr,
    PTX: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)[:, None]
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < num_rows
    number = tl.minimum(number, num_rows - 1)
    code = tl.load(codes_of(table) + tl.load(slots + number))
    if MOVE:
        if tl.program_id(0) == 0:
            word = tl.arange(0, 128)
            tl.store(other + word, tl.load(table + word))
        tile = code[None, :]
        slot, created, _ = insert(codes_of(other), tile, tile >= 0, other_capacity, PTX)
        tl.store(rows_of(other, other_capacity) + slot, number[None, :], mask=created)
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
class _Insertion:
    """What one attempt at inserting all points left behind."""

    table: PackedTable
    slots: Tensor  # int32 [capacity], slot of each row number
    vertices: Tensor  # int32 [d + 1, points]
    barycentric: Tensor  # [d + 1, points]
    keys: Tensor | None = None  # int32 [at least lattice points, 1 + d], if they were unpacked ahead


@dataclass
class _Points:
    """A set of points on its way into a table."""

    features: Tensor
    batch: Tensor | None
    capacity: int
    tight: bool
    # how many lattice points points like these had, 0 if there were none like these
    foreseen: int
    insertion: _Insertion | None = None
    num_lattice_points: int = 0
    scattered: bool = False

    @staticmethod
    def of(features: Tensor, batch: Tensor | None) -> _Points:
        features = rows_contiguous(features)
        foreseen = _sizes.get(_kind(features, batch), 0)
        entries = features.numel() + features.shape[0]
        capacity = roomy_capacity(foreseen) if foreseen else _first_capacity(entries)
        return _Points(features, batch, capacity, features.shape[1] > _LARGEST_FIXED_DIMENSION, foreseen)


def _kind(features: Tensor, batch: Tensor | None) -> tuple[object, ...]:
    return features.get_device(), features.shape, batch is None


def _insert(given: _Points) -> _Insertion:
    features, batch, capacity, tight = given.features, given.batch, given.capacity, given.tight
    points, d = features.shape
    device = features.device
    table = prepare_table(features, batch, capacity, tight)
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
    return insertion


def _resolve(given: _Points, report: Tensor) -> None:
    insertion = given.insertion
    assert insertion is not None
    vertices, table = insertion.vertices, insertion.table
    entries = vertices.numel()
    launch(
        resolve_kernel, (cdiv(entries, 1024),), vertices, table.storage, report, entries, table.capacity, BLOCK=1024
    )  # fmt: skip
    rows = given.foreseen + given.foreseen // 4
    if 0 < rows < _WORTH_ORDERING and not torch.are_deterministic_algorithms_enabled():
        insertion.keys = _unpack(insertion, rows, table)


def _judge(given: _Points, report: list[int]) -> bool:
    """Whether the points are in the table; if not, what to try next is noted, None for no table of packed keys."""
    last, bad, no_room, full, far = report
    if bad >= 0:
        raise range_error(given.features, key_limit(given.features.dtype))
    given.num_lattice_points, given.scattered = last + 1, 2 * far > SAMPLES.value
    if no_room < 0 and full < 0:
        return True
    largest = capacity_for(given.features.numel() + given.features.shape[0])
    if (no_room >= 0 and given.tight) or (full >= 0 and given.capacity >= largest):
        given.insertion = None
        return True
    given.tight = given.tight or no_room >= 0
    given.capacity = min(8 * given.capacity, largest) if full >= 0 else given.capacity
    return False


def _unpack(insertion: _Insertion, rows: int, other: PackedTable) -> Tensor:
    """The keys, at most `rows` of them; an `other` table than the insertion's gets them, too."""
    table, d = insertion.table, insertion.vertices.shape[0] - 1
    keys = torch.empty(rows, d + 1, dtype=torch.int32, device=table.storage.device)
    launch(
        unpack_kernel, (cdiv(rows, 32),), table.storage, insertion.slots, keys, other.storage, rows, other.capacity,
        MOVE=other is not table, CORNER_BITS=d.bit_length(), PTX=has_ptx(), D=d, ROWS=tile_rows(d), BLOCK=32,
        num_warps=1,
    )  # fmt: skip
    return keys


def _finish(given: _Points) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    insertion, num = given.insertion, given.num_lattice_points
    if insertion is None:
        return wide.index_points(given.features, given.batch)
    if len(_sizes) >= _MOST_SIZES:
        _sizes.clear()
    table, fitting = insertion.table, capacity_for(num)
    _sizes[_kind(given.features, given.batch)] = num
    exact = torch.are_deterministic_algorithms_enabled()
    if exact or (num >= _WORTH_ORDERING and given.scattered):
        insertion.slots = reorder(table, insertion.slots, insertion.vertices, num, exact)
    if not fitting <= table.capacity <= 2 * fitting:
        # most of the table is empty, or too little
        table, insertion.keys = PackedTable.empty(fitting, table.storage.device), None
    if insertion.keys is not None and insertion.keys.shape[0] >= num:
        keys = insertion.keys[:num]
    else:
        keys = _unpack(insertion, num, table)
    return keys, insertion.vertices.T, insertion.barycentric.T, table.storage


def _first_capacity(num_entries: int) -> int:
    """Enough for any small lattice; a large one is rarely more than a twelfth of what the points could touch."""
    return power_of_two(min(2 * num_entries, max(1 << 22, num_entries // 6)), 64)


def _try(pending: list[_Points]) -> list[_Points]:
    """Insert the points of all sets; those that must be tried again."""
    reports = reports_on(pending[0].features.device)
    try:
        for given in pending:
            given.insertion = _insert(given)
        for given, row in zip(pending, reports.rows, strict=False):
            _resolve(given, row)
        found = [reports.read(number, REPORTED.value) for number in range(len(pending))]
    except BaseException:
        abandon_reports()
        raise
    return [given for given, report in zip(pending, found, strict=True) if not _judge(given, report)]


def _index(sets: list[_Points]) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """All sets together: the host waits once, unless a table turns out too small."""
    pending = sets
    while pending:
        pending = _try(pending)
    return [_finish(given) for given in sets]


def _is_packed(features: Tensor) -> bool:
    return features.shape[0] > 0 and features.shape[1] <= LARGEST_TILE_DIMENSION


@on_device
def index_points(features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if not _is_packed(features):
        return wide.index_points(features, batch)
    return _index([_Points.of(features, batch)])[0]


@on_device
def index_both(
    features: Tensor, batch: Tensor | None, target_features: Tensor, target_batch: Tensor | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """`index_points` of sources and targets, which wait for the GPU together."""
    if not (_is_packed(features) and _is_packed(target_features)):
        return index_points(features, batch), index_points(target_features, target_batch)
    source, target = _index([_Points.of(features, batch), _Points.of(target_features, target_batch)])
    return source, target
