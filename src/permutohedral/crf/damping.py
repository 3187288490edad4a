"""Damping t of a step, with which the mean field does not oscillate.

A step minimizes <Q', U + K Q mu> + <Q', log Q'> + sum_i t_i KL(Q'_i, Q_i). The free energy falls if the last term
exceeds what the first one neglects, <D, K D mu> / 2 with D = Q' - Q. Each row of D sums to zero, so Pinsker's
inequality says KL(Q'_i, Q_i) >= |D_i|_1^2 / 2 >= |D_i|^2; and K with entries that are not negative is at most the
diagonal of its rows' sums k. So t_i = lambda k_i / 2 is enough, with lambda the largest eigenvalue of mu on vectors
that sum to zero. It is zero for Potts models that attract.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from permutohedral.crf.pairwise import CheckedFilter
from permutohedral.errors import InputError
from permutohedral.ops.tracing import is_traced

Damping = float | Literal["auto"]


def find_repulsions(
    damping: Damping, compatibilities: Sequence[float | Tensor], labels: int
) -> list[float | Tensor] | None:
    """Return lambda of each kernel for `find_damping`, or None if damping is a number.

    Raises:
        InputError: damping is neither "auto" nor a number that is finite and not negative.
    """
    if damping == "auto":
        return [largest_eigenvalue(each, labels) for each in compatibilities]
    if isinstance(damping, bool) or not isinstance(damping, (int, float)):
        raise InputError(f"damping must be 'auto' or a number, got {damping!r}")
    if not (math.isfinite(damping) and damping >= 0):
        raise InputError(f"damping must be finite and not negative, got {damping}")
    return None


def is_undamped(damping: Damping, repulsions: Sequence[float | Tensor] | None) -> bool:
    """Return whether t is known to be zero."""
    if repulsions is None:
        return damping == 0
    return not any(isinstance(each, Tensor) or each > 0 for each in repulsions)


def find_damping(
    damping: Damping, repulsions: Sequence[float | Tensor] | None, pairwise: Sequence[CheckedFilter]
) -> float | Tensor:
    """Return t, a number or one for each row, `[rows, 1]`."""
    if repulsions is None:
        return float(damping)
    total: float | Tensor = 0.0
    for repulsion, pair in zip(repulsions, pairwise, strict=True):
        if isinstance(repulsion, Tensor) or repulsion > 0:
            total = total + repulsion / 2 * pair.bound()
    return total


def is_filtered_both_ways(damping: Damping, compatibilities: Sequence[float | Tensor]) -> bool | Tensor:
    """Return whether all kernels are filtered in both directions, which makes them symmetric.

    Attractive Potts models do not oscillate without it. While torch traces, the result for a scalar tensor is a tensor.
    """
    if damping != "auto":
        return False
    repels: bool | Tensor = False
    for each in compatibilities:
        if isinstance(each, Tensor) and each.dim() > 0:
            return True
        negative = each < 0
        repels = repels | (negative if isinstance(negative, bool) or is_traced() else bool(negative))
    return repels


def largest_eigenvalue(compatibility: float | Tensor, labels: int) -> float | Tensor:
    """Return the largest eigenvalue of the costs on vectors that sum to zero, or zero.

    It is a tensor if it has derivatives, or while torch traces.

    >>> largest_eigenvalue(2.0, 3), largest_eigenvalue(-2.0, 3)
    (0.0, 2.0)
    """
    if labels < 2:
        return 0.0
    if not isinstance(compatibility, Tensor):
        return max(0.0, -float(compatibility))
    traced = is_traced()
    costs = compatibility if traced else compatibility.cpu().double()
    if costs.dim() == 0:
        found = -costs
    else:
        costs = torch.diag(costs) if costs.dim() == 1 else costs
        # the projection onto vectors that sum to zero, on either side
        costs = costs - costs.mean(dim=0, keepdim=True)
        costs = costs - costs.mean(dim=1, keepdim=True)
        found = torch.linalg.eigvalsh(costs)[-1]
    if traced:
        return found.clamp_min(0)
    # rounding errors of a matrix that does not repel
    if float(found.detach()) <= 1e-6 * float(compatibility.detach().abs().max()):
        return 0.0
    return found.to(compatibility) if found.requires_grad else float(found.detach())
