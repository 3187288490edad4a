"""The permutohedral convolution as a layer."""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from support import DEVICE, assert_close, to_numpy, to_tensor
from torch import Tensor

import permutohedral as ph
from permutohedral.filters.normalization import NORMALIZATIONS, Normalization
from permutohedral.nn import PermutohedralConv

pytestmark = pytest.mark.usefixtures("backend")


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return to_tensor(np.random.default_rng([seed, *shape]).normal(size=shape), dtype)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("in_channels", "out_channels", "groups"), [(2, 3, 1), (4, 6, 2)])
def test_matches_oracle(in_channels: int, out_channels: int, groups: int, bias: bool, dtype: torch.dtype) -> None:
    """out = B W B^T v + bias."""
    layer = PermutohedralConv(
        in_channels, out_channels, 3, 1, groups=groups, bias=bias, normalization="none", device=DEVICE, dtype=dtype
    )
    values, features = draw(20, in_channels, dtype=dtype), draw(20, 3, seed=1, dtype=dtype)
    arrays = to_numpy(values), to_numpy(features), to_numpy(layer.weight), to_numpy(features)
    expected = oracle.permutohedral_filter(*arrays, size=1, groups=groups)
    if layer.bias is not None:
        expected = expected + to_numpy(layer.bias)
    assert (layer.bias is not None) == bias
    assert_close(layer(values, features), expected)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_calling_conventions_agree(normalization: Normalization) -> None:
    """Features, a lattice built before, keywords, other targets, and batches of all three kinds."""
    layer = PermutohedralConv(2, 3, 2, normalization=normalization, device=DEVICE)
    values, features, targets = draw(3, 10, 2), draw(3, 10, 2, seed=1), draw(3, 4, 2, seed=2) / 2
    together = layer(values, features, targets)
    assert together.shape == (3, 4, 3)
    flat = values.flatten(0, 1), features.flatten(0, 1), targets.flatten(0, 1)
    items = torch.arange(3, device=DEVICE)
    batch, target_batch = items.repeat_interleave(10), items.repeat_interleave(4)
    ragged = layer(*flat, batch=batch, target_batch=target_batch)
    assert_close(ragged.reshape(3, 4, 3), together)
    for item in range(3):
        alone = layer(values[item], features=features[item], target_features=targets[item])
        assert_close(together[item], alone)
        lattice = layer.build_lattice(features[item], targets[item])
        assert_close(layer(values[item], lattice), alone)
        assert_close(layer(values, lattice)[item], alone)


def test_layers_share_a_lattice() -> None:
    """The point of building it apart: nothing about the lattice belongs to the layer."""
    first = PermutohedralConv(2, 4, 2, device=DEVICE)
    second = PermutohedralConv(4, 3, 2, device=DEVICE)
    values, features = draw(20, 2), draw(20, 2, seed=1)
    lattice = ph.build_lattice(features)
    reused = second(first(values, lattice).relu(), lattice)
    assert_close(reused, second(first(values, features).relu(), features))


def test_scale_multiplies_features() -> None:
    layer = PermutohedralConv(2, 3, 2, learn_sigma=True, device=DEVICE)
    plain = PermutohedralConv(2, 3, 2, device=DEVICE)
    plain.load_state_dict({name: each for name, each in layer.state_dict().items() if name != "log_scale"})
    values, features, targets = draw(20, 2), draw(20, 2, seed=1), draw(5, 2, seed=2)
    assert layer.scale is not None
    assert layer.scale.tolist() == [1.0, 1.0]
    assert_close(layer(values, features, targets), plain(values, features, targets))
    with torch.no_grad():
        assert layer.log_scale is not None
        layer.log_scale.copy_(torch.tensor([math.log(2.0), math.log(0.5)]))
    factors = torch.tensor([2.0, 0.5], device=DEVICE)
    assert_close(layer.scale, factors)
    assert_close(layer(values, features, targets), plain(values, features * factors, targets * factors))
    assert plain.scale is None


@pytest.mark.parametrize(("dimension", "size"), [(1, 1), (2, 2), (4, 1)])
def test_kaiming_init_preserves_variance(dimension: int, size: int) -> None:
    """Of 64 x 64 filters: mean 0 and variance 1 / (taps x in_channels), within five standard errors."""
    layer = PermutohedralConv(64, 64, dimension, size, device=DEVICE)
    weight, fan_in = to_numpy(layer.weight), layer.neighborhood.filter_size * 64
    assert abs(weight.mean()) < 5 / math.sqrt(fan_in * weight.size)
    assert abs(weight.var() * fan_in - 1) < 5 * math.sqrt(2 / weight.size)
    assert layer.bias is not None
    assert layer.bias.abs().max() <= 1 / math.sqrt(fan_in)
    grouped = PermutohedralConv(64, 64, dimension, size, groups=16, device=DEVICE)
    weight, fan_in = to_numpy(grouped.weight), grouped.neighborhood.filter_size * 4
    assert abs(weight.var() * fan_in - 1) < 5 * math.sqrt(2 / weight.size)


@pytest.mark.parametrize("groups", [1, 2])
def test_gaussian_init_matches_gaussian_filter(groups: int) -> None:
    layer = PermutohedralConv(
        4, 4, 2, 2, groups=groups, init="gaussian", normalization="homogeneous", device=DEVICE, dtype=torch.float64
    )
    values, features = draw(20, 4, dtype=torch.float64), draw(20, 2, seed=1, dtype=torch.float64)
    assert_close(layer(values, features), ph.gaussian_filter(values, features, method="dense"))


