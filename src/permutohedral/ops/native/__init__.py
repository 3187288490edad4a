"""The primitives on the CPU, by the compiled core (`native/`): the same bits on any number of threads.

This module allocates the results; `bridge.py` passes tensors to the core. The number of threads is
`torch.get_num_threads()`, at most `PERMUTOHEDRAL_NUM_THREADS`. Values of 16 bits are widened to float32 and rounded
once at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.ops.backend import Backend
from permutohedral.ops.contract import (
    ACCUMULATION,
    SMALLEST_MASS,
    ColorGridTables,
    FieldPlan,
    FilterTables,
    Needed,
    PairwiseTables,
    Saved,
    accumulation_dtype,
    blur_gain,
    energies_error,
    key_limit,
    number_of,
    range_error,
    transpose_weight,
)
from permutohedral.ops.native import bridge
from permutohedral.ops.native.bridge import (
    CPU,
    _native,
    contiguous_for_core,
    core,
    from_dlpack,
    key_core,
    run_in_place,
    run_kernel,
    written,
)
from permutohedral.ops.smoothness import AxisNeighbors, SmoothEquations

# rows that `_sum_rows` adds one after another
_ROWS_TOGETHER = 512
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def check_dimension(dimension: int) -> None:
    """Raise if the core does not take features of this dimension."""
    if dimension > _native.MAX_DIMENSION:
        raise InputError(
            f"features must be [points, dimension] with at most {_native.MAX_DIMENSION} dimensions on the native "
            f"backend, got {dimension}; transpose features [dimension, points] with features.mT, or run "
            'permutohedral.backends.set_default("reference"), which takes any'
        )


@contextmanager
def _as_input_error() -> Iterator[None]:
    """Convert the core's error for more lattice points than int32 can number."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from error


def _number(index: Callable[..., Any], keys: Tensor, each: int) -> tuple[Tensor, Tensor, Tensor]:
    """Assign numbers to distinct keys, `each` of them for each row of `keys`."""
    rows, columns = keys.shape
    check_dimension(columns - 1)
    numbers = bridge.empty((rows, each), torch.int32)
    if rows == 0:
        return keys.clone(), numbers, torch.empty(0, dtype=torch.int64, device=CPU)
    with _as_input_error():
        unique_keys, table = map(from_dlpack, index(keys, written(numbers), bridge.threads(rows * each)))
    return unique_keys, numbers, table


def _table_of(keys: Tensor) -> Tensor:
    """Return the lookup table of distinct keys in any order: that of the sorted keys, then the place of each."""
    _, inverse, table = _number(key_core.index_keys, keys, 1)
    order = bridge.empty((keys.shape[0] + keys.shape[0] % 2,), torch.int32)
    order[inverse[:, 0].long()] = torch.arange(keys.shape[0], dtype=torch.int32, device=CPU)
    return torch.cat([table, order.view(torch.int64)])


def _pairwise_arguments(kernels: Sequence[PairwiseTables]) -> list[Any]:
    return [
        (
            (each.vertices, each.barycentric),
            each.axis_neighbors,
            float(each.source_power),
            float(each.target_power),
            each.costs,
            number_of(each.factor),
            each.both_ways,
        )
        for each in kernels
    ]


