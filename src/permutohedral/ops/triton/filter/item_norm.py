"""Group normalization over the lattice points of each item, and its gradients.

Every program works on a part of the lattice points of one item. `CHUNKS` programs share an item; each takes blocks of
its list in turn and writes sums by channel. Readers add the sums of all parts in the same order every time, so results
are equal to the bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.contract import Needed, Saved, accumulation_dtype
from permutohedral.ops.items import ItemsNorm
from permutohedral.ops.triton.kernel import Kernel, Variant, kernel, on_device, power_of_two

# sums of groups are taken over tiles [channels, channels]
MOST_CHANNELS = 128
# elements of a tile of rows
_TILE = 2048
# programs that keep a large GPU busy, and how many at most share an item
_PROGRAMS, _MOST_CHUNKS = 512, 64


@triton.jit
def rows_of(order, place, last, ORDERED: tl.constexpr):
    """Return the lattice points at places of the list of all items; 0 from `last` on."""
    if ORDERED:
        return tl.load(order + place, mask=place < last, other=0).to(tl.int64)
    else:
        return tl.where(place < last, place, 0).to(tl.int64)


@triton.jit
def load_rows(values, row, inside, channel, CHANNELS: tl.constexpr, ACCUMULATED: tl.constexpr):
    """Load `[rows, channels]` in the accumulation dtype, zero beyond the last."""
    place = values + row[:, None] * CHANNELS + channel[None, :]
    mask = inside[:, None] & (channel < CHANNELS)[None, :]
    return tl.load(place, mask=mask, other=0.0).to(ACCUMULATED)


@triton.jit
def members_of(rows, chunk, CHUNKS: tl.constexpr, BLOCK: tl.constexpr):
    """Return how many rows of an item belong to a part of it."""
    rest = rows % (CHUNKS * BLOCK) - chunk * BLOCK
    return rows // (CHUNKS * BLOCK) * BLOCK + tl.minimum(tl.maximum(rest, 0), BLOCK)


@triton.jit
def load_parts(parts, item, channel, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr):
    """Load the sums of each part of an item, `[chunks, channels]`."""
    place = (item * CHUNKS + tl.arange(0, CHUNKS))[:, None] * CHANNELS + channel[None, :]
    return tl.load(parts + place, mask=(channel < CHANNELS)[None, :], other=0.0)


@triton.jit
def sum_parts(parts, item, channel, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr):
    """Return the sum over all parts of an item, `[channels]`."""
    return tl.sum(load_parts(parts, item, channel, CHANNELS, CHUNKS), axis=0)


@triton.jit
def second_of(sums, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr):
    """Return the second half of sums `[2, items, chunks, channels]`."""
    return sums + tl.num_programs(0).to(tl.int64) * CHUNKS * CHANNELS


@triton.jit
def mean_of_groups(sums, channel, members, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return the mean over the WIDTH channels of each channel's group."""
    other = tl.arange(0, BLOCK_C)
    same = (channel[:, None] // WIDTH == other[None, :] // WIDTH) & (other < CHANNELS)[None, :]
    return tl.sum(tl.where(same, sums[None, :], 0.0), axis=1) / (tl.maximum(members, 1) * WIDTH)


@triton.jit
def slope_of(slope, normalized, factor, added, RELU: tl.constexpr):
    """Return the gradient before weight and bias: with RELU zero where the result was not positive."""
    if RELU:
        slope = tl.where(normalized * factor[None, :] + added[None, :] > 0, slope, 0.0)
    return slope


@kernel(options=["num_warps"])
def sum_values_kernel(
    values, order, starts, sums,
    ORDERED: tl.constexpr, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sum the values of a part of an item, and their squared distances from the mean of that part.

    `sums` is `[2, items, chunks, channels]`.
    """
    item, chunk, channel = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK_C)
    first, last = tl.load(starts + item), tl.load(starts + item + 1)
    total = tl.zeros([BLOCK_C], sums.dtype.element_ty)
    for begin in range(first + chunk * BLOCK, last, CHUNKS * BLOCK):
        place = begin + tl.arange(0, BLOCK)
        row = rows_of(order, place, last, ORDERED)
        total += tl.sum(load_rows(values, row, place < last, channel, CHANNELS, sums.dtype.element_ty), axis=0)
    mean = total / tl.maximum(members_of(last - first, chunk, CHUNKS, BLOCK), 1)
    square = tl.zeros([BLOCK_C], sums.dtype.element_ty)
    for begin in range(first + chunk * BLOCK, last, CHUNKS * BLOCK):
        place = begin + tl.arange(0, BLOCK)
        row = rows_of(order, place, last, ORDERED)
        value = load_rows(values, row, place < last, channel, CHANNELS, sums.dtype.element_ty) - mean[None, :]
        square += tl.sum(tl.where((place < last)[:, None], value * value, 0.0), axis=0)
    here = sums + (item * CHUNKS + chunk) * CHANNELS + channel
    tl.store(here, total, mask=channel < CHANNELS)
    tl.store(second_of(here, CHANNELS, CHUNKS), square, mask=channel < CHANNELS)


@kernel(options=["num_warps"])
def normalize_items_kernel(
    values, weight, bias, order, starts, sums, statistics, output,
    ORDERED: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, EPS: tl.constexpr, RELU: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Normalize a part of an item, then apply RELU; store mean and scale to `statistics [items, 2, channels]`."""
    item, chunk, channel = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BLOCK_C)
    real = channel < CHANNELS
    first, last = tl.load(starts + item), tl.load(starts + item + 1)
    parts = load_parts(sums, item, channel, CHANNELS, CHUNKS)
    mean = mean_of_groups(tl.sum(parts, axis=0), channel, last - first, CHANNELS, WIDTH, BLOCK_C)
    # squares from the mean of the group: from that of each part, and of that itself
    members = members_of(last - first, tl.arange(0, CHUNKS), CHUNKS, BLOCK)[:, None]
    apart = parts / tl.maximum(members, 1) - mean[None, :]
    square = load_parts(second_of(sums, CHANNELS, CHUNKS), item, channel, CHANNELS, CHUNKS) + members * apart * apart
    variance = mean_of_groups(tl.sum(square, axis=0), channel, last - first, CHANNELS, WIDTH, BLOCK_C)
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


@kernel(options=["num_warps"])
def sum_gradients_kernel(
    gradient, values, weight, bias, order, starts, statistics, sums, ORDERED: tl.constexpr, CHANNELS: tl.constexpr,
    RELU: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of a part of an item, and their products with the normalized values.

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


@kernel(options=["num_warps"])
def differentiate_norm_kernel(
    gradient, values, weight, bias, order, starts, statistics, sums, output, of_affine,
    ORDERED: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, RELU: tl.constexpr, CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the values of a part of an item; the first part also sums `of_affine [2, channels]`."""
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
    if item + chunk == 0:
        weight_gradient = tl.zeros([BLOCK_C], sums.dtype.element_ty)
        bias_gradient = tl.zeros([BLOCK_C], sums.dtype.element_ty)
        for each in range(tl.num_programs(0)):
            weight_gradient += sum_parts(second_of(sums, CHANNELS, CHUNKS), each, channel, CHANNELS, CHUNKS)
            bias_gradient += sum_parts(sums, each, channel, CHANNELS, CHUNKS)
        tl.store(of_affine + channel, weight_gradient.to(of_affine.dtype.element_ty), mask=real)
        tl.store(of_affine + CHANNELS + channel, bias_gradient.to(of_affine.dtype.element_ty), mask=real)


def _chunks(items: int) -> int:
    """Return how many programs share an item."""
    return min(power_of_two(-(-_PROGRAMS // items)), _MOST_CHUNKS)


def _variant(of: Kernel, ordered: bool, channels: int, chunks: int, *constants: float) -> Variant:
    block_c = power_of_two(channels, 16)
    return of[(ordered, channels, *constants, chunks, max(_TILE // block_c, 16), block_c, 4)]


@on_device
def normalize_items(values: Tensor, weight: Tensor, bias: Tensor, norm: ItemsNorm) -> tuple[Tensor, Saved]:
    channels, device, dtype = values.shape[1], values.device, accumulation_dtype(values.dtype)
    (order, starts), items, width = norm.rows.sorted, norm.rows.items, channels // norm.groups
    values, chunks = values.contiguous(), _chunks(items)
    sums = torch.empty(2, items, chunks, channels, dtype=dtype, device=device)
    statistics = torch.empty(items, 2, channels, dtype=dtype, device=device)
    output = torch.empty_like(values)
    configuration, grid = (order is not None, channels, chunks), (items, chunks, 1)
    order = starts if order is None else order
    _variant(sum_values_kernel, *configuration)(grid, (values, order, starts, sums), ())
    tensors = values, weight.contiguous(), bias.contiguous(), order, starts, sums, statistics, output
    _variant(normalize_items_kernel, *configuration, width, norm.eps, norm.relu)(grid, tensors, ())
    return output, (statistics,)


@on_device
def normalize_items_backward(
    gradient: Tensor, inputs: Saved, saved: Saved, needed: Needed, norm: ItemsNorm
) -> tuple[Tensor, Tensor, Tensor]:
    (values, *affine), (statistics,) = inputs, saved
    values, gradient, channels = values.contiguous(), gradient.contiguous(), values.shape[1]
    (order, starts), items, width = norm.rows.sorted, norm.rows.items, channels // norm.groups
    chunks = _chunks(items)
    sums = torch.empty(2, items, chunks, channels, dtype=statistics.dtype, device=values.device)
    output, of_affine = torch.empty_like(values), affine[0].new_empty(2, channels)
    configuration, grid = (order is not None, channels, chunks), (items, chunks, 1)
    order = starts if order is None else order
    summed = gradient, values, *(each.contiguous() for each in affine), order, starts, statistics, sums
    _variant(sum_gradients_kernel, *configuration, norm.relu)(grid, summed, ())
    variant = _variant(differentiate_norm_kernel, *configuration, width, norm.relu)
    variant(grid, (*summed, output, of_affine), ())
    return output, of_affine[0], of_affine[1]
