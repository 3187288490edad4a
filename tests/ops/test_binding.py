"""What a call is bound to: its path, the reason, and that fused functions and their definitions agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import DEVICE, NONDETERMINISM, assert_close
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

import permutohedral as ph
from permutohedral.filters.normalization import NORMALIZATIONS, Normalization

FUSED = "one call of the backend"


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def path_of(name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Return the decision of `explain_call` about one of the filters."""
    lines = ph.backends.explain_call(function, *arguments, **options).decisions
    (line,) = (line for line in lines if line.startswith(f"{name}: "))
    return line.removeprefix(f"{name}: ")


def is_fused_by(backend: str) -> bool:
    return backend != "reference"


@pytest.fixture
def layer() -> nn.Module:
    torch.manual_seed(0)
    return ph.nn.PermutohedralConv(3, 4, dimension=2).to(DEVICE)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_equals_cast_tensors(normalization: Normalization, dtype: torch.dtype, batched: bool) -> None:
    shape = (2, 25) if batched else (50,)
    features, bias = draw(*shape, 2, seed=1), draw(4, seed=3)
    layer = ph.nn.PermutohedralConv(3, 4, 2, normalization=normalization).to(DEVICE)
    assert layer.bias is not None
    cast_layer = ph.nn.PermutohedralConv(3, 4, 2, normalization=normalization).to(DEVICE)
    with torch.no_grad():
        layer.bias.copy_(bias)
    cast_layer.load_state_dict(layer.state_dict())
    cast_layer.to(dtype)
    leaves = draw(*shape, 3).requires_grad_(), draw(*shape, 3).to(dtype).requires_grad_()
    with torch.autocast(DEVICE.type, dtype):
        found = layer(leaves[0], features)
    expected = cast_layer(leaves[1], features)
    assert found.dtype == dtype
    assert torch.equal(found, expected)
    upstream = draw(*found.shape, seed=4).to(dtype)
    mine = torch.autograd.grad(found, [leaves[0], *layer.parameters()], upstream)
    theirs = torch.autograd.grad(expected, [leaves[1], *cast_layer.parameters()], upstream)
    for one, other in zip(mine, theirs, strict=True):
        assert one.dtype == torch.float32
        assert_close(one, other.float(), dtype)


def test_gradients_take_the_fused_path(layer: nn.Module, backend: str) -> None:
    values, features = draw(50, 3).requires_grad_(), draw(50, 2, seed=1)
    assert (path_of("filter_learned", layer, values, features) == FUSED) == is_fused_by(backend)


@pytest.mark.usefixtures("backend")
def test_gradients_of_features_are_composed(layer: nn.Module) -> None:
    path = path_of("filter_learned", layer, draw(50, 3), draw(50, 2, seed=1).requires_grad_())
    assert path == "composed of primitives, because gradients with respect to the features are wanted"


@pytest.mark.usefixtures("backend")
def test_gradients_of_gradients(layer: nn.Module) -> None:
    """The derivative of the fused filter is composed where it is differentiated again."""
    layer.double()
    lattice = ph.build_lattice(draw(12, 2, seed=1, dtype=torch.float64))
    values = draw(12, 3, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda each: layer(each, lattice).square(), (values,), nondet_tol=NONDETERMINISM
    )


def test_hooks_see_the_saved_tensors(layer: nn.Module) -> None:
    """Offloading and gradient checkpointing replace all that a fused filter saves."""
    values, features, sizes = draw(50, 3).requires_grad_(), draw(50, 2, seed=1), []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tuple(tensor.shape))
        return tensor.clone()

    lattice = ph.build_lattice(features)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layer(values, lattice)
    (found,) = torch.autograd.grad(output.sum(), values)
    assert (lattice.num_lattice_points, 3) in sizes
    assert_close(found, torch.autograd.grad(layer(values, lattice).sum(), values)[0])
