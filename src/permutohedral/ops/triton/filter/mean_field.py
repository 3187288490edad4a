"""The mean field of a dense conditional random field.

A step is a kernel that slices the lattices of all kernels and takes the softmax, then splat and blur for each of them.
Scales and factors are part of the barycentric weights. Tiles are `[BLOCK points, BLOCK_L labels]`; rows of many labels
are padded with zeros to WIDTH elements, so that a thread reads four of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.fused_primitives import SMALLEST_MASS, PairwiseTables
from permutohedral.ops.triton.filter.blur import blur, blur_rows
from permutohedral.ops.triton.filter.incidence import Incidence, list_corners, splat_listed
from permutohedral.ops.triton.filter.splat import splat_sums
from permutohedral.ops.triton.runtime import WIDEST_TILE, cdiv, launch, on_device, tile

# the kernel has arguments for as many lattices
_MOST_KERNELS = 2
# labels that are not padded; and what the others are padded to a multiple of
_NARROW, _ALIGNED = 4, 4
_MASS_BLOCK = 256


@triton.jit(do_not_specialize=["num_points", "vertex_corner_stride", "weight_corner_stride"])
def divide_weights_kernel(
    lattice_masses, vertices, weights, output, num_points, vertex_corner_stride, weight_corner_stride,
    ROOT: tl.constexpr, SMALLEST: tl.constexpr, VERTEX_STRIDE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr,
    CORNERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The weights of every point divided by its mass, sliced from the lattice, or by the ROOT of that."""
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    mass = tl.zeros([BLOCK], output.dtype.element_ty)
    for corner in tl.static_range(CORNERS):
        vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=0)
        weight = tl.load(weights + point * WEIGHT_STRIDE + corner * weight_corner_stride, mask=inside, other=0.0)
        mass += weight * tl.load(lattice_masses + vertex, mask=inside, other=1.0)
    mass += SMALLEST
    divisor = tl.sqrt(mass) if ROOT else mass
    for corner in tl.static_range(CORNERS):
        place = point * WEIGHT_STRIDE + corner * weight_corner_stride
        tl.store(output + place, tl.load(weights + place, mask=inside, other=0.0) / divisor, mask=inside)


@triton.jit
def add_slice(
    logits, lattice_values, vertices, weights, point, inside, label, vertex_corner_stride, weight_corner_stride,
    WIDTH: tl.constexpr, VERTEX_STRIDE: tl.constexpr, WEIGHT_STRIDE: tl.constexpr, CORNERS: tl.constexpr,
):  # fmt: skip
    """Add what lies at the points of one lattice."""
    for corner in tl.static_range(CORNERS):
        vertex = tl.load(vertices + point * VERTEX_STRIDE + corner * vertex_corner_stride, mask=inside, other=0)
        weight = tl.load(weights + point * WEIGHT_STRIDE + corner * weight_corner_stride, mask=inside, other=0.0)
        place = lattice_values + vertex.to(tl.int64)[:, None] * WIDTH + label[None, :]
        present = inside[:, None] & (label < WIDTH)[None, :]
        logits += weight[:, None] * tl.load(place, mask=present, other=0.0)
    return logits


