"""The automatic method: the closest to the exact Gaussian among the methods that cost about as much as the lattice.

The candidates are exact sums (`exact.py`), a color grid (`color_grid.py`, on the CPU) and the lattice. Their times are
estimated from the input and from the device of its tensors.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from permutohedral.errors import AccuracyWarning
from permutohedral.features import Sigma, ValueRange, check_channels_first, check_guide, check_image, numbers_of
from permutohedral.features import bilateral as bilateral_features
from permutohedral.filters.color_grid import (
    COARSE,
    MAX_GUIDE_CHANNELS,
    ColorAxes,
    count_places,
    find_axes,
    has_color_grid,
    is_within_limits,
)
from permutohedral.filters.exact import needs_sigma_gradient, separate_items, sigma_in_pixels, window_size
from permutohedral.filters.images import Data, ImageFormat
from permutohedral.lattice.tensors import check_features, check_tensor
from permutohedral.ops.binding import bind
from permutohedral.ops.tracing import is_recorded, is_traced

# windows of the exact method, in standard deviations: they leave out 1.1 and 4.4 % of the mass of the Gaussian
_REACHES = 3.0, 2.5
# largest time of another method, relative to the lattice
_MAX_TIME_RATIO = 1.5
# the grid needs cells of several pixels
_MIN_GRID_SIGMA = 3.0
# numbers that a pair costs in addition to its features and channels: distance and exponential
_PAIR_NUMBERS = 6
# work at each place of the color grid, in nodes, in addition to its own nodes
_PLACE_NODES = 130
# with more lattice points for each pixel than this, colors hardly share nodes of the color grid
_MAX_GRID_DENSITY = 2.0
# lattice points are counted in this many squares along each axis of an image, each of this side
_SQUARES, _SIDE = 2, 24
# how far lattice points extend beyond a square, in standard deviations, both sides together
_SQUARE_MARGIN = 0.6


class Costs(NamedTuple):
    """Estimated times of a device, in nanoseconds.

    Attributes:
        corner: of the lattice, for each corner of a point.
        lattice_point: of the lattice, for each lattice point and axis; 0 means that the number of lattice points is
            not looked at.
        pixel: of the exact method, for each pixel.
        pair: of the exact method, for each pair of points and each number that is read for it.
        grid_pixel: of the color grid, for each pixel and up to four channels; infinite if there is no fast grid.
        grid_node: of the color grid, for each node and up to four channels.
    """

    corner: float
    lattice_point: float
    pixel: float
    pair: float
    grid_pixel: float
    grid_node: float

    def lattice(self, dimension: int, density: float) -> float:
        """Estimate the lattice for each point, with `density` lattice points for each point."""
        return (dimension + 1) * (self.corner + density * self.lattice_point)

    def pairs(self, count: int, dimension: int, channels: int) -> float:
        """Estimate the sum over `count` pairs of points."""
        return count * self.pair * (_PAIR_NUMBERS + dimension + channels)


# photographs of 481 x 321 pixels on one core with AVX-512; those of the grid, relative to the lattice, are fitted to
# BSDS500's training set, of which docs/research/accuracy.md uses none
CPU_COSTS = Costs(corner=3.7, lattice_point=13.0, pixel=17.0, pair=0.013, grid_pixel=31.0, grid_node=10.0)
# H200, 1024 x 1024 color pixels: lattice 0.54 ms; exact window of 16 px, 5 standard deviations wide: 75 ms
GPU_COSTS = Costs(corner=0.086, lattice_point=0.0, pixel=0.0, pair=0.0003, grid_pixel=math.inf, grid_node=math.inf)


def costs_of(device: torch.device) -> Costs:
    """Return the costs of a device; every device but the CPU counts as a GPU.

    >>> costs_of(torch.device("cuda")).grid_node
    inf
    """
    return CPU_COSTS if device.type == "cpu" else GPU_COSTS


@dataclass(frozen=True)
class MethodChoice:
    """The method that `method="auto"` uses for one call.

    Attributes:
        method: "exact", "grid" or "lattice".
        reason: the estimated times behind the choice.
        reach: of the window of the exact method, in standard deviations.
        axes: of the color grid.
        guide: of the color grid, contiguous.

    >>> import permutohedral as ph
    >>> print(ph.accuracy.MethodChoice("exact", "few points"))
    exact: few points
    """

    method: Literal["exact", "grid", "lattice"]
    reason: str
    reach: float = _REACHES[0]
    axes: ColorAxes | None = None
    guide: Tensor | None = None

    def __str__(self) -> str:
        return f"{self.method}: {self.reason}"


def explain_gaussian(
    values: Tensor,
    features: Tensor,
    target_features: Tensor | None = None,
    *,
    batch: Tensor | None = None,
    target_batch: Tensor | None = None,
) -> MethodChoice:
    """Explain which method `gaussian_filter` uses with `method="auto"`.

    >>> import torch, permutohedral as ph
    >>> ph.accuracy.explain_gaussian(torch.rand(100, 3), torch.rand(100, 5)).method
    'exact'
    """
    check_tensor("values", values)
    check_features(features, target_features)
    return choose_for_points(values, *separate_items(features, target_features, batch, target_batch))


def explain_bilateral(
    image: Data,
    guide: Data | None = None,
    *,
    sigma_space: Sigma,
    sigma_color: Sigma,
    spatial_dims: int = 2,
    channels_last: bool = False,
    value_range: ValueRange | None = None,
) -> MethodChoice:
    """Explain which method `bilateral_filter` uses with `method="auto"`, from its other arguments.

    >>> import torch, permutohedral as ph
    >>> ph.accuracy.explain_bilateral(torch.rand(3, 40, 50), sigma_space=1.0, sigma_color=0.1).method
    'exact'
    """
    layout = ImageFormat(spatial_dims, channels_last, value_range)
    pixels, edges = layout.read_both(image, guide)
    check_image(pixels, spatial_dims)
    edges = pixels if edges is None else edges
    check_channels_first(edges, spatial_dims, "image" if guide is None else "guide")
    check_guide(edges, pixels, spatial_dims)
    if spatial_dims == 2:
        return choose_for_pixels(pixels, edges, sigma_space, sigma_color)
    features = bilateral_features(edges, sigma_space=sigma_space, sigma_color=sigma_color, spatial_dims=spatial_dims)
    return choose_for_points(pixels.flatten(-spatial_dims).mT, features, None)


def choose_for_points(values: Tensor, features: Tensor | None, target_features: Tensor | None) -> MethodChoice:
    """Choose between all pairs and a lattice with one lattice point for each point.

    >>> few, many = torch.rand(200, 5), torch.rand(20000, 5)
    >>> choose_for_points(few, few, None).method, choose_for_points(many, many, None).method
    ('exact', 'lattice')
    """
    given = [values, features] + [target_features] * (target_features is not None)
    if features is None or not all(isinstance(each, Tensor) and each.dim() >= 2 for each in given):
        return MethodChoice("lattice", "there are no features or no values")
    sources, dimension = features.shape[-2:]
    targets = sources if target_features is None else target_features.shape[-2]
    costs = costs_of(features.device)
    pairs = costs.pairs(sources * targets, dimension, values.shape[-1])
    lattice = (sources + targets) / 2 * costs.lattice(dimension, 1.0)
    times = f"about {_in_words(pairs)} for all pairs, {_in_words(lattice)} for the lattice"
    return MethodChoice("exact" if pairs <= _MAX_TIME_RATIO * lattice else "lattice", times)


def choose_for_pixels(
    image: Tensor, guide: Tensor, sigma_space: Sigma, sigma_color: Sigma, costs: Costs | None = None
) -> MethodChoice:
    """Choose between an exact window, a color grid and the lattice.

    Args:
        image: `[..., channels, height, width]`.
        guide: `[..., guide channels, height, width]`.
        sigma_space: standard deviation over positions, in pixels.
        sigma_color: standard deviation over colors, in units of the guide's values.
        costs: default: those of the guide's device.

    >>> image = torch.rand(3, 60, 60)
    >>> choose_for_pixels(image, image, 1.0, 0.1).method
    'exact'
    """
    if needs_sigma_gradient(sigma_space):
        return MethodChoice("lattice", "a window has no derivative with respect to sigma_space")
    costs = costs_of(guide.device) if costs is None else costs
    *items, guides, height, width = guide.shape
    pixels, dimension = math.prod(items) * height * width, 2 + guides
    # images that share their guide are channels
    channels = image.shape[:-2].numel() // max(math.prod(items), 1)
    sigmas = sigma_in_pixels(sigma_space, height, width)
    sizes = [window_size(sigmas, reach, height, width) for reach in _REACHES]
    exact = [pixels * (costs.pixel + costs.pairs(size, guides, channels)) for size in sizes]
    density, lattice = 0.0, pixels * costs.lattice(dimension, 0.0)
    if exact[0] <= _MAX_TIME_RATIO * lattice:
        return MethodChoice("exact", f"about {_in_words(exact[0])}, at least {_in_words(lattice)} for a lattice")
    if costs.lattice_point:
        if is_traced():
            return _choose_traced()
        density = _lattice_points_per_pixel(guide, sigmas, sigma_color)
        lattice = pixels * costs.lattice(dimension, density)
    for reach, size, time in zip(_REACHES, sizes, exact, strict=True):
        times = f"about {_in_words(time)} for a window of {size:,} pixels, {_in_words(lattice)} for the lattice"
        if time <= _MAX_TIME_RATIO * lattice:
            return MethodChoice("exact", times, reach)
    if min(sigmas) >= _MIN_GRID_SIGMA and density <= _MAX_GRID_DENSITY and 0 < guides <= MAX_GUIDE_CHANNELS:
        # the mass is one more channel
        passes = math.ceil((channels + 1) / 4)
        # photographs: about two stored nodes for each lattice point and one channel, four and eight for two and three
        nodes = pixels * density * 2**guides + math.prod(items) * count_places(guide, sigmas, COARSE) * _PLACE_NODES
        time = passes * (pixels * costs.grid_pixel + nodes * costs.grid_node)
        if time <= _MAX_TIME_RATIO * lattice:
            reason = f"about {_in_words(time)}, {_in_words(lattice)} for the lattice"
            return _choose_grid(image, guide, sigmas, sigma_color, reason) or MethodChoice("lattice", times)
    return MethodChoice("lattice", times)


def _choose_traced() -> MethodChoice:
    """Choose the lattice in traced calls, which cannot look at pixels; a plain call may choose another method."""
    reason = "torch traces or transforms the call, so that pixels cannot be looked at"
    # a warning would end the graph of a compiler
    if not is_recorded():
        advice = 'pass a method such as "exact" or "lattice" for the results of a plain call'
        warnings.warn(f'method="auto" takes the lattice here: {reason}; {advice}', AccuracyWarning, stacklevel=4)
    return MethodChoice("lattice", reason)


def _choose_grid(
    image: Tensor, guide: Tensor, sigmas: tuple[float, float], sigma_color: Sigma, reason: str
) -> MethodChoice | None:
    """Choose the color grid; None if the backend has none, for colors beyond its limits, or if gradients are wanted."""
    *_, guides, height, width = guide.shape
    if not has_color_grid(guide, image, sigma_color if isinstance(sigma_color, Tensor) else None):
        return None
    guide = guide.contiguous()
    pictures, ranges = guide.view(-1, guides, height, width), numbers_of(sigma_color, guides, "sigma_color")
    axes = find_axes(pictures, ranges)
    if axes is None or not is_within_limits(pictures, sigmas, axes):
        return None
    return MethodChoice("grid", reason, axes=axes, guide=guide)


def _lattice_points_per_pixel(guide: Tensor, sigmas: tuple[float, float], sigma_color: Sigma) -> float:
    """Count lattice points in a few squares of the first item."""
    with torch.no_grad():
        first = guide[(0,) * (guide.dim() - 3)]
        squares = [first[:, y, x] for y in _intervals(first.shape[1]) for x in _intervals(first.shape[2])]
        # one below another: positions of squares hardly change the count
        features = bilateral_features(torch.cat(squares, dim=1), sigma_space=sigmas, sigma_color=sigma_color)
        items = torch.arange(len(squares), dtype=torch.int32, device=guide.device)
        keys = bind(features).index_points(features, items.repeat_interleave(features.shape[0] // len(squares)))[0]
    extents = zip(squares[0].shape[1:], first.shape[1:], sigmas, strict=True)
    wider = math.prod(1 + _SQUARE_MARGIN * sigma / part for part, whole, sigma in extents if part < whole)
    return keys.shape[0] / (features.shape[0] * wider)


def _intervals(extent: int) -> list[slice]:
    """Return the intervals of the squares along an axis; all of a short axis."""
    if extent <= _SIDE * _SQUARES:
        return [slice(0, extent)]
    middles = [(2 * part + 1) * extent // (2 * _SQUARES) for part in range(_SQUARES)]
    return [slice(middle - _SIDE // 2, middle + _SIDE // 2) for middle in middles]


def _in_words(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.2g} ms"
