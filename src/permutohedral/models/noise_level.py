"""How strong the noise in a picture is, told from its smoothest patches.

Patches of a clean picture lie near a subspace; noise alone fills all directions, so its variance is the smallest
eigenvalue of their covariance. That holds where the patches have little texture. Which have follows from the estimate
itself: noise of a given strength rarely makes gradients beyond a bound. So estimate and choice are repeated in turn.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from permutohedral.errors import InputError

# extent of a patch in pixels
_PATCH = 7
_PIXELS = _PATCH * _PATCH
# with fewer patches the smallest eigenvalue says little, with more it takes longer and says the same
_LEAST_PATCHES, _MOST_PATCHES = 2000, 30_000
# a picture of fewer patches is refused
_LEAST_OF_A_PICTURE = 2 * _PIXELS
# patches with a larger share of black or white pixels, which have lost their noise, do not count
_CLIPPED = 0.1
_ROUNDS = 10


def estimate_noise(pixels: Tensor) -> float:
    """Standard deviation of the noise in a picture.

    It is taken to be white, and equally strong everywhere. Of color pictures the sum of the channels tells: JPEG keeps
    its noise, and not that of color differences.

    Args:
        pixels: float `[channels, height, width]`, white being 1.

    >>> round(255 * estimate_noise(0.5 + 20 / 255 * torch.randn(1, 100, 100)))
    20
    """
    height, width = pixels.shape[-2:]
    patches = max(height - _PATCH + 1, 0) * max(width - _PATCH + 1, 0)
    if patches < _LEAST_OF_A_PICTURE:
        raise InputError(f"the noise of {height} x {width} pixels cannot be estimated; give it as sigma")
    gray = pixels.float().sum(dim=0) / math.sqrt(pixels.shape[0])
    texture = torch.where(_is_clipped(pixels), torch.inf, _texture(gray)).flatten()
    # the smoothest patches count in any case
    enough = min(_LEAST_PATCHES, patches)
    if int(texture.isfinite().sum()) < enough:
        texture = _texture(gray).flatten()
    least = float(texture.kthvalue(enough).values)
    variance, previous = _smallest_variance(gray, texture.isfinite()), math.inf
    for _ in range(_ROUNDS):
        if abs(variance - previous) <= 0.01 * variance:
            break
        bound = max(variance * _texture_of_noise(), least)
        variance, previous = _smallest_variance(gray, texture <= bound), variance
    # of few samples of noise, the smallest eigenvalue is too small by the square of this (Marchenko and Pastur)
    return math.sqrt(variance) / (1 - math.sqrt(_PIXELS / patches))


def _is_clipped(pixels: Tensor) -> Tensor:
    """Whether too much of each patch is black or white, `[height - 6, width - 6]`."""
    clipped = ((pixels == 0) | (pixels == 1)).float().mean(dim=0)
    return F.avg_pool2d(clipped[None], _PATCH, 1)[0] > _CLIPPED


def _texture(images: Tensor) -> Tensor:
    """The squared gradients within each patch of `[..., height, width]`, summed: `[..., height - 6, width - 6]`."""
    down = ((images[..., 2:, :] - images[..., :-2, :]) / 2).square()
    right = ((images[..., 2:] - images[..., :-2]) / 2).square()
    short = _PATCH - 2
    mean = F.avg_pool2d(down[None], (short, _PATCH), 1) + F.avg_pool2d(right[None], (_PATCH, short), 1)
    return mean[0] * (_PATCH * short)


@lru_cache(maxsize=1)
def _texture_of_noise() -> float:
    """The texture that one patch in a million of noise of variance 1 exceeds.

    It is a quadratic form of the noise, nearly of the gamma distribution of its mean and variance, whose quantile is
    that of Wilson and Hilferty: a third power of a normal variable.
    """
    # the form's values at unit vectors and at their sums make up its matrix
    units = torch.eye(_PIXELS, dtype=torch.float64)
    at_units = _texture(units.reshape(-1, _PATCH, _PATCH)).flatten()
    sums = (units[:, None] + units[None]).reshape(-1, _PATCH, _PATCH)
    matrix = (_texture(sums).reshape(_PIXELS, _PIXELS) - at_units - at_units[:, None]) / 2
    mean, variance = float(matrix.trace()), 2 * float(matrix.square().sum())
    shape, millionth = mean**2 / variance, 4.7534
    return mean * (1 - 1 / (9 * shape) + millionth / (3 * math.sqrt(shape))) ** 3


def _smallest_variance(gray: Tensor, chosen: Tensor) -> float:
    """The smallest eigenvalue of the covariance of the `chosen [patches]` of `gray [height, width]`."""
    width = gray.shape[1]
    places = chosen.nonzero()[:, 0]
    if len(places) > _MOST_PATCHES:
        places = places[torch.linspace(0, len(places) - 1, _MOST_PATCHES).long()]
    columns = width - _PATCH + 1
    first = places.div(columns, rounding_mode="floor") * width + places % columns
    offsets = (torch.arange(_PATCH)[:, None] * width + torch.arange(_PATCH)).flatten()
    patches = gray.flatten()[first[:, None] + offsets].double()
    covariance = torch.cov(patches.T, correction=0)
    return max(float(torch.linalg.eigvalsh(covariance)[0]), 0.0)
