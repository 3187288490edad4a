"""Splat without atomic additions: list the points at each lattice point once, then gather them.

Listing costs as much as splatting some 20 channels. It pays for many channels, for a lattice with more than one splat,
and if results must be repeatable to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.ops.simplices import Simplices
from permutohedral.ops.triton.kernel import (
    WIDEST_TILE,
    Launch,
    cdiv,
    kernel,
    launch_all,
    power_of_two,
    rows_contiguous,
    stream_of,
    zeros,
)

# corners of a program
_TILE = 1024
_ROW_BLOCK = 1024
# lattice points with more points than this are summed one after another, each by all threads of a program
_TOGETHER = 16
# entries of one lattice point that are read together, if most have fewer
_ENTRIES = 16
# fewer points, or fewer channels, are added in less time than listing takes
_MANY_POINTS, _MANY_CHANNELS = 1 << 16, 32
# torch.sort takes no more numbers on a GPU
_MOST_SORTED = (1 << 31) - 1


class Incidence(NamedTuple):
    """The points that have each lattice point as a corner.

    Attributes:
        starts: `[lattice_points]`, where the entries of each lattice point begin.
        counts: their number.
        points: int32, the points of all entries; or int64, with the bits of their weights above them.
        weights: their weights at the lattice point; `points` again if those hold them.
    """

    starts: Tensor
    counts: Tensor
    points: Tensor
    weights: Tensor


@triton.jit
def corner_tile(num_points, CORNERS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Return corners `[ROWS, 1]`, points `[1, BLOCK]`, and which pairs exist.

    A whole tile is read before anything is written: in a loop over corners each would wait for the one before.
    """
    corner = tl.arange(0, ROWS).to(tl.int64)[:, None]
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    return corner, point, (corner < CORNERS) & (point < num_points)


