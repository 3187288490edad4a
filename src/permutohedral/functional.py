"""Splat, convolve, slice, and the filters made of them: validated, batched, differentiable.

Shapes of values, by the lattice (`build_lattice`):
    one set of points         values `[points, channels]`, on the lattice `[lattice_points, channels]`
    a lattice for each item   values `[batch, points, channels]`, on the lattice `[lattice_points, channels]`,
                              the lattice points of all items together
    one lattice for many      values `[..., points, channels]` over features `[points, d]`, on the lattice
                              `[..., lattice_points, channels]`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from permutohedral.checks import (
    check_points,
    check_results,
    check_weight,
    count,
    filter_tables,
    has_no_gradient,
    lattice_to_rows,
    points_to_rows,
    rows_to_points,
    splat_density,
    to_autocast,
    unfold,
)
from permutohedral.errors import InputError
from permutohedral.features import Sigma, bilateral_features, check_guide, check_image
from permutohedral.lattice import Lattice, Simplices, build_lattice
from permutohedral.memory import check_rows
from permutohedral.neighborhood import blur_gain, count_taps, gaussian_weight
from permutohedral.ops import operators
from permutohedral.ops.fused_filters import can_fuse, filter_learned, filter_points

Normalization = Literal["none", "homogeneous", "symmetric", "density", "coverage"]
GaussianMethod = Literal["separable", "dense"]

NORMALIZATIONS: tuple[Normalization, ...] = ("none", "homogeneous", "symmetric", "density", "coverage")

# keeps a target that no source reaches at zero instead of 0 / 0
_SMALLEST_MASS = 1e-20


def splat(values: Tensor, lattice: Lattice) -> Tensor:
    """Sum the values of the source points into the lattice: l_j = sum_{i in C(j)} b_{i,j} v_i.

    Args:
        values: float `[points, channels]`, `[batch, points, channels]` or `[..., points, channels]`.
        lattice: from `build_lattice`.

    Returns:
        `[lattice_points, channels]`, or `[..., lattice_points, channels]` where many share one lattice.

    >>> import permutohedral as ph
    >>> lattice = ph.build_lattice(torch.rand(100, 2))
    >>> float(ph.splat(torch.ones(100, 1), lattice).sum().round())
    100.0
    """
    rows, leading = points_to_rows(values, lattice)
    return unfold(_splat(rows, lattice.source), leading)


def convolve(lattice_values: Tensor, weight: Tensor, lattice: Lattice) -> Tensor:
    """Correlate lattice values with a filter: l'_v = sum_k w_k l_{v + offset_k}.

    A neighbor that no source point touches reads as zero. The number of groups follows from the shapes.

    Args:
        lattice_values: `[lattice_points, in_channels]` or `[..., lattice_points, in_channels]`, from `splat`.
        weight: `[filter_size, in_channels / groups, out_channels]`, of the same dtype; or `[filter_size]`, one
            filter for every channel.
        lattice: from `build_lattice`, of the neighborhood size of the filter.

    Returns:
        `[target lattice_points, out_channels]`, with the leading axes of `lattice_values`.

    >>> import permutohedral as ph
    >>> lattice = ph.build_lattice(torch.rand(100, 2) * 9, neighborhood_size=1)
    >>> weight = torch.randn(7, 4, 8)
    >>> ph.convolve(ph.splat(torch.rand(100, 4), lattice), weight, lattice).shape[1]
    8
    """
    rows, leading = lattice_to_rows(lattice_values, lattice, lattice.source)
    rows, weight = to_autocast(rows, weight)
    channels = rows.shape[1] // max(count(leading), 1)
    weight, groups = check_weight(weight, channels, rows, lattice)
    # items that share a lattice are folded into channels, so they are groups of their own
    if count(leading) > 1:
        weight, groups = weight.repeat(1, 1, count(leading)), groups * count(leading)
    check_rows(lattice.target.num_lattice_points, weight.shape[2], rows)
    opposite = lattice.neighborhood.opposite(lattice.device)
    convolved = operators.convolve(rows, weight, lattice.neighbors, lattice.reverse_neighbors, opposite, groups)
    return unfold(convolved, leading)


def slice(lattice_values: Tensor, lattice: Lattice) -> Tensor:
    """Interpolate lattice values at the target points: v'_k = sum_{j in C(k)} b_{k,j} l'_j. The adjoint of `splat`.

    Args:
        lattice_values: `[target lattice_points, channels]`, or `[..., target lattice_points, channels]`.
        lattice: from `build_lattice`.

    Returns:
        `[target points, channels]`, `[batch, target points, channels]` or `[..., target points, channels]`.

    >>> import permutohedral as ph
    >>> lattice = ph.build_lattice(torch.rand(100, 2), target_features=torch.rand(50, 2), neighborhood_size=0)
    >>> ph.slice(ph.convolve(ph.splat(torch.rand(100, 3), lattice), torch.ones(1), lattice), lattice).shape
    torch.Size([50, 3])
    """
    rows, leading = lattice_to_rows(lattice_values, lattice, lattice.target)
    check_rows(lattice.target.num_points, rows.shape[1], rows)
    sliced = operators.slice(rows, lattice.target.vertices, lattice.target.barycentric)
    return rows_to_points(sliced, lattice, leading)


def permutohedral_filter(
    values: Tensor,
    features: Tensor | None,
    weight: Tensor,
    target_features: Tensor | None = None,
    neighborhood_size: int = 1,
    normalization: Normalization = "none",
    lattice: Lattice | None = None,
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

    Returns:
        `[target points, out_channels]`, with the batch axes of `values`.

    >>> import permutohedral as ph
    >>> values, features = torch.rand(100, 3), torch.rand(100, 2) * 9
    >>> ph.permutohedral_filter(values, features, torch.randn(7, 3, 5)).shape
    torch.Size([100, 5])
    """
    lattice = _lattice_for(features, target_features, lattice, neighborhood_size=neighborhood_size)
    return filter_with_bias(values, lattice, weight, None, normalization)


