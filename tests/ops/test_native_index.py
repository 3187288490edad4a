"""How the compiled core numbers vertices, against the reference.

By cells where the digits of the keys span few of them, else by hashing; with keys of one word and of several.
"""

from __future__ import annotations

import pytest
import torch
from support import assert_close
from torch import Tensor

from permutohedral.errors import FeatureRangeError, InputError
from permutohedral.lattice.neighborhood import Neighborhood
from permutohedral.ops import reference
from permutohedral.ops.backend import Backend
from permutohedral.ops.constants import axis_offsets, axis_opposite


def corners_of(keys: Tensor, vertices: Tensor) -> Tensor:
    """The key of every corner of every point, which does not depend on the order of the keys."""
    return keys[vertices.long()]


def assert_cells_number_like_hashing(native: Backend, features: Tensor, batch: Tensor | None = None) -> None:
    """A point far away leaves all of them to hashing; the others keep their simplices, to the last bit."""
    keys, vertices, barycentric, table = native.index_points(features, batch)
    assert len(torch.unique(keys, dim=0)) == len(keys)
    far = torch.cat([features, features.max() + torch.full_like(features[:1], 5000)])
    items = None if batch is None else torch.cat([batch, batch[:1]])
    hashed_keys, hashed_vertices, hashed_weights, _ = native.index_points(far, items)
    assert torch.equal(corners_of(keys, vertices), corners_of(hashed_keys, hashed_vertices)[:-1])
    assert torch.equal(barycentric, hashed_weights[:-1])
    offsets, opposite = axis_offsets(features.shape[1]), axis_opposite(features.shape[1])
    expected = reference.find_neighbors(keys, table, keys, offsets)
    assert torch.equal(native.find_neighbors(keys, table, keys, offsets, opposite), expected)
    # in single precision the reference may round a point to another simplex
    if features.dtype == torch.float64:
        expected_keys, expected_vertices, _, _ = reference.index_points(features, batch)
        assert torch.equal(corners_of(keys, vertices), corners_of(expected_keys, expected_vertices))


@pytest.mark.parametrize("dimension", [1, 2, 3, 4, 5, 6, 7])
def test_points_in_few_cells(native: Backend, dtype: torch.dtype, dimension: int) -> None:
    """Near each other, anywhere: the cells have no room to spare."""
    for scale in (1e-3, 0.3, 2.0):
        features = torch.rand(500, dimension, dtype=dtype) * scale + torch.randn(dimension, dtype=dtype) * 100
        assert_cells_number_like_hashing(native, features)


def test_tiles_far_from_the_origin(native: Backend) -> None:
    """Digits that are sums of many others have larger errors there than those that they are made of."""
    y, x = torch.meshgrid(torch.arange(48.0), torch.arange(60.0), indexing="ij")
    color = ((x * y) % 23 / 2).flatten()
    for far in (0, 700, 2000):
        positions = far + y.flatten() / 4, far + x.flatten() / 4
        features = torch.stack([*positions, color, color / 2 + 3, 10 - color], dim=1)
        assert_cells_number_like_hashing(native, features)


def test_items_of_any_number_of_cells(native: Backend) -> None:
    """The first cell of an item is not taken for the last of the item before, whatever the quotient rounds to."""
    for cells in range(1, 130):
        features = (torch.linspace(0, cells, 2 * cells + 2) + torch.rand(1)).repeat(3)[:, None]
        batch = torch.arange(3, dtype=torch.int32).repeat_interleave(2 * cells + 2)
        assert_cells_number_like_hashing(native, features, batch)


