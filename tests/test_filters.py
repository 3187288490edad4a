"""Gaussian and bilateral filters and all normalizations, against the oracle."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from numpy.typing import NDArray
from support import DEVICE, TOLERANCE, assert_close, relative_error, to_numpy, to_tensor
from torch import Tensor

import permutohedral as ph
from permutohedral.features import FEATURE_SHIFT
from permutohedral.filters.normalization import NORMALIZATIONS

SIGMAS: dict[str, Any] = {"sigma_space": 1.7, "sigma_color": 0.3}

pytestmark = pytest.mark.usefixtures("backend")


def scatter(dtype: torch.dtype, dimension: int, apart: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Values, features, and targets that lie among them."""
    random = np.random.default_rng(dimension)
    features = random.normal(size=(20, dimension))
    targets = to_tensor(features[:9] + 0.4 * random.normal(size=(9, dimension)), dtype) if apart else None
    return to_tensor(random.normal(size=(20, 2)), dtype), to_tensor(features, dtype), targets


def located(features: Tensor, targets: Tensor | None) -> tuple[oracle.Simplices, oracle.Simplices]:
    source = oracle.locate(to_numpy(features))
    return source, source if targets is None else oracle.locate(to_numpy(targets))


# once for all backends: the oracle is slower than they are
@cache
def expected_gaussian(
    dtype: torch.dtype, dimension: int, apart: bool, normalization: Any, halo: int | None
) -> NDArray[np.float64]:
    """Return the separable Gaussian with a halo, or the dense one, of the points of `scatter`."""
    values, features, targets = scatter(dtype, dimension, apart)
    simplices = located(features, targets)
    step: oracle.Step = oracle.dense_gaussian_step
    if halo is not None:
        simplices, step = oracle.on_common_vertices(*simplices, halo), oracle.separable_gaussian_step
    return oracle.normalized_filter(to_numpy(values), simplices, normalization, step, step)


@cache
def expected_learned(
    dtype: torch.dtype, dimension: int, apart: bool, normalization: Any, size: int
) -> NDArray[np.float64]:
    """Return the filter of `learned_weight` on the points of `scatter`."""
    values, features, targets = scatter(dtype, dimension, apart)
    weight = to_numpy(learned_weight(dtype, dimension, size))
    step, gaussian = oracle.learned_step(weight, size), partial(oracle.dense_gaussian_step, size=size)
    simplices = located(features, targets)
    if targets is not None:
        assert_reached(simplices, gaussian)
    return oracle.normalized_filter(to_numpy(values), simplices, normalization, step, gaussian, size)


def learned_weight(dtype: torch.dtype, dimension: int, size: int) -> Tensor:
    taps = ph.lattice.Neighborhood(dimension, size).filter_size
    return to_tensor(np.random.default_rng(1).normal(size=(taps, 2, 3)), dtype)


apart_or_not = pytest.mark.parametrize("apart", [False, True], ids=["same_points", "different_points"])


@apart_or_not
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize(("dimension", "halo"), [(1, 0), (2, 2), (3, 1), (5, 0)])
def test_separable_gaussian(dimension: int, halo: int, normalization: Any, apart: bool, dtype: torch.dtype) -> None:
    values, features, targets = scatter(dtype, dimension, apart)
    actual = ph.gaussian_filter(values, features, targets, normalization=normalization, method="lattice", halo=halo)
    assert_close(actual, expected_gaussian(dtype, dimension, apart, normalization, halo))


@apart_or_not
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("dimension", [1, 2, 4])
def test_dense_gaussian(dimension: int, normalization: Any, apart: bool, dtype: torch.dtype) -> None:
    values, features, targets = scatter(dtype, dimension, apart)
    expected = expected_gaussian(dtype, dimension, apart, normalization, None)
    actual = ph.gaussian_filter(values, features, targets, normalization=normalization, method="dense")
    assert_close(actual, expected)
    # every path of the Gaussian is in its taps, so the lattice points around add nothing
    assert_close(
        ph.gaussian_filter(values, features, targets, normalization=normalization, method="dense", halo=1), expected
    )


