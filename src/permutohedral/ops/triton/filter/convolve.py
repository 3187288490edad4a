"""The learned convolution as an implicit product: gather and multiply in one kernel, without intermediate storage.

IN and OUT are the channels of one group. `convolve_kernel` uses the matrix units; the direct kernel serves few
channels, depthwise groups and float64. The gradient with respect to the weight is in `weight_gradient.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.filter.scaled_float16 import to_scaled_fp16, weight_to_scaled_fp16
from permutohedral.ops.triton.kernel import INTERPRETED, cdiv, kernel, on_device, rows_contiguous, tile
from permutohedral.ops.triton.tuning import Blocks, convolution_blocks, launch_fitting

# with fewer channels of a group a matrix unit would mostly multiply padding
_FEWEST_CHANNELS = 8
# from this many on, float32 takes longer to read than to convert to 16 bits first; in the backward pass, which has to
# transpose it, from half as many on
_MANY_CHANNELS = 64
# fewer targets take less time than converting their values
_WORTH_SCALING = 1 << 15
# fewer targets take less time than transposing the weight
_WORTH_TRANSPOSING = 1 << 16
# layout of a weight in memory: see `convolve_kernel`
AS_GIVEN = tl.constexpr(0)
TRANSPOSED = tl.constexpr(1)
ADJOINT = tl.constexpr(2)


@kernel(sizes=["num_targets", "filter_size"], options=["num_warps", "num_stages"])
def convolve_kernel(
    lattice_values, weight, neighbors, taps, scales, output, num_targets, filter_size,
    HAS_SCALES: tl.constexpr, STRIDE: tl.constexpr, OUT_CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    PRECISION: tl.constexpr, ORDER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute out[v] = sum_k w_k in[neighbors[k, v]] for a block of targets and of one group's output channels.

    A TRANSPOSED weight is `[filter_size, OUT_CHANNELS, IN]`, the order in which the matrix units read float32. For the
    ADJOINT it is the filter of the other direction, `[filter_size, OUT, groups IN]`, of the opposite `taps`. The
    results are multiplied by `scales [OUT_CHANNELS]`.
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
        if ORDER == AS_GIVEN:
            matrix = weight + (tl.cast(tap, tl.int64) * IN + channel)[:, None] * OUT_CHANNELS + group * OUT
            exists = known[None, :] & ((IN % BLOCK_K == 0) | (channel < IN)[:, None])
            factor = tl.load(matrix + column[None, :], mask=exists, other=0.0)
        else:
            if ORDER == ADJOINT:
                line = (tl.load(taps + tap) * OUT + column) * (OUT_CHANNELS // OUT) + group
            else:
                line = tl.cast(tap, tl.int64) * OUT_CHANNELS + group * OUT + column
            exists = known[:, None] & ((IN % BLOCK_K == 0) | (channel < IN)[None, :])
            factor = tl.trans(tl.load(weight + line[:, None] * IN + channel[None, :], mask=exists, other=0.0))
        total = tl.dot(value, factor, total, input_precision=PRECISION)
    if HAS_SCALES:
        total *= tl.load(scales + group * OUT + column, mask=known, other=0.0)[None, :]
    place = output + target.to(tl.int64)[:, None] * OUT_CHANNELS + group * OUT + column[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=inside[:, None] & known[None, :])


@kernel(sizes=["num_targets", "filter_size"])
def direct_convolve_kernel(
    lattice_values, weight, neighbors, taps, output, num_targets, filter_size, STRIDE: tl.constexpr,
    OUT_CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, ORDER: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Do the same without matrix units, one input channel after another, for a block of all output channels."""
    target = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = target < num_targets
    known = (column < OUT_CHANNELS)[None, :]
    dtype: tl.constexpr = tl.float64 if lattice_values.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros([BLOCK_M, BLOCK_N], dtype)
    # distance of input channels in memory
    step: tl.constexpr = 1 if ORDER == ADJOINT else OUT_CHANNELS
    for tap in range(filter_size):
        source = tl.load(neighbors + tl.cast(tap, tl.int64) * num_targets + target, mask=inside, other=-1)
        present = (source >= 0)[:, None]
        rows = lattice_values + source.to(tl.int64)[:, None] * STRIDE
        if ORDER == ADJOINT:
            line = (tl.load(taps + tap) * OUT + column % OUT) * (OUT_CHANNELS // OUT) + column // OUT
            first = weight + line * IN
        else:
            first = weight + tl.cast(tap, tl.int64) * IN * OUT_CHANNELS + column
        for channel in range(IN):
            factor = tl.load(first[None, :] + channel * step, mask=known, other=0.0)
            if OUT == OUT_CHANNELS:
                value = tl.load(rows + channel, mask=present, other=0.0)
            else:
                value = tl.load(rows + (column // OUT * IN + channel)[None, :], mask=present & known, other=0.0)
            total += value.to(dtype) * factor.to(dtype)
    place = output + target.to(tl.int64)[:, None] * OUT_CHANNELS + column[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=inside[:, None] & known)


# reads `torch.backends.cuda.matmul.fp32_precision`, if torch has it
_matmul_setting: Callable[[str, str], str] | None = getattr(torch._C, "_get_fp32_precision_getter", None)


def float32_precision(dtype: torch.dtype) -> str:
    """Return how float32 is multiplied, by torch's setting for matrix products.

    Without TF32, three products of TF32 parts give float32's accuracy on the matrix units of NVIDIA. Reading the
    setting takes as long as a launch, so it is read once per pass.
    """
    if dtype != torch.float32:
        return "ieee"
    setting = "none" if _matmul_setting is None else _matmul_setting("cuda", "matmul")
    if setting == "none":
        setting = "ieee" if torch._C._get_float32_matmul_precision() == "highest" else "tf32"
    if setting == "tf32":
        return "tf32"
    return "ieee" if INTERPRETED or torch.version.hip is not None else "tf32x3"


def uses_matrix_units(dtype: torch.dtype, in_channels: int, out_channels: int) -> bool:
    return dtype != torch.float64 and in_channels >= _FEWEST_CHANNELS and max(in_channels, out_channels) >= 16


def _weight_order(weight: Tensor, dtype: torch.dtype, targets: int) -> tuple[Tensor, int]:
    """Return the weight as the kernel reads it, and its layout."""
    if weight.is_contiguous() and (dtype != torch.float32 or targets < _WORTH_TRANSPOSING):
        return weight, AS_GIVEN.value
    transposed = weight.transpose(1, 2)
    if transposed.is_contiguous() or dtype == torch.float32:
        return transposed.contiguous(), TRANSPOSED.value
    return weight.contiguous(), AS_GIVEN.value


def uses_scaled_fp16(precision: str, in_channels: int, out_channels: int, backward: bool = False) -> bool:
    """Return whether TF32 products are computed of float16: half the memory, and matrix units can transpose it."""
    fewest = _MANY_CHANNELS // 2 if backward else _MANY_CHANNELS
    return precision == "tf32" and min(in_channels, out_channels) >= fewest


def convolve_scaled_fp16(
    scaled: Tensor, inverse: Tensor, weight: Tensor, neighbors: Tensor, opposite: Tensor | None = None
) -> Tensor:
    """Convolve the result of `to_scaled_fp16`, one group; with `opposite` taps run the adjoint."""
    factors, scales = weight_to_scaled_fp16(weight, inverse, opposite)
    output = torch.empty(neighbors.shape[1], factors.shape[2], dtype=torch.float32, device=scaled.device)
    layout = scaled.shape[1], 1, AS_GIVEN.value
    _convolve_into(output, scaled, factors, neighbors, layout, "ieee", scales=scales)
    return output


def _convolve_into(
    output: Tensor,
    lattice_values: Tensor,
    weight: Tensor,
    neighbors: Tensor,
    layout: tuple[int, int, int],
    precision: str,
    taps: Tensor | None = None,
    scales: Tensor | None = None,
) -> None:
    """Launch a convolution.

    Args:
        output, lattice_values, weight, neighbors, taps, scales: see `convolve_kernel`; the direct kernel has no scales.
        layout: input channels of a group, groups, and the layout of the weight.
        precision: see `float32_precision`.
    """
    (in_channels, groups, order), out_channels, (filter_size, targets) = layout, output.shape[1], neighbors.shape
    per_group, dtype, stride = out_channels // groups, lattice_values.dtype, lattice_values.stride(0)
    tensors, sizes = (lattice_values, weight, neighbors, neighbors if taps is None else taps), (targets, filter_size)
    if not uses_matrix_units(dtype, in_channels, per_group):
        height, width = tile(out_channels)
        variant = direct_convolve_kernel[stride, out_channels, in_channels, per_group, order, height, width]
        variant((cdiv(targets, height), cdiv(out_channels, width), 1), (*tensors, output), sizes)
        return
    constants = scales is not None, stride, out_channels, in_channels, per_group, precision, order

    def launch(blocks: Blocks) -> None:
        grid = cdiv(targets, blocks.block_m), cdiv(per_group, blocks.block_n) * groups, 1
        others = output if scales is None else scales, output
        convolve_kernel[(*constants, *blocks[1:])](grid, (*tensors, *others), sizes)

    blocks = convolution_blocks(precision, dtype, in_channels, per_group, targets)
    launch_fitting((output.get_device(), "convolve", dtype, constants), blocks, launch)


@on_device
def convolve(lattice_values: Tensor, weight: Tensor, neighbors: Tensor, groups: int, *reverse: Tensor | None) -> Tensor:
    (_, in_channels, out_channels), targets, dtype = weight.shape, neighbors.shape[1], lattice_values.dtype
    if lattice_values.numel() == 0 or targets == 0 or out_channels == 0:
        return lattice_values.new_zeros(targets, out_channels)
    lattice_values, neighbors = rows_contiguous(lattice_values), neighbors.contiguous()
    precision = float32_precision(dtype)
    if targets >= _WORTH_SCALING and groups == 1 and uses_scaled_fp16(precision, in_channels, out_channels):
        ((scaled, inverse),) = to_scaled_fp16(lattice_values)
        return convolve_scaled_fp16(scaled, inverse, weight, neighbors)
    if uses_matrix_units(dtype, in_channels, out_channels // groups):
        weight, order = _weight_order(weight, dtype, targets)
    else:
        weight, order = weight.contiguous(), AS_GIVEN.value
    output = lattice_values.new_empty(targets, out_channels)
    _convolve_into(output, lattice_values, weight, neighbors, (in_channels, groups, order), precision)
    return output


def convolve_adjoint(
    gradient: Tensor, weight: Tensor, reverse: Tensor, opposite: Tensor, groups: int, precision: str
) -> Tensor:
    """Return the gradient of `convolve` with respect to the lattice values.

    Args:
        gradient: with respect to the result, `[target lattice points, out_channels]`.
        weight: of the convolution.
        reverse: the table from source to target, `[filter_size, lattice_points]`.
        opposite: the tap opposite to each.
        groups: of the channels.
        precision: see `float32_precision`.
    """
    weight, reverse = weight.contiguous(), reverse.contiguous()
    _, in_channels, out_channels = weight.shape
    output = gradient.new_empty(reverse.shape[1], in_channels * groups)
    if gradient.numel() == 0 or output.numel() == 0:
        return output.zero_()
    layout = out_channels // groups, groups, ADJOINT.value
    _convolve_into(output, gradient, weight, reverse, layout, precision, taps=opposite)
    return output
