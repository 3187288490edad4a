"""The color grid, composed of torch operations: the definition that the compiled core is compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from permutohedral.filters.color_grid import _BLUR_REACH, _TAPS, MAX_GUIDE_CHANNELS, ColorAxes, _blur, _cell_sizes
from permutohedral.ops.contract import ColorGridTables

# the pixels of a cell are splatted from the centers of this many parts along each axis
_PARTS = 2


def _tables(values: Tensor, sigma: tuple[float, float], axes: ColorAxes) -> ColorGridTables:
    own = math.sqrt(2 * math.pi) / axes.step.spacing / (1 + 2 * axes.step.neighbor)
    cells, blur = _cell_sizes(values, sigma, axes.step), (own, axes.step.neighbor * own)
    return ColorGridTables(sigma, cells, _BLUR_REACH, axes.directions.tolist(), axes.origin.tolist(), blur)


def compose_color_grid(values: Tensor, guide: Tensor, sigma: tuple[float, float], axes: ColorAxes) -> Tensor:
    """Compute `sum_color_grid` with torch operations, on all nodes."""
    tables = _tables(values, sigma, axes)
    items, channels, height, width = values.shape
    values = torch.cat([values, values.new_ones(()).expand(items, 1, height, width)], dim=1)
    along = [_cells(*each, like=values) for each in zip((height, width), tables.cells, tables.sigma, strict=True)]
    places = along[0][2].shape[0], along[1][2].shape[0]
    coordinates, extents = _coordinates(guide, tables)
    colors = math.prod(extents)
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


# for the pixels along an axis: cell, weights of the place at its end as a source and as a target; and the blur
_Cells = tuple[Tensor, tuple[Tensor, Tensor], Tensor]


def _cells(size: int, cell: int, sigma: float, like: Tensor) -> _Cells:
    """Return the cells and weights of the pixels along an axis, and the blur `[places, places]`."""
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
    """Return the places at the corners of each pixel's cell, with their weights as a source and as a target."""
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
    """Return the nodes that pixels with coordinates `[3, pixels]` touch, with their weights."""
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
    """Blur nodes `[y, x, *colors, channels]` over colors and positions; returns them as rows."""
    own, neighbor = color_blur
    for axis in range(2, nodes.dim() - 1):
        if nodes.shape[axis] > 1:
            # colors lie so far from the ends that nothing wraps around
            nodes = own * nodes + neighbor * (nodes.roll(1, axis) + nodes.roll(-1, axis))
    (*_, blur_y), (*_, blur_x) = along
    return torch.einsum("ay,bx,yxn->abn", blur_y, blur_x, nodes.flatten(2)).reshape(-1, nodes.shape[-1])


def _coordinates(guide: Tensor, tables: ColorGridTables) -> tuple[Tensor, tuple[int, int, int]]:
    """Return color coordinates `[items, 3, height, width]`, unused axes first, and the extents of the grid.

    Only whole numbers are added, so that the nodes of a part of an image are those of the whole image.
    """
    directions, origin = (guide.new_tensor(each) for each in (tables.directions, tables.origin))
    used = directions @ guide.flatten(2) - origin[:, None]
    least, most = ((each.detach() + 0.5).floor() for each in used.movedim(1, 0).flatten(1).aminmax(dim=1))
    used = used + (2 - least)[:, None]
    unused = MAX_GUIDE_CHANNELS - used.shape[1]
    extents = [1] * unused + [int(span) + _TAPS + 2 for span in (most - least).tolist()]
    coordinates = torch.cat([used.new_zeros(used.shape[0], unused, used.shape[2]), used], dim=1)
    return coordinates.view(guide.shape[0], MAX_GUIDE_CHANNELS, *guide.shape[2:]), (extents[0], extents[1], extents[2])
