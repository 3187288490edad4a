"""The primitives in plain torch: the readable definition, on any device, in any floating dtype.

Symbols: d is the dimension of the features. A point f of R^d is embedded as y = E f in the plane of
R^{d+1} orthogonal to 1, E an isometry times sqrt(2/3) (d+1).
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from permutohedral.errors import FeatureRangeError, InputError
from permutohedral.ops.backend import Backend
from permutohedral.ops.contract import accumulation_dtype, check_items, key_limit, range_error
from permutohedral.ops.encoding import encode as encode
from permutohedral.ops.encoding import encode_backward as encode_backward

# ranks below 2^31 and digits below 2^32 stay below it, too
_CODE_LIMIT = 2**63
# rows of the table of neighbors that are looked up together
_ROWS_TOGETHER = 2**18
# points that are embedded together: their coordinates fit a processor's cache
_POINTS_TOGETHER = 2**14
# pairs of points, times d, that are computed together
_PAIRS_AT_ONCE = 2**22


def elevation_matrix(dimension: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """E `[d + 1, d]`: the isometry R^d -> 1^perp times sqrt(2/3)(d+1), so that one unit is one sigma.

    Column j = 1..d is alpha / sqrt(j (j+1)) times (1, ..., 1, -j, 0, ..., 0).
    """
    d = dimension
    matrix = torch.zeros(d + 1, d, dtype=torch.float64, device="cpu")
    alpha = (2.0 / 3.0) ** 0.5 * (d + 1)
    for j in range(1, d + 1):
        matrix[:j, j - 1] = alpha / (j * (j + 1)) ** 0.5
        matrix[j, j - 1] = -j * alpha / (j * (j + 1)) ** 0.5
    return matrix.to(dtype=dtype, device=device)


def find_simplex(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find the simplex around each point, one column for each point.

    Returns:
        cell: float `[d + 1, points]`, the corner congruent to 0 modulo d+1, divided by d+1.
        rank: int32 `[d + 1, points]`, the position of each coordinate when those of y - (d+1) cell are
            sorted in descending order; it names the simplex among those that share the cell.
        delta: float `[d + 1, points]`, y / (d+1) - cell.
    """
    d = features.shape[1]
    y = elevation_matrix(d, features.dtype, features.device) @ features.T
    if not bool((y.abs() < key_limit(y.dtype)).all()):
        raise range_error(features, key_limit(y.dtype))
    cell = torch.round(y / (d + 1))
    rest = y - cell * (d + 1)
    # a comparison of all pairs is faster than a sort of so few; the first of two equal coordinates comes first
    rank = cell.sum(dim=0).to(torch.int32).repeat(d + 1, 1)
    for i in range(1, d + 1):
        is_ahead = rest[:i] >= rest[i]
        rank[i] += is_ahead.sum(dim=0, dtype=torch.int32)
        rank[:i] += ~is_ahead
    # rounding may leave the plane: move the coordinates of extreme rank back by one cell
    step = (rank < 0).to(torch.int32) - (rank > d).to(torch.int32)
    return cell + step, rank + step * (d + 1), rest / (d + 1) - step


def embed_gradient(features: Tensor, barycentric_gradient: Tensor) -> Tensor:
    d = features.shape[1]
    rank = find_simplex(features)[1].T.long()
    # the coordinate of rank r adds to b_{d-r} and takes from b_{d+1-r}, indices modulo d+1
    gained = barycentric_gradient.gather(1, d - rank)
    lost = barycentric_gradient.gather(1, (d + 1 - rank) % (d + 1))
    return (gained - lost) / (d + 1) @ elevation_matrix(d, features.dtype, features.device)


