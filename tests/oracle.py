"""The operator as its equations say, in dense float64 NumPy: what every backend is compared with.

Imports nothing of the package, and finds everything another way than the package does: simplices by
integrating a floor function, taps by subtracting vertices from each other, the Gaussian by blurring an
impulse. Vertices are whole integer vectors of d+1 coordinates; every linear map is a dense matrix. It is for
tens of points, and rejects more.

Symbols: d is the dimension of the features, s the size of the neighborhood, 1 the vector of d+1 ones, u_j the
j-th unit vector of R^{d+1}, e_j = (d+1) u_j - 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
Vertex = tuple[int, ...]

# entries of the largest dense matrix: 160 MB in float64
MAX_ENTRIES = 20_000_000


class Simplices(NamedTuple):
    """The vertices `[lattice_points, d + 1]` around some points, and B, their weights `[points, lattice_points]`."""

    vertices: IntArray
    weights: Array


def elevation(dimension: int) -> Array:
    """E with y = E f: `[d + 1, d]`, E^T E = 2/3 (d+1)^2 I and 1^T E = 0.

    Column j (from 1) is sqrt(2/3) (d+1) / sqrt(j (j+1)) times (1, ..., 1, -j, 0, ..., 0), with j ones.
    """
    matrix = np.zeros((dimension + 1, dimension))
    for j in range(1, dimension + 1):
        column = np.array([1.0] * j + [-j] + [0.0] * (dimension - j))
        matrix[:, j - 1] = np.sqrt(2 / 3) * (dimension + 1) * column / np.sqrt(j * (j + 1))
    return matrix


def enclosing_simplex(feature: Array) -> dict[Vertex, float]:
    """Vertices around one point: b_v = |{t in [0, 1) : sum_j floor(x_j + t) e_j = v}| > 0, with x = y / (d+1).

    The cubes of Z^{d+1}, cut along 1 and projected along 1, are the simplices of the lattice; since
    integral_0^1 floor(x + t) dt = x, the weights reproduce the point: sum_v b_v v = y.
    """
    corners = len(feature) + 1
    x = elevation(len(feature)) @ feature / corners
    steps = np.sort(np.concatenate([[0.0, 1.0], np.ceil(x) - x]))
    simplex: dict[Vertex, float] = {}
    for begin, end in itertools.pairwise(steps):
        if end > begin:
            n = np.floor(x + (begin + end) / 2).astype(np.int64)
            vertex = tuple(int(c) for c in corners * n - n.sum())
            simplex[vertex] = simplex.get(vertex, 0.0) + float(end - begin)
    return simplex


def locate(features: Array) -> Simplices:
    """The vertices that points touch with positive weight, in ascending order, and B with B[i, v] = b_{i,v}."""
    simplices = [enclosing_simplex(np.asarray(feature, dtype=np.float64)) for feature in features]
    vertices = sorted({vertex for simplex in simplices for vertex in simplex})
    _check_size(len(simplices), len(vertices))
    column = {vertex: number for number, vertex in enumerate(vertices)}
    weights = np.zeros((len(simplices), len(vertices)))
    for row, simplex in enumerate(simplices):
        for vertex, weight in simplex.items():
            weights[row, column[vertex]] = weight
    return Simplices(np.array(vertices, dtype=np.int64).reshape(-1, features.shape[1] + 1), weights)


def taps(dimension: int, size: int) -> list[Vertex]:
    """N: every k of {0..s}^{d+1} with min k = 0, in lexicographic order."""
    return [k for k in itertools.product(range(size + 1), repeat=dimension + 1) if min(k) == 0]


def tap_table(source: IntArray, target: IntArray, size: int) -> IntArray:
    """Number of the tap that leads from v to u, -1 if none does: `[target vertices, source vertices]`.

    k(u - v) = (u - v - min(u - v)) / (d+1), a tap if max k <= s.
    """
    _check_size(len(source) * (source.shape[1] + 1), len(target))
    number = {k: index for index, k in enumerate(taps(source.shape[1] - 1, size))}
    difference = source[None, :, :] - target[:, None, :]
    k = (difference - difference.min(axis=2, keepdims=True)) // source.shape[1]
    flat = k.reshape(-1, source.shape[1])
    found = [number.get(tuple(row), -1) for row in flat.tolist()]
    return np.array(found, dtype=np.int64).reshape(len(target), len(source))


def splat(values: Array, simplices: Simplices) -> Array:
    """l = B^T v: l_j = sum_{i in C(j)} b_{i,j} v_i."""
    return simplices.weights.T @ values


def slice_at(lattice_values: Array, simplices: Simplices) -> Array:
    """v' = B l': v'_k = sum_{j in C(k)} b_{k,j} l'_j."""
    return simplices.weights @ lattice_values


def convolve(
    lattice_values: Array, weight: Array, source: IntArray, target: IntArray, size: int, groups: int = 1
) -> Array:
    """l'_v = sum_u w[k(u - v)]^T l_u, with the block-diagonal w of the groups: `[target vertices, out_channels]`."""
    dense = block_diagonal(weight, groups)
    table = tap_table(source, target, size)
    result = np.zeros((len(target), dense.shape[2]))
    for v in range(len(target)):
        for u in np.flatnonzero(table[v] >= 0):
            result[v] += lattice_values[u] @ dense[table[v, u]]
    return result


