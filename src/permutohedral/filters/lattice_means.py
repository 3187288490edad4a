"""Pictures on the lattice, with pixels of rare colors by the definition: for the automatic method."""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.filters.exact import Window, divide_by_mass, pictures_of, repaired_rows
from permutohedral.filters.normalization import SEPARABLE, SMALLEST_MASS, Normalization, apply_step
from permutohedral.lattice import build_lattice
from permutohedral.ops.fused_filters import filter_points_with_mass


def filter_and_repair(
    values: Tensor, normalization: Normalization, features: Tensor, window: Window, pairs: float
) -> Tensor:
    """The bilateral filter on the lattice, at pixels of rare colors over windows.

    Args:
        values: `[..., points, channels]`, the pixels in scan order; for a guide of several items, as many items.
        normalization: "homogeneous" or "none".
        features: `[..., points, d]`, of the guide.
        window: what the pixels look at.
        pairs: how many may be summed: see `repair`.

    Returns:
        Like values.

    >>> from permutohedral.features import bilateral_features
    >>> from permutohedral.filters.exact import window_of
    >>> picture = torch.rand(3, 4, 5)
    >>> features, window = bilateral_features(picture, 2.0, 0.1), window_of(picture, 2.0, 0.1)
    >>> filter_and_repair(picture.flatten(1).mT, "homogeneous", features, window, 9.0).shape
    torch.Size([20, 3])
    """
    if values.numel() == 0:
        return torch.zeros_like(values)
    pictures = pictures_of(values, window).flatten(2)
    items = zip(pictures.mT, features.reshape(len(pictures), -1, features.shape[-1]), strict=True)
    means, mass = zip(*(filter_with_mass(*item) for item in items), strict=True)
    return repaired_rows(torch.stack(means).mT, torch.stack(mass), values, normalization, window, pairs)


def filter_with_mass(values: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """The separable Gaussian filter of `[points, channels]`, and the mass `[points]` that it divides by.

    >>> filter_with_mass(torch.rand(9, 3), torch.rand(9, 2))[1].shape
    torch.Size([9])
    """
    found = filter_points_with_mass(values, features, SMALLEST_MASS)
    if found is not None:
        return found
    with_ones = torch.cat([values, torch.ones_like(values[:, :1])], dim=1)
    lattice = build_lattice(features, neighborhood_size=0, separable=True)
    sums = apply_step(with_ones, lattice, SEPARABLE.blur)
    return divide_by_mass(sums.mT, values.dtype).mT, sums[:, -1]
