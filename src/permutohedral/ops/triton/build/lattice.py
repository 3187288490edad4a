"""Build the lattice: embed the points, number the vertices they touch (`insertion.py`).

The host reads the number of lattice points and the error flags together, once, of sources and targets alike. What does
not fit the first table, whose size follows from the number of points, is inserted again into another. The GPU is given
the work that follows, keys and, where they are wanted, neighbors, before the host waits, with room for as many lattice
points as most point sets need; it reads their true number itself.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from permutohedral.ops.primitives import check_items, key_limit, range_error
from permutohedral.ops.triton.build import wide_keys
from permutohedral.ops.triton.build.embedding import LARGEST_TILE_DIMENSION
from permutohedral.ops.triton.build.host_report import SAMPLES, HostReports, Report, Telling, report
from permutohedral.ops.triton.build.insertion import Insertion, insert_points, unpack_keys
from permutohedral.ops.triton.build.neighbors import search_into, search_packed, worth_pairing
from permutohedral.ops.triton.build.packed_table import PackedTable, capacity_for
from permutohedral.ops.triton.build.renumbering import renumber
from permutohedral.ops.triton.runtime import on_device, power_of_two, rows_contiguous

# above it, the bits of a key are dealt out by the range of the data
LARGEST_EVEN_DIMENSION = 7
# the values of a smaller lattice stay in the cache of a large GPU, whatever their order
_WORTH_ORDERING = 1 << 21
# slots of a table that takes little time to clear: where all that the points could touch fits, and where it does not
_CHEAP_CAPACITY, _LARGE_CAPACITY = 1 << 22, 1 << 21
# points in so few dimensions touch about as many lattice points as they are, if their bandwidth is their distance; then
# a table of so many slots takes longer to clear, but less to fill and to search
_FEW_DIMENSIONS, _DENSE_CAPACITY = 2, 1 << 23
# slots of a table that is kept as it is, however empty: 32 MB
_SMALL_CAPACITY = 1 << 21
# rows that are made before their number is known: enough for most lattices
_FEWEST_ROWS = 1 << 16
_POINTS_PER_ROW = 4
# with more points the GPU is busy longer than the host, and finds neighbors faster once their number is known
MOST_POINTS_AHEAD = 1 << 21
# of a table of neighbors that is made before its size is known
_MOST_NEIGHBORS_AHEAD = 1 << 25

# keys, vertices, barycentric weights, table: see `index_points`
Indexed = tuple[Tensor, Tensor, Tensor, Tensor]


class Attempt(NamedTuple):
    """How a set of points is put into a table of packed keys."""

    features: Tensor
    batch: Tensor | None
    capacity: int
    by_range: bool

    def telling(self, words: Tensor) -> Telling:
        """What the host is told of it."""
        return Telling(words, self.features, self.features.numel() >= _WORTH_ORDERING)

    def next(self, told: Report) -> Attempt | None:
        """What to try after this attempt failed, None if nothing but a table of wide keys is left."""
        largest = capacity_for(self.features.numel() + self.features.shape[0])
        if told.no_room:
            return None if self.by_range else self._replace(by_range=True)
        return None if self.capacity >= largest else self._replace(capacity=largest)


def first_attempt(features: Tensor, batch: Tensor | None) -> Attempt:
    """The points in a table of `first_capacity`."""
    capacity = first_capacity(*features.shape)
    return Attempt(rows_contiguous(features), batch, capacity, features.shape[1] > LARGEST_EVEN_DIMENSION)


def first_capacity(points: int, dimension: int) -> int:
    """Room for any small lattice; a large one is rarely more than a twelfth of what the points could touch."""
    entries = points * (dimension + 1)
    likely, dense = 2 * entries, dimension <= _FEW_DIMENSIONS
    if likely > (_DENSE_CAPACITY if dense else _CHEAP_CAPACITY):
        likely = max(_DENSE_CAPACITY if dense else _LARGE_CAPACITY, entries // 6)
    return power_of_two(likely, 64)


def check_range(features: Tensor, batch: Tensor | None, told: Report) -> None:
    """Raise if a feature or an item has no key."""
    if told.bad_feature:
        if batch is not None:
            check_items(batch)
        raise range_error(features, key_limit(features.dtype))


def order(insertion: Insertion, told: Report) -> Insertion:
    """The same, its lattice points in an order that helps: where nothing else is asked for, along a curve if there
    are many of them and the points come in no spatial order, so that neighbors lie near each other in memory.
    """
    exact = torch.are_deterministic_algorithms_enabled()
    scattered = is_worth_ordering(told.num_lattice_points) and 2 * told.far_pairs > SAMPLES.value
    return renumber(insertion, told.num_lattice_points, exact) if exact or scattered else insertion


def is_worth_ordering(lattice_points: int) -> bool:
    """Whether so many are put into an order if the points come in none."""
    return lattice_points >= _WORTH_ORDERING


# keys, of which more rows may follow, and the table
_Unpacked = tuple[Tensor, PackedTable]


def finish(insertion: Insertion, told: Report, ahead: _Unpacked | None = None) -> Indexed:
    """What was inserted, with keys, which may have been unpacked `ahead`."""
    ordered, number = order(insertion, told), told.num_lattice_points
    if ahead is None or ordered is not insertion or ahead[0].shape[0] < number or is_loose(ahead[1].capacity, number):
        keys, table = _unpack(ordered, number)
    else:
        keys, table = _shorten(ahead[0], number), ahead[1]
    return keys, ordered.vertices, ordered.barycentric, table.storage


def _shorten(rows: Tensor, number: int) -> Tensor:
    """The first rows, by the fastest of the ways."""
    columns = rows.shape[1]
    return rows.as_strided((number, columns), (columns, 1))


def is_loose(capacity: int, rows: int) -> bool:
    """Whether so many rows leave most of a table empty, and that takes much memory."""
    return capacity > max(2 * capacity_for(rows), _SMALL_CAPACITY)


def _unpack(
    insertion: Insertion, rows: int, paired: tuple[Tensor, Tensor] | None = None, telling: Telling | None = None
) -> _Unpacked:
    """The keys of up to so many rows, and the table, or a smaller one; for the rest see `unpack_keys`."""
    table, device = insertion.table, insertion.vertices.device
    if is_loose(table.capacity, rows):
        table = PackedTable.empty(capacity_for(rows), device)
    keys = torch.empty(rows, insertion.dimension + 1, dtype=torch.int32, device=device)
    unpack_keys(insertion, keys, table, paired, telling)
    return keys, table


def expected_rows(points: int, dimension: int) -> int:
    """Room for the lattice points of most sets of so many points."""
    likely = points + points // 4 if dimension <= _FEW_DIMENSIONS else points // _POINTS_PER_ROW
    return min(points * (dimension + 1), max(_FEWEST_ROWS, likely))


def rows_ahead(points: int, dimension: int, taps: int) -> int | None:
    """For how many rows so many neighbors are looked up before their number is known, None for after it."""
    rows = expected_rows(points, dimension)
    if not 0 < points <= MOST_POINTS_AHEAD or dimension > LARGEST_EVEN_DIMENSION or taps * rows > _MOST_NEIGHBORS_AHEAD:
        return None
    return rows


def expected_keys(points: int, dimension: int) -> int:
    """The same for keys alone, which take little memory."""
    return min(2 * expected_rows(points, dimension), points * (dimension + 1))


def _index(attempts: list[Attempt]) -> list[Indexed]:
    """All sets together, so that the host waits once."""
    with HostReports(attempts[0].features.device) as reports:
        insertions = [insert_points(*attempt) for attempt in attempts]
        tellings = [attempt.telling(words) for attempt, words in zip(attempts, reports.words, strict=False)]
        ahead = [_unpack_ahead(*each) for each in zip(insertions, tellings, strict=True)]
        told = [reports.read(number) for number in range(len(attempts))]
    return [_settle(*each) for each in zip(attempts, insertions, told, ahead, strict=True)]


def _unpack_ahead(insertion: Insertion, telling: Telling) -> _Unpacked | None:
    """Tell the host, and make the keys of most lattices of so many points before their number is known; None where that
    would be in vain.
    """
    points = insertion.vertices.shape[0]
    if points > MOST_POINTS_AHEAD or torch.are_deterministic_algorithms_enabled():
        report(insertion.table, telling)
        return None
    return _unpack(insertion, expected_keys(points, insertion.dimension), telling=telling)


def _settle(attempt: Attempt, insertion: Insertion, told: Report, ahead: _Unpacked | None) -> Indexed:
    check_range(attempt.features, attempt.batch, told)
    if not told.no_room and not told.full:
        return finish(insertion, told, ahead)
    following = attempt.next(told)
    return wide_keys.index_points(attempt.features, attempt.batch) if following is None else _index([following])[0]


def is_packed(features: Tensor) -> bool:
    """Whether a table of packed keys is tried at all."""
    return features.shape[0] > 0 and features.shape[1] <= LARGEST_TILE_DIMENSION


@on_device
def index_points(features: Tensor, batch: Tensor | None) -> Indexed:
    if not is_packed(features):
        return wide_keys.index_points(features, batch)
    return _index([first_attempt(features, batch)])[0]


@on_device
def index_both(
    features: Tensor, batch: Tensor | None, target_features: Tensor, target_batch: Tensor | None
) -> tuple[Indexed, Indexed]:
    """`index_points` of sources and targets, which wait for the GPU together."""
    if not (is_packed(features) and is_packed(target_features)):
        return index_points(features, batch), index_points(target_features, target_batch)
    source, target = _index([first_attempt(features, batch), first_attempt(target_features, target_batch)])
    return source, target


@on_device
def index_with_neighbors(
    features: Tensor, batch: Tensor | None, offsets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None:
    """`index_points` and the neighbors of what it numbers at each offset, None where that is done in two steps."""
    points, dimension = features.shape
    taps = offsets.shape[0]
    rows = rows_ahead(points, dimension, taps)
    if rows is None or torch.are_deterministic_algorithms_enabled():
        return None
    attempt = first_attempt(features, batch)
    insertion = insert_points(*attempt)
    with HostReports(features.device) as reports:
        neighbors = torch.empty(taps, rows, dtype=torch.int32, device=features.device)
        # most lattices have fewer rows
        paired = worth_pairing(taps, rows // 4)
        keys, table = _unpack(
            insertion, rows, (neighbors, offsets) if paired else None, attempt.telling(reports.words[0])
        )
        search_into(neighbors, table, insertion.codes, offsets, True, paired)
        told = reports.read(0)
    check_range(features, batch, told)
    number = told.num_lattice_points
    if told.no_room or told.full:
        return None
    if number > rows:
        keys, vertices, barycentric, storage = finish(insertion, told)
        return keys, vertices, barycentric, storage, search_packed(PackedTable(storage), keys, number, offsets, True)
    neighbors = neighbors.as_strided((taps, number), (number, 1))
    return _shorten(keys, number), insertion.vertices, insertion.barycentric, table.storage, neighbors
