"""The learned convolution as an implicit product: gather and multiply in one kernel, nothing in between is stored.

IN and OUT are the channels of one group. `convolve_kernel` uses the matrix units; the direct kernel serves few
channels, depthwise groups and float64. The gradient with respect to the weight is in `weight_gradient.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.filter.scaled_float16 import halve, halve_weight
from permutohedral.ops.triton.runtime import INTERPRETED, Bound, on_device, power_of_two, rows_contiguous
from permutohedral.ops.triton.tuning import Shape, Tuned, choose, may_keep

# below this many channels of a group a matrix unit would mostly multiply padding
_FEWEST_CHANNELS = 8
# from so many on, numbers of 32 bits take longer to read than to convert to 16 bits before; in the backward pass, which
# has to transpose them, from half as many on
_MANY_CHANNELS = 64
# fewer targets are done before their values are converted
_WORTH_HALVING = 1 << 15
# fewer targets are done before the weight is turned
_WORTH_TURNING = 1 << 16
# how a weight lies in memory: see `convolve_kernel`
AS_GIVEN = tl.constexpr(0)
TURNED = tl.constexpr(1)
ADJOINT = tl.constexpr(2)
# of `convolve_kernel`, without the block shape
_CONSTANTS = ("HAS_SCALES", "BIASED", "ADDED", "STRIDE", "OUT_CHANNELS", "IN", "OUT", "PRECISION", "ORDER")


class After(NamedTuple):
    """What is done to the results of a convolution before they are written, in this order.

    Attributes:
        scales: `[out_channels]`, what they are multiplied with; the direct kernel knows none.
        bias: `[out_channels]`, what is added.
        added: `[targets, out_channels]`, contiguous, what is added.
    """

    scales: Tensor | None = None
    bias: Tensor | None = None
    added: Tensor | None = None

    def tensors(self, instead: Tensor) -> tuple[Tensor, ...]:
        """All of them, and another tensor for what is not there."""
        scales, bias, added = self
        return (
            instead if scales is None else scales, instead if bias is None else bias,
            instead if added is None else added,
        )  # fmt: skip


_NOTHING_AFTER = After()


@triton.jit
def finish(
    total, bias, added, target, inside, channel, known, BIASED: tl.constexpr, ADDED: tl.constexpr,
    OUT_CHANNELS: tl.constexpr,
):  # fmt: skip
    """The results of some targets and channels with what comes after: see `After`."""
    if BIASED:
        total += tl.load(bias + channel, mask=known, other=0.0).to(total.dtype)[None, :]
    if ADDED:
        place = added + target.to(tl.int64)[:, None] * OUT_CHANNELS + channel[None, :]
        total += tl.load(place, mask=inside[:, None] & known[None, :], other=0.0).to(total.dtype)
    return total


@triton.jit(do_not_specialize=["num_targets", "filter_size"])
def convolve_kernel(
    lattice_values, weight, neighbors, taps, scales, bias, added, output, num_targets, filter_size,
    HAS_SCALES: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, STRIDE: tl.constexpr,
    OUT_CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, PRECISION: tl.constexpr, ORDER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out[v] = sum_k w_k in[neighbors[k, v]] for a block of targets and of one group's output channels.

    A weight that is TURNED is `[filter_size, OUT_CHANNELS, IN]`, the order in which the matrix units want float32. For
    the ADJOINT it is the filter of the other direction, `[filter_size, OUT, groups IN]`, of the opposite `taps`.
    What is done to the results is in `After`.
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
    total = finish(total, bias, added, target, inside, group * OUT + column, known, BIASED, ADDED, OUT_CHANNELS)
    place = output + target.to(tl.int64)[:, None] * OUT_CHANNELS + group * OUT + column[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=inside[:, None] & known[None, :])


@triton.jit(do_not_specialize=["num_targets", "filter_size"])
def direct_convolve_kernel(
    lattice_values, weight, neighbors, taps, scales, bias, added, output, num_targets, filter_size,
    BIASED: tl.constexpr, ADDED: tl.constexpr, STRIDE: tl.constexpr,
    OUT_CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, ORDER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The same, one input channel after another, for a block of all output channels; without scales."""
    target = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = target < num_targets
    exists = column < OUT_CHANNELS
    known = exists[None, :]
    dtype: tl.constexpr = tl.float64 if lattice_values.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros([BLOCK_M, BLOCK_N], dtype)
    # how far one input channel lies from the next
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
    total = finish(total, bias, added, target, inside, column, exists, BIASED, ADDED, OUT_CHANNELS)
    place = output + target.to(tl.int64)[:, None] * OUT_CHANNELS + column[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=inside[:, None] & known)


