"""The bilateral solver (Barron and Poole 2016) on the permutohedral lattice, with derivatives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.features import Sigma
from permutohedral.guided.arrays import Data, as_given, optional_tensor, to_tensor
from permutohedral.guided.conjugate_gradients import Product, attach, conjugate_gradients
from permutohedral.guided.grids import Grids, rows_of_samples
from permutohedral.guided.layout import Layout, check_space, features_of, known_values, layout_of
from permutohedral.guided.smoothness import Smoothness, smoothness_on
from permutohedral.lattice import build_lattice
from permutohedral.memory import check_rows
from permutohedral.ops import fused_guided, operators
from permutohedral.ops.guided_primitives import SeenCells, SolverTables
from permutohedral.ops.tracing import is_transformed, is_unreadable, surely_all, wants_gradient
from permutohedral.simplices import Simplices
from permutohedral.tensors import check_count, check_tensor

Observe = Literal["pixels", "cells"] | Tensor | NDArray[Any]


class BilateralSolver:
    """The solver for one guide, for any number of targets: it holds the lattice.

    The result x is the interpolation of lattice values y with the least sum of squares
    sum_k c_k (x_k - t_k)^2 + smoothness * sum_ij W_ij (y_i - y_j)^2 / 2, where W joins lattice points beside each
    other: it is near the data t where the confidence c is large, and smooth but for the edges of the guide.

    Args:
        guide: float `[channels, *space]`, or `[..., channels, *space]` with a guide for each item.
        sigma_space: how far apart samples may be and still agree, in samples; one number, or one for each axis.
        sigma_range: how different the guide may be and they still agree; one number, or one for each channel.
        spatial_axes: 2 for pictures, 3 for volumes and videos, 1 for signals.

    >>> import permutohedral as ph
    >>> solver = ph.BilateralSolver(torch.rand(3, 24, 32), sigma_space=4.0)
    >>> solver(torch.rand(1, 24, 32)).shape, solver(torch.rand(5, 3, 4), observe="cells").shape
    (torch.Size([1, 24, 32]), torch.Size([5, 24, 32]))
    """

    def __init__(
        self, guide: Data, sigma_space: Sigma = 8.0, sigma_range: Sigma = 0.1, *, spatial_axes: int = 2
    ) -> None:
        picture = to_tensor(guide)
        self.space = check_space(picture, spatial_axes)
        self._items = tuple(picture.shape[: -spatial_axes - 1])
        features = features_of(picture, sigma_space, sigma_range, spatial_axes)
        self.lattice = build_lattice(features, neighborhood_size=0, separable=True)
        self._smoothness = smoothness_on(self.lattice)

    def __call__(
        self,
        target: Data,
        confidence: Data | None = None,
        smoothness: float | Tensor = 0.3,
        *,
        observe: Observe = "pixels",
        iterations: int = 25,
        tolerance: float = 1e-4,
        start: Data | None = None,
    ) -> Data:
        """See `bilateral_solver`."""
        check_count("iterations", iterations)
        if not tolerance >= 0:
            raise InputError(f"tolerance must not be negative, got {tolerance}")
        if not isinstance(smoothness, Tensor) and not (smoothness >= 0 and math.isfinite(smoothness)):
            raise InputError(f"smoothness must be finite and not negative, got {smoothness}")
        seen = observe if isinstance(observe, str) else to_tensor(observe)
        data, layout = self._data(to_tensor(target), optional_tensor(confidence), seen)
        solved = self._solve(data, layout, smoothness, (iterations, tolerance), optional_tensor(start))
        return as_given(solved.to(to_tensor(target).dtype), target)

    def _solve(
        self,
        data: _Data,
        layout: Layout,
        smoothness: float | Tensor,
        until: tuple[int, float],
        start: Tensor | None,
    ) -> Tensor:
        """The solution in the dtype of the lattice, after so many iterations or at this tolerance."""
        if is_transformed():
            raise InputError(
                "torch.func and dual tensors do not go through a solver: take gradients with backward() or "
                "torch.autograd.grad, and batch axes instead of torch.vmap"
            )
        lattice, offset = self.lattice, data.offset()
        data = data.minus(offset)
        exact = _system(lattice.source, self._smoothness.detach(), data.detach(), _detached(smoothness))
        check_rows(6 * lattice.num_lattice_points, data.values.shape[1], data.values)
        with torch.no_grad():
            begin = exact.blurred() if start is None else self._on_lattice(start, layout) - exact.at_points(offset)
            solution = exact.solve(exact.right, begin, *until)
        if wants_gradient(data.values, data.weights, smoothness, lattice.source.barycentric):
            recorded = _system(lattice.source, self._smoothness, data, smoothness)
            residual = recorded.product(solution) - recorded.right
            zeros = torch.zeros_like(solution)
            solution = attach(solution, residual, lambda b: exact.solve(b, zeros, *until))
        rows = operators.slice(solution, lattice.source.vertices, lattice.source.barycentric)
        return layout.from_rows((layout.by_guide(rows) + offset[:, None]).flatten(0, 1), self.space).contiguous()

    def _on_lattice(self, start: Tensor, layout: Layout) -> Tensor:
        """Lattice values whose interpolation is near to `start`."""
        check_tensor("start", start)
        device = self.lattice.device
        if start.shape != (*layout.leading, layout.channels, *self.space) or start.device != device:
            expected = [*layout.leading, layout.channels, *self.space]
            raise InputError(f"start must be {expected} on {device}, got {list(start.shape)} on {start.device}")
        if not is_unreadable() and not surely_all(start.isfinite()):
            raise InputError("start must be finite; leave it out, or fill what is not")
        rows, source = layout.to_rows(start.detach().to(self.lattice.dtype)), self.lattice.source
        values = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
        sums = operators.splat(values, source.vertices, source.barycentric.detach(), source.num_lattice_points)
        return sums[:, :-1] / sums[:, -1:].clamp_min(torch.finfo(rows.dtype).tiny)

    def _data(self, target: Tensor, confidence: Tensor | None, observe: str | Tensor) -> tuple[_Data, Layout]:
        axes = len(self.space)
        where: Grids | Tensor | None = None
        if isinstance(observe, Tensor):
            if observe.dim() != 2 or observe.shape[1] != axes or observe.device != target.device:
                raise InputError(
                    f"observe must be positions [points, {axes}] on {target.device}, got {list(observe.shape)} on "
                    f"{observe.device}"
                )
            if self._items:
                raise InputError("positions are those of one picture: give a guide without batch axes")
            edges = torch.tensor(self.space, device=observe.device) - 0.5
            if not is_unreadable() and not surely_all((observe >= -0.5) & (observe <= edges)):
                raise InputError(
                    f"positions must lie in the picture of {list(self.space)} pixels; leave out the others"
                )
            # the guide tells apart what lies on either side of an edge, but only at pixels
            where, axes = rows_of_samples(observe.detach().round().long(), self.space), 1
        layout = layout_of("target", target, self._items, self.lattice.device, axes)
        seen = tuple(target.shape[-axes:])
        if isinstance(where, Tensor) and seen != (len(where),):
            raise InputError(f"target must be [..., channels, {len(where)}], one for each position, got {list(seen)}")
        if observe == "cells" and not isinstance(observe, Tensor):
            where = Grids(seen, self.space, "area")
        elif not isinstance(observe, Tensor) and observe != "pixels":
            raise InputError(f"observe must be 'pixels', 'cells' or positions [points, {axes}], got {observe!r}")
        elif where is None and seen != self.space:
            raise InputError(
                f"the target has {list(seen)} samples but the guide {list(self.space)}; if they are means of cells, "
                "pass observe='cells'"
            )
        values, weights = known_values(target.to(self.lattice.dtype), confidence, axes)
        if weights is None:
            weights = values.new_ones(()).expand(*values.shape[: -axes - 1], 1, *seen)
        if isinstance(where, Grids):
            # a cell counts as much as its pixels
            weights = weights * math.prod(where.ratios)
        return _Data(layout.to_rows(values), layout.to_rows(weights.expand_as(values)), where, layout), layout


@dataclass(frozen=True, eq=False)
class _Data:
    """What is known: values and how much each counts, `[rows, channels]`, and where.

    `where` is None for every sample, rows of samples, or grids, of which the coarse one holds means.
    """

    values: Tensor
    weights: Tensor
    where: Grids | Tensor | None
    layout: Layout

    def offset(self) -> Tensor:
        """Means `[guides, channels]`, which the solution is computed without: it keeps digits.

        Items with guides of their own have means of their own, which are also theirs where no data reach.
        """
        sums = self.layout.by_guide(self.values * self.weights).sum(dim=1)
        return (sums / self.layout.by_guide(self.weights).sum(dim=1)).detach()

    def minus(self, offset: Tensor) -> _Data:
        values = (self.layout.by_guide(self.values) - offset[:, None]).flatten(0, 1)
        return _Data(values, self.weights, self.where, self.layout)

    def detach(self) -> _Data:
        return _Data(self.values.detach(), self.weights.detach(), self.where, self.layout)


@dataclass(frozen=True, eq=False)
class _System:
    """A y = b on the lattice.

    `data` is the weight of the data at each lattice point `[lattice points, channels]`, `items` the guide that each
    belongs to.
    """

    product: Product
    right: Tensor
    diagonal: Tensor
    data: Tensor
    smoothness: Smoothness
    strength: float | Tensor
    seen: _Seen
    items: Tensor
    guides: int

    def at_points(self, numbers: Tensor) -> Tensor:
        """Numbers of guides, `[guides, channels]`, at their lattice points."""
        return numbers if self.guides == 1 else numbers.index_select(0, self.items)

    def solve(self, right: Tensor, start: Tensor, iterations: int, tolerance: float) -> Tensor:
        """Lattice values, each item in units of its own: numbers of one must not be rounding errors of another."""
        unit = self.at_points(self._largest(right))
        return unit * self._solve(right / unit, start / unit, iterations, tolerance)

    def _largest(self, rows: Tensor) -> Tensor:
        """Of each guide and channel the largest amount, `[guides, channels]`; one where there is none."""
        if rows.numel() == 0:
            return rows.new_ones(self.guides, rows.shape[1])
        if self.guides == 1:
            largest = rows.abs().amax(dim=0, keepdim=True)
        else:
            places = self.items.long()[:, None].expand_as(rows)
            largest = rows.new_zeros(self.guides, rows.shape[1]).scatter_reduce(0, places, rows.abs(), "amax")
        return torch.where(largest > 0, largest, 1.0)

    def _solve(self, right: Tensor, start: Tensor, iterations: int, tolerance: float) -> Tensor:
        solution = None
        if self.seen.observe is None or self.seen.cells is not None:
            lumped = self.data if self.seen.observe is None else None
            scale, mass = self.strength**0.5 * self.smoothness.scale, self.strength * self.smoothness.mass
            axes = self.smoothness.beside.axes
            tables = SolverTables(axes, scale, mass, lumped, self.seen.cells, self.diagonal)
            solution = fused_guided.solve_on_lattice(right, start, tables, iterations, tolerance)
        if solution is not None:
            return solution
        return conjugate_gradients(self.product, right, self.diagonal, start, iterations, tolerance)

    def blurred(self) -> Tensor:
        """The data averaged over a few steps of the lattice, to start from; zero where they do not reach."""
        numbers = torch.cat([self.right, self.data], dim=1)
        for _ in range(3):
            numbers = self.smoothness.beside.add(numbers)
        sums, mass = numbers[:, : self.right.shape[1]], numbers[:, self.right.shape[1] :]
        return sums / torch.where(mass > 0, mass, 1.0)


def _system(simplices: Simplices, smoothness: Smoothness, data: _Data, strength: float | Tensor) -> _System:
    """The equations whose solution has the least sum of squares, differentiable in all of their parts.

    Data at samples are lumped: each lattice point has its share of them, as in a grid without interpolation. Means of
    cells are not: that a mean is right, whatever its parts, is what they are for.
    """
    barycentric = simplices.barycentric if smoothness.mass.requires_grad else simplices.barycentric.detach()
    seen = _see(simplices, barycentric, data)
    weighted = data.values * data.weights
    if seen.observe is None:
        # both at once, channel by channel in memory, as those of pictures are
        both = seen.gather(torch.cat([weighted.T, data.weights.T]).T)
        right, lumped = (each.contiguous() for each in both.chunk(2, dim=1))
    else:
        right, lumped = seen.gather(weighted), seen.gather(data.weights)
    # positive where there is neither data nor a neighbor
    smallest = torch.finfo(lumped.dtype).eps ** 2
    diagonal = (strength * smoothness.diagonal() + lumped).detach().clamp_min(smallest)

    def product(rows: Tensor) -> Tensor:
        rough = strength * smoothness.roughen(rows)
        if seen.observe is None:
            return rough + lumped * rows
        return rough + seen.gather(data.weights * seen.observe(rows))

    items = simplices.keys[:, 0]
    return _System(product, right, diagonal, lumped, smoothness, strength, seen, items, data.layout.guides)


@dataclass(frozen=True, eq=False)
class _Seen:
    """What is seen of lattice values, and its transpose.

    Attributes:
        gather: from rows of data to the lattice.
        observe: means of cells; None where data are at samples.
        cells: the same as tables; None also where these cells are summed beforehand.
    """

    gather: Product
    observe: Product | None
    cells: SeenCells | None = None


def _see(simplices: Simplices, barycentric: Tensor, data: _Data) -> _Seen:
    vertices, number, where, layout = simplices.vertices, simplices.num_lattice_points, data.where, data.layout
    if not isinstance(where, Grids):
        if where is not None:
            vertices, barycentric = vertices.index_select(0, where), barycentric.index_select(0, where)
        return _Seen(lambda rows: operators.splat(rows, vertices, barycentric, number), None)
    grids, tables = where, fused_guided.sum_cells(vertices, barycentric, where.coarse, where.fine)
    if tables is not None:
        cells, points, weights = tables
        ones = weights.new_ones(len(cells), 1)

        def gather(rows: Tensor) -> Tensor:
            return operators.splat(rows.index_select(0, cells), points, weights, number)

        def observe(rows: Tensor) -> Tensor:
            # which adds up faster than torch's index_add
            return operators.splat(operators.slice(rows, points, weights), cells[:, None], ones, len(data.values))

        return _Seen(gather, observe)
    means = SeenCells(vertices, barycentric, grids.table, data.weights)

    def spread(rows: Tensor) -> Tensor:
        found = fused_guided.spread_cells(rows, means, number)
        if found is not None:
            return found
        maps = grids.spread(layout.from_rows(rows, grids.coarse))
        return operators.splat(layout.to_rows(maps), vertices, barycentric, number)

    def average(rows: Tensor) -> Tensor:
        maps = layout.from_rows(operators.slice(rows, vertices, barycentric), grids.fine)
        return layout.to_rows(grids.observe(maps))

    return _Seen(spread, average, means)


def _detached(number: float | Tensor) -> float | Tensor:
    return number.detach() if isinstance(number, Tensor) else number


def bilateral_solver(  # noqa: PLR0913 (data and guide, how near to each, and how the equations are solved)
    target: Data,
    guide: Data,
    confidence: Data | None = None,
    smoothness: float | Tensor = 0.3,
    sigma_space: Sigma = 8.0,
    sigma_range: Sigma = 0.1,
    *,
    observe: Observe = "pixels",
    iterations: int = 25,
    tolerance: float = 1e-4,
    start: Data | None = None,
    spatial_axes: int = 2,
) -> Data:
    """What is near the target where that is known, and smooth but for the edges of the guide.

    Takes and gives tensors, or NumPy arrays.

    Gradients flow to target, confidence, smoothness and guide, by one more solve; they are those of the converged
    solution, so let it converge where they must be exact.

    Args:
        target: float `[..., channels, *space]` in any range. NaN is unknown, and filled.
        guide: float `[guide channels, *space]`, or with the batch axes of the target.
        confidence: how much each sample counts, `[..., *space]`, not negative; zero is unknown.
        smoothness: how much smoothness counts against data of confidence one; a tensor may require gradients.
        sigma_space: see `BilateralSolver`.
        sigma_range: see `BilateralSolver`.
        observe: "pixels" if the target is at those of the guide; "cells" if it is coarser, and its samples are means of
            cells; or positions `[points, axes]` in pixels, all in the picture, with a target `[..., channels, points]`.
        iterations: of the conjugate gradients, at most.
        tolerance: they end when the residual is this share of the right side.
        start: a result to start from, for instance of the frame before; it lets them end earlier.
        spatial_axes: 2 for pictures, 3 for volumes and videos, 1 for signals.

    Returns:
        `[..., channels, *space]`, of the size of the guide and the dtype of the target.

    >>> import permutohedral as ph
    >>> guide = torch.rand(3, 24, 32)
    >>> depth = torch.where(torch.rand(1, 24, 32) < 0.1, 7.0, torch.nan)
    >>> bool(torch.allclose(ph.bilateral_solver(depth, guide), torch.tensor(7.0)))
    True
    """
    solver = BilateralSolver(guide, sigma_space, sigma_range, spatial_axes=spatial_axes)
    return solver(
        target,
        confidence,
        smoothness,
        observe=observe,
        iterations=iterations,
        tolerance=tolerance,
        start=start,
    )
