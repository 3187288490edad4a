"""The gradient of the learned convolution with respect to its weight: gathered rows times rows of the gradient.

IN and OUT are the channels of one group. The lattice points are summed in splits, and then the splits. Few channels,
depthwise groups and float64 have a direct kernel, as in `convolve.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.triton.filter.convolve import (
    convolve_scaled_fp16,
    float32_precision,
    uses_matrix_units,
    uses_scaled_fp16,
)
from permutohedral.ops.triton.filter.scaled_float16 import to_scaled_fp16
from permutohedral.ops.triton.kernel import cdiv, kernel, on_device, power_of_two, rows_contiguous, tile
from permutohedral.ops.triton.tuning import Blocks, gradient_blocks, launch_fitting

# from this many on, float32 takes longer to transpose than to convert to three numbers of 16 bits
_MANY_CHANNELS = 64
# programs that fill a large GPU: of several warps, and of one or with more to wait for
_FEW_PROGRAMS = 528
_MANY_PROGRAMS = 2112
# entries of the weight that a program sums
_SUM_BLOCK = 128


@triton.jit
def product(left, right, total, PRECISION: tl.constexpr, PARTS: tl.constexpr):
    """Return total + left right; float32 as such or in three PARTS of bfloat16, which matrix units can transpose.

    There are two threefold products. The PRECISION "tf32x3" of Triton splits a float32 in two numbers of TF32 and adds
    three products. Three PARTS of bfloat16 have all 24 bits, and six of their nine products matter; unlike TF32, matrix
    units can transpose them.
    """
    if PARTS == 1:
        return tl.dot(left, right, total, input_precision=PRECISION)
    left_high, right_high = left.to(tl.bfloat16), right.to(tl.bfloat16)
    left_rest, right_rest = left - left_high.to(tl.float32), right - right_high.to(tl.float32)
    left_middle, right_middle = left_rest.to(tl.bfloat16), right_rest.to(tl.bfloat16)
    left_low = (left_rest - left_middle.to(tl.float32)).to(tl.bfloat16)
    right_low = (right_rest - right_middle.to(tl.float32)).to(tl.bfloat16)
    # summed on their own, since the matrix units do not round to nearest when they add
    share = tl.dot(left_low, right_high)
    share = tl.dot(left_high, right_low, share)
    share = tl.dot(left_middle, right_middle, share)
    share = tl.dot(left_middle, right_high, share)
    share = tl.dot(left_high, right_middle, share)
    return total + tl.dot(left_high, right_high, share)


@triton.jit
def gather_product(
    lattice_values, neighbors, tap, filter_size, target, inside, channel, gradient, total, num_targets,
    STRIDE: tl.constexpr, IN: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Return total + (rows that `tap` reaches)^T gradient; a tap beyond the last reaches nothing."""
    place = neighbors + tl.cast(tap, tl.int64) * num_targets + target
    source = tl.load(place, mask=inside & (tap + target * 0 < filter_size), other=-1)
    rows = lattice_values + source.to(tl.int64)[:, None] * STRIDE + channel[None, :]
    value = tl.load(rows, mask=(source >= 0)[:, None] & (channel < IN)[None, :], other=0.0)
    return product(tl.trans(value), gradient, total, PRECISION, PARTS)


@triton.jit
def store_partial(
    partial, total, tap, filter_size, channel, column, group, OUT_CHANNELS: tl.constexpr, IN: tl.constexpr,
    OUT: tl.constexpr,
):  # fmt: skip
    place = partial + (tap * IN + channel).to(tl.int64)[:, None] * OUT_CHANNELS + group * OUT + column[None, :]
    known = (channel < IN)[:, None] & (column < OUT)[None, :] & (tap + channel * 0 < filter_size)[:, None]
    tl.store(place, total, mask=known)


