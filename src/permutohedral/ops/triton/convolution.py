"""The learned convolution as an implicit product: gather and multiply in one kernel, nothing in between is stored.

IN and OUT are the channels of one group. `convolve_kernel` and `weight_gradient_kernel` use the matrix units; the
direct kernels serve few channels, depthwise groups and float64.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.triton.halving import halve
from permutohedral.ops.triton.launch import cdiv, interpreted, launch, on_device, power_of_two, rows_contiguous
from permutohedral.ops.triton.tuning import Blocks, Shape, run_blocks

# below this many channels of a group a matrix unit would mostly multiply padding
_FEWEST_CHANNELS = 8
# from so many on, numbers of 32 bits take longer to transpose than to convert
_MANY_CHANNELS = 64


@triton.jit(do_not_specialize=["num_targets", "filter_size"])
def convolve_kernel(
    lattice_values, weight, neighbors, output, num_targets, filter_size,
    STRIDE: tl.constexpr, OUT_CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, PRECISION: tl.constexpr,
    TRANSPOSED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out[v] = sum_k w_k in[neighbors[k, v]] for a block of targets and of one group's output channels.

    A TRANSPOSED weight is `[filter_size, OUT_CHANNELS, IN]`, the order in which the matrix units want float32.
    """
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
        present = (source >= 0)[:, None] & ((IN % BLOCK_K == 0) | (channel < IN)[None, :])
        value = tl.load(rows + channel[None, :], mask=present, other=0.0)
        if TRANSPOSED:
            matrix = weight + (tl.cast(tap, tl.int64) * OUT_CHANNELS + group * OUT + column)[:, None] * IN
            exists = known[:, None] & ((IN % BLOCK_K == 0) | (channel < IN)[None, :])
            factor = tl.trans(tl.load(matrix + channel[None, :], mask=exists, other=0.0))
        else:
            matrix = weight + (tl.cast(tap, tl.int64) * IN + channel)[:, None] * OUT_CHANNELS + group * OUT
            exists = known[None, :] & ((IN % BLOCK_K == 0) | (channel < IN)[:, None])
            factor = tl.load(matrix + column[None, :], mask=exists, other=0.0)
        total = tl.dot(value, factor, total, input_precision=PRECISION)
    place = output + target.to(tl.int64)[:, None] * OUT_CHANNELS + group * OUT + column[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=inside[:, None] & known[None, :])


