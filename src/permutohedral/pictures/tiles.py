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
from permutohedral.filters.choice import choose_for_pixels
from permutohedral.filters.color_grid import ColorAxes, reach_of_grid
from permutohedral.filters.exact import WINDOW_REACH, divide_by_mass, sum_pixels, window_of
from permutohedral.filters.landmarks import (
    Landmarks,
    cell_size,
    rare_pixels,
    reach_of_landmarks,
    share_of_mass,
    sum_landmarks,
    sum_windows,
)
from permutohedral.functional import GaussianMethod
from permutohedral.pictures import TILE


def filter_in_tiles(  # noqa: PLR0913 (the filter, and three options by name)
    values: Tensor,
    guide: Tensor,
    sigma_space: float,
    sigma_range: float,
    progress: Callable[[float], None] | None = None,
    *,
    method: GaussianMethod = "separable",
    halo: int = 0,
    tile: int = TILE,
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
        filtered = ph.bilateral_filter(values, sigma_space, sigma_range, guide, method, halo)
        if progress is not None:
            progress(1.0)
        return filtered
    check_method(method, halo, None)
    window_reach, axes = WINDOW_REACH, None
    if method == "auto":
        choice = choose_for_pixels(values, guide, sigma_space, sigma_range)
        if isinstance(choice.colors, Landmarks) and not halo:
            return _with_landmarks(values, guide, sigma_space, sigma_range, choice.colors, tile, progress)
        axes = choice.colors if isinstance(choice.colors, ColorAxes) and not halo else None
        method, window_reach = ("exact" if choice.method == "exact" else "separable"), choice.reach
    if axes is None:
        filter_part, far = _filter_of_parts(sigma_space, sigma_range, method, halo, window_reach)
        # one more for the rounding of positions
        margins, step = [math.ceil(sigma_space * each) + 1 for each in far], 1
    else:
        filter_part = _without_lattice(sigma_space, sigma_range, window_reach, axes)
        # tiles begin where cells of the whole do
        longest = max(height, width)
        margins = [reach_of_grid(sigma_space, axes.step, longest)] * 2
        step = axes.step.cell_size(sigma_space, longest)
    result = torch.empty_like(values)
    for part in _parts_of(height, width, tile, margins, step, progress):
        filtered = filter_part(values[part.read], guide[part.read], part.origin)
        result[part.written] = filtered[part.kept]
    return result


def _with_landmarks(
    values: Tensor,
    guide: Tensor,
    sigma_space: float,
    sigma_range: float,
    landmarks: Landmarks,
    tile: int,
    progress: Callable[[float], None] | None,
) -> Tensor:
    """Sums of all tiles with the landmarks of the whole; which pixels are rare is then known for the whole, too."""
    height, width = values.shape[1:]
    sigmas = sigma_space, sigma_space
    margin, result = reach_of_landmarks(sigma_space), torch.empty_like(values)
    share = values.new_empty(height, width)
    # tiles begin where cells of the whole do
    parts = partial(_parts_of, height, width, tile, [margin, margin], cell_size(sigma_space))
    for part in parts(None if progress is None else lambda share: progress(share / 2)):
        window = window_of(guide[part.read], sigma_space, sigma_range)
        assert window is not None, "sigma is a number"
        sums = sum_landmarks(values[None][part.read], window.guide, sigmas, landmarks, repaired=False)[0]
        share[part.written] = share_of_mass(sums[-1], window.guide[0], landmarks, sigmas)[part.kept]
        result[part.written] = divide_by_mass(sums)[part.kept]
    is_rare = torch.zeros(height * width, dtype=torch.bool, device=values.device)
    is_rare[rare_pixels(share.flatten(), sigmas)] = True
    is_rare = is_rare.view(height, width)
    for part in parts(None if progress is None else lambda share: progress(0.5 + share / 2)):
        rare = is_rare[part.written].nonzero()
        if rare.shape[0] == 0:
            continue
        window = window_of(guide[part.read], sigma_space, sigma_range)
        assert window is not None, "sigma is a number"
        places = rare + torch.tensor(part.margins, device=values.device)
        pixels = places[:, 0] * window.guide.shape[-1] + places[:, 1]
        given = torch.cat([values[part.read], torch.ones_like(window.guide[0, :1])])
        sums = sum_windows(given, window.guide[0], sigmas, pixels)
        rows, columns = (places + torch.tensor(part.origin, device=values.device)).T
        result[:, rows, columns] = divide_by_mass(sums)
    return result


_Place = tuple[EllipsisType, slice, slice]


@dataclass(frozen=True)
class _Part:
    """A tile: what is read, what of that is kept, where that is written, and where it begins in the whole and in what
    is read."""

    read: _Place
    kept: _Place
    written: _Place
    origin: tuple[int, int]
    margins: tuple[int, int]


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
        yield _Part((..., y, x), (..., *kept), (..., rows, columns), (y.start, x.start), (kept[0].start, kept[1].start))
        if progress is not None:
            progress((number + 1) / len(places))


def _intervals(extent: int, length: int) -> Iterator[slice]:
    for start in range(0, extent, length):
        yield slice(start, min(start + length, extent))


def _widen(interval: slice, margin: int, extent: int) -> slice:
    return slice(max(interval.start - margin, 0), min(interval.stop + margin, extent))


# of values and guide of a part, and where in the picture its first pixel is
_PartFilter = Callable[[Tensor, Tensor, tuple[int, int]], Tensor]


def _without_lattice(
    sigma_space: float, sigma_range: float, window_reach: float, axes: ColorAxes | None
) -> _PartFilter:
    """Sums over windows, or on a grid with these axes."""

    def filter_part(part: Tensor, edges: Tensor, origin: tuple[int, int]) -> Tensor:
        window = window_of(edges, sigma_space, sigma_range, window_reach)
        assert window is not None, "sigma is a number"
        return sum_pixels(part.flatten(1).mT, "homogeneous", window, axes).mT.reshape(part.shape)

    return filter_part


def _filter_of_parts(
    sigma_space: float, sigma_range: float, method: GaussianMethod, halo: int, window_reach: float
) -> tuple[_PartFilter, tuple[float, float]]:
    """The filter of a part, and how far it reaches along y and x, in standard deviations."""

    def filter_lattice(part: Tensor, edges: Tensor, origin: tuple[int, int]) -> Tensor:
        """The lattice lies as it does under the whole."""
        return ph.bilateral_filter(part, sigma_space, sigma_range, edges, method, halo, origin=origin)

    if method == "exact":
        return _without_lattice(sigma_space, sigma_range, window_reach, None), (window_reach, window_reach)
    return filter_lattice, (ph.reach(0, halo=halo), ph.reach(1, halo=halo))
