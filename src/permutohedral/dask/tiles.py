"""Filters of Dask images and volumes, tile by tile; each tile has margins of the filter's support."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import dask.array as da
import numpy as np
from dask.array.overlap import ensure_minimum_chunksize, overlap
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.dask.workers import check_chunk_fits, limit_worker_cache
from permutohedral.errors import InputError
from permutohedral.features import Sigma, ValueRange, numbers_of, range_of
from permutohedral.filters import tiling
from permutohedral.filters.gaussian import GaussianMethod
from permutohedral.filters.tiling import CHANNELS, SPATIAL
from permutohedral.filters.units import warn_of_four_channels, warn_of_large_sigma
from permutohedral.lattice.checks import check_method

# values `[channels, *space]` of a tile with its margins, and the position of the first sample -> the same space
TileFilter = Callable[[Tensor, tuple[int, ...]], Tensor]


def bilateral_filter(
    image: Any,
    guide: Any = None,
    *,
    sigma_space: Sigma,
    sigma_color: Sigma,
    axes: str | None = None,
    method: GaussianMethod = "lattice",
    halo: int = 0,
    value_range: ValueRange | None = None,
) -> Any:
    """Smooth a chunked image or volume and keep its edges, lazily; equals `ph.bilateral_filter` of the whole.

    Args:
        image: dask array of integers or floats, or an `xarray.DataArray` of one. Its chunks are the tiles; chunks
            smaller than the filter's support are merged.
        guide: array whose edges are kept, with the axes of `image` and any number of channels; default: `image`.
        sigma_space: standard deviation over positions, in samples; one number, or one per spatial axis.
        sigma_color: standard deviation over values, in units of the guide if it has floats, and for integers as in
            `ph.bilateral_filter`; one number, or one per channel.
        axes: a letter per axis, C for channels, such as "YXC", "ZYX" or "CZYX"; default: the dimensions of an
            xarray, else all axes are spatial.
        method: "lattice", "dense" or "exact", as for `ph.gaussian_filter`. "exact" has the widest margins, and
            differs from the whole by rounding.
        halo: as for `ph.gaussian_filter`; widens the margins.
        value_range: the values that count as 0 and 1, as for `ph.bilateral_filter`.

    Returns:
        like `image`: its type, shape, dtype and coordinates.

    >>> import permutohedral.dask as phd
    >>> volume = da.random.random((20, 30, 40), chunks=20)
    >>> phd.bilateral_filter(volume, sigma_space=1.0, sigma_color=0.2, axes="ZYX").compute().shape
    (20, 30, 40)
    """
    names = axis_letters(image, axes)
    images = [image] if guide is None else [image, guide]
    sigmas = numbers_of(sigma_space, len(names) - names.count(CHANNELS))
    if method not in ("lattice", "dense", "exact"):
        raise InputError(f"method is {method!r}; pass 'lattice', 'dense' or 'exact', the same for all tiles")
    check_method(method, halo)
    edges = images[-1]
    scale = range_of("image" if guide is None else "guide", edges.dtype, value_range)
    if scale is not None:
        warn_of_large_sigma(sigma_color)
    if CHANNELS in names:
        warn_of_four_channels("guide", edges.shape[names.index(CHANNELS)], edges.dtype.kind in "ui")
    options: dict[str, Any] = {"sigma_space": sigmas, "sigma_color": sigma_color, "method": method, "halo": halo}
    run = partial(tiling.filter_bilateral_tile, **options, value_range=scale)
    return map_with_margins(run, images, names, tiling.bilateral_margins(sigmas, method, halo))


def map_tiles(
    function: TileFilter,
    image: Any,
    margins: Sequence[int],
    axes: str | None = None,
    out_channels: int | None = None,
) -> Any:
    """Apply your own filter, or a trained layer, tile by tile, lazily.

    Args:
        function: takes values, float32 or float64 `[channels, *space]`, and the position of their first sample.
            Returns the same shape. A bilateral layer is `lambda values, origin: layer(values[None], origin=origin)[0]`.
        image: as for `bilateral_filter`.
        margins: samples that the function needs on either side, for each spatial axis: `sigma_space` times
            `ph.lattice.reach`, rounded up; twice as many for a layer with `normalization="symmetric"`.
        axes: as for `bilateral_filter`.
        out_channels: channels that the function returns; the result is then floating. The image needs an axis C, such
            as `image[None]` with `axes="CYX"`. Default: those of the image.

    Returns:
        like `image`.

    >>> import permutohedral.dask as phd
    >>> image = da.ones((100, 80), chunks=50)
    >>> float(phd.map_tiles(lambda values, origin: 2 * values, image, (3, 3)).sum())
    16000.0
    """
    return map_with_margins(function, [image], axis_letters(image, axes), list(margins), out_channels)


def axis_letters(image: Any, axes: str | None) -> str:
    """Return a letter per axis of the image, after checking that they fit."""
    names = None if axes is None else axes.upper()
    if names is None and hasattr(image, "dims"):
        names = "".join(CHANNELS if str(name).lower() in ("c", "channel", "band") else "S" for name in image.dims)
    if names is None:
        choices = tiling.choices_of_axes(image.shape, SPATIAL + CHANNELS)
        if choices:
            raise InputError(
                f"axes are missing, and an array of shape {image.shape} may have channels; pass "
                f"axes={', '.join(map(repr, choices))}, ..."
            )
        names = "S" * image.ndim
    letters = SPATIAL + CHANNELS
    is_known = axes is None or (set(names) <= set(letters) and len(set(names)) == len(names))
    if len(names) != image.ndim or names.count(CHANNELS) > 1 or len(names.replace(CHANNELS, "")) > 3 or not is_known:
        raise InputError(
            f"axes are {axes!r}, but the array has shape {image.shape}; pass a letter per axis, each once: Z, Y and X "
            "for space, C for channels"
        )
    return names


def map_with_margins(
    run: Callable[..., Tensor],
    images: Sequence[Any],
    names: str,
    margins: list[int],
    out_channels: int | None = None,
) -> Any:
    """Apply `run(values, origin)`, or `run(values, origin, guide)`, to tiles with margins.

    `images` has the image, and optionally a guide. `out_channels` makes the result floating; default: the channels of
    the image, and its dtype.
    """
    wrapped = images[0] if hasattr(images[0], "dims") else None
    arrays = [_channels_last(image, names) for image in images]
    if any(array.shape[:-1] != arrays[0].shape[:-1] for array in arrays):
        raise InputError(f"guide and image must have the same space, got shapes {[array.shape for array in arrays]}")
    if len(margins) != arrays[0].ndim - 1 or min(margins) < 0:
        raise InputError(f"margins are {margins}; pass a number of samples per spatial axis of {names!r}")
    # Dask rejects margins wider than the array
    margins = [min(margin, extent) for margin, extent in zip(margins, arrays[0].shape, strict=False)]
    # Dask would merge small chunks later, after positions are computed
    chunks = tuple(
        ensure_minimum_chunksize(margin, sizes) for margin, sizes in zip(margins, arrays[0].chunks[:-1], strict=True)
    )
    arrays = [array.rechunk((*chunks, -1)) for array in arrays]
    dtype, channels = arrays[0].dtype, arrays[0].shape[-1]
    if out_channels is not None:
        dtype, channels = np.dtype(tiling.working_dtype(dtype)), out_channels
        if CHANNELS not in names and channels != 1:
            raise InputError(f"image needs an axis C for the {channels} channels of the result; add one")
    # margins end at the borders of the array
    largest = math.prod(min(max(sizes) + 2 * margin, sum(sizes)) for sizes, margin in zip(chunks, margins, strict=True))
    dimension, most_channels = len(margins) + arrays[-1].shape[-1], max(arrays[0].shape[-1], channels)
    check_chunk_fits("image", largest, dimension, most_channels, tiling.working_dtype(arrays[0].dtype), margins)
    tiles = tiling.Tiling(chunks, tuple(margins))

    def run_block(*blocks: NDArray[Any], block_id: tuple[int, ...] = ()) -> NDArray[Any]:
        limit_worker_cache()
        return tiling.filter_block(run, blocks, tiles.tile(block_id[:-1]), dtype)

    depth = dict(enumerate((*margins, 0)))
    wide = [overlap(array, depth, boundary="none", allow_rechunk=False) for array in arrays]
    empty = np.empty((0,) * wide[0].ndim, dtype)
    mapped = da.map_blocks(run_block, *wide, dtype=dtype, chunks=(*chunks, (channels,)), meta=empty)
    filtered = da.moveaxis(mapped, -1, names.index(CHANNELS)) if CHANNELS in names else mapped[..., 0]
    return filtered if wrapped is None else _wrap(filtered, wrapped)


def _wrap(filtered: da.Array, like: Any) -> Any:
    """Return a labelled array like another; drop the labels of axes whose extent differs."""
    if filtered.shape == like.shape:
        return like.copy(data=filtered)
    changed = {dim for dim, extent in zip(like.dims, filtered.shape, strict=True) if like.sizes[dim] != extent}
    kept = {name: labels for name, labels in like.coords.items() if not changed & set(labels.dims)}
    return type(like)(filtered, coords=kept, dims=like.dims, name=like.name, attrs=like.attrs)


def _channels_last(image: Any, names: str) -> da.Array:
    array = image.data if hasattr(image, "dims") else image
    if not isinstance(array, da.Array):
        raise InputError(f"image is a {type(array).__name__}; pass a Dask array, such as dask.array.from_zarr returns")
    if array.ndim != len(names) or array.dtype.kind not in "uif":
        raise InputError(
            f"image is {array.dtype} of shape {array.shape}; pass integers or floats with the axes {names!r}"
        )
    if CHANNELS in names:
        array = da.moveaxis(array, names.index(CHANNELS), -1)
        return cast(da.Array, array.rechunk({-1: -1}))
    return cast(da.Array, array[..., None])
