"""The Gaussian over position and color on a grid of nodes over both, instead of a lattice.

Colors are splatted, blurred and sliced along their main axes, with B-splines of second degree B and three taps b:

    exp(-|a - c|^2 / 2) = prod_axes sum_kl B(a / h - k) b(k - l) B(c / h - l) + error,   h: a `GridStep`

A color touches 27 nodes. Positions are splatted to the nodes around cells of pixels and interpolated between them. All
weights are positive and no path gets lost, so that colors which are rare, with little mass, come out as well as others;
the lattice is several times as far off (docs/accuracy.md). Of the nodes only those are stored that are needed. The
closer they are, over colors and over positions, the smaller the error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.filters.color_samples import sample_colors
from permutohedral.memory import check_rows
from permutohedral.ops import fused_filters
from permutohedral.ops.color_tables import ColorGridTables

# nodes along an axis that a color touches
_TAPS = 3
# channels of a guide, which are the axes of the grid; an axis that is not used has one node
MOST_GUIDES = 3
# how far the blur between the nodes over positions reaches, in its standard deviations
_BLUR_REACH = 3.0
# the pixels of a cell give to its nodes from the middles of so many parts along each axis
_PARTS = 2
# colors from which the axes are found
_SAMPLES = 4096
# places along each axis, and pixels along each axis at each of them, at which nodes are counted
_PLACES, _SIDE = 2, 20
# nodes that are stored, for each that is touched: as it was for photographs
_STORED = 1.75
# ranges of nodes at all places, and nodes along an axis, that there may be at most
_MOST_RANGES, _MOST_NODES = 1 << 23, 1 << 14
# nodes at all places that the compiled core can number
_MOST_STORED = 1 << 29
# channels that the compiled core sums at once
_CHANNELS_AT_ONCE = 4


@dataclass(frozen=True)
class GridStep:
    """How close the nodes are.

    Attributes:
        spacing: between the nodes over colors, in standard deviations.
        neighbor: the weight of a neighbor in the blur over them, for which the error is least near the middle of the
            Gaussian, and small at three standard deviations: there lie most of the pixels that a rare color sees.
        cell: between the nodes over positions, in standard deviations.
    """

    spacing: float
    neighbor: float
    cell: float

    def cell_size(self, sigma: float, extent: int) -> int:
        """Pixels between two nodes of the grid along an axis of so many pixels: no more than those.

        >>> COARSE.cell_size(8.0, extent=100)
        9
        """
        return max(int(min(self.cell * sigma, extent)), 1)


# the first has two thirds of the error of the second, and twice as many nodes
FINE, COARSE = GridStep(1.1, 0.24, 0.9), GridStep(1.2, 0.13, 1.125)


@dataclass(frozen=True, eq=False)
class ColorAxes:
    """The main axes of the colors of pictures.

    Attributes:
        directions: `[guide channels, guide channels]`, one axis in a row, the one in which colors differ most last;
            from a guide in standard deviations to nodes.
        origin: `[guide channels]`, in nodes.
        spread: about how many nodes of a coarse grid their colors take up.
        step: between the nodes.
    """

    directions: NDArray[np.float64]
    origin: NDArray[np.float64]
    spread: float
    step: GridStep = COARSE

    def with_step(self, step: GridStep) -> ColorAxes:
        """The same axes for other nodes."""
        factor = self.step.spacing / step.spacing
        return ColorAxes(factor * self.directions, factor * self.origin, self.spread, step)

    def locate(self, colors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Coordinates, in nodes, of colors `[..., guide channels]` in standard deviations."""
        coordinates: NDArray[np.float64] = colors @ self.directions.T - self.origin
        return coordinates


def find_axes(guide: Tensor, sigma: Sequence[float]) -> ColorAxes | None:
    """The axes for pictures, None if their colors are not finite.

    Args:
        guide: `[items, guide channels, height, width]`, with at least one pixel.
        sigma: standard deviations of the channels.

    >>> find_axes(torch.zeros(1, 1, 4, 5), [0.1]).directions.shape
    (1, 1)
    """
    sampled = sample_colors(guide, _SAMPLES) / np.array(sigma)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = sampled.mean(axis=0)
        centered = sampled - mean
        covariance = centered.T @ centered / len(sampled)
    if not np.isfinite(covariance).all():
        # refused later on, with a reason
        return None
    variances, vectors = np.linalg.eigh(covariance)
    directions = vectors.T / COARSE.spacing
    # most colors lie within one and a half standard deviations of their own
    spread = np.prod(1 + 3 / COARSE.spacing * np.sqrt(variances.clip(min=0)))
    return ColorAxes(directions, directions @ mean, float(spread))


