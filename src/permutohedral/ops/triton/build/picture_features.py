"""Position and color of every pixel as features, in one pass over the image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.kernel import cdiv, kernel, on_device

_BLOCK = 1024


@kernel(sizes=[
    "height", "width", "blocks", "image_stride", "channel_stride", "row_stride", "column_stride", "sigma_space",
    "sigma_color", "shift",
])  # fmt: skip
def picture_features_kernel(
    guide, features, height, width, blocks, image_stride, channel_stride, row_stride, column_stride,
    sigma_space, sigma_color, shift, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write float32 `features [points, 2 + CHANNELS]`: y and x over one sigma, then the channels over the other.

    `shift` is added to all.

    A program computes a block of the numbers of one image row, which has `blocks` of them. A thread has some of these,
    so that neighboring threads store to neighboring places.
    """
    row = tl.program_id(0) // blocks
    image, y = row // height, row % height
    number = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    x, column = number // (2 + CHANNELS), number % (2 + CHANNELS)
    inside = x < width
    first = guide + image.to(tl.int64) * image_stride + y.to(tl.int64) * row_stride
    place = first + x.to(tl.int64) * column_stride + (column - 2).to(tl.int64) * channel_stride
    color = tl.load(place, mask=inside & (column >= 2), other=0.0).to(tl.float32)
    feature = tl.where(column == 0, y.to(tl.float32), tl.where(column == 1, x.to(tl.float32), color))
    sigma = tl.where(column < 2, sigma_space, sigma_color).to(tl.float32)
    # rounded to nearest, as torch divides on the CPU; Triton's own division is not
    quotient = tl.div_rn(feature, sigma)
    tl.store(features + row.to(tl.int64) * width * (2 + CHANNELS) + number, quotient + shift, mask=inside)


def features_blocker(
    guide: Tensor, sigma_space: Sequence[float | Tensor], sigma_color: Sequence[float] | Tensor, origin: Sequence[int]
) -> str | None:
    """Return the reason that `picture_features` cannot run, or None."""
    # a kernel takes numbers of 32 bits
    if guide.dtype == torch.float64:
        return "the kernel has no double precision"
    if len(origin) != 2 or any(origin):
        return "the kernel takes whole images of two axes"
    if isinstance(sigma_space[0], Tensor) or isinstance(sigma_color, Tensor):
        return "the bandwidths are tensors"
    if len(set(sigma_space)) != 1 or len(set(sigma_color)) != 1:
        return "the kernel takes one bandwidth over positions and one over colors"
    return None


@on_device
def picture_features(guide: Tensor, sigma_space: float, sigma_color: float, shift: float) -> Tensor:
    *leading, channels, height, width = guide.shape
    features = torch.empty(*leading, height * width, 2 + channels, dtype=torch.float32, device=guide.device)
    if features.numel():
        images = guide if len(leading) <= 1 else guide.reshape(-1, channels, height, width)
        # the stride between images does not matter for a single one
        strides = images.stride() if images.dim() == 4 else (0, *images.stride())
        blocks = cdiv(width * (2 + channels), _BLOCK)
        programs = features.numel() // (width * (2 + channels)) * blocks
        sizes = height, width, blocks, *strides, sigma_space, sigma_color, shift
        picture_features_kernel[channels, _BLOCK]((programs, 1, 1), (images, features), sizes)
    return features
