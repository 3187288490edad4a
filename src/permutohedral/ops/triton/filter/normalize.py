"""Turn sums on the lattice into lattice values, and sum over all points, which is the gradient of a bias."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.triton.kernel import cdiv, kernel, rows_contiguous, tile

# rows of a tile that is summed; programs that fill a large GPU; fewer rows are summed by torch
_SUMMED, _PARTS, _WORTH_PARTS = 64, 1056, 1 << 16


@kernel(sizes=["num_rows"])
def normalize_kernel(
    sums, output, density, num_rows, HAS_DENSITY: tl.constexpr, CHANNELS: tl.constexpr, SUM_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Convert sums to the dtype of the output; with HAS_DENSITY divide them by the channel after the last.

    `density` gets the divisors: one for a density of zero.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = row < num_rows
    real = inside[:, None] & (channel < CHANNELS)[None, :]
    total = tl.load(sums + row[:, None] * SUM_STRIDE + channel[None, :], mask=real, other=0.0)
    if HAS_DENSITY:
        mass = tl.load(sums + row * SUM_STRIDE + CHANNELS, mask=inside, other=1.0)
        mass = tl.where(mass > 0, mass, 1.0)
        total = total / mass[:, None]
        if tl.program_id(1) == 0:
            tl.store(density + row, mass, mask=inside)
    place = output + row[:, None] * CHANNELS + channel[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=real)


def normalize(sums: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Divide sums by their last channel, the density.

    Returns lattice values `[lattice_points, channels - 1]` in `dtype`, and the divisors `[lattice_points]`: one for a
    density of zero.
    """
    rows, channels = sums.shape[0], sums.shape[1] - 1
    output, density = sums.new_empty(rows, channels, dtype=dtype), sums.new_empty(rows)
    if rows:
        variant = normalize_kernel[(True, channels, channels + 1, *tile(channels))]
        variant(variant.tiles(rows, channels), (sums, output, density), (rows,))
    return output, density


def convert(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """Return contiguous sums in `dtype`."""
    if sums.dtype == dtype:
        return sums
    (rows, channels), output = sums.shape, torch.empty_like(sums, dtype=dtype)
    if rows and channels:
        variant = normalize_kernel[(False, channels, channels, *tile(channels))]
        variant(variant.tiles(rows, channels), (sums, output, sums), (rows,))
    return output


@kernel(sizes=["num_rows", "rows_per_program"])
def sum_rows_kernel(
    values, partials, num_rows, rows_per_program, CHANNELS: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sum some rows in each program: `partials [programs, CHANNELS]`."""
    first = tl.program_id(0).to(tl.int64) * rows_per_program
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK, BLOCK_C], partials.dtype.element_ty)
    for begin in range(first, tl.minimum(first + rows_per_program, num_rows), BLOCK):
        row = begin + tl.arange(0, BLOCK)
        real = (row < num_rows)[:, None] & (channel < CHANNELS)[None, :]
        value = tl.load(values + row.to(tl.int64)[:, None] * STRIDE + channel[None, :], mask=real, other=0.0)
        total += value.to(partials.dtype.element_ty)
    place = partials + tl.program_id(0).to(tl.int64) * CHANNELS + channel
    tl.store(place, tl.sum(total, axis=0), mask=channel < CHANNELS)


def sum_rows(values: Tensor) -> Tensor:
    """Return `values.sum(dim=0)` of `[rows, channels]`, neither of them 0, in the dtype of the values.

    torch takes three times as long for many rows of few channels.
    """
    values, (rows, channels), dtype = rows_contiguous(values), values.shape, accumulation_dtype(values.dtype)
    if rows < _WORTH_PARTS:
        return values.sum(dim=0)
    variant = sum_rows_kernel[channels, values.stride(0), _SUMMED, tile(channels)[1]]
    # a multiple of the rows of a tile
    share = cdiv(cdiv(rows, _PARTS), _SUMMED) * _SUMMED
    parts = cdiv(rows, share)
    partials = torch.empty(parts, channels, dtype=dtype, device=values.device)
    variant((parts, variant.tiles(1, channels)[1], 1), (values, partials), (rows, share))
    return partials.sum(dim=0, dtype=dtype).to(values.dtype)
