"""Gridding with the kernel of Kaiser and Bessel: the standard way from samples of a spectrum to an image.

The samples, each times the area it stands for, are spread onto an oversampled grid with a kernel of a few cells; the
inverse Fourier transform of the grid is divided by that of the kernel. The shape of the kernel follows Beatty,
Nishimura and Pauly (2005), the iterative density compensation Pipe and Menon (1999). Nothing here is learned.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from permutohedral.errors import InputError


class KaiserBesselGridding:
    """Approximates x_n = 1 / size * sum_i areas_i s_i exp(2 pi i k_i n / size), the adjoint of the measurement.

    Args:
        size: of the image.
        width: of the kernel, in cells of the oversampled grid.
        oversampling: cells of the grid per pixel and axis.

    >>> gridding = KaiserBesselGridding(size=8)
    >>> image = gridding(torch.ones(1, 1, dtype=torch.complex128), torch.zeros(1, 2), torch.ones(1))
    >>> bool(torch.allclose(image.real, torch.full((1, 8, 8), 1 / 8, dtype=torch.float64), atol=1e-4))
    True
    """

    def __init__(self, size: int, width: int = 6, oversampling: float = 2.0) -> None:
        if width < 2 or not oversampling > 1:
            raise InputError(f"width must be at least 2 and oversampling above 1, got {width} and {oversampling}")
        self.size, self.width = size, width
        self.cells = 2 * math.ceil(oversampling * size / 2)
        ratio = self.cells / size
        self.beta = math.pi * math.sqrt((width / ratio * (ratio - 0.5)) ** 2 - 0.8)

    def __call__(self, samples: Tensor, positions: Tensor, areas: Tensor) -> Tensor:
        """Make images from samples.

        Args:
            samples: complex `[batch, points]`.
            positions: `[points, 2]`, in cycles over the image.
            areas: `[points]`, what each sample stands for.

        Returns:
            complex128 `[batch, size, size]`.
        """
        cell, weight = self.spread(positions)
        values = (samples * areas)[:, :, None].to(torch.complex128) * weight
        grid = values.new_zeros(len(samples), self.cells**2)
        grid = grid.index_add(1, cell.flatten(), values.flatten(1)).unflatten(1, (self.cells, self.cells))
        # the sum over cells lacks the factor 1 / cells^2 of the inverse transform
        image = centered_inverse(grid) * self.cells**2 / self.size
        first = (self.cells - self.size) // 2
        apodization = self.apodization().to(image.device)
        part = image[:, first : first + self.size, first : first + self.size]
        return part / (apodization[:, None] * apodization)

    def spread(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cells in reach of each sample, int64 `[points, width^2]`, and the kernel there."""
        place = positions.double() * (self.cells / self.size) + self.cells // 2
        first = torch.floor(place - self.width / 2).long() + 1
        cells = first[:, :, None] + torch.arange(self.width, device=positions.device)
        weight = self.kernel(place[:, :, None] - cells)
        # the spectrum of an image of whole pixels is periodic
        cells = cells % self.cells
        cell = cells[:, 0, :, None] * self.cells + cells[:, 1, None, :]
        return cell.flatten(1), (weight[:, 0, :, None] * weight[:, 1, None, :]).flatten(1)

    def kernel(self, distance: Tensor) -> Tensor:
        """Return the kernel of one axis at a distance in cells."""
        inside = (1 - (2 * distance / self.width).square()).clamp_min(0)
        value = torch.special.i0(self.beta * inside.sqrt()) / self.width
        return torch.where(distance.abs() <= self.width / 2, value, 0.0)

    def apodization(self) -> Tensor:
        """Return the Fourier transform of the kernel at the pixels of one axis, float64 `[size]`."""
        pixels = torch.arange(self.size, dtype=torch.float64) - self.size // 2
        square = self.beta**2 - (math.pi * self.width * pixels / self.cells).square()
        # sinh(z) / z of an imaginary z is sin(|z|) / |z|
        root = square.abs().sqrt().clamp_min(1e-12)
        return torch.where(square > 0, torch.sinh(root) / root, torch.sin(root) / root)


def pipe_menon_areas(positions: Tensor, size: int, width: int = 4, iterations: int = 30) -> Tensor:
    """Find areas under which the samples, spread with the kernel, add up to one.

    Args:
        positions: `[points, 2]`, in cycles over an image of `size` pixels.
        size: of the image.
        width: of the kernel in cells of a grid oversampled twice.
        iterations: of areas / (kernel * areas).

    Returns:
        float64 `[points]`.

    >>> pipe_menon_areas(torch.cartesian_prod(torch.arange(-4.0, 4.0), torch.arange(-4.0, 4.0)), size=8).shape
    torch.Size([64])
    """
    gridding = KaiserBesselGridding(size, width)
    cell, weight = gridding.spread(positions)
    areas = torch.ones(len(positions), dtype=torch.float64)
    for _ in range(iterations):
        grid = torch.zeros(gridding.cells**2, dtype=torch.float64)
        grid = grid.index_add(0, cell.flatten(), (areas[:, None] * weight).flatten())
        areas = areas / (grid[cell] * weight).sum(dim=1)
    # a grid of ones, spread and read, weighs each cell by the square of the kernel's sum; a cell has an area, too
    mass = (math.sinh(gridding.beta) / gridding.beta) ** 4
    return areas * mass * (size / gridding.cells) ** 2


def centered_inverse(spectrum: Tensor) -> Tensor:
    """Apply the inverse Fourier transform over the last two axes, with the origins in the middle."""
    axes = (-2, -1)
    image: Tensor = torch.fft.fftshift(torch.fft.ifft2(torch.fft.ifftshift(spectrum, dim=axes)), dim=axes)
    return image
