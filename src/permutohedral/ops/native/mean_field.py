"""The mean field, its logits, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from permutohedral._native import KeptField
from permutohedral.ops.fused_primitives import PairwiseTables
from permutohedral.ops.native import lending
from permutohedral.ops.native.lending import plain
from permutohedral.ops.primitives import energies_error

if TYPE_CHECKING:
    from permutohedral._native import BorrowedKernel


def mean_field(energies: Tensor, start: Tensor | None, kernels: Sequence[PairwiseTables], steps: int) -> Tensor:
    """One pass over the points for each step; the marginals are stored in the last one only."""
    return _run(energies, start, kernels, steps, None)


def mean_field_logits(
    energies: Tensor, start: Tensor | None, kernels: Sequence[PairwiseTables], steps: int
) -> tuple[Tensor, KeptField]:
    """See `FusedPrimitives`. What was blurred in each step is kept, from which marginals are made again."""
    kept = KeptField()
    return _run(energies, start, kernels, steps, kept), kept


def _run(
    energies: Tensor, start: Tensor | None, kernels: Sequence[PairwiseTables], steps: int, kept: KeptField | None
) -> Tensor:
    dtype, threads = kernels[0].barycentric.dtype, lending.threads(energies.numel())
    core, energies = lending.core(dtype), plain(energies, dtype)
    if core.is_sum_nan(energies, threads):
        raise energies_error()
    out = lending.empty(energies.shape, dtype)
    if out.numel() > 0:
        core.mean_field(energies, start, _borrow(kernels, dtype), steps, out, kept, threads)
    return out


def differentiate_mean_field(
    gradient: Tensor,
    energies: Tensor,
    start: Tensor | None,
    kernels: Sequence[PairwiseTables],
    steps: int,
    kept: KeptField,
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """See `FusedPrimitives`. One pass over the points for each step, as in the mean field."""
    dtype, threads = kernels[0].barycentric.dtype, lending.threads(energies.numel())
    to_energies = lending.empty(energies.shape, dtype)
    to_start = None if start is None else lending.empty(energies.shape, dtype)
    to_kernels = [
        torch.empty((1, 1) if kernel.costs is None else kernel.costs.shape, dtype=dtype, device="cpu")
        for kernel in kernels
    ]
    lending.core(dtype).mean_field_gradient(
        energies, start, _borrow(kernels, dtype), steps, kept, gradient, to_energies, to_start, to_kernels, threads
    )
    return to_energies, to_start, to_kernels


def _borrow(kernels: Sequence[PairwiseTables], dtype: torch.dtype) -> list[BorrowedKernel]:
    borrow = lending.core(dtype).PairwiseKernel
    return [borrow(*kernel[:-2], float(kernel.factor), kernel.both_ways) for kernel in kernels]