@apart_or_not
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize(("dimension", "size"), [(1, 3), (2, 1), (3, 2), (5, 1), (2, 0)])
def test_normalizations_of_learned_filter(
    dimension: int, size: int, normalization: Any, apart: bool, dtype: torch.dtype
) -> None:
    values, features, targets = scatter(dtype, dimension, apart)
    weight = learned_weight(dtype, dimension, size)
    actual = ph.permutohedral_filter(
        values, features, weight, targets, neighborhood_size=size, normalization=normalization
    )
    assert_close(actual, expected_learned(dtype, dimension, apart, normalization, size))


def assert_reached(simplices: tuple[oracle.Simplices, oracle.Simplices], gaussian: oracle.Step) -> None:
    """Check the inputs of a test: every target is within reach of a source."""
    ones = np.ones((len(simplices[0].weights), 1))
    assert oracle.normalized_filter(ones, simplices, "none", gaussian, gaussian).min() > 0


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("batched", ["own_lattices", "shared_lattice", "ragged"])
def test_normalizations_of_batches_match_items(normalization: Any, batched: str) -> None:
    random = np.random.default_rng(2)
    features, values = to_tensor(random.normal(size=(3, 15, 2))), to_tensor(random.normal(size=(3, 15, 2)))
    targets = features[:, :6] + 0.1
    weight = to_tensor(random.normal(size=(7, 2, 2)))
    if batched == "shared_lattice":
        features, targets = features[:1].expand_as(features), targets[:1].expand_as(targets)
        lattice = ph.build_lattice(features[0], targets[0])
    elif batched == "own_lattices":
        lattice = ph.build_lattice(features, targets)
    else:
        items = torch.arange(3, device=DEVICE)
        lattice = ph.build_lattice(
            features.flatten(0, 1),
            targets.flatten(0, 1),
            neighborhood_size=1,
            batch=items.repeat_interleave(15),
            target_batch=items.repeat_interleave(6),
        )
        values = values.flatten(0, 1)
    actual = ph.permutohedral_filter(values, lattice, weight, normalization=normalization)
    actual, values = actual.reshape(3, 6, 2), values.reshape(3, 15, 2)
    for item in range(3):
        single = ph.permutohedral_filter(
            values[item], features[item], weight, targets[item], normalization=normalization
        )
        assert_close(actual[item], single)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("values_dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_unreached_targets_are_zero(values_dtype: torch.dtype, normalization: Any) -> None:
    features_dtype = torch.float64 if values_dtype == torch.float64 else torch.float32
    features, targets = to_tensor(np.zeros((5, 2)), features_dtype), to_tensor(np.full((3, 2), 50.0), features_dtype)
    values, weight = to_tensor(np.ones((5, 2)), values_dtype), to_tensor(np.ones((7, 2, 2)), values_dtype)
    learned = ph.permutohedral_filter(values, features, weight, targets, normalization=normalization)
    assert (learned == 0).all()
    for method in ("lattice", "dense"):
        assert (ph.gaussian_filter(values, features, targets, normalization=normalization, method=method) == 0).all()


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("values_dtype", [torch.float16, torch.bfloat16], ids=str)
def test_tiny_weights_in_16_bits(values_dtype: torch.dtype, normalization: Any) -> None:
    """Points a hair away from a vertex: the other corners get weights that underflow in float16."""
    random = np.random.default_rng(3)
    features = to_tensor(1e-7 * random.normal(size=(6, 3)), torch.float32)
    values, weight = to_tensor(np.ones((6, 2)), values_dtype), to_tensor(np.ones((15, 2, 2)), values_dtype)
    result = ph.permutohedral_filter(values, features, weight, normalization=normalization)
    assert result.isfinite().all()
    assert ph.gaussian_filter(values, features, normalization=normalization).isfinite().all()


def test_lattice_instead_of_features(dtype: torch.dtype) -> None:
    values, features, targets = scatter(dtype, 2, apart=True)
    separable = ph.build_lattice(features, targets, separable=True)
    actual = ph.gaussian_filter(values, separable, method="lattice")
    assert_close(actual, ph.gaussian_filter(values, features, targets, method="lattice"))
    dense = ph.build_lattice(features, targets, neighborhood_size=2)
    actual = ph.gaussian_filter(values, dense, method="dense")
    assert_close(actual, ph.gaussian_filter(values, features, targets, method="dense"))


def pixel_features(guide: np.ndarray, sigma_space: float, sigma_color: float) -> np.ndarray:
    """(y / sigma_space, x / sigma_space, colors / sigma_color) of every pixel in scan order, shifted."""
    channels, height, width = guide.shape
    rows = [
        [y / sigma_space, x / sigma_space, *(guide[c, y, x] / sigma_color for c in range(channels))]
        for y in range(height)
        for x in range(width)
    ]
    return np.array(rows) + FEATURE_SHIFT


@pytest.mark.parametrize("guided", [False, True], ids=["own_guide", "other_guide"])
@pytest.mark.parametrize("leading", [(), (2,), (2, 2)])
def test_bilateral_filter(leading: tuple[int, ...], guided: bool, dtype: torch.dtype) -> None:
    """Height and width differ, and so do all pixels: an exchange of axes shows.

    The first row of pixels lies on faces of simplices, where the lattice method may take either side.
    """
    random = np.random.default_rng(4)
    image = to_tensor(random.random((*leading, 2, 4, 5)), dtype)
    guide = to_tensor(random.random((*leading, 1, 4, 5)), dtype) if guided else None
    actual = ph.bilateral_filter(image, **SIGMAS, guide=guide, method="dense")
    assert actual.shape == image.shape
    step = oracle.dense_gaussian_step
    for item in np.ndindex(leading):
        features = pixel_features(to_numpy((image if guide is None else guide)[item]), 1.7, 0.3)
        source = oracle.locate(features)
        values = to_numpy(image[item]).reshape(2, 20).T
        expected = oracle.normalized_filter(values, (source, source), "homogeneous", step, step)
        assert_close(actual[item], expected.T.reshape(2, 4, 5))


def test_guide_broadcasts_over_batch(dtype: torch.dtype) -> None:
    random = np.random.default_rng(4)
    images, guide = to_tensor(random.random((3, 2, 4, 5)), dtype), to_tensor(random.random((1, 4, 5)), dtype)
    actual = ph.bilateral_filter(images, **SIGMAS, guide=guide)
    for image, result in zip(images, actual, strict=True):
        assert_close(result, ph.bilateral_filter(image, **SIGMAS, guide=guide))


@pytest.mark.parametrize("options", [{}, {"method": "dense"}, {"halo": 1}], ids=str)
def test_bilateral_equals_gaussian_of_bilateral_features(options: dict[str, Any]) -> None:
    image = to_tensor(np.random.default_rng(4).random((1, 4, 5)))
    features = ph.features.bilateral(image, **SIGMAS)
    assert_close(features, pixel_features(to_numpy(image), 1.7, 0.3))
    actual = ph.bilateral_filter(image, **SIGMAS, **options)
    assert_close(actual.reshape(20, 1), ph.gaussian_filter(image.reshape(20, 1), features, **options))
    if options:
        assert relative_error(actual, ph.bilateral_filter(image, **SIGMAS)) > TOLERANCE[torch.float64]


def test_keeps_edges_and_removes_noise() -> None:
    """Two flat halves with a step of ten sigma: each keeps its own mean, across which nothing leaks."""
    random = np.random.default_rng(6)
    noise = 0.02 * random.normal(size=(1, 16, 16))
    image = to_tensor(np.where(np.arange(16) < 8, 0.0, 1.0) + noise)
    result = ph.bilateral_filter(image, sigma_space=20.0, sigma_color=0.1)
    left, right = to_numpy(result[:, :, :8]), to_numpy(result[:, :, 8:])
    assert left.max() < 0.05
    assert right.min() > 0.95
    assert left.std() < noise.std() / 3
    assert right.std() < noise.std() / 3
