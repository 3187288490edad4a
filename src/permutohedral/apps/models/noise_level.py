"""Estimate of the noise in an image from its smoothest patches.

Patches without texture lie near a subspace, and noise fills all directions: its variance is the smallest eigenvalue of
their covariance. The gradients that noise can cause bound the texture, so patches and estimate are refined in turn.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from permutohedral.errors import InputError

# extent of a patch in pixels
_PATCH = 7
_PIXELS = _PATCH * _PATCH
# fewer patches make the smallest eigenvalue unreliable, more do not change it
_MIN_PATCHES, _MAX_PATCHES = 2000, 30_000
# an image with fewer patches is rejected
_MIN_IMAGE_PATCHES = 2 * _PIXELS
# patches with a larger share of black or white pixels, which lost their noise, are ignored
_CLIPPED = 0.1
_ROUNDS = 10
# texture that one patch in a million exceeds in noise of variance 1: the quantile of the gamma distribution with the
# mean and the variance of this quadratic form, approximated by Wilson and Hilferty
_TEXTURE_OF_NOISE = 90.73161802243692


def estimate_noise(pixels: Tensor) -> float:
    """Return the standard deviation of the noise, assumed white and uniform; white is 1.

    The estimate uses the sum of the channels, since JPEG removes noise from color differences.

    Args:
        pixels: float `[channels, height, width]`; white is 1.

    >>> round(255 * estimate_noise(0.5 + 20 / 255 * torch.randn(1, 100, 100)))
    20
    """
    height, width = pixels.shape[-2:]
    patches = max(height - _PATCH + 1, 0) * max(width - _PATCH + 1, 0)
    if patches < _MIN_IMAGE_PATCHES:
        raise InputError(f"pixels are {height} x {width}, too few to estimate the noise; pass sigma")
    gray = pixels.float().sum(dim=0) / math.sqrt(pixels.shape[0])
    texture = torch.where(_is_clipped(pixels), torch.inf, _texture(gray)).flatten()
    # the smoothest patches are always used
    enough = min(_MIN_PATCHES, patches)
    if int(texture.isfinite().sum()) < enough:
        texture = _texture(gray).flatten()
    least = float(texture.kthvalue(enough).values)
    variance, previous = _smallest_variance(gray, texture.isfinite()), math.inf
    for _ in range(_ROUNDS):
        if abs(variance - previous) <= 0.01 * variance:
            break
        bound = max(variance * _TEXTURE_OF_NOISE, least)
        variance, previous = _smallest_variance(gray, texture <= bound), variance
    # corrects the smallest eigenvalue of few samples (Marchenko and Pastur)
    return math.sqrt(variance) / (1 - math.sqrt(_PIXELS / patches))


def _is_clipped(pixels: Tensor) -> Tensor:
    """Return whether too much of each patch is black or white, `[height - 6, width - 6]`."""
    clipped = ((pixels == 0) | (pixels == 1)).float().mean(dim=0)
    return F.avg_pool2d(clipped[None], _PATCH, 1)[0] > _CLIPPED


def _texture(images: Tensor) -> Tensor:
    """Return the sum of squared gradients in each patch of `[..., height, width]`: `[..., height - 6, width - 6]`."""
    down = ((images[..., 2:, :] - images[..., :-2, :]) / 2).square()
    right = ((images[..., 2:] - images[..., :-2]) / 2).square()
    short = _PATCH - 2
    mean = F.avg_pool2d(down[None], (short, _PATCH), 1) + F.avg_pool2d(right[None], (_PATCH, short), 1)
    return mean[0] * (_PATCH * short)


def _smallest_variance(gray: Tensor, chosen: Tensor) -> float:
    """Return the smallest eigenvalue of the covariance of the `chosen [patches]` of `gray [height, width]`."""
    width = gray.shape[1]
    places = chosen.nonzero()[:, 0]
    if len(places) > _MAX_PATCHES:
        # float32 cannot represent indices above 2^24
        dtype = torch.float32 if len(places) < 1 << 24 else torch.float64
        chosen = torch.linspace(0, len(places) - 1, _MAX_PATCHES, dtype=dtype, device="cpu").long()
        places = places[chosen.to(places.device)]
    columns = width - _PATCH + 1
    first = places.div(columns, rounding_mode="floor") * width + places % columns
    steps = torch.arange(_PATCH, device=gray.device)
    offsets = (steps[:, None] * width + steps).flatten()
    # not every device has float64
    patches = gray.flatten()[first[:, None] + offsets].cpu().double()
    covariance = torch.cov(patches.T, correction=0)
    return max(float(torch.linalg.eigvalsh(covariance)[0]), 0.0)
