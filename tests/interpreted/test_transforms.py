"""Tangents and `torch.func` through the kernels: they read memory, so nothing that torch has wrapped may reach them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from support import assert_close
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import jvp, vjp

import permutohedral as ph
from permutohedral.ops.dispatch import use as use_backend

Inputs = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(autouse=True)
def on_triton() -> Iterator[None]:
    """Every call on the kernels."""
    with use_backend("triton"):
        yield


@pytest.fixture
def inputs() -> Inputs:
    """Values, features, weight."""
    values, features, weight = (torch.randn(*shape, dtype=torch.float64) for shape in ((5, 2), (5, 2), (7, 2, 2)))
    return values, features, weight


def function(values: Tensor, features: Tensor, weight: Tensor) -> Tensor:
    return ph.permutohedral_filter(values, features, weight)


def test_dual_tensors(inputs: Inputs) -> None:
    """The lattice's tensors may be parts of larger ones, to which torch gives no tangents."""
    with use_backend("reference"):
        expected = jvp(function, inputs, inputs)[1]
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(function(*(forward_ad.make_dual(each, each) for each in inputs))).tangent
    assert tangent is not None
    assert_close(tangent, expected)


def test_a_gradient_after_its_transformation(inputs: Inputs) -> None:
    """What was kept for it is still wrapped."""
    leaves = [each.clone().requires_grad_() for each in inputs]
    expected = torch.autograd.grad(function(*leaves).square().sum(), leaves)
    result, pull_back = cast(tuple[Tensor, Any], vjp(function, *inputs))
    for actual, wanted in zip(pull_back(2 * result), expected, strict=True):
        assert_close(actual, wanted)


@pytest.mark.parametrize("wanted", [True, False])
def test_values_that_a_transformation_has_left_behind(inputs: Inputs, wanted: bool) -> None:
    """They are wrapped, and have no memory of their own."""
    left: list[Tensor] = []

    def double(values: Tensor) -> Tensor:
        left.append(2 * values)
        return left[0].sum()

    values, features, weight = inputs
    torch.func.grad(double)(values)
    weight.requires_grad_(wanted)
    found, expected = (function(each, features, weight) for each in (left[0], 2 * values))
    assert_close(found, expected)
    if wanted:
        gradient, known = (torch.autograd.grad(each.square().sum(), weight)[0] for each in (found, expected))
        assert_close(gradient, known)
