"""Sums of few rows, and of lattice points beside others and under cells."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from permutohedral.ops.native import lending
from permutohedral.ops.primitives import accumulation_dtype

# of memory that the core keeps by default
_MOST_KEPT_BYTES = 1 << 29


def mix_rows(rows: Tensor, vertices: Tensor, weights: Tensor, planes: bool) -> Tensor:
    dtype, points, channels = accumulation_dtype(rows.dtype), vertices.shape[0], rows.shape[1]
    shape = (channels, points) if planes else (points, channels)
    # a result that the core would not keep is not worth its huge pages: where free ones are given back to a host, as in
    # many virtual machines, new ones take three times as long as small ones
    large = points * channels * dtype.itemsize > _MOST_KEPT_BYTES
    out = torch.empty(shape, dtype=dtype, device=lending.CPU) if large else lending.empty(shape, dtype)
    if out.numel() > 0:
        lending.core(dtype).mix_rows(rows, vertices, weights, planes, out, lending.threads(out.numel()))
    return out.to(rows.dtype)


def add_beside(rows: Tensor, axis_neighbors: Tensor) -> Tensor:
    return lending.summed("add_beside", rows.shape, axis_neighbors.numel() * rows.shape[1], rows, axis_neighbors)


def sum_cells(
    vertices: Tensor, barycentric: Tensor, coarse: tuple[int, ...], fine: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    items, padding = vertices.shape[0] // math.prod(fine), [1] * (3 - len(fine))
    grids = [*padding, *coarse], [*padding, *fine]
    core, threads = lending.core(barycentric.dtype), lending.threads(vertices.numel())
    sums = core.sum_cells(vertices, barycentric, items, *grids, threads)
    shape = sums.num_rows, sums.terms
    cells, points = lending.empty(shape[:1], torch.int32), lending.empty(shape, torch.int32)
    weights = lending.empty(shape, barycentric.dtype)
    sums.write(cells, points, weights)
    return cells, points, weights
