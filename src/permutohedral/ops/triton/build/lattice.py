"""Build the lattice: embed the points, and number the vertices they touch in a hash table.

One pass over the points embeds them and inserts their vertices (`insert_points`). The parts of a key have the same
number of bits in its code, or as many as the range of the data needs. The lane that makes a slot also draws its row
number. Other lanes that need the number wait for it at the end. A lane that still has to draw a number never waits, so
the wait ends.

`insert_and_wait` is the only code that waits for the device. The host queues the insertion, its report, and the work
that follows (`ahead`), with room for as many lattice points as most point sets need. The device reads the true number
itself. Then the host polls the report. `insert_with_retry` retries points that do not fit the first table, whose size
follows from the number of points.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.errors import MemoryLimitError
from permutohedral.ops import reference
from permutohedral.ops.contract import check_items, key_limit, range_error
from permutohedral.ops.triton.build.embedding import (
    LARGEST_TILE_DIMENSION,
    find_simplex,
    lowest_cell,
    tile_rows,
    weights_from,
)
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
    capacity_for,
    entry_of,
    insert,
    is_any,
    load_number,
    look_up,
    store_lanes,
)
from permutohedral.ops.triton.build.host_report import HostReport, Report
from permutohedral.ops.triton.build.neighbors import (
    TapPairs,
    fill_mirrored_taps,
    is_worth_pairing,
    search_into,
    search_packed,
)
from permutohedral.ops.triton.kernel import (
    HAS_PTX,
    cdiv,
    empty_corners,
    kernel,
    on_device,
    power_of_two,
    rows_contiguous,
)

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
# above it, each coordinate of a key gets the bits that the range of the data needs
LARGEST_EVEN_DIMENSION = 7
# slots of a table that takes little time to clear: if all corners of the points fit, and if they do not
_CHEAP_CAPACITY, _LARGE_CAPACITY = 1 << 22, 1 << 21
# points in this few dimensions touch about as many lattice points as there are points, if their bandwidth is their
# distance; then a table of this many slots takes longer to clear, but less time to fill and to search
_FEW_DIMENSIONS, _DENSE_CAPACITY = 2, 1 << 23
# slots of a table that is kept as it is, however empty: 32 MB
_SMALL_CAPACITY = 1 << 21
# rows that are made before their number is known: enough for most lattices
_FEWEST_ROWS = 1 << 16
_POINTS_PER_ROW = 4
# with more points the GPU is busy longer than the host, and finds neighbors faster once their number is known
MOST_POINTS_AHEAD = 1 << 21
# entries of a table of neighbors that is made before its size is known
_MOST_NEIGHBORS_AHEAD = 1 << 25
# smaller requests are not compared with the free memory, since asking for that takes longer than most kernels run
_NEGLIGIBLE_BYTES = 1 << 30
# reported instead of a number of lattice points after a failure
_FAILED = 1 << 40

Ahead = TypeVar("Ahead")
# keys, vertices, barycentric weights, table: see `index_points`
Indexed = tuple[Tensor, Tensor, Tensor, Tensor]


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
    most_items = tl.full([], 1, tl.int64) << tl.maximum(63 - CORNER_BITS - tl.sum(bits, axis=0), 0)
    tl.store(header + LOW + row, low - 1, mask=row < D)
    tl.store(header + EXTENT + row, extent, mask=row < D)
    before = CORNER_BITS + tl.cumsum(bits, axis=0) - bits
    tl.store(header + SHIFT + row, before, mask=row < D)
    tl.store(header + UNIT, tl.sum(tl.where(row < D, tl.full([ROWS], 1, tl.int64) << before, 0), axis=0))
    tl.store(header + ITEM_SHIFT, CORNER_BITS + tl.sum(bits, axis=0))
    tl.store(header + ITEM_EXTENT, items)
    if (tl.sum(bits, axis=0) > 63 - CORNER_BITS) | (items > most_items):
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
    all_fit = tl.min((fits | (row >= D)).to(tl.int32), axis=0) > 0
    code = tl.sum(tl.where(coordinate, digit.to(tl.int64) << shift, 0), axis=0)
    return code, tl.where(coordinate, tl.full([1, 1], 1, tl.int64) << shift, 0), all_fit


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

    base, units, fits = pack_digits(table, cell, low, DIGIT_BITS, CORNER_BITS, D, ROWS)
    if HAS_BATCH:
        item = tl.load(batch + point).to(tl.int64)
        valid = valid & (item >= 0)
        if DIGIT_BITS > 0:
            fits = fits & (item < (1 << ITEM_BITS))
            base += item << (CORNER_BITS + D * DIGIT_BITS)
        else:
            fits = fits & (item < tl.load(table + ITEM_EXTENT))
            base += item << tl.load(table + ITEM_SHIFT)
    usable = valid & fits
    if tl.min(usable.to(tl.int32), axis=0) == 0:
        if tl.min(valid.to(tl.int32), axis=0) == 0:
            tl.store(table + BAD_FEATURE, 1)
        if tl.min(fits.to(tl.int32), axis=0) == 0:
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
    table, codes, keys, other, neighbors, opposite, most_rows, other_capacity, taps,
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
            fill_mirrored_taps(neighbors, opposite, first, num_rows, taps, BLOCK)
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
        by_range: whether coordinates have as many bits as their range needs; codes then cannot be searched for.
    """

    table: PackedTable
    codes: Tensor
    vertices: Tensor
    barycentric: Tensor
    dimension: int
    by_range: bool = False


