from __future__ import annotations

import pytest
import torch
from support import relative_error

from experiments.mri.measurements import field_of_view, measure_image, measure_spectrum
from experiments.mri.networks import centered_grid
from experiments.mri.phantoms import random_phantom, shepp_logan
from permutohedral.errors import InputError


def test_the_spectrum_at_whole_frequencies_is_that_of_the_fast_transform() -> None:
    image = torch.randn(2, 16, 16, dtype=torch.float64)
    measured = measure_spectrum(image, centered_grid(16)).reshape(2, 16, 16)
    expected = torch.fft.fftshift(torch.fft.fft2(torch.fft.ifftshift(image, dim=(1, 2)), norm="ortho"), dim=(1, 2))
    assert relative_error(torch.view_as_real(measured), torch.view_as_real(expected)) < 1e-12


def test_the_spectrum_between_them_is_the_sum_over_all_pixels() -> None:
    image, positions = torch.randn(1, 8, 8, dtype=torch.float64), torch.tensor([[0.3, -2.7], [3.9, 1.1]])
    y, x = torch.meshgrid(torch.arange(-4, 4), torch.arange(-4, 4), indexing="ij")
    for position, value in zip(positions.double(), measure_spectrum(image, positions)[0], strict=True):
        expected = (image[0] * torch.exp(-2j * torch.pi / 8 * (position[0] * y + position[1] * x))).sum() / 8
        assert abs(complex(value) - complex(expected)) < 1e-12


def test_an_image_is_measured_where_its_pixels_are() -> None:
    image = torch.randn(3, 9, 9, dtype=torch.float64)
    pixels = torch.cartesian_prod(*[torch.arange(9.0, dtype=torch.float64) - 4] * 2)
    assert relative_error(measure_image(image, pixels)[..., 0].reshape(3, 9, 9), image) < 1e-12
    # a straight line is kept halfway between pixels
    slope = torch.arange(9.0, dtype=torch.float64)[:, None].expand(1, 9, 9)
    between = torch.tensor([[0.5, 1.0], [-1.5, -0.5]], dtype=torch.float64)
    assert relative_error(measure_image(slope, between)[0, :, 0], torch.tensor([4.5, 2.5])) < 1e-12


def test_the_field_of_view_is_a_disc() -> None:
    field = field_of_view(64)
    assert abs(float(field.mean()) - torch.pi / 4) < 0.01
    assert set(field.unique().tolist()) == {0.0, 1.0}
    soft = field_of_view(64, edge=4.0)
    assert bool((soft <= field).all())
    assert float(soft[32, 32]) == 1.0
    assert 0 < float(soft[32, 2]) < 1


def test_phantoms_differ_by_seed_and_are_images() -> None:
    first, again, other = (random_phantom(32, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    for phantom in (first, other, shepp_logan(32)):
        assert phantom.shape == (32, 32)
        assert phantom.dtype == torch.float32
        assert float(phantom.min()) >= 0
        assert 0.3 < float(phantom.max()) <= 1
        # black around the head
        assert float(phantom[0].max()) == 0


def test_the_phantom_of_shepp_and_logan_keeps_its_mean_at_every_size() -> None:
    # padded with black to 7 x 64 = 448 or 4 x 100 = 400 pixels
    mass = [float(shepp_logan(size).double().sum()) * step**2 for size, step in ((64, 7), (100, 4))]
    assert mass[0] == pytest.approx(mass[1], rel=1e-6)
    with pytest.raises(InputError, match="size must lie between"):
        shepp_logan(500)
