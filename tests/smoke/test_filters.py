"""Filters of an installed package against a dense definition of the lattice, and laws that hold everywhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import permutohedral as ph

Vertex = tuple[int, ...]


@pytest.fixture(params=[name for name in ph.backends.available() if name in ("native", "reference")])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with ph.backends.use(request.param):
        yield request.param


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def simplex(feature: NDArray[np.float64]) -> dict[Vertex, float]:
    """Return the weights of the vertices around a point: the lengths of {t : floor(x + t) projects to the vertex}."""
    corners = len(feature) + 1
    columns = [np.array([1.0] * j + [-j] + [0.0] * (corners - j - 1)) / np.sqrt(j * (j + 1)) for j in range(1, corners)]
    x = np.sqrt(2 / 3) * np.stack(columns, axis=1) @ feature
    steps = np.sort(np.concatenate([[0.0, 1.0], np.ceil(x) - x]))
    weights: dict[Vertex, float] = {}
    for begin, end in itertools.pairwise(steps):
        n = np.floor(x + (begin + end) / 2).astype(int)
        if end > begin:
            vertex = tuple(int(c) for c in corners * n - n.sum())
            weights[vertex] = weights.get(vertex, 0.0) + float(end - begin)
    return weights


def taps(dimension: int) -> list[Vertex]:
    """Return the offsets of a filter of size 1, in lexicographic order of their digits."""
    corners = dimension + 1
    digits = [k for k in itertools.product((0, 1), repeat=corners) if min(k) == 0]
    return [tuple(corners * c - sum(k) for c in k) for k in digits]


def filter_by_definition(values: Tensor, features: Tensor, weight: Tensor, targets: Tensor) -> NDArray[np.float64]:
    """Splat, convolve and slice with dictionaries."""
    splatted: dict[Vertex, NDArray[np.float64]] = {}
    for value, feature in zip(values.numpy(), features.numpy(), strict=True):
        for vertex, share in simplex(feature).items():
            splatted[vertex] = splatted.get(vertex, 0.0) + share * value
    offsets, result = taps(features.shape[1]), np.zeros((len(targets), weight.shape[2]))
    for row, feature in enumerate(targets.numpy()):
        for vertex, share in simplex(feature).items():
            for offset, matrix in zip(offsets, weight.numpy(), strict=True):
                neighbor = tuple(a + b for a, b in zip(vertex, offset, strict=True))
                if neighbor in splatted:
                    result[row] += share * splatted[neighbor] @ matrix
    return result


def blur_by_definition(values: NDArray[np.float64], features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Splat, blur along each axis of the lattice with (1/2, 1, 1/2), and slice."""
    corners = features.shape[1] + 1
    rows = [simplex(feature) for feature in features]
    lattice: dict[Vertex, NDArray[np.float64]] = {}
    for value, row in zip(values, rows, strict=True):
        for vertex, share in row.items():
            lattice[vertex] = lattice.get(vertex, 0.0) + share * value
    zero = np.zeros(values.shape[1])
    for axis in range(corners):
        steps = [[sign * (corners * (i == axis) - 1) for i in range(corners)] for sign in (1, -1)]
        lattice = {
            vertex: own
            + sum(lattice.get(tuple(a + b for a, b in zip(vertex, step, strict=True)), zero) for step in steps) / 2
            for vertex, own in lattice.items()
        }
    return np.stack([sum((share * lattice[vertex] for vertex, share in row.items()), zero) for row in rows])


@pytest.mark.parametrize("dimension", [1, 3])
def test_learned_filter_is_its_definition(backend: str, dimension: int) -> None:
    features, targets = 3 * random(30, dimension), 3 * random(20, dimension, seed=1)
    values, weight = random(30, 2, seed=2), random(len(taps(dimension)), 2, 3, seed=3)
    filtered = ph.permutohedral_filter(values, features, weight, targets)
    np.testing.assert_allclose(filtered, filter_by_definition(values, features, weight, targets), rtol=0, atol=1e-10)


@pytest.mark.parametrize("dimension", [2, 5])
def test_gaussian_filter_is_its_definition(backend: str, dimension: int) -> None:
    features, values = 2 * random(60, dimension), random(60, 3, seed=1)
    both = blur_by_definition(torch.cat([values, torch.ones(60, 1)], dim=1).numpy(), features.numpy())
    filtered = ph.gaussian_filter(values, features)
    np.testing.assert_allclose(filtered, both[:, :3] / both[:, 3:], rtol=0, atol=1e-10)


def test_bilateral_filter_is_its_definition(backend: str) -> None:
    image = random(3, 8, 9)
    positions = 1 + np.indices((8, 9)).reshape(2, -1)
    # the features of images are shifted off the facets of the lattice
    features = np.concatenate([positions / 2.0, image.reshape(3, -1).numpy() / 0.4]).T + 0.2360679775
    pixels = np.concatenate([image.reshape(3, -1).numpy(), np.ones((1, 72))]).T
    blurred = blur_by_definition(pixels, features)
    expected = (blurred[:, :3] / blurred[:, 3:]).T.reshape(3, 8, 9)
    filtered = ph.bilateral_filter(image, sigma_space=2.0, sigma_color=0.4, origin=(1, 1))
    np.testing.assert_allclose(filtered, expected, rtol=0, atol=1e-10)


