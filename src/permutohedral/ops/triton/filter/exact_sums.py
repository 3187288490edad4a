"""The Gaussian by its definition: sums over all sources, and over windows of pictures.

Tiles are `[BLOCK targets, BLOCK_C channels]`; between points also `[BLOCK targets, BLOCK_S sources]` of weights.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from permutohedral.ops.reference import window_extents
from permutohedral.ops.triton.kernel import cdiv, kernel, on_device, power_of_two

_PIXELS, _TARGETS, _SOURCES = 128, 32, 32
# channels of a tile: the weights are computed again for the next ones
_CHANNELS = 4


@kernel(sizes=["num_taps", "height", "width"])
def sum_window_kernel(
    values, guide, offsets, squares, output, num_taps, height, width,
    CHANNELS: tl.constexpr, GUIDES: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    plane = tl.cast(height, tl.int64) * width
    # items are on the first axis of the grid: the others have at most 65,535 programs
    blocks = tl.cdiv(plane, BLOCK)
    item = tl.program_id(0) // blocks
    pixel = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    y, x, here = (pixel // width).to(tl.int32), (pixel % width).to(tl.int32), pixel < plane
    known = (channel < CHANNELS)[None, :]
    part = tl.arange(0, BLOCK_G)
    guided = (part < GUIDES)[None, :]
    values += (item * CHANNELS + channel.to(tl.int64))[None, :] * plane
    output += (item * CHANNELS + channel.to(tl.int64))[None, :] * plane
    guide += (item * GUIDES + part.to(tl.int64))[None, :] * plane
    center = tl.load(guide + pixel[:, None], mask=here[:, None] & guided, other=0.0)
    sums = tl.zeros((BLOCK, BLOCK_C), output.dtype.element_ty)
    for tap in range(num_taps):
        dy, dx = tl.load(offsets + 2 * tap), tl.load(offsets + 2 * tap + 1)
        inside = here & (y + dy >= 0) & (y + dy < height) & (x + dx >= 0) & (x + dx < width)
        source = pixel + dy * width + dx
        difference = tl.load(guide + source[:, None], mask=inside[:, None] & guided, other=0.0) - center
        square = tl.load(squares + tap) + tl.sum(tl.where(guided, difference * difference, 0.0), axis=1)
        value = tl.load(values + source[:, None], mask=inside[:, None] & known, other=0.0)
        sums += tl.exp(-0.5 * square)[:, None] * value
    tl.store(output + pixel[:, None], sums, mask=here[:, None] & known)


@kernel(sizes=["num_sources", "num_targets"])
def sum_neighbors_kernel(
    values, features, targets, largest_square, output, num_sources, num_targets,
    CHANNELS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    target = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    here, known = target < num_targets, channel < CHANNELS
    sums = tl.zeros((BLOCK, BLOCK_C), output.dtype.element_ty)
    limit = tl.load(largest_square)
    for first in range(0, num_sources, BLOCK_S):
        source = first + tl.arange(0, BLOCK_S)
        there = source < num_sources
        square = tl.zeros((BLOCK, BLOCK_S), output.dtype.element_ty)
        for axis in range(D):
            own = tl.load(targets + target.to(tl.int64) * D + axis, mask=here, other=0.0)
            other = tl.load(features + source.to(tl.int64) * D + axis, mask=there, other=0.0)
            difference = own[:, None] - other[None, :]
            square += difference * difference
        weight = tl.where(square <= limit, tl.exp(-0.5 * square), 0.0)
        place = values + source.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
        value = tl.load(place, mask=there[:, None] & known[None, :], other=0.0)
        sums += tl.sum(weight[:, :, None] * value[None, :, :], axis=1)
    place = output + target.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    tl.store(place, sums, mask=here[:, None] & known[None, :])


@on_device
def sum_window(values: Tensor, guide: Tensor, sigma_y: float, sigma_x: float, reach: float) -> Tensor:
    items, channels, height, width = values.shape
    output = torch.empty_like(values, memory_format=torch.contiguous_format)
    if output.numel() == 0:
        return output
    extents = window_extents(sigma_y, sigma_x, reach, height, width)
    rows = range(1 - len(extents), len(extents))
    taps = [(dy, dx) for dy in rows for dx in range(-extents[abs(dy)], extents[abs(dy)] + 1)]
    squares = [(dy / sigma_y) ** 2 + (dx / sigma_x) ** 2 for dy, dx in taps]
    grid = cdiv(height * width, _PIXELS) * items, cdiv(channels, _CHANNELS), 1
    offsets = torch.tensor(taps, dtype=torch.int32, device=values.device)
    tensors = values.contiguous(), guide.contiguous(), offsets, values.new_tensor(squares), output
    variant = sum_window_kernel[channels, guide.shape[1], _PIXELS, _CHANNELS, power_of_two(guide.shape[1])]
    variant(grid, tensors, (len(taps), height, width))
    return output


@on_device
def sum_neighbors(values: Tensor, features: Tensor, target_features: Tensor, reach: float) -> Tensor:
    (points, channels), targets = values.shape, target_features.shape[0]
    output = values.new_empty(targets, channels)
    if points == 0 or output.numel() == 0:
        return output.zero_()
    largest = values.new_tensor([reach * reach])
    grid = cdiv(targets, _TARGETS), cdiv(channels, _CHANNELS), 1
    tensors = values.contiguous(), features.contiguous(), target_features.contiguous(), largest, output
    variant = sum_neighbors_kernel[channels, features.shape[1], _TARGETS, _SOURCES, _CHANNELS]
    variant(grid, tensors, (points, targets))
    return output
