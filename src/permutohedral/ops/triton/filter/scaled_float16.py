"""float32 as float16 with a power of two for each channel: the 11 bits of TF32 in half of the memory.

The largest magnitude of a channel becomes 2^14 to 2^15, so that nothing overflows; what is 2^29 times smaller than it
loses bits, 2^39 times smaller all of them. Infinity and NaN stay what they are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.runtime import cdiv, launch, power_of_two

# programs that share the rows of a matrix
_PROGRAMS = 1056
_BLOCK = 64


@triton.jit
def magnitude_bits(value):
    """The bits of the magnitude of float32 numbers, int32; of what is not finite zero."""
    bits = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.where(bits < 0x7F800000, bits, 0)


@triton.jit
def scale_of(largest):
    """The power of two that takes the largest magnitude, given by its bits, to 2^14 to 2^15."""
    # biased by 127, as the exponent is
    return (tl.minimum(268 - (largest >> 23), 253) << 23).to(tl.float32, bitcast=True)


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
        most = tl.maximum(most, magnitude_bits(value))
    tl.atomic_max(largest + channel, tl.max(most, axis=0), mask=channel < CHANNELS, sem="relaxed")


@triton.jit(do_not_specialize=["num_rows"])
def halve_kernel(
    values, largest, halves, inverse, num_rows,
    STRIDE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Multiply every channel by its power of two, and note the inverse of that."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = channel < CHANNELS
    scale = scale_of(tl.load(largest + channel, mask=known, other=0))
    if tl.program_id(0) == 0:
        tl.store(inverse + channel, 1.0 / scale, mask=known)
    # backwards, since the rows that were read last are still in the cache
    row = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = (row < num_rows)[:, None] & known[None, :]
    value = tl.load(values + row[:, None] * STRIDE + channel[None, :], mask=real, other=0.0)
    tl.store(halves + row[:, None] * CHANNELS + channel[None, :], (value * scale[None, :]).to(tl.float16), mask=real)


@triton.jit
def load_weight(
    weight, taps, inverse, entry, column, entries,
    TURNED: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Where the weights of some taps and channels lie, whether there are such, and what is to become halves."""
    tap, channel = entry // CHANNELS, entry % CHANNELS
    real = (entry < entries)[:, None] & (column < COLUMNS)[None, :]
    if TURNED:
        inside = column[None, :] * OUT + channel[:, None]
        read = tl.load(taps + tap, mask=entry < entries, other=0)
    else:
        inside = channel[:, None] * OUT + column[None, :]
        read = tap
    value = tl.load(weight + read.to(tl.int64)[:, None] * (IN * OUT) + inside, mask=real, other=0.0)
    value = value * tl.load(inverse + channel)[:, None]
    return tap.to(tl.int64)[:, None] * (IN * OUT) + inside, real, value


@triton.jit(do_not_specialize=["entries"])
def halve_weight_kernel(
    weight, taps, inverse, halves, column_inverse, entries,
    TURNED: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Fold the scales of the channels that are summed over into the weight, then scale every column by its own power
    of two.

    `weight [filter_size, IN, OUT]`; the columns are its last axis, or with TURNED the one before, of the tap `taps`.
    """
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    most = tl.zeros([BLOCK, BLOCK_C], tl.int32)
    for start in range(0, entries, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        _, _, value = load_weight(
            weight, taps, inverse, entry, column, entries, TURNED, IN, OUT, CHANNELS, COLUMNS
        )  # fmt: skip
        most = tl.maximum(most, magnitude_bits(value))
    scale = scale_of(tl.max(most, axis=0))
    tl.store(column_inverse + column, 1.0 / scale, mask=column < COLUMNS)
    for start in range(0, entries, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        place, real, value = load_weight(
            weight, taps, inverse, entry, column, entries, TURNED, IN, OUT, CHANNELS, COLUMNS
        )  # fmt: skip
        tl.store(halves + place, (value * scale[None, :]).to(tl.float16), mask=real)


def halve_weight(weight: Tensor, inverse: Tensor, opposite: Tensor | None) -> tuple[Tensor, Tensor]:
    """The filter in float16 for values in float16 whose channels were divided by `inverse`.

    Args:
        weight: `[filter_size, in_channels, out_channels]`, contiguous.
        inverse: of the input channels; with `opposite`, of the output channels.
        opposite: for the adjoint filter, the tap opposite to each.

    Returns:
        Halves of the shape of the weight, for the adjoint with opposite taps; what to multiply the results with,
        float32 `[out_channels]`, for the adjoint `[in_channels]`.
    """
    filter_size, in_channels, out_channels = weight.shape
    turned = opposite is not None
    channels, columns = (out_channels, in_channels) if turned else (in_channels, out_channels)
    halves = torch.empty_like(weight, dtype=torch.float16)
    column_inverse = torch.empty(columns, dtype=torch.float32, device=weight.device)
    block = min(power_of_two(filter_size * channels, 64), 1024)
    launch(
        halve_weight_kernel, (cdiv(columns, 2),),
        (weight, weight if opposite is None else opposite, inverse, halves, column_inverse),
        (filter_size * channels,), TURNED=turned, IN=in_channels, OUT=out_channels, CHANNELS=channels, COLUMNS=columns,
        BLOCK=block, BLOCK_C=2, num_warps=4,
    )  # fmt: skip
    return halves, column_inverse


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
    launch(largest_kernel, (min(blocks, _PROGRAMS), columns), (values, largest), (rows,), **sizes, num_warps=8)
    launch(halve_kernel, (blocks, columns), (values, largest, halves, inverse), (rows,), **sizes, num_warps=4)
    return halves, inverse
