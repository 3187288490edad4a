"""Scattered values interpolated anywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import DEVICE, assert_close, to_tensor

import permutohedral as ph
from permutohedral.errors import FeatureRangeError

NUMBERS = np.random.default_rng(0)


def test_is_the_gaussian_mean_near_samples() -> None:
    values, features = to_tensor(NUMBERS.random((40, 2))), to_tensor(NUMBERS.random((40, 3)) * 2)
    targets = to_tensor(NUMBERS.random((15, 3)) * 2)
    weights = to_tensor(NUMBERS.random(40))
    found, mass = ph.interpolate(values, features, targets, sample_weight=weights, return_mass=True)
    expected, expected_mass = ph.gaussian_filter(values, features, targets, sample_weight=weights, return_mass=True)
    assert float(mass.min()) > 0.01
    assert_close(found, expected)
    assert_close(mass, expected_mass)


def test_far_targets_have_the_value_of_the_nearest_samples_and_no_mass() -> None:
    values, features = to_tensor([[1.0], [5.0]]), to_tensor([[0.0, 0.0], [4000.0, 0.0]])
    found, mass = ph.interpolate(values, features, to_tensor([[100.0, 0.0], [3900.0, 5.0]]), return_mass=True)
    assert_close(found, [[1.0], [5.0]], torch.float32)
    assert float(mass.max()) < 1e-6


def test_holes_are_filled_and_the_rest_stays() -> None:
    features = ph.features.positions((6, 7), 1.5, dtype=torch.float64, device=DEVICE)
    values = to_tensor(NUMBERS.random((42, 1)))
    holes = values.clone()
    holes[10:14] = torch.nan
    found = ph.interpolate(holes, features)
    assert torch.equal(found[:10], values[:10])
    assert torch.equal(found[14:], values[14:])
    assert bool(found.isfinite().all())


def test_gradients() -> None:
    values, features = to_tensor(NUMBERS.random((6, 1))), to_tensor(NUMBERS.random((6, 2)))
    targets = to_tensor([[0.4, 0.3], [9.1, 7.3]])
    inputs = [each.requires_grad_() for each in (values, features, targets)]
    assert torch.autograd.gradcheck(ph.interpolate, inputs, atol=1e-7, fast_mode=True)


def test_rejects_mismatched_inputs() -> None:
    features = torch.zeros(3, 2)
    with pytest.raises(ph.errors.InputError, match="all of a channel are NaN"):
        ph.interpolate(torch.full((3, 1), torch.nan), features)
    with pytest.raises(ph.errors.InputError, match="values must be"):
        ph.interpolate(torch.zeros(4, 1), features)
    with pytest.raises(ph.errors.InputError, match="sample_weight must be"):
        ph.interpolate(torch.zeros(3, 1), features, sample_weight=torch.ones(2))
    with pytest.raises(ph.errors.InputError, match="not negative"):
        ph.interpolate(torch.zeros(3, 1), features, sample_weight=-torch.ones(3))


def test_unknown_values_are_unknown_per_channel() -> None:
    features, targets = torch.rand(20, 2) * 4, torch.rand(9, 2) * 4
    values = torch.rand(20, 2)
    values[3:, 0] = torch.nan
    found, mass = ph.interpolate(values, features, targets, return_mass=True)
    apart = [ph.interpolate(values[:, channel, None], features, targets, return_mass=True) for channel in range(2)]
    torch.testing.assert_close(found, torch.cat([each[0] for each in apart], dim=1))
    torch.testing.assert_close(mass, torch.minimum(apart[0][1], apart[1][1]))


def test_only_ratios_of_weights_matter_even_of_tiny_ones() -> None:
    features, values, weights = torch.rand(20, 2) * 4, torch.rand(20, 2), torch.rand(20)
    # little of the samples reaches the targets
    targets = features + 1.5
    expected = ph.interpolate(values, features, targets, sample_weight=weights, return_mass=True)
    found = ph.interpolate(values, features, targets, sample_weight=1e-37 * weights, return_mass=True)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1] * 1e37, expected[1])


def test_errors_of_features_count_points_once() -> None:
    features = torch.rand(9, 2, device=DEVICE)
    features[3] = float("nan")
    with pytest.raises(FeatureRangeError, match="1 of 9 points"):
        ph.interpolate(torch.rand(9, 1, device=DEVICE), features)
