"""Features out of images: where a pixel is and what it looks like, measured in standard deviations.

A feature is a point of R^d. One unit of every feature is one standard deviation of the Gaussian, so each
function here divides by a `sigma`. Pixels come in scan order, the last axis of the image fastest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from permutohedral.errors import InputError

Sigma = float | Sequence[float] | Tensor


def position_features(
    height: int,
    width: int,
    sigma: Sigma = 1.0,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Positions of the pixels of an image, (y, x), in the order of the image's own axes.

    Args:
        height: number of rows.
        width: number of columns.
        sigma: pixels per feature unit; one number, or one for y and one for x. A tensor may require gradients.
        device: where the features live; torch's default if None.
        dtype: floating dtype of the features; torch's default if None.

    Returns:
        `[height * width, 2]`, row `y * width + x` holding `(y / sigma, x / sigma)`.

    >>> position_features(2, 3, sigma=2.0).tolist()
    [[0.0, 0.0], [0.0, 0.5], [0.0, 1.0], [0.5, 0.0], [0.5, 0.5], [0.5, 1.0]]
    """
    for name, extent in (("height", height), ("width", width)):
        if isinstance(extent, bool) or not isinstance(extent, int) or extent < 0:
            raise InputError(f"{name} must be a whole number of at least 0, got {extent!r}")
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not dtype.is_floating_point:
        raise InputError(f"position features need a floating dtype such as torch.float32, got {dtype}")
    y = torch.arange(height, device=device, dtype=dtype)
    x = torch.arange(width, device=device, dtype=dtype)
    positions = torch.stack(torch.meshgrid(y, x, indexing="ij"), dim=-1).reshape(height * width, 2)
    return _in_units_of(positions, sigma)


def color_features(image: Tensor, sigma: Sigma = 1.0) -> Tensor:
    """Colors (or any other channels) of the pixels of one image or a batch of images.

    Args:
        image: floating `[..., channels, height, width]`.
        sigma: image values per feature unit; one number, or one for each channel. A tensor may require gradients.

    Returns:
        `[..., height * width, channels]`; gradients flow back to the image.

    >>> image = torch.arange(12.0).reshape(3, 2, 2)
    >>> color_features(image, sigma=2.0)[1].tolist()
    [0.5, 2.5, 4.5]
    """
    if image.dim() < 3:
        raise InputError(
            f"image must be [..., channels, height, width], got the shape {tuple(image.shape)}; "
            "give a gray image one channel with image.unsqueeze(-3)"
        )
    if not image.dtype.is_floating_point:
        raise InputError(
            f"image must be floating, got {image.dtype}; convert it, for instance with image.float() / 255, "
            "and state sigma in the same units"
        )
    return _in_units_of(image.flatten(-2).transpose(-1, -2), sigma)


def join_features(*features: Tensor) -> Tensor:
    """Put the features of the same points side by side.

    Args:
        *features: `[..., points, dimension]` each, with the same number of points, dtype and device. Their
            batch axes broadcast, so positions `[points, 2]` join the colors `[batch, points, 3]` of a batch.

    Returns:
        `[..., points, sum of the dimensions]`.

    >>> joined = join_features(position_features(4, 5, sigma=2.0), color_features(torch.rand(8, 3, 4, 5), sigma=0.1))
    >>> joined.shape
    torch.Size([8, 20, 5])
    """
    if not features:
        raise InputError("join_features needs at least one tensor [..., points, dimension]")
    first = features[0]
    for part in features:
        if part.dim() < 2:
            raise InputError(f"features must be [..., points, dimension], got the shape {tuple(part.shape)}")
        if part.shape[-2] != first.shape[-2]:
            raise InputError(f"features of different numbers of points, {first.shape[-2]} and {part.shape[-2]}")
        if part.dtype != first.dtype or part.device != first.device:
            raise InputError(
                f"features must share dtype and device, got {first.dtype} on {first.device} and {part.dtype} on "
                f"{part.device}; convert one of them with .to()"
            )
    try:
        batch_shape = torch.broadcast_shapes(*(part.shape[:-2] for part in features))
    except RuntimeError as error:
        shapes = ", ".join(str(tuple(part.shape)) for part in features)
        raise InputError(f"the batch axes of the features do not broadcast: {shapes}") from error
    return torch.cat([part.expand(*batch_shape, *part.shape[-2:]) for part in features], dim=-1)


def _in_units_of(features: Tensor, sigma: Sigma) -> Tensor:
    """`features [..., dimension]` divided by `sigma`, which is one number or `[dimension]`."""
    dimension = features.shape[-1]
    if isinstance(sigma, Tensor):
        if sigma.dim() > 1 or sigma.numel() not in (1, dimension):
            raise InputError(f"sigma must be one number or one for each of {dimension}, got {tuple(sigma.shape)}")
        # the values stay unread: a learned sigma must not stop compilation or wait for a GPU
        return features / sigma.to(features.dtype)
    numbers = [float(number) for number in sigma] if isinstance(sigma, Sequence) else [float(sigma)]
    if len(numbers) not in (1, dimension):
        raise InputError(f"sigma must be one number or one for each of {dimension}, got {len(numbers)}")
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise InputError(f"sigma must be positive and finite, got {sigma}")
    if len(numbers) == 1:
        return features / numbers[0]
    return features / torch.tensor(numbers, dtype=features.dtype, device=features.device)
