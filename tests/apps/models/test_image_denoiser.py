from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from datasets import data_folder
from support import assert_close
from torch import Tensor

from experiments.data.bsds500 import add_noise, load_colors, load_images
from experiments.quality import psnr
from permutohedral.apps.models import image_denoiser
from permutohedral.apps.models.deep_denoising import DeepDenoiser
from permutohedral.apps.models.image_denoiser import Denoiser
from permutohedral.apps.models.noise_level import estimate_noise
from permutohedral.apps.models.pretrained import load_pretrained, shipped_models
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
    image = load_images("test", data_folder("bsds500"), limit=1)[0]
    assert 24 < 255 * estimate_noise(add_noise(image)[None]) < 26
    assert 255 * estimate_noise(image.pixels[None]) < 1


@pytest.mark.parametrize("noise", [0.6, 2.0, 25.0])
def test_change_is_limited_to_the_noise(noise: float) -> None:
    """Also of a picture in which a model sees more than that to remove."""
    clean = 0.5 + 0.2 * torch.randn(3, 60, 70)
    for tile in (None, 40):
        denoised = Denoiser("pcnn_cnn", tile)(clean, noise / 255)
        assert 0.5 * noise < error(denoised, clean) <= noise * 1.01


@pytest.mark.parametrize("model", ["auto", "pcnn_cnn"])
@pytest.mark.parametrize("channels", [1, 3])
def test_tensors_are_on_the_device_of_the_image(model: str, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another default device, a tensor that is made without one cannot be mixed with the image."""
    pixels = noisy(flat_regions(channels, 250, 260), 25.0)
    # models are loaded on the default device
    monkeypatch.setattr(image_denoiser, "load_pretrained", functools.cache(load_pretrained))
    expected = Denoiser(model)(pixels)
    with torch.device("meta"):
        denoised = Denoiser(model)(pixels)
    assert denoised.device == pixels.device
    assert_close(denoised, expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_keeps_strong_patterns_of_single_pixels(channels: int) -> None:
    """The network takes a checkerboard for noise, though it is five times as strong."""
    clean = torch.full((channels, 100, 120), 0.5)
    checkers = (torch.arange(60)[:, None] + torch.arange(60)) % 2
    clean[:, 20:80, 20:80] += 0.15 * (2 * checkers - 1)
    denoised = Denoiser()(noisy(clean, 8.0), 8 / 255)
    assert error(denoised[:, 30:70, 30:70], clean[:, 30:70, 30:70]) < 12
    assert error(denoised[:, :, 90:], clean[:, :, 90:]) < 2


@pytest.mark.parametrize("model", ["auto", *sorted(shipped_models())])
@pytest.mark.parametrize("noise", [8.0, 25.0, 40.0, 90.0])
def test_removes_noise_of_any_level(model: str, noise: float) -> None:
    clean = flat_regions()
    assert error(Denoiser(model)(noisy(clean, noise), noise / 255), clean) < 0.8 * noise


def test_color_is_better_than_separate_channels() -> None:
    clean = flat_regions(3)
    before = noisy(clean, 25.0)
    denoiser = Denoiser("pcnn_cnn")
    together = denoiser(before, 25 / 255)
    apart = torch.cat([denoiser(channel[None], 25 / 255) for channel in before])
    assert error(together, clean) < error(apart, clean) < 15


def test_chooses_the_model_by_noise_and_channels() -> None:
    denoiser = Denoiser()
    assert [denoiser.choose(1, noise / 255) for noise in (2.4, 2.6)] == ["pcnn_cnn", "deep_small"]
    assert [denoiser.choose(3, noise / 255) for noise in (4.2, 4.5)] == ["pcnn_cnn", "deep_small"]


@pytest.mark.parametrize(("noise", "gain"), [(5.0, 1.0), (10.0, 1.0), (20.0, 1.5)])
def test_deep_networks_remove_weak_noise_of_photos(noise: float, gain: float) -> None:
    """The gain over a filter of 90 weights, in dB."""
    photos = list(load_colors("test", data_folder("bsds500"), limit=2).values())
    scores = {"pcnn_cnn": 0.0, "auto": 0.0}
    for photo in photos:
        clean = photo[:, 40:232, 60:252]
        before = clean + noise / 255 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
        for model in scores:
            scores[model] += psnr(Denoiser(model)(before, noise / 255), clean) / len(photos)
    assert scores["auto"] > scores["pcnn_cnn"] + gain


def test_keeps_color_detail_of_single_pixels() -> None:
    """Columns of single pixels are red and green, and equally bright."""
    clean = torch.full((3, 91, 121), 0.5)
    clean[0, :, ::2], clean[1, :, ::2] = 0.7, 0.3
    clean[0, :, 1::2], clean[1, :, 1::2] = 0.3, 0.7
    denoised = Denoiser()(noisy(clean, 10.0), 10 / 255)
    assert error(denoised, clean) < 8


@pytest.mark.parametrize(("height", "width"), [(90, 121), (91, 120)])
def test_smooth_color_is_denoised_at_half_the_resolution(height: int, width: int) -> None:
    """As few numbers are denoised as in a gray image and half of another."""
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    clean = torch.stack([x, y, 1 - x])
    shares: list[float] = []
    denoised = Denoiser(tile=30)(noisy(clean, 25.0), 25 / 255, shares.append)
    gray, half = (math.ceil(height / side) * math.ceil(width / side) for side in (30, 60))
    assert len(shares) == gray + 2 * half
    assert error(denoised, clean) < 2.5


def test_tiles_leave_no_seams() -> None:
    picture = noisy(flat_regions(3), 25.0)
    small, large = (Denoiser("pcnn_cnn", tile) for tile in (32, 1000))
    assert_close(small(picture, 25 / 255), large(picture, 25 / 255))


@pytest.mark.parametrize("noise", [5, 11, 25])
def test_tiles_of_the_shipped_network_differ_by_less_than_a_level(noise: float) -> None:
    """Its margins are narrower than the reach of the network."""
    torch.manual_seed(0)
    clean = torch.rand(1, 20, 26).repeat_interleave(12, 1).repeat_interleave(12, 2)
    picture = clean + noise / 255 * torch.randn(clean.shape)
    whole, tiles = (Denoiser("deep_small", tile)(picture, noise / 255) for tile in (1000, 100))
    assert float((whole - tiles).abs().max()) < 0.5 / 255


@pytest.mark.parametrize("grids", [1, 3])
def test_tiles_of_a_deep_denoiser_leave_no_seams(grids: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = DeepDenoiser([8, 8, 8][:grids], [1] * grids, [1] * grids, lattice_channels=4, sigma_space=4.0).eval()
    # the blocks start near the identity, which would hide what they read
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    monkeypatch.setattr(image_denoiser, "load_pretrained", lambda name, noise: (model, 25.0))
    picture = torch.rand(1, 2 * model.reach + 70, 61)
    assert_close(Denoiser(tile=30)(picture, 25 / 255), Denoiser(tile=1000)(picture, 25 / 255))


def test_reports_progress() -> None:
    shares: list[float] = []
    Denoiser(tile=60)(flat_regions(), 0.1, shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_keeps_an_empty_image() -> None:
    assert Denoiser()(torch.rand(3, 0, 5), 0.1).shape == (3, 0, 5)


def test_keeps_an_image_without_noise() -> None:
    clean = flat_regions(3)
    assert torch.equal(Denoiser()(clean), clean)


def test_rejects_wrong_arguments() -> None:
    with pytest.raises(InputError, match="1 or 3"):
        Denoiser()(torch.rand(2, 8, 8), 0.1)
    with pytest.raises(InputError, match=r"got shape \(8, 9, 3\); pass pixels.movedim\(-1, 0\)"):
        Denoiser()(torch.rand(8, 9, 3), 0.1)
    with pytest.raises(InputError, match=r"got shape \(8, 9\); pass a gray image as pixels\[None\]"):
        Denoiser()(torch.rand(8, 9), 0.1)
    with pytest.raises(InputError, match="at least 0"):
        Denoiser()(torch.rand(1, 8, 8), float("nan"))
    with pytest.raises(InputError, match=r"at most 1, .* got 25; divide sigma by 255"):
        Denoiser()(torch.rand(1, 8, 8), 25)
    for sigma in (None, 0.1):
        with pytest.raises(InputError, match=r"pixels must be in \[0, 1\], got .*; divide them, such as by 255"):
            Denoiser()(255 * noisy(flat_regions(), 20.0), sigma)
    with pytest.raises(InputError, match=r"uint8; pass pixels.float\(\) / 255"):
        Denoiser()(torch.zeros(1, 8, 8, dtype=torch.uint8), 0.1)
    with pytest.raises(InputError, match=r"float64; pass pixels.float\(\) \("):
        Denoiser()(torch.rand(1, 8, 8, dtype=torch.float64), 0.1)
    with pytest.raises(InputError, match="pixels must be finite"):
        Denoiser()(torch.full((1, 40, 40), float("nan")))
    with pytest.raises(InputError, match=r"pixels must be a torch.Tensor, got ndarray"):
        Denoiser()(np.zeros((1, 8, 8), np.float32), 0.1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="too few to estimate"):
        Denoiser()(torch.rand(1, 2, 8))
    with pytest.raises(InputError, match="model must be one of"):
        Denoiser("best")
    with pytest.raises(InputError, match="tile"):
        Denoiser(tile=0)
