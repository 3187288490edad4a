"""Synthetic images with sharp edges: random ellipses to train with, and the phantom of Shepp and Logan."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from permutohedral.errors import InputError

# samples per pixel and axis, so that edges are smooth over one pixel
_FINENESS = 3


def random_phantom(size: int, generator: torch.Generator) -> Tensor:
    """Draw a bright rim with ellipses of random gray values inside it: float32 `[size, size]` in [0, 1].

    >>> random_phantom(16, torch.Generator().manual_seed(0)).shape
    torch.Size([16, 16])
    """
    line = (torch.arange(size * _FINENESS) + 0.5) / (size * _FINENESS) * 2 - 1
    y, x = torch.meshgrid(line, line, indexing="ij")

    def draw(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    def fill(center: tuple[float, float], radii: tuple[float, float], turn: float, gray: float) -> Tensor:
        along = (y - center[0]) * math.cos(turn) + (x - center[1]) * math.sin(turn)
        across = (x - center[1]) * math.cos(turn) - (y - center[0]) * math.sin(turn)
        return gray * ((along / radii[0]).square() + (across / radii[1]).square() <= 1).float()

    turn, radii = draw(0, math.pi), (draw(0.6, 0.95), draw(0.5, 0.95))
    middle = (draw(-0.05, 0.05), draw(-0.05, 0.05))
    rim, gray = draw(0.3, 1.0), draw(0.1, 0.6)
    thickness = draw(0.03, 0.12)
    inner = (radii[0] - thickness, radii[1] - thickness)
    picture = fill(middle, radii, turn, rim) + fill(middle, inner, turn, gray - rim)
    for _ in range(int(draw(4, 13))):
        small = (draw(0.03, 0.3), draw(0.03, 0.3))
        distance, angle = draw(0, 0.6) * min(inner), draw(0, 2 * math.pi)
        place = (middle[0] + distance * math.sin(angle), middle[1] + distance * math.cos(angle))
        picture = picture + fill(place, small, draw(0, math.pi), draw(-0.3, 0.4))
    return torch.nn.functional.avg_pool2d(picture[None], _FINENESS)[0].clamp(0, 1)


def shepp_logan(size: int) -> Tensor:
    """Return the phantom of Shepp and Logan, from scikit-image: float32 `[size, size]` in [0, 1].

    >>> shepp_logan(64).shape
    torch.Size([64, 64])
    """
    from skimage.data import shepp_logan_phantom

    pixels = shepp_logan_phantom().astype(np.float64)
    extent = pixels.shape[0]
    if not 8 <= size <= extent:
        raise InputError(f"size must lie between 8 and {extent}, got {size}")
    # means over whole pixels, on a black border
    step = math.ceil(extent / size)
    border = step * size - extent
    pixels = np.pad(pixels, (border // 2, border - border // 2))
    return torch.from_numpy(pixels.reshape(size, step, size, step).mean(axis=(1, 3))).float().clamp(0, 1)
