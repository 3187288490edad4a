"""Estimated errors are those of the sampled points."""

from __future__ import annotations

import warnings
from typing import Any, cast

import numpy as np
import oracle
import pytest
import torch
from support import DEVICE, assert_raises, to_numpy, to_tensor
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import InputError

pytestmark = pytest.mark.usefixtures("backend")


def signal(random: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Values, features, and the exact filter of the values."""
    values, features = random.normal(size=(90, 2)), random.normal(size=(90, 3))
    ones = np.ones((90, 1))
    exact = oracle.exact_gaussian(values, features, features) / oracle.exact_gaussian(ones, features, features)
    return to_tensor(values), to_tensor(features), to_tensor(exact)


def test_all_points(random: np.random.Generator) -> None:
    values, features, exact = signal(random)
    wrong = exact + 0.1 * to_tensor(random.normal(size=(90, 2)))
    estimate = ph.accuracy.estimate_error(wrong, values, features, num_samples=1000)
    assert estimate.num_samples == 90
    difference = to_numpy(wrong - exact)
    assert estimate.relative == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(to_numpy(exact)))
    assert estimate.of_change == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(to_numpy(exact - values)))
    assert estimate.worst == pytest.approx(np.abs(difference).max())


def test_samples_represent_all_points(random: np.random.Generator) -> None:
    values, features, exact = signal(random)
    wrong = exact + 0.1 * to_tensor(random.normal(size=(90, 2)))
    whole = ph.accuracy.estimate_error(wrong, values, features, num_samples=90)
    some = ph.accuracy.estimate_error(wrong, values, features, num_samples=30)
    assert some.num_samples == 30
    assert some.relative == pytest.approx(whole.relative, rel=0.3)
    assert some == ph.accuracy.estimate_error(wrong, values, features, num_samples=30)


def test_other_targets(random: np.random.Generator) -> None:
    values, features, _ = signal(random)
    targets = features[:7] + 0.2
    estimate = ph.accuracy.estimate_error(
        ph.gaussian_filter(values, features, targets, method="exact"), values, features, targets
    )
    assert (estimate.num_samples, estimate.of_change) == (7, None)
    assert estimate.relative < 1e-10


@pytest.mark.parametrize("sigma", [0.6, (0.5, 1.0), 20.0], ids=str)
@pytest.mark.parametrize("guided", [False, True])
def test_pictures(sigma: float | tuple[float, float], guided: bool, random: np.random.Generator) -> None:
    """Small squares, each with what is around it, or the whole picture where the windows are large."""
    image = to_tensor(random.random(size=(3, 26, 30)), torch.float32)
    guide = to_tensor(random.random(size=(1, 26, 30)), torch.float32) if guided else None
    exact = ph.bilateral_filter(image, sigma_space=sigma, sigma_color=0.3, guide=guide, method="exact")
    right = ph.accuracy.estimate_bilateral_error(
        exact, image, sigma_space=sigma, sigma_color=0.3, guide=guide, num_samples=64
    )
    # what lies beyond four standard deviations, the reach of the estimate
    assert right.relative < 3e-4
    assert right.num_samples >= 64
    wrong = ph.accuracy.estimate_bilateral_error(
        exact + 0.05, image, sigma_space=sigma, sigma_color=0.3, guide=guide, num_samples=64
    )
    assert wrong.worst == pytest.approx(0.05, abs=1e-3)
    assert wrong.relative == pytest.approx(0.05 / float(exact.square().mean().sqrt()), rel=0.1)


@pytest.mark.parametrize("shape", [(2, 9, 10, 11), (1, 300)], ids=str)
def test_volumes_and_signals(shape: tuple[int, ...], random: np.random.Generator) -> None:
    image, axes = to_tensor(random.random(size=shape), torch.float32), len(shape) - 1
    exact = ph.bilateral_filter(image, sigma_space=0.4, sigma_color=0.3, method="exact", spatial_dims=axes)
    right = ph.accuracy.estimate_bilateral_error(
        exact, image, sigma_space=0.4, sigma_color=0.3, spatial_dims=axes, num_samples=64
    )
    assert right.relative < 3e-4
    assert right.num_samples >= 64
    wrong = ph.accuracy.estimate_bilateral_error(
        exact + 0.05, image, sigma_space=0.4, sigma_color=0.3, spatial_dims=axes, num_samples=64
    )
    assert wrong.worst == pytest.approx(0.05, abs=1e-3)


def test_a_picture_smaller_than_a_square() -> None:
    image = torch.rand(1, 2, 1, device=DEVICE)
    exact = ph.bilateral_filter(image, sigma_space=1.0, sigma_color=0.3, method="exact")
    assert ph.accuracy.estimate_bilateral_error(exact, image, sigma_space=1.0, sigma_color=0.3).relative < 1e-6


def test_large_errors_warn(random: np.random.Generator) -> None:
    values, features, exact = signal(random)
    with pytest.warns(ph.errors.AccuracyWarning, match="relative error"):
        ph.accuracy.estimate_error(1.1 * exact, values, features, warn_above=0.05)
    image = torch.rand(1, 9, 9, device=DEVICE)
    with pytest.warns(ph.errors.AccuracyWarning, match="method='exact'"):
        ph.accuracy.estimate_bilateral_error(image + 1, image, sigma_space=1.0, sigma_color=0.5, warn_above=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ph.accuracy.estimate_error(1.1 * exact, values, features, warn_above=0.2)
        ph.accuracy.estimate_error(1.1 * exact, values, features)


def test_nothing_to_compare_with_is_no_error() -> None:
    zeros, features = torch.zeros(5, 1, device=DEVICE), torch.rand(5, 2, device=DEVICE)
    assert ph.accuracy.estimate_error(zeros, zeros, features).relative == 0
    assert ph.accuracy.estimate_error(zeros + 1, zeros, features).relative == float("inf")


def test_rejects_mismatched_inputs() -> None:
    values, features, image = (torch.rand(*shape, device=DEVICE) for shape in ((5, 1), (5, 2), (3, 6, 7)))
    for call, message in (
        (lambda: ph.accuracy.estimate_error(values[:3], values, features), r"filtered must be \[5, 1\]"),
        (lambda: ph.accuracy.estimate_error(values[None], values[None], features[None]), "one by one"),
        (
            lambda: ph.accuracy.estimate_error(values, values.expand(2, 5, 1), features, features),
            "values must have two axes",
        ),
        (lambda: ph.accuracy.estimate_error(values, values, features, num_samples=0), "num_samples"),
        (
            lambda: ph.accuracy.estimate_bilateral_error(image[None], image[None], sigma_space=1.0, sigma_color=0.1),
            "one by one",
        ),
        (lambda: ph.accuracy.estimate_bilateral_error(image[:1], image, sigma_space=1.0, sigma_color=0.1), "filtered"),
        (
            lambda: ph.accuracy.estimate_bilateral_error(
                image.movedim(0, -1)[..., :1],
                image.movedim(0, -1),
                sigma_space=1.0,
                sigma_color=0.1,
                channels_last=True,
            ),
            r"\[height, width, channels\], got \(6, 7, 3\) and \(6, 7, 1\)",
        ),
        (
            lambda: ph.accuracy.estimate_bilateral_error(cast(Any, [0.5]), image, sigma_space=1.0, sigma_color=0.1),
            "filtered must be a torch.Tensor or a NumPy array, got list",
        ),
        (
            lambda: ph.accuracy.estimate_bilateral_error(image.to_sparse(), image, sigma_space=1.0, sigma_color=0.1),
            "filtered must be dense",
        ),
        (
            lambda: ph.accuracy.estimate_bilateral_error(
                image, image, sigma_space=1.0, sigma_color=0.1, guide=image[:, 1:]
            ),
            "one height and width",
        ),
    ):
        assert_raises(call, InputError, message)
