"""What all layers share: device and dtype arguments, and lattices built in inference mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import DEVICE, assert_close, draw
from torch import Tensor, nn

import permutohedral as ph

FEATURES = 3 * torch.rand(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
IMAGE = FEATURES.reshape(1, 4, 6)


def on_level(pyramid: ph.levels.LatticePyramid, level: int) -> Tensor:
    return draw(pyramid.levels[level].num_lattice_points, 2)


# how a layer is made, and its other arguments; the values come first. Those on a pyramid follow from it.
LAYERS: dict[str, tuple[Callable[..., nn.Module], Callable[[ph.levels.LatticePyramid], tuple[Any, ...]]]] = {
    "BilateralConv1d": (lambda **options: ph.nn.BilateralConv1d(1, 2, **options), lambda _: (IMAGE.flatten(1),)),
    "BilateralConv2d": (lambda **options: ph.nn.BilateralConv2d(1, 2, learn_sigma=True, **options), lambda _: (IMAGE,)),
    "BilateralConv3d": (
        lambda **options: ph.nn.BilateralConv3d(1, 2, init="gaussian", **options),
        lambda _: (IMAGE[None],),
    ),
    "BilateralFilter": (
        lambda **options: ph.nn.BilateralFilter(sigma_space=2.0, sigma_color=0.5, **options),
        lambda _: (IMAGE,),
    ),
    "BilateralSolver": (
        lambda **options: ph.nn.BilateralSolver(sigma_space=2.0, sigma_color=0.5, learn_sigma=True, **options),
        lambda _: (IMAGE, 1 - IMAGE),
    ),
    "BilateralUpsample2d": (
        lambda **options: ph.nn.BilateralUpsample2d(1, 1, sigma_color=0.5, **options),
        lambda _: (IMAGE[:, ::2, ::2], IMAGE),
    ),
    "DenseCRF": (
        lambda **options: ph.nn.DenseCRF(2, compatibility="matrix", **options),
        lambda _: (torch.cat([IMAGE, 1 - IMAGE]), IMAGE),
    ),
    "GaussianFilter": (
        lambda **options: ph.nn.GaussianFilter(2, learn_sigma=True, **options),
        lambda _: (draw(12, 2), FEATURES),
    ),
    "PermutohedralEncoding": (
        lambda **options: ph.nn.PermutohedralEncoding(2, 2, table_size=64, **options),
        lambda _: (draw(12, 2),),
    ),
    "PermutohedralConv": (
        lambda **options: ph.nn.PermutohedralConv(2, 3, 2, **options),
        lambda pyramid: (draw(12, 2), pyramid.levels[0]),
    ),
    "LatticeConv": (
        lambda **options: ph.nn.LatticeConv(2, 3, 2, **options),
        lambda pyramid: (on_level(pyramid, 0), pyramid.levels[0]),
    ),
    "LatticeGroupNorm": (
        lambda **options: ph.nn.LatticeGroupNorm(1, 2, **options),
        lambda pyramid: (on_level(pyramid, 0), pyramid.levels[0]),
    ),
    "LatticeConvDown": (
        lambda **options: ph.nn.LatticeConvDown(2, 3, 2, **options),
        lambda pyramid: (on_level(pyramid, 0), pyramid, 0),
    ),
    "LatticeLinearDown": (
        lambda **options: ph.nn.LatticeLinearDown(2, 3, 2, **options),
        lambda pyramid: (on_level(pyramid, 0), pyramid, 0),
    ),
    "LatticeConvUp": (
        lambda **options: ph.nn.LatticeConvUp(2, 3, 2, **options),
        lambda pyramid: (on_level(pyramid, 1), pyramid, 0),
    ),
    "LatticeLinearUp": (
        lambda **options: ph.nn.LatticeLinearUp(2, 3, **options),
        lambda pyramid: (on_level(pyramid, 1), pyramid, 0),
    ),
    "LatticeUNet": (
        lambda **options: ph.nn.LatticeUNet(2, 3, 2, step=1.0, widths=(2, 3), **options),
        lambda pyramid: (draw(12, 2), None, None, pyramid),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_take_device_and_dtype(name: str) -> None:
    make, arguments = LAYERS[name]
    for parameter in make(device="meta").parameters():
        assert (parameter.device.type, parameter.dtype) == ("meta", torch.get_default_dtype())
    layer = make(device=DEVICE, dtype=torch.float64)
    tensors = list(layer.parameters())
    assert tensors
    assert {(each.device.type, each.dtype) for each in tensors} == {(DEVICE.type, torch.float64)}
    assert layer(*arguments(ph.levels.build_pyramid(FEATURES, num_levels=2))).dtype == torch.float64


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", LAYERS)
def test_trains_after_inference_mode(name: str) -> None:
    """With lattices, items of a batch and features that were made in it."""
    make, arguments = LAYERS[name]
    layer = make(device=DEVICE, dtype=torch.float64)
    with torch.inference_mode():
        pyramid = ph.levels.build_pyramid(FEATURES, num_levels=2).to(DEVICE)
        values, *others = arguments(pyramid)
        others += [ph.nn.LatticeItems(pyramid.levels[0])] if name == "LatticeGroupNorm" else []
        inferred = layer(values, *others)
    values, *others = (each.clone() if isinstance(each, Tensor) else each for each in (values, *others))
    trained = layer(values.requires_grad_(), *others)
    assert_close(trained, inferred.clone())
    trained.square().sum().backward()
    assert values.grad is not None
    assert bool(values.grad.isfinite().all())


def test_crf_trains_on_lattices_built_in_inference_mode() -> None:
    make, arguments = LAYERS["DenseCRF"]
    layer = make(device=DEVICE, dtype=torch.float64)
    logits, guide = arguments(ph.levels.build_pyramid(FEATURES, num_levels=1))
    with torch.inference_mode():
        lattices = layer.build_lattices(guide)  # type: ignore[operator]
    layer(logits.requires_grad_(), lattices).square().sum().backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())
    assert float(logits.grad.abs().max()) > 0
