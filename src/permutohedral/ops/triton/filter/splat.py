"""Splat: add the points to the corners of their simplices.

Atomic additions limit its speed. If many points follow each other in space, as pixels do, a thread takes several
consecutive points and adds those that share a corner first. Many channels are gathered instead (`incidence.py`). The
sums are then converted to lattice values.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.triton.filter.incidence import build_incidence, prefers_gather, splat_listed
from permutohedral.ops.triton.kernel import (
    Launch,
    cdiv,
    clear,
    kernel,
    launch_all,
    on_device,
    power_of_two,
    rows_contiguous,
    tile,
    zeros,
)

# fewer points than this do not fill the GPU, and do not queue for the same lattice points
_WORTH_RUNS = 1 << 16
# most channels for which a thread holds eight points
_WIDEST_RUN = 4
# consecutive points of a thread, threads of a block
_RUN = tl.constexpr(8)
_RUN_BLOCK = 128


@triton.jit
def load_share(
    values, point, channel, num_points, channel_stride, CHANNELS: tl.constexpr, STRIDE: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """Load the values of the points `[BLOCK, BLOCK_C]`, one where there is no channel."""
    real = (point < num_points)[:, None] & (channel < CHANNELS)[None, :]
    place = values + point[:, None] * STRIDE + channel.to(tl.int64)[None, :] * channel_stride
    return tl.load(place, mask=real, other=1.0).to(DTYPE)


@triton.jit
def pick(tile, column: tl.constexpr):
    """Return a column of `[BLOCK, 4]`, whose columns lie in one thread."""
    bits: tl.constexpr = tl.int64 if tile.dtype == tl.float64 else tl.int32
    chosen = tl.where((tl.arange(0, 4) == column)[None, :], tile.to(bits, bitcast=True), 0)
    return tl.sum(chosen, axis=1).to(tile.dtype, bitcast=True)


@triton.jit
def choose(number: tl.constexpr, first, second, third, fourth, fifth, sixth, seventh, eighth):
    """Return one of eight tiles; Triton has no lists of tiles."""
    if number == 0:  # noqa: SIM116
        return first
    elif number == 1:
        return second
    elif number == 2:
        return third
    elif number == 3:
        return fourth
    elif number == 4:
        return fifth
    elif number == 5:
        return sixth
    elif number == 6:
        return seventh
    else:
        return eighth


@triton.jit
def add_point(
    vertex, share, last, last_total, before, before_total, output, channel, WIDTH: tl.constexpr
):  # fmt: skip
    """Add a point to one of the two lattice points that a thread sums; a third one replaces the older."""
    is_last = vertex == last
    is_before = vertex == before
    last_total += tl.where(is_last[:, None], share, 0.0)
    before_total += tl.where(is_before[:, None], share, 0.0)
    is_new = ~(is_last | is_before)
    place = output + before.to(tl.int64)[:, None] * WIDTH + channel[None, :]
    given = is_new & (before >= 0)
    tl.atomic_add(place, before_total, mask=given[:, None] & (channel < WIDTH)[None, :], sem="relaxed")
    before_total = tl.where(is_new[:, None], last_total, before_total)
    last_total = tl.where(is_new[:, None], share, last_total)
    return tl.where(is_new, vertex, last), last_total, tl.where(is_new, last, before), before_total


@kernel(sizes=["num_points", "num_rows", "corner_quads", "channel_stride"], options=["num_warps"])
def splat_runs_kernel(
    values, vertices, barycentric, output, num_points, num_rows, corner_quads, channel_stride,
    WHOLE: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, VALUE_STRIDE: tl.constexpr,
    CORNERS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Add every point to the corners of its simplex among the first `num_rows`.

    If WIDTH exceeds CHANNELS, the last channel is one everywhere.

    `vertices` and `barycentric` are `[corners, points]`, 4 `corner_quads` elements from one corner to the next. They
    are read by fours, so points are masked unless their number is a multiple of four (WHOLE).
    """
    first = (tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)) * _RUN
    channel = tl.arange(0, BLOCK_C)
    dtype: tl.constexpr = output.dtype.element_ty
    value_0 = load_share(values, first, channel, num_points, channel_stride, CHANNELS, VALUE_STRIDE, dtype)
    value_1 = load_share(values, first + 1, channel, num_points, channel_stride, CHANNELS, VALUE_STRIDE, dtype)
    value_2 = load_share(values, first + 2, channel, num_points, channel_stride, CHANNELS, VALUE_STRIDE, dtype)
    value_3 = load_share(values, first + 3, channel, num_points, channel_stride, CHANNELS, VALUE_STRIDE, dtype)
    value_4 = load_share(values, first + 4, channel, num_points, channel_stride, CHANNELS, VALUE_STRIDE, dtype)
    value_5 = load_share(values, first + 5, channel, num_points, channel_stride, CHANNELS, VALUE_STRIDE, dtype)
    value_6 = load_share(values, first + 6, channel, num_points, channel_stride, CHANNELS, VALUE_STRIDE, dtype)
    value_7 = load_share(values, first + 7, channel, num_points, channel_stride, CHANNELS, VALUE_STRIDE, dtype)
    quad = first[:, None] + tl.arange(0, 4)[None, :]
    for corner in tl.static_range(CORNERS):
        begin = tl.cast(corner, tl.int64) * corner_quads * 4
        last = tl.full([BLOCK], -1, tl.int32)
        before = tl.full([BLOCK], -1, tl.int32)
        last_total = tl.zeros([BLOCK, BLOCK_C], dtype)
        before_total = tl.zeros([BLOCK, BLOCK_C], dtype)
        # there is room for a multiple of four points
        vertex_a = tl.load(vertices + begin + quad, mask=(first < num_points)[:, None], other=-1)
        vertex_b = tl.load(vertices + begin + quad + 4, mask=(first + 4 < num_points)[:, None], other=-1)
        weight_a = tl.load(barycentric + begin + quad, mask=(first < num_points)[:, None], other=0.0)
        weight_b = tl.load(barycentric + begin + quad + 4, mask=(first + 4 < num_points)[:, None], other=0.0)
        for step in tl.static_range(8):
            vertex = pick(vertex_a, step) if step < 4 else pick(vertex_b, step - 4)
            vertex = tl.where(vertex < num_rows, vertex, -1)
            if not WHOLE:
                vertex = tl.where(first + step < num_points, vertex, -1)
            weight = pick(weight_a, step) if step < 4 else pick(weight_b, step - 4)
            value = choose(step, value_0, value_1, value_2, value_3, value_4, value_5, value_6, value_7)
            last, last_total, before, before_total = add_point(
                vertex, weight.to(dtype)[:, None] * value, last, last_total, before, before_total, output, channel,
                WIDTH,
            )  # fmt: skip
        known = (channel < WIDTH)[None, :]
        place = output + before.to(tl.int64)[:, None] * WIDTH + channel[None, :]
        tl.atomic_add(place, before_total, mask=(before >= 0)[:, None] & known, sem="relaxed")
        place = output + last.to(tl.int64)[:, None] * WIDTH + channel[None, :]
        tl.atomic_add(place, last_total, mask=(last >= 0)[:, None] & known, sem="relaxed")


