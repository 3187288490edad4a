"""Splat without atomic additions: the points that meet at each lattice point, listed once, are then gathered.

Listing them costs as much as splatting some 20 channels. It pays for many channels, for a lattice on which there is
more than one splat, and where results must be repeatable to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.triton.runtime import (
    WIDEST_TILE,
    Bound,
    Launch,
    cdiv,
    launch,
    power_of_two,
    rows_contiguous,
    start_all,
    stream_of,
)
from permutohedral.ops.triton.zeros import zeros
from permutohedral.simplices import Simplices

# corners of a program
_TILE = 1024
_ROW_BLOCK = 1024
# lattice points with more points than this are summed one after another, each by all threads of a program
_TOGETHER = 16
# entries of one lattice point that are read at once, where most have fewer
_ENTRIES = 16
# fewer points, or fewer channels, are added before the points at each lattice point are listed
_MANY_POINTS, _MANY_CHANNELS = 1 << 16, 32


class Incidence(NamedTuple):
    """Which points have which lattice point as a corner.

    Attributes:
        starts: `[lattice_points]`, where the entries of each lattice point begin.
        counts: how many they are.
        points: int32, the points of all entries; or int64, with the bits of their weights above them.
        weights: their weights at the lattice point; the points again, if these have them.
    """

    starts: Tensor
    counts: Tensor
    points: Tensor
    weights: Tensor


@triton.jit
def corner_tile(num_points, CORNERS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Corners `[ROWS, 1]`, points `[1, BLOCK]`, and which pairs there are.

    A tile of them is read before anything is written: in a loop over corners each would wait for the one before.
    """
    corner = tl.arange(0, ROWS).to(tl.int64)[:, None]
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    return corner, point, (corner < CORNERS) & (point < num_points)