@kernel(sizes=["num_targets", "filter_size", "split_size"], options=["num_warps", "num_stages"])
def weight_gradient_kernel(
    lattice_values, output_gradient, neighbors, partials, num_targets, filter_size, split_size,
    STRIDE: tl.constexpr, GRADIENT_STRIDE: tl.constexpr, OUT_CHANNELS: tl.constexpr, IN: tl.constexpr,
    OUT: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr, TAPS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Sum one split of in[neighbors[k, v]] (x) gradient[v] over v, for two or four TAPS that share gradient rows."""
    tap = tl.program_id(0) * TAPS
    split = tl.program_id(1)
    out_blocks: tl.constexpr = (OUT + BLOCK_N - 1) // BLOCK_N
    in_blocks: tl.constexpr = (IN + BLOCK_K - 1) // BLOCK_K
    group = tl.program_id(2) // (out_blocks * in_blocks)
    block = tl.program_id(2) % (out_blocks * in_blocks)
    column = (block % out_blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    channel = (block // out_blocks) * BLOCK_K + tl.arange(0, BLOCK_K)
    begin = split * split_size
    end = tl.minimum(begin + split_size, num_targets)
    partial = partials + split * (tl.cast(filter_size * IN, tl.int64) * OUT_CHANNELS)
    rows = lattice_values + group * IN
    first = tl.zeros([BLOCK_K, BLOCK_N], tl.float32)
    second = tl.zeros([BLOCK_K, BLOCK_N], tl.float32)
    third = tl.zeros([BLOCK_K, BLOCK_N], tl.float32)
    fourth = tl.zeros([BLOCK_K, BLOCK_N], tl.float32)
    for start in range(begin, end, BLOCK_M):
        target = start + tl.arange(0, BLOCK_M)
        inside = target < num_targets
        place = output_gradient + target.to(tl.int64)[:, None] * GRADIENT_STRIDE + group * OUT + column[None, :]
        gradient = tl.load(place, mask=inside[:, None] & (column < OUT)[None, :], other=0.0)
        first = gather_product(
            rows, neighbors, tap, filter_size, target, inside, channel, gradient, first, num_targets,
            STRIDE, IN, PRECISION, PARTS,
        )  # fmt: skip
        second = gather_product(
            rows, neighbors, tap + 1, filter_size, target, inside, channel, gradient, second, num_targets,
            STRIDE, IN, PRECISION, PARTS,
        )  # fmt: skip
        if TAPS == 4:
            third = gather_product(
                rows, neighbors, tap + 2, filter_size, target, inside, channel, gradient, third, num_targets,
                STRIDE, IN, PRECISION, PARTS,
            )  # fmt: skip
            fourth = gather_product(
                rows, neighbors, tap + 3, filter_size, target, inside, channel, gradient, fourth, num_targets,
                STRIDE, IN, PRECISION, PARTS,
            )  # fmt: skip
    store_partial(partial, first, tap, filter_size, channel, column, group, OUT_CHANNELS, IN, OUT)
    store_partial(partial, second, tap + 1, filter_size, channel, column, group, OUT_CHANNELS, IN, OUT)
    if TAPS == 4:
        store_partial(partial, third, tap + 2, filter_size, channel, column, group, OUT_CHANNELS, IN, OUT)
        store_partial(partial, fourth, tap + 3, filter_size, channel, column, group, OUT_CHANNELS, IN, OUT)


@kernel(sizes=["num_targets", "filter_size", "split_size"])
def direct_weight_gradient_kernel(
    lattice_values, output_gradient, neighbors, partials, num_targets, filter_size, split_size,
    STRIDE: tl.constexpr, GRADIENT_STRIDE: tl.constexpr, OUT_CHANNELS: tl.constexpr, IN: tl.constexpr,
    OUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Do the same for one input channel and one tap."""
    tap = tl.program_id(0) // IN
    channel = tl.program_id(0) % IN
    split = tl.program_id(1)
    column = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    known = (column < OUT_CHANNELS)[None, :]
    dtype: tl.constexpr = partials.dtype.element_ty
    total = tl.zeros([BLOCK_M, BLOCK_N], dtype)
    begin = split * split_size
    for start in range(begin, tl.minimum(begin + split_size, num_targets), BLOCK_M):
        target = start + tl.arange(0, BLOCK_M)
        inside = target < num_targets
        place = neighbors + tl.cast(tap, tl.int64) * num_targets + target
        source = tl.load(place, mask=inside, other=-1)
        rows = lattice_values + source.to(tl.int64)[:, None] * STRIDE + (column // OUT * IN + channel)[None, :]
        value = tl.load(rows, mask=(source >= 0)[:, None] & known, other=0.0).to(dtype)
        place = output_gradient + target.to(tl.int64)[:, None] * GRADIENT_STRIDE + column[None, :]
        gradient = tl.load(place, mask=inside[:, None] & known, other=0.0)
        total += value * gradient.to(dtype)
    row = tl.cast(split, tl.int64) * (filter_size * IN) + tl.program_id(0)
    place = partials + row * OUT_CHANNELS + column
    tl.store(place, tl.sum(total, axis=0), mask=column < OUT_CHANNELS)


@kernel(sizes=["splits", "entries"])
def sum_splits_kernel(partials, weight_gradient, splits, entries, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """Sum the shares of all splits."""
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < entries
    total = tl.zeros([SPLITS, BLOCK], partials.dtype.element_ty)
    for first in range(0, splits, SPLITS):
        split = first + tl.arange(0, SPLITS)
        place = partials + split.to(tl.int64)[:, None] * entries + entry[None, :]
        total += tl.load(place, mask=(split < splits)[:, None] & inside[None, :], other=0.0)
    summed = tl.sum(total, axis=0)
    tl.store(weight_gradient + entry, summed.to(weight_gradient.dtype.element_ty), mask=inside)


def _scales(inverse: Tensor, gradient_inverse: Tensor, groups: int) -> Tensor:
    """Return the factors of a gradient `[filter_size, in / groups, out]` that was computed of scaled float16."""
    if groups == 1:
        return inverse[:, None] * gradient_inverse
    per_group = gradient_inverse.shape[0] // groups
    return inverse.view(groups, -1).repeat_interleave(per_group, dim=0).T * gradient_inverse


def _splits(targets: int, programs: int, wanted: int) -> tuple[int, int]:
    """Return number and size of the splits: enough programs to fill a large GPU."""
    splits = max(min(cdiv(wanted, programs), cdiv(targets, 512)), 1)
    size = cdiv(targets, 128 * splits) * 128
    return cdiv(targets, size), size


def _direct_partials(lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int) -> Tensor:
    """Return the shares of all splits, `[splits, filter_size * in_channels, out_channels]`, without matrix units."""
    filter_size, targets = neighbors.shape
    in_channels, out_channels = lattice_values.shape[1] // groups, output_gradient.shape[1]
    height, width = tile(out_channels)
    variant = direct_weight_gradient_kernel[
        lattice_values.stride(0), output_gradient.stride(0), out_channels, in_channels, out_channels // groups,
        height, width,
    ]  # fmt: skip
    rows, tiles = filter_size * in_channels, cdiv(out_channels, width)
    splits, size = _splits(targets, tiles * rows, _MANY_PROGRAMS)
    shape, dtype = (splits, rows, out_channels), accumulation_dtype(lattice_values.dtype)
    partials = torch.empty(shape, dtype=dtype, device=neighbors.device)
    tensors = lattice_values, output_gradient, neighbors, partials
    variant((rows, splits, tiles), tensors, (targets, filter_size, size))
    return partials


def _matrix_partials(
    lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int, precision: str
) -> Tensor:
    """Return the same, computed with matrix units."""
    in_channels, out_channels = lattice_values.shape[1] // groups, output_gradient.shape[1]
    per_group, (filter_size, targets), dtype = out_channels // groups, neighbors.shape, lattice_values.dtype
    parts = 3 if precision == "tf32x3" and min(in_channels, per_group) >= _MANY_CHANNELS else 1
    constants = (
        lattice_values.stride(0), output_gradient.stride(0), out_channels, in_channels, per_group, precision, parts,
    )  # fmt: skip

    def launch(blocks: Blocks) -> Tensor:
        tiles = cdiv(in_channels, blocks.block_k) * cdiv(per_group, blocks.block_n) * groups
        taps, wanted = cdiv(filter_size, blocks.taps), _FEW_PROGRAMS * blocks.taps // 2
        splits, size = _splits(targets, tiles * taps, _MANY_PROGRAMS if blocks.num_warps == 1 else wanted)
        shape = splits, filter_size * in_channels, out_channels
        partials = torch.empty(shape, dtype=torch.float32, device=neighbors.device)
        tensors, sizes = (lattice_values, output_gradient, neighbors, partials), (targets, filter_size, size)
        weight_gradient_kernel[(*constants, *blocks)]((taps, splits, tiles), tensors, sizes)
        return partials

    blocks = gradient_blocks(precision, in_channels, per_group, targets)
    return launch_fitting((neighbors.get_device(), "gradient", dtype, constants), blocks, launch)


def _sum_splits(partials: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return the gradient of the weight, of `shape` and `dtype`."""
    weight_gradient = torch.empty(shape, dtype=dtype, device=partials.device)
    splits, entries = partials.shape[0], weight_gradient.numel()
    variant = sum_splits_kernel[min(power_of_two(splits), 16), _SUM_BLOCK]
    variant((cdiv(entries, _SUM_BLOCK), 1, 1), (partials, weight_gradient), (splits, entries))
    return weight_gradient


# the result of `to_scaled_fp16` for one matrix
_Scaled = tuple[Tensor, Tensor]


def _gradient_of_scaled_fp16(
    lattice_values: _Scaled, output_gradient: _Scaled, neighbors: Tensor, groups: int
) -> Tensor:
    """Return `convolve_weight_gradient` of scaled float16."""
    partials = _matrix_partials(lattice_values[0], output_gradient[0], neighbors, groups, "ieee")
    shape = neighbors.shape[0], lattice_values[0].shape[1] // groups, output_gradient[0].shape[1]
    return _sum_splits(partials, shape, partials.dtype) * _scales(lattice_values[1], output_gradient[1], groups)


@on_device
def convolve_weight_gradient(
    lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int, *reverse: Tensor | None
) -> Tensor:
    shape = neighbors.shape[0], lattice_values.shape[1] // groups, output_gradient.shape[1]
    if lattice_values.numel() == 0 or output_gradient.numel() == 0 or neighbors.numel() == 0:
        return lattice_values.new_zeros(shape)
    lattice_values, output_gradient = rows_contiguous(lattice_values), rows_contiguous(output_gradient)
    neighbors = neighbors.contiguous()
    precision = float32_precision(lattice_values.dtype)
    return weight_gradient(lattice_values, output_gradient, neighbors, groups, precision)


def weight_gradient(
    lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int, precision: str
) -> Tensor:
    """Return `convolve_weight_gradient` of contiguous rows, not empty; for the precision see `float32_precision`."""
    in_channels, out_channels, dtype = lattice_values.shape[1] // groups, output_gradient.shape[1], lattice_values.dtype
    if uses_scaled_fp16(precision, in_channels, out_channels // groups, True):
        values, gradient = to_scaled_fp16(lattice_values, output_gradient)
        return _gradient_of_scaled_fp16(values, gradient, neighbors, groups)
    if uses_matrix_units(dtype, in_channels, out_channels // groups):
        partials = _matrix_partials(lattice_values, output_gradient, neighbors, groups, precision)
    else:
        partials = _direct_partials(lattice_values, output_gradient, neighbors, groups)
    return _sum_splits(partials, (neighbors.shape[0], in_channels, out_channels), dtype)


def scaled_fp16_gradients(
    lattice_values: Tensor,
    weight: Tensor,
    output_gradient: Tensor,
    neighbors: Tensor,
    reverse: Tensor,
    opposite: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a convolution in one group with respect to lattice values and weight.

    Both are computed of scaled float16, to which the inputs are converted once. For `reverse` and `opposite` see
    `convolve_adjoint`.
    """
    values, gradient = to_scaled_fp16(lattice_values, output_gradient)
    to_values = convolve_scaled_fp16(*gradient, weight, reverse.contiguous(), opposite)
    return to_values, _gradient_of_scaled_fp16(values, gradient, neighbors, 1)
