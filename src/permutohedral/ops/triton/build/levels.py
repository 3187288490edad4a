"""The lattice points of the next coarser level, whose step is twice as long.

See `permutohedral.lattice.pyramid`. A lattice point x has the parents (x - e_S) / 2 and (x + e_S) / 2; e_S follows from
the key of x.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.reference import coarse_shares, coarsen_vertices, index_keys, parent_keys
from permutohedral.ops.triton.build.hash_table import (
    EXTENT,
    FULL,
    ITEM_EXTENT,
    ITEM_SHIFT,
    LOW,
    NO_ROOM,
    SHIFT,
    UNIT,
    PackedTable,
    capacity_for,
    floor_quotient,
    insert,
    is_any,
)
from permutohedral.ops.triton.build.lattice import (
    INSERT_BLOCK,
    LARGEST_EVEN_DIMENSION,
    Insertion,
    draw_numbers,
    finish,
    insert_and_wait,
    renumber,
    unpack_bounded,
    wait_for_numbers,
)
from permutohedral.ops.triton.filter.slice import slice
from permutohedral.ops.triton.kernel import HAS_PTX, cdiv, kernel, on_device

# parent of a row without a lattice point: beyond all rows, so that splat, slice and find_largest leave it out
UNUSED = tl.constexpr(1 << 30)


@triton.jit
def odd_parts(keys, vertex, D: tl.constexpr):
    """Count the odd ones of the d+1 numbers n_j - n_0 of each `vertex`, int32."""
    first = tl.load(keys + vertex * (D + 1) + 1)
    last = tl.zeros_like(first)
    odd = tl.zeros_like(first)
    for j in tl.static_range(D):
        coordinate = tl.load(keys + vertex * (D + 1) + 1 + j)
        last -= coordinate
        odd += ((coordinate - first) // (D + 1)) & 1
    return odd + (((last - first) // (D + 1)) & 1)


@triton.jit
def edge_step(keys, vertex, odd, j, D: tl.constexpr):
    """Return coordinate j of the lattice point, and of e_S."""
    first = tl.load(keys + vertex * (D + 1) + 1)
    coordinate = tl.load(keys + vertex * (D + 1) + 1 + j)
    return coordinate, (D + 1) * (((coordinate - first) // (D + 1)) & 1) - odd


@triton.jit
def write_coarse_header(table, coarse, D: tl.constexpr):
    """Write the header of the fine table, with half of its lowest quotients."""
    for i in tl.static_range(D):
        tl.store(coarse + LOW + i, (tl.load(table + LOW + i) >> 1) - 2)
        tl.store(coarse + SHIFT + i, tl.load(table + SHIFT + i))
        tl.store(coarse + EXTENT + i, tl.load(table + EXTENT + i))
    tl.store(coarse + ITEM_SHIFT, tl.load(table + ITEM_SHIFT))
    tl.store(coarse + ITEM_EXTENT, tl.load(table + ITEM_EXTENT))
    tl.store(coarse + UNIT, tl.load(table + UNIT))


@kernel(sizes=["num_vertices", "capacity"], options=["num_warps"])
def insert_parents_kernel(
    keys, table, coarse, codes, parents, num_vertices, capacity,
    CORNER_BITS: tl.constexpr, PTX: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Insert both parents of a block of lattice points into the table `coarse`; `parents` is `[2, num_vertices]`.

    Rows of `keys` without a lattice point, whose item is -1, have the parents UNUSED.
    """
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = position < num_vertices
    # lanes beyond the end repeat the last lattice point
    vertex = tl.minimum(position, num_vertices - 1)
    if tl.program_id(0) == 0:
        write_coarse_header(table, coarse, D)
    which = tl.arange(0, 2)[:, None]
    odd = odd_parts(keys, vertex, D)
    item = tl.load(keys + vertex * (D + 1))
    used = tl.broadcast_to(item >= 0, [2, BLOCK])
    code = tl.broadcast_to(item.to(tl.int64) << tl.load(table + ITEM_SHIFT), [2, BLOCK])
    fits = tl.full([2, BLOCK], 1, tl.int1)
    corner = tl.zeros([2, BLOCK], tl.int32)
    for i in tl.static_range(D):
        coordinate, step = edge_step(keys, vertex, odd, i, D)
        quotient, corner = floor_quotient((coordinate + (2 * which - 1) * step) >> 1, D)
        digit = quotient - ((tl.load(table + LOW + i) >> 1) - 2).to(tl.int32)
        fits = fits & (digit > 0) & (digit < tl.load(table + EXTENT + i).to(tl.int32))
        code += digit.to(tl.int64) << tl.load(table + SHIFT + i)
    if is_any(used & ~fits):
        tl.store(coarse + NO_ROOM, 1)
    wanted = used & fits
    # not EMPTY, and never a real code: corner d+1 does not occur
    code = tl.where(wanted, code + corner, D + 1)
    slot, number, created, lost = insert(coarse, code, tl.load(table + UNIT), wanted, capacity, CORNER_BITS, PTX, D)
    if is_any(lost):
        tl.store(coarse + FULL, 1)
    number = tl.maximum(number, draw_numbers(coarse, codes, slot, code, created, PTX, 2, BLOCK))
    number = tl.where(used, wait_for_numbers(coarse, slot, number, wanted & ~lost, PTX), UNUSED)
    tl.store(parents + position + which.to(tl.int64) * num_vertices, number, mask=inside)


