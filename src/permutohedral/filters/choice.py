"""Which method `method="auto"` takes: one close to the definition that takes at most a third longer than a lattice.

That is the exact one, over a window as wide as the time permits; else landmarks (`landmarks.py`), if few are needed;
else a grid over positions and colors (`color_grid.py`), as fine as is needed and the time permits; else the lattice
itself. The choice follows from the input alone, whatever the backend, so that results do not depend on the machine.
Times are estimated by the constants below, in nanoseconds of one core with vectors of 32 bytes, as fitted to
photographs. The lattice among them is the one that the goal of docs/accuracy.md names, whose time today's takes two
thirds to all of. A halo is no choice: it takes more than a third of the time of the lattice.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from permutohedral.errors import AccuracyWarning
from permutohedral.features import Sigma, bilateral_features, check_image, numbers_of
from permutohedral.filters.color_grid import (
    COARSE,
    FINE,
    MOST_GUIDES,
    ColorAxes,
    GridSize,
    GridStep,
    estimate_size,
    find_axes,
)
from permutohedral.filters.exact import Window, has_no_window, sigma_in_pixels, window_of, window_size
from permutohedral.filters.landmarks import Landmarks, cell_size, choose_landmarks
from permutohedral.ops import operators
from permutohedral.ops.tracing import is_plain, is_recorded, is_traced, wants_gradient
from permutohedral.tensors import check_features, check_tensor

# windows that reach this far, in standard deviations, leave out 1.1, 4.4, 8.9 and 13.5 % of the mass of the Gaussian:
# what that changes is a tenth to a half of what the lattice does; landmarks and grids come before the narrow ones
_REACHES = 3.0, 2.5, 2.2, 2.0
_NARROW = 2.2
# how much longer than the lattice another method may take: a third, less what the estimates may be wrong
_SLOWER = 1.28

# all in nanoseconds; of the lattice: for each corner of a point, and for each axis at each lattice point
_CORNER, _LATTICE_POINT = 14.0, 30.0
# of the exact method: for each pair, and each of its features and channels; for each pixel besides
_PAIR, _PAIR_CHANNEL, _PIXEL = 0.32, 0.05, 32.0
# of narrower windows than the first, whose weights are rough, as a part of that
_ROUGH = 0.85
# of landmarks, for four channels: for each pixel, with what it takes to find them in a photograph, and each landmark
# there; for each node between cells of pixels, each landmark and each pair of landmarks there
_LANDMARKS_PIXEL, _TERM, _NODE_TERM, _NODE_PAIR = 60.0, 1.0, 20.0, 0.16
# of a grid, for four channels: for each pixel, with what it takes to find its axes, and each node over colors that is
# stored; for each place between cells, and each row of nodes there
_GRID_PIXEL, _GRID_NODE, _GRID_PLACE, _GRID_ROW = 84.0, 21.5, 1470.0, 70.0
# windows of fewer pixels are not worth a grid
_LEAST_SIGMA = 3.0
# up to so many nodes that colors take up, landmarks are few; up to so many, every color sees many that are three
# standard deviations away, where a coarse grid is far off; and how many landmarks there are to such a node at least
_FEW_LANDMARKS, _WIDE_GAUSSIAN, _LANDMARKS_OF_A_NODE = 9.0, 45.0, 0.4

# squares of a picture in which lattice points are counted
_SIDE, _SQUARES_ALONG = 24, 2
# what lies around a square belongs to it as well, in standard deviations on both sides together
_AROUND = 0.6
# lattice points of a cloud for each point, which are not counted
_OF_A_CLOUD = 1.0


@dataclass(frozen=True)
class Choice:
    """What the automatic method takes.

    Attributes:
        method: "exact", "landmarks", "grid" or "separable".
        reason: why, with the estimated times of one core.
        reach: of the window of the exact method, in standard deviations.
        colors: the landmarks to take, or the axes of the grid.
        window: the picture they are of.

    >>> print(Choice("exact", "few points"))
    exact: few points
    """

    method: Literal["exact", "landmarks", "grid", "separable"]
    reason: str
    reach: float = _REACHES[0]
    colors: Landmarks | ColorAxes | None = None
    window: Window | None = None

    def __str__(self) -> str:
        return f"{self.method}: {self.reason}"


def explain_gaussian(values: Tensor, features: Tensor, target_features: Tensor | None = None) -> str:
    """Which method `gaussian_filter` takes with `method="auto"`, and why.

    >>> explain_gaussian(torch.rand(100, 3), torch.rand(100, 5)).split(":")[0]
    'exact'
    """
    check_tensor("values", values)
    check_features(features, target_features)
    return str(choose_for_points(values, features, target_features))


def explain_bilateral(
    image: Tensor, sigma_space: Sigma, sigma_range: Sigma, guide: Tensor | None = None, *, spatial_axes: int = 2
) -> str:
    """Which method `bilateral_filter` takes with `method="auto"`, and why.

    >>> explain_bilateral(torch.rand(3, 40, 50), sigma_space=1.0, sigma_range=0.1).split(":")[0]
    'exact'
    """
    check_image(image, spatial_axes)
    edges = image if guide is None else guide
    if spatial_axes == 2:
        return str(choose_for_pixels(image, edges, sigma_space, sigma_range))
    features = bilateral_features(edges, sigma_space, sigma_range, spatial_axes=spatial_axes)
    return str(choose_for_points(image.flatten(-spatial_axes).mT, features, None))


def choose_for_points(values: Tensor, features: Tensor | None, target_features: Tensor | None) -> Choice:
    """All pairs against a lattice of which nothing but the number of its points is known.

    >>> few, many = torch.rand(200, 5), torch.rand(20000, 5)
    >>> choose_for_points(few, few, None).method, choose_for_points(many, many, None).method
    ('exact', 'separable')
    """
    targets_fit = target_features is None or _has_points(target_features)
    if features is None or not (_has_points(features) and _has_points(values) and targets_fit):
        # left to the lattice to refuse
        return Choice("separable", "there are no features or no values")
    sources, dimension = features.shape[-2:]
    targets = sources if target_features is None else target_features.shape[-2]
    pairs = sources * targets * _pair_time(dimension, values.shape[-1])
    lattice = (sources + targets) / 2 * _lattice_time(dimension, _OF_A_CLOUD)
    times = f"about {_in_words(pairs)} for all pairs, {_in_words(lattice)} for the lattice"
    return Choice("exact" if pairs <= _SLOWER * lattice else "separable", times)


def _has_points(given: object) -> bool:
    return isinstance(given, Tensor) and given.dim() >= 2


def choose_for_pixels(image: Tensor, guide: Tensor, sigma_space: Sigma, sigma_range: Sigma) -> Choice:
    """A window, landmarks, a grid or the lattice, whose points are counted in parts of the picture if need be.

    >>> image = torch.rand(3, 60, 60)
    >>> choose_for_pixels(image, image, 1.0, 0.1).method
    'exact'
    """
    check_image(guide)
    if has_no_window(sigma_space):
        return Choice("separable", "a window has no derivative with respect to sigma_space")
    *items, guides, height, width = guide.shape
    pixels, dimension = math.prod(items) * height * width, 2 + guides
    # images that share their guide are channels
    channels = image.shape[:-2].numel() // max(math.prod(items), 1)
    sigmas = sigma_in_pixels(sigma_space, height, width)
    windows = [window_size(sigmas, reach, height, width) for reach in _REACHES]
    pair = _pair_time(guides, channels)
    exact = [pixels * (_PIXEL + size * pair * (_ROUGH if number else 1.0)) for number, size in enumerate(windows)]
    fewest, most = (pixels * _lattice_time(dimension, density) for density in (0.0, dimension + 1.0))
    if exact[0] <= _SLOWER * fewest:
        return Choice("exact", f"about {_in_words(exact[0])}, less than for any lattice")
    if exact[-1] > _SLOWER * most and min(sigmas) < _LEAST_SIGMA:
        return Choice("separable", f"a window of {windows[-1]:,} pixels takes longer than the lattice")
    if is_traced():
        return _choose_unseen()
    lattice = pixels * _lattice_time(dimension, _lattice_points_per_pixel(guide, sigmas, sigma_range))
    options = [
        Choice(
            "exact",
            f"about {_in_words(time)} for a window of {size:,} pixels, {_in_words(lattice)} for a lattice",
            reach,
        )
        for reach, size, time in zip(_REACHES, windows, exact, strict=True)
        if time <= _SLOWER * lattice
    ]
    if options and options[0].reach > _NARROW:
        return options[0]
    found = _over_colors(image, guide, sigmas, sigma_range, lattice)
    if found is not None:
        return found
    times = f"about {_in_words(exact[-1])} for a window of {windows[-1]:,} pixels, {_in_words(lattice)} for the lattice"
    return options[0] if options else Choice("separable", times)


def _choose_unseen() -> Choice:
    """The lattice, where pixels cannot be looked at; a plain call may take something else."""
    reason = "torch traces or transforms the call, so that pixels cannot be looked at"
    # a warning would end the graph of a compiler
    if not is_recorded():
        advice = 'name a method, such as "exact" or "separable", for the results of a plain call'
        warnings.warn(f'method="auto" takes the lattice here: {reason}; {advice}', AccuracyWarning, stacklevel=4)
    return Choice("separable", reason)


def _over_colors(
    image: Tensor, guide: Tensor, sigmas: tuple[float, float], sigma_range: Sigma, lattice: float
) -> Choice | None:
    """Landmarks or a grid that take little longer than the lattice; none for what is differentiated."""
    *items, guides, height, width = guide.shape
    count = math.prod(items)
    if guides > MOST_GUIDES or min(sigmas) < _LEAST_SIGMA or count * guides * height * width == 0:
        return None
    if wants_gradient(image, guide, sigma_range) or not is_plain(image, guide):
        return None
    # the mass is one more channel
    passes = math.ceil((image.shape[:-2].numel() // count + 1) / 4)
    # in one piece, as it is needed later on: what is found out takes less time
    pictures, ranges = guide.reshape(-1, guides, height, width).contiguous(), numbers_of(sigma_range, guides)
    axes = find_axes(pictures, ranges)
    if axes is None:
        return None
    request = _Request(pictures, axes, ranges, sigmas, passes, lattice)
    order: list[GridStep | None] = [COARSE, None]
    if axes.spread <= _WIDE_GAUSSIAN:
        order = [None, FINE, COARSE] if axes.spread <= _FEW_LANDMARKS else [FINE, None, COARSE]
    for step in order:
        colors, reason = _few_landmarks(request) if step is None else _grid(request, step)
        if colors is not None:
            name: Literal["landmarks", "grid"] = "landmarks" if isinstance(colors, Landmarks) else "grid"
            return Choice(name, reason, colors=colors, window=window_of(pictures, sigmas, sigma_range))
    return None


@dataclass(frozen=True, eq=False)
class _Request:
    """What is filtered: the guide `[items, guide channels, height, width]`, the axes of its colors, bandwidths, passes
    over four channels each, and the time of a lattice."""

    guide: Tensor
    axes: ColorAxes
    ranges: Sequence[float]
    sigmas: Sequence[float]
    passes: int
    lattice: float

    @property
    def pixels(self) -> int:
        return self.guide.shape[0] * self.guide.shape[-2:].numel()

    @cached_property
    def size(self) -> GridSize | None:
        """Of a coarse grid."""
        return estimate_size(self.guide, self.ranges, self.sigmas, self.axes)


def _few_landmarks(request: _Request) -> tuple[Landmarks | None, str]:
    most = _most_landmarks(_SLOWER * request.lattice / (request.pixels * request.passes), request.sigmas)
    if most <= _LANDMARKS_OF_A_NODE * request.axes.spread:
        return None, ""
    found = choose_landmarks(request.guide, request.ranges, most)
    if found is None or not found.can_repair(request.sigmas, request.guide.shape[-2:].numel()):
        return None, ""
    return found, f"{found.colors.shape[0]} colors take no longer than {_in_words(request.lattice)} for a lattice"


def _grid(request: _Request, step: GridStep) -> tuple[ColorAxes | None, str]:
    pixels = request.pixels * request.passes * _GRID_PIXEL
    size = request.size if pixels <= _SLOWER * request.lattice else None
    if size is None or step not in size.steps:
        return None, ""
    # at each place there are about as many nodes: the closer they are, the fewer are the colors there
    places = request.guide.shape[0] * size.places * (COARSE.cell / step.cell) ** 2
    time = pixels + places * (request.passes * (size.nodes * _GRID_NODE + _GRID_PLACE) + size.rows * _GRID_ROW)
    if time > _SLOWER * request.lattice:
        return None, ""
    nodes = f"{places * size.nodes:,.0f}"
    return request.axes.with_step(
        step
    ), f"about {_in_words(time)} for {nodes} nodes, {_in_words(request.lattice)} for a lattice"


def _most_landmarks(time: float, sigmas: Sequence[float]) -> int:
    """How many can be taken in so much time for each pixel."""
    nodes, left = 1 / (cell_size(sigmas[0]) * cell_size(sigmas[1])), time - _LANDMARKS_PIXEL
    if left <= 0:
        return 0
    # left = linear most + squared most^2
    linear, squared = _TERM + nodes * _NODE_TERM, nodes * _NODE_PAIR
    return int(2 * left / (linear + math.sqrt(linear**2 + 4 * squared * left)))


def _pair_time(dimension: int, channels: int) -> float:
    return _PAIR + _PAIR_CHANNEL * (dimension + channels)


def _lattice_time(dimension: int, density: float) -> float:
    """For each point, with `density` lattice points to a point."""
    return (dimension + 1) * (_CORNER + _LATTICE_POINT * density)


def _lattice_points_per_pixel(guide: Tensor, sigmas: tuple[float, float], sigma_range: Sigma) -> float:
    """Counted in a few squares of the first item."""
    with torch.no_grad():
        first = guide[(0,) * (guide.dim() - 3)]
        squares = [first[:, rows, columns] for rows in _places(first.shape[1]) for columns in _places(first.shape[2])]
        # one below another: where a square lies changes next to nothing
        features = bilateral_features(torch.cat(squares, dim=1), sigmas, sigma_range)
        items = torch.arange(len(squares), dtype=torch.int32, device=guide.device)
        keys = operators.index_points(features, items.repeat_interleave(features.shape[0] // len(squares)))[0]
    extents = zip(squares[0].shape[1:], first.shape[1:], sigmas, strict=True)
    wider = math.prod(1 + _AROUND * sigma / part for part, whole, sigma in extents if part < whole)
    return keys.shape[0] / (features.shape[0] * wider)


def _places(extent: int) -> list[slice]:
    """The squares along an axis, in the middle of equal parts of it; the whole axis if it is short."""
    if extent <= _SIDE * _SQUARES_ALONG:
        return [slice(0, extent)]
    middles = [(2 * part + 1) * extent // (2 * _SQUARES_ALONG) for part in range(_SQUARES_ALONG)]
    return [slice(middle - _SIDE // 2, middle + _SIDE // 2) for middle in middles]


def _in_words(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.2g} ms"
