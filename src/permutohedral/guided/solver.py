"""The fast bilateral solver (Barron and Poole 2016) on the permutohedral lattice, with derivatives.

The smoothness term is bistochastic. With B the sum over a lattice point and its axis neighbors, n is chosen so that
W = diag(n) B diag(n) has row sums close to the number of points at each lattice point. The roughness of y is
y^T (diag(W 1) - W) y, which is zero for constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, repeat, starmap
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.features import Sigma, ValueRange
from permutohedral.filters.images import Data, ImageFormat, as_given, is_integer, optional_tensor, to_tensor
from permutohedral.filters.normalization import check_separable
from permutohedral.filters.units import warn_of_four_channels
from permutohedral.guided.grids import Grids, rows_of_samples
from permutohedral.guided.maps import (
    MapLayout,
    check_space,
    default_guide,
    features_of,
    in_wider_dtype,
    known_values,
    map_layout,
    weights_like,
)
from permutohedral.lattice.lattice import Lattice, build_lattice
from permutohedral.lattice.memory import check_rows
from permutohedral.lattice.tensors import check_count, check_tensor
from permutohedral.ops.backend import Backend
from permutohedral.ops.binding import bind
from permutohedral.ops.conjugate_gradients import ROUNDING_ERRORS, attach, conjugate_residuals
from permutohedral.ops.simplices import Simplices
from permutohedral.ops.smoothness import AxisNeighbors, SmoothEquations, Smoothness, largest_magnitudes
from permutohedral.ops.tracing import (
    is_recorded,
    is_traced,
    is_transformed,
    surely_all,
    wants_gradient,
    with_storable_results,
)

Observe = Literal["pixels", "cells"] | Tensor | NDArray[Any]

# they meet the row sums within a few percent, which is enough: constants are smooth for any n
_BALANCING_STEPS = 5
# numbers that torch computes in the calling thread
_SINGLE_THREADED = 1 << 15


@with_storable_results
def smoothness_on(lattice: Lattice) -> Smoothness:
    """Return the roughness of signals on a lattice that was built with `separable=True`."""
    source, ops = lattice.source, bind(lattice.source.barycentric)
    ones = _map_rows(lambda rows: torch.ones_like(rows[:, :1]), source.barycentric.detach())
    density = ops.splat(ones, source.vertices, source.barycentric, source.num_lattice_points)
    neighbors = AxisNeighbors(check_separable(lattice), density.dtype)
    # vertices that points touch with weight zero must not matter, nor be divided by
    least = torch.finfo(density.dtype).eps ** 2
    wanted = _map_rows(lambda density: density.clamp_min(least), density)
    scale = _map_rows(lambda density, wanted: torch.where(density > 0, 1.0, wanted), density, wanted)
    for _ in range(_BALANCING_STEPS):
        sums = ops.sum_axis_neighbors(scale, neighbors)
        # not sqrt, for which torch starts its threads from 2,048 numbers on
        scale = _map_rows(lambda scale, wanted, sums: (sums / (scale * wanted)).rsqrt(), scale, wanted, sums)
    return Smoothness(neighbors, scale, _map_rows(torch.mul, scale, ops.sum_axis_neighbors(scale, neighbors)))


def _map_rows(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Return `function(*tensors)`, where each row of the result is computed from these rows of the tensors.

    On a CPU in blocks so small that torch computes them in the calling thread: on a busy machine its threads would wait
    for each other in each of many small operations.
    """
    if tensors[0].device.type != "cpu" or is_traced() or wants_gradient(*tensors):
        return function(*tensors)
    rows = max(map(len, tensors))
    # the result may have the columns of all of them
    block = max(_SINGLE_THREADED // max(sum(each.shape[1] for each in tensors), 1), 1)
    if rows <= block:
        return function(*tensors)
    # [1, channels] are the same for all rows
    parts = zip(*(each.split(block) if len(each) > 1 else repeat(each) for each in tensors), strict=False)
    first = function(*next(parts))
    result = first.new_empty(rows, first.shape[1])
    for place, part in zip(result.split(block), chain([first], starmap(function, parts)), strict=True):
        place.copy_(part)
    return result


class GuideSolver:
    """Bilateral solver for one guide and any number of targets, on a lattice that is built once.

    The result x interpolates the lattice values y that minimize
    sum_k c_k (x_k - t_k)^2 + smoothness * sum_ij W_ij (y_i - y_j)^2 / 2, where W joins neighboring lattice points. It
    is near the data t where the sample_weight c is large, and smooth except at the edges of the guide.

    Args:
        guide: float `[channels, *space]`, or `[..., channels, *space]` with one guide per item.
        sigma_space: bandwidth over positions, in pixels; one number, or one for each axis.
        sigma_color: bandwidth over the guide, in units of its values; one number, or one for each channel; default as
            in `upsample`.
        spatial_dims: 2 for images, 3 for volumes and videos, 1 for signals.
    """

    def __init__(
        self, guide: Data, sigma_space: Sigma = 8.0, sigma_color: Sigma | None = None, *, spatial_dims: int = 2
    ) -> None:
        picture = to_tensor(guide)
        if sigma_color is None:
            picture, sigma_color = default_guide(picture, spatial_dims)
        self.space = check_space(picture, spatial_dims)
        self._guide, self._sigmas = picture, (sigma_space, sigma_color)
        self._items = tuple(picture.shape[: -spatial_dims - 1])
        if self._items:
            # each item has its own lattice and its own iterations
            guides = picture.flatten(0, -spatial_dims - 2)
            self._solvers = [GuideSolver(each, *self._sigmas, spatial_dims=spatial_dims) for each in guides]
            return
        features = features_of(picture, sigma_space, sigma_color, spatial_dims)
        self.lattice = build_lattice(features, neighborhood_size=0, separable=True)
        self._smoothness = smoothness_on(self.lattice)

    def __call__(
        self,
        target: Data,
        sample_weight: Data | None = None,
        *,
        smoothness: float | Tensor = 0.3,
        observe: Observe = "pixels",
        num_iterations: int = 25,
        tolerance: float = 1e-4,
        start: Data | None = None,
    ) -> Data:
        """Solve for one target; see `bilateral_solver`."""
        check_count("num_iterations", num_iterations)
        if not tolerance >= 0:
            raise InputError(f"tolerance must not be negative, got {tolerance}")
        strength = _check_smoothness(smoothness)
        seen = observe if isinstance(observe, str) else to_tensor(observe)
        data = to_tensor(target), optional_tensor(sample_weight), optional_tensor(start)
        solved = self._solve(*data, strength, seen, (num_iterations, tolerance))
        return as_given(solved.to(data[0].dtype), target)

    def _solve(
        self,
        target: Tensor,
        sample_weight: Tensor | None,
        start: Tensor | None,
        strength: float | Tensor,
        observe: str | Tensor,
        until: tuple[int, float],
    ) -> Tensor:
        """Return the solution in the dtype of the lattice, after `until` iterations or at that tolerance."""
        where, axes, layout = self._where(target, observe)
        self._check_start(start, layout)
        if self._items:
            items: list[Any] = [target.flatten(0, -axes - 2), *2 * [[None] * len(self._solvers)]]
            if sample_weight is not None:
                items[1] = weights_like(sample_weight, target, axes).reshape(-1, *target.shape[-axes:])
            if start is not None:
                items[2] = start.flatten(0, -axes - 2)
            each = zip(self._solvers, *items, strict=True)
            results = [one._solve(*data, strength, observe, until) for one, *data in each]
            shape = (*layout.leading, layout.channels, *self.space)
            return torch.stack(results).view(shape) if results else target.new_zeros(shape)
        if in_wider_dtype(self._guide, target).dtype == torch.float64 != self.lattice.dtype:
            return self._in_float64._solve(target, sample_weight, start, strength, observe, until)
        if is_transformed():
            raise InputError(
                "target: torch.func and dual tensors do not go through a solver; take gradients with backward() or "
                "torch.autograd.grad, and batch axes instead of torch.vmap"
            )
        return self._minimize(self._data(target, sample_weight, where, layout), strength, until, start)

    @cached_property
    def _in_float64(self) -> GuideSolver:
        return GuideSolver(self._guide.double(), *self._sigmas, spatial_dims=len(self.space))

    def _minimize(
        self, data: _Data, strength: float | Tensor, until: tuple[int, float], start: Tensor | None
    ) -> Tensor:
        # only ratios of weights and smoothness matter; squares of tiny or huge ones would underflow or overflow
        unit = data.weights.detach().amax(dim=0, keepdim=True)
        data = replace(data, weights=_map_rows(torch.div, data.weights, unit))
        strength = torch.as_tensor(strength, dtype=unit.dtype, device=unit.device) / unit
        strength = strength.clamp_max(1 / torch.finfo(unit.dtype).eps)
        lattice, offset = self.lattice, data.mean()
        # the solution is computed without the mean, which keeps digits
        data = replace(data, values=_map_rows(torch.sub, data.values, offset))
        exact = _system(lattice.source, self._smoothness.detach(), data.detach(), strength.detach())
        # means of cells are computed of all pixels
        pixels = 2 * math.prod(self.space) if isinstance(data.where, Grids) else 0
        check_rows(6 * lattice.num_lattice_points + pixels, data.values.shape[1], data.values)
        with torch.no_grad():
            begin = exact.blurred() if start is None else self._on_lattice(start, data.layout) - offset
            solution = exact.solve(begin, *until)
        if wants_gradient(data.values, data.weights, strength, lattice.source.barycentric):
            recorded = _system(lattice.source, self._smoothness, data, strength)
            solution = attach(
                solution, recorded.residual(solution), lambda gradient: exact.solve_transposed(gradient, *until)
            )
        ops = bind(solution, lattice.source.barycentric)
        rows = ops.slice(solution, lattice.source.vertices, lattice.source.barycentric)
        rows = _map_rows(torch.add, rows, offset)
        return data.layout.from_rows(rows, self.space).contiguous()

    def _check_start(self, start: Tensor | None, layout: MapLayout) -> None:
        if start is None:
            return
        check_tensor("start", start)
        expected, device = [*layout.leading, layout.channels, *self.space], self._guide.device
        if list(start.shape) != expected or start.device != device:
            raise InputError(
                f"start must be {expected} on {device}, got {list(start.shape)} on {start.device}, both with the "
                "channels before the axes of space"
            )
        if not is_recorded() and not surely_all(start.isfinite()):
            raise InputError("start must be finite, got NaN or infinity; leave it out, or fill it")

    def _on_lattice(self, start: Tensor, layout: MapLayout) -> Tensor:
        """Return lattice values whose interpolation is close to `start`."""
        rows, source = layout.to_rows(start.detach().to(self.lattice.dtype)), self.lattice.source
        values = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
        barycentric = source.barycentric.detach()
        sums = bind(values, barycentric).splat(values, source.vertices, barycentric, source.num_lattice_points)
        return sums[:, :-1] / sums[:, -1:].clamp_min(torch.finfo(rows.dtype).tiny)

    def _where(self, target: Tensor, observe: str | Tensor) -> tuple[Grids | Tensor | None, int, MapLayout]:
        """Return where the samples of a target lie (see `_Data`), its number of spatial axes, and its layout."""
        axes = len(self.space)
        where: Grids | Tensor | None = None
        if isinstance(observe, Tensor):
            if observe.dim() != 2 or observe.shape[1] != axes or observe.device != target.device:
                raise InputError(
                    f"observe must be positions [points, {axes}] on {target.device}, got {list(observe.shape)} on "
                    f"{observe.device}"
                )
            if self._items:
                raise InputError("observe: positions belong to one image; pass a guide without batch axes")
            edges = torch.tensor(self.space, device=observe.device) - 0.5
            if not is_recorded() and not surely_all((observe >= -0.5) & (observe <= edges)):
                raise InputError(
                    f"observe: positions, in the order of the axes, must lie in the image of {list(self.space)} "
                    "pixels; leave out the others"
                )
            # the guide separates the two sides of an edge only at pixels
            where, axes = rows_of_samples(observe.detach().round().long(), self.space), 1
        layout = map_layout("target", target, self._items, self._guide.device, axes)
        seen = tuple(target.shape[-axes:])
        if isinstance(where, Tensor) and seen != (len(where),):
            raise InputError(
                f"target has {seen[0]} values but observe {len(where)} positions; pass [..., channels, {len(where)}], "
                f"one for each position, or [..., {len(where)}, channels] with channels_last=True"
            )
        if isinstance(observe, Tensor):
            return where, axes, layout
        if observe == "cells":
            return Grids(seen, self.space, "area"), axes, layout
        if observe != "pixels":
            raise InputError(f"observe must be 'pixels', 'cells' or positions [points, {axes}], got {observe!r}")
        if seen != self.space:
            raise InputError(
                f"target has {list(seen)} samples but the guide {list(self.space)}; if they are means of cells, "
                "pass observe='cells'"
            )
        return None, axes, layout

    def _data(
        self,
        target: Tensor,
        sample_weight: Tensor | None,
        where: Grids | Tensor | None,
        layout: MapLayout,
    ) -> _Data:
        axes = 1 if isinstance(where, Tensor) else len(self.space)
        values, weights = known_values(target.to(self.lattice.dtype), sample_weight, axes)
        if weights is None:
            weights = values.new_ones(()).expand(*values.shape[: -axes - 1], 1, *values.shape[-axes:])
        if isinstance(where, Grids):
            # a cell counts as much as its pixels
            weights = weights * math.prod(where.ratios)
        return _Data(layout.to_rows(values), layout.to_rows(weights.expand_as(values)), where, layout)


def _check_smoothness(smoothness: float | Tensor) -> float | Tensor:
    """Return the smoothness, which must be one finite number that is not negative."""
    if not isinstance(smoothness, Tensor):
        if not (smoothness >= 0 and math.isfinite(smoothness)):
            raise InputError(f"smoothness must be finite and not negative, got {smoothness}")
        return smoothness
    if smoothness.numel() != 1 or not smoothness.is_floating_point():
        raise InputError(
            f"smoothness must be one floating number, got {smoothness.dtype} of shape {list(smoothness.shape)}"
        )
    smoothness = smoothness.reshape(())
    fits = (smoothness >= 0) & (smoothness < torch.inf)
    if not is_recorded() and not surely_all(fits):
        raise InputError(f"smoothness must be finite and not negative, got {float(smoothness)}")
    return smoothness


@dataclass(frozen=True, eq=False)
class _Data:
    """Known values and how much each counts, `[rows, channels]`, and where they lie.

    `where` is None if they lie at all pixels, the rows of some pixels, or grids whose coarse samples are means.
    """

    values: Tensor
    weights: Tensor
    where: Grids | Tensor | None
    layout: MapLayout

    def mean(self) -> Tensor:
        """Return the weighted mean of each channel, `[1, channels]`: the result where no data reach."""
        weighted = _map_rows(torch.mul, self.values, self.weights)
        return weighted.sum(dim=0, keepdim=True) / self.weights.sum(dim=0, keepdim=True)

    def detach(self) -> _Data:
        return replace(self, values=self.values.detach(), weights=self.weights.detach())


@dataclass(frozen=True, eq=False)
class _System:
    """The equations A y = b on the lattice.

    Attributes:
        right: b, `[lattice points, channels]`.
        matrix: A.
    """

    right: Tensor
    matrix: SmoothEquations

    def residual(self, rows: Tensor) -> Tensor:
        """Return A y - b, with derivatives."""
        smoothness = self.matrix.smoothness
        ops = bind(rows, smoothness.scale, self.matrix.weights, self.matrix.strength)
        return self.matrix.product(ops, rows) - self.right

    def solve(self, start: Tensor, iterations: int, tolerance: float) -> Tensor:
        return bind(start).solve_smooth(self.matrix, self.right, start, iterations, tolerance)

    def solve_transposed(self, gradient: Tensor, iterations: int, tolerance: float) -> Tensor:
        """Return A^-1 times a gradient, restricted to the lattice points that data reach.

        A is singular on the others, which keep the value they start from: they have no derivative.
        """
        matrix, smoothness, ops = self.matrix, self.matrix.smoothness, bind(gradient)
        reached = matrix.data > 0
        for _ in range(iterations):
            if surely_all(reached):
                break
            wider = ops.sum_axis_neighbors(reached.to(gradient.dtype), smoothness.neighbors) > 0
            if surely_all(wider == reached):
                break
            reached = wider
        if not surely_all(reached):
            gradient = torch.where(reached, gradient, 0.0)
            mask = reached.to(gradient.dtype)
            mask = mask[:, :1] if surely_all(reached == reached[:, :1]) else mask
            matrix = replace(matrix, smoothness=replace(smoothness, scale=smoothness.scale * mask))
        if matrix.cells is None:
            return ops.solve_smooth(matrix, gradient, torch.zeros_like(gradient), iterations, tolerance)
        # the means of cells do not determine the values of several components of the lattice in one cell
        unit, product = largest_magnitudes(gradient), partial(matrix.product, ops)
        return unit * conjugate_residuals(product, gradient / unit, matrix.diagonal, iterations, tolerance)

    def blurred(self) -> Tensor:
        """Return the data averaged over three lattice steps, to start from; zero where they do not reach."""
        ops = bind(self.right)
        numbers = _map_rows(lambda *both: torch.cat(both, dim=1), self.right, self.matrix.data)
        for _ in range(3):
            numbers = ops.sum_axis_neighbors(numbers, self.matrix.smoothness.neighbors)
        sums, mass = numbers[:, : self.right.shape[1]], numbers[:, self.right.shape[1] :]
        return _map_rows(lambda sums, mass: sums / torch.where(mass > 0, mass, 1.0), sums, mass)


def _system(simplices: Simplices, smoothness: Smoothness, data: _Data, strength: Tensor) -> _System:
    """Return the equations of the least sum of squares, differentiable in all of their parts.

    Data at samples are lumped: each lattice point has its share of them, as in a grid without interpolation. Means of
    cells are not lumped: they constrain sums of lattice values.
    """
    barycentric = simplices.barycentric if smoothness.mass.requires_grad else simplices.barycentric.detach()
    vertices, where, cells = simplices.vertices, data.where, None
    both = _map_rows(lambda values, weights: torch.cat([values * weights, weights], dim=1), data.values, data.weights)
    ops = bind(both, barycentric)
    if isinstance(where, Grids):
        cells = CellMeans(vertices, barycentric, simplices.num_lattice_points, where)
        sums = cells.gather(ops, both)
    else:
        if where is not None:
            vertices, barycentric = vertices.index_select(0, where), barycentric.index_select(0, where)
        sums = ops.splat(both, vertices, barycentric, simplices.num_lattice_points)
    right, lumped = (_map_rows(Tensor.contiguous, each) for each in sums.chunk(2, dim=1))
    # the difference in the diagonal has rounding errors of the size of `rounding`
    numbers, around = torch.finfo(lumped.dtype), len(smoothness.neighbors.rows)

    def diagonal_of(mass: Tensor, scale: Tensor, lumped: Tensor, strength: Tensor) -> Tensor:
        rounding = (strength * mass * ROUNDING_ERRORS * numbers.eps).clamp_min(numbers.eps**2)
        return torch.maximum(strength * (mass - scale.square() * around) + lumped, rounding)

    diagonal = _map_rows(diagonal_of, smoothness.mass, smoothness.scale, lumped, strength).detach()
    return _System(right, SmoothEquations(smoothness, strength, lumped, diagonal, data.weights, cells))


@dataclass(frozen=True, eq=False)
class CellMeans:
    """Means of the cells of `grids`; see `Cells`."""

    vertices: Tensor
    barycentric: Tensor
    num_lattice_points: int
    grids: Grids

    @property
    def coarse(self) -> tuple[int, ...]:
        return self.grids.coarse

    @property
    def fine(self) -> tuple[int, ...]:
        return self.grids.fine

    def observe(self, ops: Backend, rows: Tensor) -> Tensor:
        points = ops.slice(rows, self.vertices, self.barycentric)
        return self.grids.observe(points.T.unflatten(1, self.fine)).flatten(1).T

    def gather(self, ops: Backend, rows: Tensor) -> Tensor:
        maps = self.grids.spread(rows.T.unflatten(1, self.coarse))
        return ops.splat(maps.flatten(1).T, self.vertices, self.barycentric, self.num_lattice_points)


def bilateral_solver(
    target: Data,
    guide: Data,
    *,
    sample_weight: Data | None = None,
    smoothness: float | Tensor = 0.3,
    sigma_space: Sigma = 8.0,
    sigma_color: Sigma | None = None,
    observe: Observe = "pixels",
    num_iterations: int = 25,
    tolerance: float = 1e-4,
    start: Data | None = None,
    spatial_dims: int = 2,
    channels_last: bool = False,
    value_range: ValueRange | None = None,
) -> Data:
    """Smooth a target except at the edges of a guide: the fast bilateral solver (Barron & Poole, 2016).

    Gradients flow to target, sample_weight, smoothness and guide by one more solve. They are those of the converged
    solution, so let it converge where they must be exact. Values that the data do not determine, such as of several
    isolated colors in one cell, count as constants.

    Args:
        target: tensor or NumPy array `[..., channels, *space]`, floats or integers in any range. NaN is
            unknown, and filled. Targets without batch axes of the guide share its lattice.
        guide: tensor or array `[guide channels, *space]`, or with the batch axes of the target.
        sample_weight: weight of each sample, `[..., *space]`, not negative; zero is unknown.
        smoothness: weight of the smoothness, compared with data of sample_weight one; a tensor may require gradients.
        sigma_space: bandwidth over positions, in pixels; one number, or one for each axis.
        sigma_color: bandwidth over the guide, in units of its values, for integers as in `bilateral_filter`; default as
            in `upsample`.
        observe: "pixels" if the target has the pixels of the guide; "cells" if it is coarser, and its samples are means
            of cells; or positions `[points, axes]` in pixels, (y, x) in images, with a target
            `[..., channels, points]`.
        num_iterations: maximum number of conjugate gradient iterations.
        tolerance: the iterations stop when the residual is this share of the right side.
        start: a result to start from, for instance of the previous frame.
        spatial_dims: number of spatial axes: 1 for signals, 2 for images, 3 for volumes and videos.
        channels_last: target, start and guide are `[..., *space, channels]`, a target at positions
            `[..., points, channels]`.
        value_range: the values of the guide that count as 0 and 1, see `bilateral_filter`.

    Returns:
        `[..., channels, *space]`, with the size of the guide, of the kind and dtype of the target.

    >>> import torch, permutohedral as ph
    >>> guide = torch.rand(3, 24, 32)
    >>> depth = torch.where(torch.rand(1, 24, 32) < 0.1, 7.0, torch.nan)
    >>> bool(torch.allclose(ph.bilateral_solver(depth, guide), torch.tensor(7.0)))
    True
    """
    layout = ImageFormat(spatial_dims, channels_last, value_range)
    # values at positions have one axis
    seen = layout if isinstance(observe, str) else ImageFormat(1, channels_last)
    data = seen.read("target", target)
    edges = in_wider_dtype(layout.read("guide", guide, is_guide=True), data)
    solver = GuideSolver(edges, sigma_space, sigma_color, spatial_dims=spatial_dims)
    warn_of_four_channels("guide", edges.shape[-spatial_dims - 1], is_integer(guide))
    solved = solver(
        data,
        optional_tensor(sample_weight),
        smoothness=smoothness,
        observe=observe if isinstance(observe, str) else to_tensor(observe),
        num_iterations=num_iterations,
        tolerance=tolerance,
        start=None if start is None else layout.read("start", start),
    )
    return layout.write(solved, target)
