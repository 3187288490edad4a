"""How much memory the tables of a lattice and its coarser levels take on a GPU, by the rules of who allocates them.

Hash tables have a power of two of slots, and keys and neighbors that are made before the host knows their number have
room for as many lattice points as most point sets need: see `lattice.py` and `levels.py`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from permutohedral.ops.triton.build import lattice
from permutohedral.ops.triton.build.embedding import LARGEST_TILE_DIMENSION
from permutohedral.ops.triton.build.packed_table import PackedTable, capacity_for

_INDEX_BYTES, _WORD_BYTES = 4, 8
# for each lattice point while they are sorted along a curve: places on it, their order, both a second time, new codes
# and numbers
_ORDERING_BYTES = 36


class PointSet(NamedTuple):
    """What is embedded.

    Attributes:
        points: how many.
        dimension: d.
        simplices: bytes of vertices and barycentric weights on one level.
        ordered: points that follow each other are near each other.
    """

    points: int
    dimension: int
    simplices: int
    ordered: bool


class TableBytes(NamedTuple):
    """Bytes of a level, or of several.

    Attributes:
        lattice_points: keys and lookup tables.
        neighbors: taps, and what lies between levels.
        peak: the most that is allocated while they are built, simplices included.
    """

    lattice_points: int
    neighbors: int
    peak: int


def forecast_tables(given: PointSet, numbers: list[int], taps: int, together: int) -> TableBytes:
    """Of levels with so many lattice points, the finest first.

    Args:
        given: the points.
        numbers: of lattice points.
        taps: of the filter, and along the axes where these are wanted, too.
        together: how many of them are looked up as the points are inserted, 0 for none.
    """
    columns = given.dimension + 1
    found = _finest(given, numbers[0], taps, together)
    for level, (fine, coarse) in enumerate(pairwise(numbers), start=1):
        if fine and given.dimension <= lattice.LARGEST_EVEN_DIMENSION:
            kept, freed = _unpacked(capacity_for(fine), (coarse, coarse), columns)
        else:
            kept, freed = _in_wide_table(2 * fine, coarse, columns)
        parents, between = 2 * fine * _INDEX_BYTES, taps * (fine + 2 * coarse) * _INDEX_BYTES
        before = found.lattice_points + found.neighbors + level * given.simplices
        peak = max(found.peak, before + parents + kept + freed)
        found = TableBytes(found.lattice_points + kept, found.neighbors + parents + between, peak)
    return found


def _finest(given: PointSet, number: int, taps: int, together: int) -> TableBytes:
    points, dimension, columns = given.points, given.dimension, given.dimension + 1
    if points == 0 or dimension > LARGEST_TILE_DIMENSION:
        kept, freed = _in_wide_table(points * columns, number, columns)
        return TableBytes(kept, taps * number * _INDEX_BYTES, given.simplices + kept + freed)
    capacity = lattice.first_capacity(points, dimension)
    rows = lattice.rows_ahead(points, dimension, together) if together else None
    failed = at_once = 0
    if number > capacity:
        # inserted again, while what did not fit is still there
        failed = _table_bytes(capacity) + capacity * _WORD_BYTES + given.simplices
        capacity, rows = capacity_for(points * columns), None
    if rows is not None:
        kept, freed = _unpacked(capacity, (rows, max(rows, number)), columns)
        neighbors = (max(rows, number) * together + number * (taps - together)) * _INDEX_BYTES
        # too few are made again beside those
        at_once = (rows if number <= rows else rows + number) * together * _INDEX_BYTES
    else:
        ahead = lattice.expected_keys(points, dimension)
        kept, freed = _unpacked(capacity, (ahead if points <= lattice.MOST_POINTS_AHEAD else number, number), columns)
        neighbors = number * taps * _INDEX_BYTES
    ordering = number * _ORDERING_BYTES if lattice.is_worth_ordering(number) and not given.ordered else 0
    return TableBytes(kept, neighbors, given.simplices + kept + max(freed + at_once, ordering) + failed)


def _table_bytes(slots: int) -> int:
    return PackedTable.words(slots) * _WORD_BYTES


def _unpacked(capacity: int, rows: tuple[int, int], columns: int) -> tuple[int, int]:
    """Bytes of the keys and the table that are kept, and of what is freed.

    Keys are made for as many `rows` as are expected, and again for as many as there are if they do not fit, or if the
    table is too large for them.
    """
    room, number = rows

    def fitting(rows: int) -> int:
        return capacity_for(rows) if lattice.is_loose(capacity, rows) else capacity

    first, key_bytes = fitting(room), columns * _INDEX_BYTES
    # beside the codes of all slots
    made = capacity * _WORD_BYTES + _table_bytes(capacity) + room * key_bytes
    made += _table_bytes(first) if first != capacity else 0
    kept = _table_bytes(first) + room * key_bytes
    if room < number or lattice.is_loose(first, number):
        last = fitting(number)
        kept = _table_bytes(last) + number * key_bytes
        made += number * key_bytes + (_table_bytes(last) if last != capacity else 0)
    return kept, made - kept


def _in_wide_table(entries: int, number: int, columns: int) -> tuple[int, int]:
    """The same of `number` different keys among so many, see `wide_keys.py`."""
    kept = capacity_for(entries) * _WORD_BYTES + number * columns * _INDEX_BYTES
    return kept, entries * (columns + 1) * _INDEX_BYTES
