"""The filters: validated, batched, differentiable. Shapes of values are those of `filters/steps.py`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, overload

import torch
from torch import Tensor

from permutohedral.checks import DENSE_SIZE, check_method, check_points, has_no_gradient
from permutohedral.errors import InputError
from permutohedral.features import Sigma, bilateral_features, check_guide, check_image
from permutohedral.filters.choice import choose_for_pixels, choose_for_points
from permutohedral.filters.exact import EXACT_NORMALIZATIONS, WINDOW_REACH, sum_pixels, sum_points, window_of
from permutohedral.filters.learned import filter_with_bias
from permutohedral.filters.normalization import (
    DENSE,
    SEPARABLE,
    Normalization,
    apply_step,
    filter_homogeneous,
    filter_normalized,
)
from permutohedral.filters.weighting import Filter, check_weights, filter_weighted, hide_lost, refuse_nan
from permutohedral.lattice import Lattice, build_lattice
from permutohedral.ops.fused_filters import filter_points, picture_filter
from permutohedral.ops.primitives import SMALLEST_MASS, accumulation_dtype
from permutohedral.ops.tracing import wants_gradient

GaussianMethod = Literal["separable", "dense", "exact", "auto"]


def permutohedral_filter(  # noqa: PLR0913 (what is filtered and how)
    values: Tensor,
    features: Tensor | None,
    weight: Tensor,
    target_features: Tensor | None = None,
    neighborhood_size: int = 1,
    normalization: Normalization = "none",
    lattice: Lattice | None = None,
    *,
    weights: Tensor | None = None,
) -> Tensor:
    """Splat, convolve with `weight`, slice: the permutohedral convolution of the paper as one function.

    Args:
        values: `[points, in_channels]`, or with batch axes as in `splat`.
        features: `[points, d]` or `[batch, points, d]`; None if a lattice is given.
        weight: `[filter_size, in_channels / groups, out_channels]`, or `[filter_size]`.
        target_features: where results are wanted; default: at `features`.
        neighborhood_size: s of the filter.
        normalization: "none", "homogeneous" (divide by the Gaussian filter of ones), "symmetric" (by its square
            root on either side), "density" (divide every lattice point by its splatted weight before convolving) or
            "coverage" (the same, and divide by the share of the Gaussian that lies on occupied lattice points).
        lattice: built before, instead of features; also the way to filter ragged batches.
        weights: how much each point counts, as in `gaussian_filter`: in the values, and in the mass or density that
            the normalization divides by.

    Returns:
        `[target points, out_channels]`, with the batch axes of `values`.

    >>> import permutohedral as ph
    >>> values, features = torch.rand(100, 3), torch.rand(100, 2) * 9
    >>> ph.permutohedral_filter(values, features, torch.randn(7, 3, 5)).shape
    torch.Size([100, 5])
    """
    if weights is None:
        refuse_nan(values)
    lattice = _lattice_for(features, target_features, lattice, neighborhood_size=neighborhood_size)
    return filter_with_bias(values, lattice, weight, None, normalization, weights)


@overload
def gaussian_filter(
    values: Tensor,
    features: Tensor | None,
    target_features: Tensor | None = None,
    normalization: Normalization = "homogeneous",
    method: GaussianMethod = "separable",
    halo: int = 0,
    lattice: Lattice | None = None,
    *,
    weights: Tensor | None = None,
    fill_value: float = 0.0,
    return_mass: Literal[False] = False,
) -> Tensor: ...


@overload
def gaussian_filter(
    values: Tensor,
    features: Tensor | None,
    target_features: Tensor | None = None,
    normalization: Normalization = "homogeneous",
    method: GaussianMethod = "separable",
    halo: int = 0,
    lattice: Lattice | None = None,
    *,
    weights: Tensor | None = None,
    fill_value: float = 0.0,
    return_mass: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def gaussian_filter(  # noqa: PLR0913 (what is filtered and how, and three options by name)
    values: Tensor,
    features: Tensor | None,
    target_features: Tensor | None = None,
    normalization: Normalization = "homogeneous",
    method: GaussianMethod = "separable",
    halo: int = 0,
    lattice: Lattice | None = None,
    *,
    weights: Tensor | None = None,
    fill_value: float = 0.0,
    return_mass: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Filter with the Gaussian of one feature unit: fast in high dimensions, approximate (docs/accuracy.md) or exact.

    Args:
        values: `[points, channels]`, or with batch axes as in `splat`.
        features: `[points, d]` or `[batch, points, d]`, divided by the standard deviations wanted; None if a
            lattice is given.
        target_features: where results are wanted; default: at `features`.
        normalization: see `permutohedral_filter`; "homogeneous" keeps constants.
        method: "separable" blurs along the d+1 axes of the lattice, one after another; "dense" convolves with all
            taps of size 2 at once, more accurate where lattice points are missing, and slow beyond d = 4; "exact"
            sums over the sources near each target, without a lattice: for few points, and small windows of images.
            "auto" is exact where that takes no longer, else separable; `explain_gaussian` tells. For images there
            is a third, `explain_bilateral`: few terms over colors, closer than the lattice where colors are near each
            other for the bandwidth; it is not taken where derivatives are wanted. Where torch traces or transforms
            the call (`torch.compile`, `torch.func`) pixels cannot be looked at, and "auto" takes the lattice for all
            but the smallest windows: name a method there if results should be those of a plain call.
        halo: insert untouched lattice points up to this many steps away: more accurate, steady under rounding, slower.
        lattice: built before with `separable=True` (or `neighborhood_size=2` for "dense"), instead of features.
        weights: how much each point counts, `[points]` or with the batch axes of `values`: not negative, or a bool
            mask. Values of weight zero may be anything, NaN included. With "homogeneous" and "none" only.
        fill_value: the result at targets that no weight comes near.
        return_mass: also return the weights themselves filtered with "none": how much there is near each target.

    Returns:
        `[target points, channels]`, with the batch axes of `values`; with `return_mass`, the mass `[target points]` as
        well, with the same batch axes.

    Raises:
        InputError: among other reasons, a value that counts is NaN or infinite, on the CPU, where one can look.

    >>> import permutohedral as ph
    >>> features = torch.rand(100, 2) * 5
    >>> bool(torch.allclose(ph.gaussian_filter(torch.ones(100, 1), features), torch.ones(100, 1)))
    True
    """
    run = partial(
        _filter_gaussian, features=features, target_features=target_features, method=method, halo=halo, lattice=lattice
    )
    filtered, mass = filter_weighted(run, values, weights, normalization, fill_value, return_mass)
    return filtered if mass is None else (filtered, mass)


