"""Splat: add the points to the corners of their simplices.

Atomic additions are what limits it. Where many points follow each other in space, as pixels do, a thread takes several
consecutive ones and adds those that share a corner first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.triton.runtime import (
    WIDEST_TILE,
    cdiv,
    launch,
    on_device,
    power_of_two,
    rows_contiguous,
    tile,
)

# fewer points than this do not fill the GPU, and do not queue for the same lattice points
_WORTH_RUNS = 1 << 16
# most channels where a thread holds all of those of eight points
_WIDEST_RUN = 4
# consecutive points of a thread, threads of a block
_RUN = tl.constexpr(8)
_RUN_BLOCK = 128


@triton.jit
def load_share(
    values, point, channel, num_points, channel_stride, CHANNELS: tl.constexpr, STRIDE: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """The values of the points `[BLOCK, BLOCK_C]`, one where there is no channel."""
    real = (point < num_points)[:, None] & (channel < CHANNELS)[None, :]
    place = values + point[:, None] * STRIDE + channel.to(tl.int64)[None, :] * channel_stride
    return tl.load(place, mask=real, other=1.0).to(DTYPE)


@triton.jit
def pick(tile, column: tl.constexpr):
    """`[BLOCK]`: a column of `[BLOCK, 4]`, all of which lie in one thread."""
    bits: tl.constexpr = tl.int64 if tile.dtype == tl.float64 else tl.int32
    chosen = tl.where((tl.arange(0, 4) == column)[None, :], tile.to(bits, bitcast=True), 0)
    return tl.sum(chosen, axis=1).to(tile.dtype, bitcast=True)


@triton.jit
def choose(number: tl.constexpr, first, second, third, fourth, fifth, sixth, seventh, eighth):
    """One of eight tiles, which Triton keeps in no list and no dictionary."""
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
    """Add a point's share to one of the two lattice points a thread is at; for a third, the older one is given away."""
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


