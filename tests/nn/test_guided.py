"""Guided upsampling and solver layers: initial behavior and training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import DEVICE, assert_close, to_tensor
from torch import Tensor

import permutohedral as ph


def maps(*shape: int, seed: int = 0) -> Tensor:
    return to_tensor(np.random.default_rng(seed).random(shape), torch.float32)


@pytest.mark.parametrize("mix", [False, True])
def test_upsampling_starts_as_dense_gaussian(mix: bool) -> None:
    coarse, guide = maps(2, 2, 3, 4), maps(2, 1, 9, 12, seed=1)
    layer = ph.nn.BilateralUpsample2d(2, 1, neighborhood_size=2, mix=mix, sigma_space=3.0, sigma_color=2.0).to(DEVICE)
    lattice_free = ph.guided.Upsampler(guide[0], (3, 4), sigma_space=3.0, sigma_color=2.0, mode="gaussian")
    lattice = lattice_free._joint.lattice
    features = ph.features.bilateral(guide[0], sigma_space=3.0, sigma_color=2.0)
    assert lattice.target.num_points == len(features)
    found = layer(coarse, guide)
    assert_close(layer(coarse[0], guide[0]), found[0])
    layer.sigma_space = (3.0, 3.0)
    assert_close(layer(coarse, guide), found)
    assert_close(layer(torch.full_like(coarse, 7.0), guide), torch.full((2, 2, 9, 12), 7.0))
    # the separable Gaussian is near to the dense one where lattice points are close
    assert (found[0] - lattice_free(coarse[0], num_iterations=0)).abs().max() < 0.1


def test_solver_matches_function_with_gradients() -> None:
    target, guide = maps(1, 6, 8), maps(2, 6, 8, seed=1)
    layer = ph.nn.BilateralSolver(sigma_space=2.0, sigma_color=0.4, smoothness=0.5, learn_sigma=True).to(DEVICE)
    found = layer(target, guide)
    assert_close(
        found.detach(),
        ph.bilateral_solver(target, guide, sample_weight=None, smoothness=0.5, sigma_space=2.0, sigma_color=0.4),
    )
    found.square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert bool((parameter.grad != 0).all())


def test_rejects_mismatched_arguments() -> None:
    layer = ph.nn.BilateralUpsample2d(3, 1)
    with pytest.raises(ph.errors.InputError, match="3 channels"):
        layer(torch.zeros(1, 2, 2, 2), torch.zeros(1, 1, 4, 4))
    with pytest.raises(ph.errors.InputError, match="sigma_space"):
        ph.nn.BilateralUpsample2d(3, 1, sigma_space=0.0)
    with pytest.raises(ph.errors.InputError, match="smoothness"):
        ph.nn.BilateralSolver(smoothness=-1.0)
