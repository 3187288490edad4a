"""The separable Gaussian on the lattice: one pass per axis, or per pair of axes.

Tiles are `[BLOCK lattice points, BLOCK_C channels]`. Accumulation is in float32 for values of 16 bits, in their own
dtype otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.triton.build.hash_table import count_rows
from permutohedral.ops.triton.kernel import Launch, kernel, launch_all, on_device, rows_contiguous, tile

# blurring two axes per pass reads more and launches less: below this many lattice points the launches count
_WORTH_SINGLE_AXES = 1 << 18


@triton.jit
def blur_along(
    lattice_values, axis_neighbors, row, axis, num_rows, present, channel,
    CHANNELS: tl.constexpr, LATTICE_STRIDE: tl.constexpr,
):  # fmt: skip
    """Return l + (l(. + e) + l(. - e)) / 2 along one axis at the rows that are `present`, zero at the others."""
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
    """Blur along one axis, or along TWO: the second reads the first at a row and its two neighbors."""
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


@kernel(sizes=["num_rows", "axis", "next_axis"])
def blur_kernel(
    lattice_values, axis_neighbors, table, output, num_rows, axis, next_axis, COUNTED: tl.constexpr,
    TWO: tl.constexpr, CHANNELS: tl.constexpr, LATTICE_STRIDE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Blur all rows; with COUNTED those that the `table` holds, which are the columns of the neighbors."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    existing = count_rows(table, num_rows, COUNTED)
    blur_tile(
        lattice_values, axis_neighbors, output, row, row < existing, channel, existing, axis, next_axis, TWO, CHANNELS,
        LATTICE_STRIDE,
    )  # fmt: skip


@kernel(sizes=[
    "first_programs", "first_rows", "first_axis", "first_next", "second_rows", "second_axis", "second_next",
])  # fmt: skip
def blur_both_kernel(
    first_values, first_neighbors, first_output, second_values, second_neighbors, second_output, first_programs,
    first_rows, first_axis, first_next, second_rows, second_axis, second_next, FIRST_TWO: tl.constexpr,
    SECOND_TWO: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Blur the contiguous rows of two lattices: programs of the second follow those of the first."""
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


def blur_passes(
    lattice_values: Tensor,
    axis_neighbors: Tensor,
    reverse: bool,
    table: Tensor | None = None,
    buffers: Sequence[Tensor] | None = None,
) -> tuple[list[Launch], Tensor]:
    """Return the launches of `blur_rows` and the tensor with the result.

    The result is the first of two tensors like `lattice_values`, of at least 32 bits, if these are given as `buffers`.
    """
    num, channels = lattice_values.shape
    axes = list(range(axis_neighbors.shape[0] // 2))
    if reverse:
        axes.reverse()
    per_pass = 2 if num <= _WORTH_SINGLE_AXES else 1
    passes = [axes[first : first + per_pass] for first in range(0, len(axes), per_pass)]
    between = accumulation_dtype(lattice_values.dtype)
    # two buffers in turn, the result in the last of them
    if buffers is None:
        last = torch.empty(num, channels, dtype=lattice_values.dtype, device=lattice_values.device)
        spare = [last if between == last.dtype else torch.empty_like(last, dtype=between)]
        spare.append(torch.empty_like(spare[0]) if len(passes) > 1 else last)
    else:
        last, spare = buffers[0], [*buffers]
    launches: list[Launch] = []
    for number, axis in enumerate(passes, 1):
        output = last if number == len(passes) else spare[(len(passes) - number) % 2]
        variant = blur_kernel[(table is not None, len(axis) > 1, channels, lattice_values.stride(0), *tile(channels))]
        tensors = lattice_values, axis_neighbors, axis_neighbors if table is None else table, output
        launches.append((variant, variant.tiles(num, channels), tensors, (num, axis[0], axis[-1])))
        lattice_values = output
    return launches, last


def join_passes(first: list[Launch], second: list[Launch]) -> list[Launch]:
    """Join the passes over two lattices with the same channels, at most WIDEST_TILE, into common launches."""
    if len(first) > len(second):
        first, second = second, first
    joined = [_join(one, other) for one, other in zip(first, second, strict=False)]
    return joined + second[len(first) :]


def _join(first: Launch, second: Launch) -> Launch:
    (_, (programs, *_), (values, neighbors, _, output), sizes) = first
    (_, (more, *_), (other_values, other_neighbors, _, other_output), other_sizes) = second
    channels = values.shape[1]
    variant = blur_both_kernel[(sizes[1] != sizes[2], other_sizes[1] != other_sizes[2], channels, *tile(channels))]
    tensors = values, neighbors, output, other_values, other_neighbors, other_output
    return variant, (programs + more, 1, 1), tensors, (programs, *sizes, *other_sizes)


def blur_rows(lattice_values: Tensor, axis_neighbors: Tensor, reverse: bool, table: Tensor | None) -> Tensor:
    """Run `blur`; with the storage of a `PackedTable` only its rows, if there is room for all of them."""
    launches, blurred = blur_passes(lattice_values, axis_neighbors, reverse, table)
    launch_all(launches)
    return blurred


@on_device
def blur(lattice_values: Tensor, axis_neighbors: Tensor, reverse: bool) -> Tensor:
    lattice_values, axis_neighbors = rows_contiguous(lattice_values), axis_neighbors.contiguous()
    if lattice_values.numel() == 0:
        return lattice_values.clone()
    return blur_rows(lattice_values, axis_neighbors, reverse, None)