@kernel(sizes=["num_points", "num_rows", "corner_stride"])
def count_corners_kernel(
    vertices, counts, ranks, num_points, num_rows, corner_stride,
    VERTEX_STRIDE: tl.constexpr, CORNERS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Assign numbers to the entries of every lattice point, and count them."""
    corner, point, inside = corner_tile(num_points, CORNERS, ROWS, BLOCK)
    vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * corner_stride, mask=inside, other=0)
    rank = tl.atomic_add(counts + vertex, 1, mask=inside & (vertex < num_rows), sem="relaxed")
    tl.store(ranks + corner * num_points + point, rank, mask=inside)


@kernel(sizes=["num_rows"])
def place_rows_kernel(counts, starts, num_rows, BLOCK: tl.constexpr):
    """Give the entries of every lattice point a place; the last of the `counts` is the next free place."""
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


@kernel(sizes=["num_points", "num_rows", "vertex_corner_stride", "weight_corner_stride"])
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
    """Load values `[entries, channels]` of points, ones where there is no channel."""
    real = here[:, None] & (channel < CHANNELS)[None, :]
    place = values + point.to(tl.int64)[:, None] * STRIDE + channel[None, :]
    return tl.load(place, mask=real, other=1.0).to(DTYPE)


@triton.jit
def load_entries(points, weights, entry, here, DTYPE: tl.constexpr):
    """Load the points of entries and their weights, zero where there is no entry."""
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
    """Sum the entries of every lattice point; if WIDTH exceeds CHANNELS, the last channel is one everywhere.

    With DIVIDED the sums are divided by the density, the sum of the weights or one for zero, which is stored. The first
    TOGETHER entries of all lattice points of a program are added in parallel.
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
                # load the next points before these values are used
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


@kernel(sizes=["num_rows"], options=["num_warps"])
def gather_points_kernel(
    values, starts, counts, points, weights, output, density, num_rows,
    DIVIDED: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, VALUE_STRIDE: tl.constexpr,
    TOGETHER: tl.constexpr, ENTRIES: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    gather_tile(
        values, starts, counts, points, weights, output, density, num_rows, tl.program_id(0), tl.program_id(1),
        DIVIDED, CHANNELS, WIDTH, VALUE_STRIDE, TOGETHER, ENTRIES, BLOCK, BLOCK_C,
    )  # fmt: skip


@kernel(sizes=["first_programs", "first_rows", "second_rows"], options=["num_warps"])
def gather_both_kernel(
    values, first_starts, first_counts, first_points, first_weights, first_output, second_starts, second_counts,
    second_points, second_weights, second_output, first_programs, first_rows, second_rows, CHANNELS: tl.constexpr,
    TOGETHER: tl.constexpr, ENTRIES: tl.constexpr, FIRST_BLOCK: tl.constexpr, SECOND_BLOCK: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gather the same points on two lattices: programs of the second follow those of the first."""
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


def place_rows(counts: Tensor, starts: Tensor) -> Launch:
    """Return the launch of `place_rows_kernel`."""
    rows = starts.shape[0]
    return place_rows_kernel[_ROW_BLOCK,], (cdiv(rows, _ROW_BLOCK), 1, 1), (counts, starts), (rows,)


def build_incidence(vertices: Tensor, barycentric: Tensor, num_rows: int) -> Incidence:
    """List the points at each of the first `num_rows` lattice points; in their order in deterministic mode.

    Args:
        vertices: int32 `[points, corners]`.
        barycentric: `[points, corners]`.
        num_rows: number of lattice points; other corners are left out.
    """
    (num_points, corners), device = vertices.shape, vertices.device
    entries, place_dtype = num_points * corners, torch.int32 if vertices.numel() < 1 << 31 else torch.int64
    if torch.are_deterministic_algorithms_enabled():
        if entries > _MOST_SORTED:
            raise InputError(
                f"points must have fewer than {_MOST_SORTED:,} corners in deterministic mode, got {num_points:,} with "
                f"{corners} each; filter parts of them, or pass False to torch.use_deterministic_algorithms"
            )
        ordered, order = torch.sort(vertices.reshape(-1), stable=True)
        rows = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
        starts = torch.searchsorted(ordered, rows, out_int32=place_dtype == torch.int32)
        return Incidence(starts[:-1], starts.diff(), (order // corners).int(), barycentric.reshape(-1)[order])
    # the last count is the first free place
    counts = zeros(num_rows + 1, dtype=place_dtype, device=device)
    ranks = torch.empty(entries, dtype=place_dtype, device=device)
    starts = torch.empty(num_rows, dtype=place_dtype, device=device)
    together = barycentric.dtype == torch.float32
    points = torch.empty(entries, dtype=torch.int64 if together else torch.int32, device=device)
    weights = points if together else torch.empty(entries, dtype=barycentric.dtype, device=device)
    height = power_of_two(corners)
    block = max(_TILE // height, 32)
    grid, shape, (stride, corner_stride) = (cdiv(num_points, block), 1, 1), (corners, height, block), vertices.stride()
    sizes = num_points, num_rows, corner_stride
    count_corners_kernel[(stride, *shape)](grid, (vertices, counts, ranks), sizes)
    launch_all([place_rows(counts, starts)])
    tensors = vertices, barycentric, starts, ranks, points, weights
    list_corners_kernel[(stride, barycentric.stride(0), *shape)](grid, tensors, (*sizes, barycentric.stride(1)))
    return Incidence(starts, counts, points, weights)


# the list of a lattice, with the stream and the mode of torch it was made for, as long as the lattice lives
_LISTED: WeakKeyDictionary[Simplices, tuple[tuple[int, bool], Incidence]] = WeakKeyDictionary()


def cached_incidence(simplices: Simplices) -> Incidence:
    """Return `build_incidence` of all points of a lattice, cached with the lattice for all layers and steps.

    Another stream would not wait until it is written, and makes another list.
    """
    vertices, barycentric, rows = simplices.vertices, simplices.barycentric, simplices.keys.shape[0]
    on_gpu = vertices.is_cuda
    if simplices.bounded or (on_gpu and torch.cuda.is_current_stream_capturing()):
        # a CUDA graph may overwrite such tables
        return build_incidence(vertices, barycentric, rows)
    stream = stream_of(vertices.get_device()) if on_gpu else 0
    made_for, known = (stream, torch.are_deterministic_algorithms_enabled()), _LISTED.get(simplices)
    if known is None or known[0] != made_for:
        # later calls may need gradients
        with torch.inference_mode(False), torch.no_grad():
            known = _LISTED[simplices] = made_for, build_incidence(vertices, barycentric, rows)
    return known[1]


def prefers_gather(points: int, channels: int) -> bool:
    """Return whether gathering is faster than adding, or required to be repeatable to the last bit."""
    if points >= _MANY_POINTS and channels >= _MANY_CHANNELS:
        return True
    return points > 0 and torch.are_deterministic_algorithms_enabled()


def _gather_blocks(density_class: int, block_c: int, elements: int = 1024) -> tuple[int, int, int, int]:
    """Return TOGETHER, ENTRIES, BLOCK and warps; dense lattice points read `elements` together."""
    if not density_class:
        return _TOGETHER, _ENTRIES, max(1024 // block_c, 16), 2
    # fastest on an H200: for lattice points whose entries are read together, and for others
    return 0, min(elements // block_c, 128), 4 if density_class == 1 else 1, 1


def _density_class(incidence: Incidence, rows: int) -> int:
    """Return 0, 1 or 2 for few, more and many entries per lattice point."""
    entries_per_row = incidence.points.shape[0] // rows
    return (entries_per_row > _TOGETHER) + (entries_per_row > 2 * _TOGETHER)


def gather_into(output: Tensor, values: Tensor, incidence: Incidence, density: Tensor | None = None) -> Launch:
    """Return the launch that sums the entries of every lattice point into `output`, which is not empty.

    Args:
        output: `[lattice_points, channels]`; one more channel than the values have is that of ones.
        values: `[points, channels]`, its rows contiguous.
        incidence: of the points.
        density: gets the density that the sums are then divided by.
    """
    (rows, width), divided = output.shape, density is not None
    block_c = min(power_of_two(width), WIDEST_TILE)
    together, entries, block, warps = _gather_blocks(_density_class(incidence, rows), block_c)
    variant = gather_points_kernel[
        divided, values.shape[1], width, values.stride(0), together, entries, block, block_c, warps
    ]  # fmt: skip
    tensors = (values, *incidence, output, output if density is None else density)
    return variant, variant.tiles(rows, width), tensors, (rows,)


def gather_into_both(outputs: Sequence[Tensor], values: Tensor, incidences: Sequence[Incidence]) -> list[Launch]:
    """Return the launches that sum the same contiguous values, at most WIDEST_TILE channels, on two lattices."""
    classes = [_density_class(each, len(rows)) for each, rows in zip(incidences, outputs, strict=True)]
    if bool(classes[0]) != bool(classes[1]):
        # their programs have different shapes
        return [gather_into(*each) for each in zip(outputs, (values, values), incidences, strict=True)]
    # programs that may take long begin first
    first, second = (1, 0) if classes[0] < classes[1] else (0, 1)
    channels, block_c = values.shape[1], power_of_two(values.shape[1])
    # a kernel of two loops has fewer registers for each
    together, entries, first_block, warps = _gather_blocks(classes[first], block_c, 512)
    second_block = _gather_blocks(classes[second], block_c, 512)[2]
    variant = gather_both_kernel[channels, together, entries, first_block, second_block, block_c, warps]
    rows, more = outputs[first].shape[0], outputs[second].shape[0]
    programs = cdiv(rows, first_block)
    tensors = (values, *incidences[first], outputs[first], *incidences[second], outputs[second])
    return [(variant, (programs + cdiv(more, second_block), 1, 1), tensors, (programs, rows, more))]


def splat_listed(
    values: Tensor, incidence: Incidence, dtype: torch.dtype, ones: int = 0, density: Tensor | None = None
) -> Tensor:
    """Return sums `[lattice_points, channels + ones]` in `dtype`, the last of them of a channel of ones.

    They are divided by their density, which is written to `density [lattice_points]` if that is given, one for zero.
    """
    rows = incidence.starts.shape[0]
    output = torch.empty(rows, values.shape[1] + ones, dtype=dtype, device=values.device)
    if output.numel():
        launch_all([gather_into(output, rows_contiguous(values), incidence, density)])
    return output
