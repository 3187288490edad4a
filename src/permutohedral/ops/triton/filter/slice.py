"""Slice from the lattice to the points, and the gradient of the barycentric weights.

Tiles are `[BLOCK points, BLOCK_C channels]`. Accumulation is in float32 for values of 16 bits, in their own dtype
otherwise.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.triton.kernel import kernel, on_device, rows_contiguous, tile


@kernel(sizes=["num_points", "num_rows", "vertex_corner_stride", "weight_corner_stride"])
def slice_kernel(
    lattice_values, vertices, barycentric, divisors, bias, output, num_points, num_rows, vertex_corner_stride,
    weight_corner_stride, PLANAR: tl.constexpr, DIVIDED: tl.constexpr, HAS_BIAS: tl.constexpr, CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr, ADDED_MASS: tl.constexpr, LATTICE_STRIDE: tl.constexpr, VERTEX_STRIDE: tl.constexpr,
    WEIGHT_STRIDE: tl.constexpr, CORNERS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Read the corners of every point's simplex; if WIDTH exceeds CHANNELS, divide by the channel after the last.

    Vertices of at least `num_rows` count as zero. With DIVIDED, weights are divided by the divisor of their lattice
    point. A PLANAR output has one channel after another in memory.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = point < num_points
    real = inside[:, None] & (channel < WIDTH)[None, :]
    dtype: tl.constexpr = tl.float64 if lattice_values.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros([BLOCK, BLOCK_C], dtype)
    for number in tl.static_range(CORNERS):
        # int64: corners times points may exceed 2^31
        corner = tl.cast(number, tl.int64)
        vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=0)
        weight = tl.load(barycentric + point * WEIGHT_STRIDE + corner * weight_corner_stride, mask=inside, other=0.0)
        place = lattice_values + vertex.to(tl.int64)[:, None] * LATTICE_STRIDE + channel[None, :]
        if DIVIDED:
            weight = weight / tl.load(divisors + vertex, mask=inside & (vertex < num_rows), other=1.0)
        present = real & (vertex < num_rows)[:, None]
        total += weight.to(dtype)[:, None] * tl.load(place, mask=present, other=0.0).to(dtype)
    if WIDTH > CHANNELS:
        mass = tl.sum(tl.where((channel == CHANNELS)[None, :], total, 0.0), axis=1)
        total = total / (mass + ADDED_MASS)[:, None]
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=channel < CHANNELS, other=0.0).to(dtype)[None, :]
    if PLANAR:
        place = output + point[:, None] + channel.to(tl.int64)[None, :] * num_points
    else:
        place = output + point[:, None] * CHANNELS + channel[None, :]
    kept = inside[:, None] & (channel < CHANNELS)[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=kept)


@kernel(sizes=["num_points", "vertex_corner_stride"])
def barycentric_gradient_kernel(
    values, lattice_values, vertices, output, num_points, vertex_corner_stride,
    VERTEX_STRIDE: tl.constexpr, CHANNELS: tl.constexpr, VALUE_STRIDE: tl.constexpr, LATTICE_STRIDE: tl.constexpr,
    CORNERS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write the scalar product of every point with one corner of its simplex."""
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    corner = tl.program_id(1).to(tl.int64)
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


def slice_into(
    output: Tensor,
    lattice_values: Tensor,
    vertices: Tensor,
    barycentric: Tensor,
    bias: Tensor | None = None,
    added_mass: float = 0.0,
    divisors: Tensor | None = None,
) -> None:
    """Fill `output [points, channels]`, contiguous or with a contiguous transpose.

    One more channel of `lattice_values` is the mass to divide by. The weights are divided by `divisors
    [lattice_points]`, if given.
    """
    points, channels = output.shape
    if points == 0 or channels == 0:
        return
    lattice_values = rows_contiguous(lattice_values)
    (rows, width), (vertex_stride, vertex_corners) = lattice_values.shape, vertices.stride()
    weight_stride, weight_corners = barycentric.stride()
    variant = slice_kernel[(
        not output.is_contiguous(), divisors is not None, bias is not None, channels, width, added_mass,
        lattice_values.stride(0), vertex_stride, weight_stride, vertices.shape[1], *tile(width),
    )]  # fmt: skip
    tensors = (
        lattice_values, vertices, barycentric, barycentric if divisors is None else divisors,
        lattice_values if bias is None else bias, output,
    )  # fmt: skip
    variant(variant.tiles(points, width), tensors, (points, rows, vertex_corners, weight_corners))


@on_device
def slice(lattice_values: Tensor, vertices: Tensor, barycentric: Tensor) -> Tensor:
    output = lattice_values.new_empty(vertices.shape[0], lattice_values.shape[1])
    slice_into(output, lattice_values, vertices, barycentric)
    return output


@on_device
def slice_planes(lattice_values: Tensor, vertices: Tensor, barycentric: Tensor) -> Tensor:
    output = lattice_values.new_empty(lattice_values.shape[1], vertices.shape[0])
    slice_into(output.T, lattice_values, vertices, barycentric)
    return output


@on_device
def barycentric_gradient(values: Tensor, lattice_values: Tensor, vertices: Tensor) -> Tensor:
    points, corners = vertices.shape
    values, lattice_values = rows_contiguous(values), rows_contiguous(lattice_values)
    channels = values.shape[1]
    output = values.new_empty(points, corners, dtype=accumulation_dtype(values.dtype))
    if output.numel():
        strides = values.stride(0), lattice_values.stride(0)
        variant = barycentric_gradient_kernel[(vertices.stride(0), channels, *strides, corners, *tile(channels))]
        tensors = values, lattice_values, vertices, output
        variant((variant.tiles(points, 1)[0], corners, 1), tensors, (points, vertices.stride(1)))
    return output
