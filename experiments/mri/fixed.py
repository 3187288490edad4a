"""Fixed methods from samples along a trajectory to an image, as baselines of learned reconstruction.

All have the signature of the networks in `networks`, and nothing to learn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from experiments.mri.kaiser_bessel import KaiserBesselGridding, centered_inverse
from experiments.mri.measurements import field_of_view, spectrum_matrices
from experiments.mri.networks import Refinement, centered_grid
from experiments.mri.trajectories import Domain
from permutohedral.errors import InputError
from permutohedral.ops.conjugate_gradients import conjugate_gradients

FixedMethod = Literal["nearest", "linear", "kaiser_bessel", "conjugate_gradients"]


class Interpolation(nn.Module):
    """Nearest or linear interpolation at the places of the grid, by SciPy.

    In the image, pixels outside of the samples' hull take the nearest sample. In the spectrum they are zero, and the
    inverse Fourier transform follows.

    Args:
        size: of the image.
        method: "nearest" or "linear", in the triangulation of Delaunay.
        domain: "image" or "spectrum".

    >>> grid = centered_grid(8) + 0.5
    >>> image = Interpolation(8, "linear", "image")(torch.arange(64.0)[None, :, None], grid)
    >>> bool(torch.allclose(image.flatten(), torch.arange(64.0), atol=1e-4))
    True
    """

    def __init__(self, size: int, method: Literal["nearest", "linear"], domain: Domain) -> None:
        super().__init__()
        self.size, self.method, self.domain = size, method, domain
        self.places = centered_grid(size) + ((size // 2 - (size - 1) / 2) if domain == "image" else 0.0)

    def forward(self, values: Tensor, positions: Tensor, areas: Tensor | None = None) -> Tensor:
        """Make images from `values [batch, points, 1 or 2]`."""
        from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

        points, places = positions.double().cpu().numpy(), self.places.double().numpy()
        samples = values.double().cpu().transpose(0, 1).numpy()
        # NaN outside of the hull
        linear, nearest = (kind(points, samples)(places) for kind in (LinearNDInterpolator, NearestNDInterpolator))
        inside, outside = linear if self.method == "linear" else nearest, nearest if self.domain == "image" else 0.0
        grid = torch.from_numpy(np.where(np.isnan(linear), outside, inside)).to(values)
        grid = grid.transpose(0, 1).reshape(len(values), self.size, self.size, -1)
        if self.domain == "image":
            return grid[..., 0]
        # the measurement divides by the size, the inverse transform by its square
        spectrum = torch.view_as_complex(grid.contiguous())
        return centered_inverse(spectrum).real * self.size * field_of_view(self.size).to(values)


class InterpolatedNetwork(nn.Module):
    """The spatial network of the learned reconstruction behind linear interpolation: the baseline.

    Args:
        size: of the image.
        channels: of `Refinement`.

    >>> InterpolatedNetwork(16, (4, 4, 4))(torch.rand(2, 50, 1), torch.rand(50, 2) * 15 - 7.5).shape
    torch.Size([2, 16, 16])
    """

    def __init__(self, size: int, channels: tuple[int, ...] = (16, 32, 64)) -> None:
        super().__init__()
        self.interpolation = Interpolation(size, "linear", "image")
        self.finish = Refinement(2, channels)

    def forward(self, values: Tensor, positions: Tensor, areas: Tensor | None = None) -> Tensor:
        """Make images from `values [batch, points, 1]`; the network also sees how far the nearest sample is."""
        image = self.interpolation(values, positions)
        distance = torch.cdist(self.interpolation.places, positions.float().cpu()).amin(dim=1).reshape(image.shape[1:])
        refined: Tensor = self.finish(torch.stack([image, (distance / 4).to(image).expand_as(image)], dim=1))
        return refined


class KernelInterpolation(nn.Module):
    """The mean of the samples around each pixel, weighted by the kernel of Kaiser and Bessel.

    Args:
        size: of the image.
        widths: of the kernel in pixels; each pixel takes the least under which the samples weigh as much as one
            sample at the pixel itself.

    >>> KernelInterpolation(16)(torch.ones(1, 50, 1), torch.rand(50, 2) * 15 - 7.5).mean().round()
    tensor(1.)
    """

    def __init__(self, size: int, widths: tuple[float, ...] = (*range(2, 9), *range(10, 42, 3))) -> None:
        super().__init__()
        self.size, self.widths = size, tuple(widths)
        self.gridding = KaiserBesselGridding(size, width=4)

    def forward(self, values: Tensor, positions: Tensor, areas: Tensor | None = None) -> Tensor:
        """Make images from `values [batch, points, 1]`."""
        image = values.new_zeros(len(values), self.size**2, dtype=torch.float64)
        empty = torch.ones(self.size**2, dtype=torch.bool)
        enough = float(self.gridding.kernel(torch.zeros(1, dtype=torch.float64))) ** 2
        for width in self.widths:
            pixel, sample, weight = self.pairs(positions, width)
            mass = weight.new_zeros(self.size**2).index_add(0, pixel, weight)
            total = torch.zeros_like(image).index_add(1, pixel, values[:, sample, 0].double() * weight)
            # the widest kernel has the last word wherever it reaches
            taken = empty & (mass > (0.0 if width == self.widths[-1] else enough))
            image = torch.where(taken, total / mass.clamp_min(1e-12), image)
            empty = empty & ~taken
            if not bool(empty.any()):
                break
        return image.to(values).reshape(len(values), self.size, self.size)

    def pairs(self, positions: Tensor, width: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return pixels and samples within reach of each other, and the kernel there."""
        place = positions.double() + (self.size - 1) / 2
        cells = torch.ceil(place - width / 2).long()[:, :, None] + torch.arange(math.ceil(width) + 1)
        weight = self.gridding.kernel((place[:, :, None] - cells) * (self.gridding.width / width))
        weight = torch.where((cells >= 0) & (cells < self.size), weight, 0.0)
        product = weight[:, 0, :, None] * weight[:, 1, None, :]
        pixel = cells[:, 0, :, None] * self.size + cells[:, 1, None, :]
        sample = torch.arange(len(place))[:, None, None].expand_as(pixel)
        found = product > 0
        return pixel[found], sample[found], product[found]


