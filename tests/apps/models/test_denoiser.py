from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import skimage.data
import torch
from support import assert_close
from torch import Tensor

from experiments.data.bsds500 import add_noise, load_images
from experiments.data.sample import SAMPLE
from experiments.quality import psnr
from permutohedral.apps.models.denoiser import Denoiser
from permutohedral.apps.models.noise_level import estimate_noise
from permutohedral.errors import InputError


def flat_regions(channels: int = 1, height: int = 90, width: int = 120) -> Tensor:
    image = torch.full((channels, height, width), 0.3)
    image[:, height // 3 :, : width // 2] = 0.7
    image[0, :, width // 4 * 3 :] = 0.1
    return image


def noisy(image: Tensor, noise: float) -> Tensor:
    return image + noise / 255 * torch.randn(image.shape)


def error(image: Tensor, clean: Tensor) -> float:
    return float((image - clean).square().mean().sqrt()) * 255


@pytest.mark.parametrize("noise", [3.0, 12.0, 25.0, 60.0])
@pytest.mark.parametrize("channels", [1, 3])
def test_estimates_the_noise(noise: float, channels: int) -> None:
    assert abs(255 * estimate_noise(noisy(flat_regions(channels), noise)) / noise - 1) < 0.1


def texture(channels: int = 1, height: int = 90, width: int = 120) -> Tensor:
    """Stripes of pixels in two directions, stronger to the right, and a smooth border."""
    y, x = torch.meshgrid(torch.arange(float(height)), torch.arange(float(width)), indexing="ij")
    stripes = torch.sin(1.9 * x + 0.4 * y) * torch.sin(2.3 * y) * x / width
    return (0.5 + 0.3 * torch.where(y > height // 4, stripes, 0.3 * x / width)).expand(channels, -1, -1)


@pytest.mark.parametrize("channels", [1, 3])
def test_texture_is_not_noise(channels: int) -> None:
    assert 255 * estimate_noise(texture(channels)) < 0.5
    for noise in (2.0, 10.0):
        assert abs(255 * estimate_noise(noisy(texture(channels), noise)) / noise - 1) < 0.15


def test_clipped_pixels_do_not_bias_the_estimate() -> None:
    clean = flat_regions()
    clean[:, :60] = 0.0
    clipped = noisy(clean, 10.0).clamp(0, 1)
    assert abs(255 * estimate_noise(clipped) / 10 - 1) < 0.1
    # where there is nothing else, these pixels are what is looked at
    assert estimate_noise(torch.ones(1, 90, 120)) == 0


@pytest.mark.parametrize("size", [16, 30])
def test_estimates_the_noise_of_small_images(size: int) -> None:
    estimates = [255 * estimate_noise(noisy(torch.full((1, size, size), 0.5), 20.0)) for _ in range(20)]
    assert abs(sum(estimates) / 20 / 20 - 1) < 0.15


@pytest.mark.slow
def test_estimates_the_noise_of_a_large_image() -> None:
    """The last of more than 2^24 patches has an index that float32 rounds up."""
    image = 0.5 + 20 / 255 * torch.randn(1, 4103, 4102, generator=torch.Generator().manual_seed(0))
    assert abs(255 * estimate_noise(image) / 20 - 1) < 0.05


def test_estimates_the_noise_of_a_photo() -> None:
    image = load_images("test", SAMPLE, limit=1)[0]
    assert 24 < 255 * estimate_noise(add_noise(image)[None]) < 26
    assert 255 * estimate_noise(image.pixels[None]) < 1


def denoiser(tile: int = 416) -> Denoiser:
    return Denoiser.from_pretrained(tile=tile)


@pytest.mark.parametrize("noise", [0.6, 2.0, 25.0])
def test_change_is_limited_to_the_noise(noise: float) -> None:
    """Also of a picture in which a model sees more than that to remove."""
    clean = 0.5 + 0.2 * torch.randn(3, 60, 70)
    for tile in (416, 40):
        denoised = denoiser(tile)(clean, noise / 255)
        assert 0.5 * noise < error(denoised, clean) <= noise * 1.01


@pytest.mark.parametrize("channels", [1, 3])
def test_tensors_are_on_the_device_of_the_image(channels: int) -> None:
    """With another default device, a tensor that is made without one cannot be mixed with the image."""
    pixels, network = noisy(flat_regions(channels, 150, 160), 25.0), denoiser()
    expected = network(pixels)
    with torch.device("meta"):
        denoised = network(pixels)
    assert denoised.device == pixels.device
    assert_close(denoised, expected)


def test_a_batch_is_its_images() -> None:
    batch, network = torch.stack([noisy(flat_regions(3), sigma) for sigma in (10.0, 30.0)]), denoiser()
    shares: list[float] = []
    together = network(batch, progress=shares.append)
    assert together.shape == batch.shape
    assert_close(together, torch.stack([network(image) for image in batch]))
    assert shares == sorted(shares)
    assert shares[-1] == 1
    found = network(batch.numpy())
    assert isinstance(found, np.ndarray)
    assert_close(torch.from_numpy(found), together)


def test_is_a_module(tmp_path: Path) -> None:
    network, other = denoiser(), Denoiser((5.0, 11.0, 25.0), **denoiser()._options)
    picture = noisy(flat_regions(), 25.0)
    other.load_state_dict(network.state_dict())
    assert_close(other(picture, 25 / 255), network(picture, 25 / 255))
    other.save(tmp_path / "denoiser.safetensors")
    again = Denoiser.from_pretrained(tmp_path / "denoiser.safetensors", tile=50)
    assert (again.noise_levels, again.tile, again.training) == ((5.0, 11.0, 25.0), 50, False)
    assert float((again(picture, 25 / 255) - network(picture, 25 / 255)).abs().max()) < 0.5 / 255


@pytest.mark.parametrize(("noise", "level"), [(0.6, 5.0), (7.0, 5.0), (9.0, 11.0), (18.0, 25.0), (90.0, 25.0)])
def test_the_nearest_network_denoises(noise: float, level: float) -> None:
    assert denoiser().network_for(noise)[1] == level


@pytest.mark.parametrize("channels", [1, 3])
def test_keeps_strong_patterns_of_single_pixels(channels: int) -> None:
    """The network takes a checkerboard for noise, though it is five times as strong."""
    clean = torch.full((channels, 100, 120), 0.5)
    checkers = (torch.arange(60)[:, None] + torch.arange(60)) % 2
    clean[:, 20:80, 20:80] += 0.15 * (2 * checkers - 1)
    denoised = denoiser()(noisy(clean, 8.0), 8 / 255)
    assert error(denoised[:, 30:70, 30:70], clean[:, 30:70, 30:70]) < 12
    assert error(denoised[:, :, 90:], clean[:, :, 90:]) < 2


@pytest.mark.parametrize("noise", [1.0, 8.0, 25.0, 40.0, 90.0])
def test_removes_noise_of_any_level(noise: float) -> None:
    clean = flat_regions()
    assert error(denoiser()(noisy(clean, noise), noise / 255), clean) < 0.8 * noise


@pytest.mark.parametrize(("noise", "gain"), [(2.0, 1.5), (5.0, 2.5), (10.0, 4.0), (20.0, 6.0)])
def test_removes_weak_noise_of_photos(noise: float, gain: float) -> None:
    """The gain over the noisy photo, in dB."""
    for photo in (skimage.data.chelsea(), skimage.data.rocket()):
        clean = torch.from_numpy(photo[40:232, 60:252]).permute(2, 0, 1) / 255
        before = clean + noise / 255 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
        assert psnr(denoiser()(before, noise / 255), clean) > psnr(before, clean) + gain


def test_keeps_color_detail_of_single_pixels() -> None:
    """Columns of single pixels are red and green, and equally bright."""
    clean = torch.full((3, 91, 121), 0.5)
    clean[0, :, ::2], clean[1, :, ::2] = 0.7, 0.3
    clean[0, :, 1::2], clean[1, :, 1::2] = 0.3, 0.7
    denoised = denoiser()(noisy(clean, 10.0), 10 / 255)
    assert error(denoised, clean) < 8


@pytest.mark.parametrize(("height", "width"), [(90, 121), (91, 120)])
def test_smooth_color_is_denoised_at_half_the_resolution(height: int, width: int) -> None:
    """As few numbers are denoised as in a gray image and half of another."""
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    clean = torch.stack([x, y, 1 - x])
    shares: list[float] = []
    denoised = denoiser(30)(noisy(clean, 25.0), 25 / 255, shares.append)
    gray, half = (math.ceil(height / side) * math.ceil(width / side) for side in (30, 60))
    assert len(shares) == gray + 2 * half
    assert error(denoised, clean) < 2.5


@pytest.mark.parametrize("noise", [5, 11, 25])
def test_tiles_of_the_shipped_network_differ_by_less_than_a_level(noise: float) -> None:
    """Its margins are narrower than the reach of the network."""
    torch.manual_seed(0)
    clean = torch.rand(1, 20, 26).repeat_interleave(12, 1).repeat_interleave(12, 2)
    picture = clean + noise / 255 * torch.randn(clean.shape)
    whole, tiles = (denoiser(tile)(picture, noise / 255) for tile in (1000, 100))
    assert float((whole - tiles).abs().max()) < 0.5 / 255


@pytest.mark.parametrize("grids", [1, 3])
def test_tiles_leave_no_seams(grids: int) -> None:
    torch.manual_seed(0)
    options = {"channels": [8] * grids, "blocks": [1] * grids, "permutohedral_blocks": [1] * grids}
    network = Denoiser((25.0,), tile=30, **options, lattice_channels=4, sigma_space=4.0).eval()
    model = network.network_for(25.0)[0]
    # the blocks start near the identity, which would hide what they read
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    picture = torch.rand(1, 2 * model.reach + 70, 61)
    tiles = network(picture, 25 / 255)
    network.tile = 1000
    assert_close(tiles, network(picture, 25 / 255))


def test_reports_progress() -> None:
    shares: list[float] = []
    denoiser(60)(flat_regions(), 0.1, shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_keeps_an_empty_image() -> None:
    assert denoiser()(torch.rand(3, 0, 5), 0.1).shape == (3, 0, 5)


def test_keeps_an_image_without_noise() -> None:
    clean = flat_regions(3)
    assert torch.equal(denoiser()(clean), clean)


def test_rejects_wrong_arguments() -> None:
    with pytest.raises(InputError, match="1 or 3"):
        denoiser()(torch.rand(2, 8, 8), 0.1)
    with pytest.raises(InputError, match=r"got shape \(8, 9, 3\); move its channels"):
        denoiser()(torch.rand(8, 9, 3), 0.1)
    with pytest.raises(InputError, match=r"got shape \(8, 9\); pass a gray image as pixels\[None\]"):
        denoiser()(torch.rand(8, 9), 0.1)
    with pytest.raises(InputError, match="at least 0"):
        denoiser()(torch.rand(1, 8, 8), float("nan"))
    with pytest.raises(InputError, match=r"at most 1, .* got 25; divide sigma by 255"):
        denoiser()(torch.rand(1, 8, 8), 25)
    for sigma in (None, 0.1):
        with pytest.raises(InputError, match=r"pixels must be in \[0, 1\], got .*; divide them, such as by 255"):
            denoiser()(255 * noisy(flat_regions(), 20.0), sigma)
    with pytest.raises(InputError, match=r"uint8; convert them to float32 / 255"):
        denoiser()(torch.zeros(1, 8, 8, dtype=torch.uint8), 0.1)
    with pytest.raises(InputError, match=r"float64; convert them to float32 \("):
        denoiser()(torch.rand(1, 8, 8, dtype=torch.float64), 0.1)
    with pytest.raises(InputError, match="pixels must be finite"):
        denoiser()(torch.full((1, 40, 40), float("nan")))
    with pytest.raises(InputError, match=r"pixels must be a torch.Tensor or a NumPy array, got list"):
        denoiser()([[0.0]], 0.1)
    with pytest.raises(InputError, match="too few to estimate"):
        denoiser()(torch.rand(1, 2, 8))
    with pytest.raises(InputError, match="noise_levels must be numbers"):
        Denoiser([0.0])
    with pytest.raises(InputError, match="tile"):
        Denoiser(tile=0)