def block_diagonal(weight: Array, groups: int) -> Array:
    """`[filter_size, in_channels / groups, out_channels]` to `[filter_size, in_channels, out_channels]`."""
    filter_size, block_in, out_channels = weight.shape
    block_out = out_channels // groups
    dense = np.zeros((filter_size, block_in * groups, out_channels))
    for g in range(groups):
        columns = np.s_[g * block_out : (g + 1) * block_out]
        dense[:, g * block_in : (g + 1) * block_in, columns] = weight[:, :, columns]
    return dense


def permutohedral_filter(
    values: Array, features: Array, weight: Array, target_features: Array, size: int, groups: int = 1
) -> Array:
    """v' = B_target W B_source^T v: splat, convolve, slice."""
    source, target = locate(features), locate(target_features)
    convolved = convolve(splat(values, source), weight, source.vertices, target.vertices, size, groups)
    return slice_at(convolved, target)


def gaussian_weight(dimension: int, size: int) -> Array:
    """The Gaussian on the taps `[filter_size]`: for each j, v <- v + (v(. + e_j) + v(. - e_j)) / 2, from an impulse.

    The passes run on the whole lattice, and the result is divided by its value at the centre.
    """
    corners = dimension + 1
    impulse: dict[Vertex, float] = {(0,) * corners: 1.0}
    for j in range(corners):
        blurred = dict(impulse)
        for vertex, amount in impulse.items():
            for sign in (1, -1):
                neighbor = tuple(c + sign * ((corners if i == j else 0) - 1) for i, c in enumerate(vertex))
                blurred[neighbor] = blurred.get(neighbor, 0.0) + amount / 2
        impulse = blurred
    centre = impulse[(0,) * corners]
    offsets = [tuple(corners * c - sum(k) for c in k) for k in taps(dimension, size)]
    return np.array([impulse.get(offset, 0.0) / centre for offset in offsets])


def blur_matrix(vertices: IntArray) -> Array:
    """K_d ... K_1 K_0 on the given vertices, K_j[v, u] = 1 if u = v, 1/2 if u = v +- e_j, else 0."""
    corners = vertices.shape[1]
    _check_size(len(vertices) * corners, len(vertices))
    difference = vertices[None, :, :] - vertices[:, None, :]
    result = np.eye(len(vertices))
    for j in range(corners):
        step = corners * np.eye(corners, dtype=np.int64)[j] - 1
        ahead, behind = (difference == step).all(axis=2), (difference == -step).all(axis=2)
        result = (np.eye(len(vertices)) + 0.5 * (ahead | behind)) @ result
    return result


def with_halo(vertices: IntArray, radius: int) -> IntArray:
    """The vertices and all that the taps of size `radius` reach from them, in ascending order."""
    corners = vertices.shape[1]
    k = np.array(taps(corners - 1, radius), dtype=np.int64)
    offsets = corners * k - k.sum(axis=1, keepdims=True)
    return np.unique((vertices[:, None, :] + offsets[None]).reshape(-1, corners), axis=0)


