"""Pairwise kernels: similarity of points, and costs of pairs of labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.features import FEATURE_SHIFT, Sigma, check_image
from permutohedral.features import bilateral as bilateral_features
from permutohedral.features import positions as grid_features
from permutohedral.lattice.lattice import Lattice, build_lattice
from permutohedral.lattice.tensors import check_count, check_tensor
from permutohedral.ops.tracing import is_traced

KernelNormalization = Literal["symmetric", "before", "after", "none"]

KERNEL_NORMALIZATIONS: tuple[KernelNormalization, ...] = ("symmetric", "before", "after", "none")


@dataclass(frozen=True, eq=False)
class Kernel:
    """Pairwise kernel: a Gaussian over features, and the cost of different labels at similar points.

    Two points i and j with labels a and b cost k_ij mu_ab, with `k_ij = exp(-|f_i - f_j|^2 / 2)`, normalized.

    Attributes:
        features: float32 or float64 `[points, d]`, or `[batch, points, d]` with features for each item;
            one unit is one standard deviation.
        compatibility: the costs mu: a number w for w (1 - I), so that different labels cost w (the Potts model); or
            `[labels]`, the diagonal of a matrix that is zero elsewhere, so that negative numbers attract; or a matrix
            `[labels, labels]`, of which the symmetric part counts, since pairs have no order. A tensor may require
            gradients.
        normalization: with the mass m_i = sum_j k_ij, "symmetric" has k_ij / sqrt(m_i m_j), "before" k_ij / m_j,
            "after" k_ij / m_i, "none" k_ij.
        space: the extents of the image or volume whose pixels are the points, in scan order: energies are then
            `[..., labels, *space]`. None for points: energies are then `[..., points, labels]`.
        batch: int `[points]`, the item of each point of a ragged batch.

    >>> import torch, permutohedral as ph
    >>> ph.crf.Kernel(torch.rand(100, 3), compatibility=2.0).normalization
    'symmetric'
    """

    features: Tensor
    compatibility: float | Tensor = 1.0
    normalization: KernelNormalization = "symmetric"
    space: tuple[int, ...] | None = None
    batch: Tensor | None = None

    def __post_init__(self) -> None:
        check_tensor("features", self.features)
        if self.features.dim() not in (2, 3):
            raise InputError(
                f"features must be [points, d] or [batch, points, d], got shape {tuple(self.features.shape)}"
            )
        if self.normalization not in KERNEL_NORMALIZATIONS:
            names = ", ".join(map(repr, KERNEL_NORMALIZATIONS))
            raise InputError(f"normalization must be one of {names}, got {self.normalization!r}")
        if self.space is not None and math.prod(self.space) != self.features.shape[-2]:
            raise InputError(f"a grid of {tuple(self.space)} does not have {self.features.shape[-2]} points")
        _check_compatibility(self.compatibility)

    def build_lattice(self) -> Lattice:
        """Build the lattice of the features, to pass to several calls of `mean_field`."""
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
        guide: float `[channels, *space]` or `[batch, channels, *space]`.
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
