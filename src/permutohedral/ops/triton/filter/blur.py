"""The separable Gaussian on the lattice: a pass for each axis, or for two at once.

Tiles are `[BLOCK lattice points, BLOCK_C channels]`. Accumulation is in float32 for values of 16 bits, in their own
dtype otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.triton.build.packed_table import count_rows
from permutohedral.ops.triton.runtime import Bound, Launch, on_device, rows_contiguous, start_all, tile

# blurring two axes at once reads more and starts less: below this many lattice points the starts count
_WORTH_SINGLE_AXES = 1 << 18


@triton.jit
def blur_along(
    lattice_values, axis_neighbors, row, axis, num_rows, present, channel,
    CHANNELS: tl.constexpr, LATTICE_STRIDE: tl.constexpr,
):  # fmt: skip
    """l + (l(. + e) + l(. - e)) / 2 along one axis at the rows that are `present`, zero at the others."""
    dtype: tl.constexpr = tl.float64 if lattice_values.dtype.element_ty == tl.float64 else tl.float32
    known = (channel < CHANNELS)[None, :]
    ahead = axis_neighbors + 2 * tl.cast(axis, tl.int64) * num_rows + row
    above = tl.load(ahead, mask=present, other=-1)
    below = tl.load(ahead + num_rows, mask=present, other=-1)
    start = lattice_values + channel[None, :]
    center = tl.load(start + row.to(tl.int64)[:, None] * LATTICE_STRIDE, mask=present[:, None] & known, other=0.0)
    up = tl.load(start + above.to(tl.int64)[:, None] * LATTICE_STRIDE, mask=(above >= 0)[:, None] & known, other=0.0)
    down = tl.load(start + below.to(tl.int64)[:, None] * LATTICE_STRIDE, mask=(below >= 0)[:, None] & known, other=0.0)
    return center.to(dtype) + 0.5 * (up.to(dtype) + down.to(dtype))


@triton.jit
def blur_tile(
    lattice_values, axis_neighbors, output, row, inside, channel, num_rows, axis, next_axis, TWO: tl.constexpr,
    CHANNELS: tl.constexpr, LATTICE_STRIDE: tl.constexpr,
):  # fmt: skip
    """One axis, or TWO at once: the second of what the first gives at a row and its two neighbors."""
    result = blur_along(
        lattice_values, axis_neighbors, row, axis, num_rows, inside, channel, CHANNELS, LATTICE_STRIDE
    )  # fmt: skip
    if TWO:
        ahead = axis_neighbors + 2 * tl.cast(next_axis, tl.int64) * num_rows + row
        above = tl.load(ahead, mask=inside, other=-1)
        below = tl.load(ahead + num_rows, mask=inside, other=-1)
        up = blur_along(
            lattice_values, axis_neighbors, above, axis, num_rows, above >= 0, channel, CHANNELS, LATTICE_STRIDE
        )  # fmt: skip
        down = blur_along(
            lattice_values, axis_neighbors, below, axis, num_rows, below >= 0, channel, CHANNELS, LATTICE_STRIDE
        )  # fmt: skip
        result += 0.5 * (up + down)
    place = output + row.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    tl.store(place, result.to(output.dtype.element_ty), mask=inside[:, None] & (channel < CHANNELS)[None, :])


@triton.jit(do_not_specialize=["num_rows", "axis", "next_axis"])
def blur_kernel(
    lattice_values, axis_neighbors, table, output, num_rows, axis, next_axis, COUNTED: tl.constexpr,
    TWO: tl.constexpr, CHANNELS: tl.constexpr, LATTICE_STRIDE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One pass over the rows; if COUNTED only over those that the `table` holds, as many as there are neighbors of."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    existing = count_rows(table, num_rows, COUNTED)
    blur_tile(
        lattice_values, axis_neighbors, output, row, row < existing, channel, existing, axis, next_axis, TWO, CHANNELS,
        LATTICE_STRIDE,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "first_programs", "first_rows", "first_axis", "first_next", "second_rows", "second_axis", "second_next",
    ]
)  # fmt: skip
def blur_both_kernel(
    first_values, first_neighbors, first_output, second_values, second_neighbors, second_output, first_programs,
    first_rows, first_axis, first_next, second_rows, second_axis, second_next, FIRST_TWO: tl.constexpr,
    SECOND_TWO: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A pass over the rows of two lattices, which are contiguous: the second one's programs follow the first one's."""
    program = tl.program_id(0)
    channel = tl.arange(0, BLOCK_C)
    if program < first_programs:
        row = program * BLOCK + tl.arange(0, BLOCK)
        blur_tile(
            first_values, first_neighbors, first_output, row, row < first_rows, channel, first_rows, first_axis,
            first_next, FIRST_TWO, CHANNELS, CHANNELS,
        )  # fmt: skip
    else:
        row = (program - first_programs) * BLOCK + tl.arange(0, BLOCK)
        blur_tile(
            second_values, second_neighbors, second_output, row, row < second_rows, channel, second_rows, second_axis,
            second_next, SECOND_TWO, CHANNELS, CHANNELS,
        )  # fmt: skip


