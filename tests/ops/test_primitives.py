"""Every backend fulfills the contract of `ops/backend.py`, to rounding, against the oracle."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from support import DEVICE, ascending, assert_close, to_tensor, vertices_of
from torch import Tensor

from permutohedral.errors import FeatureRangeError
from permutohedral.lattice.neighborhood import Neighborhood
from permutohedral.ops.backend import Backend
from permutohedral.ops.binding import bind
from permutohedral.ops.constants import axis_offsets
from permutohedral.ops.contract import key_limit
from permutohedral.ops.dispatch import backend_on

DIMENSIONS = [1, 2, 3, 4, 5, 6, 9, 17, 32]


@pytest.fixture
def primitives(backend: str) -> Backend:
    return backend_on(DEVICE.type)


def weights_of(vertices: Tensor, barycentric: Tensor, num_lattice_points: int) -> Tensor:
    """B as a dense matrix `[points, lattice_points]`."""
    dense = torch.zeros(len(vertices), num_lattice_points, dtype=torch.float64)
    return dense.scatter_add_(1, vertices.cpu().long(), barycentric.cpu().double())


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_index_points(primitives: Backend, dtype: torch.dtype, dimension: int, random: np.random.Generator) -> None:
    features = to_tensor(random.normal(size=(30, dimension)) * 2, dtype)
    keys, vertices, barycentric, _ = primitives.index_points(features, None)
    assert (keys.dtype, vertices.dtype, barycentric.dtype) == (torch.int32, torch.int32, dtype)
    assert keys.shape[1] == dimension + 1
    assert (keys[:, 0] == 0).all()
    expected = oracle.locate(features.cpu().double().numpy())
    found = vertices_of(keys)
    order = ascending(found)
    np.testing.assert_array_equal(found[order], expected.vertices)
    assert_close(weights_of(vertices, barycentric, len(keys))[:, order], expected.weights, dtype)
    # corner j is the vertex congruent to j
    residue = torch.from_numpy(found)[vertices.cpu().long()] % (dimension + 1)
    assert (residue == torch.arange(dimension + 1)[None, :, None]).all()


@pytest.mark.parametrize("dimension", [1, 3, 6])
def test_index_points_keeps_items_apart(primitives: Backend, dimension: int, random: np.random.Generator) -> None:
    features = to_tensor(random.normal(size=(40, dimension)))
    batch = to_tensor(random.integers(0, 4, size=40), torch.int32)
    batch[batch == 2] = 7
    keys, vertices, barycentric, _ = primitives.index_points(features, batch)
    assert len(torch.unique(keys, dim=0)) == len(keys)
    assert (keys[vertices.long()][:, :, 0] == batch[:, None]).all()
    for item in (0, 1, 3, 7):
        rows, points = (keys[:, 0] == item).cpu(), batch == item
        expected = oracle.locate(features[points].cpu().numpy())
        found = vertices_of(keys)[rows]
        order = ascending(found)
        np.testing.assert_array_equal(found[order], expected.vertices)
        dense = weights_of(vertices[points], barycentric[points], len(keys))[:, rows]
        assert_close(dense[:, order], expected.weights)


@pytest.mark.parametrize("dimension", [1, 2, 5, 17])
def test_points_on_faces_and_vertices(
    primitives: Backend, dtype: torch.dtype, dimension: int, random: np.random.Generator
) -> None:
    """Where several simplices meet, any of them will do: the weights still say where the point is."""
    elevation = oracle.elevation(dimension)
    digits = random.integers(-3, 4, size=(60, dimension + 1))
    lattice = (dimension + 1) * digits - digits.sum(axis=1, keepdims=True)
    lattice[20:40] += 2 * lattice[:20]
    points = np.concatenate([lattice[:20], (lattice[20:40] + lattice[:20]) / 2, np.zeros((5, dimension + 1))])
    features = to_tensor(points @ np.linalg.pinv(elevation).T, dtype)
    keys, vertices, barycentric, _ = primitives.index_points(features, None)
    assert (barycentric >= 0).all()
    assert_close(barycentric.sum(dim=1), torch.ones(len(points)))
    reproduced = weights_of(vertices, barycentric, len(keys)) @ torch.from_numpy(vertices_of(keys)).double()
    assert_close(reproduced, points, dtype)


def test_duplicated_points_share_their_vertices(primitives: Backend, random: np.random.Generator) -> None:
    features = to_tensor(np.repeat(random.normal(size=(1, 4)), 50, axis=0))
    keys, vertices, barycentric, _ = primitives.index_points(features, None)
    assert len(keys) == 5
    assert (vertices == vertices[:1]).all()
    assert (barycentric == barycentric[:1]).all()


def test_no_points(primitives: Backend, dtype: torch.dtype) -> None:
    keys, vertices, barycentric, table = primitives.index_points(torch.empty(0, 3, device=DEVICE, dtype=dtype), None)
    assert (keys.shape, vertices.shape, barycentric.shape) == ((0, 4), (0, 4), (0, 4))
    assert (keys.dtype, vertices.dtype, barycentric.dtype) == (torch.int32, torch.int32, dtype)
    offsets = Neighborhood(3, 1).offsets(DEVICE)
    assert primitives.find_neighbors(keys, table, keys, offsets).shape == (15, 0)
    assert (primitives.find_neighbors(keys, table, keys.new_zeros(2, 4), offsets) == -1).all()
    values = torch.empty(0, 2, device=DEVICE, dtype=dtype)
    assert primitives.splat(values, vertices, barycentric, 0).shape == (0, 2)
    assert (primitives.splat(values, vertices, barycentric, 3) == 0).all()
    assert primitives.slice(values, vertices, barycentric).shape == (0, 2)
    neighbors = keys.new_empty(15, 0)
    weight = torch.ones(15, 2, 5, device=DEVICE, dtype=dtype)
    assert primitives.convolve(values, weight, neighbors, 1).shape == (0, 5)
    gradient = primitives.convolve_weight_gradient(values, values.new_empty(0, 5), neighbors, 1)
    assert gradient.shape == weight.shape
    assert (gradient == 0).all()
    assert primitives.blur(values, keys.new_empty(8, 0), False).shape == (0, 2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_features_must_be_finite(primitives: Backend, dtype: torch.dtype, bad: float) -> None:
    features = to_tensor(np.zeros((5, 3)), dtype)
    features[3, 1] = bad
    with pytest.raises(FeatureRangeError, match=r"1 of 5 points hold NaN or infinity, the first at row 3"):
        primitives.index_points(features, None)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("excess", [1.01, 2.0, 5.0, 1e6, 1e30])
def test_features_out_of_range_raise(primitives: Backend, dtype: torch.dtype, sign: int, excess: float) -> None:
    """A key never wraps: just beyond the limit, beyond int32, and beyond int64."""
    limit = key_limit(dtype) / oracle.elevation(3)[:, 0].max()
    features = to_tensor(np.zeros((5, 3)), dtype)
    features[2, 0] = sign * excess * limit
    with pytest.raises(FeatureRangeError, match="do not fit a key"):
        primitives.index_points(features, None)


def test_features_just_inside_the_range(primitives: Backend, dtype: torch.dtype) -> None:
    features = to_tensor([[0.97 * key_limit(dtype) / oracle.elevation(3)[:, 0].max(), 1.0, -1.0]], dtype)
    keys, vertices, barycentric, _ = primitives.index_points(features, None)
    y = oracle.elevation(3) @ features.cpu().double().numpy()[0]
    assert_close(weights_of(vertices, barycentric, 4) @ torch.from_numpy(vertices_of(keys)).double(), y[None], dtype)


@pytest.mark.parametrize("magnitude", [3, 1000, 2**30])
@pytest.mark.parametrize("columns", [2, 4, 7, 33])
def test_index_keys(primitives: Backend, magnitude: int, columns: int, random: np.random.Generator) -> None:
    rows = random.integers(-magnitude, magnitude + 1, size=(50, columns))
    rows[:, 0] = np.abs(rows[:, 0])
    # the coordinates of a vertex are congruent modulo d + 1
    rows[:, 1:] += random.integers(0, columns, size=(50, 1)) - rows[:, 1:] % columns
    keys = to_tensor(rows[random.integers(0, 50, size=200)], torch.int32)
    unique_keys, inverse, _ = primitives.index_keys(keys)
    assert (unique_keys.dtype, inverse.dtype) == (torch.int32, torch.int32)
    assert (unique_keys[inverse.long()] == keys).all()
    assert len(unique_keys) == len(torch.unique(keys, dim=0))


@pytest.mark.parametrize(("dimension", "size"), [(d, s) for d in range(1, 6) for s in range(4)] + [(6, 1), (9, 1)])
def test_find_neighbors(primitives: Backend, dimension: int, size: int, random: np.random.Generator) -> None:
    """Different source and target points: exactly the rows that the differences of the vertices name."""
    source_keys, _, _, table = primitives.index_points(to_tensor(random.normal(size=(12, dimension))), None)
    target_keys, _, _, _ = primitives.index_points(to_tensor(random.normal(size=(8, dimension))), None)
    offsets = Neighborhood(dimension, size).offsets(DEVICE)
    neighbors = primitives.find_neighbors(source_keys, table, target_keys, offsets)
    assert neighbors.dtype == torch.int32
    taps = oracle.tap_table(vertices_of(source_keys), vertices_of(target_keys), size)
    expected = np.full(neighbors.shape, -1)
    target, source = (taps >= 0).nonzero()
    expected[taps[target, source], target] = source
    np.testing.assert_array_equal(neighbors.cpu().numpy(), expected)
    without_table = primitives.find_neighbors(source_keys, table[:0], target_keys, offsets)
    assert (without_table == neighbors).all()


@pytest.mark.parametrize(("dimension", "size"), [(1, 3), (3, 1), (5, 1), (6, 1), (9, 1)])
def test_opposite_taps_as_one(primitives: Backend, dimension: int, size: int, random: np.random.Generator) -> None:
    keys, _, _, table = primitives.index_points(to_tensor(random.normal(size=(30, dimension))), None)
    neighborhood = Neighborhood(dimension, size)
    offsets, opposite = neighborhood.offsets(DEVICE), neighborhood.opposite(DEVICE)
    found = primitives.find_neighbors(keys, table, keys, offsets, opposite)
    assert (found == primitives.find_neighbors(keys, table, keys, offsets)).all()


@pytest.mark.parametrize("dimension", [1, 3, 5])
def test_neighbors_stay_in_their_item(primitives: Backend, dimension: int, random: np.random.Generator) -> None:
    """Every item holds the same points, so a lookup that forgets the item finds the same vertex in another."""
    features = to_tensor(np.tile(random.normal(size=(10, dimension)), (3, 1)))
    batch = to_tensor(np.repeat([0, 1, 5], 10), torch.int32)
    keys, _, _, table = primitives.index_points(features, batch)
    taps = Neighborhood(dimension, 1).offsets(DEVICE), Neighborhood(dimension, 1).opposite(DEVICE)
    neighbors = primitives.find_neighbors(keys, table, keys, *taps).long()
    tap, row = (neighbors >= 0).nonzero(as_tuple=True)
    assert (keys[neighbors[tap, row], 0] == keys[row, 0]).all()
    assert (neighbors[0] == torch.arange(len(keys), device=DEVICE)).all()
    counts = [(neighbors[:, keys[:, 0] == item] >= 0).sum() for item in (0, 1, 5)]
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("dimension", [1, 3, 6])
def test_transpose_neighbors(primitives: Backend, dimension: int, random: np.random.Generator) -> None:
    neighborhood = Neighborhood(dimension, 1)
    source_keys, _, _, table = primitives.index_points(to_tensor(random.normal(size=(12, dimension))), None)
    target_keys, _, _, target_table = primitives.index_points(to_tensor(random.normal(size=(8, dimension))), None)
    offsets = neighborhood.offsets(DEVICE)
    neighbors = primitives.find_neighbors(source_keys, table, target_keys, offsets)
    transposed = primitives.transpose_neighbors(neighbors, neighborhood.opposite(DEVICE), len(source_keys))
    assert transposed.dtype == torch.int32
    assert (transposed == primitives.find_neighbors(target_keys, target_table, source_keys, offsets)).all()


@pytest.mark.parametrize("dimension", [1, 4, 17, 32])
def test_embed_gradient_and_differential(
    primitives: Backend, dtype: torch.dtype, dimension: int, random: np.random.Generator
) -> None:
    """J is the matrix of b = M^-1 (y, 1), the columns of M being the corners (v_j, 1)."""
    features = to_tensor(random.normal(size=(10, dimension)) * 2, dtype)
    gradient, differential = random.normal(size=(10, dimension + 1)), random.normal(size=(10, dimension))
    keys, vertices, _, _ = primitives.index_points(features, None)
    corners = vertices_of(keys)[vertices.cpu().numpy()]
    elevation = oracle.elevation(dimension)
    jacobians = []
    for corner in corners:
        matrix = np.concatenate([corner.T, np.ones((1, dimension + 1))])
        jacobians.append(np.linalg.pinv(matrix)[:, : dimension + 1] @ elevation)
    jacobian = np.stack(jacobians)
    pulled = primitives.embed_gradient(features, to_tensor(gradient, dtype))
    assert pulled.dtype == dtype
    assert_close(pulled, np.einsum("pjd,pj->pd", jacobian, gradient))
    pushed = bind(features).embed_differential(features, to_tensor(differential, dtype))
    assert pushed.dtype == dtype
    assert_close(pushed, np.einsum("pjd,pd->pj", jacobian, differential))


@pytest.mark.parametrize(("points", "corners", "channels"), [(0, 2, 3), (1, 1, 1), (90, 2, 40), (60, 4, 19)])
def test_the_largest_and_what_goes_back_to_it(
    primitives: Backend, dtype: torch.dtype, points: int, corners: int, channels: int, random: np.random.Generator
) -> None:
    """Of equals the first, NaN before all; corners that are named twice count once; rows without points are zero."""
    values = random.integers(-3, 3, size=(points, channels)).astype(float)
    values[random.random(values.shape) < 0.05] = np.nan
    vertices = random.integers(0, 17, size=(points, corners))
    leaf, corner = to_tensor(values, dtype).requires_grad_(), to_tensor(vertices, torch.int32)
    winners = primitives.find_largest(leaf.detach(), corner, 18)
    largest = Backend.splat_largest(primitives, leaf, corner, 18)
    gradient = random.normal(size=(18, channels))
    expected, first = np.zeros((18, channels)), np.full((18, channels), -1)
    back = np.zeros((points, channels))
    for row in range(18):
        around = np.flatnonzero((vertices == row).any(axis=1))
        for channel in range(channels if len(around) else 0):
            column = values[around, channel]
            # the first NaN, else the first of the largest
            place = around[np.argmax(column)]
            expected[row, channel], first[row, channel] = values[place, channel], place
            back[place, channel] += gradient[row, channel]
    np.testing.assert_array_equal(largest.detach().cpu().double().numpy(), expected)
    np.testing.assert_array_equal(winners.cpu().numpy(), first)
    if points:
        (sent,) = torch.autograd.grad(largest, leaf, to_tensor(gradient, dtype))
        assert_close(sent, back, dtype)


@pytest.mark.parametrize("dimension", [1, 3, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_blur(
    primitives: Backend, dtype: torch.dtype, dimension: int, reverse: bool, random: np.random.Generator
) -> None:
    features = to_tensor(random.normal(size=(25, dimension)), dtype)
    keys, _, _, table = primitives.index_points(features, None)
    neighbors = primitives.find_neighbors(keys, table, keys, axis_offsets(dimension, features.device))
    values = random.normal(size=(len(keys), 3))
    matrix = oracle.blur_matrix(vertices_of(keys))
    before = to_tensor(values, dtype)
    kept = before.clone()
    blurred = primitives.blur(before, neighbors, reverse)
    assert (before == kept).all()
    assert blurred.dtype == dtype
    assert_close(blurred, (matrix.T if reverse else matrix) @ values)
