"""Networks that make an image from samples on a trajectory: filters on lattices read them, a spatial network refines.

All take `values [batch, points, channels]` of a batch measured at the same `positions [points, 2]`, (y, x) from the
center, with `areas [points, weights]`, what each sample stands for, and return `[batch, size, size]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import permutohedral as ph
from experiments.mri.kaiser_bessel import KaiserBesselGridding, centered_inverse
from experiments.mri.measurements import field_of_view
from permutohedral.errors import InputError
from permutohedral.lattice.geometry import step_positions, tap_positions


def centered_grid(size: int, step: float = 1.0) -> Tensor:
    """Return the places of a grid around its center, `[(size / step)^2, 2]`, in row order.

    >>> centered_grid(2).tolist()
    [[-1.0, -1.0], [-1.0, 0.0], [0.0, -1.0], [0.0, 0.0]]
    """
    number = round(size / step)
    line = (torch.arange(number, dtype=torch.float32) - number // 2) * step
    return torch.cartesian_prod(line, line)


class Refinement(nn.Module):
    """A small network of three resolutions, added to the first channel of its input.

    Args:
        in_channels: of the input.
        channels: at full, half and quarter resolution.

    >>> Refinement(3, (4, 8, 8))(torch.rand(2, 3, 16, 16)).shape
    torch.Size([2, 16, 16])
    """

    def __init__(self, in_channels: int, channels: Sequence[int] = (16, 32, 64)) -> None:
        super().__init__()
        if len(channels) != 3:
            raise InputError(f"channels must give three numbers, got {list(channels)}")
        fine, middle, coarse = channels
        self.head = nn.Conv2d(in_channels, fine, 3, padding=1)
        self.down = nn.ModuleList([_Block(fine), _Block(middle)])
        self.shrink = nn.ModuleList([nn.Conv2d(fine, middle, 2, 2), nn.Conv2d(middle, coarse, 2, 2)])
        self.bottom = nn.Sequential(_Block(coarse), _Block(coarse))
        self.grow = nn.ModuleList([nn.ConvTranspose2d(coarse, middle, 2, 2), nn.ConvTranspose2d(middle, fine, 2, 2)])
        self.up = nn.ModuleList([_Block(middle), _Block(fine)])
        self.tail = nn.Conv2d(fine, 1, 3, padding=1)
        # training starts from the input
        with torch.no_grad():
            for parameter in self.tail.parameters():
                parameter.zero_()

    def forward(self, image: Tensor) -> Tensor:
        """Map `[batch, in_channels, height, width]`, both multiples of 4, to `[batch, height, width]`."""
        hidden, kept = self.head(image), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            hidden = block(hidden)
            kept.append(hidden)
            hidden = shrink(hidden)
        hidden = self.bottom(hidden)
        for block, grow in zip(self.up, self.grow, strict=True):
            hidden = block(grow(hidden) + kept.pop())
        refined: Tensor = image[:, 0] + self.tail(hidden)[:, 0]
        return refined


class _Block(nn.Module):
    """x + convolution(relu(convolution(relu(x)))), of 3 x 3 filters."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = hidden + self.second(F.relu(self.first(F.relu(hidden))))
        return output


