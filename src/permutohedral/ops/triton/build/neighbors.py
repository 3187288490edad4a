"""The table of neighbors: exact look-ups in the hash table that building the lattice left, and its transpose."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops import reference
from permutohedral.ops.triton.build.hash_table import (
    EXTENT,
    ITEM_EXTENT,
    ITEM_SHIFT,
    LOW,
    SHIFT,
    UNIT,
    PackedTable,
    count_rows,
    floor_quotient,
    look_up,
)
from permutohedral.ops.triton.kernel import HAS_PTX, cdiv, fill_block, kernel, on_device

# fewer look-ups take less time than filling a table with -1
_WORTH_PAIRING = 1 << 21
# targets of a program; programs that fill a large GPU
_BLOCK, _PROGRAMS = 128, 1 << 13

# neighbors int32 `[taps, rows]`, and the opposite of each tap
TapPairs = tuple[Tensor, Tensor]


@triton.jit
def key_digit(keys, table, target, i, D: tl.constexpr):
    """Return digit i of the targets' keys and their corner, int32."""
    quotient, corner = floor_quotient(tl.load(keys + target.to(tl.int64) * (D + 1) + 1 + i), D)
    return quotient - tl.load(table + LOW + i).to(tl.int32), corner


@triton.jit
def look_up_tap(
    table, targets, offset, target, here, inside, unit, capacity, CORNER_BITS: tl.constexpr, PTX: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """Return the row of the table's key at `offset` from each target, int32 `[1, BLOCK]`, -1 if there is none.

    An offset is a lattice point with coordinates (d+1) p_i + r. It moves digit i by p_i, and all digits by one more
    where the corner passes d. So the code of the neighbor is that of the target plus a number.

    Args:
        targets: the keys of the targets, int32, or the codes of the table's own rows, int64.
        offset: of the tap, int32 `[d]`.
        target, inside: numbers of the targets, and whether they exist, `[1, BLOCK]`.
        here: their codes, if `targets` are codes.
        unit: the increase of a code when all digits grow by one.
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
def fill_mirrored_taps(neighbors, opposite, first_row, num_rows, taps, BLOCK: tl.constexpr):
    """Fill a BLOCK of columns of `neighbors [taps, rows]` with -1, for taps that their opposite tap writes."""
    for tap in range(taps):
        if tl.load(opposite + tap) < tap:
            fill_block(neighbors + tl.cast(tap, tl.int64) * num_rows, first_row, num_rows, -1, BLOCK)


@triton.jit
def find_pair(
    table, targets, offsets, neighbors, opposite, target, here, inside, unit, capacity, num_targets, tap,
    CORNER_BITS: tl.constexpr, PTX: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Look up a tap and write the opposite one with it; skip the second of the two."""
    row = neighbors + tl.cast(tap, tl.int64) * num_targets
    partner = tl.load(opposite + tap)
    if partner == tap:
        tl.store(row + target, target, mask=inside)
    elif partner > tap:
        found = look_up_tap(
            table, targets, offsets + tap * D, target, here, inside, unit, capacity, CORNER_BITS, PTX, D
        )  # fmt: skip
        tl.store(row + target, found, mask=inside)
        back = neighbors + partner * num_targets
        tl.store(back + found, target, mask=inside & (found >= 0) & (found < num_targets))


@kernel(sizes=["capacity", "num_targets", "taps", "parts"], options=["num_warps"])
def find_neighbors_kernel(
    table, targets, offsets, neighbors, opposite, capacity, num_targets, taps, parts,
    COUNTED: tl.constexpr, PAIRED: tl.constexpr, CORNER_BITS: tl.constexpr, PTX: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Look up some taps of a block of targets.

    With PAIRED the targets are the sources, and mirrored taps of `neighbors` hold -1. Then two opposite taps are one:
    if u is the neighbor of v along the first, v is the neighbor of u along the second. With COUNTED there are as many
    targets as the table holds, and `neighbors` has as many columns. The `parts` of the taps belong to adjacent
    programs; programs of one part find much of their input in the cache.
    """
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
                    table, targets, offsets, neighbors, opposite, target, here, inside, unit, capacity, existing, tap,
                    CORNER_BITS, PTX, D,
                )  # fmt: skip
            else:
                found = look_up_tap(
                    table, targets, offsets + tap * D, target, here, inside, unit, capacity, CORNER_BITS, PTX, D
                )  # fmt: skip
                tl.store(neighbors + tl.cast(tap, tl.int64) * existing + target, found, mask=inside)


@kernel(sizes=["num_targets", "num_source"])
def transpose_neighbors_kernel(neighbors, opposite, transposed, num_targets, num_source, BLOCK: tl.constexpr):
    blocks = tl.cdiv(num_targets, BLOCK)
    tap = (tl.program_id(0) // blocks).to(tl.int64)
    target = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(neighbors + tap * num_targets + target, mask=target < num_targets, other=-1)
    tl.store(transposed + tl.load(opposite + tap) * num_source + source, target, mask=source >= 0)


def is_worth_pairing(taps: int, targets: int) -> bool:
    """Return whether opposite taps of this many targets, which are the sources, are looked up as one."""
    return taps * targets >= _WORTH_PAIRING


def search_packed(
    table: PackedTable, targets: Tensor, num_targets: int, offsets: Tensor, opposite: Tensor | None
) -> Tensor:
    """Return the rows of the table's keys at each offset from the targets: int32 `[taps, targets]`, -1 for none.

    Args:
        table: of the sources.
        targets: int32 `[targets, 1 + d]`, keys; or int64 `[targets]`, codes of this table with equal bits per
            coordinate.
        num_targets: number of targets, if more rows follow.
        offsets: int32 `[taps, d]`.
        opposite: see `find_neighbors`.
    """
    taps = offsets.shape[0]
    neighbors = torch.empty(taps, num_targets, dtype=torch.int32, device=targets.device)
    if taps and num_targets:
        if opposite is None or not is_worth_pairing(taps, num_targets):
            search_into(neighbors, table, targets, offsets, False)
        else:
            search_into(neighbors.fill_(-1), table, targets, offsets, False, opposite)
    return neighbors


def search_into(
    neighbors: Tensor,
    table: PackedTable,
    targets: Tensor,
    offsets: Tensor,
    counted: bool,
    opposite: Tensor | None = None,
) -> None:
    """Fill `neighbors [taps, targets]`, which is not empty.

    With `counted`, before the host knows the number of targets: the columns are stored as if there were exactly as many
    as the table holds, and nothing is written if these are more. With `opposite`, opposite taps are looked up as one,
    and the second of them already holds -1.
    """
    taps, num_targets = neighbors.shape
    d, blocks = offsets.shape[1], cdiv(num_targets, _BLOCK)
    # enough programs to fill a large GPU
    parts = min(taps, cdiv(_PROGRAMS, blocks))
    variant = find_neighbors_kernel[counted, opposite is not None, d.bit_length(), HAS_PTX, d, _BLOCK, 2]
    tensors = table.storage, targets, offsets, neighbors, neighbors if opposite is None else opposite
    variant((blocks * parts, 1, 1), tensors, (table.capacity, num_targets, taps, parts))


@on_device
def find_neighbors(
    source_keys: Tensor, table: Tensor, target_keys: Tensor, offsets: Tensor, opposite: Tensor | None = None
) -> Tensor:
    if not PackedTable.holds(table):
        return reference.find_neighbors(source_keys, table, target_keys, offsets)
    target_keys, offsets = target_keys.contiguous(), offsets.contiguous()
    return search_packed(PackedTable(table), target_keys, target_keys.shape[0], offsets, opposite)


@on_device
def transpose_neighbors(neighbors: Tensor, opposite: Tensor, num_source: int) -> Tensor:
    neighbors = neighbors.contiguous()
    taps, targets = neighbors.shape
    transposed = neighbors.new_full((taps, num_source), -1)
    if neighbors.numel():
        grid, tensors = (cdiv(targets, 1024) * taps, 1, 1), (neighbors, opposite, transposed)
        transpose_neighbors_kernel[1024,](grid, tensors, (targets, num_source))
    return transposed