class Gridding(nn.Module):
    """Gridding with the kernel of Kaiser and Bessel and the first of the areas, real part.

    >>> Gridding(16)(torch.rand(2, 50, 2), torch.rand(50, 2), torch.ones(50, 1)).shape
    torch.Size([2, 16, 16])
    """

    def __init__(self, size: int, width: int = 6) -> None:
        super().__init__()
        self.gridding = KaiserBesselGridding(size, width)

    def forward(self, values: Tensor, positions: Tensor, areas: Tensor) -> Tensor:
        """Make images from `values [batch, points, 2]`."""
        samples = torch.view_as_complex(values.contiguous())
        image = self.gridding(samples, positions, areas[:, 0]).real.to(values)
        return image * field_of_view(self.gridding.size).to(values)


class ConjugateGradients(nn.Module):
    """The real image inside the field of view whose spectrum fits the samples best, by conjugate gradients.

    Few iterations keep what the samples do not determine near zero. It takes the exact transform, so it is slow.

    Args:
        size: of the image.
        iterations: number of them.

    >>> ConjugateGradients(16)(torch.rand(2, 50, 2), torch.rand(50, 2) * 15 - 7.5).shape
    torch.Size([2, 16, 16])
    """

    def __init__(self, size: int, iterations: int = 15) -> None:
        super().__init__()
        self.size, self.iterations = size, iterations

    def forward(self, values: Tensor, positions: Tensor, areas: Tensor | None = None) -> Tensor:
        """Make images from `values [batch, points, 2]`."""
        along_y, along_x = spectrum_matrices(self.size, positions)
        field = field_of_view(self.size).double()

        def measure(image: Tensor) -> Tensor:
            return torch.einsum("pn,bnm,pm->bp", along_y, image.to(along_y), along_x) / self.size

        def adjoint(samples: Tensor) -> Tensor:
            image = torch.einsum("bp,pn,pm->bnm", samples, along_y.conj(), along_x.conj())
            return image.real / self.size * field

        def product(rows: Tensor) -> Tensor:
            return adjoint(measure(rows.T.reshape(-1, self.size, self.size))).flatten(1).T

        right = adjoint(torch.view_as_complex(values.double().contiguous())).flatten(1).T
        start, ones = torch.zeros_like(right), torch.ones_like(right)
        solved = conjugate_gradients(product, right, ones, start, self.iterations, tolerance=0.0)
        return solved.T.reshape(-1, self.size, self.size).to(values)


def build_fixed(method: FixedMethod, domain: Domain, size: int, options: Mapping[str, Any]) -> nn.Module:
    """Build a fixed method by name.

    >>> build_fixed("kaiser_bessel", "spectrum", 16, {"width": 4}).gridding.width
    4
    """
    if method in ("nearest", "linear"):
        return Interpolation(size, "nearest" if method == "nearest" else "linear", domain, **options)
    if method == "kaiser_bessel":
        return (KernelInterpolation if domain == "image" else Gridding)(size, **options)
    if domain == "image":
        raise InputError("conjugate gradients fit a spectrum; there are none for the image")
    return ConjugateGradients(size, **options)
