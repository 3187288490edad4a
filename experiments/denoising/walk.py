"""Neighbors on the lattice as the authors' released layer finds them.

`LatticeApproximateTraversal` of bilateralNN walks to a neighbor from lattice point to lattice point, one step at a time
and along the axes in order. A neighbor behind a missing point is lost. This package looks every neighbor up by its key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

import permutohedral as ph


def walk_to_neighbors(lattice: ph.Lattice) -> Tensor:
    """Return a table like `lattice.neighbors`, without the neighbors that the walk does not reach.

    The source and target points must be the same.
    """
    taps = lattice.neighborhood.taps.tolist()
    axes = range(lattice.dimension + 1)
    steps = [lattice.neighbors[taps.index([int(axis == other) for other in axes])].long() for axis in axes]

    def walk(place: Tensor, axis: int, has_zero: bool) -> Iterator[Tensor]:
        if axis == len(steps):
            yield place
            return
        # the smallest coordinate of a tap is zero
        reach = lattice.neighborhood_size if has_zero or axis < lattice.dimension else 0
        for count in range(reach + 1):
            yield from walk(place, axis + 1, has_zero or count == 0)
            place = torch.where(place >= 0, steps[axis][place], -1)

    start = torch.arange(lattice.num_lattice_points, device=lattice.device)
    return torch.stack(list(walk(start, 0, False))).to(lattice.neighbors.dtype)


class WalkingConv(ph.nn.PermutohedralConv):
    """Permutohedral convolution, and its normalization, over the neighbors that the walk reaches."""

    def build_lattice(
        self, features: Tensor, target_features: Tensor | None = None, **batches: Tensor | None
    ) -> ph.Lattice:
        """Build the lattice of the layer and walk to the neighbors."""
        lattice = super().build_lattice(features, target_features, **batches)
        return replace(lattice, neighbors=walk_to_neighbors(lattice))
