"""The primitives on the CPU, by the compiled core (`native/`): the same bits on any number of threads.

Here tensors are allocated, and lent to the core (`lending.py`). The number of threads is
`torch.get_num_threads()`. Values of 16 bits are widened to float32 and rounded once at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from permutohedral.neighborhood import axis_offsets, blur_gain
from permutohedral.ops.color_tables import ColorGridTables, LandmarkTables
from permutohedral.ops.fused_primitives import FilterTables, KeptOfFilter
from permutohedral.ops.native import lending
from permutohedral.ops.native.lending import CPU, _native, core, key_core, plain, summed, to_dlpack
from permutohedral.ops.native.levels import coarsen_values, largest_gradient, refine_values, splat_largest
from permutohedral.ops.native.mean_field import differentiate_mean_field, mean_field, mean_field_logits
from permutohedral.ops.native.one_thread import ones, sum_rows
from permutohedral.ops.native.sums import add_beside, mix_rows, sum_cells
from permutohedral.ops.native_limits import check_dimension, limit_kept_memory, refusing_too_many
from permutohedral.ops.primitives import accumulation_dtype, key_limit, range_error, transpose_weight

if TYPE_CHECKING:
    from permutohedral._native import PendingIndex

# larger requests are left to the single primitives, before each of which the free memory is checked
_LARGEST_UNCHECKED_BYTES = 1 << 28

limit_kept_memory()


def _finish(pending: PendingIndex, columns: int) -> tuple[Tensor, Tensor]:
    keys = lending.empty((pending.num_lattice_points, columns), torch.int32)
    table = lending.empty((pending.table_size,), torch.int64)
    pending.finish(to_dlpack(keys), to_dlpack(table))
    return keys, table


def index_points(features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    points, d = features.shape
    check_dimension(d)
    features = plain(features)
    vertices = lending.empty((points, d + 1), torch.int32)
    barycentric = lending.empty((points, d + 1), features.dtype)
    if points == 0:
        return vertices.new_empty((0, d + 1)), vertices, barycentric, torch.empty(0, dtype=torch.int64, device=CPU)
    limit = key_limit(features.dtype)
    items = None if batch is None else batch.to(torch.int32)
    threads = lending.threads(points * (d + 1))
    with refusing_too_many():
        pending = core(features.dtype).index_points(features, items, limit, vertices, barycentric, threads)
    if pending is None:
        raise range_error(features, limit)
    keys, table = _finish(pending, d + 1)
    return keys, vertices, barycentric, table


def index_keys(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    unique_keys, inverse, table = _number(key_core.index_keys, (keys,), 1)
    return unique_keys, inverse[:, 0], table


def coarsen_keys(keys: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _number(key_core.index_parents, (keys, table), 2)


def _number(index: Callable[..., PendingIndex], given: tuple[Tensor, ...], each: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = given[0].shape
    check_dimension(columns - 1)
    numbers = lending.empty((rows, each), torch.int32)
    if rows == 0:
        return given[0].clone(), numbers, torch.empty(0, dtype=torch.int64, device=CPU)
    with refusing_too_many():
        pending = index(*given, numbers, lending.threads(rows * each))
    unique_keys, table = _finish(pending, columns)
    return unique_keys, numbers, table


def _table_of(keys: Tensor) -> Tensor:
    """The lookup table of distinct keys in any order: that of the sorted keys, then where each is in `keys`."""
    _, inverse, table = index_keys(keys)
    order = lending.empty((keys.shape[0] + keys.shape[0] % 2,), torch.int32)
    order[inverse.long()] = torch.arange(keys.shape[0], dtype=torch.int32, device=CPU)
    return torch.cat([table, order.view(torch.int64)])


def find_neighbors(source_keys: Tensor, table: Tensor, target_keys: Tensor, offsets: Tensor) -> Tensor:
    targets, filter_size = target_keys.shape[0], offsets.shape[0]
    neighbors = lending.empty((filter_size, targets), torch.int32)
    if source_keys.shape[0] == 0:
        return neighbors.fill_(-1)
    if neighbors.numel() == 0:
        return neighbors
    if table.numel() == 0:
        table = _table_of(source_keys)
    same = source_keys.data_ptr() == target_keys.data_ptr() and source_keys.shape == target_keys.shape
    same = same and source_keys.stride() == target_keys.stride()
    threads = lending.threads(neighbors.numel())
    key_core.find_neighbors(table, target_keys, offsets, same, neighbors, threads)
    return neighbors


def transpose_neighbors(neighbors: Tensor, opposite: Tensor, num_source: int) -> Tensor:
    transposed = lending.empty((neighbors.shape[0], num_source), torch.int32)
    if neighbors.shape[1] == 0:
        return transposed.fill_(-1)
    if transposed.numel() > 0:
        key_core.transpose_neighbors(neighbors, opposite, transposed, lending.threads(neighbors.numel()))
    return transposed


def connect_levels(keys: Tensor, coarse_keys: Tensor, parents: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    down, up = (lending.empty((offsets.shape[0], each.shape[0]), torch.int32) for each in (coarse_keys, keys))
    key_core.connect_levels(keys, parents, coarse_keys, offsets, down, up, lending.threads(up.numel()))
    return down, up


def coarsen_simplices(
    vertices: Tensor, barycentric: Tensor, coarse_keys: Tensor, parents: Tensor
) -> tuple[Tensor, Tensor]:
    out = lending.empty(vertices.shape, torch.int32), lending.empty(vertices.shape, barycentric.dtype)
    threads = lending.threads(vertices.numel() * vertices.shape[1])
    core(barycentric.dtype).coarsen_simplices(vertices, barycentric, parents, coarse_keys, *out, threads)
    return out


def splat(values: Tensor, vertices: Tensor, barycentric: Tensor, num_lattice_points: int) -> Tensor:
    shape = num_lattice_points, values.shape[1]
    return summed("splat", shape, vertices.numel() * shape[1], values, vertices, barycentric)


def slice(lattice_values: Tensor, vertices: Tensor, barycentric: Tensor) -> Tensor:
    shape = vertices.shape[0], lattice_values.shape[1]
    return summed("slice", shape, vertices.numel() * shape[1], lattice_values, vertices, barycentric)


def barycentric_gradient(values: Tensor, lattice_values: Tensor, vertices: Tensor) -> Tensor:
    wide, work = values.to(accumulation_dtype(values.dtype)), vertices.numel() * values.shape[1]
    return summed("barycentric_gradient", vertices.shape, work, wide, lattice_values, vertices)


def convolve(lattice_values: Tensor, weight: Tensor, neighbors: Tensor, groups: int) -> Tensor:
    shape, work = (neighbors.shape[1], weight.shape[2]), neighbors.shape[1] * weight.numel()
    return summed("convolve", shape, work, lattice_values, weight, neighbors, groups)


def convolve_weight_gradient(lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int) -> Tensor:
    shape = neighbors.shape[0], lattice_values.shape[1] // groups, output_gradient.shape[1]
    work = neighbors.numel() * shape[1] * shape[2]
    return summed("convolve_weight_gradient", shape, work, lattice_values, output_gradient, neighbors, groups)


def blur(lattice_values: Tensor, axis_neighbors: Tensor, reverse: bool) -> Tensor:
    work = axis_neighbors.numel() * lattice_values.shape[1]
    return summed("blur", lattice_values.shape, work, lattice_values, axis_neighbors, reverse)


def filter_gaussian(
    values: Tensor,
    vertices: Tensor,
    barycentric: Tensor,
    axis_neighbors: Tensor,
    target_vertices: Tensor,
    target_barycentric: Tensor,
    smallest_mass: float,
) -> Tensor:
    shape = target_vertices.shape[0], values.shape[1]
    work = (vertices.numel() + target_vertices.numel()) * shape[1]
    # the blur is not divided by its gain, and neither is the mass: their quotient is the same
    added_mass = smallest_mass * blur_gain(vertices.shape[1] - 1)
    tensors = values, vertices, barycentric, axis_neighbors, target_vertices, target_barycentric
    return summed("filter_gaussian", shape, work, *tensors, added_mass)


def filter_points(values: Tensor, features: Tensor, batch: Tensor | None, smallest_mass: float) -> Tensor | None:
    """All steps at once, without tensors in between, in an order of the points that suits the caches."""
    dtype, (points, channels), d = accumulation_dtype(values.dtype), values.shape, features.shape[1]
    simplices = points * (d + 1) * (4 + dtype.itemsize)
    if channels == 0 or d > _native.MAX_DIMENSION or simplices > _LARGEST_UNCHECKED_BYTES:
        return None
    threads = lending.threads(points * (d + 1) * channels)
    # in another order each value costs a cache miss, which only pays for wide ones
    may_reorder = channels * dtype.itemsize >= _native.CACHE_LINE_BYTES
    items = None if batch is None else batch.to(torch.int32)
    with refusing_too_many():
        pending = core(dtype).index_for_filter(features, items, key_limit(dtype), may_reorder, threads)
    if pending is None or 2 * pending.num_lattice_points * (channels + 1) * dtype.itemsize > _LARGEST_UNCHECKED_BYTES:
        return None
    out = lending.empty((points, channels), dtype)
    pending.filter(plain(values, dtype), axis_offsets(d), smallest_mass * blur_gain(d), out, threads)
    return out.to(values.dtype)


def filter_learned(
    values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables
) -> tuple[Tensor, KeptOfFilter]:
    # each step rounds values of 16 bits, as if it were called by itself; what is divided by the density, once it is
    dtype, points, density = accumulation_dtype(values.dtype), values.shape[0], None
    lattice, source, target = tables.lattice, tables.lattice.source, tables.lattice.target
    corners = source.vertices, source.barycentric, source.num_lattice_points
    lattice_values = splat(values.to(dtype) if tables.by_density else values, *corners)
    if tables.by_density:
        density = splat(ones(points, dtype), *corners)[:, 0]
        lattice_values = _change("divide_rows", lattice_values, density).to(values.dtype)
    convolved = convolve(lattice_values, weight, lattice.neighbors, tables.groups)
    output = slice(convolved, target.vertices, target.barycentric)
    if bias is not None:
        output = _change("add_to_rows", output, bias)
    return output, (lattice_values, density)


def _change(kernel: str, rows: Tensor, by: Tensor) -> Tensor:
    """What a kernel that works in place makes of contiguous rows, which are not needed any more."""
    wide = rows.to(accumulation_dtype(rows.dtype))
    getattr(core(wide.dtype), kernel)(wide, by, lending.threads(wide.numel()))
    return wide.to(rows.dtype)


def differentiate_learned(
    gradient: Tensor, weight: Tensor, kept: KeptOfFilter, tables: FilterTables, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    to_bias = sum_rows(plain(gradient)) if wanted[2] else None
    if not (wanted[0] or wanted[1]):
        return None, None, to_bias
    (lattice_values, density), (lattice, groups, _) = kept, tables
    source, target, neighbors = lattice.source, lattice.target, lattice.neighbors
    at_targets = splat(gradient, target.vertices, target.barycentric, neighbors.shape[1])
    to_weight = convolve_weight_gradient(lattice_values, at_targets, neighbors, groups) if wanted[1] else None
    if not wanted[0]:
        return None, to_weight, to_bias
    reverse, opposite = lattice.reverse_neighbors, lattice.opposite
    if reverse is None:
        reverse = transpose_neighbors(neighbors, opposite, source.num_lattice_points)
    at_sources = convolve(at_targets, transpose_weight(weight, opposite, groups), reverse, groups)
    if density is not None:
        at_sources = _change("divide_rows", at_sources.to(density.dtype), density)
    to_values = slice(at_sources, source.vertices, source.barycentric)
    return to_values.to(gradient.dtype), to_weight, to_bias


def picture_features(
    guide: Tensor, sigma_space: Sequence[float], sigma_range: Sequence[float], origin: Sequence[int]
) -> Tensor:
    dtype, axes = accumulation_dtype(guide.dtype), len(origin)
    leading, (channels, *space) = guide.shape[: -axes - 1], guide.shape[-axes - 1 :]
    count, samples = math.prod(leading), math.prod(space)
    features = lending.empty((count * samples, axes + channels), dtype)
    if features.numel() > 0:
        last = guide.movedim(-axes - 1, -1)
        channels_last = last.is_contiguous()
        pictures = plain(last if channels_last else guide, dtype)
        pictures = pictures.view(count, *pictures.shape[-axes - 1 :])
        units = list(origin), list(sigma_space), list(sigma_range)
        core(dtype).picture_features(pictures, channels_last, *units, features, lending.threads(features.numel()))
    return features.view(*leading, samples, axes + channels)


def embed_gradient(features: Tensor, barycentric_gradient: Tensor) -> Tensor:
    check_dimension(features.shape[1])
    return summed("embed_gradient", features.shape, features.numel(), features, barycentric_gradient)


def embed_differential(features: Tensor, differential: Tensor) -> Tensor:
    points, d = features.shape
    check_dimension(d)
    return summed("embed_differential", (points, d + 1), features.numel(), features, differential)


def sum_neighbors(values: Tensor, features: Tensor, target_features: Tensor, reach: float) -> Tensor:
    shape = target_features.shape[0], values.shape[1]
    return summed("sum_neighbors", shape, features.shape[0] * shape[0], values, features, target_features, reach)


def sum_landmarks(values: Tensor, guide: Tensor, tables: LandmarkTables) -> Tensor:
    colors, mixture, sigma, cells, *others = tables
    numbers = *sigma, *cells, *others
    return summed("sum_landmarks", _with_mass(values), values.numel(), values, guide, colors, mixture, *numbers)


def sum_color_grid(values: Tensor, guide: Tensor, tables: ColorGridTables) -> Tensor:
    return summed("sum_color_grid", _with_mass(values), values.numel(), values, guide, *tables)


def _with_mass(values: Tensor) -> tuple[int, ...]:
    """The shape of pictures with one more channel."""
    items, channels, *extent = values.shape
    return items, channels + 1, *extent


def sum_window(values: Tensor, guide: Tensor, sigma_y: float, sigma_x: float, reach: float) -> Tensor:
    # not converted before they are known to be small
    reaches = zip((sigma_y, sigma_x), values.shape[2:], strict=True)
    taps = math.prod(int(min(reach * sigma, extent)) for sigma, extent in reaches) + 1
    if guide.shape[1] == 0:
        # colors that are all alike
        guide = guide.new_zeros(()).expand(values.shape[0], 1, *values.shape[2:])
    return summed("sum_window", values.shape, values.numel() * taps, values, guide, sigma_y, sigma_x, reach)
