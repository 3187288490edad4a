"""What the steps of a mean field need of its lattices: weights divided by the mass of their point, and which points
meet at each lattice point. Every kernel here does the same for up to two lattices at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.fused_primitives import SMALLEST_MASS, PairwiseTables
from permutohedral.ops.triton.filter.blur import blur_passes, join_passes
from permutohedral.ops.triton.filter.incidence import Incidence, list_corners, store_entry
from permutohedral.ops.triton.filter.splat import splat_sums
from permutohedral.ops.triton.runtime import Launch, bind, cdiv, empty_corners, start_all
from permutohedral.ops.triton.zeros import clear

_BLOCK, _ROW_BLOCK = 256, 1024
# what a weight is divided by
_NOTHING, _MASS, _ROOT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def count_part(
    program, vertices, weights, counts, masses, ranks, num_points, vertex_corner_stride, weight_corner_stride,
    DIVISOR: tl.constexpr, LISTED: tl.constexpr, VERTEX_STRIDE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr,
    CORNERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Number the points at every lattice point if they are to be LISTED, and add up their weights if these divide."""
    point = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for corner in tl.static_range(CORNERS):
        inside = point < num_points
        vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=0)
        if LISTED:
            rank = tl.atomic_add(counts + vertex, 1, mask=inside, sem="relaxed")
            tl.store(ranks + tl.cast(corner, tl.int64) * num_points + point, rank, mask=inside)
        if DIVISOR != _NOTHING:
            place = weights + point * WEIGHT_STRIDE + corner * weight_corner_stride
            tl.atomic_add(masses + vertex, tl.load(place, mask=inside, other=0.0), mask=inside, sem="relaxed")


