"""The bilateral filter of a photo, of its preview, and the estimated error."""

from __future__ import annotations

from collections.abc import Callable

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.pictures.tiles import filter_in_tiles
from permutohedral.playground.compute.layers import Layer, make_layer
from permutohedral.playground.compute.photos import Photo
from permutohedral.playground.compute.result import Result, run
from permutohedral.playground.settings import FilterSettings

# what takes long is filtered in parts of this extent, to end soon when it is no longer wanted; the bits are the same
_PART = 512


def filter_photo(photo: Photo, guide: Photo | None, settings: FilterSettings, check: Callable[[], None]) -> Result:
    """The whole photo; `check` is called after each tile."""
    edges = _edges(photo, guide, settings).pixels
    sigmas, method, halo = (settings.sigma_space, settings.sigma_range), settings.method, settings.halo
    tile = {"tile": _PART} if method in ("dense", "exact") or halo > 0 else {}
    return run(
        lambda: filter_in_tiles(photo.pixels, edges, *sigmas, lambda share: check(), method=method, halo=halo, **tile)
    )


def preview(photo: Photo, guide: Photo | None, settings: FilterSettings) -> Layer:
    """The small photo filtered in the quickest way, with a bandwidth in its own pixels."""
    edges = _edges(photo, guide, settings).small
    filtered = ph.bilateral_filter(photo.small, settings.sigma_space / photo.factor, settings.sigma_range, edges)
    return make_layer(filtered, photo.factor)


def estimate(photo: Photo, guide: Photo | None, settings: FilterSettings, result: Result) -> ph.ErrorEstimate:
    """How far the result is from the exact filter, at some pixels."""
    edges = _edges(photo, guide, settings).pixels
    return ph.estimate_bilateral_error(result.pixels, photo.pixels, settings.sigma_space, settings.sigma_range, edges)


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


def _edges(photo: Photo, guide: Photo | None, settings: FilterSettings) -> Photo:
    return guide if settings.guided and guide is not None else photo
