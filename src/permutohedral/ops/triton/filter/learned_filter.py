"""The learned filter as one function: splat, divide by the density, convolve, slice, add the bias; its derivative."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from permutohedral.ops.contract import FilterTables, Needed, Saved, accumulation_dtype
from permutohedral.ops.simplices import Simplices
from permutohedral.ops.triton.build.neighbors import transpose_neighbors
from permutohedral.ops.triton.filter.convolve import convolve, convolve_adjoint, float32_precision, uses_scaled_fp16
from permutohedral.ops.triton.filter.incidence import Incidence, cached_incidence, prefers_gather, splat_listed
from permutohedral.ops.triton.filter.slice import slice_into
from permutohedral.ops.triton.filter.splat import normalize, splat_into
from permutohedral.ops.triton.filter.weight_gradient import scaled_fp16_gradients, weight_gradient
from permutohedral.ops.triton.kernel import cdiv, kernel, launch_all, on_device, rows_contiguous, tile

# rows of a tile that is summed; programs that fill a large GPU; fewer rows are summed by torch
_SUMMED, _PARTS, _WORTH_PARTS = 64, 1056, 1 << 16


@kernel(sizes=["num_rows", "rows_per_program"])
def sum_rows_kernel(
    values, partials, num_rows, rows_per_program, CHANNELS: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sum some rows in each program: `partials [programs, CHANNELS]`."""
    first = tl.program_id(0).to(tl.int64) * rows_per_program
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK, BLOCK_C], partials.dtype.element_ty)
    for begin in range(first, tl.minimum(first + rows_per_program, num_rows), BLOCK):
        row = begin + tl.arange(0, BLOCK)
        real = (row < num_rows)[:, None] & (channel < CHANNELS)[None, :]
        value = tl.load(values + row.to(tl.int64)[:, None] * STRIDE + channel[None, :], mask=real, other=0.0)
        total += value.to(partials.dtype.element_ty)
    place = partials + tl.program_id(0).to(tl.int64) * CHANNELS + channel
    tl.store(place, tl.sum(total, axis=0), mask=channel < CHANNELS)


def sum_rows(values: Tensor) -> Tensor:
    """Return `values.sum(dim=0)` of `[rows, channels]`, neither of them 0, in the dtype of the values.

    torch takes three times as long for many rows of few channels.
    """
    values, (rows, channels), dtype = rows_contiguous(values), values.shape, accumulation_dtype(values.dtype)
    if rows < _WORTH_PARTS:
        return values.sum(dim=0)
    variant = sum_rows_kernel[channels, values.stride(0), _SUMMED, tile(channels)[1]]
    # a multiple of the rows of a tile
    share = cdiv(cdiv(rows, _PARTS), _SUMMED) * _SUMMED
    parts = cdiv(rows, share)
    partials = torch.empty(parts, channels, dtype=dtype, device=values.device)
    variant((parts, variant.tiles(1, channels)[1], 1), (values, partials), (rows, share))
    return partials.sum(dim=0, dtype=dtype).to(values.dtype)


@on_device
def filter_learned(values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables) -> tuple[Tensor, Saved]:
    source, target = tables.source, tables.target
    bias = None if bias is None else bias.contiguous()
    lattice_values, density, incidence = _splat(values, source, tables.by_density)
    convolved = convolve(lattice_values, weight, tables.neighbors, tables.groups)
    output = values.new_empty(target.vertices.shape[0], weight.shape[2])
    slice_into(output, convolved, target.vertices, target.barycentric, bias)
    # if source and target are the same points, the derivative splats with the same list
    return output, (lattice_values, density, *(incidence if incidence is not None and target is source else ()))


def _splat(values: Tensor, at: Simplices, by_density: bool) -> tuple[Tensor, Tensor | None, Incidence | None]:
    """Return lattice values, the density they were divided by or None, and the list of points or None."""
    (points, channels), dtype, rows = values.shape, values.dtype, at.keys.shape[0]
    wide = accumulation_dtype(dtype)
    if prefers_gather(points, channels):
        incidence = cached_incidence(at)
        density = torch.empty(rows, dtype=wide, device=values.device) if by_density else None
        return splat_listed(values, incidence, dtype, density=density), density, incidence
    # the density is the last channel
    sums = torch.empty(rows, channels + by_density, dtype=wide, device=values.device)
    launch_all(splat_into(sums, values, at.vertices, at.barycentric))
    return *normalize(sums, dtype, by_density), None


@on_device
def filter_learned_backward(
    gradient: Tensor, inputs: Saved, saved: Saved, needed: Needed, tables: FilterTables
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if not (needed[0] or needed[1]):
        return None, None, sum_rows(gradient)
    (lattice_values, density, *listed), weight, groups = saved, inputs[1], tables.groups
    source, neighbors, precision = tables.source, tables.neighbors.contiguous(), float32_precision(weight.dtype)
    if listed:
        at_targets = splat_listed(gradient, Incidence(*listed), gradient.dtype)
    else:
        at_targets = _splat(gradient, tables.target, False)[0]
    at_sources = filter_gradient = None
    bias_gradient = sum_rows(gradient) if needed[2] else None
    is_scaled = uses_scaled_fp16(precision, weight.shape[1], gradient.shape[1] // groups, True)
    if needed[0] and needed[1] and is_scaled and groups == 1:
        reverse = _reverse_neighbors(tables)
        at_sources, filter_gradient = scaled_fp16_gradients(
            lattice_values, weight, at_targets, neighbors, reverse, tables.opposite
        )
    else:
        if needed[1]:
            filter_gradient = weight_gradient(lattice_values, at_targets, neighbors, groups, precision)
        if needed[0]:
            reverse = _reverse_neighbors(tables)
            at_sources = convolve_adjoint(at_targets, weight, reverse, tables.opposite, groups, precision)
    if at_sources is None:
        return None, filter_gradient, bias_gradient
    values_gradient = gradient.new_empty(source.vertices.shape[0], at_sources.shape[1])
    # weight / density is at most 1, while gradient / density may exceed the range of 16 bits
    slice_into(values_gradient, at_sources, source.vertices, source.barycentric, divisors=density)
    return values_gradient, filter_gradient, bias_gradient


def _reverse_neighbors(tables: FilterTables) -> Tensor:
    if tables.reverse_neighbors is not None:
        return tables.reverse_neighbors
    return transpose_neighbors(tables.neighbors, tables.opposite, tables.source.keys.shape[0])