def insert_points(features: Tensor, batch: Tensor | None, capacity: int, by_range: bool) -> Insertion:
    """Queue the insertion of all points into a new table. The flags in its header report failures.

    Args:
        features, batch: see `index_points`; the features of a point are contiguous.
        capacity: of the table.
        by_range: give each coordinate the bits that its range needs, not the same for all.
    """
    (points, d), device = features.shape, features.device
    batch = None if batch is None else batch.contiguous()
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
    return Insertion(table, codes, vertices, barycentric, d, by_range)


def unpack_keys(insertion: Insertion, keys: Tensor, other: PackedTable, pairs: TapPairs | None = None) -> None:
    """Write the keys of as many rows as `keys` has; insert them into `other` if it is another table.

    With `pairs`, prepare their neighbors for `search_into`: as many columns as there are lattice points.
    """
    table, (rows, columns) = insertion.table, keys.shape
    neighbors, opposite = (keys, keys) if pairs is None else pairs
    move = other is not table
    blocks = (INSERT_BLOCK, cdiv(INSERT_BLOCK, 32)) if move else (_UNPACK_BLOCK, _UNPACK_WARPS)
    variant = unpack_kernel[(move, pairs is not None, (columns - 1).bit_length(), HAS_PTX, columns - 1, *blocks)]
    tensors = table.storage, insertion.codes, keys, other.storage, neighbors, opposite
    variant(variant.tiles(rows, 1), tensors, (rows, other.capacity, neighbors.shape[0]))


