"""The learned filter in one call: splat, divide by the density, convolve, slice, add the bias; and its derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.ops.fused_primitives import ConvolutionTables, FilteredLattice, FilterTables, KeptOfFilter
from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.triton.build.neighbors import transpose_neighbors
from permutohedral.ops.triton.filter.convolve import convolve_adjoint, convolve_rows, float32_precision, uses_halves
from permutohedral.ops.triton.filter.convolve_gradients import convolve_gradients
from permutohedral.ops.triton.filter.incidence import (
    Incidence,
    is_worth_listing,
    list_of,
    splat_listed,
    splat_listed_with_density,
)
from permutohedral.ops.triton.filter.normalize import convert, normalize, sum_rows
from permutohedral.ops.triton.filter.slice import slice_into
from permutohedral.ops.triton.filter.splat import add_points, can_run, splat_into
from permutohedral.ops.triton.filter.weight_gradient import convolve_weight_gradient, weight_and_bias_gradient
from permutohedral.ops.triton.runtime import on_device, rows_contiguous, start_all
from permutohedral.ops.triton.zeros import clear
from permutohedral.simplices import Simplices


@on_device
def filter_learned(
    values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables
) -> tuple[Tensor, KeptOfFilter]:
    """The result `[target points, out_channels]`, and what its derivative needs: see `FusedPrimitives`."""
    lattice, groups, by_density = tables
    source, target = lattice.source, lattice.target
    bias = None if bias is None else bias.contiguous()
    lattice_values, density, incidence = _splat(values, source, by_density)
    convolved = convolve_rows(lattice_values, weight, lattice.neighbors, groups, source.keys.shape[0])
    output = values.new_empty(target.vertices.shape[0], weight.shape[2])
    slice_into(output, convolved, target.vertices, target.barycentric, bias)
    # where the results go back to the same corners, the derivative splats to them
    return output, (lattice_values, density, *(incidence if incidence is not None and target is source else ()))


def _splat(values: Tensor, at: Simplices, by_density: bool) -> tuple[Tensor, Tensor | None, Incidence | None]:
    """The lattice values, of which more rows may follow; their density, if they are divided by it; the list of points,
    if they were gathered.
    """
    (points, channels), dtype, rows = values.shape, values.dtype, at.keys.shape[0]
    if is_worth_listing(points, channels):
        incidence = list_of(at)
        if by_density:
            return *splat_listed_with_density(values, incidence), incidence
        return splat_listed(values, incidence, dtype), None, incidence
    summed, device = accumulation_dtype(dtype), values.device
    if not by_density:
        sums = torch.empty(rows, channels, dtype=summed, device=device)
        start_all(splat_into(sums, values, at.vertices, at.barycentric))
        return convert(sums, dtype), None, None
    if can_run(values, at.vertices, at.barycentric, channels + 1):
        # the density is the last channel
        sums = torch.empty(rows, channels + 1, dtype=summed, device=device)
        start_all(splat_into(sums, values, at.vertices, at.barycentric))
        return *normalize(sums, (rows, channels), channels, dtype), None
    # the density lies behind them
    sums = torch.empty(rows + -(-rows // channels), channels, dtype=summed, device=device)
    start_all((clear(sums), add_points(sums, rows_contiguous(values), at.vertices, at.barycentric, rows, True)))
    return *normalize(sums, (rows, channels), rows * channels, dtype), None


@on_device
def differentiate_learned(
    gradient: Tensor, weight: Tensor, kept: KeptOfFilter, tables: FilterTables, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of `filter_learned` with respect to values, weight and bias: see `FusedPrimitives`."""
    if not (wanted[0] or wanted[1]):
        return None, None, sum_rows(gradient)
    (lattice_values, density, *listed), (lattice, groups, _) = kept, tables
    source, neighbors, precision = lattice.source, lattice.neighbors.contiguous(), float32_precision(weight.dtype)
    if listed:
        at_targets = splat_listed(gradient, Incidence(*listed), gradient.dtype)
    else:
        at_targets = _splat(gradient, lattice.target, False)[0]
    at_sources = to_weight = to_bias = None
    if wanted[1] and not uses_halves(precision, weight.shape[1], gradient.shape[1] // groups, True):
        # the weights of a point sum to one, so the lattice holds the sum of the gradient, too
        to_weight, to_bias = weight_and_bias_gradient(
            lattice_values, at_targets, neighbors, groups, precision, wanted[2]
        )
    elif wanted[1]:
        at_lattice = lattice_values[: source.keys.shape[0]]
        at_sources, to_weight = _differentiate_halves(at_targets, weight, at_lattice, tables, wanted[0])
    if wanted[2] and to_bias is None:
        to_bias = sum_rows(gradient)
    if not wanted[0]:
        return None, to_weight, to_bias
    if at_sources is None:
        reverse = _reverse_neighbors(lattice)
        at_sources = convolve_adjoint(at_targets, weight, reverse, lattice.opposite, groups, precision)
    to_values = gradient.new_empty(source.vertices.shape[0], at_sources.shape[1])
    # a weight is a part of its density: their quotient is in range, that of a gradient and a small density is not
    slice_into(to_values, at_sources, source.vertices, source.barycentric, divisors=density)
    return to_values, to_weight, to_bias


def _differentiate_halves(
    at_targets: Tensor, weight: Tensor, lattice_values: Tensor, tables: FilterTables, both: bool
) -> tuple[Tensor | None, Tensor]:
    """The gradients of the convolution, of float16 with scales; the first one if both are computed at once."""
    lattice, groups, _ = tables
    if both and groups == 1:
        of_convolution = ConvolutionTables(lattice.neighbors, _reverse_neighbors(lattice), lattice.opposite)
        return convolve_gradients(lattice_values, weight, at_targets, of_convolution, (True, False))[:2]
    return None, convolve_weight_gradient(lattice_values, at_targets, lattice.neighbors, groups)


def _reverse_neighbors(lattice: FilteredLattice) -> Tensor:
    reverse = lattice.reverse_neighbors
    if reverse is not None:
        return reverse
    return transpose_neighbors(lattice.neighbors, lattice.opposite, lattice.source.keys.shape[0])
