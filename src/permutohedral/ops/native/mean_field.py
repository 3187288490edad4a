"""The mean field, its logits, and their gradients: with the ways of the package to borrow tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from permutohedral.ops.fused_primitives import PairwiseTables
from permutohedral.ops.primitives import energies_error

if TYPE_CHECKING:
    from permutohedral._native import BorrowedKernel, KeptField


def mean_field(energies: Tensor, start: Tensor | None, kernels: Sequence[PairwiseTables], steps: int) -> Tensor:
    """One pass over the points for each step; the marginals are stored in the last one only."""
    return _run(energies, start, kernels, steps, None)


def mean_field_logits(
    energies: Tensor, start: Tensor | None, kernels: Sequence[PairwiseTables], steps: int
) -> tuple[Tensor, KeptField]:
    """See `FusedPrimitives`. What was blurred in each step is kept, from which marginals are made again."""
    from permutohedral import _native

    kept = _native.KeptField()
    return _run(energies, start, kernels, steps, kept), kept


def _run(
    energies: Tensor, start: Tensor | None, kernels: Sequence[PairwiseTables], steps: int, kept: KeptField | None
) -> Tensor:
    from permutohedral.ops import native

    dtype, threads = kernels[0].barycentric.dtype, native._threads(energies.numel())
    core, energies = native._core(dtype), native._plain(energies, dtype)
    if core.is_sum_nan(energies, threads):
        raise energies_error()
    out = native._empty(energies.shape, dtype)
    if out.numel() > 0:
        start = None if start is None else native._plain(start, dtype)
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
    from permutohedral.ops import native

    dtype, threads = kernels[0].barycentric.dtype, native._threads(energies.numel())
    planes, gradient = native._plain(energies, dtype), native._plain(gradient, dtype)
    begin = None if start is None else native._plain(start, dtype)
    to_energies = native._empty(energies.shape, dtype)
    to_start = None if start is None else native._empty(energies.shape, dtype)
    to_kernels = [
        torch.empty((1, 1) if kernel.costs is None else kernel.costs.shape, dtype=dtype, device="cpu")
        for kernel in kernels
    ]
    native._core(dtype).mean_field_gradient(
        planes, begin, _borrow(kernels, dtype), steps, kept, gradient, to_energies, to_start, to_kernels, threads
    )
    return to_energies, to_start, to_kernels


def _borrow(kernels: Sequence[PairwiseTables], dtype: torch.dtype) -> list[BorrowedKernel]:
    from permutohedral.ops import native

    borrowed = []
    for kernel in kernels:
        costs = None if kernel.costs is None else native._plain(kernel.costs, dtype)
        arguments: list[Any] = [*map(native._plain, kernel[:3]), *kernel[3:5], costs, *kernel[6:]]
        borrowed.append(native._core(dtype).PairwiseKernel(*arguments))
    return borrowed
