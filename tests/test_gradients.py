"""First and second derivatives with respect to values, filter, bias, features and bandwidths, in float64.

The points are in general position: weights are linear inside a simplex and bend on its faces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from support import DEVICE, NONDETERMINISM, assert_close, to_numpy, to_tensor
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import permutohedral as ph
from permutohedral.filters.normalization import NORMALIZATIONS

pytestmark = pytest.mark.usefixtures("backend")


def leaf(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    random = np.random.default_rng([seed, *shape])
    return to_tensor(scale * random.normal(size=shape)).requires_grad_()


def check_twice(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """First and second derivatives along random directions, between random combinations of the results."""
    assert gradcheck(function, inputs, check_forward_ad=True, fast_mode=True, nondet_tol=NONDETERMINISM)
    assert gradgradcheck(function, inputs, fast_mode=True, nondet_tol=NONDETERMINISM)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_inputs_of_learned_filter(normalization: Any) -> None:
    def function(values: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        return ph.permutohedral_filter(values, features, weight, normalization=normalization)

    inputs = leaf(5, 2), leaf(5, 2, seed=1), leaf(7, 2, 2)
    check_twice(function, *inputs)
    if normalization == "symmetric":
        # and every entry by itself
        assert gradcheck(function, inputs, nondet_tol=NONDETERMINISM)


def test_gradient_checkpointing() -> None:
    """Which lets a backward pass look at what was kept only once."""
    inputs = leaf(5, 2), leaf(5, 2, seed=1), leaf(7, 2, 2)
    kept = ph.permutohedral_filter(*inputs).square().sum()
    made_anew = checkpoint(ph.permutohedral_filter, *inputs, use_reentrant=False).square().sum()
    expected = torch.autograd.grad(kept, inputs)
    for actual, each in zip(torch.autograd.grad(made_anew, inputs), expected, strict=True):
        assert_close(actual, each)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_source_and_target_features(normalization: Any) -> None:
    features = leaf(5, 2, seed=1)
    targets = (features.detach()[:3] + 0.2 * leaf(3, 2).detach()).requires_grad_()

    def function(values: Tensor, features: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
        return ph.permutohedral_filter(values, features, weight, targets, normalization=normalization)

    check_twice(function, leaf(5, 2), features, targets, leaf(7, 2, 2))


@pytest.mark.parametrize("apart", [False, True], ids=["same_points", "different_points"])
@pytest.mark.parametrize(("dimension", "size", "groups"), [(1, 2, 2), (3, 1, 2), (4, 0, 1), (2, 1, 4)])
def test_dimensions_sizes_and_groups(dimension: int, size: int, groups: int, apart: bool) -> None:
    taps = ph.lattice.Neighborhood(dimension, size).filter_size
    targets = leaf(3, dimension, seed=2) if apart else None

    def function(values: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        return ph.permutohedral_filter(values, features, weight, targets, neighborhood_size=size)

    check_twice(function, leaf(4, 4), leaf(4, dimension, seed=1), leaf(taps, 4 // groups, 4, scale=0.5))


@pytest.mark.parametrize("shared", [False, True], ids=["own_lattices", "shared_lattice"])
def test_dense_batches(shared: bool) -> None:
    def function(values: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        return ph.permutohedral_filter(values, features, weight)

    features = leaf(4, 1, seed=1) if shared else leaf(2, 4, 1, seed=1)
    check_twice(function, leaf(2, 4, 2), features, leaf(3, 2, 2))


def test_ragged_batches() -> None:
    batch = to_tensor([0, 1, 1, 0, 1], torch.int64)

    def function(values: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        lattice = ph.build_lattice(features, batch=batch)
        return ph.permutohedral_filter(values, lattice, weight)

    check_twice(function, leaf(5, 2), leaf(5, 2, seed=1), leaf(7, 2, 2))


# a halo changes nothing of the dense one
@pytest.mark.parametrize(("method", "halo"), [("lattice", 0), ("lattice", 1), ("dense", 0)])
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_gaussian_filter(method: Any, normalization: Any, halo: int) -> None:
    def function(values: Tensor, features: Tensor) -> Tensor:
        return ph.gaussian_filter(values, features, None, normalization=normalization, method=method, halo=halo)

    check_twice(function, leaf(5, 2), leaf(5, 2, seed=1))


@pytest.mark.parametrize("method", ["lattice", "dense"])
@pytest.mark.parametrize("halo", [0, 1])
def test_gaussian_filter_at_other_points(method: Any, halo: int) -> None:
    def function(values: Tensor, features: Tensor, targets: Tensor) -> Tensor:
        return ph.gaussian_filter(values, features, targets, normalization="none", method=method, halo=halo)

    check_twice(function, leaf(5, 2), leaf(5, 2, seed=1), leaf(3, 2, seed=2))


def test_bilateral_filter_learns_its_bandwidths() -> None:
    image, guide = leaf(2, 2, 3), leaf(1, 2, 3, seed=1)
    sigma_space = torch.tensor(1.3, device=DEVICE, dtype=torch.float64, requires_grad=True)
    sigma_color = torch.tensor(0.7, device=DEVICE, dtype=torch.float64, requires_grad=True)

    def function(image: Tensor, sigma_space: Tensor, sigma_color: Tensor, guide: Tensor | None = None) -> Tensor:
        return ph.bilateral_filter(image, sigma_space=sigma_space, sigma_color=sigma_color, guide=guide, method="dense")

    # the pixel at the origin lies on a face, where the weights bend; one step of the check cannot leave it
    check_twice(lambda *inputs: function(*inputs)[..., 1:, 1:], image, sigma_space, sigma_color)
    check_twice(lambda *inputs: function(*inputs)[..., 1:, 1:], image, sigma_space, sigma_color, guide)


def test_layer_with_bias_and_scale() -> None:
    layer = ph.nn.PermutohedralConv(2, 3, dimension=2, learn_sigma=True, dtype=torch.float64, device=DEVICE)
    names = [name for name, _ in layer.named_parameters()]
    assert sorted(names) == ["bias", "log_scale", "weight"]
    parameters = [parameter.detach().clone().requires_grad_() for _, parameter in layer.named_parameters()]

    def function(values: Tensor, features: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(names, parameters, strict=True))
        result: Tensor = torch.func.functional_call(layer, named, (values, features))
        return result

    check_twice(function, leaf(4, 2), leaf(4, 2, seed=1), *parameters)


def test_reused_lattice_sums_gradients() -> None:
    """Two filters on one lattice: the features get the sum of both gradients."""
    features, values, weight = leaf(6, 2, seed=1), leaf(6, 2), leaf(7, 2, 2)
    lattice = ph.build_lattice(features)
    first = ph.permutohedral_filter(values, lattice, weight)
    second = ph.permutohedral_filter(first, lattice, weight)
    (both,) = torch.autograd.grad(second.square().sum() + first.sum(), features)

    def separately(features: Tensor) -> Tensor:
        once = ph.permutohedral_filter(values, features, weight)
        return ph.permutohedral_filter(once, features, weight).square().sum() + once.sum()

    (expected,) = torch.autograd.grad(separately(features), features)
    assert_close(both, expected)


def test_value_gradient_is_the_transpose() -> None:
    """Independent of finite differences: B_t W B_s^T as a matrix, from the oracle, column by column."""
    features, targets, weight = leaf(6, 3, seed=1), leaf(4, 3, seed=2), leaf(15, 1, 1)
    arrays = to_numpy(features), to_numpy(weight), to_numpy(targets)
    columns = [oracle.permutohedral_filter(unit[:, None], *arrays, size=1)[:, 0] for unit in np.eye(6)]
    values, upstream = leaf(6, 1), leaf(4, 1, seed=3).detach()
    result = ph.permutohedral_filter(values, features, weight, targets)
    (gradient,) = torch.autograd.grad(result, values, upstream)
    assert_close(gradient, np.stack(columns) @ to_numpy(upstream))


def test_no_gradient_for_frozen_inputs() -> None:
    values, features, weight = leaf(5, 2).detach(), leaf(5, 2, seed=1).detach(), leaf(7, 2, 2)
    ph.permutohedral_filter(values, features, weight).sum().backward()
    assert weight.grad is not None
    assert (values.grad, features.grad) == (None, None)


def test_points_on_faces_get_one_sided_gradient() -> None:
    """Finite, and equal to the slope on some side of the face: here the vertex at the origin, in one dimension."""
    features = to_tensor([[0.0]]).requires_grad_()
    lattice_function = to_tensor([[0.0], [1.0], [3.0]])
    lattice = ph.build_lattice(features, neighborhood_size=0)
    corner = (lattice.source.keys[:, 1] + 1).long()
    (slope,) = torch.autograd.grad(ph.slice(lattice_function[corner], lattice), features)
    step = np.sqrt(3) / 2
    assert any(abs(float(slope) - rise / step) < 1e-10 for rise in (1.0, 2.0))
