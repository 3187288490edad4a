"""The Gaussian filter by its definition: sums over the sources near each target, without a lattice.

The time grows with the number of pairs, so it pays for few points and small windows, and shows what the lattice
approximates (`accuracy.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from permutohedral.errors import FeatureRangeError, InputError
from permutohedral.features import Sigma, in_units_of, numbers_of
from permutohedral.filters.color_grid import ColorAxes, sum_color_grid
from permutohedral.filters.normalization import Normalization
from permutohedral.lattice.lattice import check_batches, flatten_points
from permutohedral.lattice.tensors import check_features, check_tensor, has_finite_sum
from permutohedral.ops.backend import Backend
from permutohedral.ops.binding import bind
from permutohedral.ops.contract import SMALLEST_MASS, accumulation_dtype
from permutohedral.ops.reference import window_extents
from permutohedral.ops.tracing import is_recorded, is_traced, is_transformed, wants_gradient

# sources farther away than this, in standard deviations, have weights below 1.3e-14 and are left out
POINTS_REACH = 8.0
# pixels farther away than this hold 3.7e-6 of the mass of the Gaussian, less than one step of 16 bits
WINDOW_REACH = 5.0

# a standard deviation of more than this many extents of an image weighs all its pixels alike, also in float64
_WIDEST = 2.0**30

EXACT_NORMALIZATIONS: tuple[Normalization, ...] = ("homogeneous", "none", "symmetric")


def sum_points(
    values: Tensor, normalization: Normalization, features: Tensor, target_features: Tensor | None = None
) -> Tensor:
    """Run the exact Gaussian filter between points.

    Args:
        values: `[..., points, channels]` for features `[points, d]`, else `[batch, points, channels]`.
        normalization: "homogeneous", "none" or "symmetric".
        features: `[points, d]` or `[batch, points, d]`, in standard deviations.
        target_features: where results are wanted; None for the points themselves.

    Returns:
        `[..., target points, channels]`.
    """
    check_features(features, target_features)
    _check_values(values, features)
    _check_normalization(normalization, EXACT_NORMALIZATIONS)
    targets = features if target_features is None else target_features
    for given in (features, targets):
        check_finite(given)
    ops, wide = bind(values, features, targets), values.to(features.dtype)
    if features.dim() == 3:
        items = [_sum(ops, *item, normalization) for item in zip(wide, features, targets, strict=True)]
        filtered = torch.stack(items) if items else wide.new_zeros(0, targets.shape[1], values.shape[2])
        return filtered.to(values.dtype)
    # items that share their features are channels
    *leading, points, channels = values.shape
    rows = wide.movedim(-2, 0).reshape(points, math.prod(leading) * channels)
    filtered = _sum(ops, rows, features, targets, normalization)
    return filtered.reshape(targets.shape[0], *leading, channels).movedim(0, -2).to(values.dtype)


def separate_items(
    features: Tensor, target_features: Tensor | None, batch: Tensor | None, target_batch: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the features with a coordinate that puts the items of a ragged batch beyond each other's reach."""
    if batch is None and target_batch is None:
        return features, target_features
    check_features(features, target_features)
    check_batches(batch, target_batch, target_features is not None)

    def separate(points: Tensor, items: Tensor | None, name: str) -> Tensor:
        points, item = flatten_points(points, items, name)
        assert item is not None
        return torch.cat([points, (item[:, None] * 2 * POINTS_REACH).to(points.dtype)], dim=1)

    sources = separate(features, batch, "batch")
    return sources, None if target_features is None else separate(target_features, target_batch, "target_batch")


@dataclass(frozen=True, eq=False)
class Window:
    """The window that is summed around each pixel.

    Attributes:
        guide: `[items, guide channels, height, width]`, in standard deviations, or as it is for a color grid.
        sigma: over y and x, in pixels.
        reach: how far it extends, in standard deviations.
    """

    guide: Tensor
    sigma: tuple[float, float]
    reach: float


def window_size(sigma: tuple[float, float], reach: float, height: int, width: int) -> int:
    """Return the number of pixels in the window of a pixel far from the borders.

    >>> window_size((1.0, 1.0), 2.0, 100, 100)
    13
    """
    along = [2 * extent + 1 for extent in window_extents(*sigma, reach, height, width)]
    return 2 * sum(along) - sum(along[:1])


def needs_sigma_gradient(sigma_space: Sigma) -> bool:
    """Return whether a derivative with respect to `sigma_space` may be wanted, which a window does not have."""
    return isinstance(sigma_space, Tensor) and (is_traced() or wants_gradient(sigma_space))


def sigma_in_pixels(sigma_space: Sigma, height: int, width: int) -> tuple[float, float]:
    """Return sigma over y and x, limited to where more makes no difference, so that squares do not overflow."""
    sigma_y, sigma_x = numbers_of(sigma_space, 2, "sigma_space")
    return min(sigma_y, _WIDEST * max(height, 1)), min(sigma_x, _WIDEST * max(width, 1))


