"""The largest values around lattice points, with the ways of the package to borrow tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.ops.primitives import accumulation_dtype


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
