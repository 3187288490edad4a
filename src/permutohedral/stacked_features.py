"""Features of stacks: transformed versions of an image, with what was done to it as a third coordinate.

Units are those of `features.py`: one standard deviation of the Gaussian.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.features import position_features
from permutohedral.tensors import check_tensor


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