def test_gaussian_init_with_other_widths_filters_the_mean() -> None:
    layer = PermutohedralConv(
        4, 6, 2, 2, groups=2, init="gaussian", normalization="homogeneous", device=DEVICE, dtype=torch.float64
    )
    values, features = draw(20, 4, dtype=torch.float64), draw(20, 2, seed=1, dtype=torch.float64)
    means = values.reshape(20, 2, 2).mean(dim=2).repeat_interleave(3, dim=1)
    assert_close(layer(values, features), ph.gaussian_filter(means, features, method="dense"))


@pytest.mark.parametrize(("out_channels", "groups"), [(4, 1), (4, 2), (6, 2)])
def test_weight_decay_pulls_around_gaussian_to_the_gaussian(out_channels: int, groups: int) -> None:
    """Of the same filter trained by itself, decay takes away the Gaussian."""
    options: dict[str, Any] = {"groups": groups, "device": DEVICE, "dtype": torch.float64}
    plain = PermutohedralConv(4, out_channels, 2, init="gaussian", **options)
    layer = PermutohedralConv(4, out_channels, 2, around="gaussian", **options)
    gaussian = plain.weight.detach().clone()
    assert_close(layer.filter, gaussian)
    values, features = draw(20, 4, dtype=torch.float64), draw(20, 2, seed=1, dtype=torch.float64)
    assert_close(layer(values, features), plain(values, features))
    for each in (plain, layer):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.01, weight_decay=50.0)
        each(values, features).square().mean().backward()
        assert each.weight.grad is not None
        change = -0.01 * each.weight.grad
        optimizer.step()
        # half of the filter, or of its difference from the Gaussian, which is zero
        assert_close(each.filter, change + (gaussian / 2 if each is plain else gaussian))


def test_gradients_around_gaussian() -> None:
    layer = PermutohedralConv(2, 2, 2, around="gaussian", init="kaiming", device=DEVICE, dtype=torch.float64)
    assert float(layer.weight.detach().abs().min()) > 0
    values, features = draw(8, 2, dtype=torch.float64), draw(8, 2, seed=1, dtype=torch.float64)

    def run(values: Tensor, weight: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(layer, {"weight": weight}, (values, features))
        return result

    inputs = values.requires_grad_(), layer.weight.detach().requires_grad_()
    assert torch.autograd.gradcheck(run, inputs, nondet_tol=1e-12, fast_mode=True)


def test_state_with_and_without_around_differs() -> None:
    plain, layer = PermutohedralConv(1, 1, 2), PermutohedralConv(1, 1, 2, around="gaussian")
    for one, other in ((plain, layer), (layer, plain)):
        with pytest.raises(RuntimeError, match="gaussian"):
            one.load_state_dict(other.state_dict())
    empty = PermutohedralConv(1, 1, 2, around="gaussian", device="meta").to_empty(device="cpu")
    empty.load_state_dict(layer.state_dict())
    assert_close(empty.filter, layer.filter)


def test_state_dict_and_copies() -> None:
    if DEVICE.type == "cuda":
        # copies give the same bits where a layer gives its own again
        torch.use_deterministic_algorithms(True, warn_only=True)
    layer = PermutohedralConv(2, 3, 2, learn_sigma=True, device=DEVICE)
    assert {name: tuple(each.shape) for name, each in layer.state_dict().items()} == {
        "weight": (7, 2, 3),
        "bias": (3,),
        "log_scale": (2,),
    }
    values, features = draw(20, 2), draw(20, 2, seed=1)
    expected = layer(values, features)
    twin = PermutohedralConv(2, 3, 2, learn_sigma=True, device=DEVICE)
    assert (twin(values, features) != expected).any()
    twin.load_state_dict(layer.state_dict())
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    saved = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    for other in (twin, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), saved):
        assert (other(values, features) == expected).all()
        assert repr(other) == repr(layer)


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (
            PermutohedralConv(3, 8, 2),
            "PermutohedralConv(3, 8, dimension=2, neighborhood_size=1, filter_size=7, normalization='density')",
        ),
        (
            PermutohedralConv(
                4, 8, 1, 2, groups=2, bias=False, around="gaussian", normalization="none", learn_sigma=True
            ),
            "PermutohedralConv(4, 8, dimension=1, neighborhood_size=2, filter_size=5, groups=2, bias=False, "
            "around='gaussian', normalization='none', learn_sigma=True)",
        ),
    ],
)
def test_repr(layer: PermutohedralConv, text: str) -> None:
    assert repr(layer) == text


def test_training_recovers_a_filter() -> None:
    """A layer fits the output of another one that has the same shape: the loss goes to zero."""
    values, features = draw(100, 2), 2 * draw(100, 2, seed=1)
    teacher = PermutohedralConv(2, 2, 2, normalization="none", device=DEVICE)
    lattice = ph.build_lattice(features)
    with torch.no_grad():
        wanted = teacher(values, lattice)
    student = PermutohedralConv(2, 2, 2, normalization="none", device=DEVICE)
    optimizer = torch.optim.LBFGS(student.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(student(values, lattice), wanted)
        loss.backward()
        return loss

    first = float(closure().detach())
    optimizer.step(closure)
    assert float(closure()) < 1e-4 * first
