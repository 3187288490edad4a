"""Layers on lattice points, compared with torch's layers per item, and their derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import DEVICE, assert_close, draw
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

import permutohedral as ph


def pyramid_of(points: int = 9) -> ph.levels.LatticePyramid:
    return ph.levels.build_pyramid(draw(points, 2, scale=2.0), 2)


def layers() -> dict[str, tuple[nn.Module, int]]:
    """Each layer with the level of its input."""
    kind: dict[str, Any] = {"dimension": 2, "dtype": torch.float64, "device": DEVICE}
    return {
        "convolution": (ph.nn.LatticeConv(2, 3, **kind), 0),
        "coarsen": (ph.nn.LatticeConvDown(2, 3, **kind), 0),
        "refine": (ph.nn.LatticeConvUp(2, 3, **kind), 1),
        "coarsen linear": (ph.nn.LatticeLinearDown(2, 3, dimension=2).to(DEVICE, torch.float64), 0),
        "refine linear": (ph.nn.LatticeLinearUp(2, 3).to(DEVICE, torch.float64), 1),
        "pool": (ph.nn.LatticePool(), 0),
        "norm": (ph.nn.LatticeGroupNorm(1, 2, dtype=torch.float64, device=DEVICE), 0),
    }


def arguments_of(name: str, pyramid: ph.levels.LatticePyramid) -> tuple[object, ...]:
    return (pyramid.levels[0],) if name in ("convolution", "norm") else (pyramid, 0)


@pytest.mark.parametrize("name", layers())
def test_derivatives_of_values_and_parameters(name: str) -> None:
    layer, level = layers()[name]
    pyramid = pyramid_of()
    parameters = {key: draw(*each.shape, seed=5) for key, each in layer.named_parameters()}

    def function(values: Tensor, *given: Tensor) -> Tensor:
        named = dict(zip(parameters, given, strict=True))
        result: Tensor = functional_call(layer, named, (values, *arguments_of(name, pyramid)))
        return result

    inputs = [draw(pyramid.levels[level].num_lattice_points, 2), *parameters.values()]
    for each in inputs:
        each.requires_grad_()
    # the order of atomic additions on a GPU may differ
    assert gradcheck(function, inputs, fast_mode=True, nondet_tol=1e-10)
    assert gradgradcheck(function, inputs, fast_mode=True, nondet_tol=1e-10)


@pytest.mark.parametrize("points", [9, 0])
@pytest.mark.parametrize("name", layers())
def test_compiled_and_empty(name: str, points: int) -> None:
    layer, level = layers()[name]
    pyramid = pyramid_of(points)
    arguments = arguments_of(name, pyramid)
    values = draw(pyramid.levels[level].num_lattice_points, 2)
    expected = layer(values, *arguments)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_close(compiled(values, *arguments), expected)
    again = layers()[name][0]
    again.load_state_dict(layer.state_dict())
    assert_close(again(values, *arguments), expected)


def test_linear_layers_preserve_constants() -> None:
    """Where no lattice point is missing, with channels that are not mixed."""
    grid = torch.cartesian_prod(*[torch.arange(9.0)] * 2).to(DEVICE)
    pyramid = ph.levels.build_pyramid(grid, 2)
    down, up = ph.nn.LatticeLinearDown(1, 1, dimension=2).to(DEVICE), ph.nn.LatticeLinearUp(1, 1).to(DEVICE)
    for layer in (down, up):
        torch.nn.init.ones_(layer.mix.weight)
        torch.nn.init.constant_(layer.mix.bias, 2.0)
    fine, coarse = (torch.ones(level.num_lattice_points, 1, device=DEVICE) for level in pyramid.levels)
    inside = (pyramid.tables[0].down >= 0).all(dim=0)
    assert bool(inside.any())
    assert_close(down(fine, pyramid, 0)[inside], 3 * coarse[inside])
    assert_close(up(coarse, pyramid, 0), 3 * fine)


def test_the_bias_is_added() -> None:
    layer = ph.nn.LatticeConv(2, 3, dimension=2, dtype=torch.float64, device=DEVICE)
    lattice = pyramid_of().levels[0]
    values = draw(lattice.num_lattice_points, 2)
    assert layer.bias is not None
    assert_close(layer(values, lattice), ph.convolve(values, layer.weight, lattice) + layer.bias)


@pytest.mark.parametrize("kind", [ph.nn.LatticeConv, ph.nn.LatticeConvDown, ph.nn.LatticeConvUp])
def test_weights_preserve_the_variance(kind: type) -> None:
    """On points without holes, of values without correlation."""
    torch.manual_seed(0)
    grid = torch.cartesian_prod(*[torch.arange(24.0)] * 3).to(DEVICE)
    pyramid = ph.levels.build_pyramid(grid, 2)
    layer = kind(16, 16, dimension=3, bias=False, device=DEVICE)
    level = int(kind is ph.nn.LatticeConvUp)
    values = torch.randn(pyramid.levels[level].num_lattice_points, 16, device=DEVICE)
    where = (pyramid.levels[0],) if kind is ph.nn.LatticeConv else (pyramid, 0)
    assert 0.7 < float(layer(values, *where).detach().std()) < 1.2


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm_matches_torch_per_item(groups: int) -> None:
    batch = torch.tensor([0, 2, 2, 1], device=DEVICE).repeat(8)
    lattice = ph.build_lattice(draw(32, 2, scale=3.0), batch=batch)
    layer = ph.nn.LatticeGroupNorm(groups, 6, dtype=torch.float64, device=DEVICE)
    theirs = nn.GroupNorm(groups, 6, dtype=torch.float64, device=DEVICE)
    with torch.no_grad():
        for each in (layer, theirs):
            each.weight.copy_(draw(6, seed=1))
            each.bias.copy_(draw(6, seed=2))
    values = draw(lattice.num_lattice_points, 6)
    actual = layer(values, lattice)
    for item in range(3):
        rows = lattice.source.keys[:, 0] == item
        assert_close(actual[rows], theirs(values[rows].T[None])[0].T)


def test_group_norm_of_16_bits_and_empty_items() -> None:
    layer = ph.nn.LatticeGroupNorm(1, 2, device=DEVICE)
    lattice = ph.build_lattice(torch.zeros(0, 2, device=DEVICE))
    assert layer(torch.zeros(0, 2, device=DEVICE), lattice).shape == (0, 2)
    lattice = ph.build_lattice(torch.randn(20, 2, device=DEVICE))
    values = torch.randn(lattice.num_lattice_points, 2, device=DEVICE)
    assert layer(values.bfloat16(), lattice).dtype == torch.bfloat16
    assert_close(layer(values.bfloat16(), lattice), layer(values.bfloat16().float(), lattice))


@pytest.mark.parametrize("wrong", [0, 2.0, -1])
def test_rejects_wrong_channels(wrong: object) -> None:
    with pytest.raises(ph.errors.InputError, match="in_channels must be a whole number"):
        ph.nn.LatticeConvDown(wrong, 3, dimension=2)  # type: ignore[arg-type]
    with pytest.raises(ph.errors.InputError, match="num_groups must divide"):
        ph.nn.LatticeGroupNorm(3, 4)
