"""The gradient of a mean field.

From the last step to the first, gradients with respect to logits are splatted and blurred as marginals are, from the
targets of the kernels to their sources and along the axes in reverse order. Then one kernel makes the marginals before
the step again, from what the mean field has kept, slices the gradients with respect to them, and pulls these back to
their logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.fused_primitives import PairwiseTables
from permutohedral.ops.triton.filter.field_weights import FieldWeights
from permutohedral.ops.triton.filter.incidence import list_corners
from permutohedral.ops.triton.filter.mean_field import (
    WeightedKernel,
    add_slice,
    blur_all,
    is_taken,
    label_blocks,
    padded_costs,
    row_width,
    run_all,
    softmax,
    solve,
    splat_all,
    start_field,
    weighted_kernels,
)
from permutohedral.ops.triton.runtime import Launch, bind, cdiv, on_device, start_all


@triton.jit(
    do_not_specialize=[
        "num_points", "first_vertex_stride", "first_target_stride", "first_source_stride", "first_factor",
        "second_vertex_stride", "second_target_stride", "second_source_stride", "second_factor",
    ]
)  # fmt: skip
def pull_back_kernel(
    scores, output, totals, first_values, first_gradients, first_vertices, first_targets, first_sources, second_values,
    second_gradients, second_vertices, second_targets, second_sources, num_points, first_vertex_stride,
    first_target_stride, first_source_stride, first_factor, second_vertex_stride, second_target_stride,
    second_source_stride, second_factor, KERNELS: tl.constexpr, MADE: tl.constexpr, PULLED: tl.constexpr,
    LABELS: tl.constexpr, WIDTH: tl.constexpr, FIRST_VERTEX: tl.constexpr, FIRST_TARGET: tl.constexpr,
    FIRST_SOURCE: tl.constexpr, FIRST_CORNERS: tl.constexpr, SECOND_VERTEX: tl.constexpr,
    SECOND_TARGET: tl.constexpr, SECOND_SOURCE: tl.constexpr, SECOND_CORNERS: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_L: tl.constexpr,
):  # fmt: skip
    """Slice the gradients D with respect to marginals Q from KERNELS lattices into rows `[points, WIDTH]`. If they are
    to be PULLED back to logits, Q (D - <Q, D>) instead, which is also added to the totals; Q is softmax(scores), with
    what is sliced from the values of the lattices if it was MADE by a step.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    label = tl.arange(0, BLOCK_L)
    inside = point < num_points
    row, padded = point[:, None] * WIDTH + label[None, :], inside[:, None] & (label < WIDTH)[None, :]
    gradient = add_slice(
        tl.zeros([BLOCK, BLOCK_L], output.dtype.element_ty), first_gradients, first_vertices, first_sources,
        first_factor, point, inside, label, first_vertex_stride, first_source_stride, WIDTH, FIRST_VERTEX,
        FIRST_SOURCE, FIRST_CORNERS,
    )  # fmt: skip
    if KERNELS > 1:
        gradient = add_slice(
            gradient, second_gradients, second_vertices, second_sources, second_factor, point, inside, label,
            second_vertex_stride, second_source_stride, WIDTH, SECOND_VERTEX, SECOND_SOURCE, SECOND_CORNERS,
        )  # fmt: skip
    if PULLED:
        logits = tl.load(scores + row, mask=padded, other=0.0)
        if MADE:
            logits = add_slice(
                logits, first_values, first_vertices, first_targets, first_factor, point, inside, label,
                first_vertex_stride, first_target_stride, WIDTH, FIRST_VERTEX, FIRST_TARGET, FIRST_CORNERS,
            )  # fmt: skip
            if KERNELS > 1:
                logits = add_slice(
                    logits, second_values, second_vertices, second_targets, second_factor, point, inside, label,
                    second_vertex_stride, second_target_stride, WIDTH, SECOND_VERTEX, SECOND_TARGET, SECOND_CORNERS,
                )  # fmt: skip
        marginals = softmax(logits, inside[:, None] & (label < LABELS)[None, :])
        gradient = marginals * (gradient - tl.sum(marginals * gradient, axis=1)[:, None])
        total = tl.load(totals + row, mask=padded, other=0.0)
        tl.store(totals + row, total + gradient, mask=padded)
    tl.store(output + row, gradient, mask=padded)


class KeptField(NamedTuple):
    """What the gradient needs: -energies as rows, the kernels, and for each step what was blurred on their lattices."""

    scores: Tensor
    kernels: list[WeightedKernel]
    blurred: list[list[Tensor]]