@on_device
def coarsen_lattice(
    keys: Tensor, table: Tensor, vertices: Tensor, barycentric: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    coarse_keys, parents, coarse_table = _coarsen_keys(keys, table)
    shares = coarse_shares(coarse_keys, parents, barycentric)
    weights = slice(shares, vertices, barycentric)
    return coarse_keys, parents, coarse_table, coarsen_vertices(vertices, coarse_keys, parents), weights


def _coarsen_keys(keys: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the coarse keys, the parents of each key, column by column, and a table."""
    vertices, columns = keys.shape
    if vertices and columns - 1 <= LARGEST_EVEN_DIMENSION and PackedTable.holds(table):
        fine, packed = keys.contiguous(), PackedTable(table)
        insertion, report, _ = insert_and_wait(lambda: _insert_parents(fine, packed), None, keys.device)
        if not (report.no_room or report.full):
            if torch.are_deterministic_algorithms_enabled():
                insertion = renumber(insertion, report.num_lattice_points)
            coarse_keys, parents, _, coarse_table = finish(insertion, report.num_lattice_points)
            return coarse_keys, parents, coarse_table
    coarse_keys, inverse, coarse_table = index_keys(parent_keys(keys).flatten(0, 1))
    return coarse_keys, inverse.view(-1, 2).T.contiguous().T, coarse_table


def _insert_parents(keys: Tensor, table: PackedTable) -> Insertion:
    """Queue the insertion of the parents of all keys into a new table; they are its vertices and its weights."""
    (vertices, columns), device = keys.shape, keys.device
    # there are rarely more coarse keys than a quarter, and never many more than fine ones
    capacity = capacity_for(vertices)
    coarse = PackedTable.empty(capacity, device)
    codes = torch.empty(capacity, dtype=torch.int64, device=device)
    parents = torch.empty(2, vertices, dtype=torch.int32, device=device).T
    variant = insert_parents_kernel[(columns - 1).bit_length(), HAS_PTX, columns - 1, INSERT_BLOCK, 1]
    tensors = keys, table.storage, coarse.storage, codes, parents
    variant((cdiv(vertices, INSERT_BLOCK), 1, 1), tensors, (vertices, capacity))
    return Insertion(coarse, codes, parents, parents, columns - 1)


@on_device
def coarsen_keys_bounded(keys: Tensor, table: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    insertion = _insert_parents(keys, PackedTable(table))
    insertion, coarse_keys, number = unpack_bounded(insertion, rows)
    return coarse_keys, insertion.vertices, insertion.table.storage, number
