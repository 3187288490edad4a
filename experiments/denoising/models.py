"""Denoisers of the paper's Table (b): a spatial filter, a filter on the lattice, or the sum of both.

All map noisy gray images `[batch, 1, height, width]` to the same shape, and are linear in their weights.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import permutohedral as ph
from permutohedral.errors import InputError


class SpatialDenoiser(nn.Module):
    """Convolve with one spatial filter: the paper's "CNN".

    Args:
        size: width of the filter, odd; 5 has 25 weights.
        padding_mode: see `torch.nn.Conv2d`.

    >>> SpatialDenoiser()(torch.rand(1, 1, 8, 9)).shape
    torch.Size([1, 1, 8, 9])
    """

    def __init__(self, size: int = 5, padding_mode: str = "replicate") -> None:
        super().__init__()
        if size < 1 or size % 2 == 0:
            raise InputError(f"size must be odd and positive, got {size}")
        self.padding_mode = "constant" if padding_mode == "zeros" else padding_mode
        self.weight = nn.Parameter(torch.full((1, 1, size, size), 1 / size**2))

    def pad(self, noisy: Tensor) -> Tensor:
        """Pad by half the width of the filter."""
        margin = self.weight.shape[-1] // 2
        return F.pad(noisy, (margin,) * 4, mode=self.padding_mode)

    def forward(self, noisy: Tensor, origin: tuple[int, int] = (0, 0)) -> Tensor:
        """Filter `noisy [batch, 1, height, width]`; `origin` has no effect."""
        return F.conv2d(self.pad(_check(noisy)), self.weight)


class PermutohedralDenoiser(nn.Module):
    """Convolve over position and noisy gray value: the paper's "PCNN".

    It starts as the Gaussian bilateral filter ("PCNN Gauss"). The output is divided by the Gaussian filter of ones for
    any weights. The layer of the paper's authors does so with `norm_type: AFTER`; its default is symmetric.

    Args:
        sigma_space: standard deviation over positions, in pixels.
        sigma_color: standard deviation over gray values; white is 1.
        neighborhood_size: s of the filter; 2 has 65 weights.
        learn_sigma: also train a factor for each of the three features.

    >>> PermutohedralDenoiser()(torch.rand(1, 1, 8, 9)).shape
    torch.Size([1, 1, 8, 9])
    """

    def __init__(
        self,
        sigma_space: float = 1.5,
        sigma_color: float = 0.25,
        neighborhood_size: int = 2,
        learn_sigma: bool = False,
    ) -> None:
        super().__init__()
        self.sigma_space, self.sigma_color = sigma_space, sigma_color
        self.convolution = ph.nn.PermutohedralConv(
            in_channels=1,
            out_channels=1,
            dimension=3,
            neighborhood_size=neighborhood_size,
            bias=False,
            init="gaussian",
            normalization="homogeneous",
            learn_sigma=learn_sigma,
        )

    def features(self, noisy: Tensor, origin: tuple[int, int] = (0, 0)) -> Tensor:
        """Return position and gray value in standard deviations, `[batch, height * width, 3]`.

        `origin` is (y, x) of the first pixel, for a tile on the lattice of the whole image.
        """
        height, width = noisy.shape[-2:]
        shift = torch.tensor(origin, dtype=noisy.dtype, device=noisy.device)
        position = ph.features.positions((height, width), 1.0, device=noisy.device, dtype=noisy.dtype) + shift
        return ph.features.join(position / self.sigma_space, ph.features.colors(noisy, self.sigma_color))

    def forward(self, noisy: Tensor, origin: tuple[int, int] = (0, 0)) -> Tensor:
        """Filter `noisy [batch, 1, height, width]`, whose first pixel lies at `origin` (y, x)."""
        features = self.features(_check(noisy), origin)
        filtered: Tensor = self.convolution(noisy.flatten(2).transpose(1, 2), features)
        return filtered.transpose(1, 2).reshape(len(noisy), -1, *noisy.shape[-2:])


class CombinedDenoiser(nn.Module):
    """Sum a permutohedral and a spatial convolution: the paper's "PCNN + CNN".

    It starts as "PCNN Gauss". `SpatialDenoiser` has the arguments by name, `PermutohedralDenoiser` the others.

    >>> sum(parameter.numel() for parameter in CombinedDenoiser().parameters())
    90
    """

    def __init__(self, *sigmas: Any, size: int = 5, padding_mode: str = "replicate", **options: Any) -> None:
        super().__init__()
        self.permutohedral = PermutohedralDenoiser(*sigmas, **options)
        self.spatial = SpatialDenoiser(size, padding_mode)
        nn.init.zeros_(self.spatial.weight)

    def forward(self, noisy: Tensor, origin: tuple[int, int] = (0, 0)) -> Tensor:
        """Filter `noisy [batch, 1, height, width]`, whose first pixel lies at `origin` (y, x)."""
        filtered: Tensor = self.permutohedral(noisy, origin) + self.spatial(noisy)
        return filtered


def _check(noisy: Tensor) -> Tensor:
    if noisy.dim() != 4 or noisy.shape[1] != 1:
        raise InputError(f"noisy must be gray images [batch, 1, height, width], got shape {tuple(noisy.shape)}")
    return noisy