def _pull_back(
    output: Tensor,
    totals: Tensor,
    kept: KeptField,
    gradients: Sequence[Tensor],
    values: Sequence[Tensor] | None,
    labels: int,
    pulled: bool,
) -> Launch:
    """What fills the rows `output`; see `pull_back_kernel`. Without `values` the marginals were not made by a step."""
    blocks, points = label_blocks(labels), output.shape[0]
    tensors, sizes = [kept.scores, output, totals], [float(points)]
    constants: dict[str, int] = {}
    for number, name in enumerate(("FIRST", "SECOND")):
        place = min(number, len(kept.kernels) - 1)
        kernel = kept.kernels[place]
        vertices, targets, sources = kernel.tables.vertices, kernel.weights.target, kernel.weights.source
        tensors += [(gradients if values is None else values)[place], gradients[place], vertices, targets, sources]
        sizes += [vertices.stride(1), targets.stride(1), sources.stride(1), kernel.factor]
        constants |= {f"{name}_VERTEX": vertices.stride(0), f"{name}_TARGET": targets.stride(0)}
        constants |= {f"{name}_SOURCE": sources.stride(0), f"{name}_CORNERS": vertices.shape[1]}
    bound = bind(
        pull_back_kernel, KERNELS=len(kept.kernels), MADE=values is not None, PULLED=pulled, LABELS=labels,
        WIDTH=row_width(labels), **constants, **blocks,
    )  # fmt: skip
    return bound, (cdiv(points, blocks["BLOCK"]), 1, 1), tuple(tensors), (points, *sizes[1:])


def _adjoint(kernel: WeightedKernel) -> WeightedKernel:
    """The kernel from its targets to its sources."""
    tables, (source, target, incidence), factor = kernel
    if incidence is not None and source is not target:
        incidence = list_corners(tables.vertices, target, tables.axis_neighbors.shape[1])
    costs = None if tables.costs is None else tables.costs.T
    return WeightedKernel(tables._replace(costs=costs), FieldWeights(target, source, incidence), factor)


def _products(kernel: WeightedKernel, blurred: Tensor, splatted: Tensor) -> Tensor:
    """The gradient of the costs, or of the factor, `[1, 1]`: of what was blurred, and gradients that were splatted."""
    if kernel.tables.costs is None:
        return torch.dot(blurred.view(-1), splatted.view(-1)).view(1, 1)
    labels = kernel.tables.costs.shape[0]
    return kernel.factor * (blurred[:, :labels].T @ splatted[:, :labels])


def _with_costs(kernel: WeightedKernel, blurred: Tensor) -> Tensor:
    costs = kernel.tables.costs
    return blurred if costs is None else blurred @ padded_costs(costs, blurred)


def _planes(rows: Tensor, shape: torch.Size) -> Tensor:
    items, labels, points = shape
    return rows[:, :labels].reshape(items, points, labels).transpose(1, 2).contiguous()


@on_device
def mean_field_logits(
    energies: Tensor, start: Tensor | None, kernels: Sequence[PairwiseTables], steps: int
) -> tuple[Tensor, KeptField] | None:
    """See `FusedPrimitives`; None for more kernels or labels than the kernels take, and in double precision."""
    dtype = kernels[0].barycentric.dtype
    if not is_taken(energies, kernels) or dtype == torch.float64:
        return None
    field, blurred = start_field(energies, start, dtype), list[list[Tensor]]()
    weighted = weighted_kernels(kernels, energies.shape[1], steps)
    return solve(field, weighted, steps, blurred), KeptField(field.scores, weighted, blurred)


@on_device
def differentiate_mean_field(
    gradient: Tensor,
    energies: Tensor,
    start: Tensor | None,
    kernels: Sequence[PairwiseTables],
    steps: int,
    kept: KeptField,
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """See `FusedPrimitives`."""
    items, labels, points = energies.shape
    rows = kept.scores.new_zeros(items * points, row_width(labels))
    rows[:, :labels] = gradient.transpose(1, 2).reshape(items * points, labels)
    totals = rows.clone()
    adjoint = [_adjoint(kernel) for kernel in kept.kernels]
    splats, room = splat_all(adjoint, rows)
    blurs, gradients = blur_all(adjoint, room, reverse=True)
    to_kernels: list[Tensor] = []
    for step in range(steps - 1, -1, -1):
        run_all(splats)
        found = [_products(*each) for each in zip(adjoint, kept.blurred[step], (each[0] for each in room), strict=True)]
        to_kernels = [*map(torch.add, to_kernels, found)] if to_kernels else found
        run_all(blurs)
        made = None if step == 0 else [*map(_with_costs, kept.kernels, kept.blurred[step - 1])]
        pulled = step > 0 or start is None
        start_all([_pull_back(rows, totals, kept, gradients, made, labels, pulled)])
    to_start = None if start is None else _planes(rows, energies.shape)
    return -_planes(totals, energies.shape), to_start, to_kernels