def filter_with_bias(
    values: Tensor, lattice: Lattice, weight: Tensor, bias: Tensor | None, normalization: Normalization
) -> Tensor:
    """`permutohedral_filter` on a lattice, and a number `bias [out_channels]` added to every channel of the result."""
    barycentric = lattice.source.barycentric, lattice.target.barycentric
    fused = normalization in ("none", "density") and can_fuse(values, weight, bias, *barycentric)
    if fused:
        check_points(values, lattice)
    # items that share a lattice are folded into channels
    apart = fused and (values.dim() == 2 or lattice.batch_size is not None)
    if not apart or values.numel() == 0 or lattice.target.num_points == 0:
        return _filter_in_steps(values, weight, bias, lattice, normalization)
    weight, groups = check_weight(weight, values.shape[-1], values, lattice)
    check_results(lattice, weight.shape[2], values)
    composed = partial(_filter_in_steps, lattice=lattice, normalization=normalization)
    return filter_learned(values, weight, bias, filter_tables(lattice, groups, normalization == "density"), composed)


def _filter_in_steps(
    values: Tensor, weight: Tensor, bias: Tensor | None, lattice: Lattice, normalization: Normalization
) -> Tensor:
    """The same, composed of operators."""
    output = _normalized(values, lattice, normalization, partial(_convolve_with, weight=weight), _DENSE)
    return output if bias is None else output + bias.to(output.dtype)


