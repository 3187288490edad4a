"""The mean field of a dense random field, composed of primitives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from permutohedral.ops.contract import SMALLEST_MASS, FieldPlan, PairwiseTables, blur_gain

if TYPE_CHECKING:
    from permutohedral.ops.backend import Backend

# scores are finite even times this
LARGEST_DAMPING = 2.0**20


class PairwiseFilter:
    """A kernel of a mean field as a filter of rows `[points, labels]`.

    Args:
        ops: runs the primitives.
        tables: of the kernel.
        sample_weight: how much each point counts, `[points, 1]`; None for ones.
    """

    def __init__(self, ops: Backend, tables: PairwiseTables, sample_weight: Tensor | None = None) -> None:
        self.ops, self.tables = ops, tables
        powers, barycentric = (tables.source_power, tables.target_power), tables.barycentric
        ones = barycentric.new_ones(barycentric.shape[0], 1)
        self.sample_weight = ones if sample_weight is None else sample_weight
        self.gain = blur_gain(barycentric.shape[1] - 1)
        self.source_scale = self.target_scale = None
        if powers != (0, 0):
            mass = self.filter(self.sample_weight, False) + SMALLEST_MASS
            scale = mass.rsqrt() if powers[0] == powers[1] else mass.reciprocal()
            self.source_scale, self.target_scale = (scale if power > 0 else None for power in powers)
        # scales are part of the weights of splat and slice
        self.source_weights, self.target_weights = barycentric, barycentric / self.gain
        if sample_weight is not None:
            self.source_weights = self.source_weights * sample_weight
        if self.source_scale is not None:
            self.source_weights = self.source_weights * self.source_scale
        if self.target_scale is not None:
            self.target_weights = self.target_weights * self.target_scale

    def filter(self, rows: Tensor, both_ways: bool) -> Tensor:
        """Apply the Gaussian without scales."""
        vertices, barycentric = self.tables.vertices, self.tables.barycentric
        splatted = self.ops.splat(rows, vertices, barycentric, self.tables.axis_neighbors.shape[1])
        return self.ops.slice(self._blur(splatted, both_ways) / self.gain, vertices, barycentric)

    def splat_and_blur(self, marginals: Tensor, both_ways: bool | Tensor) -> Tensor:
        """Return the blurred marginals `[lattice_points, labels]`."""
        rows = self.tables.axis_neighbors.shape[1]
        return self._blur(self.ops.splat(marginals, self.tables.vertices, self.source_weights, rows), both_ways)

    def slice(self, lattice_values: Tensor) -> Tensor:
        """Slice with the scale of the target."""
        return self.ops.slice(lattice_values, self.tables.vertices, self.target_weights)

    def message(self, marginals: Tensor, both_ways: bool | Tensor) -> Tensor:
        """Return what the kernel adds to the logits, `[points, labels]`, up to a constant for each point."""
        blurred, costs = self.splat_and_blur(marginals, both_ways), self.tables.costs
        # the weights of the slice are divided by the gain, as the factor is without scales
        unscaled = self.tables.source_power == self.tables.target_power == 0
        factor = self.tables.factor * self.gain if unscaled else self.tables.factor
        return self.slice(factor * blurred if costs is None else blurred @ (factor * costs))

    def _blur(self, lattice_values: Tensor, both_ways: bool | Tensor) -> Tensor:
        """Blur forward, or return the mean of forward and reverse blurs, which is symmetric."""
        blurred = self.ops.blur(lattice_values, self.tables.axis_neighbors, False)
        if both_ways is False:
            return blurred
        symmetric = (blurred + self.ops.blur(lattice_values, self.tables.axis_neighbors, True)) / 2
        return torch.where(both_ways, symmetric, blurred) if isinstance(both_ways, Tensor) else symmetric


def mean_field(ops: Backend, energies: Tensor, start: Tensor | None, plan: FieldPlan) -> Tensor:
    """Compute `Backend.mean_field`."""
    (items, labels, points), kernels = energies.shape, plan.kernels
    dtype, filters = kernels[0].barycentric.dtype, [PairwiseFilter(ops, kernel) for kernel in kernels]

    def to_rows(planes: Tensor) -> Tensor:
        return planes.transpose(1, 2).reshape(items * points, labels).contiguous()

    def update(marginals: Tensor) -> Tensor:
        new = scores
        for each in filters:
            # separate sums pass their gradient on unchanged
            new = new + each.message(marginals, each.tables.both_ways)
        return new

    logits = scores = scores_of(to_rows(energies), dtype)
    for step in range(plan.steps):
        given = start if step == 0 else None
        logits = update(softmax(logits) if given is None else to_rows(given).to(dtype))
    rows = logits if plan.as_logits else softmax(logits)
    return rows.reshape(items, points, labels).transpose(1, 2).contiguous()


def scores_of(energies: Tensor, dtype: torch.dtype) -> Tensor:
    """Return negative energies, `[rows, labels]`, finite: infinities have no difference."""
    # products with the damping must be finite, too
    largest = torch.finfo(dtype).max / LARGEST_DAMPING
    return -allow_labels(energies, 1).to(dtype).clamp(-largest, largest)


def allow_labels(energies: Tensor, axis: int) -> Tensor:
    """Return energies with zeros at points where all labels along `axis` are forbidden: their neighbors decide."""
    return torch.where((energies == torch.inf).all(dim=axis, keepdim=True), 0.0, energies)


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax over labels; torch computes that of two labels ten times as fast by a sigmoid."""
    return torch.sigmoid(logits - logits.flip(1)) if logits.shape[1] == 2 else torch.softmax(logits, dim=1)


def finite_logarithm(marginals: Tensor) -> Tensor:
    """Return finite logarithms of marginals, which may be zero."""
    return marginals.clamp_min(torch.finfo(marginals.dtype).tiny).log()
