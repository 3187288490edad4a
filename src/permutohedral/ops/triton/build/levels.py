"""From a lattice to that of twice the step: its lattice points, the simplices of the points, the tables between both.

`permutohedral.pyramid` tells the law. A lattice point x has the parents (x - e_S) / 2 and (x + e_S) / 2; every kernel
here finds e_S from the key of x.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.primitives import parent_keys
from permutohedral.ops.triton.build.embedding import tile_rows
from permutohedral.ops.triton.build.host_report import HostReports, Telling, report
from permutohedral.ops.triton.build.insertion import Insertion, draw_numbers, wait_for_numbers
from permutohedral.ops.triton.build.lattice import LARGEST_EVEN_DIMENSION, finish
from permutohedral.ops.triton.build.packed_table import (
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
    insert,
    is_any,
)
from permutohedral.ops.triton.build.wide_keys import index_keys
from permutohedral.ops.triton.runtime import HAS_PTX, Bound, cdiv, on_device

# a single warp needs no barrier to know that all its probes have ended
_INSERT_BLOCK = 32
_BLOCK = 128


@triton.jit
def odd_parts(keys, vertex, D: tl.constexpr):
    """How many of the d+1 numbers n_j - n_0 are odd, int32, for each `vertex`."""
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
    """Coordinate j of the lattice point, and of e_S."""
    first = tl.load(keys + vertex * (D + 1) + 1)
    coordinate = tl.load(keys + vertex * (D + 1) + 1 + j)
    return coordinate, (D + 1) * (((coordinate - first) // (D + 1)) & 1) - odd


@triton.jit
def floor_quotient(number, D: tl.constexpr):
    """number / (d+1) rounded down, and the rest."""
    quotient = number // (D + 1)
    rest = number - quotient * (D + 1)
    below = rest < 0
    return tl.where(below, quotient - 1, quotient), tl.where(below, rest + D + 1, rest)


@triton.jit
def write_coarse_header(table, coarse, D: tl.constexpr):
    """As the fine table packs keys, from half of its lowest quotients on."""
    for i in tl.static_range(D):
        tl.store(coarse + LOW + i, (tl.load(table + LOW + i) >> 1) - 2)
        tl.store(coarse + SHIFT + i, tl.load(table + SHIFT + i))
        tl.store(coarse + EXTENT + i, tl.load(table + EXTENT + i))
    tl.store(coarse + ITEM_SHIFT, tl.load(table + ITEM_SHIFT))
    tl.store(coarse + ITEM_EXTENT, tl.load(table + ITEM_EXTENT))
    tl.store(coarse + UNIT, tl.load(table + UNIT))


@triton.jit(do_not_specialize=["num_vertices", "capacity"])
def insert_parents_kernel(
    keys, table, coarse, codes, parents, num_vertices, capacity,
    CORNER_BITS: tl.constexpr, PTX: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Insert both parents of a block of lattice points into the table `coarse`; `parents` is `[2, num_vertices]`."""
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = position < num_vertices
    # lanes beyond the end repeat the last lattice point
    vertex = tl.minimum(position, num_vertices - 1)
    if tl.program_id(0) == 0:
        write_coarse_header(table, coarse, D)
    which = tl.arange(0, 2)[:, None]
    odd = odd_parts(keys, vertex, D)
    code = tl.load(keys + vertex * (D + 1)).to(tl.int64) << tl.load(table + ITEM_SHIFT)
    code = tl.broadcast_to(code, [2, BLOCK])
    room = tl.full([2, BLOCK], 1, tl.int1)
    corner = tl.zeros([2, BLOCK], tl.int32)
    for i in tl.static_range(D):
        coordinate, step = edge_step(keys, vertex, odd, i, D)
        quotient, corner = floor_quotient((coordinate + (2 * which - 1) * step) >> 1, D)
        digit = quotient - ((tl.load(table + LOW + i) >> 1) - 2).to(tl.int32)
        room = room & (digit > 0) & (digit < tl.load(table + EXTENT + i).to(tl.int32))
        code += digit.to(tl.int64) << tl.load(table + SHIFT + i)
    if is_any(~room):
        tl.store(coarse + NO_ROOM, 1)
    # never empty, and in nobody's way: corner d+1 does not occur
    code = tl.where(room, code + corner, D + 1)
    slot, number, created, lost = insert(coarse, code, tl.load(table + UNIT), room, capacity, CORNER_BITS, PTX, D)
    if is_any(lost):
        tl.store(coarse + FULL, 1)
    number = tl.maximum(number, draw_numbers(coarse, codes, slot, code, created, PTX, 2, BLOCK))
    number = wait_for_numbers(coarse, slot, number, room & ~lost, PTX)
    tl.store(parents + position + which.to(tl.int64) * num_vertices, number, mask=inside)


