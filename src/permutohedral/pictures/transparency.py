"""Filters for pictures with alpha: the colors of pixels that nobody sees must not reach those that one sees."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate


def hide_colors(pixels: Tensor, alpha: Tensor | None) -> Tensor:
    """`pixels [channels, height, width]`, black where `alpha [1, height, width]` is 0."""
    return pixels if alpha is None else pixels * (alpha > 0)


def filter_by_alpha(pixels: Tensor, alpha: Tensor | None, average: Callable[[Tensor], Tensor]) -> Tensor:
    """An average in which each pixel counts as much as it is seen; a pixel that is not seen keeps its color.

    Args:
        pixels: `[channels, height, width]`.
        alpha: `[1, height, width]`; None where all pixels are seen.
        average: a linear filter from `[any, height, width]` to the same shape.

    >>> pixels, alpha = torch.tensor([[[0.2, 0.2, 0.9]]]), torch.tensor([[[1.0, 1.0, 0.0]]])
    >>> filter_by_alpha(pixels, alpha, lambda image: image.mean(2, keepdim=True).expand_as(image))
    tensor([[[0.2000, 0.2000, 0.9000]]])
    """
    if alpha is None or bool((alpha == 1).all()):
        return average(pixels)
    weighted = average(torch.cat([hide_colors(pixels, alpha) * alpha, alpha]))
    mass = weighted[-1:]
    # a pixel that is seen has a mass of its own
    return torch.where((alpha > 0) & (mass > 0), weighted[:-1] / mass.clamp_min(torch.finfo(mass.dtype).tiny), pixels)


def fill_hidden(pixels: Tensor, alpha: Tensor | None) -> Tensor:
    """`pixels [channels, height, width]`, with colors of their surroundings where `alpha [1, height, width]` is 0.

    For filters that know no weights: the filling depends on visible pixels alone, and has no edge towards them.
    """
    if alpha is None or bool((alpha > 0).all()):
        return pixels
    seen = (alpha > 0).to(pixels)
    return _fill(hide_colors(pixels, alpha)[None], seen[None])[0]


def _fill(colors: Tensor, seen: Tensor) -> Tensor:
    """Fill holes of `[1, channels, height, width]` from the picture at half the size, itself filled."""
    height, width = colors.shape[2:]
    if max(height, width) == 1 or bool((seen > 0).all()):
        return colors
    mass = avg_pool2d(seen, 2, ceil_mode=True)
    half = avg_pool2d(colors * seen, 2, ceil_mode=True) / mass.clamp_min(torch.finfo(mass.dtype).tiny)
    coarse = _fill(half, (mass > 0).to(seen))
    finer = interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)[..., :height, :width]
    return torch.where(seen > 0, colors, finer)