@triton.jit(do_not_specialize=["num_points", "num_rows", "corner_quads", "channel_stride"])
def splat_runs_kernel(
    values, vertices, barycentric, output, num_points, num_rows, corner_quads, channel_stride,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, VALUE_STRIDE: tl.constexpr, CORNERS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Add every point to those corners of its simplex that are among the first `num_rows`; where WIDTH exceeds
    CHANNELS, a channel of ones with it.

    `vertices` and `barycentric` are `[corners, points]`, 4 `corner_quads` elements from one corner to the next.
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
        # the number of points is a multiple of four
        vertex_a = tl.load(vertices + begin + quad, mask=(first < num_points)[:, None], other=-1)
        vertex_b = tl.load(vertices + begin + quad + 4, mask=(first + 4 < num_points)[:, None], other=-1)
        weight_a = tl.load(barycentric + begin + quad, mask=(first < num_points)[:, None], other=0.0)
        weight_b = tl.load(barycentric + begin + quad + 4, mask=(first + 4 < num_points)[:, None], other=0.0)
        for step in tl.static_range(8):
            vertex = pick(vertex_a, step) if step < 4 else pick(vertex_b, step - 4)
            vertex = tl.where(vertex < num_rows, vertex, -1)
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


@triton.jit(do_not_specialize=["num_points", "num_rows", "vertex_corner_stride", "weight_corner_stride"])
def splat_kernel(
    values, vertices, barycentric, output, num_points, num_rows, vertex_corner_stride, weight_corner_stride,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, VALUE_STRIDE: tl.constexpr, VERTEX_STRIDE: tl.constexpr,
    WEIGHT_STRIDE: tl.constexpr,
    CORNERS: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Add every point to those corners of its simplex that are among the first `num_rows`; where WIDTH exceeds
    CHANNELS, a channel of ones with it.

    A lane takes RUN consecutive points and adds those that share a corner first: atomic additions are what limits it.
    """
    first = (tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)) * RUN
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = (channel < WIDTH)[None, :]
    dtype: tl.constexpr = output.dtype.element_ty
    for corner in tl.static_range(CORNERS):
        current = tl.full([BLOCK], -1, tl.int32)
        total = tl.zeros([BLOCK, BLOCK_C], dtype)
        for step in tl.static_range(RUN):
            point = first + step
            inside = point < num_points
            place = values + point[:, None] * VALUE_STRIDE + channel[None, :]
            value = tl.load(place, mask=inside[:, None] & (channel < CHANNELS)[None, :], other=1.0).to(dtype)
            vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=-1)
            vertex = tl.where(vertex < num_rows, vertex, -1)
            place = barycentric + point * WEIGHT_STRIDE + corner * weight_corner_stride
            share = tl.load(place, mask=inside, other=0.0).to(dtype)[:, None] * value
            if step > 0:
                ended = (vertex != current) & (current >= 0)
                place = output + current.to(tl.int64)[:, None] * WIDTH + channel[None, :]
                tl.atomic_add(place, total, mask=ended[:, None] & known, sem="relaxed")
                total = tl.where((vertex != current)[:, None], share, total + share)
            else:
                total = share
            current = vertex
        place = output + current.to(tl.int64)[:, None] * WIDTH + channel[None, :]
        tl.atomic_add(place, total, mask=(current >= 0)[:, None] & known, sem="relaxed")


@triton.jit(do_not_specialize=["weight_corner_stride"])
def splat_sorted_kernel(
    values, order, starts, barycentric, output, weight_corner_stride,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, VALUE_STRIDE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr,
    CORNERS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sum the entries of one lattice point, in the order of the points: repeatable to the last bit."""
    row = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    dtype: tl.constexpr = tl.float64 if values.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros([BLOCK, BLOCK_C], dtype)
    end = tl.load(starts + row + 1)
    for first in range(tl.load(starts + row), end, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        inside = entry < end
        index = tl.load(order + entry, mask=inside, other=0)
        point = index // CORNERS
        place = point * WEIGHT_STRIDE + (index - point * CORNERS) * weight_corner_stride
        weight = tl.load(barycentric + place, mask=inside, other=0.0)
        real = inside[:, None] & (channel < CHANNELS)[None, :]
        value = tl.load(values + point[:, None] * VALUE_STRIDE + channel[None, :], mask=real, other=1.0)
        total += weight.to(dtype)[:, None] * value.to(dtype)
    result = tl.sum(total, axis=0).to(output.dtype.element_ty)
    tl.store(output + row.to(tl.int64) * WIDTH + channel, result, mask=channel < WIDTH)


@triton.jit(do_not_specialize=["num_rows"])
def normalize_kernel(
    sums, density, output, num_rows, HAS_DENSITY: tl.constexpr, CHANNELS: tl.constexpr, SUM_STRIDE: tl.constexpr,
    DENSITY_STRIDE: tl.constexpr, DENSITY_COLUMN: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The sums in the dtype of the output, divided by the density of their lattice point where that is not zero."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = row < num_rows
    real = inside[:, None] & (channel < CHANNELS)[None, :]
    total = tl.load(sums + row[:, None] * SUM_STRIDE + channel[None, :], mask=real, other=0.0)
    if HAS_DENSITY:
        mass = tl.load(density + row * DENSITY_STRIDE + DENSITY_COLUMN, mask=inside, other=1.0)
        total = total / tl.where(mass > 0, mass, 1.0)[:, None]
    place = output + row[:, None] * CHANNELS + channel[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=real)


def _splat_sorted(values: Tensor, vertices: Tensor, barycentric: Tensor, output: Tensor) -> None:
    corners, channels = vertices.shape[1], values.shape[1]
    num_lattice_points, width = output.shape
    sorted_vertices, order = torch.sort(vertices.reshape(-1), stable=True)
    rows = torch.arange(num_lattice_points + 1, dtype=torch.int32, device=values.device)
    starts = torch.searchsorted(sorted_vertices, rows)
    block_c = min(power_of_two(width), WIDEST_TILE)
    launch(
        splat_sorted_kernel, (num_lattice_points, cdiv(width, block_c)),
        (values, order, starts, barycentric, output), (barycentric.stride(1),),
        CHANNELS=channels, WIDTH=width, VALUE_STRIDE=values.stride(0),
        WEIGHT_STRIDE=barycentric.stride(0), CORNERS=corners, BLOCK=max(256 // block_c, 8), BLOCK_C=block_c,
        num_warps=1,
    )  # fmt: skip


def _can_run(values: Tensor, vertices: Tensor, barycentric: Tensor, width: int) -> bool:
    """Whether there are enough points, few channels, and corners in rows of four that one access reads."""
    points, rows = values.shape[0], vertices.stride(1)
    return (
        points >= _WORTH_RUNS and width <= _WIDEST_RUN and points % 4 == 0 and rows % 4 == 0
        and vertices.stride() == barycentric.stride() == (1, rows)
    )  # fmt: skip


def splat_sums(values: Tensor, vertices: Tensor, barycentric: Tensor, num_rows: int, ones: int) -> Tensor:
    """`[num_rows, channels + ones]` in the accumulation dtype, the last of them from a channel of ones.

    Vertices of at least `num_rows` are left out.
    """
    points, channels = values.shape
    shape, dtype = (num_rows, channels + ones), accumulation_dtype(values.dtype)
    if torch.are_deterministic_algorithms_enabled() and points and num_rows and shape[1]:
        output = torch.empty(shape, dtype=dtype, device=values.device)
        _splat_sorted(rows_contiguous(values), vertices, barycentric, output)
        return output
    output = torch.zeros(shape, dtype=dtype, device=values.device)
    if points == 0 or output.numel() == 0:
        return output
    if _can_run(values, vertices, barycentric, shape[1]):
        launch(
            splat_runs_kernel, (cdiv(points, _RUN_BLOCK * _RUN.value),), (values, vertices, barycentric, output),
            (points, num_rows, vertices.stride(1) // 4, values.stride(1)), CHANNELS=channels, WIDTH=shape[1],
            VALUE_STRIDE=values.stride(0), CORNERS=vertices.shape[1], BLOCK=_RUN_BLOCK, BLOCK_C=power_of_two(shape[1]),
            num_warps=cdiv(_RUN_BLOCK, 32),
        )  # fmt: skip
        return output
    values, run = rows_contiguous(values), 4 if points >= _WORTH_RUNS else 1
    grid, blocks = tile(points, shape[1], run)
    launch(
        splat_kernel, grid, (values, vertices, barycentric, output),
        (points, num_rows, vertices.stride(1), barycentric.stride(1)),
        CHANNELS=channels, WIDTH=shape[1], VALUE_STRIDE=values.stride(0), VERTEX_STRIDE=vertices.stride(0),
        WEIGHT_STRIDE=barycentric.stride(0), CORNERS=vertices.shape[1], RUN=run, **blocks,
    )  # fmt: skip
    return output


def normalize(sums: Tensor, density: Tensor | None, channels: int, dtype: torch.dtype) -> Tensor:
    """`[lattice_points, channels]` of `dtype`: the first channels of `sums` over the last column of `density`."""
    output = torch.empty(sums.shape[0], channels, dtype=dtype, device=sums.device)
    columns = 1 if density is None else density.shape[1]
    if output.numel():
        grid, blocks = tile(sums.shape[0], channels)
        launch(
            normalize_kernel, grid, (sums, sums if density is None else density, output), (sums.shape[0],),
            HAS_DENSITY=density is not None, CHANNELS=channels, SUM_STRIDE=sums.stride(0), DENSITY_STRIDE=columns,
            DENSITY_COLUMN=columns - 1, **blocks,
        )  # fmt: skip
    return output


@on_device
def splat(values: Tensor, vertices: Tensor, barycentric: Tensor, num_lattice_points: int) -> Tensor:
    sums = splat_sums(values, vertices, barycentric, num_lattice_points, 0)
    return sums if sums.dtype == values.dtype else normalize(sums, None, values.shape[1], values.dtype)