@dataclass(frozen=True)
class GridSize:
    """About how large a grid is.

    Attributes:
        nodes: that are stored, for each place.
        rows: of nodes over colors, at each place.
        places: nodes over positions.
        steps: with which there are not too many nodes, whatever the colors between the least and the most are.
    """

    nodes: float
    rows: int
    places: float
    steps: tuple[GridStep, ...]


def estimate_size(
    guide: Tensor, sigma_range: Sequence[float], sigma: Sequence[float], axes: ColorAxes
) -> GridSize | None:
    """Counts the nodes that the pixels of a few squares of the first picture touch; None if a grid would have too many
    along the axes of colors, also those of colors that are far from the others, or too many in all.

    Args:
        guide: `[items, guide channels, height, width]`, with at least one pixel.
        sigma_range: standard deviations of its channels.
        sigma: over y and x, in pixels.
        axes: of the guide.

    >>> gray = torch.zeros(1, 1, 40, 40)
    >>> estimate_size(gray, [1.0], (4.0, 4.0), find_axes(gray, [1.0])).nodes
    5.25
    """
    cells = _cell_sizes(guide, sigma, axes.step)
    places = math.prod(size / cell + 1 for size, cell in zip(guide.shape[-2:], cells, strict=True))
    # as if the corners of the box around all colors were colors
    spans = _color_spans(guide) / np.array(sigma_range)
    most_extents = np.abs(axes.directions) @ spans + _TAPS
    # of the finest grid as well; not so if one is NaN
    most_ranges = most_extents[:-1].prod() * places * (axes.step.cell / FINE.cell) ** 2
    if not (most_ranges <= _MOST_RANGES and most_extents.max() <= _MOST_NODES):
        return None
    steps = tuple(
        step for step in (FINE, COARSE) if _most_stored(guide, spans, sigma, axes.with_step(step)) <= _MOST_STORED
    )
    if not steps:
        return None
    along_y, along_x = (_squares(*each) for each in zip(guide.shape[-2:], cells, strict=True))
    squares = [guide[0, :, y, x].detach().flatten(1).mT for y, x in product(along_y, along_x)]
    colors = torch.stack(squares).cpu().double().numpy() / np.array(sigma_range)
    # [axes, squares, pixels]
    first = np.ascontiguousarray(np.moveaxis(np.rint(axes.locate(colors)), -1, 0)).astype(np.int64)
    first -= first.reshape(len(first), -1).min(axis=1)[:, None, None]
    # rows of nodes lie along the last axis
    extents = first.reshape(len(first), -1).max(axis=1) + _TAPS
    shape = (len(squares), *extents[:-1])
    numbers = np.broadcast_to(np.arange(len(squares))[:, None], first.shape[1:])
    rows = np.ravel_multi_index((numbers, *first[:-1]), shape).ravel()
    least, most = np.full(shape, extents[-1]), np.full(shape, -1)
    np.minimum.at(least.reshape(-1), rows, first[-1].ravel())
    np.maximum.at(most.reshape(-1), rows, first[-1].ravel())
    for axis in range(1, len(shape)):
        least, most = _spread(least, axis, np.minimum), _spread(most, axis, np.maximum)
    touched = np.where(most >= 0, most - least + _TAPS, 0).sum() / len(squares)
    return GridSize(_STORED * float(touched), math.prod(shape[1:]), places, steps)


def _cell_sizes(picture: Tensor, sigma: Sequence[float], step: GridStep) -> tuple[int, int]:
    """Along y and x."""
    height, width = picture.shape[-2:]
    return step.cell_size(sigma[0], height), step.cell_size(sigma[1], width)


def _most_stored(guide: Tensor, spans: NDArray[np.float64], sigma: Sequence[float], axes: ColorAxes) -> float:
    """How many nodes are stored if at every place there are colors of all of the box with these spans."""
    cells = _cell_sizes(guide, sigma, axes.step)
    places = math.prod(math.ceil(size / cell) + 1 for size, cell in zip(guide.shape[-2:], cells, strict=True))
    # both ends are rounded, to nodes and along the last axis to pairs of nodes
    extents = np.abs(axes.directions) @ spans + _TAPS + 1
    extents[-1] += 2
    return float(extents.prod()) * places


def _color_spans(guide: Tensor) -> NDArray[np.float64]:
    """From the least to the most, of each channel."""
    if guide.device.type == "cpu" and guide.dtype in (torch.float32, torch.float64):
        # a fraction of the time of torch, and of NumPy along several axes
        pixels = guide.detach().numpy().reshape(*guide.shape[:2], -1)
        spans: NDArray[np.float64] = (pixels.max(axis=2).max(axis=0) - pixels.min(axis=2).min(axis=0)).astype(
            np.float64
        )
        return spans
    channels = guide.detach().movedim(1, 0).flatten(1)
    return (channels.amax(dim=1) - channels.amin(dim=1)).double().cpu().numpy()


