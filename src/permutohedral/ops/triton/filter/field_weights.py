"""What the steps of a mean field need of its lattices: weights divided by the mass of their point, and which points
meet at each lattice point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.fused_primitives import PairwiseTables
from permutohedral.ops.primitives import SMALLEST_MASS
from permutohedral.ops.triton.filter.blur import blur_passes, join_passes
from permutohedral.ops.triton.filter.incidence import Incidence, list_corners, place_rows_kernel, store_entry
from permutohedral.ops.triton.filter.splat import splat_sums
from permutohedral.ops.triton.runtime import Launch, bind, cdiv, empty_corners, start_all
from permutohedral.ops.triton.zeros import clear

_BLOCK, _ROW_BLOCK = 256, 1024
# what a weight is divided by
_NOTHING, _MASS, _ROOT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit(do_not_specialize=["num_points", "vertex_corner_stride", "weight_corner_stride"])
def count_kernel(
    vertices, weights, counts, masses, ranks, num_points, vertex_corner_stride, weight_corner_stride,
    DIVISOR: tl.constexpr, LISTED: tl.constexpr, VERTEX_STRIDE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr,
    CORNERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Number the points at every lattice point if they are to be LISTED, and add up their weights if these divide;
    `counts` and `masses` are zeros.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for corner in tl.static_range(CORNERS):
        inside = point < num_points
        vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=0)
        if LISTED:
            rank = tl.atomic_add(counts + vertex, 1, mask=inside, sem="relaxed")
            tl.store(ranks + tl.cast(corner, tl.int64) * num_points + point, rank, mask=inside)
        if DIVISOR != _NOTHING:
            place = weights + point * WEIGHT_STRIDE + corner * weight_corner_stride
            tl.atomic_add(masses + vertex, tl.load(place, mask=inside, other=0.0), mask=inside, sem="relaxed")


@triton.jit(do_not_specialize=["num_points", "vertex_corner_stride", "weight_corner_stride", "output_corner_stride"])
def divide_kernel(
    masses, vertices, weights, output, starts, ranks, points, entry_weights, num_points, vertex_corner_stride,
    weight_corner_stride, output_corner_stride, DIVISOR: tl.constexpr, LISTED: tl.constexpr, AT_SOURCE: tl.constexpr,
    SMALLEST: tl.constexpr, VERTEX_STRIDE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr, CORNERS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The weights of every point divided by its mass, sliced from the lattice; LISTED they are where these count at the
    source, else as they were.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    divisor = tl.full([BLOCK], 1.0, weights.dtype.element_ty)
    if DIVISOR != _NOTHING:
        mass = tl.full([BLOCK], SMALLEST, weights.dtype.element_ty)
        for corner in tl.static_range(CORNERS):
            vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=0)
            weight = tl.load(weights + point * WEIGHT_STRIDE + corner * weight_corner_stride, mask=inside, other=0.0)
            mass += weight * tl.load(masses + vertex, mask=inside, other=1.0)
        divisor = tl.sqrt(mass) if DIVISOR == _ROOT else mass
    for corner in tl.static_range(CORNERS):
        weight = tl.load(weights + point * WEIGHT_STRIDE + corner * weight_corner_stride, mask=inside, other=0.0)
        if DIVISOR != _NOTHING:
            tl.store(output + corner * output_corner_stride + point, weight / divisor, mask=inside)
        if LISTED:
            vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=0)
            rank = tl.load(ranks + tl.cast(corner, tl.int64) * num_points + point, mask=inside, other=0)
            entry = tl.load(starts + vertex, mask=inside, other=0) + rank
            listed = weight / divisor if AT_SOURCE else weight
            store_entry(points, entry_weights, entry, point, listed, inside)


class FieldWeights(NamedTuple):
    """The weights of a kernel, its scales among them.

    Attributes:
        source: with which points are splatted, `[points, corners]`.
        target: with which they are sliced.
        incidence: the points at each lattice point with their weights as a source, None where nobody asked for it.
    """

    source: Tensor
    target: Tensor
    incidence: Incidence | None


class _Room(NamedTuple):
    """Memory for one lattice; without lists, what is about them is any tensor."""

    counts: Tensor
    masses: Tensor
    starts: Tensor
    ranks: Tensor
    points: Tensor
    entry_weights: Tensor


def _divisor(tables: PairwiseTables) -> tl.constexpr:
    if tables.source_power == tables.target_power == 0:
        return _NOTHING
    return _ROOT if tables.source_power == tables.target_power else _MASS


def _pieces(dtype: torch.dtype, device: torch.device, *numbers: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One allocation, and its pieces with so many elements, each of which begins at a multiple of 16 bytes."""
    rooms = [cdiv(number, 4) * 4 for number in numbers]
    whole = torch.empty(sum(rooms), dtype=dtype, device=device)
    return whole, whole.split(rooms)


