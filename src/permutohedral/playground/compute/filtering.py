"""The bilateral filter of a photo, of its preview, and the estimated error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.pictures.tiles import filter_in_tiles
from permutohedral.pictures.transparency import filter_by_alpha
from permutohedral.playground.compute.layers import Layer, make_layer, on_white
from permutohedral.playground.compute.photos import Photo
from permutohedral.playground.compute.result import Result, run
from permutohedral.playground.settings import FilterSettings

# what takes long is filtered in parts of this extent, to end soon when it is no longer wanted; the bits are the same
_PART = 512


@dataclass(frozen=True)
class Averaged:
    """A filtered photo.

    Attributes:
        result: what is shown.
        values: `[any, height, width]`, what the filter was given: colors, weighted by alpha where there is one.
        averages: the same shape, what it gave.
    """

    result: Result
    values: Tensor
    averages: Tensor


def filter_photo(photo: Photo, guide: Photo | None, settings: FilterSettings, check: Callable[[], None]) -> Averaged:
    """The whole photo; `check` is called after each tile."""
    edges = _edges(photo, guide, settings)
    sigmas, method, halo = (settings.sigma_space, settings.sigma_range), settings.method, settings.halo
    tile = {"tile": _PART} if method in ("dense", "exact") or halo > 0 else {}
    kept: list[tuple[Tensor, Tensor]] = []

    def average(values: Tensor) -> Tensor:
        found = filter_in_tiles(values, edges, *sigmas, lambda share: check(), method=method, halo=halo, **tile)
        kept.append((values, found))
        return found

    alpha = photo.picture.alpha
    return Averaged(run(lambda: filter_by_alpha(photo.pixels, alpha, average), alpha), *kept[0])


def preview(photo: Photo, guide: Photo | None, settings: FilterSettings) -> Layer:
    """The small photo filtered in the quickest way, with a bandwidth in its own pixels."""
    edges = photo.small if guide is None or not settings.guided else guide.small
    sigmas = settings.sigma_space / photo.factor, settings.sigma_range
    filtered = filter_by_alpha(
        photo.small, photo.small_alpha, lambda values: ph.bilateral_filter(values, *sigmas, edges)
    )
    return make_layer(on_white(filtered, photo.small_alpha), photo.factor)


def estimate(photo: Photo, guide: Photo | None, settings: FilterSettings, found: Averaged) -> ph.ErrorEstimate:
    """How far the filter's averages are from exact ones, at some pixels."""
    edges = _edges(photo, guide, settings)
    return ph.estimate_bilateral_error(found.averages, found.values, settings.sigma_space, settings.sigma_range, edges)


def check_guide(photo: Photo, guide: Photo) -> Photo:
    """The guide.

    Raises:
        InputError: it is not of the size of the photo.
    """
    if guide.pixels.shape[1:] != photo.pixels.shape[1:]:
        raise InputError(
            f"the guide {guide.name} has {guide.pixels.shape[2]} x {guide.pixels.shape[1]} pixels and the photo "
            f"{photo.pixels.shape[2]} x {photo.pixels.shape[1]}; scale one of them to the size of the other"
        )
    return guide


def _edges(photo: Photo, guide: Photo | None, settings: FilterSettings) -> Tensor:
    """The picture whose edges are kept, as `permutohedral filter` takes it."""
    return photo.visible if guide is None or not settings.guided else guide.pixels