@triton.jit(do_not_specialize=["num_targets", "filter_size"])
def direct_convolve_kernel(
    lattice_values, weight, neighbors, output, num_targets, filter_size,
    STRIDE: tl.constexpr, OUT_CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, ONE_GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
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


@triton.jit(do_not_specialize=["num_targets", "filter_size", "split_size"])
def weight_gradient_kernel(
    lattice_values, output_gradient, neighbors, partials, num_targets, filter_size, split_size,
    STRIDE: tl.constexpr, GRADIENT_STRIDE: tl.constexpr, OUT_CHANNELS: tl.constexpr, IN: tl.constexpr,
    OUT: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr,
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
            STRIDE, IN, PRECISION, PARTS,
        )  # fmt: skip
        second = gather_product(
            rows, neighbors, tap + 1, filter_size, target, inside, channel, gradient, second, num_targets,
            STRIDE, IN, PRECISION, PARTS,
        )  # fmt: skip
    partial = partials + tl.cast(split, tl.int64) * filter_size * IN * OUT_CHANNELS
    store_partial(partial, first, tap, filter_size, channel, column, group, OUT_CHANNELS, IN, OUT)
    store_partial(partial, second, tap + 1, filter_size, channel, column, group, OUT_CHANNELS, IN, OUT)


@triton.jit(do_not_specialize=["num_targets", "filter_size", "split_size"])
def direct_weight_gradient_kernel(
    lattice_values, output_gradient, neighbors, partials, num_targets, filter_size, split_size,
    STRIDE: tl.constexpr, GRADIENT_STRIDE: tl.constexpr, OUT_CHANNELS: tl.constexpr, IN: tl.constexpr,
    OUT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
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


def _uses_halves(precision: str, channels: int) -> bool:
    """Whether the weight gradient takes TF32 as float16: the matrix units do not transpose numbers of 32 bits."""
    return precision == "tf32" and channels >= _MANY_CHANNELS


def _scales(inverse: Tensor, gradient_inverse: Tensor, groups: int) -> Tensor:
    """What to multiply a gradient `[filter_size, in / groups, out]` with that was computed of halves."""
    if groups == 1:
        return inverse[:, None] * gradient_inverse
    per_group = gradient_inverse.shape[0] // groups
    return inverse.view(groups, -1).repeat_interleave(per_group, dim=0).T * gradient_inverse


def _uses_matrix_units(dtype: torch.dtype, in_channels: int, out_channels: int) -> bool:
    return dtype != torch.float64 and in_channels >= _FEWEST_CHANNELS and max(in_channels, out_channels) >= 16


def _weight_order(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, bool]:
    """The weight as the kernel reads it, and whether that is transposed."""
    turned = weight.transpose(1, 2)
    if turned.is_contiguous():
        return turned, True
    if dtype == torch.float32:
        return turned.contiguous(), True
    return weight.contiguous(), False


@on_device
def convolve(lattice_values: Tensor, weight: Tensor, neighbors: Tensor, groups: int) -> Tensor:
    filter_size, in_channels, out_channels = weight.shape
    targets, dtype = neighbors.shape[1], lattice_values.dtype
    output = lattice_values.new_empty(targets, out_channels)
    if output.numel() == 0:
        return output
    if lattice_values.numel() == 0:
        return output.zero_()
    lattice_values, neighbors = rows_contiguous(lattice_values), neighbors.contiguous()
    per_group = out_channels // groups
    sizes = {"STRIDE": lattice_values.stride(0), "OUT_CHANNELS": out_channels, "IN": in_channels, "OUT": per_group}
    if not _uses_matrix_units(dtype, in_channels, per_group):
        block_n = min(power_of_two(out_channels), 64)
        block_m = max(min(1024 // block_n, 128), 16)
        launch(
            direct_convolve_kernel, (cdiv(targets, block_m), cdiv(out_channels, block_n)), lattice_values,
            weight.contiguous(), neighbors, output, targets, filter_size, **sizes,
            ONE_GROUP=groups == 1, BLOCK_M=block_m, BLOCK_N=block_n,
        )  # fmt: skip
        return output
    weight, transposed = _weight_order(weight, dtype)
    precision = _precision(dtype)

    def run(blocks: Blocks) -> None:
        grid = (cdiv(targets, blocks["BLOCK_M"]), cdiv(per_group, blocks["BLOCK_N"]) * groups)
        launch(
            convolve_kernel, grid, lattice_values, weight, neighbors, output, targets, filter_size, **sizes,
            PRECISION=precision, TRANSPOSED=transposed, **blocks,
        )  # fmt: skip

    run_blocks(Shape("convolve", precision, dtype, in_channels, per_group, targets), run, lattice_values.device)
    return output


def _splits(targets: int, programs: int) -> tuple[int, int]:
    """In how many parts the lattice points are summed, and the size of a part: enough programs to fill a large GPU."""
    splits = max(min(cdiv(528, programs), cdiv(targets, 512)), 1)
    size = cdiv(cdiv(targets, splits), 128) * 128
    return cdiv(targets, size), size


@on_device
def convolve_weight_gradient(lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int) -> Tensor:
    filter_size, targets = neighbors.shape
    in_channels, out_channels = lattice_values.shape[1] // groups, output_gradient.shape[1]
    dtype, device = lattice_values.dtype, lattice_values.device
    if lattice_values.numel() == 0 or output_gradient.numel() == 0 or neighbors.numel() == 0:
        return lattice_values.new_zeros(filter_size, in_channels, out_channels)
    lattice_values, output_gradient = rows_contiguous(lattice_values), rows_contiguous(output_gradient)
    neighbors = neighbors.contiguous()
    per_group = out_channels // groups
    precision, scales = _precision(dtype), None
    if _uses_halves(precision, min(in_channels, per_group)):
        (lattice_values, inverse), (output_gradient, gradient_inverse) = halve(lattice_values, output_gradient)
        precision, scales = "ieee", _scales(inverse, gradient_inverse, groups)
    sizes = {"STRIDE": lattice_values.stride(0), "GRADIENT_STRIDE": output_gradient.stride(0)}
    sizes |= {"OUT_CHANNELS": out_channels, "IN": in_channels, "OUT": per_group}
    partials = torch.empty(0)

    def run(blocks: Blocks) -> None:
        nonlocal partials
        if "BLOCK_K" in blocks:
            tiles = cdiv(in_channels, blocks["BLOCK_K"]) * cdiv(per_group, blocks["BLOCK_N"]) * groups
            taps = cdiv(filter_size, 2)
        else:
            tiles, taps = cdiv(out_channels, blocks["BLOCK_N"]), filter_size * in_channels
        splits, size = _splits(targets, tiles * taps)
        shape = (splits, filter_size, in_channels, out_channels)
        partials = torch.empty(shape, dtype=accumulation_dtype(dtype), device=device)
        kernel = weight_gradient_kernel if "BLOCK_K" in blocks else direct_weight_gradient_kernel
        products = {"PRECISION": precision, "PARTS": parts} if "BLOCK_K" in blocks else {}
        launch(
            kernel, (taps, splits, tiles), lattice_values, output_gradient, neighbors, partials, targets, filter_size,
            size, **sizes, **products, **blocks,
        )  # fmt: skip

    parts = 3 if precision == "tf32x3" and min(in_channels, per_group) >= _MANY_CHANNELS else 1
    if _uses_matrix_units(dtype, in_channels, per_group):
        run_blocks(Shape("gradient", precision, lattice_values.dtype, in_channels, per_group, targets), run, device)
    else:
        block_n = min(power_of_two(out_channels), 64)
        run({"BLOCK_M": max(min(1024 // block_n, 128), 16), "BLOCK_N": block_n})
    total = partials.sum(dim=0) if partials.shape[0] > 1 else partials[0]
    total = total if scales is None else total * scales
    return total if total.dtype == dtype else total.to(dtype)