def window_of(
    guide: Tensor, sigma_space: Sigma, sigma_color: Sigma | None, reach: float = WINDOW_REACH
) -> Window | None:
    """Return the window of a bilateral filter, or without sigma_color of a color grid; None to differentiate sigma."""
    if needs_sigma_gradient(sigma_space):
        return None
    sigma = sigma_in_pixels(sigma_space, *guide.shape[-2:])
    units = guide.to(accumulation_dtype(guide.dtype))
    if sigma_color is not None:
        units = in_units_of(units.movedim(-3, -1), sigma_color, "sigma_color").movedim(-1, -3)
        check_finite(units)
    # without channels, the number of items does not follow from the other extents
    return Window(units.reshape(units.shape[:-3].numel(), *units.shape[-3:]), sigma, reach)


def sum_pixels(values: Tensor, normalization: Normalization, window: Window, axes: ColorAxes | None = None) -> Tensor:
    """Filter the pixels of images, each over its window or, given color axes, on a color grid.

    Args:
        values: `[..., points, channels]`, the pixels in scan order; for a guide of several items, as many items.
        normalization: "homogeneous" or "none".
        window: what the pixels look at.
        axes: of the color grid; None sums over the window.

    Returns:
        Like values.
    """
    _check_normalization(normalization, ("homogeneous", "none"))
    if values.numel() == 0:
        # empty, with derivatives
        return values * window.guide.sum().to(values.dtype)
    items, _, height, width = window.guide.shape
    *leading, _, channels = values.shape
    # pictures that share their guide are channels
    pixels = values.to(window.guide.dtype).mT.reshape(items, math.prod(leading) * channels // items, height, width)
    if axes is None:
        if normalization == "homogeneous":
            pixels = torch.cat([pixels, pixels.new_ones(()).expand(items, 1, height, width)], dim=1)
        sums = bind(pixels, window.guide).sum_window(pixels, window.guide, *window.sigma, window.reach)
    else:
        sums = sum_color_grid(pixels, window.guide, window.sigma, axes)
        sums = sums if normalization == "homogeneous" else sums[:, :-1]
    if normalization == "homogeneous":
        sums, mass = sums[:, :-1], sums[:, -1:] + SMALLEST_MASS
        # the grid has no gradients
        sums = sums / mass if axes is None else sums.div_(mass)
    return sums.reshape(*leading, channels, height * width).mT.to(values.dtype)


def check_finite(features: Tensor) -> None:
    """Raise if a feature is NaN or infinite, as a lattice does. A compiled program raises a RuntimeError."""
    if is_recorded() and not is_transformed() and features.device.type == "cpu":
        torch._assert_async(features.isfinite().all(), "features must be finite, but some are NaN or infinite")
    if is_traced() or has_finite_sum(features) or bool(torch.isfinite(features).all()):
        return
    bad = int((~torch.isfinite(features)).sum())
    raise FeatureRangeError(
        f"features must be finite, but {bad} of {features.numel()} numbers are NaN or infinite; remove or repair them"
    )


def _check_values(values: Tensor, features: Tensor) -> None:
    check_tensor("values", values)
    expected = tuple(features.shape[:-1])
    fits = values.dim() == 3 if features.dim() == 3 else values.dim() >= 2
    if not fits or tuple(values.shape[-1 - len(expected) : -1]) != expected:
        wanted = ", ".join(map(str, expected)) if features.dim() == 3 else f"..., {expected[0]}"
        raise InputError(f"values must be [{wanted}, channels] for these features, got {tuple(values.shape)}")
    if not values.is_floating_point() or accumulation_dtype(values.dtype) != features.dtype:
        raise InputError(
            f"values are {values.dtype} but the features {features.dtype}; convert one (values of 16 bits go with "
            "float32 features)"
        )
    if values.device != features.device:
        raise InputError(f"values are on {values.device} but the features on {features.device}; move one")


def _check_normalization(normalization: Normalization, known: Sequence[Normalization]) -> None:
    if normalization not in known:
        raise InputError(
            f"the exact method has the normalizations {', '.join(map(repr, known))}, got {normalization!r}; those that "
            "divide by what lies on lattice points need method='lattice'"
        )


def _sum(ops: Backend, rows: Tensor, features: Tensor, targets: Tensor, normalization: Normalization) -> Tensor:
    """Filter `[points, channels]` to `[target points, channels]`."""
    if normalization == "none":
        return ops.sum_neighbors(rows, features, targets, POINTS_REACH)
    ones = rows.new_ones(rows.shape[0], 1)
    if normalization == "homogeneous":
        sums = ops.sum_neighbors(torch.cat([rows, ones], dim=1), features, targets, POINTS_REACH)
        return sums[:, :-1] / (sums[:, -1:] + SMALLEST_MASS)
    mass = ops.sum_neighbors(ones, features, features, POINTS_REACH)
    ones = rows.new_ones(targets.shape[0], 1)
    target_mass = mass if targets is features else ops.sum_neighbors(ones, targets, targets, POINTS_REACH)
    return ops.sum_neighbors(rows * mass.rsqrt(), features, targets, POINTS_REACH) * target_mass.rsqrt()