def test_constants_stay_constant(backend: str) -> None:
    image = torch.full((1, 40, 50), 0.25, dtype=torch.float64)
    filtered = ph.bilateral_filter(image, random(3, 40, 50), sigma_space=3.0, sigma_color=0.2)
    torch.testing.assert_close(filtered, image, rtol=0, atol=1e-12)


def test_order_of_points_does_not_matter(backend: str) -> None:
    features, values = 9 * random(500, 4), random(500, 2, seed=1)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(0))
    expected = ph.gaussian_filter(values, features)[order]
    torch.testing.assert_close(ph.gaussian_filter(values[order], features[order]), expected, rtol=0, atol=1e-12)


def test_slice_is_the_adjoint_of_splat(backend: str) -> None:
    lattice = ph.build_lattice(9 * random(300, 3))
    values, rows = random(300, 2), random(lattice.num_lattice_points, 2, seed=1)
    left = (ph.splat(values, lattice) * rows).sum()
    torch.testing.assert_close(left, (values * ph.slice(rows, lattice)).sum(), rtol=1e-12, atol=0)


def test_three_steps_are_the_filter(backend: str) -> None:
    features, values, weight = 9 * random(300, 3), random(300, 4, seed=1), random(15, 4, 2, seed=2)
    lattice = ph.build_lattice(features)
    steps = ph.slice(ph.convolve(ph.splat(values, lattice), weight, lattice), lattice)
    torch.testing.assert_close(steps, ph.permutohedral_filter(values, features, weight), rtol=0, atol=1e-12)


def test_items_of_a_batch_do_not_mix(backend: str) -> None:
    features, values = 5 * random(3, 100, 2), random(3, 100, 2, seed=1)
    each = [ph.gaussian_filter(value, feature) for value, feature in zip(values, features, strict=True)]
    torch.testing.assert_close(ph.gaussian_filter(values, features), torch.stack(each), rtol=0, atol=1e-12)


def test_float32_rounds_float64(backend: str) -> None:
    features, values = 5 * random(2000, 3), random(2000, 8, seed=1)
    single = ph.gaussian_filter(values.float(), features.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), ph.gaussian_filter(values, features), rtol=0, atol=1e-4)


def test_uint8_arrays_return_uint8_arrays(backend: str) -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, 20, 30), dtype=np.uint8)
    filtered = ph.bilateral_filter(image, sigma_space=2.0, sigma_color=0.1)
    assert isinstance(filtered, np.ndarray)
    assert filtered.dtype == np.uint8
    assert filtered.shape == image.shape


def test_derivatives_of_the_gaussian_filter(backend: str) -> None:
    features, values = (2 * random(8, 2)).requires_grad_(), random(8, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(ph.gaussian_filter, (values, features))


def test_derivatives_of_the_learned_filter(backend: str) -> None:
    features, values = (2 * random(8, 2)).requires_grad_(), random(8, 2, seed=1).requires_grad_()
    weight = random(7, 2, 2, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(ph.permutohedral_filter, (values, features, weight))
    assert torch.autograd.gradgradcheck(ph.permutohedral_filter, (values, features, weight))


@pytest.mark.skipif("native" not in ph.backends.available(), reason="the native backend is not installed")
def test_backends_agree() -> None:
    image = random(3, 90, 120)
    with ph.backends.use("reference"):
        expected = ph.bilateral_filter(image, sigma_space=5.0, sigma_color=0.2, origin=(1, 1))
    with ph.backends.use("native"):
        filtered = ph.bilateral_filter(image, sigma_space=5.0, sigma_color=0.2, origin=(1, 1))
    torch.testing.assert_close(filtered, expected, rtol=0, atol=1e-10)


def test_threads_do_not_change_the_result() -> None:
    features, values, weight = 9 * random(20_000, 3), random(20_000, 8, seed=1), random(15, 8, 8, seed=2)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(ph.permutohedral_filter(values, features, weight))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=0, atol=1e-9)


def test_concurrent_calls() -> None:
    images = [random(3, 60, 80, seed=seed) for seed in range(8)]
    expected = [ph.bilateral_filter(image, sigma_space=4.0, sigma_color=0.2) for image in images]
    with ThreadPoolExecutor(4) as pool:
        filtered = pool.map(lambda image: ph.bilateral_filter(image, sigma_space=4.0, sigma_color=0.2), images)
        for one, other in zip(filtered, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_large_blocks_are_freed_and_reused() -> None:
    # several megabytes, which the native core allocates in whole pages
    features, values = 9 * random(100_000, 3), random(100_000, 4, seed=1)
    first = ph.gaussian_filter(values, features)
    for _ in range(5):
        torch.testing.assert_close(ph.gaussian_filter(values, features), first, rtol=0, atol=1e-12)
