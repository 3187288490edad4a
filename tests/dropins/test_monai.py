"""The drop-in for MONAI's compiled layers: recorded results, gradients, hostile inputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dropin_cases import FILTERS
from support import DEVICE
from torch import Tensor
from torch.testing import assert_close

from permutohedral.compat import monai
from permutohedral.errors import InputError

RECORDED = np.load(Path(__file__).parent / "monai.npz")


def call(function: str, arguments: list[Any]) -> Tensor:
    """Call a layer as programs do."""
    *images, options = arguments
    if function in ("BilateralFilter", "PHLFilter"):
        result: Tensor = getattr(monai, function).apply(*arguments)
    elif function == "CRF":
        result = monai.CRF(*options)(*images)
    else:
        *images, spatial, color = arguments
        result = getattr(monai, function)(spatial, color).to(images[0])(*images)
    return result


def tensors(name: str, dtype: torch.dtype = torch.float32) -> tuple[str, list[Any]]:
    function, arguments = FILTERS[name]
    return function, [
        torch.from_numpy(each).to(DEVICE, dtype) if isinstance(each, np.ndarray) else each for each in arguments
    ]


@pytest.mark.parametrize("name", FILTERS)
def test_agrees_with_recorded_results(name: str) -> None:
    function, arguments = tensors(name)
    before = [each.clone() if isinstance(each, Tensor) else each for each in arguments]
    found = call(function, arguments).detach()
    np.testing.assert_allclose(found.cpu().numpy(), RECORDED[name], rtol=1e-3, atol=1e-6)
    for each, old in zip(arguments, before, strict=True):
        if isinstance(each, Tensor):
            assert_close(each, old, rtol=0, atol=0)


def test_volume_of_equal_colors() -> None:
    """As MONAI's test_bilateral_approx_cpu.py calls it: most voxels lie on facets. Two rows of its numbers."""
    volume = torch.zeros(1, 1, 5, 5, 5, device=DEVICE)
    volume[:, :, ::4, ::4, ::4] = 1
    found = monai.BilateralFilter.apply(volume, 4, 0.9, True)[0, 0].cpu().numpy()
    np.testing.assert_allclose(found[0, 0], [0.086801, 0.036670, 0.035971, 0.035304, 0.088456], atol=1e-5)
    np.testing.assert_allclose(found[4, 4], [0.090599, 0.031546, 0.031127, 0.031386, 0.083483], atol=1e-5)


# at facets there is no derivative
@pytest.mark.parametrize("name", [name for name in FILTERS if name != "lattice of equal colors"])
def test_gradients_are_derivatives(name: str) -> None:
    function, arguments = tensors(name, torch.float64)
    # a corner, since each number is changed
    images = [each for each in arguments if isinstance(each, Tensor)]
    corner = (slice(1), slice(2), *[slice(3)] * (images[0].dim() - 2))
    images = [each[corner].contiguous().requires_grad_() for each in images]
    options = [each for each in arguments if not isinstance(each, Tensor)]
    if function == "PHLFilter":
        options = [options[0][:2]]
    assert torch.autograd.gradcheck(lambda *given: call(function, [*given, *options]), images, eps=1e-7, atol=1e-5)


@pytest.mark.parametrize("joint", [False, True])
def test_standard_deviations_are_trained(joint: bool) -> None:
    layer = (monai.TrainableJointBilateralFilter if joint else monai.TrainableBilateralFilter)([1.3, 0.7], 0.4)
    layer = layer.to(DEVICE, torch.float64)
    image, guide = (torch.rand(1, 1, 5, 6, dtype=torch.float64, device=DEVICE) for _ in range(2))
    names = ("sigma_x", "sigma_y", "sigma_color")

    def run(*sigmas: Tensor) -> Tensor:
        state = dict(zip(names, sigmas, strict=True))
        result: Tensor = torch.func.functional_call(layer, state, (image, guide) if joint else (image,))
        return result

    assert torch.autograd.gradcheck(run, [getattr(layer, name) for name in names])
    assert set(layer.state_dict()) == {"sigma_x", "sigma_y", "sigma_z", "sigma_color"}


def test_functions_of_the_trained_filters() -> None:
    """MONAI's tests pass volumes of float64, with numbers or tensors."""
    image, guide = (torch.rand(2, 1, 5, 6, 1, dtype=torch.float64, device=DEVICE) for _ in range(2))
    sigmas = [1.5, 0.7, 0.01, 0.4]
    layer = monai.TrainableBilateralFilter(sigmas[:2], 0.4).to(DEVICE, torch.float64)
    expected = layer(image[..., 0])[..., None]
    assert_close(monai.TrainableBilateralFilterFunction.apply(image, *sigmas), expected)
    given = [torch.tensor(sigma, dtype=torch.float64, requires_grad=True) for sigma in sigmas]
    assert_close(monai.TrainableBilateralFilterFunction.apply(image, *given), expected)
    joint = monai.TrainableJointBilateralFilter(sigmas[:2], 0.4).to(DEVICE, torch.float64)
    expected = joint(image[..., 0], guide[..., 0])[..., None]
    assert_close(monai.TrainableJointBilateralFilterFunction.apply(image, guide, *given), expected)
    assert torch.autograd.gradcheck(
        lambda x, y: monai.TrainableJointBilateralFilterFunction.apply(image, guide, x, y, 0.01, 0.4), given[:2]
    )


