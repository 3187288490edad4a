"""Forward-mode derivatives and `torch.func`, compared with reverse mode and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from support import DEVICE, NONDETERMINISM, assert_close, draw, on_default_backend, to_tensor
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

import permutohedral as ph

# transformations meet the operators, which are the same above every backend
pytestmark = [pytest.mark.usefixtures("backend"), on_default_backend]

# so small a step stays inside a simplex
STEP = 1e-6


def inputs_of(points: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Values, features, weight."""
    return draw(points, 2), draw(points, 2, seed=1), draw(7, 2, 2, seed=2)


def learned(values: Tensor, features: Tensor, weight: Tensor) -> Tensor:
    return ph.permutohedral_filter(values, features, weight)


def gaussian(values: Tensor, features: Tensor, weight: Tensor) -> Tensor:
    return ph.gaussian_filter(values, features) * weight.sum()


def elsewhere(values: Tensor, features: Tensor, weight: Tensor) -> Tensor:
    return ph.permutohedral_filter(values, features, weight, features[:3] + 0.1, normalization="symmetric")


def with_halo(values: Tensor, features: Tensor, weight: Tensor) -> Tensor:
    return ph.gaussian_filter(values, features, features[1:] - 0.1, halo=1) * weight.sum()


def dense(values: Tensor, features: Tensor, weight: Tensor) -> Tensor:
    return ph.gaussian_filter(values, features, method="dense") * weight.sum()


def on_a_lattice(values: Tensor, features: Tensor, weight: Tensor) -> Tensor:
    lattice = ph.build_lattice(features)
    return ph.slice(ph.convolve(ph.splat(values, lattice), weight, lattice), lattice)


def bilateral(values: Tensor, features: Tensor, weight: Tensor) -> Tensor:
    picture = torch.cat([values, features], dim=1).T.reshape(1, 4, -1)
    return (
        ph.bilateral_filter(picture[:, 1:], sigma_space=1.3, sigma_color=0.7, guide=picture[:, 1:])[:, :, 1:]
        * weight.sum()
    )


FILTERS = [learned, gaussian, elsewhere, with_halo, dense, on_a_lattice, bilateral]


def slope(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], along: tuple[Tensor, ...]) -> Tensor:
    """Return the derivative along a direction by central differences."""
    ahead = [each + STEP * step for each, step in zip(inputs, along, strict=True)]
    behind = [each - STEP * step for each, step in zip(inputs, along, strict=True)]
    return (function(*ahead) - function(*behind)) / (2 * STEP)


def assert_slope(actual: Tensor, expected: Tensor) -> None:
    """Central differences have eleven digits of the result at most, divided by the step."""
    assert float((actual - expected).abs().max()) <= 1e-7 * max(1.0, float(expected.abs().max()))
    assert float(actual.abs().max()) > 0.01


@pytest.mark.parametrize("function", FILTERS)
def test_tangents_equal_finite_differences(function: Callable[..., Tensor]) -> None:
    inputs = inputs_of()
    along = tuple(draw(*each.shape, seed=7) for each in inputs)
    expected, expected_slope = function(*inputs), slope(function, inputs, along)
    result, tangent = cast(tuple[Tensor, Tensor], jvp(function, inputs, along))
    assert_close(result, expected)
    assert_slope(tangent, expected_slope)
    result, push_forward = linearize(function, *inputs)
    assert_close(result, expected)
    assert_close(push_forward(*along), tangent)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(one, other) for one, other in zip(inputs, along, strict=True)]
        result, dual_tangent = forward_ad.unpack_dual(function(*duals))
    assert dual_tangent is not None
    assert_close(result, expected)
    assert_close(dual_tangent, tangent)


@pytest.mark.parametrize("function", FILTERS)
def test_forward_and_backward_agree(function: Callable[..., Tensor]) -> None:
    inputs = tuple(each.requires_grad_() for each in inputs_of(4))
    assert gradcheck(function, inputs, check_forward_ad=True, fast_mode=True, nondet_tol=NONDETERMINISM)
    assert gradgradcheck(function, inputs, check_fwd_over_rev=True, fast_mode=True, nondet_tol=NONDETERMINISM)


