"""Slice and the gradient of the weights between points and lattice; the separable Gaussian.

Tiles are `[BLOCK points, BLOCK_C channels]`. Accumulation is in float32 for values of 16 bits, in their own dtype
otherwise.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.neighborhood import blur_gain
from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.triton.launch import launch, on_device, rows_contiguous
from permutohedral.ops.triton.splatting import WIDEST_TILE, splat_sums, tile

# blurring two axes at once reads more and starts less: below this many lattice points the starts count
_WORTH_SINGLE_AXES = 1 << 18


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


@triton.jit(do_not_specialize=["num_points", "vertex_corner_stride", "weight_corner_stride"])
def slice_kernel(
    lattice_values, vertices, barycentric, bias, output, num_points, vertex_corner_stride, weight_corner_stride,
    HAS_BIAS: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, ADDED_MASS: tl.constexpr,
    LATTICE_STRIDE: tl.constexpr,
    VERTEX_STRIDE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr,
    CORNERS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Read the corners of every point's simplex; where WIDTH exceeds CHANNELS, divide by the channel after the last."""
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = point < num_points
    real = inside[:, None] & (channel < WIDTH)[None, :]
    dtype: tl.constexpr = tl.float64 if lattice_values.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros([BLOCK, BLOCK_C], dtype)
    for corner in tl.static_range(CORNERS):
        vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=0)
        weight = tl.load(barycentric + point * WEIGHT_STRIDE + corner * weight_corner_stride, mask=inside, other=0.0)
        place = lattice_values + vertex.to(tl.int64)[:, None] * LATTICE_STRIDE + channel[None, :]
        total += weight.to(dtype)[:, None] * tl.load(place, mask=real, other=0.0).to(dtype)
    if WIDTH > CHANNELS:
        mass = tl.sum(tl.where((channel == CHANNELS)[None, :], total, 0.0), axis=1)
        total = total / (mass + ADDED_MASS)[:, None]
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=channel < CHANNELS, other=0.0).to(dtype)[None, :]
    place = output + point[:, None] * CHANNELS + channel[None, :]
    kept = inside[:, None] & (channel < CHANNELS)[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["num_points", "vertex_corner_stride"])