def _filter_gaussian(
    values: Tensor,
    normalization: Normalization,
    features: Tensor | None,
    target_features: Tensor | None,
    method: GaussianMethod,
    halo: int,
    lattice: Lattice | None,
) -> Tensor:
    """`gaussian_filter` of values that all count the same."""
    check_method(method, halo, lattice)
    if method == "auto":
        exact = lattice is None and normalization in EXACT_NORMALIZATIONS
        exact = exact and choose_for_points(values, features, target_features).method == "exact"
        method = "exact" if exact else "separable"
    if method == "exact":
        if features is None:
            raise InputError("give features [points, d], or a lattice built from them and another method")
        return sum_points(values, normalization, features, target_features)
    dense = method == "dense"
    at_once = normalization == "homogeneous" and lattice is None and target_features is None and not (dense or halo)
    if at_once and (filtered := filter_points(values, features, SMALLEST_MASS)) is not None:
        return filtered
    size = DENSE_SIZE if dense else 0
    lattice = _lattice_for(features, target_features, lattice, size, halo, separable=not dense)
    gaussian = DENSE if dense else SEPARABLE
    # sums of many points are out of the range of float16
    wide = values.to(accumulation_dtype(values.dtype)) if isinstance(values, Tensor) else values
    if normalization != "homogeneous":
        return filter_normalized(wide, lattice, normalization, gaussian.blur, gaussian).to(values.dtype)
    check_points(values, lattice)
    if not dense and has_no_gradient(values, lattice):
        return filter_homogeneous(values, lattice, SMALLEST_MASS)
    # the mass is one more channel
    ones = wide.new_ones(()).expand(*wide.shape[:-1], 1)
    filtered = apply_step(torch.cat([wide, ones], dim=-1), lattice, gaussian.blur)
    return (filtered[..., :-1] / (filtered[..., -1:] + SMALLEST_MASS)).to(values.dtype)


@overload
def bilateral_filter(
    image: Tensor,
    sigma_space: Sigma,
    sigma_range: Sigma,
    guide: Tensor | None = None,
    method: GaussianMethod = "separable",
    halo: int = 0,
    *,
    spatial_axes: int = 2,
    origin: Sequence[int] | None = None,
    weights: Tensor | None = None,
    fill_value: float = 0.0,
    return_mass: Literal[False] = False,
) -> Tensor: ...


