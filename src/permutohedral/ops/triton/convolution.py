"""The learned convolution as an implicit product: gather and multiply in one kernel, nothing in between is stored.

IN and OUT are the channels of one group. `convolve_kernel` and `weight_gradient_kernel` use the matrix units; the direct
kernels serve few channels, depthwise groups and float64.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.triton.launch import cdiv, interpreted, on_device, power_of_two
from permutohedral.ops.triton.tuning import Shape, best_blocks, run_blocks

# below this many channels of a group a matrix unit would mostly multiply padding
_FEWEST_CHANNELS = 8


@triton.jit
def convolve_kernel(
    lattice_values, weight, neighbors, output, num_targets, filter_size,
    STRIDE: tl.constexpr, OUT_CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out[v] = sum_k w_k in[neighbors[k, v]] for a block of targets and of one group's output channels."""
    target = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    out_blocks: tl.constexpr = (OUT + BLOCK_N - 1) // BLOCK_N
    group = tl.program_id(1) // out_blocks
    column = (tl.program_id(1) % out_blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    inside = target < num_targets
    known = column < OUT
    in_blocks: tl.constexpr = (IN + BLOCK_K - 1) // BLOCK_K
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(filter_size * in_blocks):
        tap = step // in_blocks
        channel = (step % in_blocks) * BLOCK_K + depth
        source = tl.load(neighbors + tl.cast(tap, tl.int64) * num_targets + target, mask=inside, other=-1)
        rows = lattice_values + source.to(tl.int64)[:, None] * STRIDE + group * IN
        present = (source >= 0)[:, None]
        matrix = weight + (tap * IN + channel).to(tl.int64)[:, None] * OUT_CHANNELS + group * OUT + column[None, :]
        if IN % BLOCK_K == 0:
            value = tl.load(rows + channel[None, :], mask=present, other=0.0)
            factor = tl.load(matrix, mask=known[None, :], other=0.0)
        else:
            value = tl.load(rows + channel[None, :], mask=present & (channel < IN)[None, :], other=0.0)
            factor = tl.load(matrix, mask=(channel < IN)[:, None] & known[None, :], other=0.0)
        total = tl.dot(value, factor, total, input_precision=PRECISION)
    place = output + target.to(tl.int64)[:, None] * OUT_CHANNELS + group * OUT + column[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=inside[:, None] & known[None, :])


@triton.jit
def direct_convolve_kernel(
    lattice_values, weight, neighbors, output, num_targets, filter_size,
    STRIDE: tl.constexpr, OUT_CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, ONE_GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The same, one input channel after another, for a block of all output channels."""
    target = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = target < num_targets
    known = (column < OUT_CHANNELS)[None, :]
    dtype: tl.constexpr = tl.float64 if lattice_values.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros([BLOCK_M, BLOCK_N], dtype)
    for tap in range(filter_size):
        source = tl.load(neighbors + tl.cast(tap, tl.int64) * num_targets + target, mask=inside, other=-1)
        present = (source >= 0)[:, None]
        rows = lattice_values + source.to(tl.int64)[:, None] * STRIDE
        for channel in range(IN):
            factor = tl.load(
                weight + (tl.cast(tap, tl.int64) * IN + channel) * OUT_CHANNELS + column[None, :], mask=known, other=0.0
            )
            if ONE_GROUP:
                value = tl.load(rows + channel, mask=present, other=0.0)
            else:
                value = tl.load(rows + (column // OUT * IN + channel)[None, :], mask=present & known, other=0.0)
            total += value.to(dtype) * factor.to(dtype)
    place = output + target.to(tl.int64)[:, None] * OUT_CHANNELS + column[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=inside[:, None] & known)


@triton.jit
def gather_product(
    lattice_values, neighbors, tap, filter_size, target, inside, channel, gradient, total, num_targets,
    STRIDE: tl.constexpr, IN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """total + (rows that `tap` reaches)^T gradient; a tap beyond the last reaches nothing."""
    place = neighbors + tl.cast(tap, tl.int64) * num_targets + target
    source = tl.load(place, mask=inside & (tap + target * 0 < filter_size), other=-1)
    rows = lattice_values + source.to(tl.int64)[:, None] * STRIDE + channel[None, :]
    value = tl.load(rows, mask=(source >= 0)[:, None] & (channel < IN)[None, :], other=0.0)
    return tl.dot(tl.trans(value), gradient, total, input_precision=PRECISION)


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
def weight_gradient_kernel(
    lattice_values, output_gradient, neighbors, partials, num_targets, filter_size, split_size,
    STRIDE: tl.constexpr, GRADIENT_STRIDE: tl.constexpr, OUT_CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One split's share of sum_v in[neighbors[k, v]] (x) gradient[v], for two taps that share the gradient's rows."""
    tap = tl.program_id(0) * 2
    split = tl.program_id(1)
    out_blocks: tl.constexpr = (OUT + BLOCK_N - 1) // BLOCK_N
    in_blocks: tl.constexpr = (IN + BLOCK_K - 1) // BLOCK_K
    group = tl.program_id(2) // (out_blocks * in_blocks)
    block = tl.program_id(2) % (out_blocks * in_blocks)
    column = (block % out_blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    channel = (block // out_blocks) * BLOCK_K + tl.arange(0, BLOCK_K)
    rows = lattice_values + group * IN
    first = tl.zeros([BLOCK_K, BLOCK_N], tl.float32)
    second = tl.zeros([BLOCK_K, BLOCK_N], tl.float32)
    begin = split * split_size
    for start in range(begin, tl.minimum(begin + split_size, num_targets), BLOCK_M):
        target = start + tl.arange(0, BLOCK_M)
        inside = target < num_targets
        place = output_gradient + target.to(tl.int64)[:, None] * GRADIENT_STRIDE + group * OUT + column[None, :]
        gradient = tl.load(place, mask=inside[:, None] & (column < OUT)[None, :], other=0.0)
        first = gather_product(
            rows, neighbors, tap, filter_size, target, inside, channel, gradient, first, num_targets,
            STRIDE, IN, PRECISION,
        )  # fmt: skip
        second = gather_product(
            rows, neighbors, tap + 1, filter_size, target, inside, channel, gradient, second, num_targets,
            STRIDE, IN, PRECISION,
        )  # fmt: skip
    partial = partials + tl.cast(split, tl.int64) * filter_size * IN * OUT_CHANNELS
    store_partial(partial, first, tap, filter_size, channel, column, group, OUT_CHANNELS, IN, OUT)
    store_partial(partial, second, tap + 1, filter_size, channel, column, group, OUT_CHANNELS, IN, OUT)


@triton.jit
def direct_weight_gradient_kernel(
    lattice_values, output_gradient, neighbors, partials, num_targets, filter_size, split_size,
    STRIDE: tl.constexpr, GRADIENT_STRIDE: tl.constexpr, OUT_CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The same for one input channel and one tap."""
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
        source = tl.load(neighbors + tl.cast(tap, tl.int64) * num_targets + target, mask=inside, other=-1)
        rows = lattice_values + source.to(tl.int64)[:, None] * STRIDE + (column // OUT * IN + channel)[None, :]
        value = tl.load(rows, mask=(source >= 0)[:, None] & known, other=0.0)
        place = output_gradient + target.to(tl.int64)[:, None] * GRADIENT_STRIDE + column[None, :]
        gradient = tl.load(place, mask=inside[:, None] & known, other=0.0)
        total += value.to(dtype) * gradient.to(dtype)
    place = partials + ((tl.cast(split, tl.int64) * filter_size + tap) * IN + channel) * OUT_CHANNELS + column
    tl.store(place, tl.sum(total, axis=0), mask=column < OUT_CHANNELS)


def _precision(dtype: torch.dtype) -> str:
    """How float32 is multiplied: the setting of torch for matrix products decides about TF32.

    Without TF32, three products of TF32 parts give float32's accuracy on the matrix units of NVIDIA.
    """
    if dtype != torch.float32:
        return "ieee"
    setting = getattr(torch.backends.cuda.matmul, "fp32_precision", "none")
    if setting == "none":
        setting = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    if setting == "tf32":
        return "tf32"
    return "ieee" if interpreted() or torch.version.hip is not None else "tf32x3"


def _rows_contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(1) == 1 else tensor.contiguous()


def _uses_matrix_units(dtype: torch.dtype, in_channels: int, out_channels: int) -> bool:
    return dtype != torch.float64 and in_channels >= _FEWEST_CHANNELS and max(in_channels, out_channels) >= 16


@on_device
def convolve(lattice_values: Tensor, weight: Tensor, neighbors: Tensor, groups: int) -> Tensor:
    filter_size, in_channels, out_channels = weight.shape
    targets = neighbors.shape[1]
    output = lattice_values.new_empty(targets, out_channels)
    if output.numel() == 0:
        return output
    if lattice_values.numel() == 0:
        return output.zero_()
    lattice_values, weight, neighbors = _rows_contiguous(lattice_values), weight.contiguous(), neighbors.contiguous()
    arguments = (lattice_values, weight, neighbors, output, targets, filter_size)
    per_group = out_channels // groups
    sizes = {"STRIDE": lattice_values.stride(0), "OUT_CHANNELS": out_channels, "IN": in_channels, "OUT": per_group}
    if not _uses_matrix_units(lattice_values.dtype, in_channels, per_group):
        block_n = min(power_of_two(out_channels), 64)
        block_m = max(min(1024 // block_n, 256), 16)
        direct_convolve_kernel[(cdiv(targets, block_m), cdiv(out_channels, block_n))](
            *arguments, **sizes, ONE_GROUP=groups == 1, BLOCK_M=block_m, BLOCK_N=block_n
        )
        return output
    shape = Shape("convolve", _precision(lattice_values.dtype), lattice_values.dtype, in_channels, per_group, targets)

    def launch(blocks: dict[str, int]) -> None:
        grid = (cdiv(targets, blocks["BLOCK_M"]), cdiv(per_group, blocks["BLOCK_N"]) * groups)
        convolve_kernel[grid](*arguments, **sizes, PRECISION=shape.precision, **blocks)

    run_blocks(shape, launch, lattice_values.device)
    return output


def _num_splits(targets: int, programs: int) -> tuple[int, int]:
    """In how many parts the lattice points are summed, and the size of a part: enough programs to fill a large GPU."""
    splits = max(min(cdiv(1056, programs), cdiv(targets, 256), 256), 1)
    split_size = power_of_two(cdiv(targets, splits), 64) if splits == 1 else cdiv(cdiv(targets, splits), 128) * 128
    return cdiv(targets, split_size), split_size


@on_device
def convolve_weight_gradient(lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int) -> Tensor:
    filter_size, targets = neighbors.shape
    in_channels, out_channels = lattice_values.shape[1] // groups, output_gradient.shape[1]
    dtype = accumulation_dtype(lattice_values.dtype)
    if lattice_values.numel() == 0 or output_gradient.numel() == 0 or neighbors.numel() == 0:
        return lattice_values.new_zeros(filter_size, in_channels, out_channels)
    lattice_values, output_gradient = _rows_contiguous(lattice_values), _rows_contiguous(output_gradient)
    neighbors = neighbors.contiguous()
    per_group = out_channels // groups
    sizes = {"STRIDE": lattice_values.stride(0), "GRADIENT_STRIDE": output_gradient.stride(0)}
    sizes |= {"OUT_CHANNELS": out_channels, "IN": in_channels, "OUT": per_group}
    shape = Shape("gradient", _precision(lattice_values.dtype), lattice_values.dtype, in_channels, per_group, targets)
    if _uses_matrix_units(lattice_values.dtype, in_channels, per_group):
        blocks = best_blocks(shape)
        grid = (
            cdiv(filter_size, 2),
            1,
            cdiv(in_channels, blocks["BLOCK_K"]) * cdiv(per_group, blocks["BLOCK_N"]) * groups,
        )
    else:
        block_n = min(power_of_two(out_channels), 64)
        blocks = {"BLOCK_M": max(min(1024 // block_n, 256), 16), "BLOCK_N": block_n}
        grid = (filter_size * in_channels, 1, cdiv(out_channels, block_n))
    splits, split_size = _num_splits(targets, grid[0] * grid[2])
    partials = torch.empty(splits, filter_size, in_channels, out_channels, dtype=dtype, device=lattice_values.device)
    arguments = (lattice_values, output_gradient, neighbors, partials, targets, filter_size, split_size)
    grid = (grid[0], splits, grid[2])
    if "BLOCK_K" in blocks:
        weight_gradient_kernel[grid](*arguments, **sizes, PRECISION=shape.precision, **blocks)
    else:
        direct_weight_gradient_kernel[grid](*arguments, **sizes, **blocks)
    return partials.sum(dim=0).to(lattice_values.dtype)