def on_vertices(simplices: Simplices, vertices: IntArray) -> Simplices:
    """The same weights, written on a larger set of vertices; one that rounding alone touches may be missing there."""
    column = {tuple(vertex): number for number, vertex in enumerate(vertices.tolist())}
    weights = np.zeros((len(simplices.weights), len(vertices)))
    for vertex, weight in zip(simplices.vertices.tolist(), simplices.weights.T, strict=True):
        if tuple(vertex) in column or weight.max() > 1e-13:
            weights[:, column[tuple(vertex)]] = weight
    return Simplices(vertices, weights)


def on_common_vertices(source: Simplices, target: Simplices, halo: int) -> tuple[Simplices, Simplices]:
    """Both on the vertices of source and target together, and their halo."""
    vertices = with_halo(np.unique(np.concatenate([source.vertices, target.vertices]), axis=0), halo)
    return on_vertices(source, vertices), on_vertices(target, vertices)


# how lattice values at the vertices of a source become those at the vertices of a target
Step = Callable[[Array, Simplices, Simplices], Array]


def learned_step(weight: Array, size: int, groups: int = 1) -> Step:
    """l' = W l."""
    return lambda lattice_values, source, target: convolve(
        lattice_values, weight, source.vertices, target.vertices, size, groups
    )


def dense_gaussian_step(lattice_values: Array, source: Simplices, target: Simplices, size: int = 2) -> Array:
    """l' = G l, the same Gaussian for every channel."""
    channels = lattice_values.shape[1]
    weight = gaussian_weight(source.vertices.shape[1] - 1, size)[:, None, None] * np.eye(channels)
    return convolve(lattice_values, weight, source.vertices, target.vertices, size)


def separable_gaussian_step(lattice_values: Array, source: Simplices, target: Simplices) -> Array:
    """l' = K l / (1 + 2^-d), where source and target lie on the same vertices."""
    gain: float = 1 + 2.0 ** (1 - source.vertices.shape[1])
    return blur_matrix(source.vertices) @ lattice_values / gain


def normalized_filter(
    values: Array, simplices: tuple[Simplices, Simplices], normalization: str, step: Step, gaussian: Step, size: int = 2
) -> Array:
    """With A_{s,t} v = B_t step(B_s^T v) from source s to target t, and M_{s,t} = B_t G B_s^T 1, the Gaussian's mass:

    none: A_{s,t} v                    symmetric: M_{t,t}^{-1/2} A_{s,t} (M_{s,s}^{-1/2} v)
    homogeneous: A_{s,t} v / M_{s,t}   density: B_t step(B_s^T v / B_s^T 1)
    coverage: as density, over the share of the Gaussian that lies on occupied vertices, at least one tap's share
    """
    source, target = simplices

    def mass(a: Simplices, b: Simplices) -> Array:
        return slice_at(gaussian(splat(np.ones((len(a.weights), 1)), a), a, b), b)

    if normalization == "symmetric":
        values = values / np.sqrt(mass(source, source))
    lattice_values = splat(values, source)
    if normalization in ("density", "coverage"):
        density = splat(np.ones((len(values), 1)), source)
        lattice_values = np.divide(lattice_values, density, out=np.zeros_like(lattice_values), where=density > 0)
    result = slice_at(step(lattice_values, source, target), target)
    if normalization == "homogeneous":
        result = result / mass(source, target)
    if normalization == "coverage":
        occupied = (density > 0).astype(np.float64)
        everywhere = gaussian_weight(source.vertices.shape[1] - 1, size)
        share = slice_at(gaussian(occupied, source, target), target) / everywhere.sum()
        result = result / np.maximum(share, 1 / len(everywhere))
    if normalization == "symmetric":
        result = result / np.sqrt(mass(target, target))
    return result


def exact_gaussian(values: Array, features: Array, target_features: Array) -> Array:
    """v'_k = sum_i exp(-|f_k - f_i|^2 / 2) v_i: what the lattice approximates up to a factor."""
    _check_size(len(features) * features.shape[1], len(target_features))
    squared = np.square(target_features[:, None, :] - features[None, :, :]).sum(axis=2)
    kernel: Array = np.exp(-squared / 2)
    return kernel @ values


def _check_size(rows: int, columns: int) -> None:
    if rows * columns > MAX_ENTRIES:
        raise ValueError(f"the oracle is dense: {rows} x {columns} entries exceed {MAX_ENTRIES}; use fewer points")
