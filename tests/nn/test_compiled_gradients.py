"""Gradients of every layer under torch.compile with its default compiler, against eager."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from support import DEVICE, assert_close

import permutohedral as ph

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        DEVICE.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no C++ compiler"
    ),
]


def image(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64).to(DEVICE)


LAYERS: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "BilateralFilter": (lambda: ph.nn.BilateralFilter(2.0, 0.5, learn_sigma=True), (image(2, 5, 6),)),
    "BilateralConvolution1d": (lambda: ph.nn.BilateralConvolution1d(1, 2, learn_scale=True), (image(2, 1, 9),)),
    "BilateralConvolution2d": (lambda: ph.nn.BilateralConvolution2d(1, 2, learn_scale=True), (image(2, 1, 4, 5),)),
    "BilateralConvolution3d": (lambda: ph.nn.BilateralConvolution3d(1, 2, learn_scale=True), (image(1, 1, 2, 3, 4),)),
    "GaussianFilter": (lambda: ph.nn.GaussianFilter(2, learn_scale=True), (image(20, 2), 3 * image(20, 2))),
    "PermutohedralConvolution": (
        lambda: ph.nn.PermutohedralConvolution(2, 3, dimension=2, learn_scale=True),
        (image(20, 2), 3 * image(20, 2)),
    ),
    "DenseCRF": (
        lambda: ph.nn.DenseCRF(3, (1.0, 2.0), 1.7, 4.0, 0.3, "matrix", steps=2, learn_sigma=True),
        (image(3, 5, 6), image(2, 5, 6)),
    ),
    "BilateralSolver": (
        lambda: ph.nn.BilateralSolver(2.0, 0.4, 0.5, learn_sigma=True, iterations=3, tolerance=0.0),
        (image(1, 5, 6), image(2, 5, 6)),
    ),
    "BilateralUpsample2d": (
        lambda: ph.nn.BilateralUpsample2d(1, 1, sigma_range=0.5, learn_scale=True),
        (image(1, 1, 2, 3), image(1, 1, 6, 9)),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_compiled_gradients_match_eager(name: str) -> None:
    make, inputs = LAYERS[name]
    torch.compiler.reset()
    torch.manual_seed(0)
    layer = make().to(DEVICE, torch.float64)
    leaves = [each.clone().requires_grad_() for each in inputs]
    wanted = [*leaves, *(each for each in layer.parameters() if each.requires_grad)]
    compiled = torch.compile(layer)
    expected, found = (
        torch.autograd.grad(run(*leaves).square().sum(), wanted, allow_unused=True) for run in (layer, compiled)
    )
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert_close(mine, theirs)


def test_batched_crf_compiles_with_dynamic_sizes() -> None:
    torch.compiler.reset()
    layer = ph.nn.DenseCRF(3, sigma_range=0.1, steps=2).to(DEVICE, torch.float64)
    compiled = torch.compile(layer, dynamic=True, backend="aot_eager")
    for items in (2, 3):
        logits, guide = image(items, 3, 4, 5), image(items, 2, 4, 5)
        assert_close(compiled(logits, guide), layer(logits, guide), torch.float32)
