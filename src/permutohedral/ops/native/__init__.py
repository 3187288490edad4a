"""The primitives on the CPU, by the compiled core (`native/`): the same bits on any number of threads.

Here tensors are allocated and made contiguous; the core borrows them. The number of threads is
`torch.get_num_threads()`. Values of 16 bits are widened to float32 here and rounded once at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from permutohedral.errors import BackendUnavailable
from permutohedral.neighborhood import axis_offsets, blur_gain
from permutohedral.ops.color_tables import ColorGridTables, LandmarkTables
from permutohedral.ops.fused_primitives import FilterTables, KeptOfFilter
from permutohedral.ops.native.lending import lend, to_dlpack
from permutohedral.ops.native.levels import coarsen_values as coarsen_values
from permutohedral.ops.native.levels import largest_gradient as largest_gradient
from permutohedral.ops.native.levels import refine_values as refine_values
from permutohedral.ops.native.levels import splat_largest as splat_largest
from permutohedral.ops.native.mean_field import differentiate_mean_field as differentiate_mean_field
from permutohedral.ops.native.mean_field import mean_field as mean_field
from permutohedral.ops.native.mean_field import mean_field_logits as mean_field_logits
from permutohedral.ops.native.one_thread import ones, sum_rows
from permutohedral.ops.native.sums import add_beside as add_beside
from permutohedral.ops.native.sums import mix_rows as mix_rows
from permutohedral.ops.native.sums import sum_cells as sum_cells
from permutohedral.ops.native_limits import check_dimension, limit_kept_memory, refusing_too_many
from permutohedral.ops.primitives import accumulation_dtype, key_limit, range_error, transpose_weight

if TYPE_CHECKING:
    from permutohedral._native import Kernels, PendingIndex

try:
    from permutohedral import _native
except ImportError as error:
    raise BackendUnavailable(
        f"the compiled core is installed but cannot be loaded: {error}; reinstall permutohedral, or choose "
        'use_backend("reference")'
    ) from error

_tables, _float32, _float64 = lend(_native), lend(_native.float32), lend(_native.float64)
# named in every call: torch.set_default_device may have set another
_CPU = torch.device("cpu")

# larger requests are left to the single primitives, before each of which the free memory is checked
_LARGEST_UNCHECKED_BYTES = 1 << 28

limit_kept_memory()


def _core(dtype: torch.dtype) -> Kernels:
    """The kernels for values of `dtype`."""
    return _float64 if dtype == torch.float64 else _float32


def _plain(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor as the core can borrow it: contiguous, outside of autograd, with no sign left to torch."""
    plain = (tensor.detach() if tensor.requires_grad else tensor).to(dtype or tensor.dtype).resolve_neg()
    if plain.is_contiguous() or plain.dim() != 2 or not plain.mT.is_contiguous() or not plain.is_floating_point():
        return plain.contiguous()
    # the planes of a picture, seen as points
    rows = _empty(plain.shape, plain.dtype)
    _core(plain.dtype).interleave(plain.mT, rows, _threads(plain.numel()))
    return rows


