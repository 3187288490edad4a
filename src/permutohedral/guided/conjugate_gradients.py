"""Symmetric systems of equations: conjugate gradients, and the derivative of a solution by one more solve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from permutohedral.errors import InputError

# a symmetric matrix, not negative, as what it does to `[rows, channels]`
Product = Callable[[Tensor], Tensor]


def conjugate_gradients(
    product: Product, right: Tensor, diagonal: Tensor, start: Tensor, iterations: int, tolerance: float
) -> Tensor:
    """Solve A y = b for every channel; one whose residual is small enough stays as it is.

    Args:
        product: A.
        right: b, `[rows, channels]`.
        diagonal: `[rows, 1]`, about that of A and positive: the preconditioner.
        start: the first y.
        iterations: at most so many.
        tolerance: done when no channel's residual exceeds this share of b; 0 to do all iterations, but for channels
            that are solved to rounding.

    >>> conjugate_gradients(lambda y: 2 * y, torch.ones(3, 1), torch.ones(3, 1), torch.zeros(3, 1), 5, 1e-6).tolist()
    [[0.5], [0.5], [0.5]]
    """
    numbers = torch.finfo(right.dtype)
    solution, residual = start.clone(), right - product(start)
    # a smaller residual is rounding errors, of which further steps would make ever larger ones
    rounding = numbers.eps**2 * torch.maximum(right.square().sum(dim=0), residual.square().sum(dim=0))
    enough = torch.maximum(tolerance**2 * right.square().sum(dim=0), rounding)
    scaled = residual / diagonal
    direction, before = scaled, (residual * scaled).sum(dim=0)
    for _ in range(iterations):
        is_open = residual.square().sum(dim=0) > enough
        if tolerance > 0 and not bool(is_open.any()):
            break
        image = product(direction)
        curvature = (direction * image).sum(dim=0)
        length = torch.where(is_open & (curvature > 0), before / curvature, 0.0)
        solution.addcmul_(direction, length)
        residual = residual.addcmul(image, length, value=-1)
        scaled = residual / diagonal
        now = (residual * scaled).sum(dim=0)
        direction = torch.addcmul(scaled, direction, now / before.clamp_min(numbers.tiny))
        before = now
    return solution


def attach(solution: Tensor, residual: Tensor, solve: Product) -> Tensor:
    """The solution y of A y = b, with derivatives: dy = -A^-1 d(A y - b), of which only the residual is recorded.

    Args:
        solution: y, a constant.
        residual: A y - b at that constant y, as a function of what derivatives are wanted of.
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
            raise InputError("the gradient of a solver cannot be differentiated again; leave out create_graph=True")
        return -ctx.solve(gradient), None, None
