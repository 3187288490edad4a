"""The mean field of a dense conditional random field.

A step is splat and blur for each kernel, then one kernel that slices all their lattices and takes the softmax. Scales
are part of the barycentric weights. Tiles are `[BLOCK points, BLOCK_L labels]`; rows of many labels
are padded with zeros to WIDTH elements, so that a thread reads four of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.neighborhood import axis_offsets
from permutohedral.ops.fused_primitives import PairwisePoints, PairwiseTables
from permutohedral.ops.triton.build.host_report import HostReports, report
from permutohedral.ops.triton.build.insertion import insert_points
from permutohedral.ops.triton.build.lattice import LARGEST_EVEN_DIMENSION, check_range, first_attempt, order
from permutohedral.ops.triton.build.neighbors import search_packed
from permutohedral.ops.triton.filter.blur import blur_passes, join_passes
from permutohedral.ops.triton.filter.field_weights import FieldWeights, find_weights
from permutohedral.ops.triton.filter.incidence import gather_into, gather_into_both
from permutohedral.ops.triton.filter.splat import splat_into
from permutohedral.ops.triton.runtime import (
    WIDEST_TILE,
    Launch,
    bind,
    cdiv,
    launch,
    on_device,
    prepare_all,
    start_all,
    tile,
)

# a part of a step: the start of a kernel, or an operation of torch
Call = Callable[[], Any]

# the kernel has arguments for as many lattices
_MOST_KERNELS = 2
# labels that are not padded; and what the others are padded to a multiple of
_NARROW, _ALIGNED = 4, 4
# stands for infinity
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)


@triton.jit
def softmax(logits, known):
    """Over the labels that are `known`; zeros where none is."""
    logits = tl.where(known, logits, float("-inf"))
    highest = tl.max(logits, axis=1)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    exponentials = tl.exp(logits - highest[:, None])
    total = tl.sum(exponentials, axis=1)
    return exponentials / tl.where(total > 0, total, 1.0)[:, None]


@triton.jit
def plane_of(point, label, points_per_item, LABELS: tl.constexpr):
    """Where points and labels lie in `[items, labels, points_per_item]`."""
    item = point // points_per_item
    start = item * LABELS * points_per_item + (point - item * points_per_item)
    return start[:, None] + label.to(tl.int64)[None, :] * points_per_item


@triton.jit(do_not_specialize=["num_points", "points_per_item"])
def scores_kernel(
    energies, scores, output, num_points, points_per_item, PLANES: tl.constexpr, LABELS: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """softmax(-energies) of energies `[items, labels, points_per_item]`: as PLANES like these; or as rows `[points,
    WIDTH]`, and -energies as such rows, too, which every step reads.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    label = tl.arange(0, BLOCK_L)
    inside = point < num_points
    known = inside[:, None] & (label < LABELS)[None, :]
    plane = plane_of(point, label, points_per_item, LABELS)
    score = -tl.load(energies + plane, mask=known, other=0.0).to(output.dtype.element_ty)
    # of two infinite ones there is no difference; not by a minimum, which would take NaN for a number
    score = tl.where(score > _LARGEST, _LARGEST, tl.where(score < -_LARGEST, -_LARGEST, score))
    if PLANES:
        tl.store(output + plane, softmax(score, known), mask=known)
    else:
        place = point[:, None] * WIDTH + label[None, :]
        padded = inside[:, None] & (label < WIDTH)[None, :]
        tl.store(scores + place, score, mask=padded)
        tl.store(output + place, softmax(score, known), mask=padded)


@triton.jit
def add_slice(
    logits, lattice_values, vertices, weights, factor, point, inside, label, vertex_corner_stride,
    weight_corner_stride, WIDTH: tl.constexpr, VERTEX_STRIDE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr,
    CORNERS: tl.constexpr,
):  # fmt: skip
    """Add what lies at the points of one lattice, times the factor."""
    for corner in tl.static_range(CORNERS):
        vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=0)
        weight = tl.load(weights + point * WEIGHT_STRIDE + corner * weight_corner_stride, mask=inside, other=0.0)
        place = lattice_values + vertex.to(tl.int64)[:, None] * WIDTH + label[None, :]
        present = inside[:, None] & (label < WIDTH)[None, :]
        logits += (factor * weight)[:, None] * tl.load(place, mask=present, other=0.0)
    return logits


