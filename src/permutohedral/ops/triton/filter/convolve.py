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
from permutohedral.ops.triton.tuning import CHOSEN, Shape, Tuned, choose

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
_CONSTANTS = ("HAS_SCALES", "DIVIDED", "BIASED", "ADDED", "STRIDE", "OUT_CHANNELS", "IN", "OUT", "PRECISION", "ORDER")


class After(NamedTuple):
    """What is done to the results of a convolution before they are written, in this order.

    Attributes:
        scales: `[out_channels]`, what they are multiplied with; the direct kernel knows none.
        divisors: `[targets]`, what they are divided by.
        bias: `[out_channels]`, what is added.
        added: `[targets, out_channels]`, contiguous, what is added.
    """

    scales: Tensor | None = None
    divisors: Tensor | None = None
    bias: Tensor | None = None
    added: Tensor | None = None

    def tensors(self, instead: Tensor) -> list[Tensor]:
        """All of them, and another tensor for what is not there."""
        return [instead if each is None else each for each in self]


_NOTHING_AFTER = After()


@triton.jit
def finish(
    total, divisors, bias, added, target, inside, channel, known,
    DIVIDED: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, OUT_CHANNELS: tl.constexpr,
):  # fmt: skip
    """The results of some targets and channels with what comes after: see `After`."""
    if DIVIDED:
        total = total / tl.load(divisors + target, mask=inside, other=1.0)[:, None]
    if BIASED:
        total += tl.load(bias + channel, mask=known, other=0.0).to(total.dtype)[None, :]
    if ADDED:
        place = added + target.to(tl.int64)[:, None] * OUT_CHANNELS + channel[None, :]
        total += tl.load(place, mask=inside[:, None] & known[None, :], other=0.0).to(total.dtype)
    return total