# what `torch.backends.cuda.matmul.fp32_precision` asks, where torch has it
_matmul_setting: Callable[[str, str], str] | None = getattr(torch._C, "_get_fp32_precision_getter", None)


def float32_precision(dtype: torch.dtype) -> str:
    """How float32 is multiplied: the setting of torch for matrix products decides about TF32.

    Without TF32, three products of TF32 parts give float32's accuracy on the matrix units of NVIDIA. Asking torch takes
    as long as starting a kernel, so it is asked once in a pass.
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
    """The weight as the kernel reads it, and how that lies in memory."""
    if weight.is_contiguous() and (dtype != torch.float32 or targets < _WORTH_TURNING):
        return weight, AS_GIVEN.value
    turned = weight.transpose(1, 2)
    if turned.is_contiguous() or dtype == torch.float32:
        return turned.contiguous(), TURNED.value
    return weight.contiguous(), AS_GIVEN.value


def uses_halves(precision: str, in_channels: int, out_channels: int, backward: bool = False) -> bool:
    """Whether TF32 is computed of float16, which takes half of the memory and can be transposed by the matrix units."""
    fewest = _MANY_CHANNELS // 2 if backward else _MANY_CHANNELS
    return precision == "tf32" and min(in_channels, out_channels) >= fewest


def convolve_halves(
    halves: Tensor,
    inverse: Tensor,
    weight: Tensor,
    neighbors: Tensor,
    opposite: Tensor | None = None,
    after: After = _NOTHING_AFTER,
) -> Tensor:
    """The convolution of what `halve` made of float32, one group; with `opposite` taps its adjoint."""
    factors, scales = halve_weight(weight.contiguous(), inverse, opposite)
    if opposite is not None:
        factors = factors.transpose(1, 2)
    output = torch.empty(neighbors.shape[1], factors.shape[2], dtype=torch.float32, device=halves.device)
    factors, order = _weight_order(factors, halves.dtype, neighbors.shape[1])
    layout, after = (halves.shape[1], 1, order), after._replace(scales=scales)
    _convolve_into(output, halves, factors, neighbors, layout, None, after, "ieee")
    return output


class _Kernel(NamedTuple):
    """A kernel that convolves.

    Attributes:
        bound: it, with its constants.
        height: targets of a program.
        columns: programs for all channels of the same targets.
    """

    bound: Bound
    height: int
    columns: int


# by all that the choice depends on
_CHOSEN: dict[tuple[object, ...], _Kernel] = {}


def _convolve_into(
    output: Tensor,
    lattice_values: Tensor,
    weight: Tensor,
    neighbors: Tensor,
    layout: tuple[int, int, int],
    taps: Tensor | None,
    after: After,
    precision: str,
) -> None:
    """Start a kernel; the layout is the input channels of a group, the groups, and the order of the weight."""
    (in_channels, groups, order), out_channels, (filter_size, targets) = layout, output.shape[1], neighbors.shape
    per_group, dtype, stride = out_channels // groups, lattice_values.dtype, lattice_values.stride(0)
    others, (scales, bias, added) = after.tensors(output), after
    tensors = lattice_values, weight, neighbors, neighbors if taps is None else taps, *others, output

    def start(kernel: _Kernel) -> None:
        kernel.bound((-(-targets // kernel.height), kernel.columns, 1), tensors, (targets, filter_size))

    switches = bias is not None, added is not None
    if not uses_matrix_units(dtype, in_channels, per_group):
        start(_direct_kernel(switches, stride, out_channels, in_channels, groups, order))
        return
    constants = scales is not None, *switches, stride, out_channels, in_channels, per_group, precision, order
    deterministic = torch._C._get_deterministic_algorithms()
    key = (*constants, dtype, targets.bit_length(), output.get_device(), deterministic)
    kernel = _CHOSEN.get(key)
    if kernel is None:

        def tiled(tuned: Tuned) -> _Kernel:
            bound, blocks = tuned
            return _Kernel(bound, blocks["BLOCK_M"], -(-per_group // blocks["BLOCK_N"]) * groups)

        shape = Shape("convolve", precision, dtype, in_channels, per_group, targets)
        named = dict(zip(_CONSTANTS, constants, strict=True))
        kernel = tiled(choose(shape, convolve_kernel, named, lambda tuned: start(tiled(tuned))))
        if may_keep():
            _CHOSEN[key] = kernel
    start(kernel)


@cache
def _direct_kernel(
    switches: tuple[bool, ...], stride: int, out_channels: int, in_channels: int, groups: int, order: int
) -> _Kernel:
    """`direct_convolve_kernel`; the switches tell which of `After` there are."""
    width = min(power_of_two(out_channels), 64)
    height = max(min(1024 // width, 128), 16)
    biased, added = switches
    bound = Bound(
        direct_convolve_kernel, BIASED=biased, ADDED=added, STRIDE=stride, OUT_CHANNELS=out_channels,
        IN=in_channels, OUT=out_channels // groups, ORDER=order, BLOCK_M=height, BLOCK_N=width,
    )  # fmt: skip
    return _Kernel(bound, height, -(-out_channels // width))


@on_device
def convolve(lattice_values: Tensor, weight: Tensor, neighbors: Tensor, groups: int) -> Tensor:
    return convolve_rows(lattice_values, weight, neighbors, groups, lattice_values.shape[0])


@on_device
def convolve_and_add(
    lattice_values: Tensor, weight: Tensor, neighbors: Tensor, bias: Tensor | None, added: Tensor | None
) -> Tensor:
    """The convolution in one group with what is added to its results: see `FusedPrimitives`."""
    after = After(bias=None if bias is None else bias.contiguous(), added=None if added is None else added.contiguous())
    return convolve_rows(lattice_values, weight, neighbors, 1, lattice_values.shape[0], after)


def convolve_rows(
    lattice_values: Tensor, weight: Tensor, neighbors: Tensor, groups: int, rows: int, after: After = _NOTHING_AFTER
) -> Tensor:
    """`convolve` of the first `rows`, on the current device, and what is done to the results."""
    (_, in_channels, out_channels), targets, dtype = weight.shape, neighbors.shape[1], lattice_values.dtype
    if lattice_values.numel() == 0 or targets == 0 or out_channels == 0:
        return lattice_values.new_zeros(targets, out_channels)
    lattice_values, neighbors = rows_contiguous(lattice_values), neighbors.contiguous()
    precision = float32_precision(dtype)
    if targets >= _WORTH_HALVING and groups == 1 and uses_halves(precision, in_channels, out_channels):
        ((halves, inverse),) = halve(lattice_values[:rows])
        return convolve_halves(halves, inverse, weight, neighbors, after=after)
    if uses_matrix_units(dtype, in_channels, out_channels // groups):
        weight, order = _weight_order(weight, dtype, targets)
    else:
        weight, order = weight.contiguous(), AS_GIVEN.value
    layout = in_channels, groups, order
    output = lattice_values.new_empty(targets, out_channels)
    _convolve_into(output, lattice_values, weight, neighbors, layout, None, after, precision)
    return output


def convolve_adjoint(
    gradient: Tensor,
    weight: Tensor,
    reverse: Tensor,
    opposite: Tensor,
    groups: int,
    precision: str,
) -> Tensor:
    """The gradient of `convolve` with respect to the lattice values.

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
    _convolve_into(output, gradient, weight, reverse, layout, opposite, _NOTHING_AFTER, precision)
    return output