def _embed(features: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
    """Return the simplex of each point, int32 `[1 + 2 d, points]`, and its barycentric weights `[points, d + 1]`.

    A simplex has an item, and the first d coordinates of cell and rank; the last ones follow from their sums.
    """
    d = features.shape[1]
    cell, rank, delta = find_simplex(features)
    # with delta_(r) the coordinate of rank r: b_j = delta_(d-j) - delta_(d-j+1), and b_0 = 1 + delta_(d) - delta_(0)
    ascending = torch.empty_like(delta).scatter_(0, d - rank.long(), delta)
    barycentric = ascending - ascending.roll(1, dims=0)
    barycentric[0] += 1
    return torch.cat([item[None], cell[:d].to(torch.int32), rank[:d]]), barycentric.clamp_min_(0).T


def index_points(features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    points, d = features.shape
    item = torch.zeros(points, dtype=torch.int32, device=features.device) if batch is None else batch
    if batch is not None and batch.is_cuda:
        # those on the CPU have been checked
        check_items(batch)
    parts = map(_embed, features.split(_POINTS_TOGETHER), item.split(_POINTS_TOGETHER))
    try:
        simplices, barycentric = zip(*parts, strict=True)
    except FeatureRangeError:
        # about all points
        raise range_error(features, key_limit(features.dtype)) from None
    columns = torch.cat(simplices, dim=1)
    # points share simplices: number those first, then their corners
    example, simplex = _number_columns(columns)
    item, cell, rank = columns[:, None, example].split([1, d, d])
    # corner j lies j above the corner 0, and d+1 lower along the j coordinates of largest rank
    corner = torch.arange(d + 1, dtype=torch.int32, device=features.device)[:, None]
    keys = torch.cat([item.expand(-1, d + 1, -1), (cell - (rank > d - corner).int()) * (d + 1) + corner])
    unique_keys, inverse, table = index_keys(keys.flatten(1).T)
    vertices = inverse.view(d + 1, -1).T.contiguous().index_select(0, simplex)
    return unique_keys, vertices, torch.cat(barycentric), table


def _pack_columns(columns: Tensor) -> Tensor:
    """Return one int64 for each column of int32 `columns [digits, n]`, in their lexicographic order.

    As many digits as fit make one integer; then its rank stands for them.
    """
    codes, span = torch.zeros(columns.shape[1], dtype=torch.int64, device=columns.device), 1
    lows, highs = columns.amin(dim=1).tolist(), columns.amax(dim=1).tolist()
    for digits, low, high in zip(columns, lows, highs, strict=True):
        extent = high - low + 1
        if span * extent >= _CODE_LIMIT:
            distinct, codes = torch.unique(codes, return_inverse=True)
            span = distinct.numel()
        codes, span = digits.long().sub_(low).add_(codes, alpha=extent), span * extent
    return codes


def _number_columns(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the place of one column of each value in `columns [digits, n]`, and the number of each column."""
    if columns.shape[1] == 0:
        return (torch.empty(0, dtype=torch.int64, device=columns.device),) * 2
    distinct, numbers = torch.unique(_pack_columns(columns), return_inverse=True)
    places = torch.empty_like(distinct)
    places[numbers] = torch.arange(len(numbers), device=numbers.device)
    return places, numbers


def index_keys(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    example, inverse = _number_columns(keys.T)
    if len(example) >= 2**31:
        raise InputError("more than 2^31 lattice points: split the points into batches")
    return keys[example], inverse.to(torch.int32), torch.empty(0, dtype=torch.int64, device=keys.device)


def parent_keys(keys: Tensor) -> Tensor:
    """Return the keys of both parents of every vertex: `[lattice_points, 1 + d]` to `[lattice_points, 2, 1 + d]`.

    With x = sum_j n_j e_j, n_j - n_0 = (x_j - x_0) / (d+1); where that is odd, j belongs to S, and the parents are
    (x + e_S) / 2 and (x - e_S) / 2.

    >>> parent_keys(torch.tensor([[0, 2, -4], [0, 1, 1]], dtype=torch.int32)).tolist()
    [[[0, 1, -2], [0, 1, -2]], [[0, 1, 1], [0, 0, 0]]]
    """
    first, corners = keys[:, 1:], keys.shape[1]
    last = -first.sum(dim=1, keepdim=True, dtype=keys.dtype)
    # x_j - x_0 is a multiple of d+1, so that the quotient is exact
    odd = (torch.cat([first, last], dim=1) - first[:, :1]).div(corners, rounding_mode="trunc") & 1
    step = corners * odd[:, :-1] - odd.sum(dim=1, keepdim=True, dtype=keys.dtype)
    items = keys[:, :1]
    ends = [torch.cat([items, (first + sign * step) >> 1], dim=1) for sign in (-1, 1)]
    return torch.stack(ends, dim=1)


def _coarse_corners(coarse_keys: Tensor, parents: Tensor) -> Tensor:
    """Return the corner of the coarse simplices that each parent is, int64 `[lattice_points, 2]`."""
    # corner j is the vertex whose coordinates are congruent to j modulo d+1
    corner = coarse_keys[:, 1].remainder(coarse_keys.shape[1])
    return corner.index_select(0, parents.flatten()).view(parents.shape).long()


def coarsen_vertices(vertices: Tensor, coarse_keys: Tensor, parents: Tensor) -> Tensor:
    """Return the corners of the simplices of the points on the lattice of twice the step, `[points, d + 1]`."""
    corners, corner = vertices.shape[1], _coarse_corners(coarse_keys, parents)
    # of each fine lattice point, the rows of the coarse corners that it has a part in, -1 for the others
    rows = parents.new_full((len(parents), corners), -1).scatter(1, corner, parents)
    # on a GPU index_select takes 20 times as long for rows of 16 bytes
    return rows[vertices].amax(dim=1)


def coarse_shares(coarse_keys: Tensor, parents: Tensor, like: Tensor) -> Tensor:
    """Return the share of each fine lattice point in the coarse corners, `[lattice_points, d + 1]`: half a parent."""
    shares = like.new_zeros(len(parents), coarse_keys.shape[1])
    half = like.new_full((1, 1), 0.5).expand(parents.shape)
    return shares.scatter_add(1, _coarse_corners(coarse_keys, parents), half)


def coarsen_lattice(
    keys: Tensor, table: Tensor, vertices: Tensor, barycentric: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    coarse_keys, inverse, table = index_keys(parent_keys(keys).flatten(0, 1))
    parents = inverse.view(-1, 2)
    weights = slice(coarse_shares(coarse_keys, parents, barycentric), vertices, barycentric)
    return coarse_keys, parents, table, coarsen_vertices(vertices, coarse_keys, parents), weights


def find_neighbors(
    source_keys: Tensor, table: Tensor, target_keys: Tensor, offsets: Tensor, opposite: Tensor | None = None
) -> Tensor:
    (sources, targets), device = (source_keys.shape[0], target_keys.shape[0]), offsets.device
    neighbors = torch.full((offsets.shape[0], targets), -1, dtype=torch.int32, device=device)
    if sources == 0:
        return neighbors
    # several taps together if there are few targets, since the overhead of an operation dominates
    together = max(1, _ROWS_TOGETHER // max(1, targets))
    for part, taps in zip(neighbors.split(together), offsets.split(together), strict=True):
        columns = torch.cat([source_keys.T, target_keys.T.repeat(1, len(taps))], dim=1)
        columns[1:, sources:].unflatten(1, (len(taps), targets)).add_(taps.T[:, :, None])
        codes = _pack_columns(columns)
        distinct, numbers = torch.unique(codes, return_inverse=True)
        source = neighbors.new_full(distinct.shape, -1)
        source[numbers[:sources]] = torch.arange(sources, dtype=torch.int32, device=device)
        part.copy_(source[numbers[sources:]].view_as(part))
    return neighbors


def transpose_neighbors(neighbors: Tensor, opposite: Tensor, num_source: int) -> Tensor:
    transposed = neighbors.new_full((neighbors.shape[0], num_source), -1)
    tap, target = (neighbors >= 0).nonzero(as_tuple=True)
    transposed[opposite[tap], neighbors[tap, target].long()] = target.to(torch.int32)
    return transposed


def splat(values: Tensor, vertices: Tensor, barycentric: Tensor, num_lattice_points: int) -> Tensor:
    accumulated = barycentric.new_zeros(num_lattice_points, values.shape[1])
    for corner, weight in zip(vertices.long().T, barycentric.T, strict=True):
        accumulated.index_add_(0, corner, weight[:, None] * values)
    return accumulated.to(values.dtype)


def slice(lattice_values: Tensor, vertices: Tensor, barycentric: Tensor) -> Tensor:
    wide = lattice_values.to(barycentric.dtype)
    if wide.is_cpu and wide.numel() > 0:
        # the loop below in one pass, which other devices may not have
        bags = torch.nn.functional.embedding_bag(vertices.long(), wide, mode="sum", per_sample_weights=barycentric)
        return bags.to(lattice_values.dtype)
    accumulated = wide.new_zeros(vertices.shape[0], wide.shape[1])
    for corner, weight in zip(vertices.T, barycentric.T, strict=True):
        accumulated.addcmul_(weight[:, None], wide.index_select(0, corner))
    return accumulated.to(lattice_values.dtype)


def barycentric_gradient(values: Tensor, lattice_values: Tensor, vertices: Tensor) -> Tensor:
    dtype = accumulation_dtype(values.dtype)
    values, lattice_values = values.to(dtype), lattice_values.to(dtype)
    corners = (lattice_values.index_select(0, corner) for corner in vertices.T)
    return torch.stack([(values * each).sum(dim=1) for each in corners], dim=1)


def _gather(lattice_values: Tensor, neighbors: Tensor) -> Iterator[Tensor]:
    """Yield the rows of `lattice_values` that each row of `neighbors` names, zero where a neighbor is missing."""
    zero = lattice_values.new_zeros(1, lattice_values.shape[1])
    padded = torch.cat([zero, lattice_values]).to(accumulation_dtype(lattice_values.dtype))
    return (padded.index_select(0, rows) for rows in neighbors + 1)


def find_largest(values: Tensor, vertices: Tensor, num_lattice_points: int) -> Tensor:
    (points, corners), shape = vertices.shape, (num_lattice_points, values.shape[1])
    candidates = values.repeat_interleave(corners, dim=0)
    point = torch.arange(points, device=values.device).repeat_interleave(corners)
    place = vertices.reshape(-1, 1).long().expand(candidates.shape)
    largest = values.new_zeros(shape).scatter_reduce(0, place, candidates, "amax", include_self=False)
    wins = (candidates == largest.gather(0, place)) | candidates.isnan()
    # behind all points where a value is not the largest
    numbers = torch.where(wins, point[:, None], points)
    winners = point.new_full(shape, points).scatter_reduce(0, place, numbers, "amin")
    return torch.where(winners < points, winners, -1).int()


def convolve(lattice_values: Tensor, weight: Tensor, neighbors: Tensor, groups: int, *reverse: Tensor | None) -> Tensor:
    taps = weight.to(accumulation_dtype(weight.dtype)).unflatten(2, (groups, -1))
    output: Tensor = taps.new_zeros(neighbors.shape[1], groups, taps.shape[3])
    for values, tap in zip(_gather(lattice_values, neighbors), taps, strict=True):
        output += torch.einsum("vgi,igo->vgo", values.unflatten(1, (groups, -1)), tap)
    return output.flatten(1).to(lattice_values.dtype)


def convolve_weight_gradient(
    lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int, *reverse: Tensor | None
) -> Tensor:
    gradient = output_gradient.to(accumulation_dtype(lattice_values.dtype)).unflatten(1, (groups, -1))
    taps = (values.unflatten(1, (groups, -1)) for values in _gather(lattice_values, neighbors))
    gradients = [torch.einsum("vgi,vgo->igo", values, gradient).flatten(1) for values in taps]
    return torch.stack(gradients).to(lattice_values.dtype)


def blur(lattice_values: Tensor, axis_neighbors: Tensor, reverse: bool) -> Tensor:
    blurred = lattice_values.to(accumulation_dtype(lattice_values.dtype))
    axes = axis_neighbors.unflatten(0, (-1, 2))
    for axis in axes.flip(0) if reverse else axes:
        ahead, behind = _gather(blurred, axis)
        blurred = blurred + 0.5 * (ahead + behind)
    return blurred.to(lattice_values.dtype)


def sum_neighbors(values: Tensor, features: Tensor, target_features: Tensor, reach: float) -> Tensor:
    sums = [values.new_zeros(0, values.shape[1])]
    for targets in target_features.split(max(1, _PAIRS_AT_ONCE // max(1, features.numel()))):
        squares = (targets[:, None, :] - features).square().sum(dim=2)
        sums.append(torch.where(squares <= reach * reach, (-0.5 * squares).exp(), 0.0) @ values)
    return torch.cat(sums)


def window_extents(sigma_y: float, sigma_x: float, reach: float, height: int, width: int) -> list[int]:
    """Return the extent of the window of `sum_window` along x at each distance in y, within the image.

    >>> window_extents(1.0, 1.0, 2.5, height=10, width=10)
    [2, 2, 1]
    """
    # infinity is no integer
    rows = range(int(min(reach * sigma_y, height - 1)) + 1)
    left = (math.sqrt(max(0.0, reach * reach - (y / sigma_y) * (y / sigma_y))) for y in rows)
    return [int(min(extent * sigma_x, width - 1)) for extent in left]


def sum_window(values: Tensor, guide: Tensor, sigma_y: float, sigma_x: float, reach: float) -> Tensor:
    height, width = values.shape[2:]
    sums = torch.zeros_like(values)
    extents = window_extents(sigma_y, sigma_x, reach, height, width)
    for dy in range(1 - len(extents), len(extents)):
        for dx in range(-extents[abs(dy)], extents[abs(dy)] + 1):
            to_y, from_y = _overlap(dy, height)
            to_x, from_x = _overlap(dx, width)
            squares = (guide[..., from_y, from_x] - guide[..., to_y, to_x]).square().sum(dim=1, keepdim=True)
            squares += (dy / sigma_y) ** 2 + (dx / sigma_x) ** 2
            sums[..., to_y, to_x] += (-0.5 * squares).exp() * values[..., from_y, from_x]
    return sums


def _overlap(offset: int, extent: int) -> tuple[builtins.slice, builtins.slice]:
    """Return the pixels along an axis that have a neighbor at `offset`, and these neighbors."""
    first, last = max(0, -offset), min(extent, extent - offset)
    return builtins.slice(first, last), builtins.slice(first + offset, last + offset)


class Reference(Backend):
    """The primitives above; fused functions are composed of them."""

    name = "reference"
    index_points = staticmethod(index_points)
    index_keys = staticmethod(index_keys)
    find_neighbors = staticmethod(find_neighbors)
    transpose_neighbors = staticmethod(transpose_neighbors)
    coarsen_lattice = staticmethod(coarsen_lattice)
    embed_gradient = staticmethod(embed_gradient)
    splat = staticmethod(splat)
    slice = staticmethod(slice)
    barycentric_gradient = staticmethod(barycentric_gradient)
    find_largest = staticmethod(find_largest)
    convolve = staticmethod(convolve)
    convolve_weight_gradient = staticmethod(convolve_weight_gradient)
    blur = staticmethod(blur)
    sum_neighbors = staticmethod(sum_neighbors)
    sum_window = staticmethod(sum_window)
    encode = staticmethod(encode)
    encode_backward = staticmethod(encode_backward)


BACKEND = Reference()