@triton.jit(do_not_specialize=["num_points", "num_rows", "corner_stride"])
def count_corners_kernel(
    vertices, counts, ranks, num_points, num_rows, corner_stride,
    VERTEX_STRIDE: tl.constexpr, CORNERS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Number the entries of every lattice point, whose number is left in `counts`."""
    corner, point, inside = corner_tile(num_points, CORNERS, ROWS, BLOCK)
    vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * corner_stride, mask=inside, other=0)
    rank = tl.atomic_add(counts + vertex, 1, mask=inside & (vertex < num_rows), sem="relaxed")
    tl.store(ranks + corner * num_points + point, rank, mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def place_rows_kernel(counts, starts, num_rows, BLOCK: tl.constexpr):
    """Give the entries of every lattice point a place, those of a block together; the next free one is the last of the
    `counts`.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    count = tl.load(counts + row, mask=row < num_rows, other=0)
    first = tl.atomic_add(counts + num_rows, tl.sum(count, axis=0), sem="relaxed")
    tl.store(starts + row, first + tl.cumsum(count, axis=0) - count, mask=row < num_rows)


@triton.jit
def store_entry(points, weights, entry, point, weight, inside):
    """Write points and their weights to their places in a list."""
    if points.dtype.element_ty == tl.int64:
        # such stores are scattered: one is half as expensive as two
        bits = weight.to(tl.int32, bitcast=True).to(tl.int64)
        tl.store(points + entry, (bits << 32) | point, mask=inside)
    else:
        tl.store(points + entry, point.to(tl.int32), mask=inside)
        tl.store(weights + entry, weight, mask=inside)


@triton.jit(do_not_specialize=["num_points", "num_rows", "vertex_corner_stride", "weight_corner_stride"])
def list_corners_kernel(
    vertices, barycentric, starts, ranks, points, weights, num_points, num_rows, vertex_corner_stride,
    weight_corner_stride, VERTEX_STRIDE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr, CORNERS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write every corner of every point to its place among the entries of its lattice point."""
    corner, point, inside = corner_tile(num_points, CORNERS, ROWS, BLOCK)
    vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=0)
    weight = tl.load(barycentric + point * WEIGHT_STRIDE + corner * weight_corner_stride, mask=inside, other=0.0)
    rank = tl.load(ranks + corner * num_points + point, mask=inside, other=0)
    inside = inside & (vertex < num_rows)
    entry = tl.load(starts + vertex, mask=inside, other=0) + rank
    store_entry(points, weights, entry, point, weight, inside)


@triton.jit
def load_rows(values, point, here, channel, CHANNELS: tl.constexpr, STRIDE: tl.constexpr, DTYPE: tl.constexpr):
    """The values `[entries, channels]` of some points, ones where there is no channel."""
    real = here[:, None] & (channel < CHANNELS)[None, :]
    place = values + point.to(tl.int64)[:, None] * STRIDE + channel[None, :]
    return tl.load(place, mask=real, other=1.0).to(DTYPE)


@triton.jit
def load_entries(points, weights, entry, here, DTYPE: tl.constexpr):
    """The points of some entries, and their weights: zero where there is no entry."""
    found = tl.load(points + entry, mask=here, other=0)
    if points.dtype.element_ty == tl.int64:
        return found.to(tl.int32), (found >> 32).to(tl.int32).to(tl.float32, bitcast=True).to(DTYPE)
    else:
        return found, tl.load(weights + entry, mask=here, other=0.0).to(DTYPE)


@triton.jit
def gather_tile(
    values, starts, counts, points, weights, output, density, num_rows, program, column,
    DIVIDED: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, VALUE_STRIDE: tl.constexpr,
    TOGETHER: tl.constexpr, ENTRIES: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sum the entries of every lattice point; where WIDTH exceeds CHANNELS, a channel of ones with them.

    The sums are DIVIDED by the density, the sum of the weights where that is not zero, which is kept. The first
    TOGETHER entries of all lattice points of a program are added side by side.
    """
    first_row = program.to(tl.int64) * BLOCK
    row = first_row + tl.arange(0, BLOCK)
    channel = column * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = row < num_rows
    begin = tl.load(starts + row, mask=inside, other=0)
    count = tl.load(counts + row, mask=inside, other=0).to(tl.int32)
    longest = tl.max(count, axis=0)
    dtype: tl.constexpr = tl.float64 if values.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros([BLOCK, BLOCK_C], dtype)
    mass = tl.zeros([BLOCK], dtype)
    for step in range(tl.minimum(longest, TOGETHER)):
        point, weight = load_entries(points, weights, begin + step, step < count, dtype)
        total += weight[:, None] * load_rows(values, point, step < count, channel, CHANNELS, VALUE_STRIDE, dtype)
        mass += weight
    if longest > TOGETHER:
        for place in range(BLOCK):
            this = tl.minimum(first_row + place, num_rows - 1)
            start = tl.load(starts + this)
            end = start + tl.load(counts + this)
            rest = tl.zeros([ENTRIES, BLOCK_C], dtype)
            rest_mass = tl.zeros([ENTRIES], dtype)
            entry = start + TOGETHER + tl.arange(0, ENTRIES)
            point, weight = load_entries(points, weights, entry, entry < end, dtype)
            for _ in range(start + TOGETHER, end, ENTRIES):
                value = load_rows(values, point, entry < end, channel, CHANNELS, VALUE_STRIDE, dtype)
                rest_mass += weight
                # the next points are on their way while these are waited for
                entry += ENTRIES
                point, next_weight = load_entries(points, weights, entry, entry < end, dtype)
                rest += weight[:, None] * value
                weight = next_weight
            chosen = tl.arange(0, BLOCK) == place
            total += tl.where(chosen[:, None], tl.sum(rest, axis=0)[None, :], 0.0)
            mass += tl.where(chosen, tl.sum(rest_mass, axis=0), 0.0)
    if DIVIDED:
        mass = tl.where(mass > 0, mass, 1.0)
        total = total / mass[:, None]
        if column == 0:
            tl.store(density + row, mass, mask=inside)
    kept = inside[:, None] & (channel < WIDTH)[None, :]
    tl.store(output + row[:, None] * WIDTH + channel[None, :], total.to(output.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["num_rows"])
def gather_points_kernel(
    values, starts, counts, points, weights, output, density, num_rows,
    DIVIDED: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, VALUE_STRIDE: tl.constexpr,
    TOGETHER: tl.constexpr, ENTRIES: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    gather_tile(
        values, starts, counts, points, weights, output, density, num_rows, tl.program_id(0), tl.program_id(1),
        DIVIDED, CHANNELS, WIDTH, VALUE_STRIDE, TOGETHER, ENTRIES, BLOCK, BLOCK_C,
    )  # fmt: skip


@triton.jit(do_not_specialize=["first_programs", "first_rows", "second_rows"])
def gather_both_kernel(
    values, first_starts, first_counts, first_points, first_weights, first_output, second_starts, second_counts,
    second_points, second_weights, second_output, first_programs, first_rows, second_rows, CHANNELS: tl.constexpr,
    TOGETHER: tl.constexpr, ENTRIES: tl.constexpr, FIRST_BLOCK: tl.constexpr, SECOND_BLOCK: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The same points to the rows of two lattices: the second one's programs follow the first one's."""
    program = tl.program_id(0)
    if program < first_programs:
        gather_tile(
            values, first_starts, first_counts, first_points, first_weights, first_output, first_output, first_rows,
            program, 0, False, CHANNELS, CHANNELS, CHANNELS, TOGETHER, ENTRIES, FIRST_BLOCK, BLOCK_C,
        )  # fmt: skip
    else:
        gather_tile(
            values, second_starts, second_counts, second_points, second_weights, second_output, second_output,
            second_rows, program - first_programs, 0, False, CHANNELS, CHANNELS, CHANNELS, TOGETHER, ENTRIES,
            SECOND_BLOCK, BLOCK_C,
        )  # fmt: skip


def list_corners(vertices: Tensor, barycentric: Tensor, num_rows: int) -> Incidence:
    """The points at each of the first `num_rows` lattice points, in any order; in that of the points if torch's mode is
    deterministic.

    Args:
        vertices: int32 `[points, corners]`.
        barycentric: `[points, corners]`.
        num_rows: corners that are not among so many are left out.
    """
    (num_points, corners), device = vertices.shape, vertices.device
    entries, place_dtype = num_points * corners, torch.int32 if vertices.numel() < 1 << 31 else torch.int64
    if torch.are_deterministic_algorithms_enabled():
        ordered, order = torch.sort(vertices.reshape(-1), stable=True)
        rows = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
        starts = torch.searchsorted(ordered, rows, out_int32=place_dtype == torch.int32)
        return Incidence(starts[:-1], starts.diff(), (order // corners).int(), barycentric.reshape(-1)[order])
    # behind them, the first place that is free
    counts = zeros(num_rows + 1, dtype=place_dtype, device=device)
    ranks = torch.empty(entries, dtype=place_dtype, device=device)
    starts = torch.empty(num_rows, dtype=place_dtype, device=device)
    together = barycentric.dtype == torch.float32
    points = torch.empty(entries, dtype=torch.int64 if together else torch.int32, device=device)
    weights = points if together else torch.empty(entries, dtype=barycentric.dtype, device=device)
    height = power_of_two(corners)
    block = max(_TILE // height, 32)
    grid, shape = (cdiv(num_points, block),), {"CORNERS": corners, "ROWS": height, "BLOCK": block}
    launch(
        count_corners_kernel, grid, (vertices, counts, ranks), (num_points, num_rows, vertices.stride(1)),
        VERTEX_STRIDE=vertices.stride(0), **shape,
    )  # fmt: skip
    launch(place_rows_kernel, (cdiv(num_rows, _ROW_BLOCK),), (counts, starts), (num_rows,), BLOCK=_ROW_BLOCK)
    launch(
        list_corners_kernel, grid, (vertices, barycentric, starts, ranks, points, weights),
        (num_points, num_rows, vertices.stride(1), barycentric.stride(1)),
        VERTEX_STRIDE=vertices.stride(0), WEIGHT_STRIDE=barycentric.stride(0), **shape,
    )  # fmt: skip
    return Incidence(starts, counts, points, weights)


# The list of a lattice, and for which stream and mode of torch it was made: as long as the lattice lives.
_LISTED: WeakKeyDictionary[Simplices, tuple[tuple[int, bool], Incidence]] = WeakKeyDictionary()


def list_of(simplices: Simplices) -> Incidence:
    """`list_corners` of all points of a lattice, which keeps it: layers and steps that share one list its points once.

    Another stream does not wait until it is written, and makes its own.
    """
    vertices, barycentric, rows = simplices.vertices, simplices.barycentric, simplices.keys.shape[0]
    on_gpu = vertices.is_cuda
    if simplices.bounded or (on_gpu and torch.cuda.is_current_stream_capturing()):
        # a CUDA graph may write such tables anew
        return list_corners(vertices, barycentric, rows)
    stream = stream_of(vertices.get_device()) if on_gpu else 0
    made_for, known = (stream, torch.are_deterministic_algorithms_enabled()), _LISTED.get(simplices)
    if known is None or known[0] != made_for:
        # it may serve where gradients are wanted
        with torch.inference_mode(False), torch.no_grad():
            known = _LISTED[simplices] = made_for, list_corners(vertices, barycentric, rows)
    return known[1]


def is_worth_listing(points: int, channels: int) -> bool:
    """Whether gathering points is faster than adding them, or has to be repeatable to the last bit."""
    if points >= _MANY_POINTS and channels >= _MANY_CHANNELS:
        return True
    return points > 0 and torch.are_deterministic_algorithms_enabled()


def _gather_blocks(crowded: int, block_c: int, elements: int = 1024) -> dict[str, int]:
    """The shape of tiles, and warps for each; `elements` are read at once where lattice points are crowded."""
    if not crowded:
        return {"TOGETHER": _TOGETHER, "ENTRIES": _ENTRIES, "BLOCK": max(1024 // block_c, 16), "num_warps": 2}
    # fastest on an H200: for lattice points whose entries are read at once, and for others
    entries = min(elements // block_c, 128)
    return {"TOGETHER": 0, "ENTRIES": entries, "BLOCK": 4 if crowded == 1 else 1, "num_warps": 1}


@cache
def _bind_gather(divided: bool, channels: int, width: int, value_stride: int, crowded: int) -> Bound:
    block_c = min(power_of_two(width), WIDEST_TILE)
    return Bound(
        gather_points_kernel, DIVIDED=divided, CHANNELS=channels, WIDTH=width, VALUE_STRIDE=value_stride,
        BLOCK_C=block_c, **_gather_blocks(crowded, block_c),
    )  # fmt: skip


@cache
def _bind_gather_both(channels: int, first_crowded: int, second_crowded: int) -> tuple[Bound, int, int]:
    """And the rows of a program, on either lattice."""
    block_c = power_of_two(channels)
    # a kernel of two loops has fewer registers for each
    first, second = (_gather_blocks(crowded, block_c, 512) for crowded in (first_crowded, second_crowded))
    rows = first.pop("BLOCK"), second["BLOCK"]
    bound = Bound(
        gather_both_kernel, CHANNELS=channels, FIRST_BLOCK=rows[0], SECOND_BLOCK=rows[1], BLOCK_C=block_c, **first
    )
    return bound, *rows


def _crowdedness(incidence: Incidence, rows: int) -> int:
    mean = incidence.points.shape[0] // rows
    return (mean > _TOGETHER) + (mean > 2 * _TOGETHER)


def gather_into(output: Tensor, values: Tensor, incidence: Incidence, density: Tensor | None = None) -> Launch:
    """What sums the entries of every lattice point into `output [lattice_points, channels]`, which is not empty.

    Args:
        output: one more channel than the values have is that of ones.
        values: `[points, channels]`, its rows contiguous.
        incidence: of the points.
        density: what gets the density that the sums are then divided by.
    """
    rows, width = output.shape
    crowded = _crowdedness(incidence, rows)
    bound = _bind_gather(density is not None, values.shape[1], width, values.stride(0), crowded)
    tensors = (values, *incidence, output, output if density is None else density)
    return bound, bound.tiles(rows, width), tensors, (rows,)


def gather_into_both(outputs: Sequence[Tensor], values: Tensor, incidences: Sequence[Incidence]) -> list[Launch]:
    """What sums the same contiguous values, at most WIDEST_TILE channels, into rows of two lattices."""
    crowded = [_crowdedness(each, len(rows)) for each, rows in zip(incidences, outputs, strict=True)]
    if bool(crowded[0]) != bool(crowded[1]):
        # in programs of another shape
        return [gather_into(*each) for each in zip(outputs, (values, values), incidences, strict=True)]
    # programs that may take long begin first
    first, second = (1, 0) if crowded[0] < crowded[1] else (0, 1)
    bound, first_block, second_block = _bind_gather_both(values.shape[1], crowded[first], crowded[second])
    rows, more = outputs[first].shape[0], outputs[second].shape[0]
    programs = cdiv(rows, first_block)
    tensors = (values, *incidences[first], outputs[first], *incidences[second], outputs[second])
    return [(bound, (programs + cdiv(more, second_block), 1, 1), tensors, (programs, rows, more))]


def splat_listed(values: Tensor, incidence: Incidence, dtype: torch.dtype, ones: int = 0) -> Tensor:
    """Sums `[lattice_points, channels + ones]` in `dtype`, the last of them from a channel of ones."""
    rows = incidence.starts.shape[0]
    output = torch.empty(rows, values.shape[1] + ones, dtype=dtype, device=values.device)
    if output.numel():
        start_all([gather_into(output, rows_contiguous(values), incidence)])
    return output


def splat_listed_with_density(values: Tensor, incidence: Incidence) -> tuple[Tensor, Tensor]:
    """Lattice values `[lattice_points, channels]` divided by their density, and the density: one where it was zero."""
    rows = incidence.starts.shape[0]
    output = torch.empty(rows, values.shape[1], dtype=values.dtype, device=values.device)
    density = torch.empty(rows, dtype=accumulation_dtype(values.dtype), device=values.device)
    if rows:
        start_all([gather_into(output, rows_contiguous(values), incidence, density)])
    return output, density
