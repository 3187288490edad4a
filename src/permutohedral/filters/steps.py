"""Splat, convolve, slice: the steps of every filter, validated, batched, differentiable.

Shapes of values, by the lattice (`build_lattice`):
    one set of points         values `[points, channels]`, on the lattice `[lattice_points, channels]`
    a lattice for each item   values `[batch, points, channels]`, on the lattice `[lattice_points, channels]`,
                              the lattice points of all items together
    one lattice for many      values `[..., points, channels]` over features `[points, d]`, on the lattice
                              `[..., lattice_points, channels]`
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.lattice.checks import (
    bind_on_lattice,
    check_points,
    check_weight,
    count,
    lattice_to_rows,
    points_to_rows,
    rows_to_points,
    to_autocast,
    unfold,
)
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.memory import check_known_rows, check_rows
from permutohedral.ops.backend import Backend
from permutohedral.ops.binding import bind


def splat(values: Tensor, lattice: Lattice, reduce: Literal["sum", "max"] = "sum") -> Tensor:
    """Sum the values of the source points into the lattice: l_j = sum_{i in C(j)} b_{i,j} v_i.

    Args:
        values: float `[points, channels]`, `[batch, points, channels]` or `[..., points, channels]`.
        lattice: from `build_lattice`.
        reduce: "sum"; or "max", the largest value of each channel among the points C(j) around a lattice point,
            whatever their weights; zero where there are none, as in a halo.

    Returns:
        `[lattice_points, channels]`, or `[..., lattice_points, channels]` where many share one lattice.

    >>> import torch
    >>> import permutohedral as ph
    >>> lattice = ph.build_lattice(torch.rand(100, 2))
    >>> float(ph.splat(torch.ones(100, 1), lattice).sum().round())
    100.0
    """
    if reduce not in ("sum", "max"):
        raise InputError(f"reduce must be 'sum' or 'max', got {reduce!r}")
    check_points(values, lattice)
    ops = bind(values, lattice.source.barycentric)
    if reduce == "sum":
        return splat_points(ops, values, lattice)
    rows, leading = points_to_rows(values, lattice)
    source, number = lattice.source, lattice.source.keys.shape[0]
    check_rows(number, rows.shape[1], rows)
    return unfold(ops.splat_largest(rows, source.vertices, number), leading)


def splat_points(ops: Backend, values: Tensor, lattice: Lattice) -> Tensor:
    """Splat checked values."""
    rows, leading = points_to_rows(values, lattice)
    source, number = lattice.source, lattice.source.keys.shape[0]
    if ops.name:
        check_known_rows(number, rows.shape[1], rows)
    splatted = ops.splat(rows, source.vertices, source.barycentric, number)
    return unfold(splatted, leading) if leading else splatted


def convolve(lattice_values: Tensor, weight: Tensor, lattice: Lattice) -> Tensor:
    """Correlate lattice values with a filter: l'_v = sum_k w_k l_{v + offset_k}.

    A neighbor that no source point touches reads as zero. The number of groups follows from the shapes.

    Args:
        lattice_values: `[lattice_points, in_channels]` or `[..., lattice_points, in_channels]`, from `splat`.
        weight: `[filter_size, in_channels / groups, out_channels]`, of the same dtype; or `[filter_size]`, one
            filter for every channel.
        lattice: from `build_lattice`, of the neighborhood size of the filter.

    Returns:
        `[target lattice_points, out_channels]`, with the leading axes of `lattice_values`.

    >>> import torch
    >>> import permutohedral as ph
    >>> lattice = ph.build_lattice(torch.rand(100, 2) * 9, neighborhood_size=1)
    >>> weight = torch.randn(7, 4, 8)
    >>> ph.convolve(ph.splat(torch.rand(100, 4), lattice), weight, lattice).shape[1]
    8
    """
    ops = bind_on_lattice(lattice_values, lattice, lattice.source, weight)
    return convolve_lattice(ops, lattice_values, weight, lattice)


def convolve_lattice(ops: Backend, lattice_values: Tensor, weight: Tensor, lattice: Lattice) -> Tensor:
    """Convolve checked values."""
    rows, leading = (lattice_values, ()) if lattice_values.dim() == 2 else lattice_to_rows(lattice_values)
    if torch.is_autocast_enabled(rows.device.type):
        rows, weight = to_autocast(rows, weight)
    items = count(leading) if leading else 1
    weight, groups = check_weight(weight, rows.shape[1] // max(items, 1), rows, lattice)
    # items that share a lattice are folded into channels, so they are groups of their own
    if items > 1:
        weight, groups = weight.repeat(1, 1, items), groups * items
    if ops.name:
        check_known_rows(lattice.target.keys.shape[0], weight.shape[2], rows)
    neighbors = lattice.neighbors
    reverse = neighbors if lattice.source.keys is lattice.target.keys else None
    convolved = ops.convolve(rows, weight, neighbors, groups, reverse, lattice.opposite)
    return unfold(convolved, leading) if leading else convolved


def slice(lattice_values: Tensor, lattice: Lattice) -> Tensor:
    """Interpolate lattice values at the target points: v'_k = sum_{j in C(k)} b_{k,j} l'_j. The adjoint of `splat`.

    Args:
        lattice_values: `[target lattice_points, channels]`, or `[..., target lattice_points, channels]`.
        lattice: from `build_lattice`.

    Returns:
        `[target points, channels]`, `[batch, target points, channels]` or `[..., target points, channels]`.

    >>> import torch
    >>> import permutohedral as ph
    >>> lattice = ph.build_lattice(torch.rand(100, 2), target_features=torch.rand(50, 2), neighborhood_size=0)
    >>> ph.slice(ph.convolve(ph.splat(torch.rand(100, 3), lattice), torch.ones(1), lattice), lattice).shape
    torch.Size([50, 3])
    """
    ops = bind_on_lattice(lattice_values, lattice, lattice.target, lattice.target.barycentric)
    return slice_lattice(ops, lattice_values, lattice)


def slice_lattice(ops: Backend, lattice_values: Tensor, lattice: Lattice) -> Tensor:
    """Slice checked values."""
    rows, leading = (lattice_values, ()) if lattice_values.dim() == 2 else lattice_to_rows(lattice_values)
    target = lattice.target
    if ops.name:
        check_known_rows(target.vertices.shape[0], rows.shape[1], rows)
    return rows_to_points(ops.slice(rows, target.vertices, target.barycentric), lattice, leading)