def _make_room(tables: PairwiseTables, listed: bool) -> tuple[_Room, Launch]:
    """For one lattice; and what clears the counts and the masses. In few pieces, since each takes the host time."""
    rows, entries = tables.axis_neighbors.shape[1], tables.vertices.numel()
    dtype, device = tables.barycentric.dtype, tables.barycentric.device
    places = torch.int32 if entries < 1 << 31 else torch.int64
    # in words as wide as the wider of both
    wide = torch.int32 if max(dtype.itemsize, places.itemsize) == 4 else torch.int64
    zeroed, (counts, masses) = _pieces(wide, device, rows + 1, rows)
    masses = masses.view(dtype).as_strided((rows, 1), (1, 1))
    if not listed:
        return _Room(zeroed, masses, zeroed, zeroed, zeroed, zeroed), clear(zeroed)
    _, (starts, ranks) = _pieces(places, device, rows, entries)
    together = dtype == torch.float32
    points = torch.empty(entries, dtype=torch.int64 if together else torch.int32, device=device)
    weights = points if together else torch.empty(entries, dtype=dtype, device=device)
    return _Room(counts.view(places), masses, starts, ranks, points, weights), clear(zeroed)


def _constants(tables: PairwiseTables, listed: bool) -> dict[str, int]:
    strides = {"VERTEX_STRIDE": tables.vertices.stride(0), "WEIGHT_STRIDE": tables.barycentric.stride(0)}
    corners = tables.vertices.shape[1]
    return {"DIVISOR": _divisor(tables).value, "LISTED": listed, **strides, "CORNERS": corners, "BLOCK": _BLOCK}


def _count(tables: PairwiseTables, room: _Room, listed: bool) -> list[Launch]:
    """What adds up masses; if points are to be listed, it numbers the entries of lattice points, and places them."""
    vertices, weights, rows = tables.vertices, tables.barycentric, room.masses.shape[0]
    points = vertices.shape[0]
    tensors, sizes = (vertices, weights, *room[:2], room.ranks), (points, vertices.stride(1), weights.stride(1))
    counting: Launch = bind(count_kernel, **_constants(tables, listed)), (cdiv(points, _BLOCK), 1, 1), tensors, sizes
    if not listed:
        return [counting]
    place = bind(place_rows_kernel, BLOCK=_ROW_BLOCK)
    return [counting, (place, (cdiv(rows, _ROW_BLOCK), 1, 1), (room.counts, room.starts), (rows,))]


def _divide(tables: PairwiseTables, room: _Room, mass: Tensor, listed: bool) -> tuple[Launch, Tensor]:
    """What divides the weights by the masses of their points, and lists the points; and where the weights then lie."""
    vertices, weights = tables.vertices, tables.barycentric
    (points, corners), output = vertices.shape, weights
    if _divisor(tables) is not _NOTHING:
        output = empty_corners(points, corners, weights.dtype, weights.device)
    constants = {**_constants(tables, listed), "AT_SOURCE": tables.source_power > 0, "SMALLEST": SMALLEST_MASS}
    sizes = points, vertices.stride(1), weights.stride(1), output.stride(1)
    tensors = mass, vertices, weights, output, *room[2:]
    return (bind(divide_kernel, **constants), (cdiv(points, _BLOCK), 1, 1), tensors, sizes), output


def find_weights(kernels: Sequence[PairwiseTables], listed: bool) -> list[FieldWeights]:
    """Of one or two kernels over the same points, of which there is at least one."""
    # additions in any order are not repeatable to the last bit
    exact = torch.are_deterministic_algorithms_enabled()
    divided = any(_divisor(each) is not _NOTHING for each in kernels)
    rooms, masses, at_once = [], [], listed and not exact
    for each in kernels:
        room, clearing = _make_room(each, at_once)
        rooms.append(room)
        masses.append(room.masses)
        if not exact:
            start_all([clearing, *_count(each, room, listed)])
        elif divided:
            masses[-1] = splat_sums(each.barycentric[:, :0], *each[:2], each.axis_neighbors.shape[1], 1)
    if divided:
        blurred = [
            blur_passes(mass, each.axis_neighbors.contiguous(), False)
            for mass, each in zip(masses, kernels, strict=True)
        ]
        start_all(blurred[0][0] if len(blurred) == 1 else join_passes(blurred[0][0], blurred[1][0]))
        masses = [result for _, result in blurred]
    found = []
    for each, room, mass in zip(kernels, rooms, masses, strict=True):
        launch, output = _divide(each, room, mass, at_once)
        if output is not each.barycentric or at_once:
            start_all([launch])
        source, target = (output if power > 0 else each.barycentric for power in (each.source_power, each.target_power))
        incidence = Incidence(room.starts, room.counts, room.points, room.entry_weights) if at_once else None
        if exact and listed:
            incidence = list_corners(each.vertices, source, each.axis_neighbors.shape[1])
        found.append(FieldWeights(source, target, incidence))
    return found
