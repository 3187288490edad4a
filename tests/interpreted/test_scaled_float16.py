"""Products in TF32 computed from scaled float16, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from interpreted.internals import convolve
from torch import Tensor

from permutohedral.nn import PermutohedralConv
from permutohedral.ops import reference
from permutohedral.ops.contract import transpose_weight
from permutohedral.ops.dispatch import use as use_backend
from permutohedral.ops.triton import BACKEND as kernels
from permutohedral.ops.triton.filter.weight_gradient import scaled_fp16_gradients


@pytest.fixture(autouse=True)
def halves(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """TF32 is allowed, and few channels and targets are many."""
    monkeypatch.setattr(convolve, "_MANY_CHANNELS", 16)
    monkeypatch.setattr(convolve, "_WORTH_SCALING", 1)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def draw(in_channels: int = 32, out_channels: int = 16) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lattice values, weight and gradient whose channels differ by factors of 2^50 to 2^80; neighbors."""
    lattice_values, gradient = torch.randn(30, in_channels), torch.randn(41, out_channels)
    lattice_values *= torch.exp2(torch.linspace(-40, 40, in_channels))
    gradient *= torch.exp2(torch.linspace(30, -20, out_channels))
    lattice_values[:, 3] = 0
    return lattice_values, torch.randn(3, in_channels, out_channels), gradient, neighbors_of(30)


def neighbors_of(sources: int) -> Tensor:
    """A table of three taps, the second and the third opposite to each other, that has a transpose."""
    table = torch.full((3, 41), -1, dtype=torch.int32)
    for tap in range(3):
        table[tap, torch.randperm(41)[:sources]] = torch.randperm(sources, dtype=torch.int32)
    return table


OPPOSITE = torch.tensor([0, 2, 1])


def assert_as_precise_as_tf32(found: Tensor, expected: Tensor, magnitudes: Tensor) -> None:
    """The 11 bits of TF32 in each of two factors, of every sum by itself."""
    assert bool(((found - expected).abs() <= 2**-10 * magnitudes).all())


@pytest.mark.parametrize("groups", [1, 2])
def test_weight_gradients(groups: int) -> None:
    lattice_values, _, gradient, neighbors = draw(32, 32)
    found = kernels.convolve_weight_gradient(lattice_values, gradient, neighbors, groups)
    left, right = lattice_values.double(), gradient.double()
    expected = reference.convolve_weight_gradient(left, right, neighbors, groups)
    most = reference.convolve_weight_gradient(left.abs(), right.abs(), neighbors, groups)
    assert_as_precise_as_tf32(found, expected, most)


def test_convolution() -> None:
    lattice_values, weight, _, neighbors = draw()
    # without it all sums would be those of the largest channel
    weight /= torch.exp2(torch.linspace(-40, 40, 32))[:, None]
    weight *= torch.exp2(torch.linspace(20, -20, 16))
    left, right = lattice_values.double(), weight.double()
    expected = reference.convolve(left, right, neighbors, 1)
    most = reference.convolve(left.abs(), right.abs(), neighbors, 1)
    assert_as_precise_as_tf32(kernels.convolve(lattice_values, weight, neighbors, 1), expected, most)


def test_both_gradients() -> None:
    lattice_values, weight, gradient, neighbors = draw()
    weight /= torch.exp2(torch.linspace(30, -20, 16))
    reverse = reference.transpose_neighbors(neighbors, OPPOSITE, 30)
    found = scaled_fp16_gradients(lattice_values, weight, gradient, neighbors, reverse, OPPOSITE)
    left, factor, right = lattice_values.double(), weight.double(), gradient.double()
    adjoint = transpose_weight(factor, OPPOSITE, 1)
    expected = reference.convolve(right, adjoint, reverse, 1)
    assert_as_precise_as_tf32(found[0], expected, reference.convolve(right.abs(), adjoint.abs(), reverse, 1))
    expected = reference.convolve_weight_gradient(left, right, neighbors, 1)
    most = reference.convolve_weight_gradient(left.abs(), right.abs(), neighbors, 1)
    assert_as_precise_as_tf32(found[1], expected, most)


def test_a_layer_of_small_values() -> None:
    """In memory the density follows the lattice values, which would vanish if it had a share in their scales."""
    layer, exact = (PermutohedralConv(16, 16, dimension=2, bias=False) for _ in range(2))
    exact.load_state_dict(layer.state_dict())
    values, features, gradient = 1e-11 * torch.randn(60, 16), 3 * torch.rand(60, 2), torch.randn(60, 16)
    found = filter_and_differentiate(layer, values, features, gradient, "triton")
    arguments = values.double(), features.double(), gradient.double()
    for one, other in zip(found, filter_and_differentiate(exact.double(), *arguments, "reference"), strict=True):
        assert float((one - other).norm() / other.norm()) < 2**-9


def filter_and_differentiate(
    layer: PermutohedralConv, values: Tensor, features: Tensor, gradient: Tensor, backend: str
) -> tuple[Tensor, ...]:
    with use_backend(backend):
        output = layer(values.requires_grad_(), features)
        return output.detach(), *torch.autograd.grad(output, (values, layer.weight), gradient)


def test_nonfinite_values_do_not_spread() -> None:
    """Elsewhere the results are as if it were not there."""
    lattice_values, weight, _, neighbors = draw()
    neighbors[neighbors == 7] = -1
    clean = kernels.convolve(lattice_values, weight, neighbors, 1)
    lattice_values[7] = torch.tensor([float("inf"), float("nan")]).repeat(16)
    assert torch.equal(kernels.convolve(lattice_values, weight, neighbors, 1), clean)
    neighbors[1, 5] = 7
    touched = kernels.convolve(lattice_values, weight, neighbors, 1)
    assert not bool(torch.isfinite(touched[5]).any())
    assert torch.equal(touched[6:], clean[6:])