def _empty(shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> Tensor:
    """Uninitialized. Large tensors lie in memory that the core keeps when they are freed, to save page faults."""
    if math.prod(shape) * dtype.itemsize < _native.LEAST_KEPT_BYTES:
        return torch.empty(shape, dtype=dtype, device=_CPU)
    return from_dlpack(_native.allocate(list(shape), dtype.is_floating_point, 8 * dtype.itemsize))


def _threads(work: int) -> int:
    """Threads for `work` elements: waking others costs more than a small sum."""
    return torch.get_num_threads() if work > 1 << 14 else 1


def _finish(pending: PendingIndex, columns: int) -> tuple[Tensor, Tensor]:
    keys, table = _empty((pending.num_lattice_points, columns), torch.int32), _empty((pending.table_size,), torch.int64)
    pending.finish(to_dlpack(keys), to_dlpack(table))
    return keys, table


def index_points(features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    points, d = features.shape
    check_dimension(d)
    features = _plain(features)
    vertices = _empty((points, d + 1), torch.int32)
    barycentric = _empty((points, d + 1), features.dtype)
    if points == 0:
        return vertices.new_empty((0, d + 1)), vertices, barycentric, torch.empty(0, dtype=torch.int64, device=_CPU)
    limit = key_limit(features.dtype)
    items = None if batch is None else _plain(batch, torch.int32)
    threads = _threads(points * (d + 1))
    with refusing_too_many():
        pending = _core(features.dtype).index_points(features, items, limit, vertices, barycentric, threads)
    if pending is None:
        raise range_error(features, limit)
    keys, table = _finish(pending, d + 1)
    return keys, vertices, barycentric, table


def index_keys(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    unique_keys, inverse, table = _number(_tables.index_keys, (keys,), 1)
    return unique_keys, inverse[:, 0], table


def coarsen_keys(keys: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _number(_tables.index_parents, (keys, table), 2)


def _number(index: Callable[..., PendingIndex], given: tuple[Tensor, ...], each: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = given[0].shape
    check_dimension(columns - 1)
    numbers = _empty((rows, each), torch.int32)
    if rows == 0:
        return given[0].clone(), numbers, torch.empty(0, dtype=torch.int64, device=_CPU)
    with refusing_too_many():
        pending = index(*map(_plain, given), numbers, _threads(rows * each))
    unique_keys, table = _finish(pending, columns)
    return unique_keys, numbers, table


def _table_of(keys: Tensor) -> Tensor:
    """The lookup table of distinct keys in any order: that of the sorted keys, then where each is in `keys`."""
    _, inverse, table = index_keys(keys)
    order = _empty((keys.shape[0] + keys.shape[0] % 2,), torch.int32)
    order[inverse.long()] = torch.arange(keys.shape[0], dtype=torch.int32, device=_CPU)
    return torch.cat([table, order.view(torch.int64)])


def find_neighbors(source_keys: Tensor, table: Tensor, target_keys: Tensor, offsets: Tensor) -> Tensor:
    targets, filter_size = target_keys.shape[0], offsets.shape[0]
    neighbors = _empty((filter_size, targets), torch.int32)
    if source_keys.shape[0] == 0:
        return neighbors.fill_(-1)
    if neighbors.numel() == 0:
        return neighbors
    if table.numel() == 0:
        table = _table_of(source_keys)
    same = source_keys.data_ptr() == target_keys.data_ptr() and source_keys.shape == target_keys.shape
    same = same and source_keys.stride() == target_keys.stride()
    threads = _threads(neighbors.numel())
    _tables.find_neighbors(_plain(table), _plain(target_keys), _plain(offsets), same, neighbors, threads)
    return neighbors


def transpose_neighbors(neighbors: Tensor, opposite: Tensor, num_source: int) -> Tensor:
    transposed = _empty((neighbors.shape[0], num_source), torch.int32)
    if neighbors.shape[1] == 0:
        return transposed.fill_(-1)
    if transposed.numel() > 0:
        _tables.transpose_neighbors(_plain(neighbors), _plain(opposite), transposed, _threads(neighbors.numel()))
    return transposed


def connect_levels(keys: Tensor, coarse_keys: Tensor, parents: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    down, up = (_empty((offsets.shape[0], each.shape[0]), torch.int32) for each in (coarse_keys, keys))
    operands = _plain(keys), _plain(parents), _plain(coarse_keys), _plain(offsets)
    _tables.connect_levels(*operands, down, up, _threads(up.numel()))
    return down, up


def coarsen_simplices(
    vertices: Tensor, barycentric: Tensor, coarse_keys: Tensor, parents: Tensor
) -> tuple[Tensor, Tensor]:
    out = _empty(vertices.shape, torch.int32), _empty(vertices.shape, barycentric.dtype)
    operands = _plain(vertices), _plain(barycentric), _plain(parents), _plain(coarse_keys)
    _core(barycentric.dtype).coarsen_simplices(*operands, *out, _threads(vertices.numel() * vertices.shape[1]))
    return out


def splat(values: Tensor, vertices: Tensor, barycentric: Tensor, num_lattice_points: int) -> Tensor:
    dtype, (points, channels) = accumulation_dtype(values.dtype), values.shape
    out = _empty((num_lattice_points, channels), dtype)
    if points == 0 or channels == 0:
        return out.zero_().to(values.dtype)
    threads = _threads(vertices.numel() * channels)
    _core(dtype).splat(_plain(values, dtype), _plain(vertices), _plain(barycentric, dtype), out, threads)
    return out.to(values.dtype)


def slice(lattice_values: Tensor, vertices: Tensor, barycentric: Tensor) -> Tensor:
    dtype, channels = accumulation_dtype(lattice_values.dtype), lattice_values.shape[1]
    out = _empty((vertices.shape[0], channels), dtype)
    if out.numel() > 0:
        threads = _threads(vertices.numel() * channels)
        operands = _plain(lattice_values, dtype), _plain(vertices), _plain(barycentric, dtype)
        _core(dtype).slice(*operands, out, threads)
    return out.to(lattice_values.dtype)


def barycentric_gradient(values: Tensor, lattice_values: Tensor, vertices: Tensor) -> Tensor:
    dtype, channels = accumulation_dtype(values.dtype), values.shape[1]
    out = _empty(vertices.shape, dtype)
    if channels == 0:
        return out.zero_()
    if out.numel() > 0:
        threads = _threads(vertices.numel() * channels)
        rows = _plain(values, dtype), _plain(lattice_values, dtype)
        _core(dtype).barycentric_gradient(*rows, _plain(vertices), out, threads)
    return out


def convolve(lattice_values: Tensor, weight: Tensor, neighbors: Tensor, groups: int) -> Tensor:
    dtype = accumulation_dtype(lattice_values.dtype)
    out = _empty((neighbors.shape[1], weight.shape[2]), dtype)
    if lattice_values.numel() == 0 or weight.numel() == 0:
        return out.zero_().to(lattice_values.dtype)
    if out.numel() > 0:
        threads = _threads(neighbors.numel() * weight.shape[1] * weight.shape[2])
        operands = _plain(lattice_values, dtype), _plain(weight, dtype), _plain(neighbors)
        _core(dtype).convolve(*operands, groups, out, threads)
    return out.to(lattice_values.dtype)


def convolve_weight_gradient(lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int) -> Tensor:
    dtype = accumulation_dtype(lattice_values.dtype)
    in_channels, out_channels = lattice_values.shape[1] // groups, output_gradient.shape[1]
    out = _empty((neighbors.shape[0], in_channels, out_channels), dtype)
    if lattice_values.numel() == 0 or output_gradient.numel() == 0:
        return out.zero_().to(lattice_values.dtype)
    if out.numel() > 0:
        threads = _threads(neighbors.numel() * in_channels * out_channels)
        operands = _plain(lattice_values, dtype), _plain(output_gradient, dtype), _plain(neighbors)
        _core(dtype).convolve_weight_gradient(*operands, groups, out, threads)
    return out.to(lattice_values.dtype)


def blur(lattice_values: Tensor, axis_neighbors: Tensor, reverse: bool) -> Tensor:
    dtype = accumulation_dtype(lattice_values.dtype)
    out = _empty(lattice_values.shape, dtype)
    if out.numel() > 0:
        threads = _threads(axis_neighbors.numel() * lattice_values.shape[1])
        _core(dtype).blur(_plain(lattice_values, dtype), _plain(axis_neighbors), reverse, out, threads)
    return out.to(lattice_values.dtype)


def filter_gaussian(
    values: Tensor,
    vertices: Tensor,
    barycentric: Tensor,
    axis_neighbors: Tensor,
    target_vertices: Tensor,
    target_barycentric: Tensor,
    smallest_mass: float,
) -> Tensor:
    dtype, (points, channels) = accumulation_dtype(values.dtype), values.shape
    out = _empty((target_vertices.shape[0], channels), dtype)
    if points == 0 or out.numel() == 0:
        return out.zero_().to(values.dtype)
    # the blur is not divided by its gain, and neither is the mass: their quotient is the same
    added_mass = smallest_mass * blur_gain(vertices.shape[1] - 1)
    source = _plain(vertices), _plain(barycentric, dtype)
    target = _plain(target_vertices), _plain(target_barycentric, dtype)
    threads = _threads((vertices.numel() + target_vertices.numel()) * channels)
    operands = _plain(values, dtype), *source, _plain(axis_neighbors), *target
    _core(dtype).filter_gaussian(*operands, added_mass, out, threads)
    return out.to(values.dtype)


def filter_points(values: Tensor, features: Tensor, batch: Tensor | None, smallest_mass: float) -> Tensor | None:
    """All steps at once, without tensors in between, in an order of the points that suits the caches."""
    dtype, (points, channels), d = accumulation_dtype(values.dtype), values.shape, features.shape[1]
    simplices = points * (d + 1) * (4 + dtype.itemsize)
    if channels == 0 or d > _native.MAX_DIMENSION or simplices > _LARGEST_UNCHECKED_BYTES:
        return None
    threads = _threads(points * (d + 1) * channels)
    # in another order each value costs a cache miss, which only pays for wide ones
    may_reorder = channels * dtype.itemsize >= _native.CACHE_LINE_BYTES
    items = None if batch is None else _plain(batch, torch.int32)
    core = _core(dtype)
    with refusing_too_many():
        pending = core.index_for_filter(_plain(features), items, key_limit(dtype), may_reorder, threads)
    if pending is None or 2 * pending.num_lattice_points * (channels + 1) * dtype.itemsize > _LARGEST_UNCHECKED_BYTES:
        return None
    out = _empty((points, channels), dtype)
    pending.filter(_plain(values, dtype), axis_offsets(d), smallest_mass * blur_gain(d), out, threads)
    return out.to(values.dtype)


def filter_learned(
    values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables
) -> tuple[Tensor, KeptOfFilter]:
    # each step rounds values of 16 bits, as if it were called by itself
    dtype, points = accumulation_dtype(values.dtype), values.shape[0]
    lattice, source, target = tables.lattice, tables.lattice.source, tables.lattice.target
    corners = source.vertices, source.barycentric, source.num_lattice_points
    lattice_values, density = splat(values, *corners), None
    if tables.by_density:
        density = splat(ones(points, dtype), *corners)[:, 0]
        wide = lattice_values.to(dtype)
        _core(dtype).divide_rows(wide, density, _threads(wide.numel()))
        lattice_values = wide.to(values.dtype)
    convolved = convolve(lattice_values, weight, lattice.neighbors, tables.groups)
    output = slice(convolved, target.vertices, target.barycentric)
    if bias is not None:
        wide = output.to(dtype)
        _core(dtype).add_to_rows(wide, _plain(bias, dtype), _threads(wide.numel()))
        output = wide.to(values.dtype)
    return output, (lattice_values, density)


def differentiate_learned(
    gradient: Tensor, weight: Tensor, kept: KeptOfFilter, tables: FilterTables, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    to_bias = sum_rows(_plain(gradient)) if wanted[2] else None
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
        wide = at_sources.to(density.dtype)
        _core(density.dtype).divide_rows(wide, density, _threads(wide.numel()))
        at_sources = wide.to(gradient.dtype)
    return slice(at_sources, source.vertices, source.barycentric), to_weight, to_bias


def picture_features(
    guide: Tensor, sigma_space: Sequence[float], sigma_range: Sequence[float], origin: Sequence[int]
) -> Tensor:
    dtype, axes = accumulation_dtype(guide.dtype), len(origin)
    leading, (channels, *space) = guide.shape[: -axes - 1], guide.shape[-axes - 1 :]
    count, samples = math.prod(leading), math.prod(space)
    features = _empty((count * samples, axes + channels), dtype)
    if features.numel() > 0:
        last = guide.movedim(-axes - 1, -1)
        channels_last = last.is_contiguous()
        pictures = _plain(last if channels_last else guide, dtype)
        pictures = pictures.view(count, *pictures.shape[-axes - 1 :])
        units = list(origin), list(sigma_space), list(sigma_range)
        _core(dtype).picture_features(pictures, channels_last, *units, features, _threads(features.numel()))
    return features.view(*leading, samples, axes + channels)


def embed_gradient(features: Tensor, barycentric_gradient: Tensor) -> Tensor:
    return _embed(_core(features.dtype).embed_gradient, features, barycentric_gradient, features.shape[1])


def embed_differential(features: Tensor, differential: Tensor) -> Tensor:
    return _embed(_core(features.dtype).embed_differential, features, differential, features.shape[1] + 1)


def _embed(kernel: Callable[..., None], features: Tensor, operand: Tensor, columns: int) -> Tensor:
    check_dimension(features.shape[1])
    out = _empty((features.shape[0], columns), features.dtype)
    if out.numel() > 0:
        kernel(_plain(features), _plain(operand, features.dtype), out, _threads(features.numel()))
    return out


def sum_neighbors(values: Tensor, features: Tensor, target_features: Tensor, reach: float) -> Tensor:
    (points, channels), targets = values.shape, target_features.shape[0]
    out = _empty((targets, channels), values.dtype)
    if points == 0 or out.numel() == 0:
        return out.zero_()
    operands = _plain(values), _plain(features), _plain(target_features)
    _core(values.dtype).sum_neighbors(*operands, reach, out, _threads(points * targets))
    return out


def sum_landmarks(values: Tensor, guide: Tensor, tables: LandmarkTables) -> Tensor:
    items, channels, *extent = values.shape
    out = _empty((items, channels + 1, *extent), values.dtype)
    operands = _plain(values), _plain(guide), _plain(tables.colors), _plain(tables.mixture)
    grid, (blur, reach, small, most) = (*tables.sigma, *tables.cells), tables[-4:]
    _core(values.dtype).sum_landmarks(*operands, *grid, blur, reach, small, most, out, _threads(values.numel()))
    return out


def sum_color_grid(values: Tensor, guide: Tensor, tables: ColorGridTables) -> Tensor:
    items, channels, *extent = values.shape
    out = _empty((items, channels + 1, *extent), values.dtype)
    _core(values.dtype).sum_color_grid(_plain(values), _plain(guide), *tables, out, _threads(values.numel()))
    return out


def sum_window(values: Tensor, guide: Tensor, sigma_y: float, sigma_x: float, reach: float) -> Tensor:
    out = _empty(values.shape, values.dtype)
    if out.numel() > 0:
        operands = _plain(values), _plain(guide)
        taps = int(reach * sigma_y) * int(reach * sigma_x) + 1
        _core(values.dtype).sum_window(*operands, sigma_y, sigma_x, reach, out, _threads(values.numel() * taps))
    return out
