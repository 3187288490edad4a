"""What the automatic method takes, and that it gives what the chosen method gives."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from support import DETERMINISTIC, DEVICE, assert_close, relative_error
from torch import Tensor

import permutohedral as ph
from permutohedral.filters.color_grid import has_color_grid

pytestmark = pytest.mark.usefixtures("backend")


def picture(channels: int = 3, height: int = 80, width: int = 100, noise: float = 0.0) -> Tensor:
    """A smooth picture, and noise if wanted."""
    y, x = torch.meshgrid(torch.linspace(0, 3, height), torch.linspace(0, 4, width), indexing="ij")
    smooth = torch.stack([(x * (c + 1)).sin() * y.cos() / 2 + 0.5 for c in range(channels)])
    return (smooth + noise * torch.randn(smooth.shape, generator=torch.Generator().manual_seed(0))).to(DEVICE)


def scattered(points: int) -> tuple[Tensor, Tensor]:
    """Values and features of random points."""
    return torch.rand(points, 2, device=DEVICE), 3 * torch.rand(points, 4, device=DEVICE)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """To the bit, but where a GPU adds in any order."""
    if DEVICE.type == "cpu" or DETERMINISTIC:
        assert torch.equal(actual, expected)
    else:
        assert_close(actual, expected)


def test_small_windows_are_exact_to_a_thousandth() -> None:
    image = picture(noise=0.1)
    assert ph.accuracy.explain_bilateral(image, sigma_space=1.0, sigma_color=0.1).method == "exact"
    actual = ph.bilateral_filter(image, sigma_space=1.0, sigma_color=0.1, method="auto")
    assert relative_error(actual, ph.bilateral_filter(image, sigma_space=1.0, sigma_color=0.1, method="exact")) < 2e-3


@pytest.mark.parametrize(("channels", "noise", "sigma_color"), [(3, 0.1, 0.02), (3, 0.1, 0.05)])
def test_large_windows_take_the_lattice(channels: int, noise: float, sigma_color: float) -> None:
    image = picture(channels, noise=noise)
    assert ph.accuracy.explain_bilateral(image, sigma_space=12.0, sigma_color=sigma_color).method == "lattice"
    actual = ph.bilateral_filter(image, sigma_space=12.0, sigma_color=sigma_color, method="auto")
    assert_same(actual, ph.bilateral_filter(image, sigma_space=12.0, sigma_color=sigma_color))


@pytest.mark.skipif(DEVICE.type != "cpu", reason="on a GPU the choice does not depend on the pixels")
def test_noise_makes_lattices_slow() -> None:
    """The same window: where every pixel has lattice points of its own it takes less time than they do."""
    assert ph.accuracy.explain_bilateral(picture(), sigma_space=6.0, sigma_color=0.1).method != "exact"
    assert ph.accuracy.explain_bilateral(picture(noise=0.1), sigma_space=6.0, sigma_color=0.1).method == "exact"


def test_batches_and_guides() -> None:
    images = torch.stack([picture(), picture().flip(2)])
    actual = ph.bilateral_filter(images, sigma_space=1.0, sigma_color=0.1, guide=images[0, :1], method="auto")
    assert_close(
        actual[1], ph.bilateral_filter(images[1], sigma_space=1.0, sigma_color=0.1, guide=images[0, :1], method="auto")
    )
    assert ph.bilateral_filter(images[:0], sigma_space=1.0, sigma_color=0.1, method="auto").shape == (0, 3, 80, 100)
    # many images that share their guide are many channels for each pair
    shared = images[:1].expand(300, -1, -1, -1)
    assert ph.accuracy.explain_bilateral(images[0], sigma_space=2.0, sigma_color=0.5).method == "exact"
    assert ph.accuracy.explain_bilateral(shared, sigma_space=2.0, sigma_color=0.5, guide=images[0]).method == "lattice"


def test_few_points_are_exact() -> None:
    values, features = scattered(100)
    assert ph.accuracy.explain_gaussian(values, features).method == "exact"
    for normalization in ("homogeneous", "none", "symmetric"):
        actual = ph.gaussian_filter(values, features, features[:5], normalization=normalization, method="auto")
        assert torch.equal(
            actual, ph.gaussian_filter(values, features, features[:5], normalization=normalization, method="exact")
        )


def test_many_points_take_the_lattice() -> None:
    values, features = scattered(3000)
    assert ph.accuracy.explain_gaussian(values, features).method == "lattice"
    assert_same(ph.gaussian_filter(values, features, method="auto"), ph.gaussian_filter(values, features))


@pytest.mark.skipif(DEVICE.type != "cpu", reason="on a GPU the choice does not depend on the pixels")
def test_a_transformed_call_that_takes_something_else_says_so() -> None:
    image = torch.rand(2, 3, 40, 40, device=DEVICE)
    smooth = partial(ph.bilateral_filter, sigma_space=3.0, sigma_color=0.2, method="auto")
    with pytest.warns(ph.errors.AccuracyWarning, match="takes the lattice here"):
        found = torch.vmap(smooth)(image)
    assert_close(found, torch.stack([ph.bilateral_filter(each, sigma_space=3.0, sigma_color=0.2) for each in image]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # nothing depends on the pixels of small windows, and nothing is traced
        torch.vmap(partial(ph.bilateral_filter, sigma_space=1.0, sigma_color=0.2, method="auto"))(image)
        smooth(image)


def test_differentiated_weights_use_the_lattice_instead_of_the_grid() -> None:
    """The grid has no derivatives; only the compiled core has a grid."""
    image, weights = picture(noise=0.1), torch.rand(80, 100, device=DEVICE)
    assert (ph.accuracy.explain_bilateral(image, sigma_space=20.0, sigma_color=0.1).method == "grid") == has_color_grid(
        image
    )
    actual = ph.bilateral_filter(
        image, sigma_space=20.0, sigma_color=0.1, sample_weight=weights.requires_grad_(), method="auto"
    )
    assert_same(actual, ph.bilateral_filter(image, sigma_space=20.0, sigma_color=0.1, sample_weight=weights))


def test_what_only_a_lattice_has_takes_it() -> None:
    values, features = scattered(100)
    lattice = ph.build_lattice(features, separable=True)
    actual = ph.gaussian_filter(values, lattice, method="auto")
    assert_same(actual, ph.gaussian_filter(values, lattice))
    density = ph.gaussian_filter(values, features, None, normalization="density", method="auto")
    assert_same(density, ph.gaussian_filter(values, features, None, normalization="density"))
    sigma = torch.tensor([1.0], device=DEVICE, requires_grad=True)
    assert ph.accuracy.explain_bilateral(picture(), sigma_space=sigma, sigma_color=0.1).method == "lattice"
    assert_same(
        ph.bilateral_filter(picture(), sigma_space=sigma, sigma_color=0.1, method="auto"),
        ph.bilateral_filter(picture(), sigma_space=sigma, sigma_color=0.1),
    )
