"""The table of neighbors: exact look-ups in the hash table that building the lattice left, and its transpose."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.build import wide_keys
from permutohedral.ops.triton.build.host_report import Telling, tell_host, told_by_kernel
from permutohedral.ops.triton.build.packed_table import (
    EXTENT,
    ITEM_EXTENT,
    ITEM_SHIFT,
    LOW,
    SHIFT,
    UNIT,
    PackedTable,
    count_rows,
    look_up,
)
from permutohedral.ops.triton.runtime import HAS_PTX, Bound, cdiv, launch, on_device, power_of_two
from permutohedral.ops.triton.zeros import fill_block

# every program looks for the opposite of its tap, so there must not be many
_MOST_PAIRED_TAPS = 64
# fewer look-ups are done before a table is filled with -1
_WORTH_PAIRING = 1 << 21
# targets of a program; programs that fill a large GPU
_BLOCK, _PROGRAMS = 128, 1 << 13


@triton.jit
def key_digit(keys, table, target, i, D: tl.constexpr):
    """Digit i of the targets' keys and their corner, int32."""
    coordinate = tl.load(keys + target.to(tl.int64) * (D + 1) + 1 + i)
    # floor division, as coordinates may be negative
    quotient = coordinate // (D + 1)
    remainder = coordinate - quotient * (D + 1)
    quotient = tl.where(remainder < 0, quotient - 1, quotient)
    corner = tl.where(remainder < 0, remainder + D + 1, remainder)
    return quotient - tl.load(table + LOW + i).to(tl.int32), corner


