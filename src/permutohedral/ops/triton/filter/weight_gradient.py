"""The gradient of the learned convolution with respect to its weight: gathered rows times rows of the gradient.

IN and OUT are the channels of one group. The lattice points are summed in splits, and these then. Few channels,
depthwise groups and float64 have a direct kernel, as in `convolve.py`.
"""

from __future__ import annotations

from functools import cache, partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.triton.filter.convolve import (
    float32_precision,
    uses_halves,
    uses_matrix_units,
)
from permutohedral.ops.triton.filter.normalize import sum_rows
from permutohedral.ops.triton.filter.scaled_float16 import halve
from permutohedral.ops.triton.runtime import Bound, on_device, power_of_two, rows_contiguous
from permutohedral.ops.triton.tuning import Shape, Tuned, choose, may_keep

# from so many on, numbers of 32 bits take longer to transpose than to convert to three of 16 bits
_MANY_CHANNELS = 64
# programs that fill a large GPU: of several warps, and of one or with more to wait for
_FEW_PROGRAMS = 528
_MANY_PROGRAMS = 2112
# more targets take longer to be summed beside the products than by a kernel of its own
_MANY_TARGETS = 1 << 16
# entries of the weight that a program sums
_SUM_BLOCK = 128
# of `weight_gradient_kernel`, without the block shape
_CONSTANTS = ("BIASED", "STRIDE", "GRADIENT_STRIDE", "OUT_CHANNELS", "IN", "OUT", "PRECISION", "PARTS")


@triton.jit
def product(left, right, total, PRECISION: tl.constexpr, PARTS: tl.constexpr):
    """total + left right; float32 in PARTS of one or of three bfloat16 numbers, whose matrices the units can transpose.

    Three parts are as precise as float32.
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
    """total + (rows that `tap` reaches)^T gradient; a tap beyond the last reaches nothing."""
    place = neighbors + tl.cast(tap, tl.int64) * num_targets + target
    source = tl.load(place, mask=inside & (tap + target * 0 < filter_size), other=-1)
    rows = lattice_values + source.to(tl.int64)[:, None] * STRIDE + channel[None, :]
    value = tl.load(rows, mask=(source >= 0)[:, None] & (channel < IN)[None, :], other=0.0)
    return product(tl.trans(value), gradient, total, PRECISION, PARTS)


@triton.jit
def store_partial(
    partial,
    total,
    tap,
    filter_size,
    channel,
    column,
    group,
    OUT_CHANNELS: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
):
    place = partial + (tap * IN + channel).to(tl.int64)[:, None] * OUT_CHANNELS + group * OUT + column[None, :]
    known = (channel < IN)[:, None] & (column < OUT)[None, :] & (tap + channel * 0 < filter_size)[:, None]
    tl.store(place, total, mask=known)


@triton.jit
def sum_columns(
    rows, begin, end, column, STRIDE: tl.constexpr, OUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """The sum of the rows from `begin` to `end`."""
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(begin, end, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        place = rows + row.to(tl.int64)[:, None] * STRIDE + column[None, :]
        total += tl.load(place, mask=(row < end)[:, None] & (column < OUT)[None, :], other=0.0).to(tl.float32)
    return tl.sum(total, axis=0)


@triton.jit(do_not_specialize=["num_targets", "filter_size", "split_size"])
def weight_gradient_kernel(
    lattice_values, output_gradient, neighbors, partials, num_targets, filter_size, split_size,
    BIASED: tl.constexpr, STRIDE: tl.constexpr, GRADIENT_STRIDE: tl.constexpr, OUT_CHANNELS: tl.constexpr,
    IN: tl.constexpr, OUT: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr, TAPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One split's share of sum_v in[neighbors[k, v]] (x) gradient[v], for two or four TAPS that share the gradient's
    rows. If it is BIASED, the programs behind the last taps sum the gradient alone, into a row behind the others.
    """
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
    size = tl.cast(filter_size * IN, tl.int64) * OUT_CHANNELS
    partial = partials + split * (size + OUT_CHANNELS if BIASED else size)
    if BIASED:  # noqa: SIM102
        if tap >= filter_size:
            if block < out_blocks:
                place = output_gradient + group * OUT
                summed = sum_columns(place, begin, end, column, GRADIENT_STRIDE, OUT, BLOCK_M, BLOCK_N)
                tl.store(partial + size + group * OUT + column, summed, mask=column < OUT)
            return
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


