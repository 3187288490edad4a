"""The Gaussian over position and color on a grid, against its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from color_grid_twin import compose_color_grid
from colored_waves import SIGMA, by_definition, picture, with_mass
from support import DEVICE, relative_error, to_tensor
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import BackendUnavailable
from permutohedral.filters.color_grid import COARSE, ColorAxes, GridStep, find_axes, has_color_grid, sum_color_grid
from permutohedral.lattice import memory

if not has_color_grid(torch.zeros(1, device=DEVICE)):
    pytest.skip("the backend has no color grid", allow_module_level=True)


def axes_of(guide: Tensor, step: GridStep | None = None) -> ColorAxes:
    found = find_axes(guide, [1.0] * guide.shape[1], step)
    assert found is not None
    return found


def quotient(sums: Tensor) -> Tensor:
    return sums[:, :-1] / sums[:, -1:]


@pytest.mark.parametrize(
    ("height", "width", "channels", "items", "dtype"),
    [
        (31, 22, 3, 1, torch.float32),
        (20, 25, 1, 2, torch.float64),
        (1, 40, 2, 1, torch.float32),
        (40, 1, 3, 1, torch.float32),
    ],
)
def test_sums_are_close_to_the_definition(
    height: int, width: int, channels: int, items: int, dtype: torch.dtype
) -> None:
    guide = picture(height, width, channels, items).to(dtype)
    # more channels than one pass sums; numbers as those of a picture
    values = 0.5 + picture(height, width, 5, items).to(dtype) / 8
    sums = sum_color_grid(values, guide, SIGMA, axes_of(guide))
    assert sums.dtype == dtype
    expected = by_definition(with_mass(values), guide)
    assert relative_error(quotient(sums), quotient(expected)) < 0.02


def test_the_mass_of_one_color() -> None:
    """It depends on how far the color is from a node."""
    guide = torch.full((1, 3, 70, 60), 0.3, device=DEVICE)
    mass = sum_color_grid(guide, guide, SIGMA, axes_of(guide))[0, -1, 20:-20, 20:-20]
    assert (mass / (2 * np.pi * SIGMA[0] * SIGMA[1]) - 1).abs().max() < 0.25


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_backends_agree(channels: int, dtype: torch.dtype) -> None:
    """The nodes that are not stored are not missed."""
    guide = picture(26, 35, channels).to(dtype)
    # colors far from all others
    guide[0, :, 3, 4], guide[0, :, 20, 30] = 11.0, -7.0
    axes = axes_of(guide)
    actual = sum_color_grid(guide, guide, SIGMA, axes)
    expected = compose_color_grid(guide, guide, SIGMA, axes)
    assert relative_error(actual, expected) < (1e-5 if dtype == torch.float32 else 1e-13)


def test_raises_without_a_color_grid() -> None:
    guide = picture(20, 25)
    with ph.backends.use("reference"), pytest.raises(BackendUnavailable, match="reference has none"):
        sum_color_grid(guide, guide, SIGMA, axes_of(guide))
    with pytest.raises(BackendUnavailable, match="gradients are wanted"):
        sum_color_grid(guide.requires_grad_(), guide, SIGMA, axes_of(guide))


@pytest.mark.parametrize("channels", [2, 3])
def test_the_last_color_may_be_rounded_up(channels: int) -> None:
    """From below the middle between two nodes to that: its nodes are still those of the grid."""
    guide = picture(30, 40, channels).clamp(-3, 0)
    guide[0, :, 0, 0], guide[0, :, -1, -1] = -3, 0.49999976
    assert guide[0, 0, -1, -1] < 0.5
    assert guide[0, 0, -1, -1] + 5 == 5.5
    axes = ColorAxes(np.eye(channels), np.zeros(channels))
    expected = compose_color_grid(guide, guide, SIGMA, axes)
    # what lies behind the tables of the grid is not the same in every call
    for _ in range(20):
        assert relative_error(sum_color_grid(guide, guide, SIGMA, axes), expected) < 1e-5


def test_more_nodes_than_can_be_numbered() -> None:
    """At one place a few more than 2^32: 9 rows for each pair of pixels, of 25892 nodes each."""
    side = 192
    number = torch.arange(side * side // 2)
    # three nodes apart along both axes, so that no two of them share a row; each color once at both ends of its rows
    ends = [
        torch.stack([3 * (number // side), 3 * (number % side), torch.full_like(number, end)]) for end in (0, 25888)
    ]
    guide = torch.cat(ends, dim=1).float().view(1, 3, side, side)
    with pytest.raises(MemoryError):
        sum_color_grid(guide, guide, (300.0, 300.0), ColorAxes(np.eye(3), np.zeros(3)))


@pytest.mark.parametrize("sigma", [1e4, 1e19, 1e30])
def test_pictures_smaller_than_a_cell(sigma: float) -> None:
    """Cells are no larger than the picture, so that sums take no longer the wider the Gaussian."""
    guide = picture(20, 25)
    values = 0.5 + guide / 8
    sums = sum_color_grid(values, guide, (sigma, sigma), axes_of(guide))
    expected = by_definition(with_mass(values), guide, (sigma, sigma))
    assert relative_error(quotient(sums), quotient(expected)) < 0.02


def test_any_number_of_threads_gives_the_same_bits() -> None:
    guide = picture(60, 70)
    before, axes = torch.get_num_threads(), axes_of(guide)
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(sum_color_grid(guide, guide, SIGMA, axes))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_rare_colors_are_no_worse() -> None:
    """What is near them in color is little, but all of it is found."""
    guide = picture(40, 50)
    guide[0, :, 20, 30] = torch.tensor([9.0, -9.0, 9.0])
    guide[0, :, 20, 33] = torch.tensor([9.0, -9.0, 8.0])
    # one at a border
    guide[0, :, 39, 0] = torch.tensor([-9.0, 9.0, 9.0])
    values = 0.5 + guide / 8
    actual = quotient(sum_color_grid(values, guide, SIGMA, axes_of(guide)))
    expected = quotient(by_definition(with_mass(values), guide))
    for y, x in ((20, 30), (20, 33), (39, 0)):
        assert (actual[0, :, y, x] - expected[0, :, y, x]).abs().max() < 0.01


def test_results_lie_between_the_values() -> None:
    """All weights are positive, whatever the colors."""
    image = to_tensor(np.random.default_rng(0).random((1, 3, 30, 40)), torch.float32)
    for scale in (2.0, 20.0):
        means = quotient(sum_color_grid(image, scale * image, SIGMA, axes_of(scale * image)))
        assert float(means.min()) >= float(image.min()) - 1e-5
        assert float(means.max()) <= float(image.max()) + 1e-5


def test_turned_colors_give_the_same() -> None:
    """The axes are those of the colors, not of their channels."""
    guide = picture(26, 35).double()
    turn = torch.linalg.qr(to_tensor(np.random.default_rng(0).random((3, 3))))[0]
    turned = (turn @ guide.flatten(2)).view(guide.shape) + 5
    actual, expected = (quotient(sum_color_grid(guide, each, SIGMA, axes_of(each))) for each in (turned, guide))
    assert relative_error(actual, expected) < 1e-6


AUTO_SIGMAS: dict[str, Any] = {"sigma_space": 12.0, "sigma_color": 0.1}


class TestAuto:
    """Images with noise and a large bandwidth."""

    noise = to_tensor(np.random.default_rng(0).normal(0, 0.1, (3, 90, 110)), torch.float32)
    image = 0.5 + picture(90, 110)[0] / 8 + noise

    def test_takes_it_where_there_are_many_colors(self) -> None:
        assert ph.accuracy.explain_bilateral(self.image, **AUTO_SIGMAS).method == "grid"
        actual = ph.bilateral_filter(self.image, **AUTO_SIGMAS, method="auto")
        expected = ph.bilateral_filter(self.image, **AUTO_SIGMAS, method="exact")
        assert relative_error(actual, expected) < 0.01
        assert (actual - expected).abs().max() < 0.03
        assert (ph.bilateral_filter(self.image, **AUTO_SIGMAS) - expected).abs().max() > 0.03
        halo = ph.bilateral_filter(self.image, **AUTO_SIGMAS, method="auto", halo=1)
        assert relative_error(halo, ph.bilateral_filter(self.image, **AUTO_SIGMAS, halo=1)) < 1e-6

    def test_holes(self) -> None:
        known = torch.ones(90, 110, dtype=torch.bool, device=DEVICE)
        known[30:50, 40:60] = False
        options: dict[str, Any] = {"guide": self.image, "sample_weight": known}
        actual = ph.bilateral_filter(self.image, **AUTO_SIGMAS, method="auto", **options)
        expected = ph.bilateral_filter(self.image, **AUTO_SIGMAS, method="exact", **options)
        assert relative_error(actual, expected) < 0.01

    def test_not_where_derivatives_are_wanted(self) -> None:
        image = self.image.clone().requires_grad_()
        assert ph.accuracy.explain_bilateral(image, **AUTO_SIGMAS).method == "lattice"


def test_every_picture_of_a_batch() -> None:
    """Colors that the first picture does not have."""
    dark = 0.2 + to_tensor(np.random.default_rng(0).normal(0, 0.1, (1, 3, 96, 96)), torch.float32)
    batch = torch.cat([dark, 1 - dark])
    assert ph.accuracy.explain_bilateral(batch, **AUTO_SIGMAS).method == "grid"
    actual = ph.bilateral_filter(batch, **AUTO_SIGMAS, method="auto")
    assert (actual - ph.bilateral_filter(batch, **AUTO_SIGMAS, method="exact")).abs().max() < 0.03


def test_pixels_unlike_all_others() -> None:
    """Many of them, in random colors: nothing is near them."""
    image = 0.4 + 0.03 * picture(120, 120)[0]
    odd = to_tensor(np.random.default_rng(0).random((120, 120))) < 0.01
    image[:, odd] = to_tensor(np.random.default_rng(1).random((3, int(odd.sum()))), torch.float32)
    guide = image[None] / 0.1
    actual = quotient(sum_color_grid(image[None], guide, (16.0, 16.0), axes_of(guide, COARSE)))[0]
    expected = ph.bilateral_filter(image, sigma_space=16.0, sigma_color=0.1, method="exact")
    errors = [
        float((each - expected).abs().max())
        for each in (actual, ph.bilateral_filter(image, sigma_space=16.0, sigma_color=0.1))
    ]
    assert errors[0] < 0.05
    assert errors[0] < errors[1] / 2


@pytest.mark.skipif(DEVICE.type != "cpu", reason="the amount is that of the compiled core")
def test_rejects_before_allocation_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = picture(60, 70)
    axes = axes_of(guide)
    # sums, values, colors and coordinates
    needed = 4 * 16 * 60 * 70
    monkeypatch.setattr(memory, "_NEGLIGIBLE_BYTES", 0)
    monkeypatch.setattr(memory, "available_memory", lambda device: needed)
    if ph.backends.explain(guide).name == "native":
        sum_color_grid(guide, guide, SIGMA, axes)
    monkeypatch.setattr(memory, "available_memory", lambda device: needed // 2)
    with pytest.raises(ph.errors.MemoryLimitError, match="bytes"):
        sum_color_grid(guide, guide, SIGMA, axes)
