"""Symmetric systems of equations: conjugate gradients, and the derivative of a solution by one more solve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.ops.tracing import is_recorded

# y -> A y for a symmetric positive semidefinite matrix A and y `[rows, channels]`
Product = Callable[[Tensor], Tensor]

# a direction whose curvature is below this many rounding errors lies in the null space of A
ROUNDING_ERRORS = 64
# a residual that rises to this multiple of the least one so far only grows from there
_LARGEST_RISE = 1e2


def conjugate_gradients(
    product: Product, right: Tensor, diagonal: Tensor, start: Tensor, iterations: int, tolerance: float
) -> Tensor:
    """Solve A y = b for each channel separately.

    A channel stops when its residual is small enough, when its residual rises, or when A is singular to rounding
    along its direction.

    Args:
        product: A.
        right: b, `[rows, channels]`.
        diagonal: `[rows, 1]` or `[rows, channels]`, about the diagonal of A and positive: the preconditioner.
        start: the first y.
        iterations: the maximum number of iterations.
        tolerance: a channel stops when its residual is at most this share of b; 0 to stop at rounding.

    >>> conjugate_gradients(lambda y: 2 * y, torch.ones(3, 1), torch.ones(3, 1), torch.zeros(3, 1), 5, 1e-6).tolist()
    [[0.5], [0.5], [0.5]]
    """
    numbers = torch.finfo(right.dtype)
    solution, residual = start.clone(), right - product(start)
    rounding = numbers.eps**2 * torch.maximum(right.square().sum(dim=0), residual.square().sum(dim=0))
    enough = torch.maximum(tolerance**2 * right.square().sum(dim=0), rounding)
    scaled = residual / diagonal
    direction, before = scaled, (residual * scaled).sum(dim=0)
    least, is_open = before, torch.ones_like(before, dtype=torch.bool)
    for _ in range(iterations):
        image = product(direction)
        curvature = (direction * image).sum(dim=0)
        flat = ROUNDING_ERRORS * numbers.eps * (direction.square() * diagonal).sum(dim=0)
        is_open = is_open & (residual.square().sum(dim=0) > enough) & (curvature > flat)
        is_open = is_open & (before <= _LARGEST_RISE**2 * least)
        if tolerance > 0 and not is_recorded() and not bool(is_open.any()):
            break
        length = torch.where(is_open, before / curvature, 0.0)
        solution.addcmul_(direction, length)
        residual = residual.addcmul(image, length, value=-1)
        scaled = residual / diagonal
        now = (residual * scaled).sum(dim=0)
        direction = torch.addcmul(scaled, direction, now / before.clamp_min(numbers.tiny))
        before, least = now, torch.minimum(least, now)
    return solution


def attach(solution: Tensor, residual: Tensor, solve: Product) -> Tensor:
    """Return the solution y of A y = b with derivatives: dy = -A^-1 d(A y - b).

    Args:
        solution: y, a constant.
        residual: A y - b at that constant y, as a function of everything that requires gradients.
        solve: A^-1, which is symmetric.
    """
    attached: Tensor = _Attached.apply(residual, solution, solve)  # type: ignore[no-untyped-call]
    return attached


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, solution: Tensor, solve: Product) -> Tensor:
        ctx.solve = solve
        return solution.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():
            raise InputError("create_graph: the gradient of a solver cannot be differentiated again; leave it out")
        return -ctx.solve(gradient), None, None
