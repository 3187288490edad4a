"""Sums of few rows, and of lattice points beside others and under cells: with the package's ways to borrow tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from permutohedral.ops.primitives import accumulation_dtype

# of memory that the core keeps by default
_MOST_KEPT_BYTES = 1 << 29


def mix_rows(rows: Tensor, vertices: Tensor, weights: Tensor, planes: bool) -> Tensor:
    """See `FusedPrimitives.mix_rows`."""
    from permutohedral.ops import native

    dtype, points, channels = accumulation_dtype(rows.dtype), vertices.shape[0], rows.shape[1]
    shape = (channels, points) if planes else (points, channels)
    # a result that the core would not keep is not worth its huge pages: where free ones are given back to a host, as in
    # many virtual machines, new ones take three times as long as small ones
    large = points * channels * dtype.itemsize > _MOST_KEPT_BYTES
    out = torch.empty(shape, dtype=dtype) if large else native._empty(shape, dtype)
    if out.numel() > 0:
        operands = native._plain(rows, dtype), native._plain(vertices), native._plain(weights, dtype)
        native._core(dtype).mix_rows(*operands, planes, out, native._threads(out.numel()))
    return out.to(rows.dtype)


def add_beside(rows: Tensor, axis_neighbors: Tensor) -> Tensor:
    """See `FusedPrimitives.add_beside`."""
    from permutohedral.ops import native

    dtype = accumulation_dtype(rows.dtype)
    out = native._empty(rows.shape, dtype)
    if out.numel() > 0:
        threads = native._threads(axis_neighbors.numel() * rows.shape[1])
        native._core(dtype).add_beside(native._plain(rows, dtype), native._plain(axis_neighbors), out, threads)
    return out.to(rows.dtype)


def sum_cells(
    vertices: Tensor, barycentric: Tensor, coarse: tuple[int, ...], fine: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """See `FusedPrimitives.sum_cells`."""
    from permutohedral.ops import native

    items, padding = vertices.shape[0] // math.prod(fine), [1] * (3 - len(fine))
    core, operands = native._core(barycentric.dtype), (native._plain(vertices), native._plain(barycentric))
    sums = core.sum_cells(*operands, items, [*padding, *coarse], [*padding, *fine], native._threads(vertices.numel()))
    shape = sums.num_rows, sums.terms
    cells, points = native._empty(shape[:1], torch.int32), native._empty(shape, torch.int32)
    weights = native._empty(shape, barycentric.dtype)
    sums.write(cells, points, weights)
    return cells, points, weights
