"""Noise removed from a photo, or from its middle for a preview."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from permutohedral.models.image_denoiser import ImageDenoiser
from permutohedral.models.noise_level import estimate_noise
from permutohedral.pictures.files import Picture
from permutohedral.playground.compute.layers import Layer, make_layer
from permutohedral.playground.compute.result import Result, run
from permutohedral.playground.settings import DenoiseSettings

# side of the middle that is denoised first: a smaller picture of the whole has less noise, and would show nothing
MIDDLE = 96


def add_noise(picture: Picture, sigma: float) -> Picture:
    """The same noise each time, rounded as in the file that the page offers."""
    if sigma == 0:
        return picture
    noise = torch.randn(picture.pixels.shape, generator=torch.Generator().manual_seed(0))
    noisy = (picture.pixels + sigma / 255 * noise).clamp(0, 1)
    return picture.with_pixels((noisy * picture.levels).round() / picture.levels)


def noise_of(picture: Picture, settings: DenoiseSettings) -> float:
    """As the user says, or estimated; white is 1."""
    return estimate_noise(picture.pixels) if settings.sigma is None else settings.sigma / 255


def denoise_photo(
    picture: Picture, sigma: float, settings: DenoiseSettings, progress: Callable[[float], None]
) -> Result:
    """The whole photo; `progress` is called after each tile with the share that is done."""
    return run(lambda: _denoise(picture.pixels, sigma, settings, progress))


def preview(picture: Picture, sigma: float, settings: DenoiseSettings) -> Layer:
    """The middle of the photo."""
    part, corner = middle(picture.pixels)
    return make_layer(_denoise(part, sigma, settings, None), 1, corner)


def _denoise(
    pixels: Tensor, sigma: float, settings: DenoiseSettings, progress: Callable[[float], None] | None
) -> Tensor:
    return ImageDenoiser(settings.model)(pixels, settings.strength * sigma, progress).clamp(0, 1)


def middle(pixels: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """The middle of a picture, and x and y of its first pixel.

    >>> middle(torch.rand(3, 200, 300))[1]
    (102, 52)
    """
    top, left = (max(0, extent // 2 - MIDDLE // 2) for extent in pixels.shape[1:])
    return pixels[:, top : top + MIDDLE, left : left + MIDDLE], (left, top)