@triton.jit(do_not_specialize=["num_points", "num_vertices", "next_point", "next_corner"])
def coarsen_simplices_kernel(
    vertices, barycentric, coarse_keys, parents, coarse_vertices, coarse_barycentric,
    num_points, num_vertices, next_point, next_corner, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each fine corner goes to its parents, half to each; the results are `[d + 1, points]`.

    All parents are corners of one coarse simplex, corner j the one whose coordinates are congruent to j modulo d+1.
    """
    row = tl.arange(0, ROWS)[:, None]
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    found = tl.full([ROWS, BLOCK], 0, tl.int32)
    weights = tl.zeros([ROWS, BLOCK], barycentric.dtype.element_ty)
    for corner in tl.static_range(D + 1):
        place = point * next_point + corner * next_corner
        vertex = tl.load(vertices + place, mask=inside, other=0)
        half = 0.5 * tl.load(barycentric + place, mask=inside, other=0.0)
        for which in tl.static_range(2):
            parent = tl.load(parents + vertex + which * num_vertices.to(tl.int64), mask=inside, other=0)
            coordinate = tl.load(coarse_keys + parent.to(tl.int64) * (D + 1) + 1, mask=inside, other=0)
            _, remainder = floor_quotient(coordinate, D)
            here = row == remainder[None, :]
            found = tl.where(here, parent[None, :], found)
            weights += tl.where(here, half[None, :], 0.0)
    out = row.to(tl.int64) * num_points + point[None, :]
    real = (row <= D) & inside[None, :]
    tl.store(coarse_vertices + out, found, mask=real)
    tl.store(coarse_barycentric + out, weights, mask=real)


@triton.jit(do_not_specialize=["num_fine", "num_coarse", "taps"])
def connect_levels_kernel(
    keys, parents, offsets, down, up, num_fine, num_coarse, taps, D: tl.constexpr, BLOCK: tl.constexpr
):
    """The taps of up to one step between the levels; `down` is filled with -1, `parents` is `[2, num_fine]`."""
    vertex = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = vertex < num_fine
    key = tl.minimum(vertex, num_fine - 1)
    low = tl.load(parents + key)
    high = tl.load(parents + num_fine.to(tl.int64) + key)
    odd = odd_parts(keys, key, D)
    for tap in range(taps):
        # whether the tap is e_S, or its opposite
        ahead, behind = inside, inside
        for i in tl.static_range(D):
            offset = tl.load(offsets + tap * D + i)
            _, step = edge_step(keys, key, odd, i, D)
            ahead = ahead & (step == offset)
            behind = behind & (step == -offset)
        first = tl.full([], 0, tl.int64) + tap
        tl.store(up + first * num_fine + vertex, tl.where(ahead, high, tl.where(behind, low, -1)), mask=inside)
        tl.store(down + first * num_coarse + low, vertex.to(tl.int32), mask=ahead)
        tl.store(down + first * num_coarse + high, vertex.to(tl.int32), mask=behind)


@on_device
def coarsen_keys(keys: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    vertices, columns = keys.shape
    if vertices and columns - 1 <= LARGEST_EVEN_DIMENSION and PackedTable.holds(table):
        coarsened = _coarsen_packed(keys.contiguous(), PackedTable(table))
        if coarsened is not None:
            return coarsened
    coarse_keys, inverse, coarse_table = index_keys(parent_keys(keys).flatten(0, 1))
    return coarse_keys, by_columns(inverse.view(-1, 2)), coarse_table


def by_columns(rows: Tensor) -> Tensor:
    """The same matrix, column by column in memory."""
    return rows.T.contiguous().T


def _coarsen_packed(keys: Tensor, table: PackedTable) -> tuple[Tensor, Tensor, Tensor] | None:
    """None if the coarse keys do not fit."""
    (vertices, columns), device = keys.shape, keys.device
    # rarely more than a quarter, and never many more
    capacity = capacity_for(vertices)
    coarse = PackedTable.empty(capacity, device)
    codes = torch.empty(capacity, dtype=torch.int64, device=device)
    parents = torch.empty(2, vertices, dtype=torch.int32, device=device).T
    with HostReports(device) as reports:
        tensors = keys, table.storage, coarse.storage, codes, parents
        _bind_insert(columns - 1)((cdiv(vertices, _INSERT_BLOCK), 1, 1), tensors, (vertices, capacity))
        insertion = Insertion(coarse, codes, parents, parents, columns - 1)
        report(coarse, Telling(reports.words[0], keys, False))
        told = reports.read(0)
    if told.no_room or told.full:
        return None
    coarse_keys, parents, _, storage = finish(insertion, told)
    return coarse_keys, parents, storage


@cache
def _bind_insert(d: int) -> Bound:
    return Bound(insert_parents_kernel, CORNER_BITS=d.bit_length(), PTX=HAS_PTX, D=d, BLOCK=_INSERT_BLOCK, num_warps=1)


@on_device
def coarsen_simplices(
    vertices: Tensor, barycentric: Tensor, coarse_keys: Tensor, parents: Tensor
) -> tuple[Tensor, Tensor]:
    (points, corners), device = vertices.shape, vertices.device
    if vertices.stride() != barycentric.stride():
        vertices, barycentric = vertices.contiguous(), barycentric.contiguous()
    coarse_vertices = torch.empty(corners, points, dtype=torch.int32, device=device).T
    coarse_barycentric = torch.empty(corners, points, dtype=barycentric.dtype, device=device).T
    if points:
        parents = by_columns(parents)
        tensors = vertices, barycentric, coarse_keys.contiguous(), parents, coarse_vertices, coarse_barycentric
        sizes = points, parents.shape[0], *vertices.stride()
        _bind_simplices(corners - 1)((cdiv(points, _BLOCK), 1, 1), tensors, sizes)
    return coarse_vertices, coarse_barycentric


@cache
def _bind_simplices(d: int) -> Bound:
    return Bound(coarsen_simplices_kernel, D=d, ROWS=tile_rows(d), BLOCK=_BLOCK, num_warps=4)


@on_device
def connect_levels(keys: Tensor, coarse_keys: Tensor, parents: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    (taps, d), fine, coarse = offsets.shape, keys.shape[0], coarse_keys.shape[0]
    down = torch.full((taps, coarse), -1, dtype=torch.int32, device=keys.device)
    up = torch.empty(taps, fine, dtype=torch.int32, device=keys.device)
    if fine:
        tensors = keys.contiguous(), by_columns(parents), offsets.contiguous(), down, up
        _bind_connect(d)((cdiv(fine, _BLOCK), 1, 1), tensors, (fine, coarse, taps))
    return down, up


@cache
def _bind_connect(d: int) -> Bound:
    return Bound(connect_levels_kernel, D=d, BLOCK=_BLOCK, num_warps=4)
