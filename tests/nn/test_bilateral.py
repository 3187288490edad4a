"""Layers on images."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import DEVICE, assert_close, to_tensor
from torch import Tensor

import permutohedral as ph
from permutohedral.features import FEATURE_SHIFT
from permutohedral.nn import BilateralConv2d, BilateralFilter

SIGMAS: dict[str, Any] = {"sigma_space": 2.5, "sigma_color": 0.3}

pytestmark = pytest.mark.usefixtures("backend")


def image(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return to_tensor(np.random.default_rng([seed, *shape]).random(shape), dtype)


@pytest.mark.parametrize("guided", [False, True], ids=["own_guide", "other_guide"])
@pytest.mark.parametrize("options", [{"method": "dense", "halo": 1}, {"method": "auto"}], ids=["dense", "auto"])
def test_layer_matches_bilateral_filter(guided: bool, options: dict[str, Any]) -> None:
    layer = BilateralFilter(**SIGMAS, **options).to(DEVICE)
    picture, guide = image(2, 3, 4, 5), image(2, 1, 4, 5, seed=1) if guided else None
    assert_close(layer(picture, guide), ph.bilateral_filter(picture, **SIGMAS, guide=guide, **options))
    assert_close(layer.sigma_space, torch.tensor(2.5))
    assert_close(layer.sigma_color, torch.tensor(0.3))
    assert [each for each in layer.parameters() if each.requires_grad] == []


def test_layers_of_fixed_bandwidths_read_them_as_numbers(backend: str) -> None:
    """Features of numbers are computed in one call, and only numbers are compared with the units of the image."""
    if backend == "reference":
        pytest.skip("this backend has no function for features of images")
    filtered = BilateralFilter(sigma_space=(2.5, 2.5), sigma_color=0.3).to(DEVICE)
    solver = ph.nn.BilateralSolver(learn_smoothness=False).to(DEVICE)
    for layer in (filtered, partial(solver, image(3, 8, 9))):
        assert "picture_features: one call of the backend" in str(ph.backends.explain_call(layer, image(3, 8, 9)))
    if DEVICE.type == "cpu":
        with pytest.warns(UserWarning, match="almost unchanged"):
            filtered(255 * image(1, 100, 100))


def test_accepts_any_kind_of_number() -> None:
    layer = BilateralFilter(sigma_space=np.float32(2.5), sigma_color=torch.tensor(0.25))  # type: ignore[arg-type]
    assert repr(layer) == "BilateralFilter(sigma_space=2.5, sigma_color=0.25)"
    with pytest.raises(ph.errors.InputError, match="sigma_space must be one number"):
        BilateralFilter(sigma_space="wide", sigma_color=0.3)  # type: ignore[arg-type]


def test_bilateral_filter_learns_its_bandwidths() -> None:
    layer = BilateralFilter(**SIGMAS, learn_sigma=True).to(DEVICE)
    layer(image(1, 8, 9)).square().sum().backward()
    assert layer.log_sigma.grad is not None
    assert layer.log_sigma.grad.abs().min() > 0
    assert repr(layer) == "BilateralFilter(sigma_space=2.5, sigma_color=0.3, learn_sigma=True)"
    assert repr(pickle.loads(pickle.dumps(layer))) == repr(layer)


@pytest.mark.parametrize("guided", [False, True], ids=["own_guide", "other_guide"])
@pytest.mark.parametrize("leading", [(), (2,)])
def test_bilateral_convolution_matches_convolution_of_pixels(leading: tuple[int, ...], guided: bool) -> None:
    """Pixels in scan order, (y, x) in pixels over sigma_space, guide over sigma_color; height and width differ."""
    layer = (
        BilateralConv2d(2, 3, guide_channels=1 if guided else None, sigma_space=1.7, sigma_color=0.4)
        .double()
        .to(DEVICE)
    )
    picture = image(*leading, 2, 4, 5, dtype=torch.float64)
    guide = image(*leading, 1, 4, 5, seed=1, dtype=torch.float64) if guided else None
    actual = layer(picture, guide)
    assert actual.shape == (*leading, 3, 4, 5)
    for item in np.ndindex(leading):
        colors = (picture if guide is None else guide)[item]
        features = [
            [y / 1.7, x / 1.7, *(float(channel[y, x]) / 0.4 for channel in colors)] for y in range(4) for x in range(5)
        ]
        rows = torch.stack([picture[item][:, y, x] for y in range(4) for x in range(5)])
        expected = layer.convolution(rows, to_tensor(features) + FEATURE_SHIFT)
        for pixel in range(20):
            assert_close(actual[item][:, pixel // 5, pixel % 5], expected[pixel])


def test_has_the_attributes_of_conv2d() -> None:
    layer = BilateralConv2d(2, 3, guide_channels=1)
    assert layer.weight is layer.convolution.weight
    assert layer.bias is layer.convolution.bias
    assert layer.out_channels == 3
    assert BilateralConv2d(2, 3, guide_channels=1, bias=False).bias is None
    assert [name for name, _ in layer.named_parameters()] == ["convolution.weight", "convolution.bias"]
    assert [*layer.state_dict()] == ["convolution.weight", "convolution.bias"]


def test_replaces_conv2d() -> None:
    """Same shapes in and out as Conv2d with padding that keeps the size, with or without a batch; it trains."""
    network = torch.nn.Sequential(BilateralConv2d(1, 4), torch.nn.ReLU(), torch.nn.Conv2d(4, 1, 3, padding=1)).to(
        DEVICE
    )
    picture = image(2, 1, 6, 7)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        output = network(picture)
        loss = torch.nn.functional.mse_loss(output, 1 - picture)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert output.shape == picture.shape
    assert network(picture[0]).shape == picture[0].shape
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("leading", [(), (2,)])
def test_position_only_layer_matches_convolution_of_pixels(leading: tuple[int, ...]) -> None:
    layer = BilateralConv2d(2, 3, guide_channels=0, neighborhood_size=2, sigma_space=(1.7, 1.2), device=DEVICE)
    layer = layer.double()
    assert layer.sigma_color is None
    assert layer.weight.shape == (19, 2, 3)
    assert repr(layer).startswith("BilateralConv2d(\n  sigma_space=(1.7, 1.2), guide_channels=0\n")
    picture, known = image(*leading, 2, 4, 5, dtype=torch.float64), image(*leading, 4, 5, seed=1) > 0.2
    places = ph.features.bilateral(
        picture[..., :0, :, :], sigma_space=(1.7, 1.2), sigma_color=1.0, origin=(3, 7)
    ).expand(*leading, 20, 2)
    actual = layer(picture, sample_weight=known, origin=(3, 7))
    for item in np.ndindex(leading):
        rows = picture[item].flatten(1).mT
        expected = layer.convolution(rows, places[item], sample_weight=known[item].flatten())
        assert_close(actual[item], expected.mT.reshape(3, 4, 5))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_position_only_layer_stands_in_sequential(axes: int) -> None:
    """Where a convolution of many channels stood; with a batch, without one, and for other sizes."""
    layer_type = (ph.nn.BilateralConv1d, BilateralConv2d, ph.nn.BilateralConv3d)[axes - 1]
    plain_type = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[axes - 1]
    layers = plain_type(1, 12, 3, padding=1), torch.nn.ReLU(), layer_type(12, 5, guide_channels=0, learn_sigma=True)
    network = torch.nn.Sequential(*layers).to(DEVICE)
    for shape in ((2, 1, 5, 6, 4), (1, 4, 3, 5)):
        picture = image(*shape[: len(shape) - 3 + axes])
        output = network(picture)
        assert output.shape == (*picture.shape[: -axes - 1], 5, *picture.shape[-axes:])
    output.square().sum().backward()
    assert all(each.grad is not None and float(each.grad.abs().max()) > 0 for each in network.parameters())


@pytest.mark.parametrize("layer_type", [ph.nn.BilateralConv1d, BilateralConv2d, ph.nn.BilateralConv3d])
def test_weight_decay_pulls_around_gaussian_to_the_gaussian(layer_type: Any) -> None:
    """Of layers with a guide and without one. Decay alone takes the whole weight away in one step."""
    for guide_channels in (None, 0):
        plain = layer_type(1, 1, guide_channels=guide_channels, init="gaussian")
        layer = layer_type(1, 1, guide_channels=guide_channels, init="kaiming", around="gaussian")
        assert {*layer.state_dict()} == {"convolution.weight", "convolution.bias", "convolution.gaussian"}
        for each in (plain, layer):
            (each.weight.sum() * 0).backward()
            torch.optim.SGD([each.weight], lr=0.1, weight_decay=10.0).step()
        gaussian = layer_type(1, 1, guide_channels=guide_channels, init="gaussian").weight
        assert_close(layer.convolution.filter, gaussian)
        assert_close(plain.convolution.filter, torch.zeros_like(gaussian))


@pytest.mark.parametrize("shape", [(0, 1, 4, 5), (2, 1, 0, 5), (1, 4, 0)])
def test_images_without_pixels(shape: tuple[int, ...]) -> None:
    for guide_channels in (None, 0):
        layer = BilateralConv2d(1, 2, guide_channels=guide_channels).to(DEVICE)
        assert layer(image(*shape)).shape == (*shape[:-3], 2, *shape[-2:])
    assert BilateralFilter(sigma_space=1.0, sigma_color=1.0).to(DEVICE)(image(*shape)).shape == shape


def test_guide_has_gradients() -> None:
    layer = BilateralConv2d(1, 2, guide_channels=1, sigma_color=0.5).to(DEVICE)
    picture, guide = image(1, 4, 5).requires_grad_(), image(1, 4, 5, seed=1).requires_grad_()
    layer(picture, guide).square().sum().backward()
    assert picture.grad is not None
    assert guide.grad is not None
    assert guide.grad.abs().max() > 0
