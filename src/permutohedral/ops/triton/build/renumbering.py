"""Number the lattice points of a table anew: in the order of their codes, or along a space-filling curve."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from permutohedral.ops.triton.build.insertion import Insertion
from permutohedral.ops.triton.build.packed_table import SHIFT, UNIT, entry_of, look_up
from permutohedral.ops.triton.runtime import HAS_PTX, cdiv, launch


@triton.jit(do_not_specialize=["num_rows"])
def curve_kernel(table, codes, curve, num_rows, D: tl.constexpr, BLOCK: tl.constexpr):
    """31 bits along a space-filling curve for each code: the digits' bits in turn."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < num_rows
    code = tl.load(codes + number, mask=inside, other=0)
    BITS: tl.constexpr = 31 // D
    along = tl.zeros([BLOCK], tl.int32)
    for i in tl.static_range(D):
        digit = (code >> tl.load(table + SHIFT + i)).to(tl.int32)
        for bit in tl.static_range(BITS):
            along |= ((digit >> bit) & 1) << (bit * D + i)
    tl.store(curve + number, along, mask=inside)


@triton.jit(do_not_specialize=["num_rows", "capacity"])
def renumber_rows_kernel(
    table, codes, order, new_codes, new_number, num_rows, capacity, CORNER_BITS: tl.constexpr, PTX: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Give the row `order[i]` the number i."""
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


@triton.jit(do_not_specialize=["num_points", "corner_stride"])
def renumber_vertices_kernel(vertices, new_number, num_points, corner_stride, BLOCK: tl.constexpr):
    """One corner of a block of points."""
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    place = vertices + tl.program_id(1).to(tl.int64) * corner_stride + point
    vertex = tl.load(place, mask=inside, other=0)
    tl.store(place, tl.load(new_number + vertex, mask=inside, other=0), mask=inside)


def renumber(insertion: Insertion, num: int, exact: bool) -> Insertion:
    """The same table and vertices with `num` rows in the order of their codes, which no scheduling changes, or along
    a curve.
    """
    table, vertices = insertion.table, insertion.vertices
    device, d = vertices.device, insertion.dimension
    sorted_by = insertion.codes[:num]
    grid = (cdiv(num, 256),)
    if not exact:
        sorted_by = torch.empty(num, dtype=torch.int32, device=device)
        launch(curve_kernel, grid, (table.storage, insertion.codes, sorted_by), (num,), D=d, BLOCK=256)
    order = torch.sort(sorted_by).indices
    codes = torch.empty(num, dtype=torch.int64, device=device)
    new_number = torch.empty(num, dtype=torch.int32, device=device)
    launch(
        renumber_rows_kernel, grid, (table.storage, insertion.codes, order, codes, new_number), (num, table.capacity),
        CORNER_BITS=d.bit_length(), PTX=HAS_PTX, D=d, BLOCK=256,
    )  # fmt: skip
    (points, corners), stride = vertices.shape, vertices.stride(1)
    blocks = (cdiv(points, 1024), corners)
    launch(renumber_vertices_kernel, blocks, (vertices, new_number), (points, stride), BLOCK=1024)
    return insertion._replace(codes=codes)