def barycentric_gradient_kernel(
    values, lattice_values, vertices, output, num_points, vertex_corner_stride,
    VERTEX_STRIDE: tl.constexpr, CHANNELS: tl.constexpr, VALUE_STRIDE: tl.constexpr, LATTICE_STRIDE: tl.constexpr,
    CORNERS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The scalar product of every point with one corner of its simplex."""
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    corner = tl.program_id(1)
    inside = point < num_points
    vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=0)
    dtype: tl.constexpr = output.dtype.element_ty
    total = tl.zeros([BLOCK, BLOCK_C], dtype)
    for first in range(0, CHANNELS, BLOCK_C):
        channel = first + tl.arange(0, BLOCK_C)
        real = inside[:, None] & (channel < CHANNELS)[None, :]
        value = tl.load(values + point[:, None] * VALUE_STRIDE + channel[None, :], mask=real, other=0.0)
        place = lattice_values + vertex.to(tl.int64)[:, None] * LATTICE_STRIDE + channel[None, :]
        total += value.to(dtype) * tl.load(place, mask=real, other=0.0).to(dtype)
    tl.store(output + point * CORNERS + corner, tl.sum(total, axis=1), mask=inside)


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


@triton.jit(do_not_specialize=["num_rows", "axis", "next_axis"])
def blur_kernel(
    lattice_values, axis_neighbors, output, num_rows, axis, next_axis,
    TWO: tl.constexpr, CHANNELS: tl.constexpr, LATTICE_STRIDE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One axis, or TWO at once: the second of what the first gives at a row and its two neighbors."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = row < num_rows
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


def normalize(sums: Tensor, density: Tensor | None, channels: int, dtype: torch.dtype) -> Tensor:
    """`[lattice_points, channels]` of `dtype`: the first channels of `sums` over the last column of `density`."""
    output = torch.empty(sums.shape[0], channels, dtype=dtype, device=sums.device)
    columns = 1 if density is None else density.shape[1]
    if output.numel():
        grid, blocks = tile(sums.shape[0], channels)
        launch(
            normalize_kernel, grid, sums, density, output, sums.shape[0], HAS_DENSITY=density is not None,
            CHANNELS=channels, SUM_STRIDE=sums.stride(0), DENSITY_STRIDE=columns, DENSITY_COLUMN=columns - 1, **blocks,
        )  # fmt: skip
    return output


@on_device
def splat(values: Tensor, vertices: Tensor, barycentric: Tensor, num_lattice_points: int) -> Tensor:
    sums = splat_sums(values, vertices, barycentric, num_lattice_points, 0)
    return sums if sums.dtype == values.dtype else normalize(sums, None, values.shape[1], values.dtype)


def slice_into(
    output: Tensor,
    lattice_values: Tensor,
    vertices: Tensor,
    barycentric: Tensor,
    bias: Tensor | None = None,
    added_mass: float = 0.0,
) -> None:
    """Fill `output [points, channels]`; a further channel of lattice_values is the mass to divide by."""
    lattice_values = rows_contiguous(lattice_values)
    points, channels = output.shape
    width = lattice_values.shape[1]
    if output.numel() == 0:
        return
    grid, blocks = tile(points, width)
    launch(
        slice_kernel, grid, lattice_values, vertices, barycentric, bias, output, points, vertices.stride(1),
        barycentric.stride(1), HAS_BIAS=bias is not None, CHANNELS=channels, WIDTH=width, ADDED_MASS=added_mass,
        LATTICE_STRIDE=lattice_values.stride(0), VERTEX_STRIDE=vertices.stride(0),
        WEIGHT_STRIDE=barycentric.stride(0), CORNERS=vertices.shape[1], **blocks,
    )  # fmt: skip


@on_device
def slice(lattice_values: Tensor, vertices: Tensor, barycentric: Tensor) -> Tensor:
    output = lattice_values.new_empty(vertices.shape[0], lattice_values.shape[1])
    slice_into(output, lattice_values, vertices, barycentric)
    return output


# vertices and weights of the sources, neighbors along the axes, vertices and weights of the targets
GaussianTables = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def filter_gaussian_into(output: Tensor, values: Tensor, tables: GaussianTables, smallest_mass: float) -> None:
    """Fill `output` with the normalized Gaussian."""
    vertices, barycentric, axis_neighbors, target_vertices, target_barycentric = tables
    # that the mass has not been divided by the gain of the blur leaves the quotient as it is
    added_mass = smallest_mass * blur_gain(vertices.shape[1] - 1)
    # a tile holds the mass beside all channels that are divided by it
    for first in range(0, values.shape[1], WIDEST_TILE - 1):
        some = values[:, first : first + WIDEST_TILE - 1]
        splatted = splat_sums(some, vertices, barycentric, axis_neighbors.shape[1], 1)
        blurred = blur(splatted, axis_neighbors, False)
        part = output if some.shape[1] == output.shape[1] else output.new_empty(output.shape[0], some.shape[1])
        slice_into(part, blurred, target_vertices, target_barycentric, added_mass=added_mass)
        if part is not output:
            output[:, first : first + part.shape[1]] = part


@on_device
def filter_gaussian(
    values: Tensor,
    vertices: Tensor,
    barycentric: Tensor,
    axis_neighbors: Tensor,
    target_vertices: Tensor,
    target_barycentric: Tensor,
    smallest_mass: float,
) -> Tensor:
    """The normalized Gaussian without a derivative: see `FusedPrimitives`."""
    output = values.new_empty(target_vertices.shape[0], values.shape[1])
    if values.shape[0] == 0 or output.numel() == 0:
        return output.zero_()
    tables = vertices, barycentric, axis_neighbors, target_vertices, target_barycentric
    filter_gaussian_into(output, values, tables, smallest_mass)
    return output


@on_device
def barycentric_gradient(values: Tensor, lattice_values: Tensor, vertices: Tensor) -> Tensor:
    points, corners = vertices.shape
    values, lattice_values = rows_contiguous(values), rows_contiguous(lattice_values)
    channels = values.shape[1]
    output = values.new_empty(points, corners, dtype=accumulation_dtype(values.dtype))
    if output.numel():
        grid, blocks = tile(points, channels)
        launch(
            barycentric_gradient_kernel, (grid[0], corners), values, lattice_values, vertices, output, points,
            vertices.stride(1), VERTEX_STRIDE=vertices.stride(0), CHANNELS=channels, VALUE_STRIDE=values.stride(0),
            LATTICE_STRIDE=lattice_values.stride(0), CORNERS=corners, **blocks,
        )  # fmt: skip
    return output


@on_device
def blur(lattice_values: Tensor, axis_neighbors: Tensor, reverse: bool) -> Tensor:
    num, channels = lattice_values.shape
    lattice_values, axis_neighbors = rows_contiguous(lattice_values), axis_neighbors.contiguous()
    if lattice_values.numel() == 0:
        return lattice_values.clone()
    axes = list(range(axis_neighbors.shape[0] // 2))
    if reverse:
        axes.reverse()
    at_once = 2 if num < _WORTH_SINGLE_AXES else 1
    passes = [axes[first : first + at_once] for first in range(0, len(axes), at_once)]
    grid, blocks = tile(num, channels)
    between = accumulation_dtype(lattice_values.dtype)
    last = torch.empty(num, channels, dtype=lattice_values.dtype, device=lattice_values.device)
    # two buffers in turn, the result in the last of them
    spare = [last if between == last.dtype else torch.empty_like(last, dtype=between)]
    spare.append(torch.empty_like(spare[0]) if len(passes) > 1 else last)
    for number, axis in enumerate(passes, 1):
        output = last if number == len(passes) else spare[(len(passes) - number) % 2]
        launch(
            blur_kernel, grid, lattice_values, axis_neighbors, output, num, axis[0], axis[-1],
            TWO=len(axis) > 1, CHANNELS=channels, LATTICE_STRIDE=lattice_values.stride(0), **blocks,
        )  # fmt: skip
        lattice_values = output
    return last