class ScatteredReconstruction(nn.Module):
    """Read samples of an image through lattices of several scales, and refine the result.

    On each lattice a learned filter sees, at every lattice point, the mean of the samples there and whether there are
    any. The image that the network starts from is made by Gaussians on the same lattices, coarse ones filling the gaps
    that finer ones leave; how much a finer one counts is learned.

    Args:
        size: of the image.
        scales: pixels per lattice step, from fine to coarse.
        lattice_channels: that each lattice adds to the input of the network.
        channels: of `Refinement`; none leaves the lattices alone, with a learned sum of their channels.

    >>> model = ScatteredReconstruction(16, lattice_channels=2, channels=(4, 4, 4))
    >>> model(torch.rand(2, 50, 1), torch.rand(50, 2) * 15 - 7.5).shape
    torch.Size([2, 16, 16])
    """

    def __init__(
        self,
        size: int,
        scales: Sequence[float] = (0.5, 1.0, 2.0, 4.0, 8.0),
        lattice_channels: int = 6,
        channels: Sequence[int] | None = (16, 32, 64),
    ) -> None:
        super().__init__()
        if not scales or min(scales) <= 0:
            raise InputError(f"scales must be positive and at least one, got {list(scales)}")
        self.size, self.scales = size, tuple(scales)
        self.register_buffer("pixels", centered_grid(size) + (size // 2 - (size - 1) / 2), persistent=False)
        self.pixels: Tensor
        self.filters = nn.ModuleList(
            ph.nn.PermutohedralConv(2, lattice_channels, 2, neighborhood_size=2) for _ in self.scales
        )
        # the mass of samples at which a finer lattice counts as much as the coarser ones
        self.log_prior = nn.Parameter(torch.full((len(self.scales),), -1.0))
        inputs = 1 + len(self.scales) * (lattice_channels + 1)
        self.finish = _finish(inputs, channels)

    def forward(self, values: Tensor, positions: Tensor, areas: Tensor | None = None) -> Tensor:
        """Make images from `values [batch, points, 1]`; the areas play no part."""
        lattices = [self._build(positions.to(self.pixels), scale) for scale in self.scales]
        known = torch.cat([values, torch.ones_like(values)], dim=2)
        filled, masses = self._fill(known, lattices)
        # around the middle of gray values, where the network is not to see an edge between samples and nothing
        centered = torch.cat([values - 0.5, torch.ones_like(values)], dim=2)
        read = [learned(centered, lattice) for learned, lattice in zip(self.filters, lattices, strict=True)]
        image: Tensor = self.finish(self._to_image(torch.cat([filled, *masses, *read], dim=2)))
        return image

    def _build(self, positions: Tensor, scale: float) -> ph.Lattice:
        return ph.build_lattice(positions / scale, self.pixels / scale, neighborhood_size=2)

    def _fill(self, known: Tensor, lattices: list[ph.Lattice]) -> tuple[Tensor, list[Tensor]]:
        """Return values that Gaussians give the pixels, `[batch, pixels, 1]`, and the mass at each scale."""
        filled = known[:, :, :1].mean(dim=1, keepdim=True)
        masses = []
        for lattice, prior in zip(reversed(lattices), self.log_prior.exp().flip(0), strict=True):
            blurred = ph.gaussian_filter(known, lattice, normalization="none", method="dense")
            total, mass = blurred.split(1, dim=2)
            filled = (total + prior * filled) / (mass + prior)
            masses.append(mass / (mass + 1))
        return filled, masses

    def _to_image(self, rows: Tensor) -> Tensor:
        return rows.transpose(1, 2).reshape(len(rows), -1, self.size, self.size)


class SpectrumReconstruction(nn.Module):
    """Grid samples of a spectrum with a learned filter on the lattice, transform them back, and refine the image.

    The filter takes the two parts of each complex sample, times each of its areas, to several complex channels on a
    grid oversampled twice. It starts as the Gaussian, under which the images are divided by its Fourier transform.

    Args:
        size: of the image.
        areas: how many density compensations come with each sample; training starts from the first alone.
        spectra: complex channels that the filter makes.
        scale: cycles over the image per lattice step.
        channels: of `Refinement`; none leaves the gridding alone, with a learned sum of its channels.

    >>> model = SpectrumReconstruction(16, areas=1, spectra=2, channels=(4, 4, 4))
    >>> model(torch.rand(2, 50, 2), torch.rand(50, 2) * 15 - 7.5, torch.ones(50, 1)).shape
    torch.Size([2, 16, 16])
    """

    def __init__(
        self,
        size: int,
        areas: int = 2,
        spectra: int = 4,
        scale: float = 0.5,
        channels: Sequence[int] | None = (16, 32, 64),
    ) -> None:
        super().__init__()
        if spectra < 1 or not scale > 0:
            raise InputError(f"spectra must be at least 1 and scale positive, got {spectra} and {scale}")
        self.size, self.scale, self.spectra = size, scale, spectra
        self.register_buffer("grid", centered_grid(size, 0.5), persistent=False)
        # beyond the field of view there is nothing to divide
        gain = field_of_view(size) / lattice_apodization(size, scale).clamp_min(1e-6)
        self.register_buffer("gain", gain, persistent=False)
        self.register_buffer("field", field_of_view(size), persistent=False)
        self.grid: Tensor
        self.gain: Tensor
        self.field: Tensor
        self.filter = ph.nn.PermutohedralConv(
            2 * areas, 2 * spectra, 2, neighborhood_size=2, bias=False, normalization="none"
        )
        taps = ph.lattice.gaussian_weight(2, 2, torch.float32)
        with torch.no_grad():
            self.filter.weight.mul_(0.1 * float(taps.max()))
            self.filter.weight[:, :, :2] = 0.0
            for part in range(2):
                self.filter.weight[:, part, part] = taps
        self.finish = _finish(2 * spectra, channels)

    def forward(self, values: Tensor, positions: Tensor, areas: Tensor) -> Tensor:
        """Make images from `values [batch, points, 2]` with `areas [points, areas]`."""
        image: Tensor = self.finish(self.transform(values, positions, areas))
        return image * self.field

    def transform(self, values: Tensor, positions: Tensor, areas: Tensor) -> Tensor:
        """Return real and imaginary parts of the gridded images, `[batch, 2 spectra, size, size]`."""
        weighted = (areas.to(values)[:, :, None] * values[:, :, None, :]).flatten(2)
        lattice = ph.build_lattice(positions.to(self.grid) / self.scale, self.grid / self.scale, neighborhood_size=2)
        gridded = self.filter(weighted, lattice)
        cells = 2 * self.size
        parts = gridded.transpose(1, 2).reshape(len(values), self.spectra, 2, cells, cells)
        spectra = torch.complex(parts[:, :, 0], parts[:, :, 1])
        first = self.size // 2
        images = centered_inverse(spectra)[..., first : first + self.size, first : first + self.size]
        # the sum over cells lacks the factor 1 / cells^2 of the inverse transform; a cell has an area of 1 / 4
        images = images * (self.gain * cells**2 / 4 / self.size)
        return torch.view_as_real(images).permute(0, 1, 4, 2, 3).flatten(1, 2)


class GriddedNetwork(nn.Module):
    """Apply the same spatial network after gridding with the kernel of Kaiser and Bessel: the baseline.

    Args:
        size: of the image.
        areas: see `SpectrumReconstruction`; each makes an image of its own.
        channels: of `Refinement`.

    >>> GriddedNetwork(16, 1, (4, 4, 4))(torch.rand(2, 50, 2), torch.rand(50, 2), torch.ones(50, 1)).shape
    torch.Size([2, 16, 16])
    """

    def __init__(self, size: int, areas: int = 2, channels: Sequence[int] = (16, 32, 64)) -> None:
        super().__init__()
        self.gridding = KaiserBesselGridding(size)
        self.register_buffer("field", field_of_view(size), persistent=False)
        self.field: Tensor
        self.finish = Refinement(2 * areas, channels)

    def forward(self, values: Tensor, positions: Tensor, areas: Tensor) -> Tensor:
        """Make images from `values [batch, points, 2]`."""
        samples = torch.view_as_complex(values.contiguous())
        images = torch.stack([self.gridding(samples, positions, weight) for weight in areas.unbind(1)], dim=1)
        parts = torch.view_as_real(images).permute(0, 1, 4, 2, 3).flatten(1, 2).to(values)
        image: Tensor = self.finish(parts * self.field)
        return image * self.field


def lattice_apodization(size: int, scale: float) -> Tensor:
    """Return the Fourier transform of splat, Gaussian and slice at the pixels: float32 `[size, size]`.

    Splatting and slicing interpolate linearly in the triangles of the lattice. That kernel is a box spline, the
    convolution of segments along the three axes u_j, so its transform is the product of sinc(u_j . x); the taps at
    o_t add sum_t w_t cos(2 pi o_t . x). This is the mean over all positions of a sample relative to the lattice.

    Args:
        size: of the image.
        scale: cycles over the image per lattice step.

    >>> expected = ph.lattice.gaussian_weight(2, 2).sum().float() * 0.75**0.5
    >>> bool(torch.isclose(lattice_apodization(8, 1.0)[4, 4], expected))
    True
    """
    offsets, axes = tap_positions(ph.lattice.Neighborhood(2, 2)), step_positions(2)
    frequencies = centered_grid(size).double() * scale / size
    interpolation = torch.sinc(frequencies @ axes.T).prod(dim=1)
    taps = torch.cos(2 * math.pi * frequencies @ offsets.T) @ ph.lattice.gaussian_weight(2, 2, torch.float64)
    # a lattice point has a cell of the area sin(120 degrees); slicing and splatting interpolate once each
    transform = math.sqrt(0.75) * scale**2 * interpolation.square() * taps
    return transform.reshape(size, size).float()


class _Sum(nn.Module):
    """A learned sum of channels, added to the first."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(in_channels))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, image: Tensor) -> Tensor:
        return image[:, 0] + torch.einsum("bchw,c->bhw", image, self.weights) + self.bias


def _finish(in_channels: int, channels: Sequence[int] | None) -> nn.Module:
    return _Sum(in_channels) if channels is None else Refinement(in_channels, channels)
