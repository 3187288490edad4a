"""Group normalization over the lattice points of each item, and its gradients.

Every program works on a part of the lattice points of one item: `CHUNKS` of them share an item, each takes blocks of
its list in turn and leaves sums by channel. Whoever needs the sums of an item adds those of its parts, in the same
order every time: no atomics, equal bits.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.fused_primitives import ItemsNorm
from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.triton.runtime import Bound, on_device, power_of_two

# sums of groups are taken over tiles [channels, channels]
MOST_CHANNELS = 128
# elements of a tile of rows
_TILE = 2048
# programs that keep a large GPU busy, and how many at most share an item
_PROGRAMS, _MOST_CHUNKS = 512, 64


@triton.jit
def rows_of(order, place, last, ORDERED: tl.constexpr):
    """Which lattice points are at some places of the list of all items; 0 from `last` on."""
    if ORDERED:
        return tl.load(order + place, mask=place < last, other=0).to(tl.int64)
    else:
        return tl.where(place < last, place, 0).to(tl.int64)


@triton.jit
def load_rows(values, row, inside, channel, CHANNELS: tl.constexpr, ACCUMULATED: tl.constexpr):
    """`[rows, channels]`, wide enough to be summed, zero beyond the last."""
    place = values + row[:, None] * CHANNELS + channel[None, :]
    mask = inside[:, None] & (channel < CHANNELS)[None, :]
    return tl.load(place, mask=mask, other=0.0).to(ACCUMULATED)


@triton.jit
def sum_parts(parts, item, channel, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr):
    """What all parts of an item have left, `[channels]`."""
    place = (item * CHUNKS + tl.arange(0, CHUNKS))[:, None] * CHANNELS + channel[None, :]
    return tl.sum(tl.load(parts + place, mask=(channel < CHANNELS)[None, :], other=0.0), axis=0)


@triton.jit
def second_of(sums, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr):
    """The second half of sums `[2, items, chunks, channels]`."""
    return sums + tl.num_programs(0).to(tl.int64) * CHUNKS * CHANNELS


@triton.jit
def mean_of_groups(sums, channel, members, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_C: tl.constexpr):
    """The sums of the WIDTH channels of each channel's group, over their number of elements."""
    other = tl.arange(0, BLOCK_C)
    same = (channel[:, None] // WIDTH == other[None, :] // WIDTH) & (other < CHANNELS)[None, :]
    return tl.sum(tl.where(same, sums[None, :], 0.0), axis=1) / (tl.maximum(members, 1) * WIDTH)


@triton.jit
def slope_of(slope, normalized, factor, added, RELU: tl.constexpr):
    """The gradient before weight and bias: with RELU none where the result was not positive."""
    if RELU:
        slope = tl.where(normalized * factor[None, :] + added[None, :] > 0, slope, 0.0)
    return slope


@triton.jit
def sum_values_kernel(
    values, order, starts, sums,
    ORDERED: tl.constexpr, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The sums of the values of a part of an item."""
    item, chunk, channel = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK_C)
    first, last = tl.load(starts + item), tl.load(starts + item + 1)
    total = tl.zeros([BLOCK_C], sums.dtype.element_ty)
    for begin in range(first + chunk * BLOCK, last, CHUNKS * BLOCK):
        place = begin + tl.arange(0, BLOCK)
        row = rows_of(order, place, last, ORDERED)
        total += tl.sum(load_rows(values, row, place < last, channel, CHANNELS, sums.dtype.element_ty), axis=0)
    tl.store(sums + (item * CHUNKS + chunk) * CHANNELS + channel, total, mask=channel < CHANNELS)


@triton.jit
def sum_squares_kernel(
    values, order, starts, sums, ORDERED: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The sums of the squares of what the values are from the mean of their group: the second half of `sums`."""
    item, chunk, channel = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK_C)
    first, last = tl.load(starts + item), tl.load(starts + item + 1)
    total = sum_parts(sums, item, channel, CHANNELS, CHUNKS)
    mean = mean_of_groups(total, channel, last - first, CHANNELS, WIDTH, BLOCK_C)
    square = tl.zeros([BLOCK_C], sums.dtype.element_ty)
    for begin in range(first + chunk * BLOCK, last, CHUNKS * BLOCK):
        place = begin + tl.arange(0, BLOCK)
        row = rows_of(order, place, last, ORDERED)
        value = load_rows(values, row, place < last, channel, CHANNELS, sums.dtype.element_ty) - mean[None, :]
        square += tl.sum(tl.where((place < last)[:, None], value * value, 0.0), axis=0)
    here = second_of(sums, CHANNELS, CHUNKS) + (item * CHUNKS + chunk) * CHANNELS + channel
    tl.store(here, square, mask=channel < CHANNELS)


@triton.jit
def normalize_items_kernel(
    values, weight, bias, order, starts, sums, statistics, output,
    ORDERED: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, EPS: tl.constexpr, RELU: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Normalize a part of an item, with RELU without what is negative then; mean and scale of its channels go to
    `statistics [items, 2, channels]`.
    """
    item, chunk, channel = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK_C)
    real = channel < CHANNELS
    first, last = tl.load(starts + item), tl.load(starts + item + 1)
    total = sum_parts(sums, item, channel, CHANNELS, CHUNKS)
    mean = mean_of_groups(total, channel, last - first, CHANNELS, WIDTH, BLOCK_C)
    square = sum_parts(second_of(sums, CHANNELS, CHUNKS), item, channel, CHANNELS, CHUNKS)
    variance = mean_of_groups(square, channel, last - first, CHANNELS, WIDTH, BLOCK_C)
    scale = 1.0 / tl.sqrt(variance + EPS)
    if chunk == 0:
        tl.store(statistics + 2 * item * CHANNELS + channel, mean, mask=real)
        tl.store(statistics + (2 * item + 1) * CHANNELS + channel, scale, mask=real)
    factor = tl.load(weight + channel, mask=real, other=0.0).to(sums.dtype.element_ty)
    added = tl.load(bias + channel, mask=real, other=0.0).to(sums.dtype.element_ty)
    for begin in range(first + chunk * BLOCK, last, CHUNKS * BLOCK):
        place = begin + tl.arange(0, BLOCK)
        row = rows_of(order, place, last, ORDERED)
        value = load_rows(values, row, place < last, channel, CHANNELS, sums.dtype.element_ty)
        normalized = (value - mean[None, :]) * scale[None, :] * factor[None, :] + added[None, :]
        if RELU:
            normalized = tl.maximum(normalized, 0.0)
        mask = (place < last)[:, None] & real[None, :]
        there = output + row[:, None] * CHANNELS + channel[None, :]
        tl.store(there, normalized.to(output.dtype.element_ty), mask=mask)


@triton.jit
def sum_gradients_kernel(
    gradient, values, weight, bias, order, starts, statistics, sums, ORDERED: tl.constexpr, CHANNELS: tl.constexpr,
    RELU: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The sums of the gradients of a part of an item, and of their products with the normalized values.

    `sums` is `[2, items, chunks, channels]`.
    """
    item, chunk, channel = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK_C)
    real = channel < CHANNELS
    first, last = tl.load(starts + item), tl.load(starts + item + 1)
    mean = tl.load(statistics + 2 * item * CHANNELS + channel, mask=real, other=0.0)
    scale = tl.load(statistics + (2 * item + 1) * CHANNELS + channel, mask=real, other=0.0)
    factor = tl.load(weight + channel, mask=real, other=0.0).to(sums.dtype.element_ty)
    added = tl.load(bias + channel, mask=real, other=0.0).to(sums.dtype.element_ty)
    plain = tl.zeros([BLOCK_C], sums.dtype.element_ty)
    product = tl.zeros([BLOCK_C], sums.dtype.element_ty)
    for begin in range(first + chunk * BLOCK, last, CHUNKS * BLOCK):
        place = begin + tl.arange(0, BLOCK)
        row = rows_of(order, place, last, ORDERED)
        slope = load_rows(gradient, row, place < last, channel, CHANNELS, sums.dtype.element_ty)
        value = load_rows(values, row, place < last, channel, CHANNELS, sums.dtype.element_ty)
        normalized = (value - mean[None, :]) * scale[None, :]
        slope = slope_of(slope, normalized, factor, added, RELU)
        plain += tl.sum(slope, axis=0)
        product += tl.sum(slope * normalized, axis=0)
    here = sums + (item * CHUNKS + chunk) * CHANNELS + channel
    tl.store(here, plain, mask=real)
    tl.store(second_of(here, CHANNELS, CHUNKS), product, mask=real)


@triton.jit
def differentiate_norm_kernel(
    gradient, values, weight, bias, order, starts, statistics, sums, output,
    ORDERED: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, RELU: tl.constexpr, CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient of the values of a part of an item."""
    item, chunk, channel = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK_C)
    real = channel < CHANNELS
    first, last = tl.load(starts + item), tl.load(starts + item + 1)
    mean = tl.load(statistics + 2 * item * CHANNELS + channel, mask=real, other=0.0)
    scale = tl.load(statistics + (2 * item + 1) * CHANNELS + channel, mask=real, other=0.0)
    factor = tl.load(weight + channel, mask=real, other=0.0).to(sums.dtype.element_ty)
    added = tl.load(bias + channel, mask=real, other=0.0).to(sums.dtype.element_ty)
    plain = sum_parts(sums, item, channel, CHANNELS, CHUNKS) * factor
    product = sum_parts(second_of(sums, CHANNELS, CHUNKS), item, channel, CHANNELS, CHUNKS) * factor
    plain = mean_of_groups(plain, channel, last - first, CHANNELS, WIDTH, BLOCK_C)
    product = mean_of_groups(product, channel, last - first, CHANNELS, WIDTH, BLOCK_C)
    for begin in range(first + chunk * BLOCK, last, CHUNKS * BLOCK):
        place = begin + tl.arange(0, BLOCK)
        row = rows_of(order, place, last, ORDERED)
        slope = load_rows(gradient, row, place < last, channel, CHANNELS, sums.dtype.element_ty)
        value = load_rows(values, row, place < last, channel, CHANNELS, sums.dtype.element_ty)
        normalized = (value - mean[None, :]) * scale[None, :]
        slope = slope_of(slope, normalized, factor, added, RELU)
        found = (slope * factor[None, :] - plain[None, :] - normalized * product[None, :]) * scale[None, :]
        mask = (place < last)[:, None] & real[None, :]
        there = output + row[:, None] * CHANNELS + channel[None, :]
        tl.store(there, found.to(output.dtype.element_ty), mask=mask)


def _chunks(items: int) -> int:
    """How many programs share an item."""
    return min(power_of_two(-(-_PROGRAMS // items)), _MOST_CHUNKS)


@cache
def _bind(kernel: object, ordered: bool, channels: int, chunks: int, **constants: float) -> Bound:
    block_c = power_of_two(channels, 16)
    return Bound(
        kernel, ORDERED=ordered, CHANNELS=channels, **constants, CHUNKS=chunks, BLOCK=max(_TILE // block_c, 16),
        BLOCK_C=block_c, num_warps=4,
    )  # fmt: skip


@on_device
def normalize_items(values: Tensor, weight: Tensor, bias: Tensor, norm: ItemsNorm) -> tuple[Tensor, Tensor] | None:
    channels, device, dtype = values.shape[1], values.device, accumulation_dtype(values.dtype)
    if channels > MOST_CHANNELS or values.shape[0] == 0:
        return None
    rows, width = norm.rows, channels // norm.groups
    values, items, chunks = values.contiguous(), rows.items, _chunks(rows.items)
    sums = torch.empty(2, items, chunks, channels, dtype=dtype, device=device)
    statistics = torch.empty(items, 2, channels, dtype=dtype, device=device)
    output = torch.empty_like(values)
    order = rows.starts if rows.order is None else rows.order
    configuration, grid = (rows.order is not None, channels, chunks), (items, chunks, 1)
    summed = values, order, rows.starts, sums
    _bind(sum_values_kernel, *configuration)(grid, summed, ())
    _bind(sum_squares_kernel, *configuration, WIDTH=width)(grid, summed, ())
    tensors = values, weight.contiguous(), bias.contiguous(), order, rows.starts, sums, statistics, output
    bound = _bind(normalize_items_kernel, *configuration, WIDTH=width, EPS=norm.eps, RELU=norm.relu)
    bound(grid, tensors, ())
    return output, statistics


@on_device
def differentiate_items_norm(
    gradient: Tensor, values: Tensor, affine: tuple[Tensor, Tensor], statistics: Tensor, norm: ItemsNorm
) -> tuple[Tensor, Tensor, Tensor]:
    values, gradient, channels = values.contiguous(), gradient.contiguous(), values.shape[1]
    rows, width = norm.rows, channels // norm.groups
    items, chunks = rows.items, _chunks(rows.items)
    sums = torch.empty(2, items, chunks, channels, dtype=statistics.dtype, device=values.device)
    output = torch.empty_like(values)
    order = rows.starts if rows.order is None else rows.order
    configuration, grid = (rows.order is not None, channels, chunks), (items, chunks, 1)
    summed = gradient, values, *(each.contiguous() for each in affine), order, rows.starts, statistics, sums
    _bind(sum_gradients_kernel, *configuration, RELU=norm.relu)(grid, summed, ())
    _bind(differentiate_norm_kernel, *configuration, WIDTH=width, RELU=norm.relu)(grid, (*summed, output), ())
    to_bias, to_weight = sums.sum(dim=(1, 2)).to(affine[0].dtype)
    return output, to_weight, to_bias
