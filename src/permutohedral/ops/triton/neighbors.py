"""The table of neighbors: exact look-ups in the hash table that building the lattice left, and its transpose."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton import wide
from permutohedral.ops.triton.launch import cdiv, launch, on_device
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


@triton.jit(do_not_specialize=["capacity", "num_targets"])
def find_neighbors_kernel(
    table, target_keys, offsets, neighbors, capacity, num_targets, D: tl.constexpr, BLOCK: tl.constexpr
):
    blocks = tl.cdiv(num_targets, BLOCK)
    tap = tl.program_id(0) // blocks
    target = (tl.program_id(0) - tap * blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = target < num_targets
    key = target_keys + tl.minimum(target, num_targets - 1).to(tl.int64) * (D + 1)
    offset = offsets + tap * D
    item = tl.load(key).to(tl.int64)
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
    found = look_up(codes_of(table), rows_of(table, capacity), code + corner, packed, capacity)
    tl.store(neighbors + tap.to(tl.int64) * num_targets + target, found, mask=inside)


@triton.jit(do_not_specialize=["num_targets", "num_source"])
def transpose_neighbors_kernel(neighbors, opposite, transposed, num_targets, num_source, BLOCK: tl.constexpr):
    blocks = tl.cdiv(num_targets, BLOCK)
    tap = (tl.program_id(0) // blocks).to(tl.int64)
    target = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(neighbors + tap * num_targets + target, mask=target < num_targets, other=-1)
    tl.store(transposed + tl.load(opposite + tap) * num_source + source, target, mask=source >= 0)


@on_device
def find_neighbors(source_keys: Tensor, table: Tensor, target_keys: Tensor, offsets: Tensor) -> Tensor:
    source_keys, target_keys, offsets = source_keys.contiguous(), target_keys.contiguous(), offsets.contiguous()
    if not PackedTable.holds(table):
        table = table if table.numel() else wide.build_table(source_keys)
        return wide.find_neighbors(source_keys, table, target_keys, offsets)
    targets, (taps, d) = target_keys.shape[0], offsets.shape
    neighbors = torch.empty(taps, targets, dtype=torch.int32, device=source_keys.device)
    if neighbors.numel():
        launch(
            find_neighbors_kernel, (cdiv(targets, 128) * taps,), table, target_keys, offsets, neighbors,
            PackedTable(table).capacity, targets, D=d, BLOCK=128, num_warps=1,
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
