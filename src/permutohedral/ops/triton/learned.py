"""The learned filter in one go: splat, divide by the density, convolve, slice, add the bias."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.primitives import FilterTables
from permutohedral.ops.triton.convolution import convolve
from permutohedral.ops.triton.filtering import slice_into, splat_sums, tile
from permutohedral.ops.triton.launch import launch, on_device, power_of_two


@triton.jit(do_not_specialize=["num_rows"])
def normalize_kernel(
    sums, density, output, num_rows, HAS_DENSITY: tl.constexpr, CHANNELS: tl.constexpr, SUM_STRIDE: tl.constexpr,
    DENSITY_STRIDE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The sums in the dtype of the output, divided by the density of their lattice point where that is not zero."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = row < num_rows
    real = inside[:, None] & (channel < CHANNELS)[None, :]
    total = tl.load(sums + row[:, None] * SUM_STRIDE + channel[None, :], mask=real, other=0.0)
    if HAS_DENSITY:
        mass = tl.load(density + row * DENSITY_STRIDE, mask=inside, other=1.0)
        total = total / tl.where(mass > 0, mass, 1.0)[:, None]
    place = output + row[:, None] * CHANNELS + channel[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=real)


def _normalize(sums: Tensor, density: Tensor | None, channels: int, dtype: torch.dtype) -> Tensor:
    """`[lattice_points, channels]` of `dtype`, from the first channels of `sums`."""
    output = torch.empty(sums.shape[0], channels, dtype=dtype, device=sums.device)
    if output.numel():
        grid, blocks = tile(sums.shape[0], channels)
        launch(
            normalize_kernel, grid, sums, density, output, sums.shape[0], HAS_DENSITY=density is not None,
            CHANNELS=channels, SUM_STRIDE=sums.stride(0), DENSITY_STRIDE=1 if density is None else density.stride(0),
            **blocks,
        )  # fmt: skip
    return output


def _splat(values: Tensor, tables: FilterTables) -> tuple[Tensor, Tensor | None]:
    """Lattice values in the dtype of `values`, and the density they were divided by, if they were."""
    corners, channels = (tables.vertices, tables.barycentric, tables.num_lattice_points), values.shape[1]
    if not tables.by_density:
        sums = splat_sums(values, *corners, 0)
        return sums if sums.dtype == values.dtype else _normalize(sums, None, channels, values.dtype), None
    # a channel of ones beside the others, unless the tiles of the kernel would be twice as wide for it
    if channels < 8 or power_of_two(channels + 1) == power_of_two(channels):
        sums = splat_sums(values, *corners, 1)
        density = sums[:, channels]
    else:
        sums = splat_sums(values, *corners, 0)
        density = splat_sums(values[:, :0], *corners, 1)[:, 0]
    return _normalize(sums, density, channels, values.dtype), density


@on_device
def filter_learned(
    values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The result `[target points, out_channels]`; then what its derivative needs: lattice values, and density."""
    lattice_values, density = _splat(values, tables)
    convolved = convolve(lattice_values, weight, tables.neighbors, tables.groups)
    output = torch.empty(tables.target_vertices.shape[0], weight.shape[2], dtype=values.dtype, device=values.device)
    slice_into(output, convolved, tables.target_vertices, tables.target_barycentric, bias)
    return output, lattice_values, density
