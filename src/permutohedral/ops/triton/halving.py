"""float32 as float16 with a power of two for each channel: the 11 bits of TF32 in half of the memory.

The largest magnitude of a channel becomes 2^14 to 2^15, so that nothing overflows; what is 2^29 times smaller than it
loses bits, far below the rounding of a sum that it is part of.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.launch import cdiv, launch, power_of_two

# programs that share the rows of a matrix
_PROGRAMS = 1056
_BLOCK = 64


@triton.jit(do_not_specialize=["num_rows"])
def largest_kernel(
    values, largest, num_rows, STRIDE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Raise `largest`, int32 `[channels]`, to the bits of the largest magnitude; they are ordered as the magnitudes."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    most = tl.zeros([BLOCK, BLOCK_C], tl.int32)
    for start in range(tl.program_id(0) * BLOCK, num_rows, tl.num_programs(0) * BLOCK):
        row = start + tl.arange(0, BLOCK)
        place = values + row.to(tl.int64)[:, None] * STRIDE + channel[None, :]
        value = tl.load(place, mask=(row < num_rows)[:, None] & (channel < CHANNELS)[None, :], other=0.0)
        most = tl.maximum(most, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    tl.atomic_max(largest + channel, tl.max(most, axis=0), mask=channel < CHANNELS, sem="relaxed")


@triton.jit(do_not_specialize=["num_rows"])
def halve_kernel(
    values, largest, halves, inverse, num_rows,
    STRIDE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Multiply every channel by its power of two, and note the inverse of that."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = channel < CHANNELS
    exponent = tl.load(largest + channel, mask=known, other=0) >> 23
    # biased by 127, as the exponent is
    scale = (tl.minimum(268 - exponent, 253) << 23).to(tl.float32, bitcast=True)
    if tl.program_id(0) == 0:
        tl.store(inverse + channel, 1.0 / scale, mask=known)
    # backwards, since the rows that were read last are still in the cache
    row = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = (row < num_rows)[:, None] & known[None, :]
    value = tl.load(values + row[:, None] * STRIDE + channel[None, :], mask=real, other=0.0)
    tl.store(halves + row[:, None] * CHANNELS + channel[None, :], (value * scale[None, :]).to(tl.float16), mask=real)


def halve(*matrices: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For each float32 `[rows, channels]` the halves, float16, and what to multiply the channels with, `[channels]`."""
    # aligned parts of one tensor, so that it is cleared at once
    widths = [cdiv(values.shape[1], 4) * 4 for values in matrices]
    largest = torch.zeros(sum(widths), dtype=torch.int32, device=matrices[0].device).split(widths)
    return [_halve(values, most) for values, most in zip(matrices, largest, strict=True)]


def _halve(values: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    rows, channels = values.shape
    halves = torch.empty(rows, channels, dtype=torch.float16, device=values.device)
    inverse = torch.empty(channels, dtype=torch.float32, device=values.device)
    block_c = min(power_of_two(channels), 64)
    sizes = {"STRIDE": values.stride(0), "CHANNELS": channels, "BLOCK": _BLOCK, "BLOCK_C": block_c}
    blocks, columns = cdiv(rows, _BLOCK), cdiv(channels, block_c)
    launch(largest_kernel, (min(blocks, _PROGRAMS), columns), values, largest, rows, **sizes, num_warps=8)
    launch(halve_kernel, (blocks, columns), values, largest, halves, inverse, rows, **sizes, num_warps=4)
    return halves, inverse