@cache
def _bind_blur(counted: bool, two: bool, channels: int, lattice_stride: int) -> Bound:
    return Bound(
        blur_kernel, COUNTED=counted, TWO=two, CHANNELS=channels, LATTICE_STRIDE=lattice_stride, **tile(channels)
    )


def blur_passes(
    lattice_values: Tensor,
    axis_neighbors: Tensor,
    reverse: bool,
    table: Tensor | None = None,
    room: Sequence[Tensor] | None = None,
) -> tuple[list[Launch], Tensor]:
    """What `blur_rows` starts, and the memory it leaves the result in: the first of two tensors like `lattice_values`,
    of at least 32 bits, if these are given as `room`.
    """
    num, channels = lattice_values.shape
    axes = list(range(axis_neighbors.shape[0] // 2))
    if reverse:
        axes.reverse()
    at_once = 2 if num <= _WORTH_SINGLE_AXES else 1
    passes = [axes[first : first + at_once] for first in range(0, len(axes), at_once)]
    between = accumulation_dtype(lattice_values.dtype)
    # two buffers in turn, the result in the last of them
    if room is None:
        last = torch.empty(num, channels, dtype=lattice_values.dtype, device=lattice_values.device)
        spare = [last if between == last.dtype else torch.empty_like(last, dtype=between)]
        spare.append(torch.empty_like(spare[0]) if len(passes) > 1 else last)
    else:
        last, spare = room[0], [*room]
    launches: list[Launch] = []
    for number, axis in enumerate(passes, 1):
        output = last if number == len(passes) else spare[(len(passes) - number) % 2]
        bound = _bind_blur(table is not None, len(axis) > 1, channels, lattice_values.stride(0))
        tensors = lattice_values, axis_neighbors, axis_neighbors if table is None else table, output
        launches.append((bound, bound.tiles(num, channels), tensors, (num, axis[0], axis[-1])))
        lattice_values = output
    return launches, last


def join_passes(first: list[Launch], second: list[Launch]) -> list[Launch]:
    """The passes over two lattices of as many channels, at most WIDEST_TILE, each of both lattices together."""
    if len(first) > len(second):
        first, second = second, first
    joined = [_join(one, other) for one, other in zip(first, second, strict=False)]
    return joined + second[len(first) :]


def _join(first: Launch, second: Launch) -> Launch:
    (_, (programs, *_), (values, neighbors, _, output), sizes) = first
    (_, (more, *_), (other_values, other_neighbors, _, other_output), other_sizes) = second
    bound = _bind_both(sizes[1] != sizes[2], other_sizes[1] != other_sizes[2], values.shape[1])
    tensors = values, neighbors, output, other_values, other_neighbors, other_output
    return bound, (programs + more, 1, 1), tensors, (programs, *sizes, *other_sizes)


@cache
def _bind_both(first_two: bool, second_two: bool, channels: int) -> Bound:
    return Bound(blur_both_kernel, FIRST_TWO=first_two, SECOND_TWO=second_two, CHANNELS=channels, **tile(channels))


def blur_rows(lattice_values: Tensor, axis_neighbors: Tensor, reverse: bool, table: Tensor | None) -> Tensor:
    """`blur`; with the storage of a `PackedTable` only the rows that it holds, if there are no more than have room."""
    launches, blurred = blur_passes(lattice_values, axis_neighbors, reverse, table)
    start_all(launches)
    return blurred


@on_device
def blur(lattice_values: Tensor, axis_neighbors: Tensor, reverse: bool) -> Tensor:
    lattice_values, axis_neighbors = rows_contiguous(lattice_values), axis_neighbors.contiguous()
    if lattice_values.numel() == 0:
        return lattice_values.clone()
    return blur_rows(lattice_values, axis_neighbors, reverse, None)
