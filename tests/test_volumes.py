"""Signals and volumes: features, the bilateral filter and its layers in one and three dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from support import DEVICE, TOLERANCE, assert_close, relative_error, to_numpy, to_tensor
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.features import FEATURE_SHIFT

pytestmark = pytest.mark.usefixtures("backend")

# no two extents, and no two bandwidths, are the same: an exchange of axes shows
SPACES: list[tuple[tuple[int, ...], tuple[float, ...]]] = [((19,), (1.7,)), ((2, 3, 4), (1.3, 1.7, 0.9))]


def rows_of(guide: np.ndarray, sigmas: Sequence[float], sigma_color: float, origin: Sequence[int]) -> np.ndarray:
    """Position and value of every sample of `guide [channels, *space]`, the last axis fastest."""
    values = guide.reshape(len(guide), -1).T / sigma_color
    places = (np.array([*np.ndindex(*guide.shape[1:])]) + origin) / sigmas
    return np.concatenate([places, values], axis=1) + FEATURE_SHIFT


def draw(*shape: int, seed: int = 4, dtype: torch.dtype = torch.float64) -> Tensor:
    return to_tensor(np.random.default_rng(seed).random(shape), dtype)


@pytest.mark.parametrize(("space", "sigmas"), SPACES, ids=["signal", "volume"])
def test_features_and_filter_match_oracle(
    space: tuple[int, ...], sigmas: tuple[float, ...], dtype: torch.dtype
) -> None:
    axes, origin, step = len(space), tuple(range(5, 5 + len(space))), oracle.dense_gaussian_step
    image, guide = draw(2, 1, *space, dtype=dtype), draw(2, 1, *space, seed=5, dtype=dtype)
    options: dict[str, Any] = {"spatial_dims": axes, "origin": origin}
    features = ph.features.bilateral(guide, sigma_space=sigmas, sigma_color=0.3, **options)
    dense = ph.bilateral_filter(image, sigma_space=sigmas, sigma_color=0.3, guide=guide, method="dense", **options)
    exact = ph.bilateral_filter(image, sigma_space=sigmas, sigma_color=0.3, guide=guide, method="exact", **options)
    assert dense.shape == exact.shape == image.shape
    for item in range(2):
        rows, values = rows_of(to_numpy(guide[item]), sigmas, 0.3, origin), to_numpy(image[item]).reshape(-1, 1)
        assert_close(features[item], rows)
        source = oracle.locate(rows)
        filtered = oracle.normalized_filter(values, (source, source), "homogeneous", step, step)
        assert_close(dense[item], filtered.reshape(1, *space))
        sums = oracle.exact_gaussian(values, rows, rows) / oracle.exact_gaussian(np.ones_like(values), rows, rows)
        assert_close(exact[item], sums.reshape(1, *space))


@pytest.mark.parametrize("shape", [(1, 100), (1, 9, 10, 11)], ids=str)
def test_auto_method_is_explained(shape: tuple[int, ...]) -> None:
    """As for points: exact for few of them, else the lattice."""
    axes, image = len(shape) - 1, draw(*shape)
    auto = ph.bilateral_filter(image, sigma_space=2.0, sigma_color=0.3, method="auto", spatial_dims=axes)
    chosen: Any = ph.accuracy.explain_bilateral(image, sigma_space=2.0, sigma_color=0.3, spatial_dims=axes).method
    assert chosen == ("exact" if math.prod(shape) < 500 else "lattice")
    assert_close(auto, ph.bilateral_filter(image, sigma_space=2.0, sigma_color=0.3, method=chosen, spatial_dims=axes))
    assert relative_error(auto, image) > TOLERANCE[torch.float64]


def test_origin_selects_part_of_volume() -> None:
    volume, sigmas = draw(1, 30, 12, 11, dtype=torch.float32), (1.5, 2.0, 1.0)
    whole = ph.bilateral_filter(volume, sigma_space=sigmas, sigma_color=0.3, spatial_dims=3)
    margin = math.ceil(1.5 * ph.lattice.reach(0)) + 1
    part = ph.bilateral_filter(volume[:, 7:], sigma_space=sigmas, sigma_color=0.3, spatial_dims=3, origin=(7, 0, 0))
    assert_close(part[:, margin:], whole[:, 7 + margin :])
    # on a GPU sums are made in any order
    assert DEVICE.type != "cpu" or torch.equal(part[:, margin:], whole[:, 7 + margin :])
    elsewhere = ph.bilateral_filter(volume[:, 7:], sigma_space=sigmas, sigma_color=0.3, spatial_dims=3)
    assert relative_error(elsewhere[:, margin:], whole[:, 7 + margin :]) > TOLERANCE[torch.float32]


def test_ignores_voxels_of_zero_weight() -> None:
    volume = draw(2, 1, 3, 4, 5)
    known = torch.ones(2, 3, 4, 5, dtype=torch.bool, device=DEVICE)
    known[0, 1, 2, 3] = False
    broken = torch.where(known[:, None], volume, torch.nan)
    filtered, mass = ph.bilateral_filter(
        broken, sigma_space=2.0, sigma_color=0.5, spatial_dims=3, sample_weight=known, fill_value=-1.0, return_mass=True
    )
    assert float(filtered[0, 0, 1, 2, 3]) == -1
    assert float(mass[0, 1, 2, 3]) == 0
    assert filtered.isfinite().all()
    assert_close(filtered[1], ph.bilateral_filter(volume[1], sigma_space=2.0, sigma_color=0.5, spatial_dims=3))


def test_derivatives() -> None:
    volume = draw(1, 2, 3, 3).requires_grad_()
    sigma_space = torch.tensor([1.3, 1.7, 0.9], dtype=torch.float64, device=DEVICE, requires_grad=True)
    sigma_color = torch.tensor(0.3, dtype=torch.float64, device=DEVICE, requires_grad=True)
    origin = (3, 5, 7)

    def run(image: Tensor, over_space: Tensor, over_range: Tensor) -> Tensor:
        return ph.bilateral_filter(
            image, sigma_space=over_space, sigma_color=over_range, method="dense", spatial_dims=3, origin=origin
        )

    assert torch.autograd.gradcheck(run, (volume, sigma_space, sigma_color), nondet_tol=1e-12, fast_mode=True)


def test_layers() -> None:
    volume, guide = draw(2, 2, 3, 4, 5), draw(2, 1, 3, 4, 5, seed=5)
    sigmas = (1.0, 2.0, 1.5)
    layer = (
        ph.nn.BilateralFilter(sigma_space=sigmas, sigma_color=(0.2, 0.3), spatial_dims=3, learn_sigma=True)
        .double()
        .to(DEVICE)
    )
    assert_close(
        layer(volume),
        ph.bilateral_filter(volume, sigma_space=layer.sigma_space, sigma_color=layer.sigma_color, spatial_dims=3),
    )
    assert "sigma_space=(1, 2, 1.5), sigma_color=(0.2, 0.3), spatial_dims=3" in repr(layer)
    layer(volume).square().sum().backward()
    assert layer.log_sigma.grad is not None
    assert layer.log_sigma.grad.abs().min() > 0
    learned = ph.nn.BilateralConv3d(2, 3, guide_channels=1, sigma_space=sigmas).double().to(DEVICE)
    features = ph.features.bilateral(guide, sigma_space=sigmas, sigma_color=0.2, spatial_dims=3)
    expected = learned.convolution(volume.flatten(2).mT, features).mT.reshape(2, 3, 3, 4, 5)
    assert_close(learned(volume, guide), expected)
    assert_close(learned(volume[0], guide[0]), expected[0])
    signal = ph.nn.BilateralConv1d(1, 2).double().to(DEVICE)
    assert signal(draw(2, 1, 9)).shape == (2, 2, 9)


def test_rejects_bad_arguments() -> None:
    volume = draw(1, 3, 4, 5)
    with pytest.raises(InputError, match=r"channels, depth, height, width\], got the shape \(3, 4, 5\)"):
        ph.bilateral_filter(volume[0], sigma_space=2.0, sigma_color=0.1, spatial_dims=3)
    with pytest.raises(InputError, match="spatial_dims must be a whole number of at least 1"):
        ph.bilateral_filter(volume, sigma_space=2.0, sigma_color=0.1, spatial_dims=0)
    with pytest.raises(InputError, match="one for each of 3, got "):
        ph.bilateral_filter(volume, sigma_space=(2.0, 1.0), sigma_color=0.1, spatial_dims=3)
    with pytest.raises(InputError, match="origin must have a number for each of 3 axes, got 2"):
        ph.bilateral_filter(volume, sigma_space=2.0, sigma_color=0.1, spatial_dims=3, origin=(0, 1))
    with pytest.raises(InputError, match=r"movedim\(-1, -4\)"):
        ph.bilateral_filter(draw(40, 5, 6, 3), sigma_space=2.0, sigma_color=0.1, spatial_dims=3)
    with pytest.raises(InputError, match="one depth, height and width"):
        ph.bilateral_filter(volume, sigma_space=2.0, sigma_color=0.1, guide=volume[:, :2], spatial_dims=3)
    with pytest.raises(InputError, match="one number or one for each of 3, got "):
        ph.nn.BilateralConv3d(1, 1, sigma_space=(1.0, 2.0))
    with pytest.raises(InputError, match="depth, height, width"):
        ph.nn.BilateralConv3d(1, 1)(volume[0])
    with pytest.raises(InputError, match="space must be the extents"):
        ph.features.positions(())
