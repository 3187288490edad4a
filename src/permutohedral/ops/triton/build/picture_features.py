"""Position and color of every pixel as features, in one pass over the picture."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.runtime import cdiv, launch, on_device

_BLOCK = 512


@triton.jit(do_not_specialize=[
    "num_points", "width", "pixels", "image_stride", "channel_stride", "row_stride", "column_stride", "sigma_space",
    "sigma_range",
])  # fmt: skip
def picture_features_kernel(
    guide, features, num_points, width, pixels, image_stride, channel_stride, row_stride, column_stride, sigma_space,
    sigma_range, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """float32 `features [points, 2 + CHANNELS]`: y and x over one sigma, then the channels over the other."""
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    image, pixel = point // pixels, point % pixels
    y, x = pixel // width, pixel % width
    place = features + point * (2 + CHANNELS)
    space = tl.zeros([BLOCK], tl.float32) + sigma_space
    # rounded to nearest, as torch divides on the CPU; Triton's own division is not
    tl.store(place, tl.div_rn(y.to(tl.float32), space), mask=inside)
    tl.store(place + 1, tl.div_rn(x.to(tl.float32), space), mask=inside)
    read = guide + image * image_stride + y * row_stride + x * column_stride
    spread = tl.zeros([BLOCK], tl.float32) + sigma_range
    for channel in tl.static_range(CHANNELS):
        color = tl.load(read + tl.cast(channel, tl.int64) * channel_stride, mask=inside, other=0.0)
        tl.store(place + 2 + channel, tl.div_rn(color.to(tl.float32), spread), mask=inside)


@on_device
def picture_features(guide: Tensor, sigma_space: float, sigma_range: float) -> Tensor | None:
    """Features `[..., height * width, 2 + channels]` of pictures `[..., channels, height, width]`: y, x, colors."""
    if guide.dtype == torch.float64:
        # a kernel takes numbers of 32 bits
        return None
    *leading, channels, height, width = guide.shape
    pixels = height * width
    features = guide.new_empty((*leading, pixels, 2 + channels), dtype=torch.float32)
    if features.numel():
        images = guide.reshape(-1, channels, height, width)
        points = images.shape[0] * pixels
        launch(
            picture_features_kernel, (cdiv(points, _BLOCK),), (images, features),
            (points, width, pixels, *images.stride(), sigma_space, sigma_range), CHANNELS=channels, BLOCK=_BLOCK,
        )  # fmt: skip
    return features
