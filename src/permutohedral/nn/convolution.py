"""The permutohedral convolution as a layer."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.filters.learned import filter_with_bias
from permutohedral.filters.normalization import NORMALIZATIONS, Normalization
from permutohedral.lattice.checks import reject_with_lattice
from permutohedral.lattice.lattice import Lattice, build_lattice
from permutohedral.lattice.neighborhood import Neighborhood, gaussian_weight
from permutohedral.lattice.tensors import check_tensor, reject_scripting
from permutohedral.nn.scale import scale_features, wide_exp
from permutohedral.ops.tracing import breaks_graph

Initialization = Literal["kaiming", "gaussian"]


class PermutohedralConv(nn.Module):
    """Convolve values at arbitrary points of R^d, as `torch.nn.Conv2d` convolves images.

    Args:
        in_channels: channels of the values.
        out_channels: channels of the result.
        dimension: d of the features.
        neighborhood_size: s, the reach of the filter in lattice steps; it has (s+1)^{d+1} - s^{d+1} taps.
        groups: blocks of channels that are convolved apart; divides in_channels and out_channels.
        bias: add a learned number to every output channel.
        init: "kaiming" draws weights of mean zero that preserve the variance over the taps; "gaussian" starts as
            the Gaussian filter: each channel by itself where a group has as many outputs as inputs, else of the
            mean over the group's inputs. Default: "kaiming", or "gaussian" with around="gaussian".
        around: "gaussian" trains the difference from that Gaussian filter: `filter` is the Gaussian plus `weight`, so
            weight decay pulls `filter` towards the Gaussian, not to zero. Default: None, `filter` is `weight`.
        normalization: "density" (the output does not depend on how many points sample the signal), "coverage" (nor
            on how many lattice points they leave empty), "none", "homogeneous" or "symmetric"; see
            `permutohedral_filter`.
        learn_sigma: train one factor per feature dimension, `scale [dimension]`, that multiplies the features: the
            inverse bandwidths of the filter.

    Shape:
        values `[points, in_channels]` with features `[points, d]`; or `[batch, points, in_channels]` with features
        `[batch, points, d]` (a lattice for each item) or `[points, d]` (one for all). Results are at
        target_features, by default at features.

    >>> import torch, permutohedral as ph
    >>> layer = ph.nn.PermutohedralConv(in_channels=3, out_channels=8, dimension=2)
    >>> layer
    PermutohedralConv(3, 8, dimension=2, neighborhood_size=1, filter_size=7, normalization='density')
    >>> layer(torch.rand(100, 3), torch.rand(100, 2) * 10).shape
    torch.Size([100, 8])
    """

    __prepare_scriptable__ = reject_scripting

    gaussian: Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        dimension: int,
        neighborhood_size: int = 1,
        *,
        groups: int = 1,
        bias: bool = True,
        init: Initialization | None = None,
        around: Literal["gaussian"] | None = None,
        normalization: Normalization = "density",
        learn_sigma: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_channels(in_channels, out_channels, groups)
        if init not in (None, "kaiming", "gaussian"):
            raise InputError(f"init must be 'kaiming' or 'gaussian', got {init!r}")
        if around not in (None, "gaussian"):
            raise InputError(f"around must be 'gaussian' or None, got {around!r}")
        if normalization not in NORMALIZATIONS:
            raise InputError(
                f"normalization must be one of {', '.join(map(repr, NORMALIZATIONS))}, got {normalization!r}"
            )
        self.neighborhood = Neighborhood(dimension, neighborhood_size)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.init: Initialization = init or around or "kaiming"
        self.normalization: Normalization = normalization
        size = (self.neighborhood.filter_size, in_channels // groups, out_channels)
        self.weight = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        # saved, so that weights of a layer without it are not loaded by mistake
        self.register_buffer("gaussian", None if around is None else torch.empty_like(self.weight))
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        # the logarithm is trained, so that a scale stays positive
        self.log_scale = nn.Parameter(torch.empty(dimension, device=device, dtype=dtype)) if learn_sigma else None
        self.reset_parameters()

    @property
    def dimension(self) -> int:
        """Dimension d of the features."""
        return self.neighborhood.dimension

    @property
    def neighborhood_size(self) -> int:
        """Size s of the filter."""
        return self.neighborhood.neighborhood_size

    @property
    def filter(self) -> Tensor:
        """`weight [filter_size, in_channels / groups, out_channels]`, plus the Gaussian if trained `around` it."""
        return self.weight if self.gaussian is None else self.gaussian + self.weight

    @property
    def scale(self) -> Tensor | None:
        """The factor of each feature dimension, `[dimension]`, or None without `learn_sigma`."""
        return None if self.log_scale is None else wide_exp(self.log_scale)

    def reset_parameters(self) -> None:
        """Draw new weights according to `init`."""
        fan_in = self.weight.shape[0] * self.weight.shape[1]
        with torch.no_grad():
            if self.gaussian is not None:
                self.gaussian.copy_(self._gaussian_weight())
            if self.init == "kaiming":
                self.weight.normal_(std=1 / math.sqrt(fan_in))
            elif self.gaussian is None:
                self.weight.copy_(self._gaussian_weight())
            else:
                self.weight.zero_()
            if self.bias is not None:
                bound = 0.0 if self.init == "gaussian" else 1 / math.sqrt(fan_in)
                self.bias.uniform_(-bound, bound)
            if self.log_scale is not None:
                self.log_scale.zero_()

    def _gaussian_weight(self) -> Tensor:
        taps = gaussian_weight(self.dimension, self.neighborhood_size, self.weight.dtype)
        inputs, outputs = self.weight.shape[1], self.out_channels // self.groups
        mixing = taps.new_full((inputs, outputs), 1 / inputs)
        if inputs == outputs:
            mixing = torch.eye(inputs, dtype=taps.dtype, device=taps.device)
        return taps[:, None, None] * mixing.repeat(1, self.groups)

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
        """Convolve `values` over the lattice of `features`.

        Args:
            values: `[points, in_channels]` or `[batch, points, in_channels]`.
            features: `[points, d]` or `[batch, points, d]`; or a `Lattice` built from them, to share one among layers
                and calls.
            target_features: where results are wanted.
            batch: int `[points]`, the item of each point of a ragged batch.
            target_batch: the same for target_features.
            sample_weight: how much each point counts, see `permutohedral_filter`.

        Returns:
            `[target points, out_channels]` or `[batch, target points, out_channels]`.
        """
        check_tensor("values", values)
        if values.dim() == 0 or values.shape[-1] != self.in_channels:
            raise InputError(
                f"values must have {self.in_channels} channels (in_channels), got the shape {tuple(values.shape)}"
            )
        if not isinstance(features, Lattice):
            return self._build_and_filter(values, features, target_features, batch, target_batch, sample_weight)
        if target_features is not None or batch is not None or target_batch is not None:
            reject_with_lattice(target_features=target_features, batch=batch, target_batch=target_batch)
        self._check_lattice(features)
        return filter_with_bias(values, features, self.filter, self.bias, self.normalization, sample_weight)

    @breaks_graph
    def _build_and_filter(
        self,
        values: Tensor,
        features: Tensor,
        target_features: Tensor | None,
        batch: Tensor | None,
        target_batch: Tensor | None,
        sample_weight: Tensor | None,
    ) -> Tensor:
        lattice = self.build_lattice(features, target_features, batch=batch, target_batch=target_batch)
        return filter_with_bias(values, lattice, self.filter, self.bias, self.normalization, sample_weight)

    def build_lattice(
        self,
        features: Tensor,
        target_features: Tensor | None = None,
        *,
        batch: Tensor | None = None,
        target_batch: Tensor | None = None,
    ) -> Lattice:
        """Build the lattice of this layer, with its learned scale applied to the features."""
        features = scale_features(features, self.dimension, self.scale)
        if target_features is not None:
            target_features = scale_features(target_features, self.dimension, self.scale, "target_features")
        return build_lattice(
            features, target_features, neighborhood_size=self.neighborhood_size, batch=batch, target_batch=target_batch
        )

    def _check_lattice(self, lattice: Lattice) -> None:
        if self.log_scale is not None:
            raise InputError(
                "features must be a tensor with learn_sigma, which scales them at every step, got a Lattice"
            )
        neighborhood = self.neighborhood
        if lattice.dimension != neighborhood.dimension or lattice.neighborhood_size != neighborhood.neighborhood_size:
            raise InputError(
                f"this layer needs a lattice of dimension {self.dimension}, built with neighborhood_size="
                f"{self.neighborhood_size}, got {lattice.dimension} and {lattice.neighborhood_size}"
            )

    def extra_repr(self) -> str:
        parts = [
            f"{self.in_channels}, {self.out_channels}",
            f"dimension={self.dimension}",
            f"neighborhood_size={self.neighborhood_size}",
            f"filter_size={self.neighborhood.filter_size}",
        ]
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        if self.gaussian is not None:
            parts.append("around='gaussian'")
        parts.append(f"normalization={self.normalization!r}")
        if self.log_scale is not None:
            parts.append("learn_sigma=True")
        return ", ".join(parts)


def _check_channels(in_channels: int, out_channels: int, groups: int) -> None:
    for name, number in (("groups", groups), ("in_channels", in_channels), ("out_channels", out_channels)):
        if not isinstance(number, int) or number < 1:
            raise InputError(f"{name} must be a whole number of at least 1, got {number!r}")
        if number % groups:
            raise InputError(f"{name} must be divisible by groups, got {number} and {groups}")
