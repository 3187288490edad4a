"""Noise removed from a photo, or from its middle for a preview."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from permutohedral.models.image_denoiser import ImageDenoiser
from permutohedral.models.noise_level import estimate_noise
from permutohedral.pictures.files import Picture
from permutohedral.pictures.transparency import fill_hidden
from permutohedral.playground.compute.layers import Layer, make_layer, on_white
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
    if settings.sigma is not None:
        return settings.sigma / 255
    return estimate_noise(fill_hidden(picture.pixels, picture.alpha))


def noisy_layer(picture: Picture) -> Layer:
    """The photo before noise is removed."""
    return make_layer(on_white(picture.pixels, picture.alpha))


def denoise_photo(
    picture: Picture, sigma: float, settings: DenoiseSettings, progress: Callable[[float], None]
) -> Result:
    """The whole photo; `progress` is called after each tile with the share that is done."""
    return run(lambda: _denoise(picture, sigma, settings, progress), picture.alpha)


def preview(picture: Picture, sigma: float, settings: DenoiseSettings) -> Layer:
    """The middle of the photo."""
    pixels, corner = middle(picture.pixels)
    part = replace(picture, pixels=pixels, alpha=None if picture.alpha is None else middle(picture.alpha)[0])
    return make_layer(on_white(_denoise(part, sigma, settings, None), part.alpha), 1, corner)


def quality(found: Tensor, clean: Picture) -> float:
    """PSNR in dB of `[channels, height, width]` against a clean photo, where that is seen."""
    errors = (found - clean.pixels).square()
    if clean.alpha is not None:
        errors = errors[:, clean.alpha[0] > 0]
    return -10 * math.log10(max(float(errors.mean()), 1e-12))


def _denoise(
    picture: Picture, sigma: float, settings: DenoiseSettings, progress: Callable[[float], None] | None
) -> Tensor:
    noisy = fill_hidden(picture.pixels, picture.alpha)
    clean = ImageDenoiser(settings.model)(noisy, settings.strength * sigma, progress).clamp(0, 1)
    return clean if picture.alpha is None else torch.where(picture.alpha > 0, clean, picture.pixels)


def middle(pixels: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """The middle of a picture, and x and y of its first pixel.

    >>> middle(torch.rand(3, 200, 300))[1]
    (102, 52)
    """
    top, left = (max(0, extent // 2 - MIDDLE // 2) for extent in pixels.shape[1:])
    return pixels[:, top : top + MIDDLE, left : left + MIDDLE], (left, top)
