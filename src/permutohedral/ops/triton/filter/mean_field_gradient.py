"""The gradient of a mean field.

From the last step to the first, gradients with respect to logits are splatted and blurred as marginals are, from the
targets of the kernels to their sources and along the axes in reverse order. Then the marginals before the step are made
again, from what the mean field has kept, and the gradients with respect to them are sliced, and pulled back to their
logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from permutohedral.ops.fused_primitives import PairwiseTables
from permutohedral.ops.triton.filter.field_weights import FieldWeights
from permutohedral.ops.triton.filter.incidence import list_corners
from permutohedral.ops.triton.filter.mean_field import (
    WeightedKernel,
    blur_all,
    is_taken,
    padded_costs,
    row_width,
    run_all,
    slice_all,
    solve,
    splat_all,
    start_field,
    weighted_kernels,
)
from permutohedral.ops.triton.runtime import on_device, start_all


class KeptField(NamedTuple):
    """What the gradient needs: -energies as rows, the kernels, and for each step what was blurred on their lattices."""

    scores: Tensor
    kernels: list[WeightedKernel]
    blurred: list[list[Tensor]]


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
    totals, marginals = rows.clone(), torch.empty_like(rows)
    adjoint = [_adjoint(kernel) for kernel in kept.kernels]
    splats, room = splat_all(adjoint, rows)
    blurs, gradients = blur_all(adjoint, room, reverse=True)
    to_kernels: list[Tensor] = []
    for step in range(steps - 1, -1, -1):
        run_all(splats)
        found = [_products(*each) for each in zip(adjoint, kept.blurred[step], (each[0] for each in room), strict=True)]
        to_kernels = [*map(torch.add, to_kernels, found)] if to_kernels else found
        run_all(blurs)
        if step > 0:
            made = [*map(_with_costs, kept.kernels, kept.blurred[step - 1])]
            start_all([slice_all(marginals, kept.scores, kept.kernels, made, energies.shape)])
        elif start is None:
            marginals = start_field(energies, None, rows.dtype).marginals
        # a start that was given has no logits
        pulled = (marginals, totals) if step > 0 or start is None else None
        start_all([slice_all(rows, None, adjoint, gradients, energies.shape, pulled is None, pulled)])
    to_start = None if start is None else _planes(rows, energies.shape)
    return -_planes(totals, energies.shape), to_start, to_kernels
