"""Tiles with margins, and the filter of one tile; shared by images, array files and Dask arrays.

Experimental: these names may change in any minor release.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.features import Sigma, ValueRange, unit_values
from permutohedral.filters.bilateral import filter_pixels
from permutohedral.filters.choice import choose_for_pixels
from permutohedral.filters.color_grid import reach_of_grid
from permutohedral.filters.exact import POINTS_REACH, WINDOW_REACH, sum_pixels, window_of
from permutohedral.filters.gaussian import GaussianMethod
from permutohedral.lattice.checks import check_method
from permutohedral.lattice.geometry import reach
from permutohedral.lattice.memory import new_tensor

Region = tuple[slice, ...]

# letter of the channel axis among names such as Z, Y, X
CHANNELS = "C"
# letters that users name spatial axes with; files may have others
SPATIAL = "ZYX"
# examples of letters for arrays of three to five axes; T is for times
_AXES = ("YXC", "CYX", "ZYX", "TYX", "ZYXC", "CZYX", "TZYX", "TZYXC", "TCZYX")
# an outer axis of an unnamed array is taken for channels up to this extent
_MAX_CHANNELS = 4
# the result of a tile is rounded in pieces that fit the cache
_ELEMENTS_IN_CACHE = 1 << 16


@dataclass(frozen=True)
class Tile:
    """One tile of an array.

    Attributes:
        read: region of the input, with margins.
        write: region of the output.
        keep: region of the filtered block that goes to `write`.
        origin: position of the first sample of `read`.
    """

    read: Region
    write: Region
    keep: Region
    origin: tuple[int, ...]

    def along(self, axes: Sequence[int]) -> Tile:
        """Return the same tile along some of its axes."""
        parts = self.read, self.write, self.keep, self.origin
        return Tile(*(tuple(part[axis] for axis in axes) for part in parts))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Tiling:
    """Tiles that cover an array, each read with margins that end at the array's borders.

    Attributes:
        chunks: extents of the tiles along each axis.
        margins: samples that a tile reads on either side, for each axis.

    >>> [tile.read for tile in Tiling.regular((5,), (3,), (1,))]
    [(slice(0, 4, None),), (slice(2, 5, None),)]
    """

    chunks: tuple[tuple[int, ...], ...]
    margins: tuple[int, ...]

    @classmethod
    def regular(cls, shape: Sequence[int], tile: Sequence[int], margins: Sequence[int]) -> Tiling:
        """Cover `shape` with tiles of equal extents; the last one along an axis may be smaller."""
        pairs = zip(shape, tile, strict=True)
        chunks = tuple(tuple(min(size, extent - at) for at in range(0, extent, size)) for extent, size in pairs)
        return cls(chunks, tuple(margins))

    def __len__(self) -> int:
        return math.prod(map(len, self.chunks))

    def indices(self) -> Iterator[tuple[int, ...]]:
        """Yield the index of each tile, the last axis fastest."""
        return itertools.product(*(range(len(sizes)) for sizes in self.chunks))

    def __iter__(self) -> Iterator[Tile]:
        return map(self.tile, self.indices())

    def tile(self, index: Sequence[int]) -> Tile:
        """Return the tile at an index."""
        read, write, keep = [], [], []
        for number, sizes, margin in zip(index, self.chunks, self.margins, strict=True):
            start = sum(sizes[:number])
            stop = start + sizes[number]
            first = max(start - margin, 0)
            read.append(slice(first, min(stop + margin, sum(sizes))))
            write.append(slice(start, stop))
            keep.append(slice(start - first, stop - first))
        return Tile(tuple(read), tuple(write), tuple(keep), tuple(part.start for part in read))


def largest_tile_side(space: Sequence[int], margins: Sequence[int], max_points: int) -> int:
    """Return the side of the largest tile with at most `max_points` samples, margins included; 0 if none fits.

    `space` has the extents of the array along its spatial axes; no tile is larger.

    >>> largest_tile_side((100, 100, 100), (4, 4, 4), 10**6), largest_tile_side((100, 100), (10, 10), 40**2)
    (100, 20)
    """
    low, high = 0, max(space)
    while low < high:
        side = (low + high + 1) // 2
        low, high = (side, high) if count_tile_points(space, margins, side) <= max_points else (low, side - 1)
    return low


def count_tile_points(space: Sequence[int], margins: Sequence[int], side: int) -> int:
    """Return the samples of a tile with its margins, which end at the borders of the array.

    >>> count_tile_points((100, 100), (10, 10), 20)
    1600
    """
    return math.prod(min(side + 2 * margin, extent) for margin, extent in zip(margins, space, strict=True))


def bilateral_margins(sigmas: Sequence[float], method: GaussianMethod = "lattice", halo: int = 0) -> list[int]:
    """Return the support radius of the bilateral filter in samples, for each spatial axis.

    >>> bilateral_margins([2.0, 2.0]), bilateral_margins([2.0, 2.0], "exact")
    ([8, 9], [11, 11])
    """
    exact = WINDOW_REACH if len(sigmas) == 2 else POINTS_REACH
    reaches = [exact if method == "exact" else reach(axis, halo=halo) for axis in range(len(sigmas))]
    # one more sample for rounded positions
    return [math.ceil(sigma * each) + 1 for sigma, each in zip(sigmas, reaches, strict=True)]


def filter_bilateral_tile(
    values: Tensor,
    origin: tuple[int, ...],
    guide: Tensor | None = None,
    *,
    sigma_space: Sigma,
    sigma_color: Sigma,
    method: GaussianMethod = "lattice",
    halo: int = 0,
    value_range: ValueRange | None = None,
) -> Tensor:
    """Filter a tile `[channels, *space]` with its margins like `ph.bilateral_filter` of the whole array.

    `origin` is the position of the first sample in the whole array, so that all tiles share one lattice. There are no
    warnings: a part of an image may be flat, or all texture.
    """
    if value_range is not None:
        guide = unit_values("guide", values if guide is None else guide, value_range)
    sigmas = sigma_space, sigma_color
    return filter_pixels(values, guide, sigmas, method, halo, len(origin), origin, None, 0.0, False)[0]


def filter_in_tiles(
    values: Tensor,
    guide: Tensor,
    sigma_space: float,
    sigma_color: float,
    progress: Callable[[float], None] | None = None,
    *,
    method: GaussianMethod = "lattice",
    halo: int = 0,
    tile: int = 2048,
) -> Tensor:
    """Apply `ph.bilateral_filter` to `[channels, height, width]` in tiles, with margins as wide as its support.

    The result equals the filter of the whole image up to the order of its sums. `tile` is the extent of a tile in
    pixels with its margins; an image of no more pixels is filtered in one call. `method="auto"` chooses one method for
    the whole image. `progress` is called with the share that is done.

    >>> import torch, permutohedral as ph
    >>> image = torch.rand(3, 40, 50)
    >>> tiles = filter_in_tiles(image, image, 1.0, 0.2, tile=30)
    >>> bool(torch.allclose(tiles, ph.bilateral_filter(image, sigma_space=1.0, sigma_color=0.2), atol=1e-5))
    True
    """
    height, width = values.shape[1:]
    options: dict[str, Any] = {"sigma_space": sigma_space, "sigma_color": sigma_color, "halo": halo}
    if height * width <= tile * tile:
        # as a tile, without a warning that the image is unchanged, which would name no file
        filtered = filter_bilateral_tile(values, (0, 0), guide, method=method, **options)
        if progress is not None:
            progress(1.0)
        return filtered
    check_method(method, halo)
    window_reach, axes, step = WINDOW_REACH, None, 1
    if method == "auto":
        choice = choose_for_pixels(values, guide, sigma_space, sigma_color)
        window_reach, axes = choice.reach, None if halo else choice.axes
        method = "exact" if choice.method == "exact" else "lattice"
    if axes is not None:
        # tiles begin at cells of the grid of the whole image
        step = axes.step.cell_size(sigma_space, max(height, width))
        margins = [reach_of_grid(sigma_space, axes.step, max(height, width))] * 2
    elif method == "exact":
        # one more pixel for rounded positions
        margins = [math.ceil(sigma_space * window_reach) + 1] * 2
    else:
        margins = bilateral_margins([sigma_space] * 2, method, halo)

    def filter_tile(part: Tensor, edges: Tensor, origin: tuple[int, ...]) -> Tensor:
        if axes is None and method != "exact":
            return filter_bilateral_tile(part, origin, edges, method=method, **options)
        window = window_of(edges, sigma_space, sigma_color if axes is None else None, window_reach)
        assert window is not None, "sigma is a number"
        return sum_pixels(part.flatten(1).mT, "homogeneous", window, axes).mT.reshape(part.shape)

    inner = max(tile - 2 * margins[1], 6 * margins[1]) // step * step
    tiling = Tiling.regular((height, width), (inner, inner), [-(-margin // step) * step for margin in margins])
    result = torch.empty_like(values)
    for number, part in enumerate(tiling, start=1):
        (y, x), (rows, columns), (kept_y, kept_x) = part.read, part.write, part.keep
        filtered = filter_tile(values[:, y, x], guide[:, y, x], part.origin)
        result[:, rows, columns] = filtered[:, kept_y, kept_x]
        if progress is not None:
            progress(number / len(tiling))
    return result


def filter_block(run: Callable[..., Tensor], blocks: Sequence[NDArray[Any]], tile: Tile, dtype: Any) -> NDArray[Any]:
    """Filter NumPy blocks of one tile, `[*space, channels]` with margins, and cut off the margins.

    `blocks` has the values, and optionally a guide. `run` is called with values `[channels, *space]`, the origin, and
    the guide. Integers are rounded.
    """
    dtype_within = working_dtype(blocks[0].dtype)
    tensors = [_to_tensor(block, dtype_within).movedim(-1, 0) for block in blocks]
    try:
        # trained layers have parameters; the mode is one of each thread, so that callers cannot set it
        with torch.no_grad():
            filtered = run(tensors[0], tile.origin, *tensors[1:]).movedim(0, -1).numpy()[tile.keep]
    except InputError as error:
        raise InputError(f"in the tile whose first sample is {tile.origin}: {error.message}") from error
    result = np.empty(filtered.shape, dtype)
    lines = max(1, _ELEMENTS_IN_CACHE * len(filtered) // max(filtered.size, 1))
    for first in range(0, len(filtered), lines):
        result[first : first + lines] = cast_rounded(filtered[first : first + lines], dtype)
    return result


def _to_tensor(block: NDArray[Any], dtype: Any) -> Tensor:
    tensor = new_tensor(block.shape, torch.float64 if dtype == np.float64 else torch.float32)
    np.copyto(tensor.numpy(), block, casting="unsafe")
    return tensor


def cast_rounded(numbers: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Cast floats to another dtype; integers are rounded and clipped to their range.

    >>> cast_rounded(np.array([-1.0, 1.6, 2.0**32]), np.uint32).tolist()
    [0, 2, 4294967295]
    """
    if not np.issubdtype(dtype, np.integer):
        return numbers.astype(dtype)
    limits = np.iinfo(dtype)
    rounded: NDArray[Any] = np.rint(numbers)
    if np.dtype(dtype).itemsize <= 2:
        np.clip(rounded, limits.min, limits.max, out=rounded)
        return rounded.astype(dtype)
    # the largest integer may lie between two floats, the upper of which is out of range
    above = rounded >= limits.max
    whole = np.where(above, 0, np.maximum(rounded, limits.min)).astype(dtype)
    whole[above] = limits.max
    return whole