@pytest.mark.parametrize("function", FILTERS)
def test_tangent_of_one_argument(function: Callable[..., Tensor]) -> None:
    """The others are constants without a tangent."""
    inputs = inputs_of()
    along = draw(*inputs[0].shape, seed=7)
    tangent = jvp(lambda values: function(values, *inputs[1:]), inputs[:1], (along,))[1]
    assert_slope(tangent, slope(lambda values: function(values, *inputs[1:]), inputs[:1], (along,)))


@pytest.mark.parametrize("function", FILTERS)
@pytest.mark.parametrize("place", range(3))
def test_jacobians(function: Callable[..., Tensor], place: int) -> None:
    inputs = inputs_of(4)
    backward = torch.autograd.functional.jacobian(function, inputs)[place]
    assert_close(jacfwd(function, argnums=place)(*inputs), backward)
    assert_close(jacrev(function, argnums=place)(*inputs), backward)


@pytest.mark.parametrize("function", FILTERS)
def test_gradients(function: Callable[..., Tensor]) -> None:
    inputs = inputs_of()
    leaves = [each.clone().requires_grad_() for each in inputs]
    expected = torch.autograd.grad(function(*leaves).square().sum(), leaves)
    actual = grad(lambda *given: function(*given).square().sum(), argnums=(0, 1, 2))(*inputs)
    result, pull_back = cast(tuple[Tensor, Any], vjp(function, *inputs))
    for one, other, wanted in zip(actual, pull_back(2 * result), expected, strict=True):
        assert_close(one, wanted)
        assert_close(other, wanted)


@pytest.mark.parametrize("function", [learned, gaussian, elsewhere])
def test_second_derivatives(function: Callable[..., Tensor]) -> None:
    """Forward over reverse, forward over forward and reverse over forward equal reverse over reverse."""
    values, features, weight = inputs_of(3)

    def energy(values: Tensor, features: Tensor) -> Tensor:
        return function(values, features, weight).square().sum()

    for place in range(2):
        expected = torch.autograd.functional.hessian(energy, (values, features))[place][place]
        for second in (hessian, _forward_forward, _reverse_forward):
            assert_close(second(energy, argnums=place)(values, features), expected)


def _forward_forward(function: Callable[..., Tensor], argnums: int) -> Callable[..., Tensor]:
    return jacfwd(jacfwd(function, argnums=argnums), argnums=argnums)


def _reverse_forward(function: Callable[..., Tensor], argnums: int) -> Callable[..., Tensor]:
    return jacrev(jacfwd(function, argnums=argnums), argnums=argnums)


ITEMS = 3


def batches_of() -> tuple[Tensor, Tensor, Tensor]:
    # of different spread, so that the items have different numbers of lattice points
    spread = torch.tensor([0.1, 1.0, 5.0], device=DEVICE, dtype=torch.float64)
    return draw(ITEMS, 6, 2), draw(ITEMS, 6, 2, seed=1) * spread[:, None, None], draw(ITEMS, 7, 2, 2, seed=2)


AXES = [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, None), (0, None, 0), (0, 0, 0)]


@pytest.mark.parametrize("function", FILTERS)
@pytest.mark.parametrize("axes", AXES)
def test_vmap(function: Callable[..., Tensor], axes: tuple[int | None, ...]) -> None:
    batches = batches_of()
    inputs = [each if axis == 0 else each[1] for each, axis in zip(batches, axes, strict=True)]
    expected = [
        function(*(each[item] if axis == 0 else each for each, axis in zip(inputs, axes, strict=True)))
        for item in range(ITEMS)
    ]
    assert_close(vmap(function, axes)(*inputs), torch.stack(expected))


