"""DenseEnergyLoss compared with its definition: a dense kernel on the lattice, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support import DEVICE
from torch import Tensor
from torch.nn.functional import interpolate
from torch.testing import assert_close

import permutohedral as ph
from permutohedral.compat.bilateralfilter import bilateralfilter_batch

SIGMAS: dict[str, Any] = {"sigma_space": 20.0, "sigma_color": 30.0}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


IMAGES = 255 * draw(2, 3, 12, 16)
PROBABILITIES = draw(2, 4, 12, 16, seed=1).softmax(dim=1)
REGION = (draw(2, 12, 16, seed=2) > 0.2).float()
LABELS = torch.where(draw(2, 1, 12, 16, seed=3) > 0.5, 255, 1).to(torch.uint8)


def original(scale: float, region: Tensor | None, labels: Tensor | None) -> tuple[float, Tensor]:
    """Return loss and gradient as ToCo computes them, with the drop-in on NumPy arrays."""
    segments = PROBABILITIES.clone().requires_grad_()
    scaled = interpolate(segments, scale_factor=scale, mode="bilinear", align_corners=False)
    images = interpolate(IMAGES, scale_factor=scale)
    mask = torch.ones(2, 1, 12, 16) if region is None else region.reshape(2, 1, 12, 16)
    mask = interpolate(mask, scale_factor=scale)
    gate = torch.ones_like(mask)
    if labels is not None:
        gate = (mask - scaled.detach().amax(dim=1, keepdim=True)).clamp(min=0)
        gate[interpolate(labels, scale_factor=scale).long() == 255] = 1
    masked = (scaled * mask).detach()
    filtered = np.zeros(masked.numel(), np.float32)
    size = (*masked.shape, SIGMAS["sigma_color"], SIGMAS["sigma_space"] * scale)
    bilateralfilter_batch(images.flatten().numpy(), masked.flatten().numpy(), filtered, *size)
    gated = torch.from_numpy(filtered).reshape(masked.shape) * gate
    (gradient,) = torch.autograd.grad(scaled, segments, -2 * gated / 2 * mask)
    return -float((masked * gated).sum()) / 2, gradient


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize(
    ("region", "labels"), [(None, None), (REGION, None), (REGION[:, None], LABELS), (None, LABELS)]
)
def test_matches_rloss_and_toco(scale: float, region: Tensor | None, labels: Tensor | None, recompute: bool) -> None:
    loss, gradient = original(scale, region, labels)
    segments = PROBABILITIES.clone().to(DEVICE).requires_grad_()
    layer = ph.nn.DenseEnergyLoss(weight=0.5, scale_factor=scale, recompute=recompute, **SIGMAS)
    # images and masks come from the CPU, as in the programs
    found = layer(IMAGES, segments, region, labels)
    found.backward()
    assert found.shape == ()
    assert found.item() == pytest.approx(0.5 * loss, rel=1e-5)
    assert_close(segments.grad, 0.5 * gradient.to(DEVICE), rtol=1e-4, atol=1e-6)


def test_gradient_is_the_derivative_of_a_symmetric_kernel() -> None:
    """All pixels lie in one simplex, so the kernel is symmetric."""
    layer = ph.nn.DenseEnergyLoss(sigma_space=1e4, sigma_color=1e4, weight=1.0, scale_factor=1.0)
    images, segments = (given[:1, :2, :3, :3].double().to(DEVICE) for given in (IMAGES, PROBABILITIES))
    assert torch.autograd.gradcheck(lambda given: layer(images, given), (segments.requires_grad_(),))


def test_half_precision_is_computed_in_float32() -> None:
    layer = ph.nn.DenseEnergyLoss(**SIGMAS)
    images, segments = IMAGES.to(DEVICE), PROBABILITIES.to(DEVICE)
    expected = layer(images, segments.half().float())
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert_close(layer(images, segments.half()), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    {
        "batch": ({"images": IMAGES[:1]}, "same batch and space"),
        "space": ({"images": IMAGES[..., 1:]}, "same batch and space"),
        "integers": ({"images": IMAGES.to(torch.uint8)}, "images must be floating"),
        "no class": ({"probabilities": PROBABILITIES[:, :0]}, "probabilities must be floating"),
        "flat": ({"probabilities": PROBABILITIES.flatten(1)}, "probabilities must be floating"),
        "array": ({"probabilities": PROBABILITIES.numpy()}, "probabilities must be a torch.Tensor"),
        "region": ({"region": REGION[:1]}, "region must have the shape"),
        "labels": ({"labels": LABELS[..., 1:]}, "labels must have the shape"),
    }.values(),
)
def test_rejects_mismatched_arguments(change: dict[str, Any], message: str) -> None:
    given = {"images": IMAGES, "probabilities": PROBABILITIES} | change
    with pytest.raises(ph.errors.InputError, match=message):
        ph.nn.DenseEnergyLoss()(**given)


@pytest.mark.parametrize("name", ["sigma_space", "sigma_color", "weight", "scale_factor"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), "1"])
def test_rejects_bad_options(name: str, value: Any) -> None:
    if name == "weight" and value in (0, -1):
        assert ph.nn.DenseEnergyLoss(weight=value).weight == value
        return
    with pytest.raises(ph.errors.InputError, match=name):
        ph.nn.DenseEnergyLoss(**{name: value})


def test_representation_shows_the_options() -> None:
    assert repr(ph.nn.DenseEnergyLoss()) == (
        "DenseEnergyLoss(sigma_space=100, sigma_color=15, weight=1e-07, scale_factor=0.5)"
    )