@triton.jit
def look_up_tap(
    table, targets, offset, target, here, inside, unit, capacity, CORNER_BITS: tl.constexpr, PTX: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """int32 `[1, BLOCK]`: the row of the table's key at `offset` from each target, -1 where there is none.

    An offset is a lattice point, its coordinates being (d+1) p_i + r: it moves digit i by p_i, and all digits by one
    more where the corner passes d. So the code of the neighbor is that of the target plus a number.

    Args:
        targets: the keys of the targets, int32, or the codes of the table's own rows, int64.
        offset: of the tap, int32 `[d]`.
        target, inside: which targets, and whether there are such, `[1, BLOCK]`.
        here: their codes, if these are known.
        unit: what a code grows by when all digits grow by one.
    """
    first = tl.load(offset)
    residue = ((first % (D + 1)) + D + 1) % (D + 1)
    coded: tl.constexpr = targets.dtype.element_ty == tl.int64
    wanted = inside
    if coded:
        corner = (here & ((1 << CORNER_BITS) - 1)).to(tl.int32)
        code = here + residue
    else:
        item = tl.load(targets + target.to(tl.int64) * (D + 1)).to(tl.int64)
        wanted = wanted & (item >= 0) & (item < tl.load(table + ITEM_EXTENT))
        _, corner = key_digit(targets, table, target, 0, D)
        code = (item << tl.load(table + ITEM_SHIFT)) + corner + residue
    passes = (corner + residue > D).to(tl.int32)
    for i in tl.static_range(D):
        shift = tl.load(table + SHIFT + i)
        extent = tl.load(table + EXTENT + i).to(tl.uint32)
        if coded:
            # packed by fixed bits, so the extent is a power of two
            digit = (here >> shift).to(tl.int32) & (extent - 1).to(tl.int32)
        else:
            digit, _ = key_digit(targets, table, target, i, D)
            code += digit.to(tl.int64) << shift
        step = (tl.load(offset + i) - residue) // (D + 1)
        code += step.to(tl.int64) << shift
        wanted = wanted & ((digit + step + passes).to(tl.uint32, bitcast=True) < extent)
    code += tl.where(passes > 0, unit - (D + 1), 0)
    _, row = look_up(table, code, unit, wanted, capacity, CORNER_BITS, PTX, D)
    return row


@triton.jit
def compare_offsets(offsets, tap, other, taps, D: tl.constexpr):
    """Whether the offsets of two taps are each other's negative, and whether they are equal; no for absent taps."""
    negative = (tap < taps) & (other < taps)
    equal = negative
    for i in tl.static_range(D):
        mine = tl.load(offsets + tl.minimum(tap, taps - 1) * D + i)
        there = tl.load(offsets + tl.minimum(other, taps - 1) * D + i)
        negative = negative & (there == -mine)
        equal = equal & (there == mine)
    return negative, equal


@triton.jit
def find_opposite(offsets, tap, taps, D: tl.constexpr, TAPS: tl.constexpr):
    """The first tap at the negative offset (`taps` if there is none), and the first at the same one."""
    other = tl.arange(0, TAPS)
    negative, equal = compare_offsets(offsets, tap, other, taps, D)
    return tl.min(tl.where(negative, other, taps), axis=0), tl.min(tl.where(equal, other, taps), axis=0)


@triton.jit
def list_seconds(offsets, taps, D: tl.constexpr, TAPS: tl.constexpr):
    """int64: bit t is set if `find_pair` leaves tap t to the one opposite to it."""
    tap = tl.arange(0, TAPS)
    negative, equal = compare_offsets(offsets, tap[:, None], tap[None, :], taps, D)
    opposite = tl.min(tl.where(negative, tap[None, :], TAPS), axis=1)
    first = tl.min(tl.where(equal, tap[None, :], TAPS), axis=1)
    return tl.sum(tl.where((opposite < tap) & (first == tap), tl.full([TAPS], 1, tl.int64) << tap, 0), axis=0)


@triton.jit
def fill_seconds(
    neighbors, offsets, first_row, num_rows, taps, D: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Fill a BLOCK of columns of `neighbors [taps, rows]` with -1, at the taps that `find_pair` writes in part."""
    seconds = list_seconds(offsets, taps, D, TAPS)
    for tap in range(taps):
        if (seconds >> tap) & 1:
            fill_block(neighbors + tl.cast(tap, tl.int64) * num_rows, first_row, num_rows, -1, BLOCK)


@triton.jit
def find_pair(
    table, targets, offsets, neighbors, target, here, inside, unit, capacity, num_targets, tap, taps,
    TAPS: tl.constexpr, CORNER_BITS: tl.constexpr, PTX: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The neighbors of some targets along a tap and along the opposite one, where it is the first of the two."""
    row = neighbors + tl.cast(tap, tl.int64) * num_targets
    opposite, first = find_opposite(offsets, tap, taps, D, TAPS)
    # an offset may occur twice, and only its first tap is a partner
    mutual = (first == tap) & (opposite < taps)
    if opposite == tap:
        tl.store(row + target, target, mask=inside)
    elif (opposite > tap) | (mutual == 0):
        found = look_up_tap(
            table, targets, offsets + tap * D, target, here, inside, unit, capacity, CORNER_BITS, PTX, D
        )  # fmt: skip
        tl.store(row + target, found, mask=inside)
        if mutual:
            back = neighbors + opposite.to(tl.int64) * num_targets
            tl.store(back + found, target, mask=inside & (found >= 0) & (found < num_targets))


@triton.jit(do_not_specialize=["capacity", "num_targets", "taps", "parts", "num_points"])
def find_neighbors_kernel(
    table, targets, offsets, neighbors, features, words, capacity, num_targets, taps, parts, num_points,
    COUNTED: tl.constexpr, PAIRED: tl.constexpr, TAPS: tl.constexpr, TOLD: tl.constexpr, STRIDE: tl.constexpr,
    CORNER_BITS: tl.constexpr, PTX: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some taps of a block of targets; where PAIRED, the targets are the sources, and `neighbors` holds -1 where
    `fill_seconds` writes it.

    Then two opposite taps are one: if u is the neighbor of v along the first, v is the neighbor of u along the second.
    If COUNTED, only as many targets as the table holds, and `neighbors` has as many columns. The `parts` of the taps
    go to programs side by side; those of one part find much of what they read in the cache.
    """
    tell_host(table, features, words, num_points, TOLD, STRIDE, D)
    first_target = (tl.program_id(0) // parts) * BLOCK
    existing = count_rows(table, num_targets, COUNTED)
    if first_target < existing:
        place = first_target + tl.arange(0, BLOCK)[None, :]
        inside = place < existing
        target = tl.minimum(place, existing - 1)
        here = tl.load(targets + target)
        unit = tl.load(table + UNIT)
        for tap in range(tl.program_id(0) % parts, taps, parts):
            if PAIRED:
                find_pair(
                    table, targets, offsets, neighbors, target, here, inside, unit, capacity, existing, tap, taps,
                    TAPS, CORNER_BITS, PTX, D,
                )  # fmt: skip
            else:
                found = look_up_tap(
                    table, targets, offsets + tap * D, target, here, inside, unit, capacity, CORNER_BITS, PTX, D
                )  # fmt: skip
                tl.store(neighbors + tl.cast(tap, tl.int64) * existing + target, found, mask=inside)


@triton.jit(do_not_specialize=["num_targets", "num_source"])
def transpose_neighbors_kernel(neighbors, opposite, transposed, num_targets, num_source, BLOCK: tl.constexpr):
    blocks = tl.cdiv(num_targets, BLOCK)
    tap = (tl.program_id(0) // blocks).to(tl.int64)
    target = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(neighbors + tap * num_targets + target, mask=target < num_targets, other=-1)
    tl.store(transposed + tl.load(opposite + tap) * num_source + source, target, mask=source >= 0)


def worth_pairing(taps: int, targets: int) -> bool:
    """Whether opposite taps of so many targets, which are the sources, are looked up as one."""
    return taps <= _MOST_PAIRED_TAPS and taps * targets >= _WORTH_PAIRING


def search_packed(table: PackedTable, targets: Tensor, num_targets: int, offsets: Tensor, shared: bool) -> Tensor:
    """The rows of the table's keys at each offset from the targets: int32 `[taps, targets]`, -1 where there is none.

    Args:
        table: of the sources.
        targets: int32 `[targets, 1 + d]`, keys; or int64 `[targets]`, codes of this table, packed evenly.
        num_targets: how many of them there are, if more rows follow.
        offsets: int32 `[taps, d]`.
        shared: whether the targets are the rows of the table; opposite taps are then looked up as one.
    """
    taps = offsets.shape[0]
    paired = shared and worth_pairing(taps, num_targets)
    neighbors = torch.empty(taps, num_targets, dtype=torch.int32, device=targets.device)
    if paired:
        neighbors.fill_(-1)
    if taps and num_targets:
        search_into(neighbors, table, targets, offsets, False, paired)
    return neighbors


def search_counted(
    table: PackedTable, codes: Tensor, rows: int, offsets: Tensor, telling: Telling, paired: bool = False
) -> Tensor:
    """The same of the table's own rows before the host knows how many these are: int32 `[taps, rows]`, room for as
    many as are expected.

    The columns lie side by side as if there were just so many; if there are more than `rows`, nothing is written. For
    many of them opposite taps are better `paired`, which are then looked up as one. The host is told, too.
    """
    neighbors = torch.empty(offsets.shape[0], rows, dtype=torch.int32, device=codes.device)
    if paired:
        neighbors.fill_(-1)
    search_into(neighbors, table, codes, offsets, True, paired, telling)
    return neighbors


def search_into(
    neighbors: Tensor,
    table: PackedTable,
    targets: Tensor,
    offsets: Tensor,
    counted: bool,
    paired: bool,
    telling: Telling | None = None,
) -> None:
    """Fill `neighbors [taps, targets]`, which is not empty; if opposite taps are `paired`, the second of each two holds
    -1 everywhere.

    If `counted`, only the columns of as many targets as the table holds. With `telling` the host is told what became of
    the insertion.
    """
    taps, num_targets = neighbors.shape
    told, points, constants = told_by_kernel(telling, neighbors)
    bound = _bind_find(offsets.shape[1], counted, paired, power_of_two(taps) if paired else 1, *constants)
    blocks = cdiv(num_targets, _BLOCK)
    # enough programs to fill a large GPU
    parts = min(taps, cdiv(_PROGRAMS, blocks))
    tensors = table.storage, targets, offsets, neighbors, *told
    bound((blocks * parts, 1, 1), tensors, (table.capacity, num_targets, taps, parts, points))


@cache
def _bind_find(d: int, counted: bool, paired: bool, taps: int, told: int, stride: int) -> Bound:
    return Bound(
        find_neighbors_kernel, COUNTED=counted, PAIRED=paired, TAPS=taps, TOLD=told, STRIDE=stride,
        CORNER_BITS=d.bit_length(), PTX=HAS_PTX, D=d, BLOCK=_BLOCK, num_warps=2,
    )  # fmt: skip


@on_device
def find_neighbors(source_keys: Tensor, table: Tensor, target_keys: Tensor, offsets: Tensor) -> Tensor:
    shared = source_keys is target_keys
    source_keys, target_keys, offsets = source_keys.contiguous(), target_keys.contiguous(), offsets.contiguous()
    if PackedTable.holds(table):
        return search_packed(PackedTable(table), target_keys, target_keys.shape[0], offsets, shared)
    table = table if table.numel() else wide_keys.build_table(source_keys)
    return wide_keys.find_neighbors(source_keys, table, target_keys, offsets)


@on_device
def transpose_neighbors(neighbors: Tensor, opposite: Tensor, num_source: int) -> Tensor:
    neighbors = neighbors.contiguous()
    taps, targets = neighbors.shape
    transposed = neighbors.new_full((taps, num_source), -1)
    if neighbors.numel():
        launch(
            transpose_neighbors_kernel, (cdiv(targets, 1024) * taps,), (neighbors, opposite, transposed),
            (targets, num_source), BLOCK=1024,
        )  # fmt: skip
    return transposed
