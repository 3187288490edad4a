"""Pixels whose colors are rare, filtered again by the definition.

Few terms over colors, or a narrow window, are furthest off where little mass lies near: there what they get
wrong is much of what there is. The worst of such pixels are few, and are summed over a window of their own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from permutohedral.ops import fused_filters
from permutohedral.ops.primitives import window_extents

# pixels with less than this part of the mass that equal colors would have
_SMALL_MASS = 0.08
# what mass those have of which only some can be afforded is known from so many of all, and some more
_SAMPLES, _MORE = 4096, 8
# of the windows, in standard deviations
REACH = 3.0
# numbers that are computed at once
_AT_ONCE = 1 << 24


def repair(
    means: Tensor, mass: Tensor, values: Tensor, guide: Tensor, sigma: tuple[float, float], pairs: float
) -> Tensor:
    """Filtered pictures, with the pixels of rare colors filtered again.

    Args:
        means: `[items, channels, pixels]`, what was computed; written to.
        mass: `[items, pixels]`, how much there is near each pixel.
        values: `[items, channels, height, width]`, what is filtered.
        guide: `[items, guide channels, height, width]`, in standard deviations.
        sigma: over y and x, in pixels.
        pairs: how many may be summed, to a pixel of the picture.

    Returns:
        The means.

    >>> guide = torch.zeros(1, 1, 20, 30)
    >>> guide[0, 0, 9, 9] = 7.0
    >>> mass = torch.full((1, 600), 25.0)
    >>> mass[0, 9 * 30 + 9] = 1.0
    >>> wrong = torch.full((1, 1, 600), 0.5)
    >>> repair(wrong, mass, guide, guide, (2.0, 2.0), pairs=9.0).unique().tolist()
    [0.5, 7.0]
    """
    for mean, near, value, edges in zip(means, mass, values, guide, strict=True):
        pixels = rare_pixels(near, sigma, pairs)
        mean[:, pixels] = mean_windows(value, edges, pixels, sigma)
    return means


def rare_pixels(mass: Tensor, sigma: tuple[float, float], pairs: float) -> Tensor:
    """Which pixels of a picture have least mass near them.

    Args:
        mass: `[pixels]`.
        sigma: over y and x, in pixels.
        pairs: how many may be summed, to a pixel of the picture.

    >>> rare_pixels(torch.tensor([20.0, 0.1]), (2.0, 2.0), pairs=20.0).tolist()
    [1]
    """
    full = 2 * math.pi * sigma[0] * sigma[1]
    # one at least, for a small picture
    most = math.ceil(mass.numel() * pairs / (full / 2 * REACH**2 + 1))
    small = torch.as_tensor(_SMALL_MASS * full)
    some = mass[:: math.ceil(mass.numel() / _SAMPLES)]
    if (likely := 2 * most * some.numel() // mass.numel() + _MORE) < some.numel():
        # fewer to sort
        small = some.kthvalue(likely).values.clamp(max=_SMALL_MASS * full)
    found = (mass <= small).nonzero()[:, 0]
    return found[mass[found].argsort(stable=True)[:most]].sort().values


def mean_windows(values: Tensor, guide: Tensor, pixels: Tensor, sigma: tuple[float, float]) -> Tensor:
    """Means over windows around single pixels, by the definition.

    Args:
        values: `[channels, height, width]`.
        guide: `[guide channels, height, width]`, in standard deviations.
        pixels: int64 `[pixels]`, counted row by row.
        sigma: over y and x, in pixels.

    Returns:
        `[channels, pixels]`.

    >>> gray = torch.ones(1, 5, 5)
    >>> mean_windows(gray, gray, torch.tensor([7]), (0.1, 0.1)).tolist()
    [[1.0]]
    """
    with_ones = torch.cat([values, values.new_ones(()).expand(1, *values.shape[1:])])
    sums = fused_filters.sum_pixel_windows(with_ones, guide, pixels, sigma, REACH)
    if sums is None:
        sums = _sum_windows(with_ones, guide, pixels, sigma)
    # a pixel is in its own window
    return sums[:-1] / sums[-1:]


def _sum_windows(values: Tensor, guide: Tensor, pixels: Tensor, sigma: tuple[float, float]) -> Tensor:
    """Sums of torch's operations, `[channels, pixels]`, which know their derivatives."""
    height, width = values.shape[1:]
    extents = window_extents(*sigma, REACH, height, width)
    offsets = torch.tensor(
        [(s * dy, dx) for dy, e in enumerate(extents) for s in {1, -1 if dy else 1} for dx in range(-e, e + 1)],
        device=values.device,
    )
    scale = torch.tensor(sigma, device=values.device, dtype=values.dtype)
    in_space = torch.exp(-0.5 * (offsets / scale).square().sum(1))
    found = [values.new_zeros(values.shape[0], 0)]
    for part in pixels.split(max(_AT_ONCE // (offsets.shape[0] * values.shape[0]), 1)):
        rows, columns = (part // width)[:, None] + offsets[:, 0], (part % width)[:, None] + offsets[:, 1]
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        near = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
        own = guide.flatten(1)[:, part, None]
        in_color = torch.exp(-0.5 * (guide.flatten(1)[:, near] - own).square().sum(0))
        found.append((values.flatten(1)[:, near] * (in_color * in_space * inside)).sum(-1))
    return torch.cat(found, dim=1)
