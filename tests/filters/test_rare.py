"""Pixels of rare colors, filtered again by the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import assert_close, relative_error
from torch import Tensor

import permutohedral as ph
from permutohedral.filters import rare
from permutohedral.filters.choice import choose_for_pixels
from permutohedral.filters.exact import sum_pixels, window_of

SIGMA = (4.0, 3.0)


def noisy(height: int, width: int, channels: int = 3) -> Tensor:
    """`[channels, height, width]`, in standard deviations of the color."""
    return 2 * torch.randn(channels, height, width, generator=torch.Generator().manual_seed(0))


def by_definition(values: Tensor, guide: Tensor, pixel: int) -> Tensor:
    """The mean over the window of one pixel."""
    height, width = values.shape[1:]
    y, x = np.mgrid[:height, :width]
    far = ((y - pixel // width) / SIGMA[0]) ** 2 + ((x - pixel % width) / SIGMA[1]) ** 2
    colors = guide.double().numpy().reshape(len(guide), -1)
    squares = far.ravel() + ((colors - colors[:, [pixel]]) ** 2).sum(0)
    weights = np.where(far.ravel() <= rare.REACH**2, np.exp(-0.5 * squares), 0.0)
    return torch.from_numpy(values.double().numpy().reshape(len(values), -1) @ weights / weights.sum())


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("height", "width", "guides", "channels"), [(31, 22, 3, 3), (1, 40, 1, 6), (40, 1, 2, 1)])
def test_windows_are_those_of_the_definition(
    height: int, width: int, guides: int, channels: int, dtype: torch.dtype
) -> None:
    guide, values = noisy(height, width, guides).to(dtype), noisy(height, width, channels).to(dtype)
    # corners, and pixels between
    pixels = torch.tensor([0, width - 1, height * width // 2 + width // 3, height * width - 1])
    means = rare.mean_windows(values, guide, pixels, SIGMA)
    assert means.dtype == dtype
    for mean, pixel in zip(means.mT, pixels.tolist(), strict=True):
        assert_close(mean, by_definition(values, guide, pixel).to(dtype))
    assert rare.mean_windows(values, guide, pixels[:0], SIGMA).shape == (channels, 0)


def test_the_pixels_of_least_mass_are_rare() -> None:
    mass = torch.rand(3000, generator=torch.Generator().manual_seed(0)) * 75
    # a window is of 28 pixels or so to a unit of variance
    window = np.pi * rare.REACH**2 * SIGMA[0] * SIGMA[1]
    found = rare.rare_pixels(mass, SIGMA, pairs=window / 50)
    assert set(found.tolist()) == set(mass.argsort()[: len(found)].tolist())
    assert 50 <= len(found) <= 65
    # however many could be summed, those of some mass are not rare
    assert 0.06 < len(rare.rare_pixels(mass, SIGMA, pairs=1e9)) / 3000 < 0.1
    assert rare.rare_pixels(mass[:1] * 0, SIGMA, pairs=1e-9).tolist() == [0]


def test_only_rare_pixels_are_filtered_again() -> None:
    guide = noisy(30, 40)[None]
    mass = torch.full((1, 1200), 1e3)
    mass[0, 77] = 0.1
    repaired = rare.repair(torch.zeros(1, 3, 1200), mass, guide, guide, SIGMA, pairs=0.1)
    assert_close(repaired[0, :, 77], by_definition(guide[0], guide[0], 77).float())
    assert repaired.flatten(1).count_nonzero() == 3


@pytest.mark.usefixtures("backend")
def test_narrow_windows_with_rare_pixels() -> None:
    """The automatic method is by the definition where colors are rare, also with weights, and of several pictures."""
    y, x = torch.meshgrid(torch.linspace(0, 3, 60), torch.linspace(0, 4, 80), indexing="ij")
    picture = torch.stack([(x * (c + 1)).sin() * y.cos() / 2 + 0.5 for c in range(3)]) + 0.05 * noisy(60, 80)
    picture[:, 20, 30], picture[:, 20, 33] = torch.tensor([3.0, -2.0, 3.0]), torch.tensor([3.0, -2.0, 2.9])
    sigmas = 8.0, 0.1
    found = choose_for_pixels(picture, picture, *sigmas)
    assert (found.method, found.reach) == ("exact", 1.9)
    actual = ph.bilateral_filter(picture, *sigmas, method="auto")
    expected = ph.bilateral_filter(picture, *sigmas, method="exact")
    assert relative_error(actual[:, 20, 30], expected[:, 20, 30]) < 1e-4
    window = window_of(picture, *sigmas, found.reach)
    assert window is not None
    narrow = sum_pixels(picture.flatten(1).mT, "homogeneous", window).mT.view(picture.shape)
    changed = (actual - narrow).abs().amax(0) > 1e-4
    assert 1 <= changed.sum() < 0.1 * changed.numel()

    weights = torch.ones(60, 80)
    weighted, mass = ph.bilateral_filter(picture, *sigmas, method="auto", weights=weights, return_mass=True)
    assert relative_error(weighted, actual) < 1e-4
    assert bool((mass > 0.99).all())
    both = torch.stack([picture, picture.flip(2)])
    assert relative_error(ph.bilateral_filter(both, *sigmas, method="auto")[0], actual) < 1e-4