@pytest.mark.parametrize("function", FILTERS)
def test_vmap_of_derivatives(function: Callable[..., Tensor]) -> None:
    """Gradients of each item, as of each sample of a batch."""
    inputs = batches_of()

    def energy(*given: Tensor) -> Tensor:
        return function(*given).square().sum()

    gradients = vmap(grad(energy, argnums=(0, 1, 2)))(*inputs)
    tangents = vmap(lambda *given: jvp(function, given, given)[1])(*inputs)
    for item in range(ITEMS):
        one = tuple(each[item] for each in inputs)
        assert_close(tangents[item], jvp(function, one, one)[1])
        for actual, expected in zip(gradients, grad(energy, argnums=(0, 1, 2))(*one), strict=True):
            assert_close(actual[item], expected)


@pytest.mark.parametrize("function", FILTERS)
def test_nested_vmap(function: Callable[..., Tensor]) -> None:
    values, features, weight = batches_of()
    nested = vmap(vmap(function, (0, None, None)), (None, 0, 0))(values, features, weight)
    doubly = vmap(vmap(function, (0, 0, None)), (0, 0, 0))(values[:, None], features[:, None], weight)
    for item in range(ITEMS):
        expected = [function(each, features[item], weight[item]) for each in values]
        assert_close(nested[item], torch.stack(expected))
        assert_close(doubly[item, 0], expected[item])


def test_vmap_over_items() -> None:
    values, features, _ = batches_of()
    items = to_tensor([[0, 1, 1, 0, 1, 0], [0, 0, 0, 0, 0, 0], [2, 1, 0, 2, 1, 0]], torch.int64)

    def function(values: Tensor, features: Tensor, items: Tensor) -> Tensor:
        return ph.gaussian_filter(values, ph.build_lattice(features, batch=items, separable=True))

    expected = [function(*each) for each in zip(values, features, items, strict=True)]
    assert_close(vmap(function)(values, features, items), torch.stack(expected))


def test_per_sample_gradients_of_layer() -> None:
    layer = ph.nn.PermutohedralConv(2, 2, dimension=2, learn_sigma=True, dtype=torch.float64, device=DEVICE)
    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], values: Tensor, features: Tensor) -> Tensor:
        result: Tensor = functional_call(layer, parameters, (values, features))
        return result.square().sum()

    values, features, _ = batches_of()
    gradients = vmap(grad(loss), (None, 0, 0))(parameters, values, features)
    for item in range(ITEMS):
        leaves = {name: each.clone().requires_grad_() for name, each in parameters.items()}
        loss(leaves, values[item], features[item]).backward()
        for name, leaf in leaves.items():
            assert leaf.grad is not None
            assert_close(gradients[name][item], leaf.grad)


def tangent(*given: Tensor) -> Tensor:
    return cast(Tensor, jvp(on_a_lattice, given, given)[1])


def gradient(*given: Tensor) -> Tensor:
    return cast(Tensor, grad(lambda *given: learned(*given).square().sum(), argnums=1)(*given))


def of_duals(*given: Tensor) -> Tensor:
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(learned(*(forward_ad.make_dual(each, each) for each in given)))
        assert dual.tangent is not None
        return cast(Tensor, dual.tangent)


@pytest.mark.parametrize("derivative", [tangent, gradient, of_duals])
def test_compiled_transformations(derivative: Callable[..., Tensor]) -> None:
    """The compiler leaves out what it cannot transform; it never leaves out a tangent."""
    inputs = inputs_of()
    torch.compiler.reset()
    assert_close(torch.compile(derivative, backend="aot_eager")(*inputs), derivative(*inputs))


def test_compiled_tangent_on_lattice() -> None:
    """Nothing breaks the graph before the first operator."""
    values, features, weight = inputs_of()
    lattice = ph.build_lattice(features)

    def tangent(values: Tensor) -> Tensor:
        def function(values: Tensor) -> Tensor:
            return ph.permutohedral_filter(values, lattice, weight)

        return cast(Tensor, jvp(function, (values,), (values,))[1])

    torch.compiler.reset()
    assert_close(torch.compile(tangent, backend="aot_eager")(values), tangent(values))
