"""Lattice values between levels, and the largest around lattice points, by the compiled core."""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.ops.primitives import accumulation_dtype


def coarsen_values(values: Tensor, parents: Tensor, num_coarse: int) -> Tensor:
    """See `ops.level_operators`."""
    from permutohedral.ops import native

    dtype, channels = accumulation_dtype(values.dtype), values.shape[1]
    out = native._empty((num_coarse, channels), dtype)
    if out.numel() > 0:
        operands = native._plain(values, dtype), native._plain(parents)
        native._core(dtype).coarsen_values(*operands, out, native._threads(values.numel()))
    return out.to(values.dtype)


def refine_values(values: Tensor, parents: Tensor, added: Tensor | None) -> Tensor:
    """See `ops.level_operators`."""
    from permutohedral.ops import native

    dtype = accumulation_dtype(values.dtype)
    out = native._empty((parents.shape[0], values.shape[1]), dtype)
    if out.numel() > 0:
        operands = native._plain(values, dtype), native._plain(parents)
        others = None if added is None else native._plain(added, dtype)
        native._core(dtype).refine_values(*operands, others, out, native._threads(out.numel()))
    return out.to(values.dtype)


def splat_largest(values: Tensor, vertices: Tensor, num_lattice_points: int) -> tuple[Tensor, Tensor]:
    """See `Primitives.splat_largest`."""
    from permutohedral.ops import native

    dtype, shape = accumulation_dtype(values.dtype), (num_lattice_points, values.shape[1])
    out, winners = native._empty(shape, dtype), native._empty(shape, torch.int32)
    if out.numel() > 0:
        threads = native._threads(vertices.numel() * values.shape[1])
        operands = native._plain(values, dtype), native._plain(vertices)
        native._core(dtype).splat_largest(*operands, out, winners, threads)
    return out.to(values.dtype), winners


def largest_gradient(gradient: Tensor, winners: Tensor, vertices: Tensor) -> Tensor:
    """See `Primitives.largest_gradient`."""
    from permutohedral.ops import native

    dtype = accumulation_dtype(gradient.dtype)
    out = native._empty((vertices.shape[0], gradient.shape[1]), dtype)
    if out.numel() > 0:
        operands = native._plain(gradient, dtype), native._plain(winners), native._plain(vertices)
        native._core(dtype).largest_gradient(*operands, out, native._threads(vertices.numel() * gradient.shape[1]))
    return out.to(gradient.dtype)