@pytest.mark.parametrize("dimension", [2, 3, 5, 6])
def test_points_on_vertices_and_faces(native: Backend, dimension: int) -> None:
    """Where rounding decides on the simplex, the vertices must not leave the cells."""
    keys, _, _, _ = reference.index_points(torch.randn(300, dimension, dtype=torch.float64) * 2, None)
    elevated = torch.cat([keys[:, 1:], -keys[:, 1:].sum(1, keepdim=True)], 1).double()
    scale = (2 / 3) ** 0.5 * (dimension + 1) / torch.arange(1, dimension + 1).mul(torch.arange(2, dimension + 2)).sqrt()
    basis = torch.zeros(dimension + 1, dimension, dtype=torch.float64)
    for j in range(dimension):
        basis[: j + 1, j], basis[j + 1, j] = scale[j], -(j + 1) * scale[j]
    on_vertices = torch.linalg.lstsq(basis, elevated.T).solution.T.contiguous()
    between = (on_vertices + on_vertices.roll(1, 0)) / 2
    for features in (on_vertices, between):
        for dtype in (torch.float64, torch.float32):
            _, vertices, barycentric, _ = native.index_points(features.to(dtype), None)
            assert (barycentric >= 0).all()
            assert_close(barycentric.sum(1), torch.ones(len(features), dtype=dtype))
            assert vertices.min() == 0


def test_features_that_depend_on_each_other(native: Backend, dtype: torch.dtype) -> None:
    """Digits take multiples of others, also many; and some features say nothing."""
    first = torch.rand(2000, 1, dtype=dtype) * 5
    noise = torch.rand(2000, 1, dtype=dtype)
    for others in ([first, first], [1000 * first, -3 * first + noise], [0 * first, first], [-7 * first, 50 + noise]):
        assert_cells_number_like_hashing(native, torch.cat([first, *others, noise], 1))


def test_images_in_a_batch(native: Backend, dtype: torch.dtype) -> None:
    """Rows of pixels, item after item and mixed, near numbers and far ones."""
    y, x = torch.meshgrid(torch.arange(40), torch.arange(30), indexing="ij")
    pixels = torch.stack([y, x, (x * y) % 17], -1).reshape(-1, 3).to(dtype) / torch.tensor([4, 4, 9]).to(dtype)
    features = pixels.repeat(3, 1)
    for items in ([0, 1, 2], [5, 3, 5], [-2, 0, 7], [0, 2**30, -(2**30)], [2**31 - 1] * 3, [-(2**31)] * 3):
        batch = torch.tensor(items, dtype=torch.int32).repeat_interleave(len(pixels))
        order = torch.randperm(len(features))
        assert_cells_number_like_hashing(native, features, batch)
        assert_cells_number_like_hashing(native, features[order], batch[order])


@pytest.mark.parametrize(
    ("dimension", "points"),
    [*((d, points) for d in (1, 2, 3, 4, 5, 6, 7, 8) for points in (1, 17, 2100)), (17, 17), (17, 600), (32, 600)],
)
def test_index_points(native: Backend, dtype: torch.dtype, dimension: int, points: int) -> None:
    features = torch.randn(points, dimension, dtype=dtype) * (3 if dimension < 10 else 1)
    batch = torch.randint(0, 3, (points,), dtype=torch.int32)
    for items in (None, batch):
        keys, vertices, barycentric, _ = native.index_points(features, items)
        expected_keys, expected_vertices, expected_weights, _ = reference.index_points(features, items)
        assert len(torch.unique(keys, dim=0)) == len(keys) == len(expected_keys)
        assert torch.equal(corners_of(keys, vertices), corners_of(expected_keys, expected_vertices))
        assert_close(barycentric, expected_weights)


@pytest.mark.parametrize("dimension", [2, 5, 9])
def test_points_that_share_no_corner(native: Backend, dimension: int) -> None:
    """Far apart, so that the core gives up looking for repetitions, but each point comes twice."""
    features = (torch.randn(1500, dimension, dtype=torch.float64) * 300).repeat(2, 1)
    keys, vertices, _, _ = native.index_points(features, None)
    expected_keys, expected_vertices, _, _ = reference.index_points(features, None)
    assert len(keys) == len(expected_keys) > 1000 * dimension
    assert torch.equal(corners_of(keys, vertices), corners_of(expected_keys, expected_vertices))
    assert torch.equal(vertices[:1500], vertices[1500:])