@triton.jit(do_not_specialize=["num_targets", "filter_size", "split_size"])
def direct_weight_gradient_kernel(
    lattice_values, output_gradient, neighbors, partials, num_targets, filter_size, split_size,
    BIASED: tl.constexpr, STRIDE: tl.constexpr, GRADIENT_STRIDE: tl.constexpr, OUT_CHANNELS: tl.constexpr,
    IN: tl.constexpr, OUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The same for one input channel and one tap; the tap behind the last reads ones everywhere."""
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
        known_tap = tap + target * 0 < filter_size
        source = tl.load(place, mask=inside & known_tap, other=-1)
        rows = lattice_values + source.to(tl.int64)[:, None] * STRIDE + (column // OUT * IN + channel)[None, :]
        value = tl.load(rows, mask=(source >= 0)[:, None] & known, other=0.0).to(dtype)
        if BIASED:
            value = tl.where(known_tap[:, None], value, 1.0)
        place = output_gradient + target.to(tl.int64)[:, None] * GRADIENT_STRIDE + column[None, :]
        gradient = tl.load(place, mask=inside[:, None] & known, other=0.0)
        total += value * gradient.to(dtype)
    row = tl.cast(split, tl.int64) * (filter_size * IN + (1 if BIASED else 0)) + tl.program_id(0)
    place = partials + row * OUT_CHANNELS + column
    tl.store(place, tl.sum(total, axis=0), mask=column < OUT_CHANNELS)


@triton.jit(do_not_specialize=["splits", "entries", "weights"])
def sum_splits_kernel(
    partials, weight_gradient, bias_gradient, splits, entries, weights, SPLITS: tl.constexpr, BLOCK: tl.constexpr
):
    """Sum the shares of all splits: those of the `weights`, and behind them those of the bias."""
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < entries
    total = tl.zeros([SPLITS, BLOCK], partials.dtype.element_ty)
    for first in range(0, splits, SPLITS):
        split = first + tl.arange(0, SPLITS)
        place = partials + split.to(tl.int64)[:, None] * entries + entry[None, :]
        total += tl.load(place, mask=(split < splits)[:, None] & inside[None, :], other=0.0)
    summed = tl.sum(total, axis=0)
    tl.store(weight_gradient + entry, summed.to(weight_gradient.dtype.element_ty), mask=entry < weights)
    place = bias_gradient + entry - weights
    tl.store(place, summed.to(bias_gradient.dtype.element_ty), mask=inside & (entry >= weights))


def _scales(inverse: Tensor, gradient_inverse: Tensor, groups: int) -> Tensor:
    """What to multiply a gradient `[filter_size, in / groups, out]` with that was computed of halves."""
    if groups == 1:
        return inverse[:, None] * gradient_inverse
    per_group = gradient_inverse.shape[0] // groups
    return inverse.view(groups, -1).repeat_interleave(per_group, dim=0).T * gradient_inverse


def _splits(targets: int, programs: int, wanted: int) -> tuple[int, int]:
    """In how many parts the lattice points are summed, and the size of a part: enough programs to fill a large GPU."""
    splits = max(min(-(-wanted // programs), -(-targets // 512)), 1)
    size = -(-targets // (128 * splits)) * 128
    return -(-targets // size), size


def _direct_partials(
    lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int, biased: bool
) -> Tensor:
    """The shares of all splits, `[splits, filter_size * in_channels, out_channels]`, without the matrix units.

    If it is biased, there is one more row, the sum of the output gradient.
    """
    filter_size, targets = neighbors.shape
    in_channels, out_channels = lattice_values.shape[1] // groups, output_gradient.shape[1]
    strides = lattice_values.stride(0), output_gradient.stride(0)
    bound, width = _bind_direct(biased, *strides, out_channels, in_channels, out_channels // groups)
    rows, tiles = filter_size * in_channels + biased, -(-out_channels // width)
    splits, size = _splits(targets, tiles * rows, _MANY_PROGRAMS)
    shape, dtype = (splits, rows, out_channels), accumulation_dtype(lattice_values.dtype)
    partials = torch.empty(shape, dtype=dtype, device=neighbors.device)
    tensors = lattice_values, output_gradient, neighbors, partials
    bound((rows, splits, tiles), tensors, (targets, filter_size, size))
    return partials


@cache
def _bind_direct(
    biased: bool, stride: int, gradient_stride: int, out_channels: int, in_channels: int, per_group: int
) -> tuple[Bound, int]:
    """The kernel, and the width of its tiles."""
    width = min(power_of_two(out_channels), 64)
    bound = Bound(
        direct_weight_gradient_kernel, BIASED=biased, STRIDE=stride, GRADIENT_STRIDE=gradient_stride,
        OUT_CHANNELS=out_channels, IN=in_channels, OUT=per_group,
        BLOCK_M=max(min(1024 // width, 128), 16), BLOCK_N=width,
    )  # fmt: skip
    return bound, width


# by all that the choice depends on
_CHOSEN: dict[tuple[object, ...], Tuned] = {}


def _matrix_partials(
    lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int, precision: str, biased: bool
) -> Tensor:
    """The same with the matrix units."""
    in_channels, out_channels = lattice_values.shape[1] // groups, output_gradient.shape[1]
    per_group, targets, dtype = out_channels // groups, neighbors.shape[1], lattice_values.dtype
    parts = 3 if precision == "tf32x3" and min(in_channels, per_group) >= _MANY_CHANNELS else 1
    constants = (
        biased, lattice_values.stride(0), output_gradient.stride(0), out_channels, in_channels, per_group, precision,
        parts,
    )  # fmt: skip
    deterministic, tensors = torch._C._get_deterministic_algorithms(), (lattice_values, output_gradient, neighbors)
    key = (*constants, dtype, targets.bit_length(), neighbors.get_device(), deterministic)
    tuned = _CHOSEN.get(key)
    if tuned is None:
        shape = Shape("gradient", precision, dtype, in_channels, per_group, targets)
        start = partial(_start_matrix, tensors=tensors, groups=groups, biased=biased)
        tuned = choose(shape, weight_gradient_kernel, dict(zip(_CONSTANTS, constants, strict=True)), start)
        if may_keep():
            _CHOSEN[key] = tuned
    return _start_matrix(tuned, tensors, groups, biased)


def _start_matrix(tuned: Tuned, tensors: tuple[Tensor, Tensor, Tensor], groups: int, biased: bool) -> Tensor:
    """Start `weight_gradient_kernel` on lattice values, output gradient and neighbors; what it writes."""
    (bound, blocks), (lattice_values, output_gradient, neighbors) = tuned, tensors
    (filter_size, targets), out_channels = neighbors.shape, output_gradient.shape[1]
    in_channels, per_group = lattice_values.shape[1] // groups, out_channels // groups
    tiles = -(-in_channels // blocks["BLOCK_K"]) * -(-per_group // blocks["BLOCK_N"]) * groups
    taps, wanted = -(-filter_size // blocks["TAPS"]), _FEW_PROGRAMS * blocks["TAPS"] // 2
    splits, size = _splits(targets, tiles * taps, _MANY_PROGRAMS if blocks["num_warps"] == 1 else wanted)
    shape = splits, filter_size * in_channels + biased, out_channels
    partials = torch.empty(shape, dtype=torch.float32, device=neighbors.device)
    bound((taps + biased, splits, tiles), (*tensors, partials), (targets, filter_size, size))
    return partials


def _sum_splits(
    partials: Tensor, shape: tuple[int, ...], dtype: torch.dtype, biased: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradient of the weight, of `shape` and `dtype`, and that of the bias if it is biased."""
    weight_gradient = torch.empty(shape, dtype=dtype, device=partials.device)
    bias_gradient = torch.empty(shape[-1], dtype=dtype, device=partials.device) if biased else None
    splits, rows, columns = partials.shape
    entries, weights = rows * columns, (rows - biased) * columns
    bound = _bind_sum(min(power_of_two(splits), 16))
    tensors = partials, weight_gradient, weight_gradient if bias_gradient is None else bias_gradient
    bound((-(-entries // _SUM_BLOCK), 1, 1), tensors, (splits, entries, weights))
    return weight_gradient, bias_gradient


@cache
def _bind_sum(at_once: int) -> Bound:
    return Bound(sum_splits_kernel, SPLITS=at_once, BLOCK=_SUM_BLOCK)


# what `halve` makes of a matrix
_Halves = tuple[Tensor, Tensor]


def gradient_of_halves(lattice_values: _Halves, output_gradient: _Halves, neighbors: Tensor, groups: int) -> Tensor:
    """`convolve_weight_gradient` of what `halve` made."""
    partials = _matrix_partials(lattice_values[0], output_gradient[0], neighbors, groups, "ieee", False)
    shape = neighbors.shape[0], lattice_values[0].shape[1] // groups, output_gradient[0].shape[1]
    summed, _ = _sum_splits(partials, shape, partials.dtype, False)
    return summed * _scales(lattice_values[1], output_gradient[1], groups)


@on_device
def convolve_weight_gradient(lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int) -> Tensor:
    shape = neighbors.shape[0], lattice_values.shape[1] // groups, output_gradient.shape[1]
    if lattice_values.numel() == 0 or output_gradient.numel() == 0 or neighbors.numel() == 0:
        return lattice_values.new_zeros(shape)
    lattice_values, output_gradient = rows_contiguous(lattice_values), rows_contiguous(output_gradient)
    neighbors = neighbors.contiguous()
    precision = float32_precision(lattice_values.dtype)
    if uses_halves(precision, shape[1], shape[2] // groups, True):
        values, gradient = halve(lattice_values, output_gradient)
        return gradient_of_halves(values, gradient, neighbors, groups)
    return weight_and_bias_gradient(lattice_values, output_gradient, neighbors, groups, precision, False)[0]


def weight_and_bias_gradient(
    lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int, precision: str, biased: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradient of the weight; if it is biased, that of a bias, too, the sum of the output gradient.

    Nothing is empty, and rows are contiguous; more may follow those of the lattice values. For the precision see
    `float32_precision`.
    """
    in_channels, out_channels, dtype = lattice_values.shape[1] // groups, output_gradient.shape[1], lattice_values.dtype
    if biased and neighbors.shape[1] >= _MANY_TARGETS:
        to_weight, _ = weight_and_bias_gradient(lattice_values, output_gradient, neighbors, groups, precision, False)
        return to_weight, sum_rows(output_gradient)
    if uses_matrix_units(dtype, in_channels, out_channels // groups):
        partials = _matrix_partials(lattice_values, output_gradient, neighbors, groups, precision, biased)
    else:
        partials = _direct_partials(lattice_values, output_gradient, neighbors, groups, biased)
    return _sum_splits(partials, (neighbors.shape[0], in_channels, out_channels), dtype, biased)
