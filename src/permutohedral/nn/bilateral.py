"""Layers over images: position and color of the pixels are the features."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from permutohedral.errors import InputError, NeighborhoodError
from permutohedral.features import bilateral_features
from permutohedral.filters.normalization import Normalization
from permutohedral.functional import GaussianMethod, bilateral_filter
from permutohedral.nn.convolution import Initialization, PermutohedralConvolution
from permutohedral.tensors import check_tensor, refuse_scripting


class BilateralFilter(nn.Module):
    """The bilateral filter as a layer, optionally with learned standard deviations.

    Args:
        sigma_space: standard deviation over positions, in pixels.
        sigma_range: standard deviation over colors, in units of the guide's values.
        method: see `gaussian_filter`.
        halo: see `gaussian_filter`.
        learn_sigma: train both standard deviations.

    Shape:
        image `[..., channels, height, width]`, guide `[..., guide channels, height, width]`.

    >>> BilateralFilter(sigma_space=4.0, sigma_range=0.1)(torch.rand(2, 3, 16, 16)).shape
    torch.Size([2, 3, 16, 16])
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        sigma_space: float,
        sigma_range: float,
        method: GaussianMethod = "separable",
        halo: int = 0,
        learn_sigma: bool = False,
    ) -> None:
        super().__init__()
        self.method: GaussianMethod = method
        self.halo = halo
        logarithms = torch.tensor([_log_sigma("sigma_space", sigma_space), _log_sigma("sigma_range", sigma_range)])
        self.log_sigma = nn.Parameter(logarithms, requires_grad=learn_sigma)

    @property
    def sigma_space(self) -> Tensor:
        """Standard deviation over positions."""
        return self.log_sigma[0].exp()

    @property
    def sigma_range(self) -> Tensor:
        """Standard deviation over colors."""
        return self.log_sigma[1].exp()

    def forward(self, image: Tensor, guide: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Filter `image`, keeping the edges of `guide`, by default its own; `weights` as in `bilateral_filter`."""
        sigmas = self.sigma_space, self.sigma_range
        return bilateral_filter(image, *sigmas, guide, self.method, self.halo, weights=weights)

    def extra_repr(self) -> str:
        sigma_space, sigma_range = self.log_sigma.detach().exp().tolist()
        learned = ", learn_sigma=True" if self.log_sigma.requires_grad else ""
        return f"sigma_space={sigma_space:.4g}, sigma_range={sigma_range:.4g}{learned}"


class BilateralConvolution2d(nn.Module):
    """A learned convolution over position and color: stands where a `torch.nn.Conv2d` of stride 1 stood.

    Args:
        in_channels: channels of the image.
        out_channels: channels of the result.
        guide_channels: channels of the guide; default: the image is its own guide. The features have
            2 + guide_channels dimensions, so keep the guide small.
        neighborhood_size: s of the filter.
        groups: see `torch.nn.Conv2d`.
        bias: see `torch.nn.Conv2d`.
        sigma_space: pixels per lattice step.
        sigma_range: guide values per lattice step.
        init: see `PermutohedralConvolution`.
        normalization: see `PermutohedralConvolution`.
        learn_scale: see `PermutohedralConvolution`.

    Shape:
        image `[batch, in_channels, height, width]` (or without batch), guide likewise with guide_channels; the result
        is `[batch, out_channels, height, width]`.

    >>> layer = BilateralConvolution2d(3, 16)
    >>> layer(torch.rand(2, 3, 16, 16)).shape
    torch.Size([2, 16, 16, 16])
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(  # noqa: PLR0913 (one argument per property, as torch.nn.Conv2d)
        self,
        in_channels: int,
        out_channels: int,
        guide_channels: int | None = None,
        neighborhood_size: int = 1,
        groups: int = 1,
        bias: bool = True,
        sigma_space: float = 2.0,
        sigma_range: float = 0.2,
        init: Initialization = "kaiming",
        normalization: Normalization = "density",
        learn_scale: bool = False,
    ) -> None:
        super().__init__()
        _log_sigma("sigma_space", sigma_space)
        _log_sigma("sigma_range", sigma_range)
        self.guide_channels = guide_channels
        self.sigma_space, self.sigma_range = sigma_space, sigma_range
        dimension = 2 + (in_channels if guide_channels is None else guide_channels)
        try:
            self.convolution = PermutohedralConvolution(
                in_channels,
                out_channels,
                dimension,
                neighborhood_size,
                groups,
                bias,
                init,
                normalization,
                learn_scale,
            )
        except NeighborhoodError as error:
            raise NeighborhoodError(
                f"{error.message}. Here the dimension is 2 + the channels of the guide: pass guide_channels, and a "
                "guide of few channels to forward"
            ) from error

    def forward(self, image: Tensor, guide: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        """Convolve `image` over position and `guide`; `weights [..., height, width]` as in `permutohedral_filter`."""
        check_tensor("image", image)
        if image.dim() not in (3, 4):
            raise InputError(
                f"image must be [batch, channels, height, width] or [channels, height, width], got {tuple(image.shape)}"
            )
        if guide is None and self.guide_channels is not None:
            raise InputError(f"this layer was made with guide_channels={self.guide_channels}: pass a guide")
        guide = image if guide is None else guide
        check_tensor("guide", guide)
        if guide.shape[:-3] != image.shape[:-3] or guide.shape[-2:] != image.shape[-2:]:
            raise InputError(
                "guide and image must have one batch, height and width, got "
                f"{tuple(guide.shape)} and {tuple(image.shape)}"
            )
        features = bilateral_features(guide, self.sigma_space, self.sigma_range)
        flat = None if weights is None else weights.flatten(-2)
        output: Tensor = self.convolution(image.flatten(-2).transpose(-1, -2), features, weights=flat)
        output = output.transpose(-1, -2)
        return output.reshape(*output.shape[:-1], *image.shape[-2:])

    def extra_repr(self) -> str:
        return f"sigma_space={self.sigma_space:.4g}, sigma_range={self.sigma_range:.4g}"


def _log_sigma(name: str, sigma: float) -> float:
    if not (math.isfinite(sigma) and sigma > 0):
        raise InputError(f"{name} must be positive and finite, got {sigma}")
    return math.log(sigma)
