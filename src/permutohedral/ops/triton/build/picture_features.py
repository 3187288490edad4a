"""Position and color of every pixel as features, in one pass over the picture, and a cleared table beside them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.runtime import bind, on_device
from permutohedral.ops.triton.zeros import clear_block

_BLOCK = 1024


@triton.jit(do_not_specialize=[
    "num_points", "width", "pixels", "image_stride", "channel_stride", "row_stride", "column_stride", "sigma_space",
    "sigma_range", "programs", "words",
])  # fmt: skip
def picture_features_kernel(
    guide, features, table, num_points, width, pixels, image_stride, channel_stride, row_stride, column_stride,
    sigma_space, sigma_range, programs, words, CLEAR: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """float32 `features [points, 2 + CHANNELS]`: y and x over one sigma, then the channels over the other.

    A thread computes one number, so that neighbors store what lies side by side. With CLEAR, what follows the first
    `programs` fills the table with zeros.
    """
    if CLEAR:  # noqa: SIM102 (known when it is compiled)
        if tl.program_id(0) >= programs:
            clear_block(table, (tl.program_id(0) - programs).to(tl.int64) * BLOCK, words, BLOCK)
            return
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    point, column = entry // (2 + CHANNELS), (entry % (2 + CHANNELS)).to(tl.int32)
    inside = point < num_points
    image, pixel = point // pixels, (point % pixels).to(tl.int32)
    y, x = pixel // width, pixel % width
    place = image * image_stride + y.to(tl.int64) * row_stride + x.to(tl.int64) * column_stride
    place += (column - 2).to(tl.int64) * channel_stride
    color = tl.load(guide + place, mask=inside & (column >= 2), other=0.0).to(tl.float32)
    number = tl.where(column == 0, y.to(tl.float32), tl.where(column == 1, x.to(tl.float32), color))
    sigma = tl.where(column < 2, sigma_space, sigma_range).to(tl.float32)
    # rounded to nearest, as torch divides on the CPU; Triton's own division is not
    tl.store(features + entry, tl.div_rn(number, sigma), mask=inside)


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
    numbers, pixels = features.numel(), height * width
    # of a single picture the stride between pictures means nothing
    strides = images.stride() if images.dim() == 4 else (0, *images.stride())
    programs, words = -(-numbers // _BLOCK), 0 if table is None else table.numel()
    sizes = (
        numbers // (2 + channels), width, pixels, *strides, float(sigma_space), float(sigma_range), programs, words
    )  # fmt: skip
    bound = bind(picture_features_kernel, CLEAR=table is not None, CHANNELS=channels, BLOCK=_BLOCK)
    tensors = images, features, features if table is None else table
    bound((programs - (-words // _BLOCK), 1, 1), tensors, sizes)
