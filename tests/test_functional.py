"""Splat, convolve, slice and the whole filter, against the oracle."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from numpy.typing import NDArray
from support import DEVICE, ascending, assert_close, to_numpy, to_tensor, vertices_of
from torch import Tensor

import permutohedral as ph
from permutohedral.lattice.neighborhood import count_taps

pytestmark = pytest.mark.usefixtures("backend")

Array = NDArray[np.float64]

# every tap of d = 6, s = 3 is tried: 14,197
# the oracle takes seconds for more taps than these
SIZES = [(d, s) for d in range(1, 7) for s in range(4) if count_taps(d, s) < 2_000]


def draw(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    """Draw normal numbers, rounded to `dtype`."""
    return to_tensor(np.random.default_rng([seed, *shape]).normal(size=shape), dtype)


def filter_of(dtype: torch.dtype, dimension: int, size: int, in_channels: int, out_channels: int) -> Tensor:
    """Draw a filter without any symmetry."""
    return draw(dtype, ph.lattice.Neighborhood(dimension, size).filter_size, in_channels, out_channels, seed=7)


def expected_filter(values: Tensor, features: Tensor, weight: Tensor, target_features: Tensor, size: int) -> Array:
    groups = values.shape[1] // weight.shape[1]
    points = to_numpy(values), to_numpy(features)
    return oracle.permutohedral_filter(*points, to_numpy(weight), to_numpy(target_features), size, groups)


@pytest.mark.parametrize("apart", [False, True], ids=["same_points", "different_points"])
@pytest.mark.parametrize(("dimension", "size"), SIZES)
def test_steps_match_oracle(dimension: int, size: int, apart: bool, dtype: torch.dtype) -> None:
    features, values = draw(dtype, 16, dimension), draw(dtype, 16, 2)
    target_features = draw(dtype, 9, dimension, seed=1) if apart else None
    weight = filter_of(dtype, dimension, size, 2, 3)
    lattice = ph.build_lattice(features, target_features, neighborhood_size=size)
    source = oracle.locate(to_numpy(features))
    target = source if target_features is None else oracle.locate(to_numpy(target_features))

    splatted = ph.splat(values, lattice)
    source_order = ascending(vertices_of(lattice.source.keys))
    expected = oracle.splat(to_numpy(values), source)
    assert_close(splatted[source_order], expected)

    convolved = ph.convolve(splatted, weight, lattice)
    target_order = ascending(vertices_of(lattice.target.keys))
    expected = oracle.convolve(expected, to_numpy(weight), source.vertices, target.vertices, size)
    assert_close(convolved[target_order], expected)

    sliced = ph.slice(convolved, lattice)
    expected = oracle.slice_at(expected, target)
    assert_close(sliced, expected)
    assert (splatted.dtype, convolved.dtype, sliced.dtype) == (dtype, dtype, dtype)


@pytest.mark.parametrize("dimension", [9, 12, 32])
def test_high_dimensions(dimension: int, dtype: torch.dtype) -> None:
    """Points close together, so that they meet: d = 9 with 1,023 taps, beyond with the centre alone."""
    size = 1 if dimension == 9 else 0
    features, values, targets = (
        draw(dtype, 12, dimension) / 8,
        draw(dtype, 12, 2),
        draw(dtype, 5, dimension, seed=1) / 8,
    )
    weight = filter_of(dtype, dimension, size, 2, 2)
    actual = ph.permutohedral_filter(values, features, weight, targets, neighborhood_size=size)
    assert_close(actual, expected_filter(values, features, weight, targets, size))


@pytest.mark.parametrize(("in_channels", "out_channels", "groups"), [(4, 4, 4), (4, 6, 2), (6, 3, 3), (3, 9, 3)])
def test_groups(in_channels: int, out_channels: int, groups: int, dtype: torch.dtype) -> None:
    features, values = draw(dtype, 16, 2), draw(dtype, 16, in_channels)
    weight = filter_of(dtype, 2, 1, in_channels // groups, out_channels)
    actual = ph.permutohedral_filter(values, features, weight)
    assert_close(actual, expected_filter(values, features, weight, features, 1))


def test_filter_shared_by_channels(dtype: torch.dtype) -> None:
    features, values, taps = draw(dtype, 16, 2), draw(dtype, 16, 3), draw(dtype, 7)
    actual = ph.permutohedral_filter(values, features, taps)
    weight = taps[:, None, None] * torch.eye(3, device=DEVICE, dtype=dtype)
    assert_close(actual, expected_filter(values, features, weight, features, 1))


@pytest.mark.parametrize("apart", [False, True], ids=["same_points", "different_points"])
@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_lattice_per_item(dimension: int, apart: bool, dtype: torch.dtype) -> None:
    features, values = draw(dtype, 3, 12, dimension), draw(dtype, 3, 12, 2)
    targets = draw(dtype, 3, 7, dimension, seed=1) if apart else None
    weight = filter_of(dtype, dimension, 1, 2, 3)
    actual = ph.permutohedral_filter(values, features, weight, targets)
    at = features if targets is None else targets
    for item in range(3):
        assert_close(actual[item], expected_filter(values[item], features[item], weight, at[item], 1))


@pytest.mark.parametrize("apart", [False, True], ids=["same_points", "different_points"])
@pytest.mark.parametrize("leading", [(3,), (2, 3), (1,)])
def test_shared_lattice(leading: tuple[int, ...], apart: bool, dtype: torch.dtype) -> None:
    features, values = draw(dtype, 12, 2), draw(dtype, *leading, 12, 4)
    targets = draw(dtype, 7, 2, seed=1) if apart else None
    weight = filter_of(dtype, 2, 1, 2, 6)
    lattice = ph.build_lattice(features, targets)
    splatted = ph.splat(values, lattice)
    assert splatted.shape == (*leading, lattice.num_lattice_points, 4)
    actual = ph.slice(ph.convolve(splatted, weight, lattice), lattice)
    whole = ph.permutohedral_filter(values, features, weight, targets)
    at = features if targets is None else targets
    assert actual.shape == whole.shape == (*leading, len(at), 6)
    for item in np.ndindex(leading):
        expected = expected_filter(values[item], features, weight, at, 1)
        assert_close(actual[item], expected)
        assert_close(whole[item], expected)


@pytest.mark.parametrize("apart", [False, True], ids=["same_points", "different_points"])
@pytest.mark.parametrize("item_dtype", [torch.int64, torch.int32, torch.uint8])
def test_ragged_batches(item_dtype: torch.dtype, apart: bool, dtype: torch.dtype) -> None:
    """Items of 0 to 15 points, in no order; targets of an item without sources get zero."""
    random = np.random.default_rng(5)
    items = random.permutation(np.repeat([0, 1, 3, 4], [15, 1, 8, 4]))
    target_items = random.permutation(np.repeat([0, 2, 3, 4], [3, 2, 5, 1]))
    features, values = draw(dtype, len(items), 3), draw(dtype, len(items), 2)
    targets = draw(dtype, len(target_items), 3, seed=1) if apart else None
    weight = filter_of(dtype, 3, 1, 2, 3)
    target_batch = to_tensor(target_items, item_dtype) if apart else None
    lattice = ph.build_lattice(
        features, targets, neighborhood_size=1, batch=to_tensor(items, item_dtype), target_batch=target_batch
    )
    actual = ph.permutohedral_filter(values, lattice, weight)
    at, at_items = (features, items) if targets is None else (targets, target_items)
    for item in range(5):
        source, target = torch.from_numpy(items == item), torch.from_numpy(at_items == item)
        if source.any():
            expected = expected_filter(values[source], features[source], weight, at[target], 1)
            assert_close(actual[target], expected)
        else:
            assert (actual[target] == 0).all()


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_16_bit_values(half: torch.dtype) -> None:
    """Rounded after each of the three steps: three units in the last place at most, against the largest value."""
    features, values, weight = draw(torch.float32, 40, 2), draw(half, 40, 3), filter_of(half, 2, 1, 3, 2)
    actual = ph.permutohedral_filter(values, features, weight)
    assert actual.dtype == half
    lattice = ph.build_lattice(features)
    splatted = ph.splat(values, lattice)
    assert_close(splatted, ph.splat(values.float(), lattice))
    convolved = ph.convolve(splatted, weight, lattice)
    assert_close(convolved, ph.convolve(splatted.float(), weight.float(), lattice))
    sliced = ph.slice(convolved, lattice)
    assert_close(sliced, ph.slice(convolved.float(), lattice))
    assert (sliced == actual).all()


def test_inputs_are_not_modified(dtype: torch.dtype) -> None:
    features, values, targets = draw(dtype, 16, 2), draw(dtype, 16, 3), draw(dtype, 5, 2, seed=1)
    weight = filter_of(dtype, 2, 1, 3, 3)
    before = [each.clone() for each in (features, values, targets, weight)]
    for normalization in ("none", "homogeneous", "symmetric", "density"):
        ph.permutohedral_filter(values, features, weight, targets, neighborhood_size=1, normalization=normalization)
        ph.gaussian_filter(values, features, targets, normalization=normalization, halo=1)
    assert all(bool((now == then).all()) for now, then in zip((features, values, targets, weight), before, strict=True))
