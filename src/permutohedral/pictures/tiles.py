"""The bilateral filter of a large picture in tiles: the same result in a fraction of the memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import permutohedral as ph

# extent of a tile with its margins; to filter its pixels takes about 500 MB
_TILE = 2048


def reach(dimension: int) -> float:
    """How far a value travels at most along one feature, in feature units.

    Splatting and slicing move it within a simplex, by half of the result each. The blur moves it by one step along each
    of the `dimension + 1` axes, which together extend `sqrt(1.5 (dimension + 1))` in any direction.

    >>> reach(5)
    6.0
    """
    return 2 * math.sqrt(1.5 * (dimension + 1))


def filter_in_tiles(
    values: Tensor,
    guide: Tensor,
    sigma_space: float,
    sigma_range: float,
    progress: Callable[[float], None] | None = None,
    tile: int = _TILE,
) -> Tensor:
    """`ph.bilateral_filter`, tile by tile. Each tile has margins as wide as the filter reaches.

    Args:
        values: `[channels, height, width]`.
        guide: `[guide channels, height, width]`, whose edges are kept.
        sigma_space: bandwidth in pixels.
        sigma_range: bandwidth in color.
        progress: called with the share that is done.
        tile: extent of a tile in pixels, margins included; larger where the margins would be most of it. A picture
            of no more pixels is filtered at once.

    Returns:
        `[channels, height, width]`, equal to the filter of the whole up to the order of its sums.

    >>> picture = torch.rand(3, 40, 50)
    >>> tiles = filter_in_tiles(picture, picture, 1.0, 0.2, tile=30)
    >>> bool(torch.allclose(tiles, ph.bilateral_filter(picture, 1.0, 0.2), atol=1e-5))
    True
    """
    height, width = values.shape[1:]
    if height * width <= tile * tile:
        return ph.bilateral_filter(values, sigma_space, sigma_range, guide=guide)
    # one more for the rounding of positions
    margin = math.ceil(sigma_space * reach(2 + guide.shape[0])) + 1
    inner = max(tile - 2 * margin, 6 * margin)
    result = torch.empty_like(values)
    places = [(rows, columns) for rows in _intervals(height, inner) for columns in _intervals(width, inner)]
    for number, (rows, columns) in enumerate(places):
        y, x = _widen(rows, margin, height), _widen(columns, margin, width)
        filtered = _filter_part(values[:, y, x], guide[:, y, x], (y.start, x.start), sigma_space, sigma_range)
        kept = filtered[:, rows.start - y.start : rows.stop - y.start, columns.start - x.start : columns.stop - x.start]
        result[:, rows, columns] = kept
        if progress is not None:
            progress((number + 1) / len(places))
    return result


def _intervals(extent: int, length: int) -> Iterator[slice]:
    for start in range(0, extent, length):
        yield slice(start, min(start + length, extent))


def _widen(interval: slice, margin: int, extent: int) -> slice:
    return slice(max(interval.start - margin, 0), min(interval.stop + margin, extent))


def _filter_part(
    values: Tensor, guide: Tensor, origin: tuple[int, int], sigma_space: float, sigma_range: float
) -> Tensor:
    """Filter a part whose first pixel is at `origin` of the picture: the lattice lies as it does under the whole."""
    channels, height, width = values.shape
    y, x = (torch.arange(start, start + extent) for start, extent in zip(origin, (height, width), strict=True))
    positions = torch.stack(torch.meshgrid(y, x, indexing="ij"), dim=-1).reshape(-1, 2).to(guide.dtype) / sigma_space
    features = ph.join_features(positions, ph.color_features(guide, sigma_range))
    filtered: Tensor = ph.gaussian_filter(values.flatten(1).mT, features)
    return filtered.mT.reshape(channels, height, width)
