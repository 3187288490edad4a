"""The operators of the largest value around each lattice point: a splat that takes it instead of the sum.

The derivative goes to the winners, the rows that had the largest values; it is a gather in both directions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from permutohedral.ops.batching import Arguments
from permutohedral.ops.operator import Derivative, Operator, Tangents, multilinear


def take_winners(values: Tensor, winners: Tensor) -> Tensor:
    """`values[winners[j, c], c]`, zero where there is no winner: the adjoint of `largest_gradient`.

    >>> take_winners(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1, 0], [-1, -1]])).tolist()
    [[3.0, 2.0], [0.0, 0.0]]
    """
    if values.shape[0] == 0:
        return values.new_zeros(winners.shape)
    return torch.where(winners >= 0, values.gather(0, winners.clamp_min(0).long()), 0)


def _keep_winners(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], inputs[1])


def _splat_largest_backward(ctx: Any, gradient: Tensor, of_winners: None) -> tuple[Tensor, None, None]:
    winners, vertices = ctx.saved_tensors
    return largest_gradient(gradient, winners, vertices), None, None


def _push_splat_largest(operator: Any, arguments: Arguments, tangents: Tangents) -> tuple[Tensor | None, None]:
    if tangents[0] is None:
        return None, None
    return take_winners(tangents[0], operator(*arguments)[1]), None


splat_largest: Operator[tuple[Tensor, Tensor]] = Operator(
    "splat_largest",
    "(Tensor values, Tensor vertices, SymInt num_lattice_points) -> (Tensor, Tensor)",
    lambda values, vertices, num: (
        values.new_empty((num, values.shape[1])),
        values.new_empty((num, values.shape[1]), dtype=torch.int32),
    ),
    derivative=Derivative(_keep_winners, _splat_largest_backward, _push_splat_largest),
)


largest_gradient: Operator[Tensor] = Operator(
    "largest_gradient",
    "(Tensor gradient, Tensor winners, Tensor vertices) -> Tensor",
    lambda gradient, winners, vertices: gradient.new_empty((vertices.shape[0], gradient.shape[1])),
    derivative=multilinear({0: lambda gradient, _, winners, vertices: take_winners(gradient, winners)}),
)
