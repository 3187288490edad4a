"""The learned filter in one call: splat, divide by the density, convolve, slice, add the bias."""

from __future__ import annotations

from torch import Tensor

from permutohedral.ops.primitives import FilterTables
from permutohedral.ops.triton.filter.convolve import convolve
from permutohedral.ops.triton.filter.slice import slice_into
from permutohedral.ops.triton.filter.splat import normalize, splat_sums
from permutohedral.ops.triton.runtime import on_device, power_of_two


def _splat(values: Tensor, tables: FilterTables) -> tuple[Tensor, Tensor | None]:
    """Lattice values in the dtype of `values`, and the density they were divided by, if they were."""
    corners, channels = (tables.vertices, tables.barycentric, tables.num_lattice_points), values.shape[1]
    if not tables.by_density:
        sums = splat_sums(values, *corners, 0)
        return sums if sums.dtype == values.dtype else normalize(sums, None, channels, values.dtype), None
    # a channel of ones beside the others, unless the tiles of the kernel would be twice as wide for it
    if channels < 8 or power_of_two(channels + 1) == power_of_two(channels):
        sums = density = splat_sums(values, *corners, 1)
    else:
        sums = splat_sums(values, *corners, 0)
        density = splat_sums(values[:, :0], *corners, 1)
    return normalize(sums, density, channels, values.dtype), density[:, -1]


@on_device
def filter_learned(
    values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The result `[target points, out_channels]`; then what its derivative needs: lattice values, and density."""
    output = values.new_empty(tables.target_vertices.shape[0], weight.shape[2])
    lattice_values, density = _splat(values, tables)
    convolved = convolve(lattice_values, weight, tables.neighbors, tables.groups)
    slice_into(output, convolved, tables.target_vertices, tables.target_barycentric, bias)
    return output, lattice_values, density
