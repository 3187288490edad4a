"""Coarse samples of fine grids: means of cells, or single samples; their features, and their residuals.

Grids have three axes here; those of images have a first axis of length one. Tiles are `[BLOCK cells, WIDE samples]`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.contract import FEATURE_SHIFT, CoarseGrid, Declined
from permutohedral.ops.triton.kernel import cdiv, kernel, on_device, power_of_two

_BLOCK, _WIDEST = 512, 64
_SHIFT = tl.constexpr(FEATURE_SHIFT)
# arguments of the kernel for bandwidths
_MOST_FEATURES = 6


@triton.jit
def split_sample(number, height, width):
    """Return the positions of samples by their numbers, the last axis fastest."""
    return number // width // height, (number // width) % height, number % width


@triton.jit
def window(cell, coarse, fine, POINT: tl.constexpr):
    """Return the first fine sample along an axis of the window of a coarse one, and the size of the window."""
    first = cell * fine // coarse
    if POINT:
        return first, first * 0 + 1
    else:
        return first, ((cell + 1) * fine + coarse - 1) // coarse - first


@triton.jit
def cell_means(
    samples, z, y, x, stride, depth, height, width, fine_depth, fine_height, fine_width,
    POINT: tl.constexpr, WIDE: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Return the means of the samples in the cells at z, y, x of several maps, `[BLOCK, COLUMNS]`.

    `samples`, like the result, point to the first sample of a map. Those that follow each other are `stride` elements
    apart.
    """
    first_z, size_z = window(z, depth, fine_depth, POINT)
    first_y, size_y = window(y, height, fine_height, POINT)
    first_x, size_x = window(x, width, fine_width, POINT)
    total = tl.zeros([samples.shape[0], WIDE, samples.shape[1]], DTYPE)
    for row in range(tl.max(size_z * size_y, axis=0)):
        plane = row // size_y
        line = (first_z + plane).to(tl.int64) * fine_height + first_y + row % size_y
        for begin in range(0, tl.max(size_x, axis=0), WIDE):
            along = begin + tl.arange(0, WIDE)
            place = (line * fine_width + first_x)[:, None] + along[None, :]
            real = (plane < size_z)[:, None] & (along[None, :] < size_x[:, None])
            value = tl.load(samples[:, None, :] + place[:, :, None] * stride, mask=real[:, :, None], other=0.0)
            total += value.to(DTYPE)
    return tl.sum(total, axis=1) / (size_z * size_y * size_x).to(DTYPE)[:, None]