def _spread(ranges: NDArray[np.int64], axis: int, join: np.ufunc) -> NDArray[np.int64]:
    """Each joined with those before it that touch it."""
    spread = ranges.copy()
    for shift in range(1, _TAPS):
        to = [slice(None)] * ranges.ndim
        to[axis] = slice(shift, None)
        by = [slice(None)] * ranges.ndim
        by[axis] = slice(None, -shift)
        join(spread[tuple(to)], ranges[tuple(by)], out=spread[tuple(to)])
    return spread


def _squares(extent: int, cell: int) -> list[slice]:
    """Some pixels of the two cells around a place, for places in the middle of equal parts of an axis."""
    side = min(2 * cell, extent)
    middles = [(2 * part + 1) * extent // (2 * _PLACES) for part in range(_PLACES)]
    starts = [min(max(middle - side // 2, 0), extent - side) for middle in middles]
    return [slice(start, start + side, max(side // _SIDE, 1)) for start in starts]


def sum_color_grid(values: Tensor, guide: Tensor, sigma: tuple[float, float], axes: ColorAxes) -> Tensor:
    """The sums over all pixels around each, weighted by the Gaussian over position and color.

    Args:
        values: `[items, channels, height, width]`.
        guide: `[items, guide channels, height, width]`, in standard deviations.
        sigma: over y and x, in pixels.
        axes: of the guide.

    Returns:
        `[items, channels + 1, height, width]`: the sums of ones, the mass, are the last.

    >>> gray = torch.zeros(1, 1, 20, 30)
    >>> sum_color_grid(gray, gray, (2.0, 2.0), find_axes(gray, [1.0])).shape
    torch.Size([1, 2, 20, 30])
    """
    items, channels, height, width = values.shape
    if values.numel() == 0:
        return values.new_zeros(items, channels + 1, height, width)
    # the integral of the blur is that of the Gaussian
    step = axes.step
    own = math.sqrt(2 * math.pi) / step.spacing / (1 + 2 * step.neighbor)
    cells = _cell_sizes(values, sigma, step)
    main = axes.directions.tolist(), axes.origin.tolist()
    tables = ColorGridTables(sigma, cells, _BLUR_REACH, *main, (own, step.neighbor * own))
    # the sums, and of one item the values and colors in one piece, and their coordinates
    check_rows((items * (channels + 1) + _CHANNELS_AT_ONCE + 2 * MOST_GUIDES + 2) * height * width, 1, values)
    sums = fused_filters.sum_color_grid(values, guide, tables)
    return _compose(values, guide, tables) if sums is None else sums


def _coordinates(guide: Tensor, tables: ColorGridTables) -> tuple[Tensor, tuple[int, int, int]]:
    """`[items, 3, height, width]`, the axes that are not used first, and the extents of the grid.

    Whole numbers are added, so that parts of a picture have the nodes of the whole, the least color near the third.
    """
    directions, origin = (guide.new_tensor(each) for each in (tables.directions, tables.origin))
    used = directions @ guide.flatten(2) - origin[:, None]
    least, most = ((each.detach() + 0.5).floor() for each in used.movedim(1, 0).flatten(1).aminmax(dim=1))
    used = used + (2 - least)[:, None]
    unused = MOST_GUIDES - used.shape[1]
    extents = [1] * unused + [int(span) + _TAPS + 2 for span in (most - least).tolist()]
    coordinates = torch.cat([used.new_zeros(used.shape[0], unused, used.shape[2]), used], dim=1)
    return coordinates.view(guide.shape[0], MOST_GUIDES, *guide.shape[2:]), (extents[0], extents[1], extents[2])


def reach_of_grid(sigma: float, step: GridStep, extent: int) -> int:
    """How many pixels along an axis the sums of a pixel depend on, on either side: those of whole cells.

    >>> reach_of_grid(8.0, COARSE, extent=100)
    45
    """
    cell = step.cell_size(sigma, extent)
    return (_blur(sigma, cell)[1] + 2) * cell


def _blur(sigma: float, cell: int) -> tuple[float, int]:
    """The variance of the blur between nodes over positions, and how many nodes it reaches."""
    # interpolation at the source and at the target has a variance of a sixth of a step, on average
    variance = (sigma / cell) ** 2 - 1 / 3
    return variance, int(_BLUR_REACH * math.sqrt(variance)) + 1


def _compose(values: Tensor, guide: Tensor, tables: ColorGridTables) -> Tensor:
    """The same of torch's operations, with all nodes; they know their derivatives."""
    items, channels, height, width = values.shape
    values = torch.cat([values, values.new_ones(()).expand(items, 1, height, width)], dim=1)
    along = [_cells(*each, like=values) for each in zip((height, width), tables.cells, tables.sigma, strict=True)]
    places = along[0][2].shape[0], along[1][2].shape[0]
    coordinates, extents = _coordinates(guide, tables)
    colors = math.prod(extents)
    check_rows(3 * math.prod(places) * colors, channels + 1, values)
    sums = []
    for value, coordinate in zip(values, coordinates, strict=True):
        taps = _color_taps(coordinate.flatten(1), extents)
        nodes = values.new_zeros(math.prod(places) * colors, channels + 1)
        for (place, weight, _), (node, color) in product(_corners(along, places[1]), taps):
            nodes.index_add_(0, place * colors + node, (weight * color)[:, None] * value.flatten(1).mT)
        blurred = _blur_nodes(nodes.view(*places, *extents, channels + 1), along, tables.color_blur)
        sliced = torch.zeros_like(value).flatten(1).mT
        for (place, _, weight), (node, color) in product(_corners(along, places[1]), taps):
            sliced = sliced + (weight * color)[:, None] * blurred[place * colors + node]
        sums.append(sliced.mT.view(channels + 1, height, width))
    return torch.stack(sums)


# of the pixels along an axis: the cell, the weights of the node at its end as a source and as a target; and the blur
_Cells = tuple[Tensor, tuple[Tensor, Tensor], Tensor]


def _cells(size: int, cell: int, sigma: float, like: Tensor) -> _Cells:
    """Which cell the pixels along an axis lie in, the weights of its end, and the blur `[nodes, nodes]`."""
    nodes = (size + cell - 1) // cell + 1
    pixels = torch.arange(size, device=like.device)
    part = (cell + _PARTS - 1) // _PARTS
    first = pixels % cell // part * part
    end = torch.minimum((first + part).clamp(max=cell), size - pixels // cell * cell)
    # a quotient of integers would be float32, whatever the values are
    source, target = (first + end).to(like.dtype) / (2 * cell), ((pixels % cell).to(like.dtype) + 0.5) / cell
    variance, farthest = _blur(sigma, cell)
    places = torch.arange(nodes, device=like.device, dtype=like.dtype)
    steps = (places[:, None] - places).abs()
    near = steps <= min(farthest, nodes)
    blur = torch.exp(-0.5 / variance * steps.square()) * (sigma / cell * variance**-0.5) * near
    return pixels // cell, (source, target), blur


def _corners(along: Sequence[_Cells], width: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The places at the corners of the cell of each pixel, and their weights for a source and for a target."""
    (cell_y, ends_y, _), (cell_x, ends_x, _) = along
    corners = []
    for down, right in product((0, 1), repeat=2):
        place = (cell_y[:, None] + down) * width + cell_x + right
        weights = [
            ((y if down else 1 - y)[:, None] * (x if right else 1 - x)).flatten()
            for y, x in zip(ends_y, ends_x, strict=True)
        ]
        corners.append((place.flatten(), weights[0], weights[1]))
    return corners


def _color_taps(coordinates: Tensor, extents: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """The nodes over colors that pixels touch, and their weights, of coordinates `[3, pixels]`."""
    along = []
    for coordinate, extent in zip(coordinates, extents, strict=True):
        middle = (coordinate.detach() + 0.5).floor()
        if extent == 1:
            along.append([(middle.long(), torch.ones_like(coordinate))])
            continue
        offset = coordinate - middle
        weights = 0.5 * (0.5 - offset).square(), 0.75 - offset.square(), 0.5 * (0.5 + offset).square()
        along.append([(middle.long() + tap - 1, weight) for tap, weight in enumerate(weights)])
    return [
        ((i * extents[1] + j) * extents[2] + k, of_i * of_j * of_k)
        for (i, of_i), (j, of_j), (k, of_k) in product(*along)
    ]


def _blur_nodes(nodes: Tensor, along: Sequence[_Cells], color_blur: tuple[float, float]) -> Tensor:
    """Over colors, three taps along each axis; over positions. Of nodes `[y, x, *colors, channels]`, all in rows."""
    own, neighbor = color_blur
    for axis in range(2, nodes.dim() - 1):
        if nodes.shape[axis] > 1:
            # colors lie so far from the ends that nothing goes beyond
            nodes = own * nodes + neighbor * (nodes.roll(1, axis) + nodes.roll(-1, axis))
    (*_, blur_y), (*_, blur_x) = along
    return torch.einsum("ay,bx,yxn->abn", blur_y, blur_x, nodes.flatten(2)).reshape(-1, nodes.shape[-1])
