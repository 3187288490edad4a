"""Alpha channels: hidden colors must not reach visible pixels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate


def hide_colors(pixels: Tensor, alpha: Tensor | None) -> Tensor:
    """Return `pixels [channels, height, width]`, black where `alpha [1, height, width]` is 0."""
    return pixels if alpha is None else pixels * (alpha > 0)


def filter_by_alpha(pixels: Tensor, alpha: Tensor | None, average: Callable[[Tensor], Tensor]) -> Tensor:
    """Average colors with alpha as the weight of each pixel; invisible pixels keep their colors.

    Args:
        pixels: `[channels, height, width]`.
        alpha: `[1, height, width]`, None if the image is opaque.
        average: linear filter from `[any, height, width]` to the same shape.

    >>> pixels, alpha = torch.tensor([[[0.2, 0.2, 0.9]]]), torch.tensor([[[1.0, 1.0, 0.0]]])
    >>> filter_by_alpha(pixels, alpha, lambda image: image.mean(2, keepdim=True).expand_as(image))
    tensor([[[0.2000, 0.2000, 0.9000]]])
    """
    if alpha is None or bool((alpha == 1).all()):
        return average(pixels)
    weighted = average(torch.cat([hide_colors(pixels, alpha) * alpha, alpha]))
    mass = weighted[-1:]
    return torch.where((alpha > 0) & (mass > 0), weighted[:-1] / mass.clamp_min(torch.finfo(mass.dtype).tiny), pixels)


def fill_hidden(pixels: Tensor, alpha: Tensor | None) -> Tensor:
    """Fill pixels where `alpha [1, height, width]` is 0 with the colors around them.

    Use it for filters without weights: the filling has no edge towards visible pixels.
    """
    if alpha is None or bool((alpha > 0).all()):
        return pixels
    seen = (alpha > 0).to(pixels)
    return _fill(hide_colors(pixels, alpha)[None], seen[None])[0]


def _fill(colors: Tensor, seen: Tensor) -> Tensor:
    """Fill holes of `[1, channels, height, width]` from the filled image at half the size."""
    height, width = colors.shape[2:]
    if max(height, width) == 1 or bool((seen > 0).all()):
        return colors
    mass = avg_pool2d(seen, 2, ceil_mode=True)
    half = avg_pool2d(colors * seen, 2, ceil_mode=True) / mass.clamp_min(torch.finfo(mass.dtype).tiny)
    coarse = _fill(half, (mass > 0).to(seen))
    finer = interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)[..., :height, :width]
    return torch.where(seen > 0, colors, finer)
