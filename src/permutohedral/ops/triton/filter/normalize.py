"""Sums on the lattice become lattice values: in their own dtype, divided by the density of their lattice point.

And sums over all points, which are the gradient of a bias.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.triton.runtime import WIDEST_TILE, Bound, cdiv, power_of_two, rows_contiguous, tile

# rows that a program sums at once; programs that fill a large GPU; fewer rows are summed by torch
_SUMMED, _PARTS, _WORTH_PARTS = 64, 1056, 1 << 16


@triton.jit(do_not_specialize=["num_rows", "behind"])
def normalize_kernel(
    sums, output, density, num_rows, behind, HAS_DENSITY: tl.constexpr, CHANNELS: tl.constexpr,
    SUM_STRIDE: tl.constexpr, DENSITY_STRIDE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The sums in the dtype of the output, divided by the density of their lattice point where that is not zero.

    That of the first one lies `behind` the first sum, the next one DENSITY_STRIDE further; `density` gets what was
    divided by.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = row < num_rows
    real = inside[:, None] & (channel < CHANNELS)[None, :]
    total = tl.load(sums + row[:, None] * SUM_STRIDE + channel[None, :], mask=real, other=0.0)
    if HAS_DENSITY:
        mass = tl.load(sums + behind + row * DENSITY_STRIDE, mask=inside, other=1.0)
        mass = tl.where(mass > 0, mass, 1.0)
        total = total / mass[:, None]
        if tl.program_id(1) == 0:
            tl.store(density + row, mass, mask=inside)
    place = output + row[:, None] * CHANNELS + channel[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=real)


@cache
def _bind_normalize(has_density: bool, channels: int, sum_stride: int) -> Bound:
    density_stride = sum_stride if sum_stride > channels else 1
    return Bound(
        normalize_kernel, HAS_DENSITY=has_density, CHANNELS=channels, SUM_STRIDE=sum_stride,
        DENSITY_STRIDE=density_stride, **tile(channels),
    )  # fmt: skip


def normalize(sums: Tensor, shape: tuple[int, int], behind: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Lattice values of `shape` and `dtype`, and the density `[lattice_points]` they were divided by: one for zero.

    More rows may follow those of the lattice values.

    Args:
        sums: `[.., channels]`, the densities one after another from the element `behind` on; or `[lattice_points,
            channels + 1]`, the last of which is the density.
        shape: of the result.
        behind: where the first density lies.
        dtype: of the result.
    """
    (rows, channels), stride = shape, sums.shape[1]
    # where they lie as the result does, they are divided in place; kernels want their memory to be aligned
    in_place = sums.dtype == dtype and stride == channels
    output = sums if in_place else sums.new_empty(shape, dtype=dtype)
    density = sums.as_strided((rows,), (1,), behind) if in_place and behind % 4 == 0 else sums.new_empty(rows)
    if rows:
        bound = _bind_normalize(True, channels, stride)
        bound(bound.tiles(rows, channels), (sums, output, density), (rows, behind))
    return output, density


def convert(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """The sums in the dtype of the values they were made of."""
    if sums.dtype == dtype:
        return sums
    rows, channels = sums.shape
    output = torch.empty(rows, channels, dtype=dtype, device=sums.device)
    if rows and channels:
        bound = _bind_normalize(False, channels, channels)
        bound(bound.tiles(rows, channels), (sums, output, sums), (rows, 0))
    return output


@triton.jit(do_not_specialize=["num_rows", "rows_per_program"])
def sum_rows_kernel(
    values, partials, num_rows, rows_per_program, CHANNELS: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The sum of some rows, for each program: `partials [programs, CHANNELS]`."""
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
    """`values.sum(dim=0)` of `[rows, channels]`, neither of them 0, in the dtype of the values.

    torch takes three times as long for many rows of few channels.
    """
    values, (rows, channels), dtype = rows_contiguous(values), values.shape, accumulation_dtype(values.dtype)
    if rows < _WORTH_PARTS:
        return values.sum(dim=0)
    bound = _bind_sum_rows(channels, values.stride(0))
    # a multiple of the rows that are read at once
    share = cdiv(cdiv(rows, _PARTS), _SUMMED) * _SUMMED
    parts = cdiv(rows, share)
    partials = torch.empty(parts, channels, dtype=dtype, device=values.device)
    bound((parts, bound.tiles(1, channels)[1], 1), (values, partials), (rows, share))
    return partials.sum(dim=0, dtype=dtype).to(values.dtype)


@cache
def _bind_sum_rows(channels: int, stride: int) -> Bound:
    block_c = min(power_of_two(channels), WIDEST_TILE)
    return Bound(sum_rows_kernel, CHANNELS=channels, STRIDE=stride, BLOCK=_SUMMED, BLOCK_C=block_c)