@triton.jit(
    do_not_specialize=[
        "num_points", "points_per_item", "first_vertex_stride", "first_weight_stride", "first_factor",
        "second_vertex_stride", "second_weight_stride", "second_factor",
    ]
)  # fmt: skip
def marginals_kernel(
    scores, output, marginals, totals, first_values, first_vertices, first_weights, second_values, second_vertices,
    second_weights, num_points, points_per_item, first_vertex_stride, first_weight_stride, first_factor,
    second_vertex_stride, second_weight_stride, second_factor, KERNELS: tl.constexpr, PLANES: tl.constexpr,
    SCORED: tl.constexpr, LOGITS: tl.constexpr, PULLED: tl.constexpr, LABELS: tl.constexpr, WIDTH: tl.constexpr,
    FIRST_VERTEX: tl.constexpr, FIRST_WEIGHT: tl.constexpr, FIRST_CORNERS: tl.constexpr, SECOND_VERTEX: tl.constexpr,
    SECOND_WEIGHT: tl.constexpr, SECOND_CORNERS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """softmax(scores + slices of KERNELS lattices), or the LOGITS it is of, as rows `[points, WIDTH]`, or as PLANES
    `[items, labels, points_per_item]`; the scores are rows, and without them there are slices alone.

    If slices D are gradients with respect to marginals Q, which are to be PULLED back to their logits: Q (D - <Q, D>),
    which is also added to the totals; Q and totals are rows.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    label = tl.arange(0, BLOCK_L)
    inside = point < num_points
    row, padded = point[:, None] * WIDTH + label[None, :], inside[:, None] & (label < WIDTH)[None, :]
    logits = tl.zeros([BLOCK, BLOCK_L], output.dtype.element_ty)
    if SCORED:
        logits = tl.load(scores + row, mask=padded, other=0.0)
    logits = add_slice(
        logits, first_values, first_vertices, first_weights, first_factor, point, inside, label, first_vertex_stride,
        first_weight_stride, WIDTH, FIRST_VERTEX, FIRST_WEIGHT, FIRST_CORNERS,
    )  # fmt: skip
    if KERNELS > 1:
        logits = add_slice(
            logits, second_values, second_vertices, second_weights, second_factor, point, inside, label,
            second_vertex_stride, second_weight_stride, WIDTH, SECOND_VERTEX, SECOND_WEIGHT, SECOND_CORNERS,
        )  # fmt: skip
    known = inside[:, None] & (label < LABELS)[None, :]
    if PULLED:
        marginal = tl.load(marginals + row, mask=padded, other=0.0)
        logits = marginal * (logits - tl.sum(marginal * logits, axis=1)[:, None])
        tl.store(totals + row, tl.load(totals + row, mask=padded, other=0.0) + logits, mask=padded)
    elif not LOGITS:
        logits = softmax(logits, known)
    if PLANES:
        tl.store(output + plane_of(point, label, points_per_item, LABELS), logits, mask=known)
    else:
        tl.store(output + row, logits, mask=padded)


class WeightedKernel(NamedTuple):
    """The tables of a kernel, its weights, and what is multiplied with what is sliced."""

    tables: PairwiseTables
    weights: FieldWeights
    factor: float


def weighted_kernels(kernels: Sequence[PairwiseTables], labels: int, steps: int) -> list[WeightedKernel]:
    # for one splat, or of few labels, listing would take longer than it saves
    listed = (steps > 1 and labels > _NARROW) or torch.are_deterministic_algorithms_enabled()
    found = []
    for tables, weights in zip(kernels, find_weights(kernels, listed), strict=True):
        kernel = WeightedKernel(tables, weights, float(tables.factor))
        if weights.target.dtype == torch.float64:
            # a kernel is given numbers of 32 bits
            kernel = WeightedKernel(tables, weights._replace(target=weights.target * kernel.factor), 1.0)
        found.append(kernel)
    return found


def _room(rows: int, marginals: Tensor) -> tuple[Tensor, ...]:
    """Three tensors `[rows, width]` by one allocation, each at a multiple of 16 bytes."""
    width = marginals.shape[1]
    strides = cdiv(rows, 4) * 4 * width, width, 1
    return torch.empty_strided((3, rows, width), strides, dtype=marginals.dtype, device=marginals.device).unbind()


def splat_all(kernels: Sequence[WeightedKernel], marginals: Tensor) -> tuple[list[Call], list[tuple[Tensor, ...]]]:
    """The calls that bring rows `[points, width]` to all lattices, and for each lattice where they then lie, with room
    for the blur.
    """
    room = [_room(kernel.tables.axis_neighbors.shape[1], marginals) for kernel in kernels]
    splatted = [each[0] for each in room]
    lists = [kernel.weights.incidence for kernel in kernels if kernel.weights.incidence is not None]
    launches: list[Launch] = []
    if not lists:
        for each, kernel in zip(splatted, kernels, strict=True):
            launches += splat_into(each, marginals, kernel.tables.vertices, kernel.weights.source)
    elif len(lists) == 1:
        launches.append(gather_into(splatted[0], marginals, lists[0]))
    else:
        launches += gather_into_both(splatted, marginals, lists)
    return [*prepare_all(launches)], room


def blur_all(
    kernels: Sequence[WeightedKernel], room: Sequence[tuple[Tensor, ...]], reverse: bool = False
) -> tuple[list[Call], list[Tensor]]:
    """The calls that blur what was splatted, from the last axis to the first if `reverse`, and where it then lies,
    ready to be sliced; without the costs in the second of the tensors in `room`.
    """
    neighbors = [kernel.tables.axis_neighbors.contiguous() for kernel in kernels]
    blurs = [blur_passes(first, each, reverse, room=more) for (first, *more), each in zip(room, neighbors, strict=True)]
    calls: list[Call] = [*prepare_all(blurs[0][0] if len(blurs) == 1 else join_passes(blurs[0][0], blurs[1][0]))]
    values = [blurred for _, blurred in blurs]
    for number, (kernel, along) in enumerate(zip(kernels, neighbors, strict=True)):
        more, values[number] = _behind_blur(kernel.tables, room[number][0], values[number], along, not reverse)
        calls += more
    return calls, values


def _behind_blur(
    tables: PairwiseTables, splatted: Tensor, blurred: Tensor, neighbors: Tensor, backward: bool
) -> tuple[list[Call], Tensor]:
    """The calls that make the blur symmetric and apply the costs, and where the result lies."""
    calls: list[Call] = []
    if tables.both_ways:
        passes, other = blur_passes(splatted, neighbors, backward)
        calls += [*prepare_all(passes), partial(torch.lerp, blurred, other, 0.5, out=blurred)]
    if tables.costs is None:
        return calls, blurred
    return [*calls, partial(torch.matmul, blurred, padded_costs(tables.costs, blurred), out=splatted)], splatted


def padded_costs(costs: Tensor, rows: Tensor) -> Tensor:
    """What rows are multiplied with: zeros behind the labels."""
    behind = rows.shape[1] - costs.shape[0]
    return F.pad(costs.to(rows.dtype), (0, behind, 0, behind))


def row_width(labels: int) -> int:
    """Elements of a row."""
    return labels if labels <= _NARROW else cdiv(labels, _ALIGNED) * _ALIGNED


def label_blocks(labels: int) -> dict[str, int]:
    """The shape of tiles, and warps for each: those that were fastest on an H200 for 21 labels."""
    blocks = tile(row_width(labels))
    halved = 2 if labels > _NARROW else 1
    return {"BLOCK": blocks["BLOCK"] // halved, "BLOCK_L": blocks["BLOCK_C"], "num_warps": 4 // halved}


def slice_all(
    output: Tensor,
    scores: Tensor | None,
    kernels: Sequence[WeightedKernel],
    values: Sequence[Tensor],
    shape: Sequence[int],
    logits: bool = False,
    pulled: tuple[Tensor, Tensor] | None = None,
) -> Launch:
    """What fills `output`, rows or planes of `shape`, with the next marginals, or their logits; `values` lie on the
    lattices. Or with gradients that are pulled back: of marginals, and to be added to totals; see `marginals_kernel`.
    """
    items, labels, points = shape
    width, blocks = row_width(labels), label_blocks(labels)
    tensors: list[Tensor] = [output if scores is None else scores, output, *(pulled or (output, output))]
    sizes: list[float] = [items * points, points]
    constants: dict[str, int] = {}
    for number, name in enumerate(("FIRST", "SECOND")):
        place = min(number, len(kernels) - 1)
        vertices, weights = kernels[place].tables.vertices, kernels[place].weights.target
        tensors += [values[place], vertices, weights]
        sizes += [vertices.stride(1), weights.stride(1), kernels[place].factor]
        constants |= {f"{name}_VERTEX": vertices.stride(0), f"{name}_WEIGHT": weights.stride(0)}
        constants[f"{name}_CORNERS"] = vertices.shape[1]
    bound = bind(
        marginals_kernel, KERNELS=len(kernels), PLANES=output.dim() == 3, SCORED=scores is not None, LOGITS=logits,
        PULLED=pulled is not None, LABELS=labels, WIDTH=width, **constants, **blocks,
    )  # fmt: skip
    return bound, (cdiv(items * points, blocks["BLOCK"]), 1, 1), tuple(tensors), tuple(sizes)


def _begin(output: Tensor, scores: Tensor, energies: Tensor) -> None:
    """Fill `output`, rows or planes, with softmax(-energies), and rows of `scores` with -energies."""
    items, labels, points = energies.shape
    blocks = label_blocks(labels)
    launch(
        scores_kernel, (cdiv(items * points, blocks["BLOCK"]),), (energies, scores, output), (items * points, points),
        PLANES=output.dim() == 3, LABELS=labels, WIDTH=row_width(labels), **blocks,
    )  # fmt: skip


class Begun(NamedTuple):
    """A field with its first marginals, both as rows; and planes for the last ones."""

    planes: Tensor
    scores: Tensor
    marginals: Tensor


def start_field(energies: Tensor, start: Tensor | None, dtype: torch.dtype) -> Begun:
    items, labels, points = energies.shape
    planes = torch.empty(energies.shape, dtype=dtype, device=energies.device)
    marginals, scores = (planes.new_empty(items * points, row_width(labels)) for _ in range(2))
    _begin(marginals, scores, energies.contiguous())
    if start is not None:
        marginals[:, :labels] = start.transpose(1, 2).reshape(items * points, labels)
    return Begun(planes, scores, marginals)


def solve(
    field: Begun, kernels: Sequence[WeightedKernel], steps: int, kept: list[list[Tensor]] | None = None
) -> Tensor:
    """All steps, at least one. Where what was blurred in each step is to be `kept`, logits instead of marginals."""
    # the GPU begins while what follows is prepared
    splats, room = splat_all(kernels, field.marginals)
    run_all(splats)
    blurs, values = blur_all(kernels, room)
    run_all(blurs)
    arguments = field.scores, kernels, values, field.planes.shape
    # the same memory in every step, so that its launches are prepared once
    step = [*prepare_all([slice_all(field.marginals, *arguments)]), *splats, *blurs]
    for _ in range(steps - 1):
        if kept is not None:
            kept.append([each[1].clone() for each in room])
        run_all(step)
    if kept is not None:
        kept.append([each[1] for each in room])
    start_all([slice_all(field.planes, *arguments, logits=kept is not None)])
    return field.planes


def is_taken(energies: Tensor, kernels: Sequence[object]) -> bool:
    return len(kernels) <= _MOST_KERNELS and energies.shape[1] <= WIDEST_TILE and energies.numel() > 0


@on_device
def mean_field(energies: Tensor, start: Tensor | None, kernels: Sequence[PairwiseTables], steps: int) -> Tensor | None:
    """All steps, None for more kernels or labels than the kernel takes: see `FusedPrimitives`."""
    if not is_taken(energies, kernels):
        return None
    dtype = kernels[0].barycentric.dtype
    if steps == 0:
        planes = torch.empty(energies.shape, dtype=dtype, device=energies.device)
        _begin(planes, planes, energies.contiguous())
        return planes
    field = start_field(energies, start, dtype)
    return solve(field, weighted_kernels(kernels, energies.shape[1], steps), steps)


@on_device
def mean_field_points(
    energies: Tensor, start: Tensor | None, kernels: Sequence[PairwisePoints], steps: int
) -> Tensor | None:
    """The same with the lattices, of which no more is made than the field needs; None where a lattice does not fit the
    first table: see `FusedPrimitives`.
    """
    if not is_taken(energies, kernels) or steps == 0:
        return None
    if any(kernel.features.shape[1] > LARGEST_EVEN_DIMENSION for kernel in kernels):
        return None
    with HostReports(energies.device) as reports:
        insertions = []
        for kernel, words in zip(kernels, reports.words, strict=False):
            attempt = first_attempt(kernel.features, kernel.batch)
            insertions.append(insert_points(*attempt))
            report(insertions[-1].table, attempt.telling(words))
        # while the GPU is busy with the lattices
        field = start_field(energies, start, kernels[0].features.dtype)
        told = [reports.read(number) for number in range(len(kernels))]
    tables = []
    for kernel, insertion, known in zip(kernels, insertions, told, strict=True):
        check_range(kernel.features, kernel.batch, known)
        if known.no_room or known.full:
            return None
        ordered, offsets = order(insertion, known), axis_offsets(kernel.features.shape[1], energies.device)
        neighbors = search_packed(ordered.table, ordered.codes, known.num_lattice_points, offsets, True)
        tables.append(PairwiseTables(ordered.vertices, ordered.barycentric, neighbors, *kernel[2:]))
    return solve(field, weighted_kernels(tables, energies.shape[1], steps), steps)


def run_all(calls: Iterable[Call]) -> None:
    for call in calls:
        call()
