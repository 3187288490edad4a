"""The mean field of a dense conditional random field, and its gradient.

A step is splat and blur for each kernel, then one kernel that slices their lattices and takes the softmax. Scales are
part of the barycentric weights. Tiles are `[BLOCK points, BLOCK_L labels]`. Rows of many labels are padded with zeros
to WIDTH elements, so that a thread reads four of them with one instruction.

The gradient runs from the last step to the first. Gradients with respect to logits are splatted and blurred as
marginals are, from the targets of the kernels to their sources and along the axes in reverse order. The marginals
before the step are computed again, from saved blurred values. Then the gradients with respect to them are sliced, and
pulled back to their logits.
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
from torch.utils._pytree import tree_flatten, tree_unflatten

from permutohedral.ops.contract import SMALLEST_MASS, FieldPlan, Needed, PairwiseTables, Saved, number_of
from permutohedral.ops.triton.filter.blur import blur_passes, join_passes
from permutohedral.ops.triton.filter.incidence import (
    Incidence,
    build_incidence,
    gather_into,
    gather_into_both,
    place_rows,
    store_entry,
)
from permutohedral.ops.triton.filter.splat import splat_into, splat_sums
from permutohedral.ops.triton.kernel import (
    WIDEST_TILE,
    Launch,
    cdiv,
    clear,
    empty_corners,
    kernel,
    launch_all,
    on_device,
    power_of_two,
    prepare_all,
)

# a part of a step: the launch of a kernel, or an operation of torch
Call = Callable[[], Any]

# most labels of a tile, which holds all of them
_MOST_LABELS = 256
# labels that are not padded; the others are padded to a multiple of _ALIGNED
_NARROW, _ALIGNED = 4, 4
# points of a program that finds weights
_BLOCK = 256
# divisors of a weight
_NOTHING, _MASS, _ROOT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# stands for infinity
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)


@kernel(sizes=["num_points", "vertex_corner_stride", "weight_corner_stride"])
def count_kernel(
    vertices, weights, counts, masses, ranks, num_points, vertex_corner_stride, weight_corner_stride,
    DIVISOR: tl.constexpr, LISTED: tl.constexpr, VERTEX_STRIDE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr,
    CORNERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum the weights at every lattice point, if they divide; with LISTED also number its points.

    `counts` and `masses` hold zeros.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for number in tl.static_range(CORNERS):
        corner = tl.cast(number, tl.int64)
        inside = point < num_points
        vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=0)
        if LISTED:
            rank = tl.atomic_add(counts + vertex, 1, mask=inside, sem="relaxed")
            tl.store(ranks + corner * num_points + point, rank, mask=inside)
        if DIVISOR != _NOTHING:
            place = weights + point * WEIGHT_STRIDE + corner * weight_corner_stride
            tl.atomic_add(masses + vertex, tl.load(place, mask=inside, other=0.0), mask=inside, sem="relaxed")


@kernel(sizes=["num_points", "vertex_corner_stride", "weight_corner_stride", "output_corner_stride"])
def divide_kernel(
    masses, vertices, weights, output, starts, ranks, points, entry_weights, num_points, vertex_corner_stride,
    weight_corner_stride, output_corner_stride, DIVISOR: tl.constexpr, LISTED: tl.constexpr, AT_SOURCE: tl.constexpr,
    SMALLEST: tl.constexpr, VERTEX_STRIDE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr, CORNERS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Divide the weights of every point by its mass, sliced from the lattice; with LISTED write the entries.

    The entries have the divided weights with AT_SOURCE, and the given ones otherwise.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    divisor = tl.full([BLOCK], 1.0, weights.dtype.element_ty)
    if DIVISOR != _NOTHING:
        mass = tl.full([BLOCK], SMALLEST, weights.dtype.element_ty)
        for number in tl.static_range(CORNERS):
            corner = tl.cast(number, tl.int64)
            vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=0)
            weight = tl.load(weights + point * WEIGHT_STRIDE + corner * weight_corner_stride, mask=inside, other=0.0)
            mass += weight * tl.load(masses + vertex, mask=inside, other=1.0)
        divisor = tl.sqrt(mass) if DIVISOR == _ROOT else mass
    for number in tl.static_range(CORNERS):
        corner = tl.cast(number, tl.int64)
        weight = tl.load(weights + point * WEIGHT_STRIDE + corner * weight_corner_stride, mask=inside, other=0.0)
        if DIVISOR != _NOTHING:
            tl.store(output + corner * output_corner_stride + point, weight / divisor, mask=inside)
        if LISTED:
            vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=0)
            rank = tl.load(ranks + corner * num_points + point, mask=inside, other=0)
            entry = tl.load(starts + vertex, mask=inside, other=0) + rank
            listed = weight / divisor if AT_SOURCE else weight
            store_entry(points, entry_weights, entry, point, listed, inside)


class FieldWeights(NamedTuple):
    """The weights of a kernel, with its scales.

    Attributes:
        source: for splatting the points, `[points, corners]`.
        target: for slicing them.
        incidence: the points at each lattice point with their weights as a source, or None.
    """

    source: Tensor
    target: Tensor
    incidence: Incidence | None


class _Buffers(NamedTuple):
    """Memory for one lattice; without lists, any tensor stands for those of the lists."""

    counts: Tensor
    masses: Tensor
    starts: Tensor
    ranks: Tensor
    points: Tensor
    entry_weights: Tensor


def _divisor(tables: PairwiseTables) -> int:
    if tables.source_power == tables.target_power == 0:
        return int(_NOTHING.value)
    return int((_ROOT if tables.source_power == tables.target_power else _MASS).value)


def _allocate(tables: PairwiseTables, listed: bool) -> tuple[_Buffers, Launch]:
    """Return buffers for one lattice, and the launch that clears counts and masses."""
    rows, entries = tables.axis_neighbors.shape[1], tables.vertices.numel()
    dtype, device = tables.barycentric.dtype, tables.barycentric.device
    places = torch.int32 if entries < 1 << 31 else torch.int64
    # in words as wide as the wider of both, each row at a multiple of 16 bytes
    wide = torch.int32 if max(dtype.itemsize, places.itemsize) == 4 else torch.int64
    zeroed = torch.empty(2, cdiv(rows + 1, 4) * 4, dtype=wide, device=device)
    masses = zeroed[1].view(dtype).as_strided((rows, 1), (1, 1))
    if not listed:
        return _Buffers(zeroed, masses, zeroed, zeroed, zeroed, zeroed), clear(zeroed)
    starts, ranks = (torch.empty(number, dtype=places, device=device) for number in (rows, entries))
    together = dtype == torch.float32
    points = torch.empty(entries, dtype=torch.int64 if together else torch.int32, device=device)
    weights = points if together else torch.empty(entries, dtype=dtype, device=device)
    return _Buffers(zeroed[0].view(places), masses, starts, ranks, points, weights), clear(zeroed)


def _count(tables: PairwiseTables, buffers: _Buffers, listed: bool) -> list[Launch]:
    """Return the launches that sum masses; for lists they also number the entries of lattice points and place them."""
    vertices, weights, (points, corners) = tables.vertices, tables.barycentric, tables.vertices.shape
    variant = count_kernel[_divisor(tables), listed, vertices.stride(0), weights.stride(0), corners, _BLOCK]
    tensors, sizes = (vertices, weights, *buffers[:2], buffers.ranks), (points, vertices.stride(1), weights.stride(1))
    counting: Launch = variant, variant.tiles(points, 1), tensors, sizes
    return [counting, place_rows(buffers.counts, buffers.starts)] if listed else [counting]


def _divide(tables: PairwiseTables, buffers: _Buffers, mass: Tensor, listed: bool) -> tuple[Launch, Tensor]:
    """Return the launch that divides weights by the masses of their points and lists these, and the new weights."""
    vertices, weights, divisor = tables.vertices, tables.barycentric, _divisor(tables)
    (points, corners), output = vertices.shape, weights
    if divisor != _NOTHING.value:
        output = empty_corners(points, corners, weights.dtype, weights.device)
    variant = divide_kernel[
        divisor, listed, tables.source_power > 0, SMALLEST_MASS, vertices.stride(0), weights.stride(0), corners, _BLOCK
    ]  # fmt: skip
    sizes = points, vertices.stride(1), weights.stride(1), output.stride(1)
    return (variant, variant.tiles(points, 1), (mass, vertices, weights, output, *buffers[2:]), sizes), output


def _find_weights(kernels: Sequence[PairwiseTables], listed: bool) -> list[FieldWeights]:
    """Return the weights of kernels over the same points, of which there is at least one."""
    # additions in any order are not repeatable to the last bit
    exact = torch.are_deterministic_algorithms_enabled()
    divided = any(_divisor(each) != _NOTHING.value for each in kernels)
    buffers, masses, atomic = [], [], listed and not exact
    for each in kernels:
        own, clearing = _allocate(each, atomic)
        buffers.append(own)
        masses.append(own.masses)
        if not exact:
            launch_all([clearing, *_count(each, own, listed)])
        elif divided:
            masses[-1] = splat_sums(each.barycentric[:, :0], *each[:2], each.axis_neighbors.shape[1], 1)
    if divided:
        blurred = [
            blur_passes(mass, each.axis_neighbors.contiguous(), False)
            for mass, each in zip(masses, kernels, strict=True)
        ]
        launch_all(_joined([passes for passes, _ in blurred], 1))
        masses = [result for _, result in blurred]
    found = []
    for each, own, mass in zip(kernels, buffers, masses, strict=True):
        launch, output = _divide(each, own, mass, atomic)
        if output is not each.barycentric or atomic:
            launch_all([launch])
        source, target = (output if power > 0 else each.barycentric for power in (each.source_power, each.target_power))
        incidence = Incidence(own.starts, own.counts, own.points, own.entry_weights) if atomic else None
        if exact and listed:
            incidence = build_incidence(each.vertices, source, each.axis_neighbors.shape[1])
        found.append(FieldWeights(source, target, incidence))
    return found


def _joined(passes: Sequence[list[Launch]], channels: int) -> list[Launch]:
    """Join the blurs of every two lattices into common launches, if a tile holds all channels."""
    if channels > WIDEST_TILE:
        return [launch for each in passes for launch in each]
    joined: list[Launch] = []
    for first in range(0, len(passes), 2):
        pair = passes[first : first + 2]
        joined += pair[0] if len(pair) == 1 else join_passes(pair[0], pair[1])
    return joined


@triton.jit
def softmax(logits, known):
    """Return the softmax over the labels that are `known`; zeros where none is."""
    logits = tl.where(known, logits, float("-inf"))
    highest = tl.max(logits, axis=1)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    exponentials = tl.exp(logits - highest[:, None])
    total = tl.sum(exponentials, axis=1)
    return exponentials / tl.where(total > 0, total, 1.0)[:, None]


@triton.jit
def plane_of(point, label, points_per_item, LABELS: tl.constexpr):
    """Return the places of points and labels in `[items, labels, points_per_item]`."""
    item = point // points_per_item
    start = item * LABELS * points_per_item + (point - item * points_per_item)
    return start[:, None] + label.to(tl.int64)[None, :] * points_per_item


@kernel(sizes=["num_points", "points_per_item"], options=["num_warps"])
def scores_kernel(
    energies, scores, output, num_points, points_per_item, PLANES: tl.constexpr, LABELS: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """Write softmax(-energies) of energies `[items, labels, points_per_item]`.

    The result has the layout of the energies with PLANES. Otherwise it is rows `[points, WIDTH]`, and so are `scores`,
    the negative energies, which every step reads.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    label = tl.arange(0, BLOCK_L)
    inside = point < num_points
    known = inside[:, None] & (label < LABELS)[None, :]
    plane = plane_of(point, label, points_per_item, LABELS)
    score = -tl.load(energies + plane, mask=known, other=0.0).to(output.dtype.element_ty)
    # neighbors decide where all labels are forbidden
    allowed = tl.sum((known & (score != float("-inf"))).to(tl.int32), axis=1)
    score = tl.where(allowed[:, None] > 0, score, 0.0)
    # infinite scores have no difference; a minimum would turn NaN into a number
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
    """Add the slice of one lattice, times the factor."""
    for number in tl.static_range(CORNERS):
        corner = tl.cast(number, tl.int64)
        vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=0)
        weight = tl.load(weights + point * WEIGHT_STRIDE + corner * weight_corner_stride, mask=inside, other=0.0)
        place = lattice_values + vertex.to(tl.int64)[:, None] * WIDTH + label[None, :]
        present = inside[:, None] & (label < WIDTH)[None, :]
        logits += (factor * weight)[:, None] * tl.load(place, mask=present, other=0.0)
    return logits


