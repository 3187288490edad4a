"""Layers over signals, images and volumes, whose features are positions and colors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from permutohedral.errors import InputError, NeighborhoodError
from permutohedral.features import ValueRange, check_guide, check_image, positive_numbers, space_in_words, unit_values
from permutohedral.features import bilateral as bilateral_features
from permutohedral.filters.bilateral import bilateral_filter
from permutohedral.filters.gaussian import GaussianMethod
from permutohedral.filters.normalization import Normalization
from permutohedral.filters.units import warn_of_units
from permutohedral.filters.weighting import check_weights
from permutohedral.lattice.tensors import check_tensor, reject_scripting
from permutohedral.nn.convolution import Initialization, PermutohedralConv
from permutohedral.nn.scale import sigmas_of, wide_exp
from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.tracing import breaks_graph

# most channels of an image that is its own guide; in 2-D the filter then has 4,095 taps
_MOST_OWN_CHANNELS = 9
# of layers with a guide
_SIGMA_COLOR = 0.2


class BilateralFilter(nn.Module):
    """Bilateral filter as a layer, optionally with learned standard deviations.

    Args:
        sigma_space: standard deviation over positions, in pixels; one number, or one for each axis.
        sigma_color: standard deviation over colors, see `bilateral_filter`; one number, or one for each channel.
        method: see `bilateral_filter`.
        halo: see `gaussian_filter`.
        learn_sigma: train all standard deviations.
        spatial_dims: how many axes follow the channels: 1 for signals, 2 for pictures, 3 for volumes.
        value_range: see `bilateral_filter`.
        device: of the parameters.
        dtype: of the parameters.

    Shape:
        image `[..., channels, *space]`, guide `[..., guide channels, *space]`.

    >>> import torch, permutohedral as ph
    >>> ph.nn.BilateralFilter(sigma_space=4.0, sigma_color=0.1)(torch.rand(2, 3, 16, 16)).shape
    torch.Size([2, 3, 16, 16])
    >>> of_volumes = ph.nn.BilateralFilter(sigma_space=(1.0, 2.0, 2.0), sigma_color=0.1, spatial_dims=3)
    >>> of_volumes(torch.rand(1, 8, 16, 16)).shape
    torch.Size([1, 8, 16, 16])
    """

    __prepare_scriptable__ = reject_scripting

    def __init__(
        self,
        *,
        sigma_space: float | Sequence[float],
        sigma_color: float | Sequence[float],
        method: GaussianMethod = "lattice",
        halo: int = 0,
        learn_sigma: bool = False,
        spatial_dims: int = 2,
        value_range: ValueRange | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.method: GaussianMethod = method
        self.halo, self.value_range = halo, value_range
        self.spatial_dims = spatial_dims
        over_space = positive_numbers(sigma_space, "sigma_space", spatial_dims)
        over_range = positive_numbers(sigma_color, "sigma_color")
        # one logarithm for each number that was given, those of space first
        self._numbers_of_space = len(over_space)
        logarithms = [math.log(sigma) for sigma in (*over_space, *over_range)]
        self.log_sigma = nn.Parameter(torch.tensor(logarithms, device=device, dtype=dtype), learn_sigma)

    @property
    def sigma_space(self) -> Tensor:
        """Standard deviation over positions: one number, or one for each axis."""
        return wide_exp(self.log_sigma[: self._numbers_of_space]).squeeze(0)

    @property
    def sigma_color(self) -> Tensor:
        """Standard deviation over colors: one number, or one for each channel."""
        return wide_exp(self.log_sigma[self._numbers_of_space :]).squeeze(0)

    def forward(
        self,
        image: Tensor,
        guide: Tensor | None = None,
        *,
        sample_weight: Tensor | None = None,
        origin: Sequence[int] | None = None,
    ) -> Tensor:
        """Filter `image`, keeping the edges of `guide`, by default its own; the rest as in `bilateral_filter`."""
        sigmas = sigmas_of(self.log_sigma)
        over_space, over_range = (
            each[0] if len(each) == 1 else each
            for each in (sigmas[: self._numbers_of_space], sigmas[self._numbers_of_space :])
        )
        return bilateral_filter(
            image,
            sigma_space=over_space,
            sigma_color=over_range,
            guide=guide,
            method=self.method,
            halo=self.halo,
            spatial_dims=self.spatial_dims,
            origin=origin,
            value_range=self.value_range,
            sample_weight=sample_weight,
        )

    def extra_repr(self) -> str:
        sigmas = _in_words(self.sigma_space), _in_words(self.sigma_color)
        volumes = "" if self.spatial_dims == 2 else f", spatial_dims={self.spatial_dims}"
        learned = ", learn_sigma=True" if self.log_sigma.requires_grad else ""
        return f"sigma_space={sigmas[0]}, sigma_color={sigmas[1]}{volumes}{learned}"


class _BilateralConv(nn.Module):
    """Learned convolution over position and guide, for any number of spatial axes."""

    __prepare_scriptable__ = reject_scripting

    spatial_dims: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: None = None,
        *,
        guide_channels: int | None = None,
        neighborhood_size: int = 1,
        groups: int = 1,
        bias: bool = True,
        sigma_space: float | Sequence[float] = 2.0,
        sigma_color: float | Sequence[float] | None = None,
        init: Initialization | None = None,
        around: Literal["gaussian"] | None = None,
        normalization: Normalization = "density",
        learn_sigma: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if kernel_size is not None:
            raise InputError(
                f"kernel_size must be left out, got {kernel_size!r}: pass neighborhood_size, the reach of the filter "
                "in lattice steps; and guide_channels by its name, if that was meant"
            )
        guides = in_channels if guide_channels is None else guide_channels
        if guide_channels is None and in_channels > _MOST_OWN_CHANNELS and neighborhood_size:
            raise NeighborhoodError(
                f"guide_channels must be given for more than {_MOST_OWN_CHANNELS} in_channels, got {in_channels}: as "
                f"its own guide, the image has {self.spatial_dims} + {in_channels} dimensions, and the number of taps "
                "doubles with each; pass guide_channels=3, and a color image to forward, or guide_channels=0 for a "
                "filter over position alone"
            )
        positive_numbers(sigma_space, "sigma_space", self.spatial_dims)
        if guides:
            sigma_color = _SIGMA_COLOR if sigma_color is None else sigma_color
            positive_numbers(sigma_color, "sigma_color", guides)
        elif sigma_color is not None:
            raise InputError(f"sigma_color must be left out with guide_channels=0, got {sigma_color!r}")
        self.in_channels, self.out_channels, self.guide_channels = in_channels, out_channels, guide_channels
        self.sigma_space, self.sigma_color = sigma_space, sigma_color
        self.convolution = PermutohedralConv(
            in_channels,
            out_channels,
            self.spatial_dims + guides,
            neighborhood_size,
            groups=groups,
            bias=bias,
            init=init,
            around=around,
            normalization=normalization,
            learn_sigma=learn_sigma,
            device=device,
            dtype=dtype,
        )

    @property
    def weight(self) -> nn.Parameter:
        """`convolution.weight`, `[filter_size, in_channels / groups, out_channels]`."""
        return self.convolution.weight

    @property
    def bias(self) -> nn.Parameter | None:
        """`convolution.bias`, `[out_channels]`, or None."""
        return self.convolution.bias

    @breaks_graph
    def forward(
        self,
        image: Tensor,
        guide: Tensor | None = None,
        *,
        sample_weight: Tensor | None = None,
        origin: Sequence[int] | None = None,
    ) -> Tensor:
        """Convolve `image` over position and `guide`.

        Args:
            image: `[batch, in_channels, *space]`, or without batch.
            guide: likewise, with guide_channels; default: the image, or none with guide_channels=0.
            sample_weight: `[..., *space]`, as in `permutohedral_filter`.
            origin: position of the first pixel, for a part of a larger image, as in `bilateral_filter`.
        """
        axes = self.spatial_dims
        check_tensor("image", image)
        if image.dim() not in (axes + 1, axes + 2) or image.shape[-axes - 1] != self.in_channels:
            space = space_in_words(axes)
            raise InputError(
                f"image must be [batch, {self.in_channels}, {space}] or [{self.in_channels}, {space}], got "
                f"{tuple(image.shape)}"
            )
        check_image(image, axes)
        guide = None if guide is None else unit_values("guide", guide, dtype=accumulation_dtype(image.dtype))
        self._check_guide(guide, image)
        edges, sigma_color = image if guide is None else guide, self.sigma_color
        if sigma_color is None:
            # no channels, and no batch, so that all items share a lattice
            edges, sigma_color = image.new_empty(0, *image.shape[-axes:]), 1.0
        else:
            warn_of_units(edges, sigma_color, axes)
        features = bilateral_features(
            edges, sigma_space=self.sigma_space, sigma_color=sigma_color, spatial_dims=axes, origin=origin
        )
        flat = None
        if sample_weight is not None:
            points = (*image.shape[: -axes - 1], *image.shape[-axes:])
            flat = check_weights(sample_weight, points, image, axes).flatten(-axes)
        output: Tensor = self.convolution(image.flatten(-axes).transpose(-1, -2), features, sample_weight=flat)
        output = output.transpose(-1, -2)
        return output.reshape(*output.shape[:-1], *image.shape[-axes:])

    def _check_guide(self, guide: Tensor | None, image: Tensor) -> None:
        axes = self.spatial_dims
        if guide is None:
            if self.guide_channels:
                raise InputError(f"guide is missing: this layer was made with guide_channels={self.guide_channels}")
            return
        check_guide(guide, image, axes)
        expected = self.in_channels if self.guide_channels is None else self.guide_channels
        if guide.shape[-axes - 1] != expected:
            raise InputError(
                f"guide must have {expected} channels, got the shape {tuple(guide.shape)}; make the layer with "
                f"guide_channels={guide.shape[-axes - 1]} for this guide"
            )
        if guide.dim() != image.dim():
            raise InputError(
                "guide and image must have the same batch size, or both none, got the shapes "
                f"{tuple(guide.shape)} and {tuple(image.shape)}"
            )

    def extra_repr(self) -> str:
        color = "guide_channels=0" if self.sigma_color is None else f"sigma_color={_in_words(self.sigma_color)}"
        return f"sigma_space={_in_words(self.sigma_space)}, {color}"


class BilateralConv1d(_BilateralConv):
    """Convolve signals over position and value, as a padded `torch.nn.Conv1d` of stride 1.

    The arguments are those of `BilateralConv2d`.

    Shape:
        image `[batch, in_channels, length]` (or without batch), guide likewise with guide_channels; the result is
        `[batch, out_channels, length]`.

    >>> import torch, permutohedral as ph
    >>> ph.nn.BilateralConv1d(1, 16)(torch.rand(2, 1, 50)).shape
    torch.Size([2, 16, 50])
    """

    spatial_dims = 1


class BilateralConv2d(_BilateralConv):
    """Convolve images over position and color, as a padded `torch.nn.Conv2d` of stride 1.

    Args:
        in_channels: channels of the image.
        out_channels: channels of the result.
        kernel_size: leave it out: the filter has no side in pixels, see neighborhood_size.
        guide_channels: channels of the guide; default: the image is its own guide. 0: position alone, without a
            guide, for `torch.nn.Sequential`. The features have 2 + guide_channels dimensions, so keep the guide small.
        neighborhood_size: s of the filter, its reach in lattice steps; see `PermutohedralConv`.
        groups: see `torch.nn.Conv2d`.
        bias: see `torch.nn.Conv2d`.
        sigma_space: pixels per lattice step; one number, or one for each axis.
        sigma_color: guide values per lattice step, for a guide of integers as in `bilateral_filter`; one number, or one
            for each channel of the guide. Default: 0.2, and None with guide_channels=0.
        init: see `PermutohedralConv`.
        around: see `PermutohedralConv`.
        normalization: see `PermutohedralConv`.
        learn_sigma: see `PermutohedralConv`. `sigma_space` and `sigma_color` stay the first ones;
            `convolution.scale` divides them.
        device: of the parameters.
        dtype: of the parameters.

    Shape:
        image `[batch, in_channels, height, width]` (or without batch), guide likewise with guide_channels; the result
        is `[batch, out_channels, height, width]`.

    >>> import torch, permutohedral as ph
    >>> layer = ph.nn.BilateralConv2d(3, 16)
    >>> layer(torch.rand(2, 3, 16, 16)).shape
    torch.Size([2, 16, 16, 16])
    >>> over_position = ph.nn.BilateralConv2d(16, 32, guide_channels=0, neighborhood_size=2)
    >>> torch.nn.Sequential(layer, over_position)(torch.rand(2, 3, 16, 16)).shape
    torch.Size([2, 32, 16, 16])
    """

    spatial_dims = 2


class BilateralConv3d(_BilateralConv):
    """Convolve volumes over position and value, as a padded `torch.nn.Conv3d` of stride 1.

    The arguments are those of `BilateralConv2d`; a volume of one channel makes features of four dimensions.

    Shape:
        image `[batch, in_channels, depth, height, width]` (or without batch), guide likewise with guide_channels; the
        result is `[batch, out_channels, depth, height, width]`.

    >>> import torch, permutohedral as ph
    >>> layer = ph.nn.BilateralConv3d(1, 16, sigma_space=(1.0, 2.0, 2.0))
    >>> layer(torch.rand(2, 1, 6, 8, 8)).shape
    torch.Size([2, 16, 6, 8, 8])
    """

    spatial_dims = 3


def _in_words(sigma: float | Sequence[float] | Tensor) -> str:
    """Return a bandwidth as in source code.

    >>> _in_words((1.0, 2.5))
    '(1, 2.5)'
    """
    words = ", ".join(f"{number:.4g}" for number in positive_numbers(sigma))
    return (
        words if isinstance(sigma, (int, float)) or (isinstance(sigma, Tensor) and sigma.dim() == 0) else f"({words})"
    )
