"""The bilateral filter of a large picture in tiles: the same result in a fraction of the memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.checks import check_method
from permutohedral.features import grid_features
from permutohedral.filters.choice import choose_for_pixels
from permutohedral.filters.exact import WINDOW_REACH, sum_pixels, window_of
from permutohedral.functional import GaussianMethod

# extent of a tile with its margins; to filter its pixels takes about 500 MB
_TILE = 2048


def filter_in_tiles(  # noqa: PLR0913 (the filter, and three options by name)
    values: Tensor,
    guide: Tensor,
    sigma_space: float,
    sigma_range: float,
    progress: Callable[[float], None] | None = None,
    *,
    method: GaussianMethod = "separable",
    halo: int = 0,
    tile: int = _TILE,
) -> Tensor:
    """`ph.bilateral_filter`, tile by tile. Each tile has margins as wide as the filter reaches.

    Args:
        values: `[channels, height, width]`.
        guide: `[guide channels, height, width]`, whose edges are kept.
        sigma_space: bandwidth in pixels.
        sigma_range: bandwidth in color.
        progress: called with the share that is done.
        method: see `ph.gaussian_filter`; what "auto" takes is the same for all tiles, and never landmarks.
        halo: see `ph.gaussian_filter`.
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
        return ph.bilateral_filter(values, sigma_space, sigma_range, guide, method, halo)
    filter_part, far = _filter_of_parts(values, guide, sigma_space, sigma_range, method, halo)
    # one more for the rounding of positions
    margin_y, margin_x = (math.ceil(sigma_space * each) + 1 for each in far)
    inner = max(tile - 2 * margin_x, 6 * margin_x)
    result = torch.empty_like(values)
    places = [(rows, columns) for rows in _intervals(height, inner) for columns in _intervals(width, inner)]
    for number, (rows, columns) in enumerate(places):
        y, x = _widen(rows, margin_y, height), _widen(columns, margin_x, width)
        filtered = filter_part(values[:, y, x], guide[:, y, x], (y.start, x.start))
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


# of values and guide of a part, and where in the picture its first pixel is
_PartFilter = Callable[[Tensor, Tensor, tuple[int, int]], Tensor]


def _filter_of_parts(
    values: Tensor, guide: Tensor, sigma_space: float, sigma_range: float, method: GaussianMethod, halo: int
) -> tuple[_PartFilter, tuple[float, float]]:
    """The filter of a part, and how far it reaches along y and x, in standard deviations."""
    check_method(method, halo, None)
    window_reach = WINDOW_REACH
    if method == "auto":
        choice = choose_for_pixels(values, guide, sigma_space, sigma_range)
        # landmarks are for pictures of one tile
        method, window_reach = ("exact" if choice.method == "exact" else "separable"), choice.reach

    def filter_window(part: Tensor, edges: Tensor, origin: tuple[int, int]) -> Tensor:
        window = window_of(edges, sigma_space, sigma_range, window_reach)
        assert window is not None, "sigma is a number"
        return sum_pixels(part.flatten(1).mT, "homogeneous", window).mT.reshape(part.shape)

    def filter_lattice(part: Tensor, edges: Tensor, origin: tuple[int, int]) -> Tensor:
        """The lattice lies as it does under the whole."""
        places = grid_features(part.shape[1:], sigma_space, origin=origin, dtype=edges.dtype)
        features = ph.join_features(places, ph.color_features(edges, sigma_range))
        filtered: Tensor = ph.gaussian_filter(part.flatten(1).mT, features, method=method, halo=halo)
        return filtered.mT.reshape(part.shape)

    if method == "exact":
        return filter_window, (window_reach, window_reach)
    return filter_lattice, (ph.reach(0, halo=halo), ph.reach(1, halo=halo))
