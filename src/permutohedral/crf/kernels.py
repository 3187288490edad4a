"""Pairwise kernels: similarity of points, and costs of pairs of labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.features import FEATURE_SHIFT, Sigma, check_image, unit_values
from permutohedral.features import bilateral as bilateral_features
from permutohedral.features import positions as grid_features
from permutohedral.lattice.lattice import Lattice, build_lattice
from permutohedral.lattice.tensors import check_count, check_tensor
from permutohedral.ops.tracing import is_traced

KernelNormalization = Literal["symmetric", "homogeneous", "transposed", "none"]

KERNEL_NORMALIZATIONS: tuple[KernelNormalization, ...] = ("symmetric", "homogeneous", "transposed", "none")


@dataclass(frozen=True, eq=False)
class Kernel:
    """Pairwise kernel: a Gaussian over features, and the cost of different labels at similar points.

    Two points i and j with labels a and b cost k_ij mu_ab, with `k_ij = exp(-|f_i - f_j|^2 / 2)`, normalized.

    Attributes:
        features: float32 or float64 `[points, d]`, or `[batch, points, d]` with features for each item;
            one unit is one standard deviation. Or a `Lattice` built from them with `separable=True`; see
            `with_lattice`.
        compatibility: the costs mu: a number w for w (1 - I), so that different labels cost w (the Potts model); or
            `[labels]`, the diagonal of a matrix that is zero elsewhere, so that negative numbers attract; or a matrix
            `[labels, labels]`, of which the symmetric part counts, since pairs have no order. A tensor may require
            gradients.
        normalization: as in `permutohedral_filter`, with the mass m_i = sum_j k_ij: "symmetric" has
            k_ij / sqrt(m_i m_j), "homogeneous" k_ij / m_i, "none" k_ij. "transposed" has k_ij / m_j, the transpose of
            "homogeneous": each point spreads its marginals, and so dense regions do not outvote sparse ones.
        space: the extents of the image or volume whose pixels are the points, in scan order: energies are then
            `[..., labels, *space]`. None for points: energies are then `[..., points, labels]`.
        batch: int `[points]`, the item of each point of a ragged batch; also next to a `Lattice` of such a batch.

    >>> import torch, permutohedral as ph
    >>> ph.crf.Kernel(torch.rand(100, 3), compatibility=2.0).normalization
    'symmetric'
    """

    features: Tensor | Lattice
    compatibility: float | Tensor = 1.0
    normalization: KernelNormalization = "symmetric"
    space: tuple[int, ...] | None = None
    batch: Tensor | None = None

    def __post_init__(self) -> None:
        if isinstance(self.features, Lattice):
            if self.features.axis_neighbors is None or self.features.target is not self.features.source:
                raise InputError("features: the lattice of a kernel must be built with separable=True and no targets")
        else:
            check_tensor("features", self.features)
            if self.features.dim() not in (2, 3):
                raise InputError(
                    f"features must be [points, d] or [batch, points, d], got shape {tuple(self.features.shape)}"
                )
        if self.normalization not in KERNEL_NORMALIZATIONS:
            names = ", ".join(map(repr, KERNEL_NORMALIZATIONS))
            raise InputError(f"normalization must be one of {names}, got {self.normalization!r}")
        if self.space is not None and math.prod(self.space) != self.num_points:
            raise InputError(f"space: a grid of {tuple(self.space)} does not have {self.num_points} points")
        _check_compatibility(self.compatibility)

    @property
    def num_points(self) -> int:
        """Number of points of each item."""
        if not isinstance(self.features, Lattice):
            return self.features.shape[-2]
        return self.features.source.num_points if self.num_items is None else self.features.points_per_item[0]

    @property
    def num_items(self) -> int | None:
        """Number of items that have features of their own, None if all share them."""
        if isinstance(self.features, Lattice):
            return self.features.batch_size
        return self.features.shape[0] if self.features.dim() == 3 else None

    def with_lattice(self) -> Kernel:
        """Return the kernel with its lattice built, to share it among several calls of `mean_field`."""
        return self if isinstance(self.features, Lattice) else replace(self, features=self.build_lattice())

    def build_lattice(self) -> Lattice:
        """Return the lattice of the features."""
        if isinstance(self.features, Lattice):
            return self.features
        return build_lattice(self.features, neighborhood_size=0, batch=self.batch, separable=True)


def spatial_kernel(
    space: Sequence[int],
    sigma: Sigma,
    *,
    compatibility: float | Tensor = 1.0,
    normalization: KernelNormalization = "symmetric",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Kernel:
    """Return a Gaussian kernel over positions.

    Args:
        space: the extents of the image or volume, such as (height, width).
        sigma: standard deviation in pixels; one number, or one for each axis.
        compatibility: see `Kernel`.
        normalization: see `Kernel`.
        device: of the features.
        dtype: of the features.

    >>> import permutohedral as ph
    >>> ph.crf.spatial_kernel((20, 30), sigma=3.0).features.shape
    torch.Size([600, 2])
    """
    features = grid_features(space, sigma, device=device, dtype=dtype) + FEATURE_SHIFT
    return Kernel(features, compatibility, normalization, tuple(space))


def bilateral_kernel(
    guide: Tensor,
    *,
    sigma_space: Sigma,
    sigma_color: Sigma,
    compatibility: float | Tensor = 1.0,
    normalization: KernelNormalization = "symmetric",
    spatial_dims: int = 2,
) -> Kernel:
    """Return a Gaussian kernel over positions and colors.

    Args:
        guide: `[channels, *space]` or `[batch, channels, *space]`; integers as in `bilateral_filter`.
        sigma_space: standard deviation over positions, in pixels; one number, or one for each axis.
        sigma_color: standard deviation over colors, in units of the guide's values; one, or one for each channel.
        compatibility: see `Kernel`.
        normalization: see `Kernel`.
        spatial_dims: number of axes of space: 2 for images, 3 for volumes.

    >>> import torch, permutohedral as ph
    >>> ph.crf.bilateral_kernel(torch.rand(3, 20, 30), sigma_space=20.0, sigma_color=0.1).features.shape
    torch.Size([600, 5])
    """
    check_count("spatial_dims", spatial_dims, least=1)
    guide = unit_values("guide", guide)
    check_image(guide, spatial_dims, "guide")
    if guide.dim() > spatial_dims + 2:
        raise InputError(
            f"guide must be [channels, *space] or [batch, channels, *space] with {spatial_dims} axes of space, got "
            f"{tuple(guide.shape)}; pass their number as spatial_dims"
        )
    space = tuple(guide.shape[guide.dim() - spatial_dims :])
    features = bilateral_features(guide, sigma_space=sigma_space, sigma_color=sigma_color, spatial_dims=spatial_dims)
    return Kernel(features, compatibility, normalization, space)


def _check_compatibility(compatibility: object) -> None:
    if isinstance(compatibility, Tensor):
        shape = tuple(compatibility.shape)
        if compatibility.device.type == "cpu" and not is_traced() and not bool(compatibility.detach().isfinite().all()):
            raise InputError("compatibility must be finite, got NaN or infinity")
        if not compatibility.is_floating_point() or len(shape) > 2 or (len(shape) == 2 and shape[0] != shape[1]):
            raise InputError(
                "compatibility must be a number, or a floating tensor [labels] or [labels, labels], got "
                f"{compatibility.dtype} of shape {shape}"
            )
    elif isinstance(compatibility, bool) or not isinstance(compatibility, (int, float)):
        raise InputError(f"compatibility must be a number or a tensor, got {type(compatibility).__name__}")
    elif not math.isfinite(compatibility):
        raise InputError(f"compatibility must be finite, got {compatibility}")
