"""The learned filter in one call: splat, divide by the density, convolve, slice, add the bias; and its derivative."""

from __future__ import annotations

from torch import Tensor

from permutohedral.ops.fused_primitives import ConvolutionTables, FilterTables, KeptOfFilter
from permutohedral.ops.triton.build.neighbors import transpose_neighbors
from permutohedral.ops.triton.filter.convolve import convolve, convolve_adjoint, uses_halves
from permutohedral.ops.triton.filter.incidence import Incidence, splat_listed, splat_listed_with_density
from permutohedral.ops.triton.filter.normalize import sum_rows
from permutohedral.ops.triton.filter.slice import slice, slice_into
from permutohedral.ops.triton.filter.splat import list_if_worth, splat, splat_with_density, splat_with_totals
from permutohedral.ops.triton.filter.weight_gradient import (
    convolve_gradients,
    convolve_weight_gradient,
    weight_and_bias_gradient,
)
from permutohedral.ops.triton.runtime import on_device


@on_device
def filter_learned(
    values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables
) -> tuple[Tensor, KeptOfFilter]:
    """The result `[target points, out_channels]`, and what its derivative needs: see `FusedPrimitives`."""
    lattice_values, density, incidence = _splat(values, tables)
    convolved = convolve(lattice_values, weight, tables.neighbors, tables.groups)
    output = values.new_empty(tables.target_vertices.shape[0], weight.shape[2])
    slice_into(output, convolved, tables.target_vertices, tables.target_barycentric, bias)
    # where the results go back to the same corners, the derivative splats to them
    listed = () if incidence is None or tables.target_vertices is not tables.vertices else tuple(incidence)
    return output, (lattice_values, density, *listed)


def _splat(values: Tensor, tables: FilterTables) -> tuple[Tensor, Tensor | None, Incidence | None]:
    """The lattice values, their density if they are divided by it, and the list of points if they were gathered."""
    corners = tables.vertices, tables.barycentric, tables.num_lattice_points
    incidence = list_if_worth(values, *corners)
    if incidence is None:
        splatted = splat_with_density(values, *corners) if tables.by_density else (splat(values, *corners), None)
    elif tables.by_density:
        splatted = splat_listed_with_density(values, incidence)
    else:
        splatted = splat_listed(values, incidence, values.dtype), None
    return *splatted, incidence


@on_device
def differentiate_learned(
    gradient: Tensor, weight: Tensor, kept: KeptOfFilter, tables: FilterTables, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of `filter_learned` with respect to values, weight and bias: see `FusedPrimitives`."""
    if not (wanted[0] or wanted[1]):
        return None, None, sum_rows(gradient)
    (lattice_values, density, *listed), rows = kept, tables.neighbors.shape[1]
    corners, totals = (tables.target_vertices, tables.target_barycentric, rows), None
    incidence = Incidence(*listed) if listed else list_if_worth(gradient, *corners)
    if incidence is None:
        at_targets, totals = splat_with_totals(gradient, *corners)
    else:
        at_targets = splat_listed(gradient, incidence, gradient.dtype)
    at_sources = to_weight = to_bias = None
    if wanted[1] and not uses_halves(weight.dtype, weight.shape[1], gradient.shape[1] // tables.groups, True):
        to_weight, to_bias = weight_and_bias_gradient(
            lattice_values, at_targets, tables.neighbors, tables.groups, totals if wanted[2] else None
        )
    elif wanted[1]:
        at_sources, to_weight = _differentiate_halves(at_targets[:rows], weight, lattice_values, tables, wanted[0])
        # the density divides what is computed of halves, too
        at_sources = at_sources if at_sources is None or density is None else at_sources.div_(density[:, None])
    if wanted[2] and to_bias is None:
        to_bias = sum_rows(gradient)
    if not wanted[0]:
        return None, to_weight, to_bias
    if at_sources is None:
        reverse = _reverse_neighbors(tables)
        at_sources = convolve_adjoint(at_targets, weight, reverse, tables.opposite, tables.groups, density)
    return slice(at_sources, tables.vertices, tables.barycentric), to_weight, to_bias


def _differentiate_halves(
    at_targets: Tensor, weight: Tensor, lattice_values: Tensor, tables: FilterTables, both: bool
) -> tuple[Tensor | None, Tensor]:
    """The gradients of the convolution, of float16 with scales; the first one if both are computed at once."""
    if both and tables.groups == 1:
        of_convolution = ConvolutionTables(tables.neighbors, _reverse_neighbors(tables), tables.opposite)
        wanted = True, False
        return convolve_gradients(lattice_values, weight, at_targets, of_convolution, wanted)[:2]
    return None, convolve_weight_gradient(lattice_values, at_targets, tables.neighbors, tables.groups)


def _reverse_neighbors(tables: FilterTables) -> Tensor:
    if tables.reverse_neighbors is not None:
        return tables.reverse_neighbors
    return transpose_neighbors(tables.neighbors, tables.opposite, tables.num_lattice_points)
