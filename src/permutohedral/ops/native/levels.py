"""Lattice values between levels, and the largest around lattice points, by the compiled core."""

from __future__ import annotations

import torch
from torch import Tensor

from permutohedral.ops.native import lending
from permutohedral.ops.primitives import accumulation_dtype


def coarsen_values(values: Tensor, parents: Tensor, num_coarse: int) -> Tensor:
    return lending.summed("coarsen_values", (num_coarse, values.shape[1]), values.numel(), values, parents)


def refine_values(values: Tensor, parents: Tensor, added: Tensor | None) -> Tensor:
    shape = parents.shape[0], values.shape[1]
    return lending.summed("refine_values", shape, shape[0] * shape[1], values, parents, added)


def splat_largest(values: Tensor, vertices: Tensor, num_lattice_points: int) -> tuple[Tensor, Tensor]:
    dtype, shape = accumulation_dtype(values.dtype), (num_lattice_points, values.shape[1])
    out, winners = lending.empty(shape, dtype), lending.empty(shape, torch.int32)
    if out.numel() > 0:
        threads = lending.threads(vertices.numel() * values.shape[1])
        lending.core(dtype).splat_largest(values, vertices, out, winners, threads)
    return out.to(values.dtype), winners


def largest_gradient(gradient: Tensor, winners: Tensor, vertices: Tensor) -> Tensor:
    shape = vertices.shape[0], gradient.shape[1]
    return lending.summed("largest_gradient", shape, vertices.numel() * shape[1], gradient, winners, vertices)