@triton.jit
def position(cell, coarse, fine, POINT: tl.constexpr):
    """Return the positions of coarse samples along an axis, in fine samples."""
    if POINT:
        return (cell * fine // coarse).to(tl.float32)
    else:
        return (cell.to(tl.float32) + 0.5) * (fine / coarse) - 0.5


@kernel(sizes=[
    "num_cells", "first", "depth", "height", "width", "fine_depth", "fine_height", "fine_width", "sigma_0", "sigma_1",
    "sigma_2", "sigma_3", "sigma_4", "sigma_5",
])  # fmt: skip
def cell_features_kernel(
    guide, features, num_cells, first, depth, height, width, fine_depth, fine_height, fine_width,
    sigma_0, sigma_1, sigma_2, sigma_3, sigma_4, sigma_5,
    AXES: tl.constexpr, CHANNELS: tl.constexpr, POINT: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write float32 features of `guide [items, CHANNELS, *fine]`, from row `first` on: position, then the guide.

    Tiles are `[BLOCK, COLUMNS]`, so that neighboring threads store to neighboring places.
    """
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < num_cells
    number = tl.minimum(number, num_cells - 1)
    cells = depth * height * width
    fine = fine_depth.to(tl.int64) * fine_height * fine_width
    item, cell = (number // cells).to(tl.int64), number % cells
    z, y, x = split_sample(cell, height, width)
    column = tl.arange(0, COLUMNS)[None, :]
    channel = tl.minimum(tl.maximum(column - AXES, 0), CHANNELS - 1)
    planes = guide + (item[:, None] * CHANNELS + channel) * fine
    value = cell_means(
        planes, z, y, x, 1, depth, height, width, fine_depth, fine_height, fine_width, POINT, WIDE, tl.float32
    )  # fmt: skip
    value = tl.where(column == AXES - 3, position(z, depth, fine_depth, POINT)[:, None], value)
    value = tl.where(column == AXES - 2, position(y, height, fine_height, POINT)[:, None], value)
    value = tl.where(column == AXES - 1, position(x, width, fine_width, POINT)[:, None], value)
    sigma = tl.where(column == 0, sigma_0, tl.where(column == 1, sigma_1, sigma_2))
    sigma = tl.where(column < 3, sigma, tl.where(column == 3, sigma_3, tl.where(column == 4, sigma_4, sigma_5)))
    place = features + (first + number).to(tl.int64)[:, None] * (AXES + CHANNELS) + column
    # rounded to nearest, as torch divides on the CPU
    shifted = tl.div_rn(value, sigma + 0.0 * value) + _SHIFT
    tl.store(place, shifted, mask=inside[:, None] & (column < AXES + CHANNELS))


@kernel(sizes=[
    "num_cells", "depth", "height", "width", "fine_depth", "fine_height", "fine_width", "stride", "channel_stride",
])  # fmt: skip
def missing_kernel(
    rows, maps, missing, num_cells, depth, height, width, fine_depth, fine_height, fine_width, stride, channel_stride,
    CHANNELS: tl.constexpr, POINT: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write `missing [num_cells, CHANNELS]`: rows less the means of the maps on the coarse grid.

    Samples of a map that follow each other are `stride` elements apart, channels `channel_stride`.
    """
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < num_cells
    number = tl.minimum(number, num_cells - 1)
    channel = tl.program_id(1)
    cells = depth * height * width
    fine = fine_depth.to(tl.int64) * fine_height * fine_width
    z, y, x = split_sample(number % cells, height, width)
    dtype: tl.constexpr = missing.dtype.element_ty
    samples = maps + (number // cells).to(tl.int64) * CHANNELS * fine + channel.to(tl.int64) * channel_stride
    seen = cell_means(
        samples[:, None], z, y, x, stride, depth, height, width, fine_depth, fine_height, fine_width, POINT, WIDE, dtype
    )  # fmt: skip
    place = (number.to(tl.int64) * CHANNELS + channel)[:, None]
    tl.store(missing + place, tl.load(rows + place) - seen, mask=inside[:, None])


def widest_window(grid: CoarseGrid) -> int:
    """Return the samples of a tile: those of a window along the last axis."""
    if grid.point:
        return 1
    widest = cdiv(grid.fine[-1], grid.coarse[-1]) + (1 if grid.fine[-1] % grid.coarse[-1] else 0)
    return min(power_of_two(widest), _WIDEST)


def fits(grid: CoarseGrid) -> bool:
    """Return whether 32 bits number all samples."""
    products = [coarse * (fine + 1) for coarse, fine in zip(grid.coarse, grid.fine, strict=True)]
    return max(*products, grid.samples) < 1 << 31


def block_of(wide: int) -> int:
    """Return the cells of a tile."""
    return max(_BLOCK // wide, 16)


def three_axes(extents: tuple[int, ...]) -> tuple[int, int, int]:
    """Return extents with ones before them."""
    first, second, third = (1,) * (3 - len(extents)) + extents
    return first, second, third


def find_limit(guide: Tensor, grid: CoarseGrid, sigmas: Sequence[float]) -> Declined | None:
    """Return the limit of the kernel of features that the arguments exceed, or None."""
    if guide.dtype == torch.float64:
        return Declined("the kernel has no double precision")
    if len(sigmas) > _MOST_FEATURES:
        return Declined(f"the kernel takes at most {_MOST_FEATURES} feature dimensions, got {len(sigmas)}")
    return None if guide.numel() > 0 and fits(grid) else Declined("the grid is empty or has 2^31 samples or more")


def write_features(features: Tensor, first: int, guide: Tensor, grid: CoarseGrid, sigmas: Sequence[float]) -> None:
    """Fill the rows of `features [points, d]` from the `first` on with those of the coarse samples of all items."""
    axes, wide = len(grid.fine), widest_window(grid)
    items, channels = guide.numel() // (grid.samples * guide.shape[-axes - 1]), guide.shape[-axes - 1]
    number, rest = items * grid.cells, (1.0,) * (_MOST_FEATURES - len(sigmas))
    sizes = number, first, *three_axes(grid.coarse), *three_axes(grid.fine), *map(float, sigmas), *rest
    # a tile has up to eight columns
    block = max(_BLOCK // (2 * wide), 8)
    variant = cell_features_kernel[axes, channels, grid.point, block, wide, power_of_two(axes + channels)]
    variant(variant.tiles(number, 1), (guide, features), sizes)


@on_device
def cell_features(guide: Tensor, grid: CoarseGrid, sigmas: Sequence[float]) -> Tensor | Declined:
    declined = find_limit(guide, grid, sigmas)
    if declined is not None:
        return declined
    leading = guide.shape[: -len(grid.fine) - 1]
    features = torch.empty(*leading, grid.cells, len(sigmas), dtype=torch.float32, device=guide.device)
    write_features(features, 0, guide.contiguous(), grid, sigmas)
    return features


def find_missing(rows: Tensor, maps: Tensor, grid: CoarseGrid, planes: bool) -> Tensor:
    """Return rows minus the maps on the coarse grid, `[items * coarse samples, channels]`."""
    (number, channels), missing = rows.shape, torch.empty_like(rows)
    wide, strides = widest_window(grid), (1, grid.samples) if planes else (channels, 1)
    sizes = number, *three_axes(grid.coarse), *three_axes(grid.fine), *strides
    variant = missing_kernel[channels, grid.point, block_of(wide), wide]
    variant((variant.tiles(number, 1)[0], channels, 1), (rows, maps, missing), sizes)
    return missing
