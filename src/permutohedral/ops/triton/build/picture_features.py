"""Position and color of every pixel as features, in one pass over the picture."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.triton.runtime import cdiv, launch, on_device

_BLOCK = 512


@triton.jit
def quotient(numerator, denominator):
    """Rounded to nearest, as torch divides; Triton's own division of float32 is not."""
    if numerator.dtype == tl.float32:
        return tl.div_rn(numerator, denominator)
    else:
        return numerator / denominator


@triton.jit(do_not_specialize=["num_points", "width", "pixels", "image_stride", "channel_stride", "row_stride"])
def picture_features_kernel(
    guide, features, num_points, width, pixels, image_stride, channel_stride, row_stride,
    COLUMN_STRIDE: tl.constexpr, SPACE: tl.constexpr, RANGE: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """`features [points, 2 + CHANNELS]`: y and x over SPACE, then the channels over RANGE."""
    dtype: tl.constexpr = features.dtype.element_ty
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    image, pixel = point // pixels, point % pixels
    y, x = pixel // width, pixel % width
    place = features + point * (2 + CHANNELS)
    space = tl.full([BLOCK], SPACE, dtype)
    tl.store(place, quotient(y.to(dtype), space), mask=inside)
    tl.store(place + 1, quotient(x.to(dtype), space), mask=inside)
    read = guide + image * image_stride + y * row_stride + x * COLUMN_STRIDE
    for channel in tl.static_range(CHANNELS):
        color = tl.load(read + tl.cast(channel, tl.int64) * channel_stride, mask=inside, other=0.0).to(dtype)
        tl.store(place + 2 + channel, quotient(color, tl.full([BLOCK], RANGE, dtype)), mask=inside)


@on_device
def picture_features(guide: Tensor, sigma_space: float, sigma_range: float) -> Tensor:
    """Features `[..., height * width, 2 + channels]` of pictures `[..., channels, height, width]`: y, x, colors."""
    *leading, channels, height, width = guide.shape
    images = guide.reshape(-1, channels, height, width)
    pixels, dtype = height * width, accumulation_dtype(guide.dtype)
    features = guide.new_empty((*leading, pixels, 2 + channels), dtype=dtype)
    points = images.shape[0] * pixels
    if features.numel():
        image_stride, channel_stride, row_stride, column_stride = images.stride()
        launch(
            picture_features_kernel, (cdiv(points, _BLOCK),), (images, features),
            (points, width, pixels, image_stride, channel_stride, row_stride), COLUMN_STRIDE=column_stride,
            SPACE=sigma_space, RANGE=sigma_range, CHANNELS=channels, BLOCK=_BLOCK,
        )  # fmt: skip
    return features
