"""Accuracy: the error of a filtered signal at sampled points, and the method that "auto" uses."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.errors import DOCUMENTATION, AccuracyWarning, InputError
from permutohedral.features import Sigma, ValueRange, check_guide, check_image, numbers_of, space_in_words
from permutohedral.features import bilateral as bilateral_features
from permutohedral.filters.choice import MethodChoice, explain_bilateral, explain_gaussian
from permutohedral.filters.exact import separate_items, sum_points
from permutohedral.filters.images import ImageFormat
from permutohedral.lattice.tensors import check_count, check_tensor

__all__ = [
    "ErrorEstimate",
    "MethodChoice",
    "estimate_bilateral_error",
    "estimate_error",
    "explain_bilateral",
    "explain_gaussian",
]

# pixels are sampled in squares of this side, voxels in cubes, which share their surroundings
_SIDE = 3
# and look this far, in standard deviations: 3.4e-4 of the mass of the Gaussian lies beyond
_REACH = 4.0


@dataclass(frozen=True)
class ErrorEstimate:
    """The error of a filter at sampled targets.

    Attributes:
        relative: the error over the exact result, both as the square root of the sum of squares over all samples.
        of_change: the error over the change by the exact filter, None if the targets are other points.
        worst: the largest error of a channel at a sample, in units of the values.
        num_samples: number of targets.

    >>> import permutohedral as ph
    >>> print(ph.accuracy.ErrorEstimate(0.01, 0.1, 0.02, 128))
    relative error 1.0 %, 10.0 % of the change, at most 0.02 at 128 samples
    """

    relative: float
    of_change: float | None
    worst: float
    num_samples: int

    def __str__(self) -> str:
        change = "" if self.of_change is None else f" {100 * self.of_change:.1f} % of the change,"
        at_samples = f"at most {self.worst:.2g} at {self.num_samples} samples"
        return f"relative error {100 * self.relative:.1f} %,{change} {at_samples}"


def estimate_error(
    filtered: Tensor,
    values: Tensor,
    features: Tensor,
    target_features: Tensor | None = None,
    *,
    batch: Tensor | None = None,
    target_batch: Tensor | None = None,
    num_samples: int = 128,
    warn_above: float | None = None,
) -> ErrorEstimate:
    """Compare the result of `gaussian_filter`, homogeneously normalized, with exact sums at randomly drawn targets.

    The cost is at most that of `num_samples` times the number of points, in pairs.

    Args:
        filtered: `[target points, channels]`, the result of the filter.
        values: `[points, channels]`.
        features: `[points, d]`, in standard deviations.
        target_features: `[target points, d]`; None for the points themselves.
        batch: int `[points]`, the item of each point of a ragged batch.
        target_batch: the same for `target_features`.
        num_samples: number of targets that are drawn, always the same ones.
        warn_above: warn with an `AccuracyWarning` if the relative error is larger.

    >>> import torch, permutohedral as ph
    >>> values, features = torch.rand(500, 2), 3 * torch.rand(500, 2)
    >>> filtered = ph.gaussian_filter(values, features)
    >>> ph.accuracy.estimate_error(filtered, values, features).relative < 0.1
    True
    """
    check_count("num_samples", num_samples, least=1)
    targets = features if target_features is None else target_features
    named = {"filtered": filtered, "values": values, "features": features, "target_features": targets}
    for name, given in named.items():
        check_tensor(name, given)
        if given.dim() != 2:
            raise InputError(f"{name} must have two axes, got {tuple(given.shape)}; estimate the items one by one")
    if filtered.shape != (targets.shape[0], values.shape[-1]):
        raise InputError(f"filtered must be {[targets.shape[0], values.shape[-1]]}, got {list(filtered.shape)}")
    generator = torch.Generator().manual_seed(0)
    # whatever torch's default device is
    drawn = torch.randperm(targets.shape[0], generator=generator, device="cpu")[:num_samples].to(features.device)
    with torch.no_grad():
        items = batch if target_features is None else target_batch
        points = separate_items(features, targets[drawn], batch, None if items is None else items[drawn])
        exact = sum_points(values, "homogeneous", *points)
        before = values[drawn] if target_features is None else None
        return _compare(filtered[drawn], exact, before, warn_above)


def estimate_bilateral_error(
    filtered: Tensor | NDArray[Any],
    image: Tensor | NDArray[Any],
    guide: Tensor | NDArray[Any] | None = None,
    *,
    sigma_space: Sigma,
    sigma_color: Sigma,
    spatial_dims: int = 2,
    channels_last: bool = False,
    value_range: ValueRange | None = None,
    num_samples: int = 256,
    warn_above: float | None = None,
) -> ErrorEstimate:
    """Compare the result of `bilateral_filter` with exact sums at randomly drawn pixels, or voxels.

    Args:
        filtered: the result of the filter, tensor or NumPy array `[channels, *space]`; floats or integers.
        image: likewise.
        sigma_space: see `bilateral_filter`.
        sigma_color: see `bilateral_filter`.
        guide: `[guide channels, *space]`; default: the image itself.
        spatial_dims: how many axes follow the channels: 1 for signals, 2 for pictures, 3 for volumes.
        channels_last: filtered, image and guide are `[*space, channels]`.
        value_range: see `bilateral_filter`.
        num_samples: about the number of pixels that are drawn, always the same ones.
        warn_above: warn with an `AccuracyWarning` if the relative error is larger.

    >>> import torch, permutohedral as ph
    >>> image = torch.rand(3, 40, 50)
    >>> filtered = ph.bilateral_filter(image, sigma_space=2.0, sigma_color=0.5, method="exact")
    >>> ph.accuracy.estimate_bilateral_error(filtered, image, sigma_space=2.0, sigma_color=0.5).relative < 1e-4
    True
    """
    check_count("num_samples", num_samples, least=1)
    layout = ImageFormat(spatial_dims, channels_last, value_range)
    pixels, edges = layout.read_both(image, guide)
    result = layout.read("filtered", filtered, is_guide=edges is None)
    check_tensor("filtered", result)
    check_image(pixels, spatial_dims)
    edges = pixels if edges is None else edges
    check_guide(edges, pixels, spatial_dims)
    if pixels.dim() != spatial_dims + 1 or result.shape != pixels.shape:
        space = space_in_words(spatial_dims)
        raise InputError(
            f"image and filtered must be [{f'{space}, channels' if channels_last else f'channels, {space}'}], got "
            f"{tuple(image.shape)} and {tuple(filtered.shape)}; estimate the items of a batch one by one"
        )
    features_of = partial(
        bilateral_features, sigma_space=sigma_space, sigma_color=sigma_color, spatial_dims=spatial_dims
    )
    cubes = list(_cubes(pixels.shape[1:], numbers_of(sigma_space, spatial_dims, "sigma_space"), num_samples))
    if sum(_volume(around) for _, around in cubes) > math.prod(pixels.shape[1:]):
        # the surroundings of all cubes together are larger than the image
        values = result.flatten(1).mT, pixels.flatten(1).mT
        return estimate_error(*values, features_of(edges), num_samples=num_samples, warn_above=warn_above)
    found = []
    with torch.no_grad():
        for cube, around in cubes:
            there, here = (slice(None), *around), (slice(None), *cube)
            features = features_of(edges[there])
            targets = features.unflatten(0, pixels[there].shape[1:])[_within(cube, around)].flatten(0, -2)
            exact = sum_points(pixels[there].flatten(1).mT, "homogeneous", features, targets)
            found.append((result[here].flatten(1).mT, exact, pixels[here].flatten(1).mT))
        approximate, exact, before = (torch.cat(parts) for parts in zip(*found, strict=True))
        return _compare(approximate, exact, before, warn_above)


# along each axis of space
_Part = tuple[slice, ...]


def _cubes(size: Sequence[int], sigmas: Sequence[float], samples: int) -> Iterator[tuple[_Part, _Part]]:
    """Yield small cubes in a volume of `size`, or squares in an image, with their surroundings."""
    generator = torch.Generator().manual_seed(0)
    margins = [math.ceil(_REACH * sigma) for sigma in sigmas]
    for _ in range(math.ceil(samples / _SIDE ** len(size))):
        starts = [
            int(torch.randint(max(extent - _SIDE, 0) + 1, (), generator=generator, device="cpu")) for extent in size
        ]
        cube = tuple(slice(start, min(start + _SIDE, extent)) for start, extent in zip(starts, size, strict=True))
        yield (
            cube,
            tuple(
                slice(max(part.start - margin, 0), min(part.stop + margin, extent))
                for part, margin, extent in zip(cube, margins, size, strict=True)
            ),
        )


def _volume(part: _Part) -> int:
    return math.prod(interval.stop - interval.start for interval in part)


def _within(part: _Part, whole: _Part) -> _Part:
    """Return `part` relative to the start of `whole`."""
    return tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(part, whole, strict=True))


def _compare(approximate: Tensor, exact: Tensor, before: Tensor | None, warn_above: float | None) -> ErrorEstimate:
    # not every device has float64
    approximate, exact = approximate.cpu().double(), exact.cpu().double()
    difference = approximate - exact

    def over(denominator: Tensor) -> float:
        error, scale = float(difference.norm()), float(denominator.norm())
        return error / scale if scale > 0 else (0.0 if error == 0 else math.inf)

    worst = float(difference.abs().amax()) if difference.numel() else 0.0
    of_change = None if before is None else over(exact - before.cpu().double())
    estimate = ErrorEstimate(over(exact), of_change, worst, approximate.shape[0])
    if warn_above is not None and not estimate.relative <= warn_above:
        warnings.warn(
            f"the filter is far from exact: {estimate}; method='exact' or a halo are closer "
            f"(see {DOCUMENTATION}research/accuracy.html)",
            AccuracyWarning,
            stacklevel=3,
        )
    return estimate
