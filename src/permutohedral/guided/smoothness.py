"""How little a signal on the lattice may change between lattice points beside each other.

With B the sum over a lattice point and its neighbors along the axes, n is found so that n B n has the row sums of the
splatted ones: W = diag(n) B diag(n) is symmetric, and its rows sum up to the number of points at each lattice point
(Barron and Poole call this bistochastic). The roughness of y is y^T (diag(W 1) - W) y, zero for constants.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from permutohedral.checks import splat_density
from permutohedral.filters.normalization import check_separable
from permutohedral.lattice import Lattice
from permutohedral.ops import operators

# row sums of the points are met to a few percent, which is all that is needed: constants are smooth whatever n is
_BALANCING_STEPS = 5


@dataclass(frozen=True, eq=False)
class Smoothness:
    """The roughness of signals on a lattice.

    Attributes:
        neighbors: int32 `[lattice points, 2 d + 3]`: each lattice point itself, and those beside it along the axes.
        counts: how often each counts in B, zero where it is missing.
        scale: n, `[lattice points, 1]`.
        mass: W 1, `[lattice points, 1]`.
    """

    neighbors: Tensor
    counts: Tensor
    scale: Tensor
    mass: Tensor

    def roughen(self, rows: Tensor) -> Tensor:
        """(diag(W 1) - W) y for y `[lattice points, channels]`."""
        return self.mass * rows - self.scale * self.blur(self.scale * rows)

    def blur(self, rows: Tensor) -> Tensor:
        """B y: a sum over few others, which `slice` computes faster than a convolution of one channel."""
        return operators.slice(rows, self.neighbors, self.counts)

    def diagonal(self) -> Tensor:
        """Of diag(W 1) - W."""
        return self.mass - self.scale.square() * self.counts[:, :1]

    def detach(self) -> Smoothness:
        """The same without derivatives."""
        return replace(self, scale=self.scale.detach(), mass=self.mass.detach())


def smoothness_on(lattice: Lattice) -> Smoothness:
    """The roughness of signals on a lattice that was built with `separable=True`."""
    axes = check_separable(lattice)
    number, beside = axes.shape[1], axes.shape[0]
    neighbors = axes.new_empty(number, 1 + beside)
    neighbors[:, 0] = torch.arange(number, dtype=axes.dtype, device=axes.device)
    neighbors[:, 1:] = axes.T
    density = splat_density(lattice)
    # a lattice point counts as much as all that are beside it; one that is missing does not, whatever stands for it
    counts = (neighbors >= 0).to(density.dtype)
    counts[:, 0] = beside
    neighbors.clamp_min_(0)
    # a corner that its points touch with weight zero must not matter, nor be divided by
    wanted = density.clamp_min(torch.finfo(density.dtype).eps ** 2)
    scale = torch.where(density > 0, 1.0, wanted)
    for _ in range(_BALANCING_STEPS):
        scale = (scale * wanted / operators.slice(scale, neighbors, counts)).sqrt()
    return Smoothness(neighbors, counts, scale, scale * operators.slice(scale, neighbors, counts))
