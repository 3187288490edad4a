"""Smooth signals on a lattice: the equations of the bilateral solver, and how they are solved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from permutohedral.ops.conjugate_gradients import conjugate_gradients
from permutohedral.ops.tracing import is_recorded

if TYPE_CHECKING:
    from permutohedral.ops.backend import Backend


@dataclass(frozen=True, eq=False)
class AxisNeighbors:
    """The axis neighbors of lattice points.

    Attributes:
        rows: int32 `[2 (d + 1), lattice points]`, -1 where missing.
        dtype: of values on the lattice.
    """

    rows: Tensor
    dtype: torch.dtype
    _tables: list[tuple[Tensor, Tensor]] = field(default_factory=list, init=False, repr=False)

    @property
    def table(self) -> tuple[Tensor, Tensor]:
        """Each lattice point and its neighbors, int32 `[lattice points, 1 + 2 (d + 1)]`, and how often each counts."""
        # not a cached_property, whose lock in Python 3.11 torch.compile cannot read
        if not self._tables:
            around, number = self.rows.shape
            own = torch.arange(number, dtype=self.rows.dtype, device=self.rows.device)
            neighbors = torch.cat([own[:, None], self.rows.T], dim=1)
            weights = (neighbors >= 0).to(self.dtype)
            weights[:, 0] = around
            self._tables.append((neighbors.clamp_min_(0), weights))
        return self._tables[0]


@dataclass(frozen=True, eq=False)
class Smoothness:
    """The roughness of signals on a lattice: y^T (diag(W 1) - W) y with W = diag(n) B diag(n).

    B is `Backend.sum_axis_neighbors`.

    Attributes:
        neighbors: the axis neighbors.
        scale: n, `[lattice points, 1]`, or `[lattice points, channels]` where channels differ.
        mass: W 1, `[lattice points, 1]`.
    """

    neighbors: AxisNeighbors
    scale: Tensor
    mass: Tensor

    def apply_laplacian(self, ops: Backend, rows: Tensor) -> Tensor:
        """Return (diag(W 1) - W) y for y `[lattice points, channels]`."""
        return self.mass * rows - self.scale * ops.sum_axis_neighbors(self.scale * rows, self.neighbors)

    def detach(self) -> Smoothness:
        """Return the same without derivatives."""
        return replace(self, scale=self.scale.detach(), mass=self.mass.detach())


class Cells(Protocol):
    """The means of interpolated lattice values over the cells of a coarse grid."""

    @property
    def coarse(self) -> tuple[int, ...]:
        """Extents of the grid of cells, as `torch.nn.functional.adaptive_avg_pool2d` makes them."""

    @property
    def fine(self) -> tuple[int, ...]:
        """Extents of the grid of points."""

    @property
    def vertices(self) -> Tensor:
        """Vertices of the points, `[points, d + 1]`."""

    @property
    def barycentric(self) -> Tensor:
        """Barycentric weights of the points, `[points, d + 1]`."""

    def observe(self, ops: Backend, rows: Tensor) -> Tensor:
        """Return the means, `[lattice points, channels]` to `[cells, channels]`."""

    def gather(self, ops: Backend, rows: Tensor) -> Tensor:
        """Apply the adjoint of `observe`."""


@dataclass(frozen=True, eq=False)
class SmoothEquations:
    """The matrix A of the least sum of squares: strength * Laplacian + data.

    Attributes:
        smoothness: of the lattice.
        strength: of the smoothness, compared with the weights, `[1, channels]`.
        data: weight of the data at each lattice point, `[lattice points, channels]`.
        diagonal: about the diagonal of A, positive, `[lattice points, channels]`.
        weights: of each sample, `[samples, channels]`.
        cells: whose means are the data; None if the data lie at lattice points.
    """

    smoothness: Smoothness
    strength: Tensor
    data: Tensor
    diagonal: Tensor
    weights: Tensor
    cells: Cells | None

    def product(self, ops: Backend, rows: Tensor) -> Tensor:
        """Return A y for y `[lattice points, channels]`."""
        rough = self.strength * self.smoothness.apply_laplacian(ops, rows)
        if self.cells is None:
            return rough + self.data * rows
        return rough + self.cells.gather(ops, self.weights * self.cells.observe(ops, rows))


def solve_smooth(
    ops: Backend, equations: SmoothEquations, right: Tensor, start: Tensor, iterations: int, tolerance: float
) -> Tensor:
    """Solve for lattice values, each channel in its own units: squares of large numbers overflow."""
    if not is_recorded() and right.numel() == 0:
        return start
    unit = largest_magnitudes(right)
    system = right / unit, equations.diagonal, start / unit
    return unit * conjugate_gradients(lambda rows: equations.product(ops, rows), *system, iterations, tolerance)


def largest_magnitudes(rows: Tensor) -> Tensor:
    """Return the largest magnitude of each channel `[1, channels]`, one where it is zero."""
    largest = rows.abs().amax(dim=0, keepdim=True)
    return torch.where(largest > 0, largest, 1.0)
