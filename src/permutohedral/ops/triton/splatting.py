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
from permutohedral.ops.triton.elementary import filled
from permutohedral.ops.triton.launch import cdiv, launch, power_of_two, rows_contiguous

# fewer points than this do not fill the GPU, and do not queue for the same lattice points
_WORTH_RUNS = 1 << 16
# most channels of a tile, and of one in which a thread holds all channels of eight points
WIDEST_TILE = 64
_WIDEST_RUN = 4
# consecutive points of a thread, threads of a block
_RUN = tl.constexpr(8)
_RUN_BLOCK = 128


@triton.jit
def load_share(values, point, channel, num_points, CHANNELS: tl.constexpr, STRIDE: tl.constexpr, DTYPE: tl.constexpr):
    """The values of the points `[BLOCK, BLOCK_C]`, one where there is no channel."""
    real = (point < num_points)[:, None] & (channel < CHANNELS)[None, :]
    return tl.load(values + point[:, None] * STRIDE + channel[None, :], mask=real, other=1.0).to(DTYPE)


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


@triton.jit(do_not_specialize=["num_points", "corner_quads"])
def splat_runs_kernel(
    values, vertices, barycentric, output, num_points, corner_quads,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, VALUE_STRIDE: tl.constexpr, CORNERS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Add every point to the corners of its simplex; where WIDTH exceeds CHANNELS, a channel of ones with it.

    `vertices` and `barycentric` are `[corners, points]`, 4 `corner_quads` elements from one corner to the next.
    """
    first = (tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)) * _RUN
    channel = tl.arange(0, BLOCK_C)
    dtype: tl.constexpr = output.dtype.element_ty
    value_0 = load_share(values, first, channel, num_points, CHANNELS, VALUE_STRIDE, dtype)
    value_1 = load_share(values, first + 1, channel, num_points, CHANNELS, VALUE_STRIDE, dtype)
    value_2 = load_share(values, first + 2, channel, num_points, CHANNELS, VALUE_STRIDE, dtype)
    value_3 = load_share(values, first + 3, channel, num_points, CHANNELS, VALUE_STRIDE, dtype)
    value_4 = load_share(values, first + 4, channel, num_points, CHANNELS, VALUE_STRIDE, dtype)
    value_5 = load_share(values, first + 5, channel, num_points, CHANNELS, VALUE_STRIDE, dtype)
    value_6 = load_share(values, first + 6, channel, num_points, CHANNELS, VALUE_STRIDE, dtype)
    value_7 = load_share(values, first + 7, channel, num_points, CHANNELS, VALUE_STRIDE, dtype)
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


@triton.jit(do_not_specialize=["num_points", "vertex_corner_stride", "weight_corner_stride"])
def splat_kernel(
    values, vertices, barycentric, output, num_points, vertex_corner_stride, weight_corner_stride,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, VALUE_STRIDE: tl.constexpr, VERTEX_STRIDE: tl.constexpr,
    WEIGHT_STRIDE: tl.constexpr,
    CORNERS: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Add every point to the corners of its simplex; where WIDTH exceeds CHANNELS, a channel of ones with it.

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


def tile(rows: int, channels: int, run: int = 1) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid, and the shape of the tiles: about 1024 elements, and a thread for each point of few channels."""
    block_c = min(power_of_two(channels), WIDEST_TILE)
    block = max(min(1024 // block_c, 128), 16)
    return (cdiv(rows, block * run), cdiv(channels, block_c)), {"BLOCK": block, "BLOCK_C": block_c}


def _splat_sorted(values: Tensor, vertices: Tensor, barycentric: Tensor, output: Tensor) -> None:
    corners, channels = vertices.shape[1], values.shape[1]
    num_lattice_points, width = output.shape
    sorted_vertices, order = torch.sort(vertices.reshape(-1), stable=True)
    rows = torch.arange(num_lattice_points + 1, dtype=torch.int32, device=values.device)
    starts = torch.searchsorted(sorted_vertices, rows)
    block_c = min(power_of_two(width), WIDEST_TILE)
    launch(
        splat_sorted_kernel, (num_lattice_points, cdiv(width, block_c)), values, order, starts, barycentric, output,
        barycentric.stride(1), CHANNELS=channels, WIDTH=width, VALUE_STRIDE=values.stride(0),
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


def splat_sums(values: Tensor, vertices: Tensor, barycentric: Tensor, num_lattice_points: int, ones: int) -> Tensor:
    """`[num_lattice_points, channels + ones]` in the accumulation dtype, the last of them from a channel of ones."""
    points, channels = values.shape
    values, shape = rows_contiguous(values), (num_lattice_points, channels + ones)
    dtype = accumulation_dtype(values.dtype)
    if points == 0 or shape[0] == 0 or shape[1] == 0:
        return torch.zeros(shape, dtype=dtype, device=values.device)
    if torch.are_deterministic_algorithms_enabled():
        output = torch.empty(shape, dtype=dtype, device=values.device)
        _splat_sorted(values, vertices, barycentric, output)
        return output
    output = filled(shape, 0, dtype, values.device)
    if _can_run(values, vertices, barycentric, shape[1]):
        block_c = power_of_two(shape[1])
        launch(
            splat_runs_kernel, (cdiv(points, _RUN_BLOCK * _RUN.value),), values, vertices, barycentric, output, points,
            vertices.stride(1) // 4, CHANNELS=channels, WIDTH=shape[1], VALUE_STRIDE=values.stride(0),
            CORNERS=vertices.shape[1], BLOCK=_RUN_BLOCK, BLOCK_C=block_c, num_warps=cdiv(_RUN_BLOCK, 32),
        )  # fmt: skip
        return output
    run = 4 if points >= _WORTH_RUNS else 1
    grid, blocks = tile(points, shape[1], run)
    launch(
        splat_kernel, grid, values, vertices, barycentric, output, points, vertices.stride(1), barycentric.stride(1),
        CHANNELS=channels, WIDTH=shape[1], VALUE_STRIDE=values.stride(0), VERTEX_STRIDE=vertices.stride(0),
        WEIGHT_STRIDE=barycentric.stride(0), CORNERS=vertices.shape[1], RUN=run, **blocks,
    )  # fmt: skip
    return output