@triton.jit(
    do_not_specialize=[
        "num_points", "points_per_item", "first_vertex_stride", "first_weight_stride", "second_vertex_stride",
        "second_weight_stride",
    ]
)  # fmt: skip
def marginals_kernel(
    energies, output, first_values, first_vertices, first_weights, second_values, second_vertices, second_weights,
    num_points, points_per_item, first_vertex_stride, first_weight_stride, second_vertex_stride, second_weight_stride,
    KERNELS: tl.constexpr, PLANES: tl.constexpr, LABELS: tl.constexpr, WIDTH: tl.constexpr,
    FIRST_VERTEX: tl.constexpr, FIRST_WEIGHT: tl.constexpr, FIRST_CORNERS: tl.constexpr,
    SECOND_VERTEX: tl.constexpr, SECOND_WEIGHT: tl.constexpr, SECOND_CORNERS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """softmax(-energies + slices of KERNELS lattices), as rows `[points, WIDTH]`, or as PLANES like energies.

    Energies are `[items, labels, points_per_item]`.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    label = tl.arange(0, BLOCK_L)
    inside = point < num_points
    known = inside[:, None] & (label < LABELS)[None, :]
    dtype: tl.constexpr = output.dtype.element_ty
    item = point // points_per_item
    start = item * LABELS * points_per_item + (point - item * points_per_item)
    plane = start[:, None] + label.to(tl.int64)[None, :] * points_per_item
    logits = -tl.load(energies + plane, mask=known, other=0.0).to(dtype)
    if KERNELS > 0:
        logits = add_slice(
            logits, first_values, first_vertices, first_weights, point, inside, label, first_vertex_stride,
            first_weight_stride, WIDTH, FIRST_VERTEX, FIRST_WEIGHT, FIRST_CORNERS,
        )  # fmt: skip
    if KERNELS > 1:
        logits = add_slice(
            logits, second_values, second_vertices, second_weights, point, inside, label, second_vertex_stride,
            second_weight_stride, WIDTH, SECOND_VERTEX, SECOND_WEIGHT, SECOND_CORNERS,
        )  # fmt: skip
    logits = tl.where(known, logits, float("-inf"))
    highest = tl.max(logits, axis=1)
    # points behind the last, or with no possible label, have nothing but infinities
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    exponentials = tl.exp(logits - highest[:, None])
    total = tl.sum(exponentials, axis=1)
    marginals = exponentials / tl.where(total > 0, total, 1.0)[:, None]
    if PLANES:
        tl.store(output + plane, marginals, mask=known)
    else:
        place = output + point[:, None] * WIDTH + label[None, :]
        tl.store(place, marginals, mask=inside[:, None] & (label < WIDTH)[None, :])


@dataclass(frozen=True)
class _Kernel:
    """The tables of a kernel with its scales in the weights, and its costs for padded rows.

    `incidence` lists the points at each lattice point, None where they are added without it.
    """

    tables: PairwiseTables
    source_weights: Tensor
    target_weights: Tensor
    costs: Tensor | None
    incidence: Incidence | None

    def filter(self, marginals: Tensor) -> Tensor:
        """From rows `[points, width]` to the lattice, ready to be sliced."""
        neighbors = self.tables.axis_neighbors
        if self.incidence is None:
            splatted = splat_sums(marginals, self.tables.vertices, self.source_weights, neighbors.shape[1], 0)
        else:
            splatted = splat_listed(marginals, self.incidence, marginals.dtype)
        blurred = blur(splatted, neighbors, False)
        if self.tables.both_ways:
            blurred = (blurred + blur(splatted, neighbors, True)) / 2
        return blurred if self.costs is None else (blurred @ self.costs).contiguous()


def _width(labels: int) -> int:
    """Elements of a row."""
    return labels if labels <= _NARROW else cdiv(labels, _ALIGNED) * _ALIGNED


def _divided_by_mass(tables: PairwiseTables) -> Tensor:
    """The barycentric weights divided by the mass of their point, or by its root."""
    vertices, weights, neighbors = tables.vertices, tables.barycentric, tables.axis_neighbors.contiguous()
    # of no values, beside a channel of ones
    ones = splat_sums(weights[:, :0], vertices, weights, neighbors.shape[1], 1)
    masses, points = blur_rows(ones, neighbors, False, None), weights.shape[0]
    # in the order of the weights, with room where they have it
    output = torch.empty_strided(weights.shape, weights.stride(), dtype=weights.dtype, device=weights.device)
    launch(
        divide_weights_kernel, (cdiv(points, _MASS_BLOCK),), (masses, vertices, weights, output),
        (points, vertices.stride(1), weights.stride(1)), ROOT=tables.source_power == tables.target_power,
        SMALLEST=SMALLEST_MASS, VERTEX_STRIDE=vertices.stride(0), WEIGHT_STRIDE=weights.stride(0),
        CORNERS=vertices.shape[1], BLOCK=_MASS_BLOCK,
    )  # fmt: skip
    return output


def _with_scales(tables: PairwiseTables, labels: int, steps: int) -> _Kernel:
    weights = tables.barycentric
    scaled = weights if tables.source_power == tables.target_power == 0 else _divided_by_mass(tables)
    source = scaled if tables.source_power > 0 else weights
    target = scaled if tables.target_power > 0 else weights
    behind, costs = _width(labels) - labels, tables.costs
    if costs is not None:
        costs = F.pad(costs.to(weights.dtype), (0, behind, 0, behind))
    # for one splat, or of few labels, it would take longer than it saves
    is_listed = steps > 1 and labels > _NARROW
    incidence = list_corners(tables.vertices, source, tables.axis_neighbors.shape[1]) if is_listed else None
    return _Kernel(tables, source, target * tables.factor, costs, incidence)


def _marginals(energies: Tensor, kernels: Sequence[_Kernel], values: Sequence[Tensor], planes: bool) -> Tensor:
    """The next marginals; `values` on the lattices of the kernels, none of them for softmax(-energies)."""
    items, labels, points = energies.shape
    shape = energies.shape if planes else (items * points, _width(labels))
    output = torch.empty(shape, dtype=kernels[0].target_weights.dtype, device=energies.device)
    tensors, sizes = [energies, output], [items * points, points]
    constants: dict[str, int] = {}
    for number, name in enumerate(("FIRST", "SECOND")):
        kernel = kernels[min(number, len(kernels) - 1)]
        vertices, weights = kernel.tables.vertices, kernel.target_weights
        tensors += [values[number] if number < len(values) else output, vertices, weights]
        sizes += [vertices.stride(1), weights.stride(1)]
        constants |= {f"{name}_VERTEX": vertices.stride(0), f"{name}_WEIGHT": weights.stride(0)}
        constants[f"{name}_CORNERS"] = vertices.shape[1]
    blocks = tile(_width(labels))
    launch(
        marginals_kernel, (cdiv(items * points, blocks["BLOCK"]),), tuple(tensors), tuple(sizes),
        KERNELS=len(values), PLANES=planes, LABELS=labels, WIDTH=_width(labels), **constants, BLOCK=blocks["BLOCK"],
        BLOCK_L=blocks["BLOCK_C"],
    )  # fmt: skip
    return output


@on_device
def mean_field(energies: Tensor, start: Tensor | None, kernels: Sequence[PairwiseTables], steps: int) -> Tensor | None:
    """All steps, None for more kernels or labels than the kernel takes: see `FusedPrimitives`."""
    items, labels, points = energies.shape
    if len(kernels) > _MOST_KERNELS or labels > WIDEST_TILE or energies.numel() == 0:
        return None
    energies = energies.contiguous()
    scaled = [_with_scales(each, labels, steps) for each in kernels]
    values: list[Tensor] = []
    for step in range(steps):
        if step == 0 and start is not None:
            marginals = start.to(scaled[0].target_weights.dtype).transpose(1, 2).reshape(items * points, labels)
            marginals = F.pad(marginals, (0, _width(labels) - labels))
        else:
            marginals = _marginals(energies, scaled, values, planes=False)
        values = [kernel.filter(marginals) for kernel in scaled]
    return _marginals(energies, scaled, values, planes=True)