@triton.jit(
    do_not_specialize=[
        "first_programs", "num_points", "first_vertex_stride", "first_weight_stride", "second_vertex_stride",
        "second_weight_stride",
    ]
)  # fmt: skip
def count_kernel(
    first_vertices, first_weights, first_counts, first_masses, first_ranks, second_vertices, second_weights,
    second_counts, second_masses, second_ranks, first_programs, num_points, first_vertex_stride, first_weight_stride,
    second_vertex_stride, second_weight_stride, LISTED: tl.constexpr, FIRST_DIVISOR: tl.constexpr,
    FIRST_VERTEX: tl.constexpr, FIRST_WEIGHT: tl.constexpr, FIRST_CORNERS: tl.constexpr, SECOND_DIVISOR: tl.constexpr,
    SECOND_VERTEX: tl.constexpr, SECOND_WEIGHT: tl.constexpr, SECOND_CORNERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`count_part` of either lattice; `counts` and `masses` are zeros."""
    program = tl.program_id(0)
    if program < first_programs:
        count_part(
            program, first_vertices, first_weights, first_counts, first_masses, first_ranks, num_points,
            first_vertex_stride, first_weight_stride, FIRST_DIVISOR, LISTED, FIRST_VERTEX, FIRST_WEIGHT, FIRST_CORNERS,
            BLOCK,
        )  # fmt: skip
    else:
        count_part(
            program - first_programs, second_vertices, second_weights, second_counts, second_masses, second_ranks,
            num_points, second_vertex_stride, second_weight_stride, SECOND_DIVISOR, LISTED, SECOND_VERTEX,
            SECOND_WEIGHT, SECOND_CORNERS, BLOCK,
        )  # fmt: skip


@triton.jit
def place_part(program, counts, starts, num_rows, BLOCK: tl.constexpr):
    """Give the entries of every lattice point a place, those of a block together; the next free one is the last of the
    `counts`.
    """
    row = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    count = tl.load(counts + row, mask=row < num_rows, other=0)
    first = tl.atomic_add(counts + num_rows, tl.sum(count, axis=0), sem="relaxed")
    tl.store(starts + row, first + tl.cumsum(count, axis=0) - count, mask=row < num_rows)


@triton.jit(do_not_specialize=["first_programs", "first_rows", "second_rows"])
def place_kernel(
    first_counts, first_starts, second_counts, second_starts, first_programs, first_rows, second_rows,
    BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if program < first_programs:
        place_part(program, first_counts, first_starts, first_rows, BLOCK)
    else:
        place_part(program - first_programs, second_counts, second_starts, second_rows, BLOCK)


@triton.jit
def divide_part(
    program, masses, vertices, weights, output, starts, ranks, points, entry_weights, num_points, vertex_corner_stride,
    weight_corner_stride, output_corner_stride, DIVISOR: tl.constexpr, LISTED: tl.constexpr, AT_SOURCE: tl.constexpr,
    SMALLEST: tl.constexpr, VERTEX_STRIDE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr, CORNERS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The weights of every point divided by its mass, sliced from the lattice; LISTED they are where these count at the
    source, else as they were.
    """
    point = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
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


@triton.jit(
    do_not_specialize=[
        "first_programs", "num_points", "first_vertex_stride", "first_weight_stride", "first_output_stride",
        "second_vertex_stride", "second_weight_stride", "second_output_stride",
    ]
)  # fmt: skip
def divide_kernel(
    first_masses, first_vertices, first_weights, first_output, first_starts, first_ranks, first_points,
    first_entry_weights, second_masses, second_vertices, second_weights, second_output, second_starts, second_ranks,
    second_points, second_entry_weights, first_programs, num_points, first_vertex_stride, first_weight_stride,
    first_output_stride, second_vertex_stride, second_weight_stride, second_output_stride, LISTED: tl.constexpr,
    SMALLEST: tl.constexpr, FIRST_DIVISOR: tl.constexpr, FIRST_SOURCE: tl.constexpr, FIRST_VERTEX: tl.constexpr,
    FIRST_WEIGHT: tl.constexpr, FIRST_CORNERS: tl.constexpr, SECOND_DIVISOR: tl.constexpr,
    SECOND_SOURCE: tl.constexpr, SECOND_VERTEX: tl.constexpr, SECOND_WEIGHT: tl.constexpr,
    SECOND_CORNERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`divide_part` of either lattice."""
    program = tl.program_id(0)
    if program < first_programs:
        divide_part(
            program, first_masses, first_vertices, first_weights, first_output, first_starts, first_ranks,
            first_points, first_entry_weights, num_points, first_vertex_stride, first_weight_stride,
            first_output_stride, FIRST_DIVISOR, LISTED, FIRST_SOURCE, SMALLEST, FIRST_VERTEX, FIRST_WEIGHT,
            FIRST_CORNERS, BLOCK,
        )  # fmt: skip
    else:
        divide_part(
            program - first_programs, second_masses, second_vertices, second_weights, second_output, second_starts,
            second_ranks, second_points, second_entry_weights, num_points, second_vertex_stride, second_weight_stride,
            second_output_stride, SECOND_DIVISOR, LISTED, SECOND_SOURCE, SMALLEST, SECOND_VERTEX, SECOND_WEIGHT,
            SECOND_CORNERS, BLOCK,
        )  # fmt: skip


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


def _rooms(numbers: Sequence[int]) -> list[int]:
    """So many elements for each piece that the next one begins at a multiple of 16 bytes."""
    return [cdiv(number, 4) * 4 for number in numbers]


def _make_room(kernels: Sequence[PairwiseTables], listed: bool) -> tuple[list[_Room], Launch]:
    """For each lattice; and what clears the counts and the masses. In few pieces, since each takes the host time."""
    dtype, device, number = kernels[0].barycentric.dtype, kernels[0].vertices.device, len(kernels)
    rows, entries = [each.axis_neighbors.shape[1] for each in kernels], [each.vertices.numel() for each in kernels]
    place_dtype = torch.int32 if max(entries) < 1 << 31 else torch.int64
    # in words as wide as the widest of both
    wide = torch.int32 if max(dtype.itemsize, place_dtype.itemsize) == 4 else torch.int64
    sizes = _rooms([*(count + 1 for count in rows), *rows])
    zeroed = torch.empty(sum(sizes), dtype=wide, device=device)
    cleared = zeroed.split(sizes)
    masses = [
        each.view(dtype).as_strided((count, 1), (1, 1)) for each, count in zip(cleared[number:], rows, strict=True)
    ]
    if not listed:
        return [_Room(zeroed, mass, zeroed, zeroed, zeroed, zeroed) for mass in masses], clear(zeroed)
    sizes = _rooms([*rows, *entries])
    pieces = torch.empty(sum(sizes), dtype=place_dtype, device=device).split(sizes)
    together, sizes = dtype == torch.float32, sizes[number:]
    lists = torch.empty(sum(sizes), dtype=torch.int64 if together else torch.int32, device=device).split(sizes)
    weights = lists if together else torch.empty(sum(sizes), dtype=dtype, device=device).split(sizes)
    counts = cleared[:number] if wide == place_dtype else [each.view(place_dtype) for each in cleared[:number]]
    room = zip(counts, masses, pieces[:number], pieces[number:], lists, weights, strict=True)
    return [_Room(*each) for each in room], clear(zeroed)


def _over_both(
    kernel: Any,
    programs: Sequence[int],
    tensors: Sequence[tuple[Tensor, ...]],
    sizes: tuple[int, ...],
    **constants: Any,
) -> Launch:
    """A kernel of so many programs for each lattice, or for the only one.

    Args:
        kernel: takes the tensors of the first lattice, those of the second, the number of programs of the first, and
            sizes.
        programs: for each lattice.
        tensors: of each lattice; of an only one they are passed twice.
        sizes, constants: of the kernel.
    """
    return bind(kernel, **constants), (sum(programs), 1, 1), (*tensors[0], *tensors[-1]), (programs[0], *sizes)


def _constants(kernels: Sequence[PairwiseTables]) -> dict[str, int]:
    constants: dict[str, int] = {}
    for name, each in (("FIRST", kernels[0]), ("SECOND", kernels[-1])):
        constants |= {f"{name}_VERTEX": each.vertices.stride(0), f"{name}_WEIGHT": each.barycentric.stride(0)}
        constants |= {f"{name}_CORNERS": each.vertices.shape[1], f"{name}_DIVISOR": _divisor(each).value}
    return constants


def _count(kernels: Sequence[PairwiseTables], rooms: Sequence[_Room], listed: bool) -> list[Launch]:
    """What adds up masses; if points are to be listed, it numbers the entries of lattice points, and places them."""
    points = kernels[0].vertices.shape[0]
    tensors = [
        (each.vertices, each.barycentric, room.counts, room.masses, room.ranks)
        for each, room in zip(kernels, rooms, strict=True)
    ]
    strides = [
        stride for each in (kernels[0], kernels[-1]) for stride in (each.vertices.stride(1), each.barycentric.stride(1))
    ]
    programs = [cdiv(points, _BLOCK)] * len(kernels)
    constants = {"LISTED": listed, **_constants(kernels), "BLOCK": _BLOCK}
    launches = [_over_both(count_kernel, programs, tensors, (points, *strides), **constants)]
    if listed:
        rows = [room.masses.shape[0] for room in rooms]
        places = [(room.counts, room.starts) for room in rooms]
        programs = [cdiv(count, _ROW_BLOCK) for count in rows]
        launches.append(_over_both(place_kernel, programs, places, (rows[0], rows[-1]), BLOCK=_ROW_BLOCK))
    return launches


def _divide(
    kernels: Sequence[PairwiseTables], rooms: Sequence[_Room], masses: Sequence[Tensor], listed: bool
) -> tuple[Launch, list[Tensor]]:
    """What divides the weights by the masses of their points, and lists the points; and where the weights then lie."""
    points = kernels[0].vertices.shape[0]
    tensors: list[tuple[Tensor, ...]] = []
    strides: list[tuple[int, int, int]] = []
    outputs: list[Tensor] = []
    for each, room, mass in zip(kernels, rooms, masses, strict=True):
        weights = each.barycentric
        divided = _divisor(each) is not _NOTHING
        output = empty_corners(points, weights.shape[1], weights.dtype, weights.device) if divided else weights
        outputs.append(output)
        tensors.append((mass, each.vertices, weights, output, room.starts, room.ranks, room.points, room.entry_weights))
        strides.append((each.vertices.stride(1), weights.stride(1), output.stride(1)))
    constants = {
        "LISTED": listed, "SMALLEST": SMALLEST_MASS, **_constants(kernels),
        "FIRST_SOURCE": kernels[0].source_power > 0, "SECOND_SOURCE": kernels[-1].source_power > 0, "BLOCK": _BLOCK,
    }  # fmt: skip
    programs, sizes = [cdiv(points, _BLOCK)] * len(kernels), (points, *strides[0], *strides[-1])
    return _over_both(divide_kernel, programs, tensors, sizes, **constants), outputs


def find_weights(kernels: Sequence[PairwiseTables], listed: bool) -> list[FieldWeights]:
    """Of one or two kernels over the same points, of which there is at least one."""
    # additions in any order are not repeatable to the last bit
    exact = torch.are_deterministic_algorithms_enabled()
    rooms, clearing = _make_room(kernels, listed and not exact)
    divided = any(_divisor(each) is not _NOTHING for each in kernels)
    if not exact:
        start_all([clearing, *_count(kernels, rooms, listed)])
    masses = [room.masses for room in rooms]
    if divided:
        if exact:
            masses = [
                splat_sums(each.barycentric[:, :0], *each[:2], each.axis_neighbors.shape[1], 1) for each in kernels
            ]
        blurred = [
            blur_passes(mass, each.axis_neighbors.contiguous(), False)
            for mass, each in zip(masses, kernels, strict=True)
        ]
        passes = blurred[0][0] if len(blurred) == 1 else join_passes(blurred[0][0], blurred[1][0])
        start_all(passes)
        masses = [result for _, result in blurred]
    launch, outputs = _divide(kernels, rooms, masses, listed and not exact)
    if divided or (listed and not exact):
        start_all([launch])
    found = []
    for each, room, output in zip(kernels, rooms, outputs, strict=True):
        source = output if each.source_power > 0 else each.barycentric
        incidence = Incidence(room.starts, room.counts, room.points, room.entry_weights) if listed else None
        if exact and listed:
            incidence = list_corners(each.vertices, source, each.axis_neighbors.shape[1])
        found.append(FieldWeights(source, output if each.target_power > 0 else each.barycentric, incidence))
    return found
