"""Build the lattice: embed the points and number the vertices they touch (`insertion.py`).

`insert_and_wait` is the only code that waits for the device. The host queues the insertion, its report, and the work
that follows (`ahead`), with room for as many lattice points as most point sets need. The device reads the true number
itself. Then the host polls the report. `build_tables` retries points that do not fit the first table, whose size
follows from the number of points.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
import triton.language as tl
from torch import Tensor

from permutohedral.errors import MemoryLimitError
from permutohedral.ops import reference
from permutohedral.ops.contract import Declined, check_items, key_limit, range_error
from permutohedral.ops.triton.build.embedding import LARGEST_TILE_DIMENSION, find_simplex, tile_rows, weights_from
from permutohedral.ops.triton.build.hash_table import (
    BAD_FEATURE,
    COUNT,
    FULL,
    UNIT,
    PackedTable,
    capacity_for,
    entry_of,
    look_up,
)
from permutohedral.ops.triton.build.host_report import HostReport, Report
from permutohedral.ops.triton.build.insertion import Insertion, insert_points, unpack_keys
from permutohedral.ops.triton.build.neighbors import (
    TapPairs,
    is_worth_pairing,
    pair_taps,
    search_into,
    search_packed,
)
from permutohedral.ops.triton.kernel import HAS_PTX, cdiv, kernel, on_device, power_of_two, rows_contiguous

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
    insert: Callable[[], Insertion], ahead: Callable[[Insertion], Ahead], device: torch.device
) -> tuple[Insertion, Report, Ahead]:
    """Queue an insertion, its report and the work `ahead`; wait for the report."""
    insertion = insert()
    with HostReport(device) as report:
        report.write(insertion.table)
        done = ahead(insertion)
        return insertion, report.read(), done


def build_tables(
    features: Tensor,
    batch: Tensor | None,
    ahead: Callable[[Insertion], Ahead],
    retry: bool = False,
) -> tuple[Insertion, int, Ahead | None] | None:
    """Insert all points, and run `ahead` before waiting; None if they do not fit a table of packed keys.

    Args:
        features, batch: see `index_points`; at least one point.
        ahead: queues work on the insertion, whose number of lattice points is not known yet.
        retry: try a larger table, and bits by the range of the data. Without it codes have equal bits per coordinate,
            and features must have at most `LARGEST_EVEN_DIMENSION` dimensions.

    Raises:
        FeatureRangeError: a feature has no key.
        InputError: an item has no key.
        MemoryLimitError: table and simplices do not fit the free memory.

    Returns:
        The insertion, in deterministic mode numbered in the order of the codes; the number of lattice points; the
        result of `ahead`, None in deterministic mode.
    """
    features = rows_contiguous(features)
    (points, d), exact = features.shape, torch.are_deterministic_algorithms_enabled()
    capacity, by_range = first_capacity(points, d), d > LARGEST_EVEN_DIMENSION

    def attempt() -> Insertion:
        _check_memory(features, capacity)
        return insert_points(features, batch, capacity, by_range)

    while True:
        insertion, report, done = insert_and_wait(attempt, _no_work if exact else ahead, features.device)
        if report.bad_feature:
            if batch is not None:
                check_items(batch)
            raise range_error(features, key_limit(features.dtype))
        if not (report.no_room or report.full):
            number = report.num_lattice_points
            return renumber(insertion, number) if exact else insertion, number, done
        largest = capacity_for(points * (d + 1))
        if not retry or (by_range if report.no_room else capacity >= largest):
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


def _no_work(insertion: Insertion) -> None:
    """Queue nothing: in deterministic mode rows are renumbered after the report."""


@kernel(sizes=["num_rows", "capacity"])
def renumber_rows_kernel(
    table, codes, order, new_codes, new_number, num_rows, capacity, CORNER_BITS: tl.constexpr, PTX: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Give row `order[i]` the number i."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < num_rows
    old = tl.load(order + number, mask=inside, other=0)
    code = tl.load(codes + old, mask=inside, other=0)
    tl.store(new_codes + number, code, mask=inside)
    tl.store(new_number + old, number, mask=inside)
    slot, _ = look_up(
        table, code[None, :], tl.load(table + UNIT), inside[None, :], capacity, CORNER_BITS, PTX, D
    )  # fmt: skip
    tl.store(entry_of(table, slot) + 1, number.to(tl.int64)[None, :] + 1, mask=inside[None, :])


@kernel(sizes=["num_points", "corner_stride"])
def renumber_vertices_kernel(vertices, new_number, num_points, corner_stride, BLOCK: tl.constexpr):
    """Renumber one corner of a block of points."""
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    place = vertices + tl.program_id(1).to(tl.int64) * corner_stride + point
    vertex = tl.load(place, mask=inside, other=0)
    tl.store(place, tl.load(new_number + vertex, mask=inside, other=0), mask=inside)


def renumber(insertion: Insertion, num: int) -> Insertion:
    """Assign numbers to the rows in the order of their codes, which does not depend on scheduling."""
    table, vertices = insertion.table, insertion.vertices
    device, d = vertices.device, insertion.dimension
    order = torch.sort(insertion.codes[:num]).indices
    codes = torch.empty(num, dtype=torch.int64, device=device)
    new_number = torch.empty(num, dtype=torch.int32, device=device)
    tensors = table.storage, insertion.codes, order, codes, new_number
    renumber_rows_kernel[d.bit_length(), HAS_PTX, d, 256]((cdiv(num, 256), 1, 1), tensors, (num, table.capacity))
    (points, corners), stride = vertices.shape, vertices.stride(1)
    renumber_vertices_kernel[1024,]((cdiv(points, 1024), corners, 1), (vertices, new_number), (points, stride))
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
        built = build_tables(features, batch, unpack_ahead, retry=True)
        if built is not None:
            return finish(*built)
    return index_unpacked(features, batch)


@on_device
def index_with_neighbors(
    features: Tensor, batch: Tensor | None, offsets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | Declined:
    """Return `index_points` and the neighbors of its rows at each offset."""
    (points, d), taps = features.shape, offsets.shape[0]
    rows = expected_rows(points, d)
    is_small = 0 < points <= MOST_POINTS_AHEAD and taps * rows <= _MOST_NEIGHBORS_AHEAD
    if not is_small or d > LARGEST_EVEN_DIMENSION or torch.are_deterministic_algorithms_enabled():
        return Declined(
            f"neighbors are looked up ahead for at most {LARGEST_EVEN_DIMENSION} dimensions, {MOST_POINTS_AHEAD:,} "
            f"points and {_MOST_NEIGHBORS_AHEAD:,} neighbors, and never in deterministic mode"
        )

    def search_ahead(insertion: Insertion) -> tuple[Tensor, PackedTable, Tensor]:
        neighbors = torch.empty(taps, rows, dtype=torch.int32, device=features.device)
        # most lattices have fewer rows
        partners = pair_taps(offsets) if is_worth_pairing(taps, rows // 4) else None
        keys, table = unpack(insertion, rows, None if partners is None else (neighbors, partners))
        search_into(neighbors, table, insertion.codes, offsets, True, partners is not None, partners)
        return keys, table, neighbors

    built = build_tables(features, batch, search_ahead)
    if built is None:
        return Declined("the lattice exceeds the first hash table")
    insertion, number, ahead = built
    assert ahead is not None
    keys, table, neighbors = ahead
    if number > rows:
        keys, vertices, barycentric, storage = finish(insertion, number)
        return keys, vertices, barycentric, storage, search_packed(PackedTable(storage), keys, number, offsets, True)
    neighbors = neighbors.as_strided((taps, number), (number, 1))
    return _shorten(keys, number), insertion.vertices, insertion.barycentric, table.storage, neighbors


@on_device
def index_points_bounded(
    features: Tensor, batch: Tensor | None, rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Build `index_points` with a fixed number of rows, without waiting, so that a CUDA graph can capture it.

    Vertices beyond the last row become the last row: the caller chooses enough rows, and may compare.

    Args:
        features: float `[points, d]`, at least one point.
        batch: int32 `[points]`, or None.
        rows: number of rows of the keys.

    Returns:
        keys int32 `[rows, 1 + d]` (-1 in rows without a lattice point), vertices, barycentric, table, and int64 `[1]`,
        the number of lattice points. It exceeds 2^40 if a feature is not finite, or if the range of the features does
        not fit packed keys (a few thousand units in up to 5 dimensions).
    """
    points, d = features.shape
    # no table that could fill up, since the host does not wait for a report
    insertion = insert_points(rows_contiguous(features), batch, capacity_for(points * (d + 1)), False)
    keys = torch.full((rows, d + 1), -1, dtype=torch.int32, device=features.device)
    unpack_keys(insertion, keys, insertion.table)
    vertices, storage = insertion.vertices.clamp_(max=rows - 1), insertion.table.storage
    failed = storage[BAD_FEATURE.value : FULL.value + 1].amax()
    return keys, vertices, insertion.barycentric, storage, storage[COUNT.value : COUNT.value + 1] + failed * _FAILED