def gaussian_filter(
    values: Tensor,
    features: Tensor | None,
    target_features: Tensor | None = None,
    normalization: Normalization = "homogeneous",
    method: GaussianMethod = "separable",
    halo: int = 0,
    lattice: Lattice | None = None,
) -> Tensor:
    """Filter with the Gaussian of one feature unit: fast in high dimensions, approximate (see docs/accuracy.md).

    Args:
        values: `[points, channels]`, or with batch axes as in `splat`.
        features: `[points, d]` or `[batch, points, d]`, divided by the standard deviations wanted; None if a
            lattice is given.
        target_features: where results are wanted; default: at `features`.
        normalization: see `permutohedral_filter`; "homogeneous" keeps constants.
        method: "separable" blurs along the d+1 axes of the lattice, one after another; "dense" convolves with all
            taps of size 2 at once, more accurate where lattice points are missing, and slow beyond d = 4.
        halo: insert untouched lattice points up to this many steps away: more accurate, more memory.
        lattice: built before with `separable=True` (or `neighborhood_size=2` for "dense"), instead of features.

    Returns:
        `[target points, channels]`, with the batch axes of `values`; zero at targets that no source comes near.

    >>> import permutohedral as ph
    >>> features = torch.rand(100, 2) * 5
    >>> bool(torch.allclose(ph.gaussian_filter(torch.ones(100, 1), features), torch.ones(100, 1)))
    True
    """
    if method not in ("separable", "dense"):
        raise InputError(f"method must be 'separable' or 'dense', got {method!r}")
    dense = method == "dense"
    size = 2 if dense else 0
    if lattice is not None and halo:
        raise InputError("a given lattice has its halo already: pass halo to build_lattice instead")
    if lattice is not None and lattice.neighborhood_size < size:
        raise InputError(
            "the dense method needs a lattice built with neighborhood_size=2, got one of "
            f"{lattice.neighborhood_size}, which cuts the Gaussian off"
        )
    at_once = normalization == "homogeneous" and lattice is None and target_features is None and not (dense or halo)
    if at_once and (filtered := filter_points(values, features, _SMALLEST_MASS)) is not None:
        return filtered
    lattice = _lattice_for(features, target_features, lattice, size, halo, separable=not dense)
    gaussian = _DENSE if dense else _SEPARABLE
    if normalization != "homogeneous":
        return _normalized(values, lattice, normalization, gaussian.blur, gaussian)
    check_points(values, lattice)
    smallest = max(_SMALLEST_MASS, torch.finfo(values.dtype).tiny)
    if not dense and has_no_gradient(values, lattice):
        return _fused_gaussian(values, lattice, smallest)
    # the mass is one more channel
    ones = values.new_ones(()).expand(*values.shape[:-1], 1)
    filtered = _apply(torch.cat([values, ones], dim=-1), lattice, gaussian.blur)
    return filtered[..., :-1] / (filtered[..., -1:] + smallest)


def bilateral_filter(
    image: Tensor,
    sigma_space: Sigma,
    sigma_range: Sigma,
    guide: Tensor | None = None,
    method: GaussianMethod = "separable",
    halo: int = 0,
) -> Tensor:
    """Smooth an image and keep its edges: the Gaussian filter over position and color.

    Args:
        image: float `[..., channels, height, width]`.
        sigma_space: standard deviation over positions, in pixels; one number, or one for y and one for x.
        sigma_range: standard deviation over colors, in units of the guide's values; one, or one for each channel.
        guide: `[..., guide channels, height, width]`, whose edges are kept; default: the image itself.
        method: see `gaussian_filter`.
        halo: see `gaussian_filter`.

    Returns:
        The filtered image, of the shape of `image`.

    >>> import permutohedral as ph
    >>> ph.bilateral_filter(torch.rand(3, 32, 48), sigma_space=4.0, sigma_range=0.1).shape
    torch.Size([3, 32, 48])
    """
    features = bilateral_features(image if guide is None else guide, sigma_space, sigma_range)
    check_image(image)
    values = image.flatten(-2).transpose(-1, -2)
    *leading, channels, height, width = image.shape
    if guide is not None:
        check_guide(guide, image)
    if features.dim() > 3:
        features, values = features.flatten(0, -3), values.flatten(0, -3)
    filtered = gaussian_filter(values, features, method=method, halo=halo)
    return filtered.transpose(-1, -2).reshape(*leading, channels, height, width)


# how lattice values become those at the target lattice points: by a learned filter or by a Gaussian
_Step = Callable[[Tensor, Lattice], Tensor]


def _convolve_with(lattice_values: Tensor, lattice: Lattice, weight: Tensor) -> Tensor:
    return convolve(lattice_values, weight, lattice)


def _convolve_with_gaussian(lattice_values: Tensor, lattice: Lattice) -> Tensor:
    weight = gaussian_weight(lattice.dimension, lattice.neighborhood_size, lattice_values.dtype, lattice.device)
    with torch.autocast(lattice.device.type, enabled=False):
        return convolve(lattice_values, weight, lattice)


def _check_separable(lattice: Lattice) -> Tensor:
    if lattice.axis_neighbors is None:
        raise InputError("the separable method needs a lattice built with separable=True")
    return lattice.axis_neighbors