def test_functions_are_those_of_autograd() -> None:
    """Programs test for them, and pass `apply` on."""
    names = "BilateralFilter", "PHLFilter", "TrainableBilateralFilterFunction", "TrainableJointBilateralFilterFunction"
    assert all(issubclass(getattr(monai, name), torch.autograd.Function) for name in names)


@pytest.mark.parametrize("sigma", [0.9, 4.0])
def test_windows_beyond_the_image_repeat_its_border(sigma: float) -> None:
    image = torch.rand(1, 2, 3, 4, 1, dtype=torch.float64)
    half, expected = (math.ceil(5 * sigma) | 1) // 2, torch.zeros_like(image)
    pixels = image[0, :, :, :, 0].numpy()
    for y, x in np.ndindex(3, 4):
        total = mass = 0.0
        # the third axis has one pixel, and the same offsets for every neighbor
        for dy, dx in itertools.product(range(-half, half + 1), repeat=2):
            neighbor = pixels[:, min(max(y + dy, 0), 2), min(max(x + dx, 0), 3)]
            distance = ((neighbor - pixels[:, y, x]) ** 2).sum() / 0.5**2
            weight = np.exp(-((dy**2 + dx**2) / sigma**2 + distance) / 2)
            total, mass = total + weight * neighbor, mass + weight
        expected[0, :, y, x, 0] = torch.as_tensor(total / mass)
    image = image.to(DEVICE).requires_grad_()
    assert_close(monai.BilateralFilter.apply(image, sigma, 0.5, False), expected.to(DEVICE))
    assert torch.autograd.gradcheck(lambda given: monai.BilateralFilter.apply(given, sigma, 0.5, False), image)


@pytest.mark.parametrize("name", FILTERS)
def test_half_precision_is_filtered_in_float32(name: str) -> None:
    function, arguments = tensors(name, torch.float16)
    wide = [each.float() if isinstance(each, Tensor) else each for each in arguments]
    found = call(function, arguments)
    assert found.dtype == torch.float16
    # the layers keep their standard deviations in 16 bits
    tolerance = 2e-3 if "Trainable" in function else 0
    assert_close(found.float(), call(function, wide).half().float(), rtol=tolerance, atol=tolerance)


def test_reference_of_integers() -> None:
    """MONAI divides it by the standard deviation."""
    function, (logits, reference, options) = tensors("CRF")
    levels = (255 * reference).to(torch.uint8)
    options = (*options[:4], 100.0, *options[5:])
    assert_close(call(function, [logits, levels, options]), call(function, [logits, levels.float(), options]))


def test_compatibility_matrix_mixes_classes() -> None:
    function, (logits, reference, options) = tensors("CRF")
    swapped = torch.eye(3, device=DEVICE)[[1, 0, 2]]
    plain = call(function, [logits, reference, (1, *options[1:])])
    mixed = call(function, [logits, reference, (1, *options[1:], swapped)])
    same = call(function, [logits, reference, (1, *options[1:], torch.eye(3))])
    assert_close(same, plain)
    log = (mixed.log() - logits).detach()
    log_plain = (plain.log() - logits).detach()
    assert_close(log[:, 0] - log[:, 1], log_plain[:, 1] - log_plain[:, 0])


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "integers": ("input must be floating", lambda: monai.BilateralFilter.apply(zeros(1, 1, 4, dtype=torch.uint8))),
    "no space": ("1 to 3 axes", lambda: monai.BilateralFilter.apply(zeros(1, 4))),
    "four axes": ("1 to 3 axes", lambda: monai.BilateralFilter.apply(zeros(1, 1, 2, 2, 2, 2))),
    "empty": ("input must not be empty", lambda: monai.BilateralFilter.apply(zeros(1, 1, 0))),
    "zero sigma": ("spatial_sigma", lambda: monai.BilateralFilter.apply(zeros(1, 1, 4), 0.0)),
    "negative color": ("color_sigma", lambda: monai.BilateralFilter.apply(zeros(1, 1, 4), 1.0, -1.0)),
    "array": ("input must be a torch.Tensor", lambda: monai.BilateralFilter.apply(np.zeros((1, 1, 4)))),  # type: ignore[arg-type]
    "features of another space": (
        "same batch and space",
        lambda: monai.PHLFilter.apply(zeros(1, 1, 4), zeros(1, 1, 5)),
    ),
    "few sigmas": ("sigmas must have 2 numbers", lambda: monai.PHLFilter.apply(zeros(1, 1, 4), zeros(1, 2, 4), [1.0])),
    "channels": (
        "input_tensor must have 1 channel",
        lambda: monai.TrainableBilateralFilter([1.0], 1.0).to(DEVICE)(zeros(1, 2, 4)),
    ),
    "axes": (
        "input_tensor must have 2 axes",
        lambda: monai.TrainableBilateralFilter([1.0, 1.0], 1.0).to(DEVICE)(zeros(1, 1, 4)),
    ),
    "guide": (
        "guidance_tensor must have the shape",
        lambda: monai.TrainableJointBilateralFilter([1.0], 1.0).to(DEVICE)(zeros(1, 1, 4), zeros(1, 1, 5)),
    ),
    "many sigmas": ("spatial_sigma must have", lambda: monai.TrainableBilateralFilter([1.0] * 4, 1.0)),
    "reference": ("same batch and space", lambda: monai.CRF()(zeros(1, 2, 4), zeros(1, 2, 5))),
    "iterations": ("iterations", lambda: monai.CRF(iterations=-1)),
}


@pytest.mark.parametrize("name", BAD)
def test_rejects_hostile_arguments(name: str) -> None:
    message, function = BAD[name]
    with pytest.raises(InputError, match=message):
        function()