@kernel(sizes=[
    "num_points", "points_per_item", "first_vertex_stride", "first_weight_stride", "first_factor",
    "second_vertex_stride", "second_weight_stride", "second_factor",
], options=["num_warps"])  # fmt: skip
def marginals_kernel(
    scores, output, marginals, totals, first_values, first_vertices, first_weights, second_values, second_vertices,
    second_weights, num_points, points_per_item, first_vertex_stride, first_weight_stride, first_factor,
    second_vertex_stride, second_weight_stride, second_factor, KERNELS: tl.constexpr, PLANES: tl.constexpr,
    SCORED: tl.constexpr, LOGITS: tl.constexpr, PULLED: tl.constexpr, LABELS: tl.constexpr, WIDTH: tl.constexpr,
    FIRST_VERTEX: tl.constexpr, FIRST_WEIGHT: tl.constexpr, FIRST_CORNERS: tl.constexpr, SECOND_VERTEX: tl.constexpr,
    SECOND_WEIGHT: tl.constexpr, SECOND_CORNERS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """Write softmax(scores + slices of KERNELS lattices), or its argument with LOGITS.

    The result is rows `[points, WIDTH]`, or with PLANES `[items, labels, points_per_item]`. The scores, if SCORED, are
    rows. With PULLED the sum D is a gradient with respect to marginals Q, and is pulled back to their logits:
    Q (D - <Q, D>), which is also added to the totals; Q and totals are rows.
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
    """The tables of a kernel, its weights, and the factor of its slice."""

    tables: PairwiseTables
    weights: FieldWeights
    factor: float


def _weighted_kernels(kernels: Sequence[PairwiseTables], labels: int, steps: int) -> list[WeightedKernel]:
    # for one splat, or few labels, listing would take longer than it saves
    listed = (steps > 1 and labels > _NARROW) or torch.are_deterministic_algorithms_enabled()
    found = []
    for tables, weights in zip(kernels, _find_weights(kernels, listed), strict=True):
        weighted = WeightedKernel(tables, weights, number_of(tables.factor))
        if weights.target.dtype == torch.float64:
            # kernels take numbers of 32 bits
            weighted = WeightedKernel(tables, weights._replace(target=weights.target * weighted.factor), 1.0)
        found.append(weighted)
    return found


def _splat_all(kernels: Sequence[WeightedKernel], marginals: Tensor) -> tuple[list[Call], list[tuple[Tensor, ...]]]:
    """Return the calls that splat rows `[points, width]` to all lattices, and for each the result and two buffers."""
    shapes = [(each.tables.axis_neighbors.shape[1], marginals.shape[1]) for each in kernels]
    buffers = [tuple(marginals.new_empty(shape) for _ in range(3)) for shape in shapes]
    splatted = [each[0] for each in buffers]
    lists = [each.weights.incidence for each in kernels if each.weights.incidence is not None]
    launches: list[Launch] = []
    if not lists:
        for each, weighted in zip(splatted, kernels, strict=True):
            launches += splat_into(each, marginals, weighted.tables.vertices, weighted.weights.source)
    else:
        joint = 2 if marginals.shape[1] <= WIDEST_TILE else 1
        for first in range(0, len(lists), joint):
            outputs, some = splatted[first : first + joint], lists[first : first + joint]
            if len(some) == 1:
                launches.append(gather_into(outputs[0], marginals, some[0]))
            else:
                launches += gather_into_both(outputs, marginals, some)
    return [*prepare_all(launches)], buffers


def _blur_all(
    kernels: Sequence[WeightedKernel], buffers: Sequence[tuple[Tensor, ...]], reverse: bool = False
) -> tuple[list[Call], list[Tensor]]:
    """Return the calls that blur the splatted rows, from the last axis to the first if `reverse`, and the results.

    Without costs a result is the second of the tensors in `buffers`.
    """
    neighbors = [each.tables.axis_neighbors.contiguous() for each in kernels]
    blurs = [
        blur_passes(first, each, reverse, buffers=more) for (first, *more), each in zip(buffers, neighbors, strict=True)
    ]
    calls: list[Call] = [*prepare_all(_joined([passes for passes, _ in blurs], buffers[0][0].shape[1]))]
    values = [blurred for _, blurred in blurs]
    for number, (weighted, along) in enumerate(zip(kernels, neighbors, strict=True)):
        more, values[number] = _after_blur(weighted.tables, buffers[number][0], values[number], along, not reverse)
        calls += more
    return calls, values


def _after_blur(
    tables: PairwiseTables, splatted: Tensor, blurred: Tensor, neighbors: Tensor, backward: bool
) -> tuple[list[Call], Tensor]:
    """Return the calls that make the blur symmetric and apply the costs, and the result."""
    calls: list[Call] = []
    if tables.both_ways:
        passes, other = blur_passes(splatted, neighbors, backward)
        calls += [*prepare_all(passes), partial(torch.lerp, blurred, other, 0.5, out=blurred)]
    if tables.costs is None:
        return calls, blurred
    return [*calls, partial(torch.matmul, blurred, _padded_costs(tables.costs, blurred), out=splatted)], splatted


def _padded_costs(costs: Tensor, rows: Tensor) -> Tensor:
    """Return the matrix that rows are multiplied with: zeros after the labels."""
    behind = rows.shape[1] - costs.shape[0]
    return F.pad(costs.to(rows.dtype), (0, behind, 0, behind))


def _row_width(labels: int) -> int:
    """Return the elements of a row."""
    return labels if labels <= _NARROW else cdiv(labels, _ALIGNED) * _ALIGNED


def _label_blocks(labels: int) -> tuple[int, int, int]:
    """Return BLOCK, BLOCK_L and warps: those that were fastest on an H200 for 21 labels."""
    block_l = power_of_two(_row_width(labels))
    halved = 2 if labels > _NARROW else 1
    return max(min(1024 // block_l, 128), 16) // halved, block_l, 4 // halved


def _slice_all(
    output: Tensor,
    scores: Tensor | None,
    kernels: Sequence[WeightedKernel],
    values: Sequence[Tensor],
    shape: Sequence[int],
    logits: bool = False,
    pulled: tuple[Tensor, Tensor] | None = None,
) -> list[Launch]:
    """Return the launches that fill `output`, rows or planes of `shape`, with the next marginals or their logits.

    `values` are those on the lattices. With `pulled`, marginals and totals, gradients are pulled back instead: see
    `marginals_kernel`. That kernel takes two lattices, so the slices of more are summed in rows first.
    """
    launches: list[Launch] = []
    while len(kernels) > 2:
        rows = output.new_empty(shape[0] * shape[2], _row_width(shape[1]))
        launches += _slice_all(rows, scores, kernels[:2], values[:2], shape, logits=True)
        scores, kernels, values = rows, kernels[2:], values[2:]
    items, labels, points = shape
    block, block_l, warps = _label_blocks(labels)
    tensors: list[Tensor] = [output if scores is None else scores, output, *(pulled or (output, output))]
    sizes: list[float] = [items * points, points]
    strides: list[int] = []
    for place in (0, len(kernels) - 1):
        vertices, weights = kernels[place].tables.vertices, kernels[place].weights.target
        tensors += [values[place], vertices, weights]
        sizes += [vertices.stride(1), weights.stride(1), kernels[place].factor]
        strides += [vertices.stride(0), weights.stride(0), vertices.shape[1]]
    variant = marginals_kernel[(
        len(kernels), output.dim() == 3, scores is not None, logits, pulled is not None, labels, _row_width(labels),
        *strides, block, block_l, warps,
    )]  # fmt: skip
    return [*launches, (variant, (cdiv(items * points, block), 1, 1), tuple(tensors), tuple(sizes))]


def _begin(output: Tensor, scores: Tensor, energies: Tensor) -> None:
    """Fill `output`, rows or planes, with softmax(-energies), and rows of `scores` with -energies."""
    items, labels, points = energies.shape
    variant = scores_kernel[(output.dim() == 3, labels, _row_width(labels), *_label_blocks(labels))]
    variant(variant.tiles(items * points, 1), (energies, scores, output), (items * points, points))


class FieldBuffers(NamedTuple):
    """Scores and first marginals as rows, and planes for the last marginals."""

    planes: Tensor
    scores: Tensor
    marginals: Tensor


def _start_field(energies: Tensor, start: Tensor | None, dtype: torch.dtype) -> FieldBuffers:
    items, labels, points = energies.shape
    planes = torch.empty(energies.shape, dtype=dtype, device=energies.device)
    marginals, scores = (planes.new_empty(items * points, _row_width(labels)) for _ in range(2))
    _begin(marginals, scores, energies.contiguous())
    if start is not None:
        marginals[:, :labels] = start.transpose(1, 2).reshape(items * points, labels)
    return FieldBuffers(planes, scores, marginals)


def _solve(
    field: FieldBuffers, kernels: Sequence[WeightedKernel], steps: int, saved: list[list[Tensor]] | None = None
) -> Tensor:
    """Run all steps, at least one; if `saved` gets the blurred values of each, return logits, not marginals."""
    # the GPU begins while the host prepares the rest
    splats, buffers = _splat_all(kernels, field.marginals)
    _run_all(splats)
    blurs, values = _blur_all(kernels, buffers)
    _run_all(blurs)
    arguments = field.scores, kernels, values, field.planes.shape
    # every step uses the same memory, so that its launches are prepared once
    step = [*prepare_all(_slice_all(field.marginals, *arguments)), *splats, *blurs]
    for _ in range(steps - 1):
        if saved is not None:
            saved.append([each[1].clone() for each in buffers])
        _run_all(step)
    if saved is not None:
        saved.append([each[1] for each in buffers])
    launch_all(_slice_all(field.planes, *arguments, logits=saved is not None))
    return field.planes


def _run_all(calls: Iterable[Call]) -> None:
    for call in calls:
        call()


class SavedField(NamedTuple):
    """Scores as rows, the kernels, and for each step the blurred values on their lattices."""

    scores: Tensor
    kernels: list[WeightedKernel]
    blurred: list[list[Tensor]]


def _adjoint(weighted: WeightedKernel) -> WeightedKernel:
    """Return the kernel from its targets to its sources."""
    tables, (source, target, incidence), factor = weighted
    if incidence is not None and source is not target:
        incidence = build_incidence(tables.vertices, target, tables.axis_neighbors.shape[1])
    costs = None if tables.costs is None else tables.costs.T
    return WeightedKernel(tables._replace(costs=costs), FieldWeights(target, source, incidence), factor)


def _products(weighted: WeightedKernel, blurred: Tensor, splatted: Tensor) -> Tensor:
    """Return the gradient of the costs, or `[1, 1]` of the factor, from blurred values and splatted gradients."""
    if weighted.tables.costs is None:
        return torch.dot(blurred.view(-1), splatted.view(-1)).view(1, 1)
    labels = weighted.tables.costs.shape[0]
    return weighted.factor * (blurred[:, :labels].T @ splatted[:, :labels])


def _with_costs(weighted: WeightedKernel, blurred: Tensor) -> Tensor:
    costs = weighted.tables.costs
    return blurred if costs is None else blurred @ _padded_costs(costs, blurred)


def _planes(rows: Tensor, shape: torch.Size) -> Tensor:
    items, labels, points = shape
    return rows[:, :labels].reshape(items, points, labels).transpose(1, 2).contiguous()


def field_blocker(energies: Tensor, plan: FieldPlan) -> str | None:
    """Return the reason that `mean_field` cannot run, or None."""
    if energies.shape[1] > _MOST_LABELS:
        return f"the kernels take at most {_MOST_LABELS} labels, got {energies.shape[1]}"
    if energies.numel() == 0:
        return "there are no points"
    if plan.as_logits and plan.kernels[0].barycentric.dtype == torch.float64:
        return "the kernels have no gradients in double precision"
    return None


@on_device
def mean_field(energies: Tensor, start: Tensor | None, plan: FieldPlan) -> tuple[Tensor, Saved]:
    """Run all steps; with logits also return the tensors of a `SavedField`, which their gradient needs."""
    labels, dtype, steps = energies.shape[1], plan.kernels[0].barycentric.dtype, plan.steps
    if steps == 0:
        planes = torch.empty(energies.shape, dtype=dtype, device=energies.device)
        _begin(planes, planes, energies.contiguous())
        return planes, ()
    field, weighted = _start_field(energies, start, dtype), _weighted_kernels(plan.kernels, labels, steps)
    if not plan.as_logits:
        return _solve(field, weighted, steps), ()
    blurred: list[list[Tensor]] = []
    logits = _solve(field, weighted, steps, blurred)
    tensors, layout = tree_flatten(SavedField(field.scores, weighted, blurred))
    return logits, (layout, *tensors)


@on_device
def mean_field_backward(
    gradient: Tensor, inputs: Saved, saved: Saved, needed: Needed, plan: FieldPlan
) -> tuple[Tensor | None, ...]:
    energies, start, *_ = inputs
    states: SavedField = tree_unflatten(saved[1:], saved[0])
    items, labels, points = energies.shape
    rows = states.scores.new_zeros(items * points, _row_width(labels))
    rows[:, :labels] = gradient.transpose(1, 2).reshape(items * points, labels)
    totals, marginals = rows.clone(), torch.empty_like(rows)
    adjoint = [_adjoint(each) for each in states.kernels]
    splats, buffers = _splat_all(adjoint, rows)
    blurs, gradients = _blur_all(adjoint, buffers, reverse=True)
    to_kernels: list[Tensor] = []
    for step in range(plan.steps - 1, -1, -1):
        _run_all(splats)
        splatted = [each[0] for each in buffers]
        found = [_products(*each) for each in zip(adjoint, states.blurred[step], splatted, strict=True)]
        to_kernels = [*map(torch.add, to_kernels, found)] if to_kernels else found
        _run_all(blurs)
        if step > 0:
            made = [*map(_with_costs, states.kernels, states.blurred[step - 1])]
            launch_all(_slice_all(marginals, states.scores, states.kernels, made, energies.shape))
        elif start is None:
            marginals = _start_field(energies, None, rows.dtype).marginals
        # a start that was given has no logits
        pulled = (marginals, totals) if step > 0 or start is None else None
        launch_all(_slice_all(rows, None, adjoint, gradients, energies.shape, pulled is None, pulled))
    to_start = None if start is None else _planes(rows, energies.shape)
    return -_planes(totals, energies.shape), to_start, *to_kernels
