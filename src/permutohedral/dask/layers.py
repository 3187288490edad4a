"""Trained layers over chunked images and volumes, tile by tile, with margins of their support."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from permutohedral.dask.tiles import axis_letters, map_with_margins
from permutohedral.errors import InputError
from permutohedral.lattice.features import numbers_of
from permutohedral.lattice.geometry import reach
from permutohedral.nn.bilateral import (
    BilateralConvolution1d,
    BilateralConvolution2d,
    BilateralConvolution3d,
    BilateralFilter,
)

_BILATERAL = BilateralConvolution1d | BilateralConvolution2d | BilateralConvolution3d
_GRID = nn.Conv1d | nn.Conv2d | nn.Conv3d
# random, or dependent on the whole batch, in training mode
_MODE_DEPENDENT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
)
# independent of other samples
_POINTWISE = (
    *(nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Identity),
    *_MODE_DEPENDENT,
)


def map_layer(layer: nn.Module, image: Any, axes: str | None = None, margins: Sequence[int] | None = None) -> Any:
    """Apply a trained layer or model tile by tile, lazily; equals the layer on the whole image.

    Bilateral layers, also within an `nn.Sequential`, get the position of each tile. Other modules get values only.

    Args:
        layer: bilateral layer, `BilateralFilter`, or an `nn.Sequential` of these, of convolutions with stride 1, and
            of pointwise modules. With `margins`, any module that keeps the extents. It must be in evaluation mode.
        image: as for `bilateral_filter`; the layer gets `[1, channels, *space]`, in the dtype of its weights.
        axes: as for `bilateral_filter`.
        margins: samples that the layer needs on either side, for each spatial axis; default: computed.

    Returns:
        like `image`, but floating, with the output channels of the layer.

    >>> import dask.array as da
    >>> import permutohedral.dask as phd
    >>> layer = BilateralConvolution2d(1, 4, sigma_space=2.0).eval()
    >>> phd.map_layer(layer, da.ones((1, 60, 50), chunks=(1, 30, 25), dtype="float32"), axes="CYX").shape
    (4, 60, 50)
    """
    if any(module.training for module in layer.modules() if isinstance(module, _MODE_DEPENDENT)):
        raise InputError("layer is in training mode; call layer.eval() first")
    if any(module.padding_mode == "circular" for module in layer.modules() if isinstance(module, _GRID)):
        raise InputError("layer has circular padding, which needs samples of other tiles; use another padding_mode")
    names = axis_letters(image, axes)
    space = len(names) - names.count("C")
    found = [sum(each) for each in zip(*_margins(layer, space), strict=True)] if margins is None else list(margins)

    dtype = _dtype_of(layer)

    def run(values: Tensor, origin: tuple[int, ...]) -> Tensor:
        with torch.no_grad():
            return _apply(layer, values[None].to(dtype), origin)[0]

    channels = image.shape[names.index("C")] if "C" in names else 1
    extents = _least_extents(layer, space) if margins is None else [2 * margin + 1 for margin in found]
    small = torch.zeros(1, channels, *extents, dtype=dtype)
    with torch.no_grad():
        result = _apply(layer, small, (0,) * space)
    if result.shape[2:] != small.shape[2:]:
        raise InputError(
            f"layer changes extents from {tuple(small.shape)} to {tuple(result.shape)}; pass one that keeps them"
        )
    return map_with_margins(run, [image], names, found, out_channels=result.shape[1])


def _least_extents(layer: nn.Module, space: int) -> list[int]:
    """Return the smallest extents that hold all taps of the convolutions; lattices need one sample only.

    >>> _least_extents(nn.Sequential(nn.Conv2d(1, 1, (3, 5)), nn.Conv2d(1, 1, 3, dilation=2)), 2)
    [7, 9]
    """
    grids = [module for module in layer.modules() if isinstance(module, _GRID)]
    return [1 + sum(each.dilation[axis] * (each.kernel_size[axis] - 1) for each in grids) for axis in range(space)]


def _apply(layer: nn.Module, values: Tensor, origin: tuple[int, ...]) -> Tensor:
    """Apply the layer to `[1, channels, *space]`, whose first sample is at `origin`."""
    if isinstance(layer, nn.Sequential):
        for part in layer:
            values = _apply(part, values, origin)
        return values
    position = {"origin": origin} if isinstance(layer, (_BILATERAL, BilateralFilter)) else {}
    result: Tensor = layer(values, **position)
    return result


def _dtype_of(layer: nn.Module) -> torch.dtype | None:
    """Return the dtype of the weights; None, the dtype of the input, if there are bandwidths only."""
    filters = [module for module in layer.modules() if isinstance(module, BilateralFilter)]
    bandwidths = {id(parameter) for module in filters for parameter in module.parameters()}
    return next((each.dtype for each in layer.parameters() if id(each) not in bandwidths), None)


def _margins(layer: nn.Module, space: int) -> list[list[int]]:
    """Return the support radius of each part of a layer in samples, for each axis."""
    if isinstance(layer, nn.Sequential):
        return [margins for part in layer for margins in _margins(part, space)]
    is_statistical = isinstance(layer, _MODE_DEPENDENT) and getattr(layer, "track_running_stats", True) is False
    if isinstance(layer, _POINTWISE) and not is_statistical:
        return [[0] * space]
    if isinstance(layer, BilateralFilter) and layer.method in ("separable", "dense"):
        sigmas = numbers_of(layer.sigma_space.detach(), space)
        return [_support(sigmas, 2, layer.halo)]
    if isinstance(layer, _BILATERAL):
        convolution = layer.convolution
        factors = [1.0] * space if convolution.scale is None else convolution.scale.detach().tolist()[:space]
        sigmas = [sigma / factor for sigma, factor in zip(numbers_of(layer.sigma_space, space), factors, strict=True)]
        once = _support(sigmas, convolution.neighborhood_size, 0)
        # the masses that sources are divided by have the same support again
        return [once, once] if convolution.normalization == "symmetric" else [once]
    if isinstance(layer, _GRID) and set(layer.stride) == {1}:
        return [[size * dilation // 2 for size, dilation in zip(layer.kernel_size, layer.dilation, strict=True)]]
    raise InputError(f"margins of {type(layer).__name__} are unknown; pass margins, one per spatial axis")


def _support(sigmas: Sequence[float], size: int, halo: int) -> list[int]:
    # one more sample for rounded positions
    return [math.ceil(sigma * reach(axis, size, halo)) + 1 for axis, sigma in enumerate(sigmas)]
