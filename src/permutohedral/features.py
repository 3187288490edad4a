"""Features out of images: where a pixel is and what it looks like, measured in standard deviations.

`rotation_features` and `log_scale_features` stack transformed versions of an image in a third coordinate.

A feature is a point of R^d. One unit of every feature is one standard deviation of the Gaussian, so each
function here divides by a `sigma`. Pixels come in scan order, the last axis of the image fastest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.ops.fused_filters import picture_features
from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.tracing import is_traced
from permutohedral.tensors import check_count, check_tensor

Sigma = float | Sequence[float] | np.ndarray | Tensor


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
    check_count("height", height)
    check_count("width", width)
    return grid_features((height, width), sigma, device=device, dtype=dtype)


def grid_features(
    space: Sequence[int],
    sigma: Sigma = 1.0,
    *,
    origin: Sequence[int] | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Positions of the samples of a grid of any dimension, in the order of its axes.

    Args:
        space: extents of the grid.
        sigma: samples per feature unit; one number, or one for each axis. A tensor may require gradients.
        origin: position of the first sample, for a part of a larger grid; default: zeros.
        device: where the features live; torch's default if None.
        dtype: floating dtype of the features; torch's default if None.

    Returns:
        `[samples, axes]`, the last axis fastest.

    >>> grid_features((1, 2, 2), sigma=2.0).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.5], [0.0, 0.5, 0.0], [0.0, 0.5, 0.5]]
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not dtype.is_floating_point:
        raise InputError(f"position features need a floating dtype such as torch.float32, got {dtype}")
    first = [0] * len(space) if origin is None else origin
    axes = [
        torch.arange(start, start + extent, device=device, dtype=dtype)
        for start, extent in zip(first, space, strict=True)
    ]
    positions = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, len(axes))
    return in_units_of(positions, sigma)


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
    check_image(image)
    return in_units_of(image.flatten(-2).transpose(-1, -2), sigma)


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
        check_tensor("features", part)
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


def bilateral_features(guide: Tensor, sigma_space: Sigma, sigma_range: Sigma) -> Tensor:
    """Position and color of every pixel in standard deviations.

    Args:
        guide: float `[..., channels, height, width]`.
        sigma_space: standard deviation over positions, in pixels.
        sigma_range: standard deviation over colors, in units of the guide's values.

    Returns:
        float32 or float64 `[..., height * width, 2 + channels]`: y, x, then the channels.

    >>> bilateral_features(torch.rand(3, 4, 5), 2.0, 0.1).shape
    torch.Size([20, 5])
    """
    check_tensor("image", guide)
    check_channels_first(guide)
    at_once = picture_features(guide, sigma_space, sigma_range)
    if at_once is not None:
        return at_once
    guide = guide.to(accumulation_dtype(guide.dtype))
    color = color_features(guide, sigma_range)
    position = position_features(guide.shape[-2], guide.shape[-1], sigma_space, device=guide.device, dtype=guide.dtype)
    return join_features(position, color)


def check_image(image: Tensor) -> None:
    """Raise unless `image` is floating and `[..., channels, height, width]`.

    >>> check_image(torch.rand(3, 480, 640))
    """
    check_tensor("image", image)
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


def check_channels_first(guide: Tensor) -> None:
    """Raise for an image `[height, width, channels]`, whose rows would be taken for channels.

    >>> check_channels_first(torch.rand(3, 480, 640))
    """
    many, few = 32, 4
    if guide.dim() >= 3 and guide.shape[-3] > many and guide.shape[-1] <= few:
        raise InputError(
            f"an image must be [..., channels, height, width], got {tuple(guide.shape)}, which looks like [height, "
            "width, channels]; bring the channels forward with image.movedim(-1, -3)"
        )


def check_guide(guide: Tensor, image: Tensor) -> None:
    """Raise unless `guide` belongs to `image`, both `[..., channels, height, width]`.

    >>> check_guide(torch.rand(1, 480, 640), torch.rand(2, 3, 480, 640))
    """
    check_tensor("guide", guide)
    if guide.shape[-2:] != image.shape[-2:]:
        raise InputError(
            f"guide and image must have one height and width, got {tuple(guide.shape)} and {tuple(image.shape)}"
        )
    if guide.dim() > 3 and guide.shape[:-3] != image.shape[:-3]:
        raise InputError(
            "a guide with batch axes must have those of the image, got "
            f"{tuple(guide.shape[:-3])} and {tuple(image.shape[:-3])}"
        )


def circle_features(angles: Tensor, sigma: float = 10.0, period: float = 360.0) -> Tensor:
    """Angles as points on a circle in the plane, where the first and the last are neighbors like any others.

    The circumference is `period / sigma` feature units, so nearby angles are as far apart as `angle / sigma` says, and
    there is no seam. Tangents turn along the circle: filters that depend on the distance alone, as the Gaussian, treat
    all angles alike; a learned filter does not. For these, keep the angle a coordinate of its own and repeat the signal
    beyond its ends, with the bandwidth of `whole_steps_sigma`.

    Args:
        angles: floating `[points]`.
        sigma: angle per feature unit, in the unit of `period`.
        period: angle of a whole turn: 360 for degrees, 2 pi for radians, 24 for hours of the day.

    Returns:
        `[points, 2]`.

    >>> features = circle_features(torch.tensor([0.0, 359.0]), sigma=10.0)
    >>> round(float((features[0] - features[1]).norm()), 4)
    0.1
    """
    check_tensor("angles", angles)
    if angles.dim() != 1 or not angles.dtype.is_floating_point:
        raise InputError(f"angles must be floating [points], got {angles.dtype} of shape {tuple(angles.shape)}")
    turn = angles * (2 * math.pi / _check_positive("period", period))
    return torch.stack([turn.cos(), turn.sin()], dim=-1) * (period / (2 * math.pi * _check_positive("sigma", sigma)))


def rotation_features(
    height: int, width: int, angles: Tensor, sigma_space: float = 1.0, sigma_angle: float = 10.0
) -> Tensor:
    """Where the pixels of an image lie in a stack of its rotated versions: (y, x, angle).

    Rotating the image moves it along the stack: a filter over these features sees every rotation of what it looks for.

    Args:
        height: number of rows.
        width: number of columns.
        angles: floating `[levels]`, degrees counterclockwise about the middle of the image, one for each version.
        sigma_space: pixels per feature unit.
        sigma_angle: degrees per feature unit.

    Returns:
        `[levels * height * width, 3]`, the levels one after another; like `angles`.

    >>> rotation_features(1, 3, torch.tensor([0.0, 90.0])).round(decimals=4)[:, :2].abs().tolist()
    [[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 1.0], [0.0, 1.0], [1.0, 1.0]]
    """
    turn = torch.deg2rad(_check_levels("angles", angles))
    # (y, x) moves to (y cos - x sin, y sin + x cos), y being down
    matrix = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], dim=1).reshape(-1, 2, 2)
    return _stack(height, width, matrix, sigma_space, angles / _check_positive("sigma_angle", sigma_angle))


def log_scale_features(
    height: int, width: int, log_scales: Tensor, sigma_space: float = 1.0, sigma_scale: float = 0.1
) -> Tensor:
    """Where the pixels of an image lie in a stack of its scaled versions: (y, x, logarithm of the scale).

    Scaling the image moves it along the stack, as far as the logarithm of the factor.

    Args:
        height: number of rows.
        width: number of columns.
        log_scales: floating `[levels]`, natural logarithms of the factors about the middle of the image.
        sigma_space: pixels per feature unit.
        sigma_scale: logarithm per feature unit; 0.1 is about 10 percent.

    Returns:
        `[levels * height * width, 3]`, the levels one after another; like `log_scales`.

    >>> log_scale_features(1, 3, torch.tensor([2.0]).log())[:, 1].tolist()
    [-1.0, 1.0, 3.0]
    """
    factors = _check_levels("log_scales", log_scales).exp()
    matrix = factors[:, None, None] * torch.eye(2, dtype=factors.dtype, device=factors.device)
    return _stack(height, width, matrix, sigma_space, log_scales / _check_positive("sigma_scale", sigma_scale))


def lattice_step(dimension: int) -> float:
    """Feature units between a lattice point and the next one along the last feature.

    Moving the last feature of all points by this moves the lattice onto itself, and the result of any filter with it.

    >>> round(lattice_step(3), 4)
    1.0607
    """
    return math.sqrt(1.5 * dimension / (dimension + 1))


def whole_steps_sigma(sigma: float, period: float = 360.0, dimension: int = 3) -> float:
    """The bandwidth next to `sigma` that divides `period` into whole lattice steps along the last feature.

    With it, a signal of that period that is repeated beyond its ends is filtered without a seam: results at t and at
    t + period are the same, whatever the filter.

    >>> sigma = whole_steps_sigma(10.0)
    >>> round(sigma, 3), round(360 / (sigma * lattice_step(3)), 6)
    (9.983, 34.0)
    """
    steps = max(
        1, round(_check_positive("period", period) / (_check_positive("sigma", sigma) * lattice_step(dimension)))
    )
    return period / (steps * lattice_step(dimension))


def _stack(height: int, width: int, matrices: Tensor, sigma_space: float, last: Tensor) -> Tensor:
    """Positions moved by each of `matrices [levels, 2, 2]` about the middle, joined with `last [levels]`."""
    positions = position_features(height, width, device=last.device, dtype=last.dtype)
    middle = torch.tensor([(height - 1) / 2, (width - 1) / 2], device=last.device, dtype=last.dtype)
    moved = (positions - middle) @ matrices.transpose(1, 2) + middle
    moved = moved / _check_positive("sigma_space", sigma_space)
    return torch.cat([moved, last[:, None, None].expand(-1, height * width, 1)], dim=2).flatten(0, 1)


def _check_levels(name: str, levels: Tensor) -> Tensor:
    check_tensor(name, levels)
    if levels.dim() != 1 or not levels.dtype.is_floating_point:
        raise InputError(f"{name} must be floating [levels], got {levels.dtype} of shape {tuple(levels.shape)}")
    return levels


def _check_positive(name: str, number: float) -> float:
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{name} must be positive and finite, got {number}")
    return number


def in_units_of(features: Tensor, sigma: Sigma) -> Tensor:
    """`features [..., dimension]` divided by `sigma`, which is one number or `[dimension]`.

    >>> in_units_of(torch.tensor([[2.0, 3.0]]), (2.0, 1.0)).tolist()
    [[1.0, 3.0]]
    """
    dimension = features.shape[-1]
    if isinstance(sigma, Tensor):
        if sigma.dim() > 1 or sigma.numel() not in (1, dimension):
            raise InputError(f"sigma must be one number or one for each of {dimension}, got {tuple(sigma.shape)}")
        return features / _positive_tensor(sigma).to(features.dtype)
    numbers = numbers_of(sigma, dimension)
    if len(set(numbers)) == 1:
        return features / numbers[0]
    return features / torch.tensor(numbers, dtype=features.dtype, device=features.device)


def numbers_of(sigma: Sigma, dimension: int) -> list[float]:
    """`sigma` as a positive number for each of `dimension` axes; a tensor is read.

    >>> numbers_of(2.0, 3)
    [2.0, 2.0, 2.0]
    """
    numbers = _read_numbers(sigma)
    if len(numbers) not in (1, dimension):
        raise InputError(f"sigma must be one number or one for each of {dimension}, got {len(numbers)}")
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise InputError(f"sigma must be positive and finite, got {sigma}")
    return numbers * dimension if len(numbers) == 1 else numbers


def _positive_tensor(sigma: Tensor) -> Tensor:
    """The tensor, once it is known to be positive and finite."""
    fits = (sigma > 0) & (sigma < torch.inf)
    if is_traced() or sigma.device.type != "cpu":
        # it stays unread: a learned sigma must not stop compilation or wait for a GPU; no lattice takes NaN
        return torch.where(fits, sigma, torch.nan)
    if not bool(fits.all()):
        raise InputError(f"sigma must be positive and finite, got {sigma.tolist()}")
    return sigma


def _read_numbers(sigma: Sigma) -> list[float]:
    try:
        given = np.asarray(sigma.tolist() if isinstance(sigma, Tensor) else sigma, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"sigma must be one number or one for each dimension, got {sigma!r}") from error
    if given.ndim > 1:
        raise InputError(f"sigma must be one number or one for each dimension, got an array of shape {given.shape}")
    return [float(number) for number in given.reshape(-1)]
