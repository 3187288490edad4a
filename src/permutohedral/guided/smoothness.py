"""How little a signal on the lattice may change between lattice points beside each other.

With B the sum over a lattice point and its neighbors along the axes, n is found so that n B n has the row sums of the
splatted ones: W = diag(n) B diag(n) is symmetric, and its rows sum up to the number of points at each lattice point
(Barron and Poole call this bistochastic). The roughness of y is y^T (diag(W 1) - W) y, zero for constants.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from permutohedral.checks import splat_density
from permutohedral.filters.normalization import check_separable
from permutohedral.lattice import Lattice
from permutohedral.ops import fused_guided, operators

# row sums of the points are met to a few percent, which is all that is needed: constants are smooth whatever n is
_BALANCING_STEPS = 5


@dataclass(frozen=True, eq=False)
class Beside:
    """B of a lattice.

    Attributes:
        axes: int32 `[2 (d + 1), lattice points]`, those beside each lattice point along the axes, -1 where missing.
        dtype: of the values.
    """

    axes: Tensor
    dtype: torch.dtype

    @property
    def number(self) -> int:
        """How many may be beside a lattice point, which counts as much as all of them."""
        return self.axes.shape[0]

    def add(self, rows: Tensor) -> Tensor:
        """B y for y `[lattice points, channels]`."""
        sums = fused_guided.add_beside(rows, self.axes)
        # a sum over few others, which `slice` computes faster than a convolution of one channel
        return operators.slice(rows, *self._table) if sums is None else sums

    @cached_property
    def _table(self) -> tuple[Tensor, Tensor]:
        """int32 `[lattice points, 1 + number]`, a lattice point and those beside it, and how often each counts."""
        beside, number = self.axes.shape
        neighbors = self.axes.new_empty(number, 1 + beside)
        neighbors[:, 0] = torch.arange(number, dtype=neighbors.dtype, device=neighbors.device)
        neighbors[:, 1:] = self.axes.T
        # one that is missing does not count, whatever stands for it
        counts = (neighbors >= 0).to(self.dtype)
        counts[:, 0] = beside
        return neighbors.clamp_min_(0), counts


@dataclass(frozen=True, eq=False)
class Smoothness:
    """The roughness of signals on a lattice.

    Attributes:
        beside: B.
        scale: n, `[lattice points, 1]`.
        mass: W 1, `[lattice points, 1]`.
    """

    beside: Beside
    scale: Tensor
    mass: Tensor

    def roughen(self, rows: Tensor) -> Tensor:
        """(diag(W 1) - W) y for y `[lattice points, channels]`."""
        return self.mass * rows - self.scale * self.beside.add(self.scale * rows)

    def diagonal(self) -> Tensor:
        """Of diag(W 1) - W."""
        return self.mass - self.scale.square() * self.beside.number

    def detach(self) -> Smoothness:
        """The same without derivatives."""
        return replace(self, scale=self.scale.detach(), mass=self.mass.detach())


def smoothness_on(lattice: Lattice) -> Smoothness:
    """The roughness of signals on a lattice that was built with `separable=True`."""
    density = splat_density(lattice)
    beside = Beside(check_separable(lattice), density.dtype)
    # a corner that its points touch with weight zero must not matter, nor be divided by
    wanted = density.clamp_min(torch.finfo(density.dtype).eps ** 2)
    scale = torch.where(density > 0, 1.0, wanted)
    balanced = fused_guided.balance(scale, wanted, beside.axes, _BALANCING_STEPS)
    if balanced is not None:
        return Smoothness(beside, *balanced)
    for _ in range(_BALANCING_STEPS):
        scale = (scale * wanted / beside.add(scale)).sqrt()
    return Smoothness(beside, scale, scale * beside.add(scale))
