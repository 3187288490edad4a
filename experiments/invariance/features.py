"""Features of stacks: transformed copies of an image with the transformation as a third coordinate."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import permutohedral as ph


def rotation_features(
    height: int, width: int, angles: Tensor, sigma_space: float = 1.0, sigma_angle: float = 10.0
) -> Tensor:
    """Return (y, x, angle) of the pixels of rotated copies of an image.

    Rotating the image moves it along the stack.

    Args:
        height: number of rows.
        width: number of columns.
        angles: floating `[levels]`, degrees counterclockwise about the center of the image.
        sigma_space: pixels per feature unit.
        sigma_angle: degrees per feature unit.

    Returns:
        `[levels * height * width, 3]`, one level after another.

    >>> rotation_features(1, 3, torch.tensor([0.0, 90.0])).round(decimals=4)[:, :2].abs().tolist()
    [[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 1.0], [0.0, 1.0], [1.0, 1.0]]
    """
    turn = torch.deg2rad(angles)
    # (y, x) moves to (y cos - x sin, y sin + x cos); y points down
    matrix = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], dim=1).reshape(-1, 2, 2)
    return _stack(height, width, matrix, sigma_space, angles / sigma_angle)


def log_scale_features(
    height: int, width: int, log_scales: Tensor, sigma_space: float = 1.0, sigma_scale: float = 0.1
) -> Tensor:
    """Return (y, x, logarithm of the scale) of the pixels of scaled copies of an image.

    Scaling the image moves it along the stack by the logarithm of the factor.

    Args:
        height: number of rows.
        width: number of columns.
        log_scales: floating `[levels]`, natural logarithms of the factors about the center of the image.
        sigma_space: pixels per feature unit.
        sigma_scale: logarithm per feature unit; 0.1 is about 10 percent.

    Returns:
        `[levels * height * width, 3]`, one level after another.

    >>> log_scale_features(1, 3, torch.tensor([2.0]).log())[:, 1].tolist()
    [-1.0, 1.0, 3.0]
    """
    factors = log_scales.exp()
    matrix = factors[:, None, None] * torch.eye(2, dtype=factors.dtype, device=factors.device)
    return _stack(height, width, matrix, sigma_space, log_scales / sigma_scale)


def lattice_step(dimension: int) -> float:
    """Return the feature units between neighboring lattice points along the last feature.

    Shifting the last feature of all points by this maps the lattice onto itself, and shifts the result of any filter.

    >>> round(lattice_step(3), 4)
    1.0607
    """
    return math.sqrt(1.5 * dimension / (dimension + 1))


def snap_sigma(sigma: float, period: float = 360.0, dimension: int = 3) -> float:
    """Return the bandwidth nearest to `sigma` that divides `period` into whole lattice steps.

    A periodic signal that is repeated beyond its ends is then filtered without a seam.

    >>> sigma = snap_sigma(10.0)
    >>> round(sigma, 3), round(360 / (sigma * lattice_step(3)), 6)
    (9.983, 34.0)
    """
    steps = max(1, round(period / (sigma * lattice_step(dimension))))
    return period / (steps * lattice_step(dimension))


def _stack(height: int, width: int, matrices: Tensor, sigma_space: float, last: Tensor) -> Tensor:
    """Move positions by each of `matrices [levels, 2, 2]` about the center and append `last [levels]`."""
    positions = ph.features.positions((height, width), device=last.device, dtype=last.dtype)
    center = torch.tensor([(height - 1) / 2, (width - 1) / 2], device=last.device, dtype=last.dtype)
    moved = ((positions - center) @ matrices.transpose(1, 2) + center) / sigma_space
    return torch.cat([moved, last[:, None, None].expand(-1, height * width, 1)], dim=2).flatten(0, 1)
