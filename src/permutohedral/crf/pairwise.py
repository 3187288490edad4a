"""A kernel made ready: what the marginals of all points cost each label at each point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from permutohedral.crf.kernels import Kernel
from permutohedral.crf.layout import Layout
from permutohedral.errors import InputError
from permutohedral.functional import slice, splat
from permutohedral.lattice import Lattice
from permutohedral.memory import check_rows
from permutohedral.neighborhood import blur_gain
from permutohedral.ops import operators
from permutohedral.ops.primitives import PairwiseTables

# keeps a point without any mass at zero instead of 0 / 0
_SMALLEST_MASS = 1e-20


@dataclass(frozen=True, eq=False)
class Pairwise:
    """A kernel on the rows of all items: K = T S, the filter scaled at either end.

    Attributes:
        lattice: of flat points, `[items * points]`.
        axis_neighbors: of the lattice.
        compatibility: see `Kernel`; a matrix is symmetric.
        source_scale: `[rows, 1]`, multiplies values before the filter; None for one.
        target_scale: `[rows, 1]`, multiplies results.
    """

    lattice: Lattice
    axis_neighbors: Tensor
    compatibility: float | Tensor
    source_scale: Tensor | None
    target_scale: Tensor | None

    def cost(self, marginals: Tensor, both_ways: bool = False) -> Tensor:
        """K Q mu, the expected cost of each label: `[rows, labels]`.

        Costs are applied on the lattice, which has fewer rows; scales are part of the weights.
        """
        source, rows = self.lattice.source, self.lattice.num_lattice_points
        check_rows(3 * rows + marginals.shape[0], marginals.shape[1], marginals)
        splatted = operators.splat(marginals, source.vertices, self._source_weights, rows)
        blurred = _blur(splatted, self.axis_neighbors, both_ways)
        return operators.slice(_apply(self.compatibility, blurred), source.vertices, self._target_weights)

    @cached_property
    def _source_weights(self) -> Tensor:
        barycentric = self.lattice.source.barycentric
        return barycentric if self.source_scale is None else barycentric * self.source_scale

    @cached_property
    def _target_weights(self) -> Tensor:
        barycentric = self.lattice.source.barycentric / blur_gain(self.lattice.dimension)
        return barycentric if self.target_scale is None else barycentric * self.target_scale

    def tables(self, both_ways: bool) -> PairwiseTables:
        """What a backend needs to add -K Q mu to logits; a constant for all labels of a point is left out."""
        source, gain = self.lattice.source, blur_gain(self.lattice.dimension)
        compatibility = self.compatibility
        if isinstance(compatibility, Tensor) and compatibility.dim() > 0:
            costs: Tensor | None = torch.diag(compatibility) if compatibility.dim() == 1 else compatibility
            factor = -1 / gain
        else:
            # w (1 - I) is -w I but for such a constant
            costs, factor = (
                None,
                float(compatibility.detach() if isinstance(compatibility, Tensor) else compatibility) / gain,
            )
        before = None if self.source_scale is None else self.source_scale.squeeze(1)
        after = None if self.target_scale is None else self.target_scale.squeeze(1)
        corners = source.vertices, source.barycentric
        return PairwiseTables(*corners, self.axis_neighbors, before, after, costs, factor, both_ways)

    def bound(self) -> Tensor:
        """A diagonal `[rows, 1]` that bounds K filtered both ways: its rows' sums, which are not negative."""
        ones = self.lattice.source.barycentric.new_ones(self.lattice.source.num_points, 1)
        sums = _filter(ones, self.lattice, self.axis_neighbors, both_ways=True)
        for scale in (self.source_scale, self.target_scale):
            sums = sums if scale is None else sums * scale
        return sums.detach()


def prepare(kernel: Kernel, lattice: Lattice | None, layout: Layout) -> Pairwise:
    """The kernel on the rows of `layout`; its mass is filtered here, once."""
    if lattice is None:
        lattice = kernel.build_lattice()
    elif lattice.source.num_points not in (layout.points, layout.num_items * layout.points):
        raise InputError(f"a lattice of {lattice.source.num_points} points does not fit a kernel of {layout.points}")
    if lattice.axis_neighbors is None or lattice.target is not lattice.source:
        raise InputError("the lattice of a kernel is that of Kernel.build_lattice, with separable=True and no targets")
    lattice, axis_neighbors = _flatten(lattice, lattice.axis_neighbors, layout)
    compatibility = kernel.compatibility
    if isinstance(compatibility, Tensor):
        compatibility = compatibility.to(lattice.device, lattice.dtype)
        if compatibility.dim() == 2:
            compatibility = (compatibility + compatibility.T) / 2
    source_scale = target_scale = None
    if kernel.normalization != "none":
        ones = lattice.source.barycentric.new_ones(lattice.source.num_points, 1)
        mass = _filter(ones, lattice, axis_neighbors) + _SMALLEST_MASS
        if kernel.normalization == "symmetric":
            source_scale = target_scale = mass.rsqrt()
        elif kernel.normalization == "before":
            source_scale = mass.reciprocal()
        else:
            target_scale = mass.reciprocal()
    return Pairwise(lattice, axis_neighbors, compatibility, source_scale, target_scale)


def _filter(rows: Tensor, lattice: Lattice, axis_neighbors: Tensor, both_ways: bool = False) -> Tensor:
    """The Gaussian without normalization."""
    blurred = _blur(splat(rows, lattice), axis_neighbors, both_ways)
    return slice(blurred / blur_gain(lattice.dimension), lattice)


def _blur(lattice_values: Tensor, axis_neighbors: Tensor, both_ways: bool) -> Tensor:
    """Forward, or the mean of forward and reverse, which is symmetric as neither is."""
    blurred = operators.blur(lattice_values, axis_neighbors, False)
    if both_ways:
        blurred = (blurred + operators.blur(lattice_values, axis_neighbors, True)) / 2
    return blurred


def _apply(compatibility: float | Tensor, filtered: Tensor) -> Tensor:
    """`filtered [lattice_points, labels]` times the matrix of costs."""
    if not isinstance(compatibility, Tensor) or compatibility.dim() == 0:
        return compatibility * (filtered.sum(dim=1, keepdim=True) - filtered)
    return filtered * compatibility if compatibility.dim() == 1 else filtered @ compatibility


def _flatten(lattice: Lattice, axis_neighbors: Tensor, layout: Layout) -> tuple[Lattice, Tensor]:
    """The lattice under the points of all items, one after another: repeated where they share it."""
    if lattice.batch_size is not None:
        return replace(lattice, batch_size=None), axis_neighbors
    items, source = layout.num_items, lattice.source
    if items == 1:
        return lattice, axis_neighbors
    rows = source.num_lattice_points
    first = torch.arange(items, dtype=torch.int32, device=lattice.device)
    vertices = (source.vertices + rows * first[:, None, None]).flatten(0, 1)
    neighbors = axis_neighbors[:, None] + rows * first[:, None]
    neighbors = torch.where(axis_neighbors[:, None] < 0, -1, neighbors).flatten(1)
    keys = torch.cat([first.repeat_interleave(rows)[:, None], source.keys[:, 1:].repeat(items, 1)], dim=1)
    repeated = replace(
        source, keys=keys, vertices=vertices, barycentric=source.barycentric.repeat(items, 1), table=source.table[:0]
    )
    return replace(lattice, source=repeated, target=repeated, axis_neighbors=neighbors), neighbors