def test_keys_that_need_several_words(native: Backend) -> None:
    features = torch.randn(700, 6, dtype=torch.float64) * 1e5
    features[300:] = features[:400] + torch.randn(400, 6, dtype=torch.float64)
    keys, vertices, _, table = native.index_points(features, None)
    expected_keys, expected_vertices, _, _ = reference.index_points(features, None)
    assert torch.equal(corners_of(keys, vertices), corners_of(expected_keys, expected_vertices))
    taps = Neighborhood(6, 1).offsets(), Neighborhood(6, 1).opposite()
    expected = reference.find_neighbors(keys, table, keys, *taps)
    assert (expected >= 0).sum() > len(keys)
    assert torch.equal(native.find_neighbors(keys, table, keys, *taps), expected)


def test_packing_looks_at_the_magnitude_of_each_column(native: Backend) -> None:
    """Far apart in one feature, near in the others, with many items."""
    features = torch.randn(3000, 3, dtype=torch.float64) * 3
    features[::2, 1] += 2e8
    batch = torch.arange(3000, dtype=torch.int32) % 1000 * 1_000_000
    keys, vertices, _, table = native.index_points(features, batch)
    expected_keys, expected_vertices, _, _ = reference.index_points(features, batch)
    assert torch.equal(corners_of(keys, vertices), corners_of(expected_keys, expected_vertices))
    taps = axis_offsets(3), axis_opposite(3)
    assert torch.equal(
        native.find_neighbors(keys, table, keys, *taps), reference.find_neighbors(keys, table, keys, *taps)
    )


def test_a_bad_point_anywhere_is_found(native: Backend, dtype: torch.dtype) -> None:
    for row in (0, 12345, 19999):
        for bad in (float("nan"), float("inf"), -float("inf"), 1e12):
            features = torch.zeros(20000, 3, dtype=dtype)
            features[row, 1] = bad
            with pytest.raises(FeatureRangeError):
                native.index_points(features, None)


@pytest.mark.parametrize(
    ("dimension", "size", "points"), [(1, 3, 3000), (2, 2, 3000), (3, 1, 3000), (5, 1, 500), (2, 70, 3000)]
)
def test_neighbors(native: Backend, dimension: int, size: int, points: int) -> None:
    """With and without a table, within one lattice and across two, near and beyond the margin of the packing."""
    source = torch.randn(points, dimension) * 2
    target = torch.randn(points // 3 * 2, dimension) * 2 + 1
    keys, _, _, table = native.index_points(source, None)
    target_keys, _, _, _ = native.index_points(target, None)
    offsets, opposite = axis_offsets(dimension) * size, axis_opposite(dimension)
    if size < 10:
        offsets, opposite = Neighborhood(dimension, size).offsets(), Neighborhood(dimension, size).opposite()
    empty = torch.empty(0, dtype=torch.int64)
    shuffled = keys[torch.randperm(len(keys))]
    for from_keys, from_table, to_keys in [
        (keys, table, keys),
        (keys, table, target_keys),
        (keys, table, target_keys[torch.randperm(len(target_keys))]),
        (shuffled, empty, shuffled),
        (shuffled, empty, target_keys),
    ]:
        expected = reference.find_neighbors(from_keys, empty, to_keys, offsets)
        assert torch.equal(native.find_neighbors(from_keys, from_table, to_keys, offsets), expected)
        if to_keys is from_keys:
            assert torch.equal(native.find_neighbors(from_keys, from_table, to_keys, offsets, opposite), expected)


def test_index_keys_rejects_keys_that_are_no_vertices(native: Backend) -> None:
    with pytest.raises(InputError, match="keys must be vertices"):
        native.index_keys(torch.tensor([[0, 1, 2]], dtype=torch.int32))


def test_rejects_a_table_of_another_backend(native: Backend) -> None:
    keys, _, _, table = native.index_points(torch.randn(50, 2), None)
    with pytest.raises(ValueError, match="table"):
        native.find_neighbors(keys, torch.full_like(table, 10**6), keys, axis_offsets(2))


def test_rejects_transposed_features(native: Backend) -> None:
    advice = r"\[points, dimension\] .* got 4000; transpose .*permutohedral\.backends\.set_default\(\"reference\"\)"
    with pytest.raises(InputError, match=advice):
        native.index_points(torch.zeros(5, 4000), None)
