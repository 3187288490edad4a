"""The Gaussian filter as a layer."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from support import DEVICE, assert_close, to_tensor
from torch import Tensor

import permutohedral as ph
from permutohedral.filters.gaussian import GaussianMethod
from permutohedral.filters.normalization import NORMALIZATIONS, Normalization
from permutohedral.nn import GaussianFilter

pytestmark = pytest.mark.usefixtures("backend")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return to_tensor(np.random.default_rng([seed, *shape]).normal(size=shape), torch.float32)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize(("method", "halo"), [("lattice", 0), ("lattice", 1), ("dense", 0)])
def test_matches_gaussian_filter(normalization: Normalization, method: GaussianMethod, halo: int) -> None:
    layer = GaussianFilter(2, normalization=normalization, method=method, halo=halo)
    values, features, targets = draw(2, 20, 3), draw(2, 20, 2, seed=1), draw(2, 6, 2, seed=2)
    actual = layer(values, features, targets)
    expected = ph.gaussian_filter(values, features, targets, normalization=normalization, method=method, halo=halo)
    assert_close(actual, expected)
    # a GPU adds in any order
    assert DEVICE.type != "cpu" or torch.equal(actual, expected)
    assert list(layer.parameters()) == []


def test_scale_multiplies_features() -> None:
    layer = GaussianFilter(2, learn_sigma=True).to(DEVICE)
    values, features, targets = draw(20, 3), draw(20, 2, seed=1), draw(6, 2, seed=2)
    assert_close(layer(values, features, targets), ph.gaussian_filter(values, features, targets))
    assert layer.log_scale is not None
    with torch.no_grad():
        layer.log_scale.copy_(torch.tensor([2.0, 0.5]).log())
    factors = torch.tensor([2.0, 0.5], device=DEVICE)
    expected = ph.gaussian_filter(values, features * factors, targets * factors)
    assert_close(layer(values, features, targets), expected)
    layer(values, features).square().sum().backward()
    assert layer.log_scale.grad is not None
    assert layer.log_scale.grad.abs().min() > 0
    assert_close(copy.deepcopy(layer)(values, features, targets), expected)


def test_repr() -> None:
    assert repr(GaussianFilter(3)) == "GaussianFilter(dimension=3, normalization='homogeneous', method='lattice')"
    full = repr(GaussianFilter(3, normalization="none", method="dense", halo=2, learn_sigma=True))
    assert full == "GaussianFilter(dimension=3, normalization='none', method='dense', halo=2, learn_sigma=True)"
