"""Position and color of every pixel as features, in one pass over the picture, and a cleared table beside them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.runtime import bind, cdiv, on_device
from permutohedral.ops.triton.zeros import fill_block

_BLOCK = 1024


@triton.jit(do_not_specialize=[
    "height", "width", "blocks", "image_stride", "channel_stride", "row_stride", "column_stride", "sigma_space",
    "sigma_range", "programs", "words",
])  # fmt: skip
def picture_features_kernel(
    guide, features, table, height, width, blocks, image_stride, channel_stride, row_stride, column_stride,
    sigma_space, sigma_range, programs, words, CLEAR: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """float32 `features [points, 2 + CHANNELS]`: y and x over one sigma, then the channels over the other.

    A program computes a block of one row's numbers, of which there are so many `blocks`, and a thread some of them, so
    that neighbors store what lies side by side. With CLEAR, what follows the first `programs` fills the table with
    zeros.
    """
    if CLEAR:  # noqa: SIM102 (known when it is compiled)
        if tl.program_id(0) >= programs:
            fill_block(table, (tl.program_id(0) - programs).to(tl.int64) * BLOCK, words, 0, BLOCK)
            return
    row = tl.program_id(0) // blocks
    image, y = row // height, row % height
    number = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    x, column = number // (2 + CHANNELS), number % (2 + CHANNELS)
    inside = x < width
    first = guide + image.to(tl.int64) * image_stride + y.to(tl.int64) * row_stride
    place = first + x.to(tl.int64) * column_stride + (column - 2).to(tl.int64) * channel_stride
    color = tl.load(place, mask=inside & (column >= 2), other=0.0).to(tl.float32)
    feature = tl.where(column == 0, y.to(tl.float32), tl.where(column == 1, x.to(tl.float32), color))
    sigma = tl.where(column < 2, sigma_space, sigma_range).to(tl.float32)
    # rounded to nearest, as torch divides on the CPU; Triton's own division is not
    quotient = tl.div_rn(feature, sigma)
    tl.store(features + row.to(tl.int64) * width * (2 + CHANNELS) + number, quotient, mask=inside)


@on_device
def picture_features(
    guide: Tensor, sigma_space: Sequence[float], sigma_range: Sequence[float], origin: Sequence[int]
) -> Tensor | None:
    """Features `[..., height * width, 2 + channels]` of pictures `[..., channels, height, width]`: y, x, colors."""
    # a kernel takes numbers of 32 bits
    if guide.dtype == torch.float64 or len(origin) != 2 or any(origin):
        return None
    if len(set(sigma_space)) != 1 or len(set(sigma_range)) != 1:
        return None
    *leading, channels, height, width = guide.shape
    features = torch.empty(*leading, height * width, 2 + channels, dtype=torch.float32, device=guide.device)
    if features.numel():
        images = guide if len(leading) <= 1 else guide.reshape(-1, channels, height, width)
        write_features(features, images, sigma_space[0], sigma_range[0], None)
    return features


def write_features(
    features: Tensor, images: Tensor, sigma_space: float, sigma_range: float, table: Tensor | None
) -> None:
    """Fill the `features` of one picture or several, of at most 32 bits, and an int64 `table` with zeros."""
    channels, height, width = images.shape[-3:]
    # of a single picture the stride between pictures means nothing
    strides = images.stride() if images.dim() == 4 else (0, *images.stride())
    blocks = cdiv(width * (2 + channels), _BLOCK)
    programs = features.numel() // (width * (2 + channels)) * blocks
    words = 0 if table is None else table.numel()
    sizes = height, width, blocks, *strides, float(sigma_space), float(sigma_range), programs, words
    bound = bind(picture_features_kernel, CLEAR=table is not None, CHANNELS=channels, BLOCK=_BLOCK)
    tensors = images, features, features if table is None else table
    bound((programs + cdiv(words, _BLOCK), 1, 1), tensors, sizes)
