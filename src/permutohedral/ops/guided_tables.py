"""What the functions of a backend read that upsample and solve along a guide: grids, lattices and equations."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

# of the separable Gaussian: vertices and weights of the sources, neighbors along the axes, vertices and weights of the
# targets
GaussianTables = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class CoarseGrid(NamedTuple):
    """A coarse grid over a fine one.

    Attributes:
        coarse, fine: extents, of one to three axes.
        point: whether coarse samples are the fine ones at floor(i N / n); else they are means of cells.
    """

    coarse: tuple[int, ...]
    fine: tuple[int, ...]
    point: bool

    @property
    def cells(self) -> int:
        """Coarse samples."""
        return math.prod(self.coarse)

    @property
    def samples(self) -> int:
        """Fine ones."""
        return math.prod(self.fine)


class SeenCells(NamedTuple):
    """Data that are means of cells.

    Attributes:
        vertices, barycentric: the corners of the fine samples of all items, `[points, d + 1]`.
        grid: whose coarse samples are means.
        weights: how much each counts, `[items * coarse samples, channels]`.
    """

    vertices: Tensor
    barycentric: Tensor
    grid: CoarseGrid
    weights: Tensor


class SolverTables(NamedTuple):
    """The matrix of the bilateral solver: what makes smooth, and data.

    Attributes:
        axis_neighbors: see `blur`.
        scale, mass: `[lattice points, 1]`. Smooth makes diag(mass) - diag(scale) B diag(scale), where B is the sum of
            `add_beside`.
        lumped: data at lattice points, a diagonal `[lattice points, channels]`; None for none.
        cells: data that are means; None for none.
        diagonal: about that of the matrix, positive, `[lattice points, channels]`: the preconditioner.
    """

    axis_neighbors: Tensor
    scale: Tensor
    mass: Tensor
    lumped: Tensor | None
    cells: SeenCells | None
    diagonal: Tensor
