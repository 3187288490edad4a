"""What a backend may offer to upsample and solve along a guide, and what that reads: grids, lattices and equations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

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


class GuidedPrimitives(Protocol):
    """The functions, each of which a backend may have or not."""

    def mix_rows(self, rows: Tensor, vertices: Tensor, weights: Tensor, planes: bool) -> Tensor:
        """`slice` for few rows of many channels and weights of which many are zero, which are passed over.

        Args:
            rows: `[rows, channels]`.
            vertices: int32 `[points, terms]`: which rows each point is a sum of.
            weights: `[points, terms]`.
            planes: the result is `[channels, points]`, else `[points, channels]`.
        """
        ...

    def sum_cells(
        self, vertices: Tensor, barycentric: Tensor, coarse: tuple[int, ...], fine: tuple[int, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The slice of all points, followed by the mean over cells, as sums of the lattice points under each cell.

        Args:
            vertices: int32 `[items * points, corners]`, the points of an item those of the fine grid.
            barycentric: likewise.
            coarse: extents of the grid of cells, as `torch.nn.functional.adaptive_avg_pool2d` has them.
            fine: of the grid of points, of as many axes, at most three.

        Returns:
            int32 `[rows]`, the cell of each row; int32 `[rows, terms]` and `[rows, terms]`, lattice points and weights.
            The sum of a row, added to those of the other rows of its cell, is the mean.
        """
        ...

    def cell_features(self, guide: Tensor, grid: CoarseGrid, sigmas: Sequence[float]) -> Tensor | None:
        """Position of each coarse sample and the guide there, in standard deviations.

        Args:
            guide: float `[..., channels, *fine]`.
            grid: coarse and fine.
            sigmas: one for each axis, then one for each channel.

        Returns:
            `[..., coarse samples, axes + channels]`; None where torch is to compute it.
        """
        ...

    def upsample_rows(
        self, rows: Tensor, tables: GaussianTables, grid: CoarseGrid, least_mass: float, steps: int, planes: bool
    ) -> Tensor | None:
        """Normalized Gaussian means of coarse samples at fine ones, to which what they lack is added in the same way.

        Args:
            rows: `[items * coarse samples, channels]`.
            tables: whose sources are these samples and whose targets are all fine ones.
            grid: coarse and fine.
            least_mass: where less than this share of a sample arrives, it is interpolated linearly, the more the less.
            steps: how often what the result lacks on the coarse grid is added.
            planes: one channel after another in memory.

        Returns:
            `[items, channels, fine samples]` if planes, else `[items * fine samples, channels]`; None where it is to be
            composed.
        """
        ...

    def upsample_map(
        self,
        rows: Tensor,
        guide: Tensor,
        grid: CoarseGrid,
        sigmas: Sequence[float],
        least_mass: float,
        steps: int,
        planes: bool,
    ) -> Tensor | None:
        """`upsample_rows` on the lattice of `cell_features` of coarse and of fine samples.

        None where the lattice is to be built first, or where a value is not finite.
        """
        ...

    def add_beside(self, rows: Tensor, axis_neighbors: Tensor) -> Tensor | None:
        """For each lattice point the sum of those beside it along the axes, and itself as often as these may be."""
        ...

    def balance(
        self, scale: Tensor, wanted: Tensor, axis_neighbors: Tensor, steps: int
    ) -> tuple[Tensor, Tensor] | None:
        """`scale = (scale * wanted / add_beside(scale)).sqrt()` so many times; and scale * add_beside(scale)."""
        ...

    def spread_cells(self, rows: Tensor, cells: SeenCells, num_lattice_points: int) -> Tensor | None:
        """The transpose of the means of cells of interpolated lattice values: `[items * coarse samples, channels]` to
        `[lattice points, channels]`; None where it is to be composed.
        """
        ...

    def solve_on_lattice(
        self, right: Tensor, start: Tensor, tables: SolverTables, iterations: int, tolerance: float
    ) -> Tensor | None:
        """Preconditioned conjugate gradients, see `conjugate_gradients`; a channel ends as soon as it is solved.

        Args:
            right, start: `[lattice points, channels]`.
            tables: of the matrix.
            iterations: at most so many.
            tolerance: of the residual, as a share of the right side.

        Returns:
            The solution; None where it is to be composed.
        """
        ...
