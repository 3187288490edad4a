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


def conjugate_residuals(product: Product, right: Tensor, diagonal: Tensor, iterations: int, tolerance: float) -> Tensor:
    """Minimize the residual b - A y for each channel separately, where b need not be in the range of A.

    Conjugate gradients diverge for such b. Here the part of b in the null space of A stays in the residual, and adds a
    vector of the null space to y.

    Args:
        product: A.
        right: b, `[rows, channels]`.
        diagonal: as in `conjugate_gradients`.
        iterations: the maximum number of iterations.
        tolerance: a channel stops when its residual outside of the null space is at most this share of that of y = 0;
            0 to stop at rounding.

    >>> diagonal = torch.tensor([[2.0], [0.0]])
    >>> conjugate_residuals(lambda y: diagonal * y, torch.ones(2, 1), torch.ones(2, 1), 5, 0.0).tolist()
    [[0.5], [0.5]]
    """
    numbers = torch.finfo(right.dtype)
    solution, scaled = torch.zeros_like(right), right / diagonal
    direction, image = scaled, product(scaled)
    across, before = image, (scaled * image).sum(dim=0)
    enough, is_open = max(tolerance, numbers.eps) ** 2 * before, torch.ones_like(before, dtype=torch.bool)
    for _ in range(iterations):
        flat = ROUNDING_ERRORS * numbers.eps * (scaled.square() * diagonal).sum(dim=0)
        is_open = is_open & (before > enough) & (before > flat)
        if tolerance > 0 and not is_recorded() and not bool(is_open.any()):
            break
        step = across / diagonal
        length = torch.where(is_open, before / (across * step).sum(dim=0), 0.0)
        solution, scaled = solution.addcmul(direction, length), scaled.addcmul(step, length, value=-1)
        image = product(scaled)
        now = (scaled * image).sum(dim=0)
        share = torch.where(is_open, now / before, 0.0)
        direction, across = torch.addcmul(scaled, direction, share), torch.addcmul(image, across, share)
        before = now
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