@triton.jit
def add_run(output, row, total, ended, channel, WIDTH: tl.constexpr):
    """Add the sum that a lane has of one lattice point, where its run has `ended`."""
    place = output + row.to(tl.int64)[:, None] * WIDTH + channel[None, :]
    tl.atomic_add(place, total, mask=ended[:, None] & (channel < WIDTH)[None, :], sem="relaxed")


@kernel(sizes=["num_points", "num_rows", "vertex_corner_stride", "weight_corner_stride"])
def splat_kernel(
    values, vertices, barycentric, output, num_points, num_rows, vertex_corner_stride, weight_corner_stride,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, VALUE_STRIDE: tl.constexpr, VERTEX_STRIDE: tl.constexpr,
    WEIGHT_STRIDE: tl.constexpr, CORNERS: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Do the same for any number of channels and any layout; a lane takes RUN consecutive points."""
    first = (tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)) * RUN
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    dtype: tl.constexpr = output.dtype.element_ty
    for number in tl.static_range(CORNERS):
        corner = tl.cast(number, tl.int64)
        current = tl.full([BLOCK], -1, tl.int32)
        total = tl.zeros([BLOCK, BLOCK_C], dtype)
        for step in tl.static_range(RUN):
            point = first + step
            inside = point < num_points
            place = values + point[:, None] * VALUE_STRIDE + channel[None, :]
            real = inside[:, None] & (channel < CHANNELS)[None, :]
            value = tl.load(place, mask=real, other=1.0).to(dtype)
            vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=-1)
            vertex = tl.where(vertex < num_rows, vertex, -1)
            place = barycentric + point * WEIGHT_STRIDE + corner * weight_corner_stride
            share = tl.load(place, mask=inside, other=0.0).to(dtype)[:, None] * value
            if step > 0:
                other = vertex != current
                add_run(output, current, total, other & (current >= 0), channel, WIDTH)
                total = tl.where(other[:, None], share, total + share)
            else:
                total = share
            current = vertex
        add_run(output, current, total, current >= 0, channel, WIDTH)


def can_run(values: Tensor, vertices: Tensor, barycentric: Tensor, width: int) -> bool:
    """Return whether `splat_runs_kernel` applies: many points, few channels, corners in aligned rows of four."""
    if values.shape[0] < _WORTH_RUNS or width > _WIDEST_RUN:
        return False
    padded, first, other_first = vertices.stride(1), vertices.storage_offset(), barycentric.storage_offset()
    return padded % 4 == first % 4 == other_first % 4 == 0 and vertices.stride() == barycentric.stride() == (1, padded)


def splat_into(output: Tensor, values: Tensor, vertices: Tensor, barycentric: Tensor) -> list[Launch]:
    """Return the launches that splat to `output [rows, channels]` in the accumulation dtype.

    One more channel than the values have is that of ones. Vertices of at least `rows` are left out. There is at least
    one point, row and channel.
    """
    (points, channels), (rows, width), corners = values.shape, output.shape, vertices.shape[1]
    if can_run(values, vertices, barycentric, width):
        value_stride, channel_stride = values.stride()
        variant = splat_runs_kernel[
            points % 4 == 0, channels, width, value_stride, corners, _RUN_BLOCK, power_of_two(width),
            cdiv(_RUN_BLOCK, 32),
        ]  # fmt: skip
        grid, quads = (cdiv(points, _RUN_BLOCK * _RUN.value), 1, 1), vertices.stride(1) // 4
        sizes = points, rows, quads, channel_stride
        return [clear(output), (variant, grid, (values, vertices, barycentric, output), sizes)]
    values = rows_contiguous(values)
    (vertex_stride, vertex_corners), (weight_stride, weight_corners) = vertices.stride(), barycentric.stride()
    run = 4 if points >= _WORTH_RUNS else 1
    variant = splat_kernel[(
        channels, width, values.stride(0), vertex_stride, weight_stride, corners, run, *tile(width)
    )]  # fmt: skip
    tensors, sizes = (values, vertices, barycentric, output), (points, rows, vertex_corners, weight_corners)
    return [clear(output), (variant, variant.tiles(cdiv(points, run), width), tensors, sizes)]


@kernel(sizes=["num_rows"])
def normalize_kernel(
    sums, output, density, num_rows, HAS_DENSITY: tl.constexpr, CHANNELS: tl.constexpr, SUM_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Convert sums to the dtype of the output; with HAS_DENSITY divide them by the channel after the last.

    `density` gets the divisors: one for a density of zero.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = row < num_rows
    real = inside[:, None] & (channel < CHANNELS)[None, :]
    total = tl.load(sums + row[:, None] * SUM_STRIDE + channel[None, :], mask=real, other=0.0)
    if HAS_DENSITY:
        mass = tl.load(sums + row * SUM_STRIDE + CHANNELS, mask=inside, other=1.0)
        mass = tl.where(mass > 0, mass, 1.0)
        total = total / mass[:, None]
        if tl.program_id(1) == 0:
            tl.store(density + row, mass, mask=inside)
    place = output + row[:, None] * CHANNELS + channel[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=real)


def normalize(sums: Tensor, dtype: torch.dtype, by_density: bool) -> tuple[Tensor, Tensor | None]:
    """Return contiguous sums in `dtype`; with `by_density` divided by their last channel, and without it.

    The second result is the divisors `[lattice_points]`, one for a density of zero; None without them.
    """
    (rows, width), density = sums.shape, sums.new_empty(sums.shape[0]) if by_density else None
    if sums.dtype == dtype and density is None:
        return sums, None
    output = sums.new_empty(rows, width - by_density, dtype=dtype)
    if output.numel():
        variant = normalize_kernel[(by_density, output.shape[1], width, *tile(output.shape[1]))]
        variant(variant.tiles(*output.shape), (sums, output, sums if density is None else density), (rows,))
    return output, density


def splat_sums(
    values: Tensor, vertices: Tensor, barycentric: Tensor, num_rows: int, ones: int, dtype: torch.dtype | None = None
) -> Tensor:
    """Return sums `[num_rows, channels + ones]`, the last of them of a channel of ones.

    They are in `dtype`, by default the accumulation dtype. Vertices of at least `num_rows` are left out.
    """
    points, summed = values.shape[0], accumulation_dtype(values.dtype)
    if prefers_gather(*values.shape) and num_rows:
        return splat_listed(values, build_incidence(vertices, barycentric, num_rows), dtype or summed, ones)
    if points == 0:
        return zeros(num_rows, values.shape[1] + ones, dtype=dtype or summed, device=values.device)
    output = torch.empty(num_rows, values.shape[1] + ones, dtype=summed, device=values.device)
    if output.numel():
        launch_all(splat_into(output, values, vertices, barycentric))
    return normalize(output, dtype or summed, False)[0]


@on_device
def splat(values: Tensor, vertices: Tensor, barycentric: Tensor, num_lattice_points: int) -> Tensor:
    return splat_sums(values, vertices, barycentric, num_lattice_points, 0, values.dtype)