@triton.jit(do_not_specialize=["num_targets", "filter_size"])
def convolve_kernel(
    lattice_values, weight, neighbors, taps, scales, divisors, bias, added, output, num_targets, filter_size,
    HAS_SCALES: tl.constexpr, DIVIDED: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, STRIDE: tl.constexpr,
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
    total = finish(
        total, divisors, bias, added, target, inside, group * OUT + column, known, DIVIDED, BIASED, ADDED, OUT_CHANNELS
    )
    place = output + target.to(tl.int64)[:, None] * OUT_CHANNELS + group * OUT + column[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=inside[:, None] & known[None, :])


@triton.jit(do_not_specialize=["num_targets", "filter_size"])
def direct_convolve_kernel(
    lattice_values, weight, neighbors, taps, divisors, bias, added, output, num_targets, filter_size,
    DIVIDED: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, STRIDE: tl.constexpr,
    OUT_CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, ORDER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The same, one input channel after another, for a block of all output channels."""
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
    total = finish(total, divisors, bias, added, target, inside, column, exists, DIVIDED, BIASED, ADDED, OUT_CHANNELS)
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
    _launch_matrix(output, halves, factors, neighbors, layout, None, after, "ieee")
    return output


def _launch_matrix(
    output: Tensor,
    lattice_values: Tensor,
    weight: Tensor,
    neighbors: Tensor,
    layout: tuple[int, int, int],
    taps: Tensor | None,
    after: After,
    precision: str,
) -> None:
    """Start `convolve_kernel`; the layout is the input channels of a group, the groups, and the order of the weight."""
    (filter_size, targets), (in_channels, groups, order) = neighbors.shape, layout
    out_channels, dtype = output.shape[1], lattice_values.dtype
    per_group = out_channels // groups
    tensors = (
        lattice_values, weight, neighbors, neighbors if taps is None else taps, *after.tensors(output), output
    )  # fmt: skip

    def start(tuned: Tuned) -> None:
        bound, blocks = tuned
        grid = -(-targets // blocks["BLOCK_M"]), -(-per_group // blocks["BLOCK_N"]) * groups, 1
        bound(grid, tensors, (targets, filter_size))

    scales, divisors, bias, added = after
    constants = (
        scales is not None, divisors is not None, bias is not None, added is not None, lattice_values.stride(0),
        out_channels, in_channels, per_group, precision, order,
    )  # fmt: skip
    deterministic = torch.are_deterministic_algorithms_enabled()
    key = ("convolve", constants, dtype, targets.bit_length(), output.get_device(), deterministic)
    tuned = CHOSEN.get(key)
    if tuned is None:
        shape = Shape("convolve", precision, dtype, in_channels, per_group, targets)
        tuned = choose(key, shape, convolve_kernel, dict(zip(_CONSTANTS, constants, strict=True)), start)
    start(tuned)


def _launch_direct(
    output: Tensor,
    lattice_values: Tensor,
    weight: Tensor,
    neighbors: Tensor,
    layout: tuple[int, int, int],
    taps: Tensor | None,
    after: After,
) -> None:
    """Start `direct_convolve_kernel`; the layout as above."""
    (filter_size, targets), out_channels, (_, *given) = neighbors.shape, output.shape[1], after
    switches = tuple(each is not None for each in given)
    bound, height, width = _bind_direct(switches, lattice_values.stride(0), out_channels, *layout)
    taps, others = neighbors if taps is None else taps, after.tensors(output)[1:]
    tensors = lattice_values, weight, neighbors, taps, *others, output
    bound((-(-targets // height), -(-out_channels // width), 1), tensors, (targets, filter_size))


@cache
def _bind_direct(
    switches: tuple[bool, ...], stride: int, out_channels: int, in_channels: int, groups: int, order: int
) -> tuple[Bound, int, int]:
    """The kernel, and the height and width of its tiles; the switches tell which of `After` there are."""
    width = min(power_of_two(out_channels), 64)
    height = max(min(1024 // width, 128), 16)
    divided, biased, added = switches
    bound = Bound(
        direct_convolve_kernel, DIVIDED=divided, BIASED=biased, ADDED=added, STRIDE=stride, OUT_CHANNELS=out_channels,
        IN=in_channels, OUT=out_channels // groups, ORDER=order, BLOCK_M=height, BLOCK_N=width,
    )  # fmt: skip
    return bound, height, width


@on_device
def convolve(lattice_values: Tensor, weight: Tensor, neighbors: Tensor, groups: int) -> Tensor:
    return convolve_rows(lattice_values, weight, neighbors, groups, lattice_values.shape[0])


@on_device
def convolve_and_add(
    lattice_values: Tensor, weight: Tensor, neighbors: Tensor, bias: Tensor | None, added: Tensor | None
) -> Tensor:
    """The convolution in one group with what is added to its results: see `FusedPrimitives`."""
    after = After(bias=None if bias is None else bias.contiguous(), added=None if added is None else added.contiguous())
    return _convolve(lattice_values, weight, neighbors, 1, lattice_values.shape[0], after)


def convolve_rows(lattice_values: Tensor, weight: Tensor, neighbors: Tensor, groups: int, rows: int) -> Tensor:
    """`convolve` of the first `rows`, on the current device."""
    if lattice_values.numel() == 0 or neighbors.numel() == 0 or weight.shape[2] == 0:
        return lattice_values.new_zeros(neighbors.shape[1], weight.shape[2])
    return _convolve(lattice_values, weight, neighbors, groups, rows, _NOTHING_AFTER)


def _convolve(
    lattice_values: Tensor, weight: Tensor, neighbors: Tensor, groups: int, rows: int, after: After
) -> Tensor:
    _, in_channels, out_channels = weight.shape
    targets, dtype = neighbors.shape[1], lattice_values.dtype
    lattice_values, neighbors = rows_contiguous(lattice_values), neighbors.contiguous()
    if not uses_matrix_units(dtype, in_channels, out_channels // groups):
        output, layout = lattice_values.new_empty(targets, out_channels), (in_channels, groups, AS_GIVEN.value)
        _launch_direct(output, lattice_values, weight.contiguous(), neighbors, layout, None, after)
        return output
    precision = float32_precision(dtype)
    if targets >= _WORTH_HALVING and groups == 1 and uses_halves(precision, in_channels, out_channels):
        ((halves, inverse),) = halve(lattice_values[:rows])
        return convolve_halves(halves, inverse, weight, neighbors, after=after)
    output = lattice_values.new_empty(targets, out_channels)
    weight, order = _weight_order(weight, dtype, targets)
    _launch_matrix(output, lattice_values, weight, neighbors, (in_channels, groups, order), None, after, precision)
    return output


def convolve_adjoint(
    gradient: Tensor,
    weight: Tensor,
    reverse: Tensor,
    opposite: Tensor,
    groups: int,
    density: Tensor | None,
    precision: str,
) -> Tensor:
    """The gradient of `convolve` with respect to the lattice values, over the `density [lattice_points]` of them.

    Args:
        gradient: with respect to the result, `[target lattice points, out_channels]`.
        weight: of the convolution.
        reverse: the table from source to target, `[filter_size, lattice_points]`.
        opposite: the tap opposite to each.
        groups: of the channels.
        density: what to divide the result by, if anything.
        precision: see `float32_precision`.
    """
    weight, reverse = weight.contiguous(), reverse.contiguous()
    _, in_channels, out_channels = weight.shape
    output = gradient.new_empty(reverse.shape[1], in_channels * groups)
    if gradient.numel() == 0 or output.numel() == 0:
        return output.zero_()
    layout, after = (out_channels // groups, groups, ADJOINT.value), After(divisors=density)
    if uses_matrix_units(gradient.dtype, layout[0], in_channels):
        _launch_matrix(output, gradient, weight, reverse, layout, opposite, after, precision)
    else:
        _launch_direct(output, gradient, weight, reverse, layout, opposite, after)
    return output