def working_dtype(dtype: Any) -> Any:
    """Return the float dtype to compute in: float32 if it represents all numbers of `dtype`, else float64.

    >>> working_dtype(np.uint16), working_dtype(np.uint32)
    (<class 'numpy.float32'>, <class 'numpy.float64'>)
    """
    kind = np.dtype(dtype)
    return np.float64 if kind.itemsize > (2 if kind.kind in "ui" else 4) else np.float32


def choices_of_axes(shape: Sequence[int], letters: str) -> list[str]:
    """Return examples of axes of an unnamed array, of some letters; none if all of its axes can only be spatial.

    >>> choices_of_axes((480, 640, 3), "ZYXC"), choices_of_axes((20, 30, 40, 50), "TZYXC")
    (['YXC', 'CYX', 'ZYX'], ['ZYXC', 'CZYX', 'TZYX'])
    """
    if len(shape) <= 3 and not _may_have_channels(shape):
        return []
    return [names for names in _AXES if len(names) == len(shape) and set(names) <= set(letters)]


def _may_have_channels(shape: Sequence[int]) -> bool:
    """Return whether an unnamed array has an outer axis that is short enough for channels.

    >>> _may_have_channels((480, 640, 3)), _may_have_channels((20, 480, 640))
    (True, False)
    """
    return len(shape) > 2 and min(shape[0], shape[-1]) <= _MAX_CHANNELS
