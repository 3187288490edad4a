"""float32 as float16 with a power of two for each channel: the 11 bits of TF32 in half of the memory.

The largest magnitude of a channel becomes 2^14 to 2^15, so that nothing overflows. Numbers that are 2^29 times smaller
lose bits, and 2^39 times smaller all of them. Infinity and NaN stay.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.kernel import cdiv, kernel, power_of_two

# programs that share the rows of a matrix
_PROGRAMS = 1056
_BLOCK = 64


@triton.jit
def magnitude_bits(value):
    """Return the bits of the magnitudes of float32 numbers, int32; zero for infinity and NaN."""
    bits = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.where(bits < 0x7F800000, bits, 0)


@triton.jit
def scale_of(largest):
    """Return the power of two that scales the largest magnitude, given by its bits, to 2^14 to 2^15."""
    # biased by 127, as the exponent is
    return (tl.minimum(268 - (largest >> 23), 253) << 23).to(tl.float32, bitcast=True)


@kernel(sizes=["num_rows"], options=["num_warps"])
def largest_magnitude_kernel(
    values, largest, num_rows, STRIDE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Raise `largest`, int32 `[channels]`, to the bits of the largest magnitude; they are ordered as the magnitudes."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    most = tl.zeros([BLOCK, BLOCK_C], tl.int32)
    for start in range(tl.program_id(0) * BLOCK, num_rows, tl.num_programs(0) * BLOCK):
        row = start + tl.arange(0, BLOCK)
        place = values + row.to(tl.int64)[:, None] * STRIDE + channel[None, :]
        value = tl.load(place, mask=(row < num_rows)[:, None] & (channel < CHANNELS)[None, :], other=0.0)
        most = tl.maximum(most, magnitude_bits(value))
    tl.atomic_max(largest + channel, tl.max(most, axis=0), mask=channel < CHANNELS, sem="relaxed")


@kernel(sizes=["num_rows"], options=["num_warps"])
def scale_kernel(
    values, largest, scaled, inverse, num_rows,
    STRIDE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Multiply every channel by its power of two, and store the inverse of that."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = channel < CHANNELS
    scale = scale_of(tl.load(largest + channel, mask=known, other=0))
    if tl.program_id(0) == 0:
        tl.store(inverse + channel, 1.0 / scale, mask=known)
    # backwards, since the rows that were read last are still in the cache
    row = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = (row < num_rows)[:, None] & known[None, :]
    value = tl.load(values + row[:, None] * STRIDE + channel[None, :], mask=real, other=0.0)
    tl.store(scaled + row[:, None] * CHANNELS + channel[None, :], (value * scale[None, :]).to(tl.float16), mask=real)


def weight_to_scaled_fp16(weight: Tensor, inverse: Tensor, opposite: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the filter in float16 for values in float16 whose channels were divided by `inverse`.

    Args:
        weight: `[filter_size, in_channels, out_channels]`.
        inverse: of the input channels; with `opposite`, of the output channels.
        opposite: for the adjoint filter, the tap opposite to each.

    Returns:
        The filter, for the adjoint `[filter_size, out_channels, in_channels]`; and the factors of the results, float32
        `[out_channels]`, for the adjoint `[in_channels]`.
    """
    if opposite is not None:
        weight = weight[opposite].transpose(1, 2)
    ((scaled, column_inverse),) = to_scaled_fp16((weight * inverse[:, None]).reshape(-1, weight.shape[2]))
    return scaled.view(weight.shape), column_inverse


def to_scaled_fp16(*matrices: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return for each float32 `[rows, channels]` its float16, and the factors `[channels]` that restore it."""
    # aligned parts of one tensor, so that one launch clears them
    widths = [cdiv(values.shape[1], 4) * 4 for values in matrices]
    largest = torch.zeros(sum(widths), dtype=torch.int32, device=matrices[0].device).split(widths)
    return [_scale(values, most) for values, most in zip(matrices, largest, strict=True)]


def _scale(values: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    rows, channels = values.shape
    scaled = torch.empty(rows, channels, dtype=torch.float16, device=values.device)
    inverse = torch.empty(channels, dtype=torch.float32, device=values.device)
    block_c = min(power_of_two(channels), 64)
    constants = values.stride(0), channels, _BLOCK, block_c
    blocks, columns = cdiv(rows, _BLOCK), cdiv(channels, block_c)
    largest_magnitude_kernel[(*constants, 8)]((min(blocks, _PROGRAMS), columns, 1), (values, largest), (rows,))
    scale_kernel[(*constants, 4)]((blocks, columns, 1), (values, largest, scaled, inverse), (rows,))
    return scaled, inverse
