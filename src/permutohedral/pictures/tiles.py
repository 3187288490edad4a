"""The bilateral filter of a large picture in tiles: the same result in a fraction of the memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import EllipsisType

import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.checks import check_method
from permutohedral.filters.choice import Choice, choose_for_pixels
from permutohedral.filters.exact import WINDOW_REACH, means_of_pixels, sum_pixels, window_of
from permutohedral.filters.landmarks import cell_size, reach_of_landmarks
from permutohedral.filters.rare import REACH, mean_windows, rare_pixels
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
        method: see `ph.gaussian_filter`; what "auto" takes is that of the whole.
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
    check_method(method, halo, None)
    window_reach = WINDOW_REACH
    if method == "auto":
        choice = choose_for_pixels(values, guide, sigma_space, sigma_range)
        if choice.pairs and not halo:
            return _with_rare_pixels(values, guide, sigma_space, sigma_range, choice, tile, progress)
        method, window_reach = ("exact" if choice.method == "exact" else "separable"), choice.reach
    filter_part, far = _filter_of_parts(sigma_space, sigma_range, method, halo, window_reach)
    # one more for the rounding of positions
    margins = [math.ceil(sigma_space * each) + 1 for each in far]
    result = torch.empty_like(values)
    for part in _parts_of(height, width, tile, margins, 1, progress):
        filtered = filter_part(values[part.read], guide[part.read], part.origin)
        result[part.written] = filtered[part.kept]
    return result


_Place = tuple[EllipsisType, slice, slice]


@dataclass(frozen=True)
class _Part:
    """A tile: what is read, what of that is kept, where that is written, and where it begins in the whole."""

    read: _Place
    kept: _Place
    written: _Place
    origin: tuple[int, int]


def _parts_of(
    height: int,
    width: int,
    tile: int,
    margins: Sequence[int],
    step: int,
    progress: Callable[[float], None] | None,
) -> Iterator[_Part]:
    """Tiles that begin at multiples of `step`."""
    inner = max(tile - 2 * margins[1], 6 * margins[1]) // step * step
    places = [(rows, columns) for rows in _intervals(height, inner) for columns in _intervals(width, inner)]
    for number, (rows, columns) in enumerate(places):
        margin_y, margin_x = (-(-margin // step) * step for margin in margins)
        y, x = _widen(rows, margin_y, height), _widen(columns, margin_x, width)
        kept = slice(rows.start - y.start, rows.stop - y.start), slice(columns.start - x.start, columns.stop - x.start)
        yield _Part((..., y, x), (..., *kept), (..., rows, columns), (y.start, x.start))
        if progress is not None:
            progress((number + 1) / len(places))


def _intervals(extent: int, length: int) -> Iterator[slice]:
    for start in range(0, extent, length):
        yield slice(start, min(start + length, extent))


def _widen(interval: slice, margin: int, extent: int) -> slice:
    return slice(max(interval.start - margin, 0), min(interval.stop + margin, extent))


# of values and guide of a part, and where in the picture its first pixel is
_PartFilter = Callable[[Tensor, Tensor, tuple[int, int]], Tensor]


def _filter_of_parts(
    sigma_space: float, sigma_range: float, method: GaussianMethod, halo: int, window_reach: float
) -> tuple[_PartFilter, tuple[float, float]]:
    """The filter of a part, and how far it reaches along y and x, in standard deviations."""

    def filter_window(part: Tensor, edges: Tensor, origin: tuple[int, int]) -> Tensor:
        window = window_of(edges, sigma_space, sigma_range, window_reach)
        assert window is not None, "sigma is a number"
        return sum_pixels(part.flatten(1).mT, "homogeneous", window).mT.reshape(part.shape)

    def filter_lattice(part: Tensor, edges: Tensor, origin: tuple[int, int]) -> Tensor:
        """The lattice lies as it does under the whole."""
        return ph.bilateral_filter(part, sigma_space, sigma_range, edges, method, halo, origin=origin)

    if method == "exact":
        return filter_window, (window_reach, window_reach)
    return filter_lattice, (ph.reach(0, halo=halo), ph.reach(1, halo=halo))


def _with_rare_pixels(
    values: Tensor,
    guide: Tensor,
    sigma_space: float,
    sigma_range: float,
    choice: Choice,
    tile: int,
    progress: Callable[[float], None] | None,
) -> Tensor:
    """All tiles with what is chosen for the whole; which pixels are rare is then known for the whole, too."""
    height, width = values.shape[1:]
    filter_part, margin, step = _with_mass_of_parts(sigma_space, sigma_range, choice)
    tiles = partial(_parts_of, height, width, tile, [margin, margin], step)
    result, mass = torch.empty_like(values), values.new_empty(height, width)
    for part in tiles(_share_of(progress, 0)):
        means, masses = filter_part(values[part.read], guide[part.read])
        result[part.written], mass[part.written] = means[part.kept], masses[part.kept]
    sigmas = sigma_space, sigma_space
    pixels = rare_pixels(mass.flatten(), sigmas, choice.pairs)
    for part in tiles(_share_of(progress, 1)):
        inside, places = _inside(part, pixels, width)
        if inside.numel() > 0:
            edges = _guide_of(guide[part.read], sigma_space, sigma_range)
            means = mean_windows(values[part.read].to(edges.dtype), edges, places, sigmas)
            result.view(len(result), -1)[:, pixels[inside]] = means.to(values.dtype)
    return result


def _share_of(progress: Callable[[float], None] | None, pass_over: int) -> Callable[[float], None] | None:
    """What tells the progress of one of two passes over the tiles."""
    return None if progress is None else lambda share: progress((pass_over + share) / 2)


def _inside(part: _Part, pixels: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Which of `pixels`, counted row by row in the whole, a tile keeps, and their places in what it reads."""
    (_, y, x), (_, kept_y, kept_x), (_, _, read_x) = part.written, part.kept, part.read
    rows, columns = pixels // width, pixels % width
    inside = ((rows >= y.start) & (rows < y.stop) & (columns >= x.start) & (columns < x.stop)).nonzero()[:, 0]
    down, right = rows[inside] - y.start + kept_y.start, columns[inside] - x.start + kept_x.start
    return inside, down * (read_x.stop - read_x.start) + right


def _guide_of(guide: Tensor, sigma_space: float, sigma_range: float) -> Tensor:
    """`[guide channels, height, width]`, in standard deviations."""
    window = window_of(guide, sigma_space, sigma_range)
    assert window is not None, "sigma is a number"
    return window.guide[0]


# of values and guide of a part: means and mass
_MassOfPart = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _with_mass_of_parts(sigma_space: float, sigma_range: float, choice: Choice) -> tuple[_MassOfPart, int, int]:
    """The filter of a part; how many pixels it reaches; and at multiples of what tiles may begin."""
    landmarks = choice.landmarks

    def filter_pixels(part: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        seen = window_of(edges, sigma_space, sigma_range, choice.reach)
        assert seen is not None, "sigma is a number"
        means, mass = means_of_pixels(part[None].to(seen.guide.dtype), seen, landmarks, part.dtype)
        return means.view(part.shape), mass.view(part.shape[1:])

    window = math.ceil(REACH * sigma_space)
    if landmarks is None:
        return filter_pixels, window, 1
    margin = max(reach_of_landmarks(sigma_space), window)
    return filter_pixels, margin, cell_size(sigma_space)
