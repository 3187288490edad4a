"""The table of neighbors: exact look-ups in the hash table that building the lattice left, and its transpose."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton import wide
from permutohedral.ops.triton.launch import cdiv, launch, on_device, power_of_two
from permutohedral.ops.triton.table import (
    EXTENT,
    ITEM_EXTENT,
    ITEM_SHIFT,
    LOW,
    SHIFT,
    PackedTable,
    codes_of,
    look_up,
    rows_of,
)

# every program looks for the opposite of its tap, so there must not be many
_MOST_PAIRED_TAPS = 64


@triton.jit
def look_up_tap(
    table, target_keys, offset, target, capacity, num_targets, D: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """int32 `[BLOCK]`: the row of the table's key at `offset` from each target, -1 where there is none."""
    inside = target < num_targets
    key = target_keys + tl.minimum(target, num_targets - 1).to(tl.int64) * (D + 1)
    item = tl.load(key).to(tl.int64)
    # the code of an item below zero is below zero, too, and in no table
    packed = inside & (item < tl.load(table + ITEM_EXTENT))
    code = item << tl.load(table + ITEM_SHIFT)
    corner = tl.zeros([BLOCK], tl.int32)
    for i in tl.static_range(D):
        coordinate = tl.load(key + 1 + i) + tl.load(offset + i)
        # floor division, as coordinates may be negative
        quotient = coordinate // (D + 1)
        remainder = coordinate - quotient * (D + 1)
        quotient = tl.where(remainder < 0, quotient - 1, quotient)
        if i == 0:
            corner = tl.where(remainder < 0, remainder + D + 1, remainder)
        digit = quotient.to(tl.int64) - tl.load(table + LOW + i)
        packed = packed & (digit >= 0) & (digit < tl.load(table + EXTENT + i))
        code += digit << tl.load(table + SHIFT + i)
    return look_up(codes_of(table), rows_of(table, capacity), code + corner, packed, capacity)


@triton.jit
def opposite_tap(offsets, tap, taps, D: tl.constexpr, TAPS: tl.constexpr):
    """The first tap at the negative offset, `taps` if it is not among them."""
    other = tl.arange(0, TAPS)
    same = other < taps
    for i in tl.static_range(D):
        there = tl.load(offsets + other * D + i, mask=other < taps, other=0)
        same = same & (there == -tl.load(offsets + tap * D + i))
    return tl.min(tl.where(same, other, taps), axis=0)


@triton.jit(do_not_specialize=["capacity", "num_targets", "taps"])
def find_neighbors_kernel(
    table, target_keys, offsets, neighbors, capacity, num_targets, taps,
    TAPS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tap of a block of targets; with TAPS > 0 the targets are the sources, and `neighbors` is filled with -1.

    Then two opposite taps are one: if u is the neighbor of v along the first, v is the neighbor of u along the second.
    """
    blocks = tl.cdiv(num_targets, BLOCK)
    tap = tl.program_id(0) // blocks
    target = (tl.program_id(0) - tap * blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = target < num_targets
    row = neighbors + tap.to(tl.int64) * num_targets
    offset = offsets + tap * D
    if TAPS == 0:
        found = look_up_tap(table, target_keys, offset, target, capacity, num_targets, D, BLOCK)
        tl.store(row + target, found, mask=inside)
    else:
        opposite = opposite_tap(offsets, tap, taps, D, TAPS)
        # an offset may occur twice, and only its first tap is a partner
        mutual = opposite_tap(offsets, tl.minimum(opposite, taps - 1), taps, D, TAPS) == tap
        if opposite == tap:
            tl.store(row + target, target, mask=inside)
        elif (opposite > tap) | (mutual == 0):
            found = look_up_tap(table, target_keys, offset, target, capacity, num_targets, D, BLOCK)
            tl.store(row + target, found, mask=inside)
            if mutual:
                back = neighbors + opposite.to(tl.int64) * num_targets
                tl.store(back + found, target, mask=(found >= 0) & (found < num_targets))


@triton.jit(do_not_specialize=["num_targets", "num_source"])
def transpose_neighbors_kernel(neighbors, opposite, transposed, num_targets, num_source, BLOCK: tl.constexpr):
    blocks = tl.cdiv(num_targets, BLOCK)
    tap = (tl.program_id(0) // blocks).to(tl.int64)
    target = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(neighbors + tap * num_targets + target, mask=target < num_targets, other=-1)
    tl.store(transposed + tl.load(opposite + tap) * num_source + source, target, mask=source >= 0)


@on_device
def find_neighbors(source_keys: Tensor, table: Tensor, target_keys: Tensor, offsets: Tensor) -> Tensor:
    shared = source_keys is target_keys
    source_keys, target_keys, offsets = source_keys.contiguous(), target_keys.contiguous(), offsets.contiguous()
    if not PackedTable.holds(table):
        table = table if table.numel() else wide.build_table(source_keys)
        return wide.find_neighbors(source_keys, table, target_keys, offsets)
    targets, (taps, d) = target_keys.shape[0], offsets.shape
    shape, device = (taps, targets), source_keys.device
    paired = power_of_two(taps) if shared and taps <= _MOST_PAIRED_TAPS else 0
    if paired:
        neighbors = torch.full(shape, -1, dtype=torch.int32, device=device)
    else:
        neighbors = torch.empty(shape, dtype=torch.int32, device=device)
    if neighbors.numel():
        launch(
            find_neighbors_kernel, (cdiv(targets, 128) * taps,), table, target_keys, offsets, neighbors,
            PackedTable(table).capacity, targets, taps, TAPS=paired, D=d, BLOCK=128, num_warps=1,
        )  # fmt: skip
    return neighbors


@on_device
def transpose_neighbors(neighbors: Tensor, opposite: Tensor, num_source: int) -> Tensor:
    neighbors = neighbors.contiguous()
    taps, targets = neighbors.shape
    transposed = neighbors.new_full((taps, num_source), -1)
    if neighbors.numel():
        launch(
            transpose_neighbors_kernel, (cdiv(targets, 1024) * taps,), neighbors, opposite, transposed, targets,
            num_source, BLOCK=1024,
        )  # fmt: skip
    return transposed