@overload
def bilateral_filter(
    image: Tensor,
    sigma_space: Sigma,
    sigma_range: Sigma,
    guide: Tensor | None = None,
    method: GaussianMethod = "separable",
    halo: int = 0,
    *,
    spatial_axes: int = 2,
    origin: Sequence[int] | None = None,
    weights: Tensor | None = None,
    fill_value: float = 0.0,
    return_mass: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def bilateral_filter(  # noqa: PLR0913 (what is filtered and how, and five options by name)
    image: Tensor,
    sigma_space: Sigma,
    sigma_range: Sigma,
    guide: Tensor | None = None,
    method: GaussianMethod = "separable",
    halo: int = 0,
    *,
    spatial_axes: int = 2,
    origin: Sequence[int] | None = None,
    weights: Tensor | None = None,
    fill_value: float = 0.0,
    return_mass: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Smooth an image and keep its edges: the Gaussian filter over position and color.

    Args:
        image: float `[..., channels, *space]`, by default `[..., channels, height, width]`.
        sigma_space: standard deviation over positions, in pixels; one number, or one for each axis.
        sigma_range: standard deviation over colors, in units of the guide's values; one, or one for each channel.
        guide: `[..., guide channels, *space]`, whose edges are kept; default: the image itself.
        method: see `gaussian_filter`; windows of "exact", and few terms over colors, are for pictures.
        halo: see `gaussian_filter`.
        spatial_axes: how many axes follow the channels: 1 for signals, 2 for pictures, 3 for volumes.
        origin: position of the first pixel, for a part of a larger picture, whose lattice is that of the whole.
        weights: how much each pixel counts, `[..., *space]`; see `gaussian_filter`. A pixel of weight zero that
            is its own guide and not finite is near no other, and gets `fill_value`.
        fill_value: see `gaussian_filter`.
        return_mass: see `gaussian_filter`.

    Returns:
        The filtered image, of the shape of `image`; with `return_mass`, the mass `[..., *space]` as well.

    >>> import permutohedral as ph
    >>> ph.bilateral_filter(torch.rand(3, 32, 48), sigma_space=4.0, sigma_range=0.1).shape
    torch.Size([3, 32, 48])
    >>> ph.bilateral_filter(torch.rand(1, 20, 32, 48), (1.0, 2.0, 2.0), 0.1, spatial_axes=3).shape
    torch.Size([1, 20, 32, 48])
    """
    check_image(image, spatial_axes)
    plain = weights is None and fill_value == 0 and not return_mass and origin is None
    plain = plain and (spatial_axes, method, halo) == (2, "separable", 0)
    at_once = picture_filter(image, guide, sigma_space, sigma_range, SMALLEST_MASS) if plain else None
    if at_once is not None:
        refuse_nan(image)
        if (filtered := at_once()) is not None:
            return filtered
    leading, space = image.shape[: -spatial_axes - 1], image.shape[-spatial_axes:]
    lost = None
    if weights is not None:
        weights = check_weights(weights, (*leading, *space), image)
        if guide is None:
            image, lost = hide_lost(image, weights, spatial_axes)
    edges = image if guide is None else guide
    check_method(method, halo, None)
    arguments = image, edges, sigma_space, sigma_range, method, halo, weights
    run, method = _without_lattice(*arguments) if spatial_axes == 2 else (None, method)
    if run is None:
        features = bilateral_features(edges, sigma_space, sigma_range, spatial_axes=spatial_axes, origin=origin)
        features = features.flatten(0, -3) if features.dim() > 3 else features
        run = partial(_filter_gaussian, features=features, target_features=None, method=method, halo=halo, lattice=None)
    if guide is not None:
        check_guide(guide, image, spatial_axes)
    values, items = image.flatten(-spatial_axes).mT, edges.dim() > spatial_axes + 2
    values = values.flatten(0, -3) if items else values
    weights = None if weights is None else weights.reshape(values.shape[:-1])
    filtered, mass = filter_weighted(run, values, weights, "homogeneous", fill_value, return_mass)
    filtered = filtered.mT.reshape(image.shape)
    if lost is not None:
        filtered = torch.where(lost.unsqueeze(-spatial_axes - 1), fill_value, filtered)
    if mass is None:
        return filtered
    mass = mass.reshape(*leading, *space)
    return filtered, mass if lost is None else torch.where(lost, 0.0, mass)


def _without_lattice(
    image: Tensor,
    guide: Tensor,
    sigma_space: Sigma,
    sigma_range: Sigma,
    method: GaussianMethod,
    halo: int,
    weights: Tensor | None,
) -> tuple[Filter | None, GaussianMethod]:
    """The filter between the pixels of pictures; None for a lattice or all pairs, with the method that remains."""
    reach = WINDOW_REACH
    if method == "auto":
        choice = choose_for_pixels(image, guide, sigma_space, sigma_range)
        # a halo is for the lattice, and sums over colors take long where they are differentiated
        if choice.window is not None and not halo and not wants_gradient(weights):
            return partial(sum_pixels, window=choice.window, colors=choice.colors), method
        method, reach = ("exact" if choice.method == "exact" else "separable"), choice.reach
    if method == "exact" and (window := window_of(guide, sigma_space, sigma_range, reach)) is not None:
        return partial(sum_pixels, window=window), method
    return None, method


def _lattice_for(
    features: Tensor | None,
    target_features: Tensor | None,
    lattice: Lattice | None,
    neighborhood_size: int,
    halo: int = 0,
    separable: bool = False,
) -> Lattice:
    if lattice is not None:
        if features is not None or target_features is not None:
            raise InputError("give either features or a lattice built from them, not both")
        return lattice
    if features is None:
        raise InputError("give features [points, d], or a lattice built from them")
    return build_lattice(features, target_features, neighborhood_size, halo=halo, separable=separable)
