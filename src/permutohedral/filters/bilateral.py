"""The bilateral filter: the Gaussian over position and color."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, overload

import torch
from torch import Tensor

from permutohedral.features import Sigma, ValueRange, check_channels_first, check_guide, check_image
from permutohedral.features import bilateral as bilateral_features
from permutohedral.filters.choice import choose_for_pixels
from permutohedral.filters.exact import WINDOW_REACH, sum_pixels, window_of
from permutohedral.filters.gaussian import GaussianMethod, filter_gaussian
from permutohedral.filters.images import Data, ImageFormat, as_given, optional_tensor
from permutohedral.filters.weighting import check_weights, filter_weighted, hide_lost
from permutohedral.lattice.checks import check_method
from permutohedral.ops.tracing import breaks_graph, wants_gradient


@overload
def bilateral_filter(
    image: Data,
    guide: Data | None = None,
    *,
    sigma_space: Sigma,
    sigma_color: Sigma,
    method: GaussianMethod = "lattice",
    halo: int = 0,
    spatial_dims: int = 2,
    channels_last: bool = False,
    origin: Sequence[int] | None = None,
    value_range: ValueRange | None = None,
    sample_weight: Data | None = None,
    fill_value: float = 0.0,
    return_mass: Literal[False] = False,
) -> Data: ...


@overload
def bilateral_filter(
    image: Data,
    guide: Data | None = None,
    *,
    sigma_space: Sigma,
    sigma_color: Sigma,
    method: GaussianMethod = "lattice",
    halo: int = 0,
    spatial_dims: int = 2,
    channels_last: bool = False,
    origin: Sequence[int] | None = None,
    value_range: ValueRange | None = None,
    sample_weight: Data | None = None,
    fill_value: float = 0.0,
    return_mass: Literal[True],
) -> tuple[Data, Data]: ...


@breaks_graph
def bilateral_filter(
    image: Data,
    guide: Data | None = None,
    *,
    sigma_space: Sigma,
    sigma_color: Sigma,
    method: GaussianMethod = "lattice",
    halo: int = 0,
    spatial_dims: int = 2,
    channels_last: bool = False,
    origin: Sequence[int] | None = None,
    value_range: ValueRange | None = None,
    sample_weight: Data | None = None,
    fill_value: float = 0.0,
    return_mass: bool = False,
) -> Data | tuple[Data, Data]:
    """Smooth an image and keep its edges: the Gaussian filter over position and color.

    Args:
        image: tensor or NumPy array `[..., channels, *space]`, by default `[..., channels, height, width]`; floats or
            integers.
        guide: image `[..., guide channels, *space]` whose edges are kept; default: the image itself.
        sigma_space: standard deviation over positions, in pixels; one number, or one for each axis.
        sigma_color: standard deviation over colors, one number, or one for each channel. In units of the guide's
            values if they are floats; the maximum of the dtype is 1 for uint8, uint16 and int16; other integers need
            `value_range`. On a CPU, a warning says if it does not fit the values.
        method: see `gaussian_filter`. With two spatial axes, "exact" sums over a window of 5 standard deviations.
        halo: see `gaussian_filter`.
        spatial_dims: number of spatial axes: 1 for signals, 2 for images, 3 for volumes.
        channels_last: image and guide are `[..., *space, channels]`.
        origin: position of the first pixel, for a part of a larger image: it is filtered on the lattice of the whole.
        value_range: the two values that count as 0 and 1 for `sigma_color` and `fill_value`, such as (0, 4095) for
            12-bit images in uint16, or (-1000, 1000) for CT; for values of any dtype.
        sample_weight: how much each pixel counts, `[..., *space]`; see `gaussian_filter`. Without a guide, pixels of
            weight zero that are not finite get `fill_value`.
        fill_value: see `gaussian_filter`.
        return_mass: see `gaussian_filter`.

    Returns:
        The filtered image, of the kind, dtype and shape of `image`; with `return_mass`, also the mass `[..., *space]`.

    >>> import numpy as np, torch, permutohedral as ph
    >>> ph.bilateral_filter(torch.rand(3, 32, 48), sigma_space=4.0, sigma_color=0.1).shape
    torch.Size([3, 32, 48])
    >>> photo = np.zeros((32, 48, 3), np.uint8)
    >>> ph.bilateral_filter(photo, sigma_space=4.0, sigma_color=0.1, channels_last=True).dtype
    dtype('uint8')
    >>> volume = torch.rand(1, 20, 32, 48)
    >>> ph.bilateral_filter(volume, sigma_space=(1.0, 2.0, 2.0), sigma_color=0.1, spatial_dims=3).shape
    torch.Size([1, 20, 32, 48])
    """
    layout = ImageFormat(spatial_dims, channels_last, value_range)
    pixels, edges = layout.read_both(image, guide)
    filtered, mass = filter_pixels(
        pixels,
        edges,
        (sigma_space, sigma_color),
        method,
        halo,
        spatial_dims,
        origin,
        optional_tensor(sample_weight),
        fill_value,
        return_mass,
    )
    layout.warn(image, guide, pixels, edges, filtered, sigma_color)
    result = layout.write(filtered, image, is_guide=guide is None)
    return result if mass is None else (result, as_given(mass, image))


def filter_pixels(
    image: Tensor,
    guide: Tensor | None,
    sigmas: tuple[Sigma, Sigma],
    method: GaussianMethod,
    halo: int,
    spatial_dims: int,
    origin: Sequence[int] | None,
    sample_weight: Tensor | None,
    fill_value: float,
    return_mass: bool,
) -> tuple[Tensor, Tensor | None]:
    """Run `bilateral_filter` on floating tensors `[..., channels, *space]`."""
    sigma_space, sigma_color = sigmas
    check_image(image, spatial_dims)
    check_method(method, halo)
    if guide is None:
        check_channels_first(image, spatial_dims)
    else:
        check_guide(guide, image, spatial_dims)
    leading, space = image.shape[: -spatial_dims - 1], image.shape[-spatial_dims:]
    lost = None
    if sample_weight is not None:
        sample_weight = check_weights(sample_weight, (*leading, *space), image, spatial_dims)
        if guide is None:
            image, lost = hide_lost(image, sample_weight, spatial_dims)
    edges = image if guide is None else guide
    reach, axes, run = WINDOW_REACH, None, None
    if spatial_dims == 2 and method == "auto":
        choice = choose_for_pixels(image, edges, sigma_space, sigma_color)
        method, reach = ("exact" if choice.method == "exact" else "lattice"), choice.reach
        # a halo is for the lattice, and gradients of the grid are slow
        if choice.guide is not None and not halo and not wants_gradient(sample_weight):
            method, axes, edges = "exact", choice.axes, choice.guide
            image = edges if guide is None else image
    if spatial_dims == 2 and method == "exact":
        window = window_of(edges, sigma_space, sigma_color if axes is None else None, reach)
        run = None if window is None else partial(sum_pixels, window=window, axes=axes)
    if run is None:
        features = bilateral_features(
            edges, sigma_space=sigma_space, sigma_color=sigma_color, spatial_dims=spatial_dims, origin=origin
        )
        features = features.flatten(0, -3) if features.dim() > 3 else features
        run = partial(
            filter_gaussian,
            features=features,
            target_features=None,
            batch=None,
            target_batch=None,
            method=method,
            halo=halo,
        )
    has_items = edges.dim() > spatial_dims + 2
    values = image.flatten(-spatial_dims).mT
    values = values.flatten(0, -3) if has_items else values
    sample_weight = None if sample_weight is None else sample_weight.reshape(values.shape[:-1])
    filtered, mass = filter_weighted(run, values, sample_weight, "homogeneous", fill_value, return_mass)
    filtered = filtered.mT.reshape(image.shape)
    if lost is not None:
        filtered = torch.where(lost.unsqueeze(-spatial_dims - 1), fill_value, filtered)
    if mass is None:
        return filtered, None
    mass = mass.reshape(*leading, *space)
    return filtered, mass if lost is None else torch.where(lost, 0.0, mass)
