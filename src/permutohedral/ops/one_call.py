"""What a backend computes in one call, and differentiates in another, as a function of torch's autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from permutohedral.ops.dispatch import forced_backend, on_backend, primitives_for
from permutohedral.ops.tracing import is_autocast, requires_gradient, why_in_steps

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Inputs = tuple[Any, ...]


def in_one_call(name: str, first: Tensor, *others: Tensor | None) -> Callable[..., Any] | None:
    """The backend's function of that name, see `FusedPrimitives`; None without one, or where operators compute it.

    They do so if derivatives with respect to these tensors are wanted.
    """
    if why_in_steps(first, *others) is not None or requires_gradient(first, *others):
        return None
    function: Callable[..., Any] | None = getattr(primitives_for(first), name, None)
    return function


def fused(primitive: Callable[Concatenate[Any, Arguments], Result]) -> Callable[Arguments, Result | None]:
    """A function of `FusedPrimitives` by the backend of its tensors, None where it is composed: see `in_one_call`."""

    @wraps(primitive)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result | None:
        function = in_one_call(primitive.__name__, *_tensors_of(args))
        return None if function is None else function(*args, **kwargs)

    return run


def _tensors_of(arguments: tuple[Any, ...]) -> list[Tensor]:
    found = []
    for each in arguments:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, tuple):
            found += _tensors_of(each)
    return found


class Step(Protocol):
    """What is computed in one call."""

    @property
    def composed(self) -> Callable[..., Tensor]:
        """The same of the same inputs, made of operators, which can be differentiated again."""

    def run(self, *inputs: Any) -> tuple[Tensor | None, Inputs]:
        """The result, None where it is to be composed, and what its derivative needs besides the inputs."""

    def differentiate(
        self, gradient: Tensor, inputs: Inputs, kept: Inputs, wanted: tuple[bool, ...]
    ) -> tuple[Tensor | None, ...]:
        """The gradients with respect to the inputs, at least of those that are wanted."""


class _InOneCall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: Step, *inputs: Any) -> Tensor | None:
        output, kept = step.run(*inputs)
        ctx.step, ctx.inputs, ctx.backend = step, len(inputs), forced_backend()
        ctx.save_for_backward(*inputs, *kept)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        # with a graph of the gradients the operators make it, who know their own derivatives
        differentiate = _differentiate_composed if torch.is_grad_enabled() else _differentiate
        if ctx.backend is forced_backend():
            return None, *differentiate(ctx, gradient)
        with on_backend(ctx.backend):
            return None, *differentiate(ctx, gradient)


# `Function.apply` without its search for what transformations leave behind: backends read that as it is
apply: Callable[..., Any] = super(torch.autograd.Function, _InOneCall).apply


def _differentiate_composed(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients with respect to the inputs, which can be differentiated again."""
    inputs, wanted = ctx.saved_tensors[: ctx.inputs], ctx.needs_input_grad[1:]
    leaves = [each for each, is_wanted in zip(inputs, wanted, strict=True) if is_wanted]
    found = iter(torch.autograd.grad(ctx.step.composed(*inputs), leaves, gradient, create_graph=True))
    return tuple(next(found) if is_wanted else None for is_wanted in wanted)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The same, not to be differentiated again."""
    step: Step = ctx.step
    saved, device = ctx.saved_tensors, gradient.device
    arguments = gradient, saved[: ctx.inputs], saved[ctx.inputs :], ctx.needs_input_grad[1:]
    if not is_autocast(device):
        return step.differentiate(*arguments)
    with torch.autocast(device.type, enabled=False):
        return step.differentiate(*arguments)