def _sum_rows(rows: Tensor) -> Tensor:
    """Sum contiguous `[rows, channels]` to `[channels]` on the calling thread: torch's idle threads busy-wait."""
    if rows.dtype not in (torch.float32, torch.float64):
        # unknown to NumPy
        return rows.sum(dim=0)
    array = rows.numpy()
    while (many := len(array) // _ROWS_TOGETHER) > 1:
        # long rows are added fast, and few of them with little rounding
        first = array[: many * _ROWS_TOGETHER].reshape(_ROWS_TOGETHER, -1).sum(axis=0)
        array = np.concatenate([first.reshape(many, -1), array[many * _ROWS_TOGETHER :]])
    return torch.from_numpy(array.sum(axis=0))


class Native(Backend):
    """The primitives on the CPU, and functions that the core computes in one call."""

    name = "native"
    has_color_grid = True

    def index_points(self, features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        points, d = features.shape
        check_dimension(d)
        features = contiguous_for_core(features)
        vertices = bridge.empty((points, d + 1), torch.int32)
        barycentric = bridge.empty((points, d + 1), features.dtype)
        if points == 0:
            return vertices.new_empty((0, d + 1)), vertices, barycentric, torch.empty(0, dtype=torch.int64, device=CPU)
        limit, items = key_limit(features.dtype), None if batch is None else batch.to(torch.int32)
        threads = bridge.threads(points * (d + 1))
        with _as_input_error():
            found = core(features.dtype).index_points(
                (features, items), limit, written(vertices), written(barycentric), threads
            )
        if found is None:
            raise range_error(features, limit)
        keys, table = map(from_dlpack, found)
        return keys, vertices, barycentric, table

    def index_keys(self, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        unique_keys, inverse, table = _number(key_core.index_keys, keys, 1)
        return unique_keys, inverse[:, 0], table

    def find_neighbors(
        self,
        source_keys: Tensor,
        table: Tensor,
        target_keys: Tensor,
        offsets: Tensor,
        opposite: Tensor | None = None,
    ) -> Tensor:
        targets, filter_size = target_keys.shape[0], offsets.shape[0]
        neighbors = bridge.empty((filter_size, targets), torch.int32)
        if source_keys.shape[0] == 0:
            return neighbors.fill_(-1)
        if neighbors.numel() == 0:
            return neighbors
        if table.numel() == 0:
            table = _table_of(source_keys)
        threads = bridge.threads(neighbors.numel())
        key_core.find_neighbors(table, target_keys, offsets, opposite, written(neighbors), threads)
        return neighbors

    def transpose_neighbors(self, neighbors: Tensor, opposite: Tensor, num_source: int) -> Tensor:
        transposed = bridge.empty((neighbors.shape[0], num_source), torch.int32)
        if neighbors.shape[1] == 0:
            return transposed.fill_(-1)
        if transposed.numel() > 0:
            key_core.transpose_neighbors(neighbors, opposite, written(transposed), bridge.threads(neighbors.numel()))
        return transposed

    def coarsen_lattice(
        self, keys: Tensor, table: Tensor, vertices: Tensor, barycentric: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        coarse_keys, parents, table = _number(key_core.index_parents, keys, 2)
        out = bridge.empty(vertices.shape, torch.int32), bridge.empty(vertices.shape, barycentric.dtype)
        threads = bridge.threads(vertices.numel() * vertices.shape[1])
        results = map(written, out)
        core(barycentric.dtype).coarsen_simplices((vertices, barycentric), parents, coarse_keys, *results, threads)
        return coarse_keys, parents, table, *out

    def splat(self, values: Tensor, vertices: Tensor, barycentric: Tensor, num_lattice_points: int) -> Tensor:
        shape = num_lattice_points, values.shape[1]
        return run_kernel("splat", shape, vertices.numel() * shape[1], values, (vertices, barycentric))

    def slice(self, lattice_values: Tensor, vertices: Tensor, barycentric: Tensor) -> Tensor:
        shape = vertices.shape[0], lattice_values.shape[1]
        return run_kernel("slice", shape, vertices.numel() * shape[1], lattice_values, (vertices, barycentric))

    def barycentric_gradient(self, values: Tensor, lattice_values: Tensor, vertices: Tensor) -> Tensor:
        wide, work = values.to(accumulation_dtype(values.dtype)), vertices.numel() * values.shape[1]
        return run_kernel("barycentric_gradient", vertices.shape, work, wide, lattice_values, (vertices, None))

    def convolve(
        self, lattice_values: Tensor, weight: Tensor, neighbors: Tensor, groups: int, *reverse: Tensor | None
    ) -> Tensor:
        shape, work = (neighbors.shape[1], weight.shape[2]), neighbors.shape[1] * weight.numel()
        return run_kernel("convolve", shape, work, lattice_values, weight, neighbors, groups)

    def convolve_weight_gradient(
        self, lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int, *reverse: Tensor | None
    ) -> Tensor:
        shape = neighbors.shape[0], lattice_values.shape[1] // groups, output_gradient.shape[1]
        work = neighbors.numel() * shape[1] * shape[2]
        return run_kernel("convolve_weight_gradient", shape, work, lattice_values, output_gradient, neighbors, groups)

    def blur(self, lattice_values: Tensor, axis_neighbors: Tensor, reverse: bool) -> Tensor:
        work = axis_neighbors.numel() * lattice_values.shape[1]
        return run_kernel("blur", lattice_values.shape, work, lattice_values, axis_neighbors, reverse)

    def filter_gaussian(
        self,
        values: Tensor,
        vertices: Tensor,
        barycentric: Tensor,
        axis_neighbors: Tensor,
        target_vertices: Tensor,
        target_barycentric: Tensor,
    ) -> Tensor:
        shape = target_vertices.shape[0], values.shape[1]
        work = (vertices.numel() + target_vertices.numel()) * shape[1]
        # the blur is not divided by its gain, and neither is the mass: their quotient is the same
        added_mass = SMALLEST_MASS * blur_gain(vertices.shape[1] - 1)
        tables = (vertices, barycentric), axis_neighbors, (target_vertices, target_barycentric)
        return run_kernel("filter_gaussian", shape, work, values, *tables, added_mass)

    def filter_learned(
        self, values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables
    ) -> tuple[Tensor, Saved]:
        # each step rounds values of 16 bits, as if it were called by itself; the division by density rounds once
        rounded, density = values.dtype, None
        source, target, neighbors, groups, _, _, by_density = tables
        dtype = ACCUMULATION.get(rounded, rounded)
        corners = source.vertices, source.barycentric, source.keys.shape[0]
        if by_density:
            lattice_values = self.splat(values if dtype is rounded else values.to(dtype), *corners)
            # by NumPy: on a busy machine torch's threads would wait for each other
            ones = np.empty((values.shape[0], 1), _NUMPY[dtype])
            ones.fill(1)
            density = self.splat(torch.from_numpy(ones), *corners)[:, 0]
            lattice_values = run_in_place("divide_rows", lattice_values, density)
            lattice_values = lattice_values if dtype is rounded else lattice_values.to(rounded)
        else:
            lattice_values = self.splat(values, *corners)
        convolved = self.convolve(lattice_values, weight, neighbors, groups)
        output = self.slice(convolved, target.vertices, target.barycentric)
        if bias is not None:
            output = run_in_place("add_to_rows", output, bias)
        return output, (lattice_values, density)

    def filter_learned_backward(
        self, gradient: Tensor, inputs: Saved, saved: Saved, needed: Needed, tables: FilterTables
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        bias_gradient = _sum_rows(contiguous_for_core(gradient)) if needed[2] else None
        if not (needed[0] or needed[1]):
            return None, None, bias_gradient
        (lattice_values, density), weight = saved, inputs[1]
        source, target, neighbors, groups, reverse, opposite, _ = tables
        at_targets = self.splat(gradient, target.vertices, target.barycentric, neighbors.shape[1])
        weight_gradient = self.convolve_weight_gradient(lattice_values, at_targets, *tables[2:6]) if needed[1] else None
        if not needed[0]:
            return None, weight_gradient, bias_gradient
        if reverse is None:
            reverse = self.transpose_neighbors(neighbors, opposite, source.num_lattice_points)
        at_sources = self.convolve(at_targets, transpose_weight(weight, opposite, groups), reverse, groups)
        if density is not None:
            at_sources = run_in_place("divide_rows", at_sources.to(density.dtype), density)
        values_gradient = self.slice(at_sources, source.vertices, source.barycentric)
        return values_gradient.to(gradient.dtype), weight_gradient, bias_gradient

    def picture_features(
        self,
        guide: Tensor,
        sigma_space: Sequence[float | Tensor],
        sigma_color: Sequence[float] | Tensor,
        origin: Sequence[int],
        shift: float,
    ) -> Tensor:
        if isinstance(sigma_space[0], Tensor) or isinstance(sigma_color, Tensor):
            given = guide, sigma_space, sigma_color, origin, shift
            return self.decline("the bandwidths are tensors", super().picture_features, *given)
        dtype, axes = accumulation_dtype(guide.dtype), len(origin)
        leading, (channels, *space) = guide.shape[: -axes - 1], guide.shape[-axes - 1 :]
        count, samples = math.prod(leading), math.prod(space)
        features = bridge.empty((count * samples, axes + channels), dtype)
        if features.numel() > 0:
            last = guide.movedim(-axes - 1, -1)
            channels_last = last.is_contiguous()
            images = contiguous_for_core(last if channels_last else guide, dtype).view(-1)
            units = space, list(origin), list(sigma_space), list(sigma_color), shift
            core(dtype).picture_features(
                images, channels_last, *units, written(features), bridge.threads(features.numel())
            )
        return features.view(*leading, samples, axes + channels)

    def embed_gradient(self, features: Tensor, barycentric_gradient: Tensor) -> Tensor:
        check_dimension(features.shape[1])
        gradient = barycentric_gradient.to(features.dtype)
        return run_kernel("embed_gradient", features.shape, features.numel(), gradient, (features, None))

    def sum_neighbors(self, values: Tensor, features: Tensor, target_features: Tensor, reach: float) -> Tensor:
        shape = target_features.shape[0], values.shape[1]
        points = (features, None), (target_features, None)
        return run_kernel("sum_neighbors", shape, features.shape[0] * shape[0], values, *points, reach)

    def sum_color_grid(self, values: Tensor, guide: Tensor, tables: ColorGridTables) -> Tensor:
        items, channels, *extent = values.shape
        # with one more channel, the mass
        shape = items, channels + 1, *extent
        return run_kernel("sum_color_grid", shape, values.numel(), values, guide, *tables)

    def sum_window(self, values: Tensor, guide: Tensor, sigma_y: float, sigma_x: float, reach: float) -> Tensor:
        # not converted before they are known to be small
        reaches = zip((sigma_y, sigma_x), values.shape[2:], strict=True)
        taps = math.prod(int(min(reach * sigma, extent)) for sigma, extent in reaches) + 1
        if guide.shape[1] == 0:
            # colors that are all alike
            guide = guide.new_zeros(()).expand(values.shape[0], 1, *values.shape[2:])
        return run_kernel("sum_window", values.shape, values.numel() * taps, values, guide, sigma_y, sigma_x, reach)

    def find_largest(self, values: Tensor, vertices: Tensor, num_lattice_points: int) -> Tensor:
        winners = bridge.empty((num_lattice_points, values.shape[1]), torch.int32)
        if winners.numel() > 0:
            threads = bridge.threads(vertices.numel() * values.shape[1])
            core(values.dtype).find_largest(values, (vertices, None), written(winners), threads)
        return winners

    def encode(
        self, positions: Tensor, directions: Tensor | None, table: Tensor, transforms: Tensor, strides: Tensor
    ) -> Tensor:
        (points, d), (levels, _, channels), dtype = positions.shape, table.shape, positions.dtype
        out = bridge.empty((points, levels * channels), dtype)
        if out.numel() > 0:
            along = positions.new_empty(0, d) if directions is None else directions
            threads = bridge.threads(points * levels * (d + 1) * channels)
            core(dtype).encode(positions, along, table, transforms, strides, written(out), threads)
        return out.to(table.dtype)

    def encode_backward(
        self,
        positions: Tensor,
        directions: Tensor | None,
        table: Tensor,
        gradient: Tensor,
        transforms: Tensor,
        strides: Tensor,
        for_positions: bool,
        for_table: bool,
    ) -> tuple[Tensor, Tensor]:
        (points, d), dtype = positions.shape, positions.dtype
        to_positions = bridge.empty(positions.shape if for_positions else (0, d), dtype)
        to_table = bridge.empty(table.shape if for_table else (0, 1, 1), dtype)
        if points == 0:
            to_table.zero_()
        else:
            along = positions.new_empty(0, d) if directions is None else directions
            threads = bridge.threads(gradient.numel() * (d + 1))
            inputs = positions, along, table, gradient, transforms, strides
            core(dtype).encode_backward(*inputs, written(to_positions), written(to_table), threads)
        to_table = to_table.to(table.dtype)
        return to_positions if for_positions else to_positions.view(0), to_table if for_table else to_table.view(0)

    def slice_planes(self, lattice_values: Tensor, vertices: Tensor, barycentric: Tensor) -> Tensor:
        dtype, shape = accumulation_dtype(lattice_values.dtype), (lattice_values.shape[1], vertices.shape[0])
        # Huge pages are not worth their price for a result that the core would not keep. Where free pages are given
        # back to a host, as in many virtual machines, new huge ones take three times as long as small ones.
        large = math.prod(shape) * dtype.itemsize > _native.kept_memory_limit()
        out = torch.empty(shape, dtype=dtype, device=CPU) if large else bridge.empty(shape, dtype)
        if out.numel() > 0:
            core(dtype).slice_planes(lattice_values, (vertices, barycentric), written(out), bridge.threads(out.numel()))
        return out.to(lattice_values.dtype)

    def sum_axis_neighbors(self, lattice_values: Tensor, neighbors: AxisNeighbors) -> Tensor:
        rows, work = neighbors.rows, neighbors.rows.numel() * lattice_values.shape[1]
        return run_kernel("sum_axis_neighbors", lattice_values.shape, work, lattice_values, rows)

    def solve_smooth(
        self, equations: SmoothEquations, right: Tensor, start: Tensor, iterations: int, tolerance: float
    ) -> Tensor:
        cells, smoothness, data = equations.cells, equations.smoothness, equations.data
        points: tuple[Any, ...] = (smoothness.neighbors.rows[:0], data[:0]), data[:0], [], []
        if cells is not None:
            points = (cells.vertices, cells.barycentric), equations.weights, list(cells.coarse), list(cells.fine)
            data = data[:0]
        rows = smoothness.neighbors.rows, smoothness.scale, smoothness.mass[:, 0], equations.strength[0]
        solution = bridge.empty(right.shape, right.dtype)
        # by NumPy, as in `filter_learned`
        np.copyto(solution.numpy(), start.numpy(force=True))
        if solution.numel() > 0:
            given = (*rows, equations.diagonal, data, *points), right
            threads = bridge.threads(rows[0].numel() * right.shape[1])
            core(right.dtype).solve_smooth(*given, written(solution), iterations, tolerance, threads)
        return solution

    def mean_field(self, energies: Tensor, start: Tensor | None, plan: FieldPlan) -> tuple[Tensor, Saved]:
        """Make one pass over the points for each step; with logits, keep the blurred values of all steps."""
        dtype, threads = plan.kernels[0].barycentric.dtype, bridge.threads(energies.numel())
        energies = contiguous_for_core(energies, dtype)
        if core(dtype).is_sum_nan(energies, threads):
            raise energies_error()
        out = bridge.empty(energies.shape, dtype)
        if out.numel() == 0:
            return out, ()
        field = energies, start, _pairwise_arguments(plan.kernels), plan.steps, SMALLEST_MASS
        state = core(dtype).mean_field(*field, plan.as_logits, written(out), threads)
        return out, tuple(map(from_dlpack, state))

    def mean_field_backward(
        self, gradient: Tensor, inputs: Saved, saved: Saved, needed: Needed, plan: FieldPlan
    ) -> tuple[Tensor | None, ...]:
        (energies, start, *_), kernels = inputs, plan.kernels
        dtype, threads = kernels[0].barycentric.dtype, bridge.threads(energies.numel())
        to_energies = bridge.empty(energies.shape, dtype)
        to_start = None if start is None else bridge.empty(energies.shape, dtype)
        to_kernels = [
            torch.empty((1, 1) if kernel.costs is None else kernel.costs.shape, dtype=dtype, device=CPU)
            for kernel in kernels
        ]
        field = energies, start, _pairwise_arguments(kernels), plan.steps, SMALLEST_MASS
        results = written(to_energies), None if to_start is None else written(to_start), [*map(written, to_kernels)]
        core(dtype).mean_field_gradient(*field, saved, gradient, *results, threads)
        return to_energies, to_start, *to_kernels


BACKEND = Native()
