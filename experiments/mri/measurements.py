"""Measurements of an image at given positions: its values, or its spectrum, both without noise."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def measure_image(images: Tensor, positions: Tensor) -> Tensor:
    """Sample images between their pixels, by cubic convolution.

    Args:
        images: `[batch, size, size]`.
        positions: `[points, 2]`, (y, x) from the center of the image, inside it.

    Returns:
        `[batch, points, 1]`, of the dtype of the images.

    >>> image = torch.arange(8.0).expand(1, 8, 8)
    >>> round(float(measure_image(image, torch.tensor([[0.0, 1.0]]))), 4)
    4.5
    """
    # torch counts from -1 to 1, x first
    places = (positions.to(images) * 2 / (images.shape[-1] - 1)).flip(-1)
    places = places.expand(len(images), 1, -1, 2)
    sampled = F.grid_sample(images[:, None], places, mode="bicubic", padding_mode="border", align_corners=True)
    return sampled[:, 0, 0, :, None]


def measure_spectrum(images: Tensor, positions: Tensor, dtype: torch.dtype = torch.complex128) -> Tensor:
    """Compute the spectrum of images exactly: s(k) = 1 / size * sum_n x_n exp(-2 pi i k n / size).

    Pixel number `size / 2` of either axis is n = 0. The sum is separable, so it costs two products of matrices.

    Args:
        images: real `[batch, size, size]`.
        positions: `[points, 2]`, frequencies (y, x) in cycles over the image.
        dtype: of the sum and the result.

    Returns:
        complex `[batch, points]`.

    >>> measure_spectrum(torch.ones(1, 8, 8), torch.zeros(1, 2)).real.tolist()
    [[8.0]]
    """
    size = images.shape[-1]
    along_y, along_x = (matrix.to(dtype) for matrix in spectrum_matrices(size, positions))
    by_row = torch.einsum("pn,bnm->bpm", along_y, images.to(dtype))
    return (by_row * along_x).sum(dim=-1) / size


def field_of_view(size: int, edge: float = 0.0) -> Tensor:
    """Return the disc that is measured of an image: float32 `[size, size]`, 1 inside and 0 outside.

    Args:
        size: of the image.
        edge: pixels over which it falls from 1 to 0.

    >>> field_of_view(8)[4].tolist()
    [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    line = torch.arange(size) - size // 2
    inside = size / 2 - (line[:, None].square() + line.square()).sqrt()
    return (inside / edge).clamp(0, 1) if edge > 0 else (inside > 0).float()


def spectrum_matrices(size: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return exp(-2 pi i k n / size) of either axis, complex128 `[points, size]`."""
    pixels = torch.arange(size, dtype=torch.float64, device=positions.device) - size // 2
    angle = -2 * math.pi / size * positions.double()[:, :, None] * pixels
    waves = torch.polar(torch.ones_like(angle), angle)
    return waves[:, 0], waves[:, 1]
