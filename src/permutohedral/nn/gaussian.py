"""The Gaussian filter as a layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.filters.gaussian import GaussianMethod, gaussian_filter
from permutohedral.filters.normalization import Normalization
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.tensors import reject_scripting
from permutohedral.nn.scale import scale_features, wide_exp


class GaussianFilter(nn.Module):
    """Filter values at arbitrary points with a Gaussian, optionally of learned bandwidths.

    Args:
        dimension: d of the features.
        normalization: see `gaussian_filter`.
        method: see `gaussian_filter`.
        halo: see `gaussian_filter`.
        learn_sigma: train one factor per feature dimension, `scale [dimension]`: the inverse bandwidths.
        device: of the scale.
        dtype: of the scale.

    Shape:
        values `[..., points, channels]` and features: see `gaussian_filter`.

    >>> import torch, permutohedral as ph
    >>> ph.nn.GaussianFilter(dimension=2)(torch.rand(100, 3), torch.rand(100, 2) * 10).shape
    torch.Size([100, 3])
    """

    __prepare_scriptable__ = reject_scripting

    def __init__(
        self,
        dimension: int,
        *,
        normalization: Normalization = "homogeneous",
        method: GaussianMethod = "lattice",
        halo: int = 0,
        learn_sigma: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dimension = dimension
        self.normalization: Normalization = normalization
        self.method: GaussianMethod = method
        self.halo = halo
        self.log_scale = nn.Parameter(torch.zeros(dimension, device=device, dtype=dtype)) if learn_sigma else None

    @property
    def scale(self) -> Tensor | None:
        """The factor of each feature dimension, `[dimension]`, or None without `learn_sigma`."""
        return None if self.log_scale is None else wide_exp(self.log_scale)

    def forward(
        self,
        values: Tensor,
        features: Tensor | Lattice,
        target_features: Tensor | None = None,
        *,
        batch: Tensor | None = None,
        target_batch: Tensor | None = None,
        sample_weight: Tensor | None = None,
    ) -> Tensor:
        """Filter `values` at `features`, or on a `Lattice` built from them; see `gaussian_filter`."""
        if isinstance(features, Lattice):
            if self.log_scale is not None:
                raise InputError("features must be a tensor with learn_sigma, which scales them at every step")
            if features.dimension != self.dimension:
                raise InputError(
                    f"this layer needs a lattice of dimension {self.dimension}, got one of {features.dimension}"
                )
        else:
            features = scale_features(features, self.dimension, self.scale)
        if target_features is not None:
            target_features = scale_features(target_features, self.dimension, self.scale, "target_features")
        return gaussian_filter(
            values,
            features,
            target_features,
            batch=batch,
            target_batch=target_batch,
            method=self.method,
            normalization=self.normalization,
            halo=self.halo,
            sample_weight=sample_weight,
        )

    def extra_repr(self) -> str:
        parts = [f"dimension={self.dimension}", f"normalization={self.normalization!r}", f"method={self.method!r}"]
        if self.halo:
            parts.append(f"halo={self.halo}")
        if self.log_scale is not None:
            parts.append("learn_sigma=True")
        return ", ".join(parts)
