"""All gradients of a convolution in one group at once: they share what is made of their inputs."""

from __future__ import annotations

from torch import Tensor

from permutohedral.ops.fused_primitives import ConvolutionTables
from permutohedral.ops.triton.filter.convolve import convolve_adjoint, convolve_halves, float32_precision, uses_halves
from permutohedral.ops.triton.filter.normalize import sum_rows
from permutohedral.ops.triton.filter.scaled_float16 import halve
from permutohedral.ops.triton.filter.weight_gradient import gradient_of_halves, weight_and_bias_gradient
from permutohedral.ops.triton.runtime import on_device, rows_contiguous


@on_device
def convolve_gradients(
    lattice_values: Tensor,
    weight: Tensor,
    output_gradient: Tensor,
    tables: ConvolutionTables,
    wanted: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """All gradients of the convolution in one group: see `FusedPrimitives`. Halves are made once; without them, the
    adjoint reads the weight as it lies."""
    _, in_channels, out_channels = weight.shape
    neighbors, reverse, opposite = tables.neighbors.contiguous(), tables.reverse, tables.opposite
    rows, slope = rows_contiguous(lattice_values), rows_contiguous(output_gradient)
    precision = float32_precision(weight.dtype)
    if not uses_halves(precision, in_channels, out_channels, True):
        to_values = convolve_adjoint(slope, weight, reverse, opposite, 1, precision) if wanted[0] else None
        return to_values, *weight_and_bias_gradient(rows, slope, neighbors, 1, precision, wanted[1])
    values, gradient = halve(rows, slope)
    to_values = convolve_halves(*gradient, weight, reverse.contiguous(), opposite) if wanted[0] else None
    to_bias = sum_rows(slope) if wanted[1] else None
    return to_values, gradient_of_halves(values, gradient, neighbors, 1), to_bias