def first_capacity(points: int, dimension: int) -> int:
    """Return the slots of the first table: any small lattice fits, and a large one of a twelfth of the corners."""
    entries = points * (dimension + 1)
    likely, dense = 2 * entries, dimension <= _FEW_DIMENSIONS
    if likely > (_DENSE_CAPACITY if dense else _CHEAP_CAPACITY):
        likely = max(_DENSE_CAPACITY if dense else _LARGE_CAPACITY, entries // 6)
    return min(power_of_two(likely, 64), capacity_for(entries))


def expected_rows(points: int, dimension: int) -> int:
    """Return how many lattice points most sets of `points` stay below."""
    likely = points + points // 4 if dimension <= _FEW_DIMENSIONS else points // _POINTS_PER_ROW
    return min(points * (dimension + 1), max(_FEWEST_ROWS, likely))


def insert_and_wait(
    insert: Callable[[], Insertion], speculate: Callable[[Insertion], Ahead] | None, device: torch.device
) -> tuple[Insertion, Report, Ahead | None]:
    """Queue an insertion, its report and the work `speculate`, if any; wait for the report."""
    insertion = insert()
    with HostReport(device) as report:
        report.write(insertion.table)
        done = None if speculate is None else speculate(insertion)
        return insertion, report.read(), done


def insert_with_retry(
    features: Tensor,
    batch: Tensor | None,
    speculate: Callable[[Insertion], Ahead | None],
) -> tuple[Insertion, int, Ahead | None] | None:
    """Insert all points, and run `speculate` before waiting; None if they do not fit a table of packed keys.

    Args:
        features, batch: see `index_points`; at least one point.
        speculate: queues work on the insertion, whose number of lattice points is not known yet. It runs again if a
            larger table, or bits by the range of the data, are needed.

    Raises:
        FeatureRangeError: a feature has no key.
        InputError: an item has no key.
        MemoryLimitError: table and simplices do not fit the free memory.

    Returns:
        The insertion, in deterministic mode numbered in the order of the codes; the number of lattice points; the
        result of `speculate`, None in deterministic mode.
    """
    features = rows_contiguous(features)
    (points, d), exact = features.shape, torch.are_deterministic_algorithms_enabled()
    capacity, by_range = first_capacity(points, d), d > LARGEST_EVEN_DIMENSION

    def attempt() -> Insertion:
        _check_memory(features, capacity)
        return insert_points(features, batch, capacity, by_range)

    while True:
        # in deterministic mode rows are renumbered after the report
        insertion, report, done = insert_and_wait(attempt, None if exact else speculate, features.device)
        if report.bad_feature:
            if batch is not None:
                check_items(batch)
            raise range_error(features, key_limit(features.dtype))
        if not (report.no_room or report.full):
            number = report.num_lattice_points
            return renumber(insertion, number) if exact else insertion, number, done
        largest = capacity_for(points * (d + 1))
        if by_range if report.no_room else capacity >= largest:
            return None
        if report.no_room:
            by_range = True
        else:
            capacity = largest


def _check_memory(features: Tensor, capacity: int) -> None:
    """Raise unless a table with `capacity` slots and the simplices of the points fit the free memory."""
    (points, d), device = features.shape, features.device
    # a slot has a code, a row number, and its code in the list
    needed = 24 * capacity + points * (d + 1) * (4 + features.element_size())
    if needed < _NEGLIGIBLE_BYTES or not features.is_cuda:
        return
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if needed > free:
        raise MemoryLimitError(
            f"features of {points:,} points in {d} dimensions need {needed:,} bytes for their lattice, but "
            f"{device} has {free:,} bytes free; use fewer points or larger bandwidths"
        )


@kernel(sizes=["num_rows", "capacity"])
def renumber_rows_kernel(
    table, codes, order, new_codes, new_number, num_rows, capacity, CORNER_BITS: tl.constexpr, PTX: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Give row `order[i]` the number i, up to the number of lattice points."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < tl.minimum(num_rows.to(tl.int64), tl.load(table + COUNT))
    old = tl.load(order + number, mask=inside, other=0)
    code = tl.load(codes + old, mask=inside, other=0)
    tl.store(new_codes + number, code, mask=inside)
    tl.store(new_number + old, number, mask=inside)
    slot, _ = look_up(
        table, code[None, :], tl.load(table + UNIT), inside[None, :], capacity, CORNER_BITS, PTX, D
    )  # fmt: skip
    tl.store(entry_of(table, slot) + 1, number.to(tl.int64)[None, :] + 1, mask=inside[None, :])


@kernel(sizes=["num_points", "corner_stride", "num_rows"])
def renumber_vertices_kernel(vertices, new_number, num_points, corner_stride, num_rows, BLOCK: tl.constexpr):
    """Renumber one corner of a block of points; corners beyond `num_rows` stay as they are."""
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    place = vertices + tl.program_id(1).to(tl.int64) * corner_stride + point
    vertex = tl.load(place, mask=inside, other=0)
    inside = inside & (vertex < num_rows)
    tl.store(place, tl.load(new_number + vertex, mask=inside, other=0), mask=inside)


def renumber(insertion: Insertion, num: int) -> Insertion:
    """Assign numbers to the rows in the order of their codes, which does not depend on scheduling.

    Of `num` rows, those beyond the number of lattice points follow in any order.
    """
    table, vertices = insertion.table, insertion.vertices
    device, d = vertices.device, insertion.dimension
    is_unused = torch.arange(num, device=device) >= table.storage[COUNT.value]
    order = torch.sort(insertion.codes[:num].masked_fill(is_unused, torch.iinfo(torch.int64).max)).indices
    codes = torch.empty(num, dtype=torch.int64, device=device)
    new_number = torch.zeros(num, dtype=torch.int32, device=device)
    tensors = table.storage, insertion.codes, order, codes, new_number
    renumber_rows_kernel[d.bit_length(), HAS_PTX, d, 256]((cdiv(num, 256), 1, 1), tensors, (num, table.capacity))
    (points, corners), stride = vertices.shape, vertices.stride(1)
    renumber_vertices_kernel[1024,]((cdiv(points, 1024), corners, 1), (vertices, new_number), (points, stride, num))
    return insertion._replace(codes=codes)


# keys, of which more rows may follow, and the table
_Unpacked = tuple[Tensor, PackedTable]


def unpack(insertion: Insertion, rows: int, pairs: TapPairs | None = None) -> _Unpacked:
    """Return the keys of up to `rows` rows, and the table or a smaller copy; for `pairs` see `unpack_keys`."""
    table, device = insertion.table, insertion.vertices.device
    if _is_loose(table.capacity, rows):
        table = PackedTable.empty(capacity_for(rows), device)
    keys = torch.empty(rows, insertion.dimension + 1, dtype=torch.int32, device=device)
    unpack_keys(insertion, keys, table, pairs)
    return keys, table


def _is_loose(capacity: int, rows: int) -> bool:
    """Return whether this many rows leave most of a table empty, and that wastes much memory."""
    return capacity > max(2 * capacity_for(rows), _SMALL_CAPACITY)


def _shorten(rows: Tensor, number: int) -> Tensor:
    """Return the first rows, in the fastest way."""
    columns = rows.shape[1]
    return rows.as_strided((number, columns), (columns, 1))


def finish(insertion: Insertion, number: int, ahead: _Unpacked | None = None) -> Indexed:
    """Return the tables of an insertion with `number` rows, whose keys may have been unpacked `ahead`."""
    if ahead is None or ahead[0].shape[0] < number or _is_loose(ahead[1].capacity, number):
        keys, table = unpack(insertion, number)
    else:
        keys, table = _shorten(ahead[0], number), ahead[1]
    return keys, insertion.vertices, insertion.barycentric, table.storage


@kernel(sizes=["num_points"], options=["num_warps"])
def embed_keys_kernel(
    features, batch, keys, barycentric, bad, num_points,
    STRIDE: tl.constexpr, HAS_BATCH: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write keys `[points, d + 1, 1 + d]` of all corners, and weights `[d + 1, points]`."""
    row = tl.arange(0, ROWS)[:, None]
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    point = tl.minimum(point, num_points - 1)
    cell, rank, delta, valid = find_simplex(features, point, STRIDE, D, ROWS)
    weights = tl.maximum(weights_from(delta, rank, D, ROWS) + (row == 0).to(delta.dtype), 0.0)
    tl.store(barycentric + point[None, :] + row.to(tl.int64) * num_points, weights, mask=(row <= D) & inside[None, :])
    if tl.min(valid.to(tl.int32), axis=0) == 0:
        tl.store(bad, 1)
    item = tl.zeros([BLOCK], tl.int32)
    if HAS_BATCH:
        item = tl.load(batch + point)
    for corner in range(D + 1):
        place = keys + (point * (D + 1) + corner) * (D + 1)
        tl.store(place, item, mask=inside)
        value = (cell - (rank > D - corner).to(tl.int32)) * (D + 1) + corner
        tl.store(place[None, :] + 1 + row, value, mask=(row < D) & inside[None, :])


def index_unpacked(features: Tensor, batch: Tensor | None) -> Indexed:
    """Run `index_points` for keys that do not fit one packed word; the reference numbers them."""
    (points, d), device = features.shape, features.device
    if batch is not None:
        check_items(batch)
        batch = batch.contiguous()
    if points == 0 or d > LARGEST_TILE_DIMENSION:
        return reference.index_points(features, batch)
    keys = torch.empty(points * (d + 1), d + 1, dtype=torch.int32, device=device)
    barycentric = torch.empty(d + 1, points, dtype=features.dtype, device=device)
    features, bad = rows_contiguous(features), torch.zeros(1, dtype=torch.int32, device=device)
    variant = embed_keys_kernel[features.stride(0), batch is not None, d, tile_rows(d), 32, 1]
    tensors = features, features if batch is None else batch, keys, barycentric, bad
    variant((cdiv(points, 32), 1, 1), tensors, (points,))
    if int(bad):
        raise range_error(features, key_limit(features.dtype))
    unique_keys, inverse, table = reference.index_keys(keys)
    return unique_keys, inverse.view(points, d + 1), barycentric.T, table


@on_device
def index_points(features: Tensor, batch: Tensor | None) -> Indexed:
    points, d = features.shape

    def unpack_ahead(insertion: Insertion) -> _Unpacked | None:
        # keys alone take little memory
        return unpack(insertion, min(2 * expected_rows(points, d), points * (d + 1))) if is_small else None

    is_small = points <= MOST_POINTS_AHEAD
    if points > 0 and d <= LARGEST_TILE_DIMENSION:
        built = insert_with_retry(features, batch, unpack_ahead)
        if built is not None:
            return finish(*built)
    return index_unpacked(features, batch)


def ahead_blocker(features: Tensor, taps: int) -> str | None:
    """Return the reason that neighbors cannot be looked up ahead, or None."""
    (points, d), rows = features.shape, expected_rows(*features.shape)
    is_small = 0 < points <= MOST_POINTS_AHEAD and taps * rows <= _MOST_NEIGHBORS_AHEAD
    if is_small and d <= LARGEST_EVEN_DIMENSION and not torch.are_deterministic_algorithms_enabled():
        return None
    return (
        f"neighbors are looked up ahead for at most {LARGEST_EVEN_DIMENSION} dimensions, {MOST_POINTS_AHEAD:,} "
        f"points and {_MOST_NEIGHBORS_AHEAD:,} neighbors, and never in deterministic mode"
    )


@on_device
def index_with_neighbors(
    features: Tensor, batch: Tensor | None, offsets: Tensor, opposite: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None:
    """Run `index_with_neighbors`; None if keys do not fit one word."""
    (points, d), taps = features.shape, offsets.shape[0]
    rows = expected_rows(points, d)

    def search_ahead(insertion: Insertion) -> tuple[Tensor, PackedTable, Tensor] | None:
        if insertion.by_range:
            return None
        neighbors = torch.empty(taps, rows, dtype=torch.int32, device=features.device)
        # most lattices have fewer rows
        paired = is_worth_pairing(taps, rows // 4)
        keys, table = unpack(insertion, rows, (neighbors, opposite) if paired else None)
        search_into(neighbors, table, insertion.codes, offsets, True, opposite if paired else None)
        return keys, table, neighbors

    built = insert_with_retry(features, batch, search_ahead)
    if built is None:
        return None
    insertion, number, ahead = built
    if ahead is None or number > rows:
        keys, vertices, barycentric, storage = finish(insertion, number)
        return (
            keys,
            vertices,
            barycentric,
            storage,
            search_packed(PackedTable(storage), keys, number, offsets, opposite),
        )
    keys, table, neighbors = ahead
    neighbors = neighbors.as_strided((taps, number), (number, 1))
    return _shorten(keys, number), insertion.vertices, insertion.barycentric, table.storage, neighbors


@on_device
def index_points_bounded(
    features: Tensor, batch: Tensor | None, rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Build tables that a CUDA graph can capture; keys must fit packed codes (a few thousand units in d <= 5)."""
    points, d = features.shape
    # no table that could fill up, since the host does not wait for a report
    insertion = insert_points(rows_contiguous(features), batch, capacity_for(points * (d + 1)), False)
    insertion, keys, number = unpack_bounded(insertion, rows)
    vertices = insertion.vertices.clamp_(max=rows - 1)
    return keys, vertices, insertion.barycentric, insertion.table.storage, number


def unpack_bounded(insertion: Insertion, rows: int) -> tuple[Insertion, Tensor, Tensor]:
    """Return the insertion, renumbered in deterministic mode, keys of `rows` rows, and the number of lattice points.

    The keys of rows without a lattice point are -1.
    """
    storage, d = insertion.table.storage, insertion.dimension
    if torch.are_deterministic_algorithms_enabled():
        insertion = renumber(insertion, insertion.table.capacity)
    keys = torch.full((rows, d + 1), -1, dtype=torch.int32, device=storage.device)
    unpack_keys(insertion, keys, insertion.table)
    failed = storage[BAD_FEATURE.value : FULL.value + 1].amax()
    return insertion, keys, storage[COUNT.value : COUNT.value + 1] + failed * _FAILED
