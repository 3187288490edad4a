"""Number the lattice points of a table anew: in the order of their codes, or along a space-filling curve."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.launch import cdiv, launch
from permutohedral.ops.triton.table import SHIFT, PackedTable, entry_of


@triton.jit(do_not_specialize=["num_rows"])
def order_kernel(table, slots, order, num_rows, EXACT: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    """What to sort the rows by: their codes, or 31 bits along a space-filling curve."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < num_rows
    code = tl.load(entry_of(table, tl.load(slots + number, mask=inside, other=0)), mask=inside, other=0)
    if EXACT:
        tl.store(order + number, code, mask=inside)
    else:
        BITS: tl.constexpr = 31 // D
        curve = tl.zeros([BLOCK], tl.int32)
        for i in tl.static_range(D):
            digit = (code >> tl.load(table + SHIFT + i)).to(tl.int32)
            for bit in tl.static_range(BITS):
                curve |= ((digit >> bit) & 1) << (bit * D + i)
        tl.store(order + number, curve, mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def renumber_rows_kernel(table, slots, order, new_slots, new_number, num_rows, BLOCK: tl.constexpr):
    """Give the row `order[i]` the number i."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < num_rows
    old = tl.load(order + number, mask=inside, other=0)
    slot = tl.load(slots + old, mask=inside, other=0)
    tl.store(new_slots + number, slot, mask=inside)
    tl.store(new_number + old, number, mask=inside)
    tl.store(entry_of(table, slot) + 1, number.to(tl.int64), mask=inside)


@triton.jit(do_not_specialize=["num_entries"])
def renumber_vertices_kernel(vertices, new_number, num_entries, BLOCK: tl.constexpr):
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < num_entries
    vertex = tl.load(vertices + entry, mask=inside, other=0)
    tl.store(vertices + entry, tl.load(new_number + vertex, mask=inside, other=0), mask=inside)


def reorder(table: PackedTable, slots: Tensor, vertices: Tensor, num: int, exact: bool) -> Tensor:
    """Renumber table and vertices: in the order of the codes, which no scheduling changes, or along a curve.

    Returns: the slots of the new numbers.
    """
    storage, d, device = table.storage, vertices.shape[1] - 1, slots.device
    keys = torch.empty(num, dtype=torch.int64 if exact else torch.int32, device=device)
    grid = (cdiv(num, 512),)
    launch(order_kernel, grid, storage, slots, keys, num, EXACT=exact, D=d, BLOCK=512)
    order = torch.sort(keys).indices
    new_slots = torch.empty(num, dtype=torch.int32, device=device)
    new_number = torch.empty(num, dtype=torch.int32, device=device)
    launch(renumber_rows_kernel, grid, storage, slots, order, new_slots, new_number, num, BLOCK=512)
    entries = vertices.numel()
    launch(renumber_vertices_kernel, (cdiv(entries, 1024),), vertices, new_number, entries, BLOCK=1024)
    return new_slots
