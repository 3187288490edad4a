"""Layers reject bad arguments with a message that says what to pass instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import DEVICE, ErrorCase, assert_raises
from torch import Tensor

import permutohedral as ph

pytestmark = pytest.mark.usefixtures("backend")

InputError = ph.errors.InputError


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, device=DEVICE)


def lattice_of(*shape: int, neighborhood_size: int = 1) -> ph.Lattice:
    return ph.build_lattice(zeros(*shape), neighborhood_size=neighborhood_size)


def layer(**options: Any) -> ph.nn.PermutohedralConv:
    return ph.nn.PermutohedralConv(2, 3, 2, device=DEVICE, **options)


LAYERS: dict[str, ErrorCase] = {
    "no_channels": (lambda: ph.nn.PermutohedralConv(0, 1, 2), InputError, "in_channels.*at least 1, got 0"),
    "groups_in": (lambda: ph.nn.PermutohedralConv(3, 4, 2, groups=2), InputError, "in_channels.*divisible"),
    "groups_out": (lambda: ph.nn.PermutohedralConv(4, 3, 2, groups=2), InputError, "out_channels.*divisible"),
    "no_groups": (lambda: ph.nn.PermutohedralConv(4, 4, 2, groups=0), InputError, "groups.*at least 1, got 0"),
    "init": (lambda: ph.nn.PermutohedralConv(1, 1, 2, init="zeros"), InputError, "'kaiming' or 'gaussian'"),  # type: ignore[arg-type]
    "around": (lambda: layer(around="kaiming"), InputError, "around must be 'gaussian' or None, got 'kaiming'"),
    "normalization": (
        lambda: ph.nn.PermutohedralConv(1, 1, 2, normalization="l2"),  # type: ignore[arg-type]
        InputError,
        "'none', 'homogeneous'",
    ),
    "channels": (lambda: layer()(zeros(5, 3), zeros(5, 2)), InputError, r"must have 2 channels.*\(5, 3\)"),
    "no_axis": (lambda: layer()(zeros(), zeros(5, 2)), InputError, r"must have 2 channels.*\(\)"),
    "dimension": (lambda: layer()(zeros(5, 2), zeros(5, 3)), InputError, r"features must have 2 dimensions.*\(5, 3\)"),
    "no_features": (
        lambda: layer()(zeros(5, 2), None),
        InputError,
        "features must be a torch.Tensor, got NoneType",
    ),
    "lattice_and_targets": (
        lambda: layer()(zeros(5, 2), lattice_of(5, 2), zeros(5, 2)),
        InputError,
        "target_features must be left out with a Lattice",
    ),
    "lattice_of_another_size": (
        lambda: layer()(zeros(5, 2), lattice_of(5, 2, neighborhood_size=2)),
        InputError,
        "dimension 2, built with neighborhood_size=1, got 2 and 2",
    ),
    "lattice_of_another_dimension": (
        lambda: layer()(zeros(5, 2), lattice_of(5, 3)),
        InputError,
        "dimension 2, built with neighborhood_size=1, got 3 and 1",
    ),
    "lattice_with_learned_scale": (
        lambda: layer(learn_sigma=True)(zeros(5, 2), lattice_of(5, 2)),
        InputError,
        "features must be a tensor with learn_sigma",
    ),
    "gaussian_lattice_of_another_dimension": (
        lambda: ph.nn.GaussianFilter(2)(zeros(5, 1), lattice_of(5, 3)),
        InputError,
        "lattice of dimension 2, got one of 3",
    ),
    "gaussian_lattice_with_learned_scale": (
        lambda: ph.nn.GaussianFilter(2, learn_sigma=True)(zeros(5, 1), lattice_of(5, 2)),
        InputError,
        "features must be a tensor with learn_sigma",
    ),
    "gaussian_dimension": (lambda: ph.nn.GaussianFilter(2)(zeros(5, 1), zeros(5, 3)), InputError, "2 dimensions"),
    "lattice_channels": (
        # not as two groups
        lambda: ph.nn.LatticeConv(2, 4, 2, device=DEVICE)(zeros(3, 4), lattice_of(5, 2)),
        InputError,
        r"takes 2 channels.*\(3, 4\)",
    ),
    "norm_rows": (
        lambda: ph.nn.LatticeGroupNorm(1, 2, device=DEVICE)(zeros(4, 2), lattice_of(5, 2)),
        InputError,
        r"\[3, 2\], got \[4, 2\]",
    ),
    "norm_channels": (
        lambda: ph.nn.LatticeGroupNorm(1, 2, device=DEVICE)(zeros(3, 4), lattice_of(5, 2)),
        InputError,
        r"\[3, 2\], got \[3, 4\]",
    ),
    "image_rank": (lambda: ph.nn.BilateralConv2d(1, 1)(zeros(4, 5)), InputError, r"image must be \[batch, 1,"),
    "image_channels": (
        lambda: ph.nn.BilateralConv2d(1, 1)(zeros(3, 4, 5)),
        InputError,
        r"image must be.* \[1, height, width\], got \(3, 4, 5\)",
    ),
    "image_of_integers": (
        lambda: ph.nn.BilateralConv2d(1, 1)(zeros(1, 4, 5).byte()),
        InputError,
        "image must be floating, got torch.uint8",
    ),
    "image_of_truth_values": (
        lambda: ph.nn.BilateralConv2d(1, 1)(zeros(1, 4, 5).bool()),
        InputError,
        r"got torch.bool; convert it, for instance with image.float\(\),",
    ),
    "image_without_guide": (
        lambda: ph.nn.BilateralConv2d(1, 1, guide_channels=1)(zeros(1, 4, 5)),
        InputError,
        "guide is missing.*guide_channels=1",
    ),
    "guide_size": (
        lambda: ph.nn.BilateralConv2d(1, 1, guide_channels=1)(zeros(1, 4, 5), zeros(1, 5, 4)),
        InputError,
        "guide and image must have one height and width",
    ),
    "guide_batch": (
        lambda: ph.nn.BilateralConv2d(1, 1, guide_channels=1)(zeros(2, 1, 4, 5), zeros(3, 1, 4, 5)),
        InputError,
        "guide must have the batch axes of the image",
    ),
    "guide_without_batch": (
        lambda: ph.nn.BilateralConv2d(1, 1, guide_channels=1)(zeros(2, 1, 4, 5), zeros(1, 4, 5)),
        InputError,
        "guide and image must have the same batch size",
    ),
    "undeclared_guide": (
        lambda: ph.nn.BilateralConv2d(3, 1)(zeros(3, 4, 5), zeros(1, 4, 5)),
        InputError,
        r"guide must have 3 channels.*guide_channels=1",
    ),
    "guide_dtype": (
        lambda: ph.nn.BilateralConv2d(1, 1, guide_channels=1)(zeros(1, 4, 5), zeros(1, 4, 5).double()),
        InputError,
        r"guide is torch.float64.* image torch.float32.*guide.to\(image\)",
    ),
    "weights_of_a_row": (
        lambda: ph.nn.BilateralConv2d(1, 1)(zeros(1, 4, 5), sample_weight=zeros(5)),
        InputError,
        r"sample_weight must be \[4, 5\].*got \[5\]",
    ),
    "kernel_size": (
        lambda: ph.nn.BilateralConv2d(3, 8, 3),  # type: ignore[arg-type]
        InputError,
        "kernel_size must be left out, got 3: pass neighborhood_size",
    ),
    "kernel_size_by_name": (
        lambda: ph.nn.BilateralConv3d(1, 8, kernel_size=(3, 3, 3)),  # type: ignore[arg-type]
        InputError,
        r"kernel_size must be left out, got \(3, 3, 3\): pass neighborhood_size",
    ),
    "sigma_color_without_guide": (
        lambda: ph.nn.BilateralConv2d(3, 8, guide_channels=0, sigma_color=0.1),
        InputError,
        "sigma_color must be left out with guide_channels=0, got 0.1",
    ),
    "guide_without_channels": (
        lambda: ph.nn.BilateralConv2d(1, 1, guide_channels=0)(zeros(1, 4, 5), zeros(3, 4, 5)),
        InputError,
        "guide must have 0 channels.*guide_channels=3 for this guide",
    ),
    "sigma": (
        lambda: ph.nn.BilateralFilter(sigma_space=-1.0, sigma_color=1.0),
        InputError,
        "sigma_space must be positive.*-1",
    ),
}


@pytest.mark.parametrize("case", [*LAYERS.values()], ids=[*LAYERS])
def test_rejects_bad_arguments(case: ErrorCase) -> None:
    assert_raises(*case)