def _blur_separably(lattice_values: Tensor, lattice: Lattice) -> Tensor:
    rows, leading = lattice_to_rows(lattice_values, lattice, lattice.source)
    blurred = operators.blur(rows, _check_separable(lattice), False)
    return unfold(blurred / blur_gain(lattice.dimension), leading)


@dataclass(frozen=True)
class _Gaussian:
    """A Gaussian on the lattice: how it blurs, and the size of the neighborhood whose taps it has."""

    blur: _Step
    size: Callable[[Lattice], int]


_DENSE = _Gaussian(_convolve_with_gaussian, lambda lattice: lattice.neighborhood_size)
_SEPARABLE = _Gaussian(_blur_separably, lambda lattice: 2)


def _normalized(
    values: Tensor, lattice: Lattice, normalization: Normalization, step: _Step, gaussian: _Gaussian
) -> Tensor:
    """Splat, `step`, slice, normalized; `gaussian` is the filter that the normalization measures mass with.

    Mass and density are of the dtype of the features: the least of them are zero in float16.
    """
    if normalization not in NORMALIZATIONS:
        raise InputError(f"normalization must be one of {', '.join(map(repr, NORMALIZATIONS))}, got {normalization!r}")
    # before anything is computed from them
    check_points(values, lattice)
    if normalization == "symmetric":
        values = (values * _mass(lattice.between_sources(), gaussian).rsqrt()).to(values.dtype)
    output = _apply(values, lattice, step, by_density=normalization in ("density", "coverage"))
    if normalization == "coverage":
        output = (output / _coverage(lattice, gaussian)).to(output.dtype)
    if normalization == "homogeneous":
        output = (output / _mass(lattice, gaussian)).to(output.dtype)
    if normalization == "symmetric":
        output = (output * _mass(lattice.between_targets(), gaussian).rsqrt()).to(output.dtype)
    return output


def _fused_gaussian(values: Tensor, lattice: Lattice, smallest_mass: float) -> Tensor:
    axis_neighbors = _check_separable(lattice)
    rows, leading = points_to_rows(values, lattice)
    source, target = lattice.source, lattice.target
    # splatted, blurred, and between the passes of the blur
    check_rows(3 * source.num_lattice_points, rows.shape[1] + 1, rows)
    tables = source.vertices, source.barycentric, axis_neighbors, target.vertices, target.barycentric
    filtered = operators.filter_gaussian(rows, *tables, smallest_mass)
    return rows_to_points(filtered, lattice, leading)


def _apply(values: Tensor, lattice: Lattice, step: _Step, by_density: bool = False) -> Tensor:
    lattice_values = splat(values, lattice)
    if by_density:
        density = splat_density(lattice)
        # a halo point, or a vertex that its points touch with weight zero, holds nothing to divide
        lattice_values = (lattice_values / torch.where(density > 0, density, 1.0)).to(values.dtype)
    return slice(step(lattice_values, lattice), lattice)


def _mass(lattice: Lattice, gaussian: _Gaussian) -> Tensor:
    """The Gaussian filter of ones, `[..., target points, 1]`."""
    ones = lattice.source.barycentric.new_ones(lattice.source.num_points, 1)
    if lattice.batch_size is not None:
        ones = ones.reshape(lattice.batch_size, lattice.points_per_item[0], 1)
    return _apply(ones, lattice, gaussian.blur) + _SMALLEST_MASS


def _coverage(lattice: Lattice, gaussian: _Gaussian) -> Tensor:
    """The share of the Gaussian that lies on occupied lattice points, `[..., target points, 1]`.

    Never less than one tap's share, so that what a lone far sample gives is not blown up to a full signal.
    """
    density = splat_density(lattice).detach()
    around = slice(gaussian.blur((density > 0).to(density.dtype), lattice), lattice)
    size = gaussian.size(lattice)
    whole = float(gaussian_weight(lattice.dimension, size, torch.float64).sum())
    return (around / whole).clamp_min(1 / count_taps(lattice.dimension, size))


def _splat(rows: Tensor, simplices: Simplices) -> Tensor:
    check_rows(simplices.num_lattice_points, rows.shape[1], rows)
    return operators.splat(rows, simplices.vertices, simplices.barycentric, simplices.num_lattice_points)


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
