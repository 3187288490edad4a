"""Build the lattice: embed the points, number the vertices they touch (`insertion.py`).

The host reads the number of lattice points and the error flags together, once, of sources and targets alike. Where the
points come in no spatial order the lattice points are numbered along a space-filling curve: a convolution then finds
neighbors near each other in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from permutohedral.ops.primitives import key_limit, range_error
from permutohedral.ops.triton import wide
from permutohedral.ops.triton.embedding import LARGEST_TILE_DIMENSION
from permutohedral.ops.triton.insertion import REPORTED, Insertion, insert_points, resolve_vertices, unpack_keys
from permutohedral.ops.triton.launch import on_device, power_of_two, rows_contiguous
from permutohedral.ops.triton.ordering import reorder
from permutohedral.ops.triton.replay import find_recording, record
from permutohedral.ops.triton.report import abandon_reports, reports_on
from permutohedral.ops.triton.table import SAMPLES, PackedTable, capacity_for, roomy_capacity

# above it, the bits of a key are dealt out by the range of the data
LARGEST_FIXED_DIMENSION = 7
# the values of a smaller lattice stay in the cache of a large GPU, whatever their order
WORTH_ORDERING = 1 << 21
# by device and shape of the points, how many lattice points there were the time before: the next are often as many
Kind = tuple[int, torch.Size, bool]
_sizes: dict[Kind, int] = {}
# those of which the last two had equally many
_steady: set[Kind] = set()
_MOST_SIZES = 1024


@dataclass
class _Points:
    """A set of points on its way into a table."""

    features: Tensor
    batch: Tensor | None
    capacity: int
    tight: bool
    # how many lattice points points like these had, 0 if there were none like these
    foreseen: int
    insertion: Insertion | None = None
    num_lattice_points: int = 0
    scattered: bool = False

    @staticmethod
    def of(features: Tensor, batch: Tensor | None) -> _Points:
        features = rows_contiguous(features)
        foreseen = size_of_kind(kind_of(features, batch))
        entries = features.numel() + features.shape[0]
        capacity = roomy_capacity(foreseen) if foreseen else _first_capacity(entries)
        return _Points(features, batch, capacity, features.shape[1] > LARGEST_FIXED_DIMENSION, foreseen)


def kind_of(features: Tensor, batch: Tensor | None) -> Kind:
    """What points are told apart by."""
    return features.get_device(), features.shape, batch is None


def size_of_kind(kind: Kind) -> int:
    """How many lattice points the last points of this kind had, 0 if there were none."""
    return _sizes.get(kind, 0)


def note_kind(kind: Kind, num_lattice_points: int) -> None:
    if len(_sizes) >= _MOST_SIZES:
        _sizes.clear()
        _steady.clear()
    if _sizes.get(kind) == num_lattice_points:
        _steady.add(kind)
    else:
        _steady.discard(kind)
        _sizes[kind] = num_lattice_points


def foresee_rows(foreseen: int, kind: Kind) -> int:
    """How many rows to make room for: some more, and a number that lattices of about this size share."""
    # a 64th more if the last two had the same size, else an eighth
    bits = 6 if kind in _steady else 3
    rows = foreseen + (foreseen >> bits) + 1
    step = max(1 << rows.bit_length() >> (bits + 3), 1)
    return -(-rows // step) * step


def _launch(given: _Points, rows: int, report: Tensor) -> tuple[Tensor, ...]:
    """Into new tables, whose last are keys: with `rows`, for only so many can be told apart; without, slots of keys."""
    features = given.features
    insertion = Insertion.empty(
        features, given.capacity, features.new_empty(rows, dtype=torch.int32) if rows else None
    )  # fmt: skip
    insert_points(insertion, features, given.batch, given.tight)
    resolve_vertices(insertion, report)
    listed = _unpack(insertion, rows, insertion.table) if rows else insertion.rows
    return insertion.table.storage, insertion.vertices, insertion.barycentric, listed


def _key(features: Tensor, batch: Tensor | None, capacity: int, rows: int) -> tuple[object, ...]:
    return (
        "index", features.get_device(), capacity, rows, batch is None, features.dtype, features.shape, features.stride()
    )  # fmt: skip


def _insert(given: _Points, report: Tensor) -> None:
    """Insert the points into new tables, of as many rows as foreseen."""
    features, batch = given.features, given.batch
    rows = foresee_rows(given.foreseen, kind_of(features, batch)) if given.foreseen else 0
    if rows >= WORTH_ORDERING or given.tight or torch.are_deterministic_algorithms_enabled():
        rows = 0
    if not rows:
        results = _launch(given, rows, report)
    else:
        tensors = [features, report] if batch is None else [features, report, batch]
        key = _key(features, batch, given.capacity, rows)
        recording = find_recording(key)
        if recording is None:
            results = record(key, lambda: _launch(given, rows, report), *tensors, apart=True)
        else:
            results = recording.results(recording.repeat(*tensors))
    storage, vertices, barycentric, listed = results
    # with keys their slots are not kept
    slots, keys = (listed[:0], listed) if rows else (listed, None)
    given.insertion = Insertion(PackedTable(storage), slots, vertices, barycentric, keys)


def _judge(given: _Points, report: list[int]) -> bool:
    """Whether the points are in the table; if not, what to try next is noted, None for no table of packed keys."""
    last, bad, no_room, full, far = report
    if bad >= 0:
        raise range_error(given.features, key_limit(given.features.dtype))
    given.num_lattice_points, given.scattered = last + 1, 2 * far > SAMPLES.value
    insertion, fitting = given.insertion, capacity_for(last + 1)
    if no_room < 0 and full < 0:
        if (
            insertion is None
            or insertion.keys is None
            or (last < insertion.keys.shape[0] and fitting <= given.capacity <= 2 * fitting)
        ):
            return True
        # not as foreseen, and all tables are one allocation
        given.foreseen, given.capacity = last + 1, roomy_capacity(last + 1)
        return False
    largest = capacity_for(given.features.numel() + given.features.shape[0])
    if (no_room >= 0 and given.tight) or (full >= 0 and given.capacity >= largest):
        given.insertion = None
        return True
    given.tight = given.tight or no_room >= 0
    given.capacity = min(8 * given.capacity, largest) if full >= 0 else given.capacity
    return False


def _unpack(insertion: Insertion, rows: int, other: PackedTable) -> Tensor:
    keys = insertion.vertices.new_empty(rows, insertion.vertices.shape[1])
    return unpack_keys(insertion, keys, other)


def _finish(given: _Points) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    insertion, num = given.insertion, given.num_lattice_points
    if insertion is None:
        return wide.index_points(given.features, given.batch)
    note_kind(kind_of(given.features, given.batch), num)
    table = insertion.table
    if insertion.keys is not None:
        return insertion.keys[:num], insertion.vertices, insertion.barycentric, table.storage
    exact, fitting = torch.are_deterministic_algorithms_enabled(), capacity_for(num)
    if exact or (num >= WORTH_ORDERING and given.scattered):
        insertion.rows = reorder(table, insertion.rows, insertion.vertices, num, exact)
    if not fitting <= table.capacity <= 2 * fitting:
        # most of the table is empty, or too little
        table = PackedTable.empty(fitting, table.storage.device)
    keys = _unpack(insertion, num, table)
    return keys, insertion.vertices, insertion.barycentric, table.storage


def _first_capacity(num_entries: int) -> int:
    """Enough for any small lattice; a large one is rarely more than a twelfth of what the points could touch."""
    return power_of_two(min(2 * num_entries, max(1 << 22, num_entries // 6)), 64)


def _try(pending: list[_Points]) -> list[_Points]:
    """Insert the points of all sets; those that must be tried again."""
    reports = reports_on(pending[0].features.device)
    try:
        for given, row in zip(pending, reports.rows, strict=False):
            _insert(given, row)
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


def _index_as_foreseen(features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """The short way to what `_index` does for points like the last ones; None if they are not, or not recorded."""
    kind = kind_of(features, batch)
    foreseen = size_of_kind(kind)
    rows, capacity = foresee_rows(foreseen, kind), roomy_capacity(foreseen)
    if foreseen == 0 or rows >= WORTH_ORDERING or torch.are_deterministic_algorithms_enabled():
        return None
    recording = find_recording(_key(features, batch, capacity, rows))
    if recording is None:
        return None
    reports = reports_on(features.device)
    try:
        if batch is None:
            storages = recording.repeat(features, reports.rows[0])
        else:
            storages = recording.repeat(features, reports.rows[0], batch)
        # while the GPU is at work
        table, vertices, barycentric, keys = recording.results(storages)
        last, bad, no_room, full, _ = reports.read(0, REPORTED.value)
    except BaseException:
        abandon_reports()
        raise
    fitting = capacity_for(last + 1)
    if max(bad, no_room, full) >= 0 or last >= rows or not fitting <= capacity <= 2 * fitting:
        return None
    note_kind(kind, last + 1)
    # the fastest of the ways to shorten them
    keys = keys.as_strided((last + 1, keys.shape[1]), keys.stride())
    return keys, vertices, barycentric, table


def _is_packed(features: Tensor) -> bool:
    return features.shape[0] > 0 and features.shape[1] <= LARGEST_TILE_DIMENSION


@on_device
def index_points(features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if not _is_packed(features):
        return wide.index_points(features, batch)
    return _index_as_foreseen(features, batch) or _index([_Points.of(features, batch)])[0]


@on_device
def index_both(
    features: Tensor, batch: Tensor | None, target_features: Tensor, target_batch: Tensor | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """`index_points` of sources and targets, which wait for the GPU together."""
    if not (_is_packed(features) and _is_packed(target_features)):
        return index_points(features, batch), index_points(target_features, target_batch)
    source, target = _index([_Points.of(features, batch), _Points.of(target_features, target_batch)])
    return source, target
