"""Pictures and volumes tile by tile, each with a margin as wide as the filter reaches: the result of the whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import dask.array as da
import numpy as np
import torch
from dask.array.overlap import ensure_minimum_chunksize, overlap
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.checks import check_method
from permutohedral.dask.workers import check_fits, keep_little
from permutohedral.errors import InputError
from permutohedral.features import Sigma, numbers_of
from permutohedral.filters.exact import POINTS_REACH, WINDOW_REACH
from permutohedral.functional import GaussianMethod
from permutohedral.functional import bilateral_filter as filter_at_once
from permutohedral.geometry import reach
from permutohedral.memory import new_tensor

# values `[channels, *space]` of a tile with its margin, and the position of its first sample; of the same space
TileFilter = Callable[[Tensor, tuple[int, ...]], Tensor]
# the axis of channels among names such as Z, Y, X
_CHANNELS = "C"
# channels at most, where nobody says what an axis is
_FEW = 4
# as many as are rounded at a time
_NUMBERS_IN_CACHE = 1 << 16


def bilateral_filter(
    image: Any,
    sigma_space: Sigma,
    sigma_range: Sigma,
    guide: Any = None,
    axes: str | None = None,
    method: GaussianMethod = "separable",
    halo: int = 0,
) -> Any:
    """Smooth a chunked picture or volume and keep its edges, lazily; the result of `ph.bilateral_filter` of the whole.

    Args:
        image: Dask array of any real dtype, or `xarray.DataArray` around one. Its chunks are the tiles; those that are
            smaller than the filter reaches are joined.
        sigma_space: standard deviation over positions, in samples; one number, or one for each axis of space.
        sigma_range: standard deviation over values, in units of the guide; one number, or one for each channel.
        guide: whose edges are kept, with the axes of `image` and channels of its own; default: the image itself.
        axes: a letter for each axis, C for channels, such as "YXC", "ZYX" or "CZYX"; default: the dimensions of an
            xarray, else all axes are space.
        method: "separable", "dense" or "exact", as for `ph.gaussian_filter`; the margins of "exact" are the widest, and
            its sums may differ from those of the whole by their rounding. What "auto" takes would depend on the tile.
        halo: see `ph.gaussian_filter`; the margins are wider by it.

    Returns:
        Like `image`: its type, shape, dtype and coordinates.

    >>> import permutohedral.dask as phd
    >>> volume = da.random.random((20, 30, 40), chunks=20)
    >>> phd.bilateral_filter(volume, sigma_space=1.0, sigma_range=0.2, axes="ZYX").compute().shape
    (20, 30, 40)
    """
    names = axes_of(image, axes)
    others = [] if guide is None else [guide]
    dimension = len(names) - names.count(_CHANNELS)
    sigmas = numbers_of(sigma_space, dimension)
    if method not in ("separable", "dense", "exact"):
        raise InputError(f"tiles take the method 'separable', 'dense' or 'exact', the same for all, not {method!r}")
    check_method(method, halo, None)
    run = partial(filter_tile, sigmas=sigmas, sigma_range=sigma_range, method=method, halo=halo)
    return map_with_margins(run, [image, *others], names, margins_of(sigmas, method, halo))


def map_tiles(function: TileFilter, image: Any, margins: Sequence[int], axes: str | None = None) -> Any:
    """Apply a filter of one's own, such as a fitted layer, tile by tile, lazily.

    Args:
        function: of values float32 or float64 `[channels, *space]` and the position of their first sample; it returns
            as many channels.
        image: as for `bilateral_filter`.
        margins: how many samples it sees on either side of one, along each axis of space: `ph.reach` standard
            deviations.
        axes: as for `bilateral_filter`.

    Returns:
        Like `image`.

    >>> import permutohedral.dask as phd
    >>> picture = da.ones((100, 80), chunks=50)
    >>> float(phd.map_tiles(lambda values, origin: 2 * values, picture, (3, 3)).sum())
    16000.0
    """
    return map_with_margins(function, [image], axes_of(image, axes), list(margins))


def margins_of(sigmas: Sequence[float], method: GaussianMethod = "separable", halo: int = 0) -> list[int]:
    """How far the bilateral filter sees along each axis of space, in samples.

    >>> margins_of([2.0, 2.0]), margins_of([2.0, 2.0], "exact")
    ([8, 9], [11, 11])
    """
    exact = WINDOW_REACH if len(sigmas) == 2 else POINTS_REACH
    reaches = [exact if method == "exact" else reach(axis, halo=halo) for axis in range(len(sigmas))]
    # one more for the rounding of positions
    return [math.ceil(sigma * each) + 1 for sigma, each in zip(sigmas, reaches, strict=True)]


def filter_tile(
    values: Tensor,
    origin: tuple[int, ...],
    guide: Tensor | None = None,
    *,
    sigmas: list[float],
    sigma_range: Sigma,
    method: GaussianMethod = "separable",
    halo: int = 0,
) -> Tensor:
    """The lattice lies as it does under the whole: positions are counted from its first sample."""
    return filter_at_once(values, sigmas, sigma_range, guide, method, halo, spatial_axes=len(origin), origin=origin)


def may_have_channels(shape: Sequence[int]) -> bool:
    """Whether an array is more than a picture, and an axis at one of its ends so short that it looks like channels.

    >>> may_have_channels((480, 640, 3)), may_have_channels((20, 480, 640))
    (True, False)
    """
    return len(shape) > 2 and min(shape[0], shape[-1]) <= _FEW


def axes_of(image: Any, axes: str | None) -> str:
    """A letter for each axis of the image, once it is known that they fit."""
    names = None if axes is None else axes.upper()
    if names is None and hasattr(image, "dims"):
        names = "".join(_CHANNELS if str(name).lower() in ("c", "channel", "band") else "S" for name in image.dims)
    if names is None:
        if may_have_channels(image.shape):
            raise InputError(
                f"an array of shape {image.shape} may have channels: say which with axes, such as axes='YXC' for "
                "pictures or axes='ZYX' for a volume"
            )
        names = "S" * image.ndim
    if len(names) != image.ndim or names.count(_CHANNELS) > 1 or not 1 <= len(names.replace(_CHANNELS, "")) <= 3:
        raise InputError(
            f"axes must name each axis of an array of shape {image.shape}, one to three of space and at most one C for "
            f"channels, got {axes!r}"
        )
    return names


def map_with_margins(
    run: Callable[..., Tensor],
    images: Sequence[Any],
    names: str,
    margins: list[int],
    out_channels: int | None = None,
) -> Any:
    """Apply `run(values, origin)`, or `run(values, origin, guide)`, to tiles of the first image, guided by the second.

    Tiles that are smaller than the margins are joined before: Dask would do it later, and positions would be wrong.

    Args:
        run: the filter of a tile with its margins.
        images: what is filtered, and perhaps a guide.
        names: a letter for each axis.
        margins: for each axis of space.
        out_channels: of the result, which is then floating; default: those of the first image, and its dtype.

    Returns:
        Like the first image.
    """
    wrapped = images[0] if hasattr(images[0], "dims") else None
    arrays = [_channels_last(image, names) for image in images]
    if any(array.shape[:-1] != arrays[0].shape[:-1] for array in arrays):
        raise InputError(f"guide and image must have one space, got {[array.shape for array in arrays]}")
    if len(margins) != arrays[0].ndim - 1 or min(margins) < 0:
        raise InputError(f"margins need a number of samples for each axis of space in {names!r}, got {margins}")
    # no tile sees more than the whole, and Dask takes no more
    margins = [min(margin, extent) for margin, extent in zip(margins, arrays[0].shape, strict=False)]
    tiles = tuple(
        ensure_minimum_chunksize(margin, chunks) for margin, chunks in zip(margins, arrays[0].chunks[:-1], strict=True)
    )
    arrays = [array.rechunk((*tiles, -1)) for array in arrays]
    dtype, channels = arrays[0].dtype, arrays[0].shape[-1]
    if out_channels is not None:
        dtype, channels = np.dtype(floats_of(dtype)), out_channels
        if _CHANNELS not in names and channels != 1:
            raise InputError(f"a result of {channels} channels needs an axis for them: give the image one, named C")
    largest = math.prod(max(chunks) + 2 * margin for chunks, margin in zip(tiles, margins, strict=True))
    dimension = len(margins) + arrays[-1].shape[-1]
    check_fits(largest, dimension, max(arrays[0].shape[-1], channels), floats_of(arrays[0].dtype))
    starts = [np.concatenate([[0], np.cumsum(chunks)[:-1]]) for chunks in tiles]

    def filter_block(*blocks: NDArray[Any], block_id: tuple[int, ...] = ()) -> NDArray[Any]:
        before = [margin if number else 0 for number, margin in zip(block_id, margins, strict=False)]
        first = [int(start[number]) for start, number in zip(starts, block_id, strict=False)]
        extents = [each[number] for each, number in zip(tiles, block_id, strict=False)]
        origin = tuple(start - margin for start, margin in zip(first, before, strict=True))
        kept = tuple(slice(margin, margin + extent) for margin, extent in zip(before, extents, strict=True))
        return run_on_block(run, blocks, origin, kept, dtype)

    depth = dict(enumerate((*margins, 0)))
    wide = [overlap(array, depth, boundary="none", allow_rechunk=False) for array in arrays]
    empty = np.empty((0,) * wide[0].ndim, dtype)
    mapped = da.map_blocks(filter_block, *wide, dtype=dtype, chunks=(*tiles, (channels,)), meta=empty)
    filtered = _as_before(mapped, names)
    return filtered if wrapped is None else _wrap(filtered, wrapped)


def _wrap(filtered: da.Array, like: Any) -> Any:
    """A labelled array like another; if it has other channels, without the labels of these."""
    if filtered.shape == like.shape:
        return like.copy(data=filtered)
    changed = {dim for dim, extent in zip(like.dims, filtered.shape, strict=True) if like.sizes[dim] != extent}
    kept = {name: labels for name, labels in like.coords.items() if not changed & set(labels.dims)}
    return type(like)(filtered, coords=kept, dims=like.dims, name=like.name, attrs=like.attrs)


def _channels_last(image: Any, names: str) -> da.Array:
    array = image.data if hasattr(image, "dims") else image
    if not isinstance(array, da.Array):
        raise InputError(f"the image must be a Dask array, got {type(array).__name__}; see dask.array.from_zarr")
    if array.ndim != len(names) or array.dtype.kind not in "uif":
        raise InputError(f"the image must be real with the axes {names!r}, got {array.dtype} of shape {array.shape}")
    if _CHANNELS in names:
        array = da.moveaxis(array, names.index(_CHANNELS), -1)
        return cast(da.Array, array.rechunk({-1: -1}))
    return cast(da.Array, array[..., None])


def _as_before(array: da.Array, names: str) -> da.Array:
    return cast(da.Array, da.moveaxis(array, -1, names.index(_CHANNELS)) if _CHANNELS in names else array[..., 0])


def run_on_block(
    run: Callable[..., Tensor],
    blocks: Sequence[NDArray[Any]],
    origin: tuple[int, ...],
    kept: tuple[slice, ...],
    dtype: Any,
) -> NDArray[Any]:
    """What is `kept` of `run` of tiles `[*space, channels]`, the values and perhaps a guide.

    Args:
        run: of values `[channels, *space]`, the origin, and the guide if there is one.
        blocks: tiles with their margins.
        origin: of their first sample.
        kept: along each axis of space, what is left without the margins.
        dtype: of the result; whole numbers are rounded.
    """
    keep_little()
    exact = floats_of(blocks[0].dtype)
    tensors = [_floating(block, exact).movedim(-1, 0) for block in blocks]
    try:
        filtered = run(tensors[0], origin, *tensors[1:]).movedim(0, -1).numpy()[kept]
    except InputError as error:
        raise InputError(f"in the tile whose first sample is {origin}: {error.message}") from error
    result = np.empty(filtered.shape, dtype)
    # some lines at a time, for which the caches are large enough: new memory costs more than the arithmetic
    lines = max(1, _NUMBERS_IN_CACHE * len(filtered) // max(filtered.size, 1))
    for first in range(0, len(filtered), lines):
        some = slice(first, first + lines)
        result[some] = as_dtype(filtered[some], dtype)
    return result


def _floating(block: NDArray[Any], dtype: Any) -> Tensor:
    """A copy of the block."""
    tensor = new_tensor(block.shape, torch.float64 if dtype == np.float64 else torch.float32)
    np.copyto(tensor.numpy(), block, casting="unsafe")
    return tensor


def as_dtype(numbers: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Floating numbers in another dtype; whole ones are rounded, and those out of its range are at its ends.

    >>> as_dtype(np.array([-1.0, 1.6, 2.0**32]), np.uint32).tolist()
    [0, 2, 4294967295]
    """
    if not np.issubdtype(dtype, np.integer):
        return numbers.astype(dtype)
    limits = np.iinfo(dtype)
    rounded: NDArray[Any] = np.rint(numbers)
    if np.dtype(dtype).itemsize <= 2:
        # all of them have equals among the floats
        np.clip(rounded, limits.min, limits.max, out=rounded)
        return rounded.astype(dtype)
    # the largest number may have no equal among the floats, and the next of these is beyond it
    above = rounded >= limits.max
    whole = np.where(above, 0, np.maximum(rounded, limits.min)).astype(dtype)
    whole[above] = limits.max
    return whole


def floats_of(dtype: Any) -> Any:
    """What numbers of this kind are computed with: floats that have them all, as far as there are such.

    >>> floats_of(np.uint16), floats_of(np.uint32)
    (<class 'numpy.float32'>, <class 'numpy.float64'>)
    """
    kind = np.dtype(dtype)
    return np.float64 if kind.itemsize > (2 if kind.kind in "ui" else 4) else np.float32
