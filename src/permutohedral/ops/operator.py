"""Leaf operators: their registration with torch, their derivatives, and a short way to call them in eager mode."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import forward_ad

from permutohedral.ops.batching import Arguments, Axes, Rule, loop
from permutohedral.ops.dispatch import call_on, forced_backend, primitives_for
from permutohedral.ops.tracing import (
    is_plain,
    is_traced,
    is_transformed,
    requires_gradient,
    uncompiled,
    without_autocast,
)

Result = TypeVar("Result")

Tangents = tuple[Tensor | None, ...]
Jvp = Callable[[Callable[..., Any], Arguments, Tangents], Any]


@dataclass(frozen=True)
class Derivative:
    """The derivative of an operator in both modes, made of operators.

    Attributes:
        save: of a context, the arguments and the result; saves in the context what `backward` needs.
        backward: of the context and the gradients of the results; returns the gradients of the arguments.
        jvp: of the operator, the arguments and their tangents; returns the tangents of the results. At least one of the
            tangents is not None.
    """

    save: Callable[..., None]
    backward: Callable[..., Any]
    jvp: Jvp


def multilinear(adjoints: dict[int, Callable[..., Tensor]]) -> Derivative:
    """Return the derivative of an operator that is linear in one argument, or in each of two.

    Args:
        adjoints: from the places of these arguments to functions that return the gradient with respect to each, of the
            gradient of the result and of all arguments. A single linear argument is not saved, and passed as None. The
            last argument may be a number, the others are tensors or None.
    """
    alone = next(iter(adjoints)) if len(adjoints) == 1 else None

    def save(ctx: Any, inputs: Arguments, output: Tensor) -> None:
        count = len(inputs) - (not isinstance(inputs[-1], Tensor))
        ctx.number = inputs[count:]
        ctx.save_for_backward(*(None if place == alone else inputs[place] for place in range(count)))

    def backward(ctx: Any, gradient: Tensor) -> Tangents:
        arguments = *ctx.saved_tensors, *ctx.number
        return tuple(
            adjoints[place](gradient, *arguments) if is_needed and place in adjoints else None
            for place, is_needed in enumerate(ctx.needs_input_grad)
        )

    def jvp(operator: Callable[..., Any], arguments: Arguments, tangents: Tangents) -> Tensor:
        def with_tangent(place: int, tangent: Tensor | None) -> Tensor:
            result: Tensor = operator(*arguments[:place], tangent, *arguments[place + 1 :])
            return result

        parts = [with_tangent(place, tangents[place]) for place in adjoints if tangents[place] is not None]
        if not parts:
            # torch takes no None as the tangent of a floating result
            place = next(iter(adjoints))
            return with_tangent(place, torch.zeros_like(arguments[place]))
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    return Derivative(save, backward, jvp)


class Operator(Generic[Result]):
    """An operator of `torch.library` that is cheap to call in eager mode.

    The dispatcher of torch costs more than a small kernel. A call that is traced or compiled, or has tensor subclasses,
    goes through the registered operator. A call under `torch.func`, or with tangents, goes through an autograd function
    with all their rules. Any other call goes through a plain autograd function with the same derivative, or directly to
    the backend.

    Args:
        name: of the primitive, and of the operator `permutohedral::name`.
        schema: arguments and results, in the notation of torch.
        shape: returns empty results of the right shapes, for tracing without data.
        run: computes it; default: the backend's primitive of that name.
        derivative: None for an operator without derivatives.
        batch: how `torch.vmap` runs it, by default in a loop (`batching.py`).
    """

    def __init__(
        self,
        name: str,
        schema: str,
        shape: Callable[..., Any],
        run: Callable[..., Any] | None = None,
        *,
        derivative: Derivative | None = None,
        batch: Rule = loop,
    ) -> None:
        self._name, self._run = name, run
        qualified = f"permutohedral::{name}"
        torch.library.define(qualified, schema, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(qualified, "default", self._run_contiguous)
        torch.library.register_fake(qualified, shape)
        self._function: type[torch.autograd.Function] | None = None
        if derivative is not None:
            torch.library.register_autograd(
                qualified, partial(_backward, derivative), setup_context=partial(_save, derivative)
            )
            self._function = _eager_function(self.run, derivative)
        self._transformed = _transformed_function(self, self._run_below, derivative, batch)
        # of a lambda: torch marks the function, and a method cannot be marked
        self._transform_uncompiled = uncompiled(lambda *arguments: self._transform(*arguments))  # noqa: PLW0108
        self._registered = getattr(torch.ops.permutohedral, name).default

    def __call__(self, *arguments: Any) -> Result:
        if is_traced():
            return self._trace(*arguments)
        if not is_plain(*arguments):
            return cast(Result, self._registered(*arguments))
        if self._function is None or not requires_gradient(*arguments):
            return self.run(*arguments)
        return cast(Result, self._function.apply(*arguments))

    def _trace(self, *arguments: Any) -> Result:
        if not is_transformed():
            return cast(Result, self._registered(*arguments))
        # the registered operator knows nothing of tangents, so torch.compile must not take it instead
        if torch.compiler.is_compiling() or "torch._dynamo" in sys.modules:
            return self._transform_uncompiled(*arguments)
        return self._transform(*arguments)

    def run(self, first: Tensor, *others: Any) -> Result:
        """Compute it with autocast off: the public functions have cast the values."""
        run: Any = self._run or getattr(primitives_for(first), self._name)
        return cast(Result, without_autocast(first.device, run, first, *others))

    def _run_contiguous(self, *arguments: Any) -> Any:
        """Compute contiguous results, which compiled code expects; a backend may choose other strides."""
        return _of_tensors(Tensor.contiguous, self.run(*arguments))

    def _transform(self, *arguments: Any) -> Result:
        return cast(Result, self._transformed.apply(*arguments))

    def _run_below(self, *arguments: Any) -> Any:
        """Compute it below all transformations; torch may trace it there."""
        if torch._C._len_torch_dispatch_stack() or not is_plain(*arguments):
            return self._registered(*arguments)
        # a backend may return views of larger tensors, to which torch attaches no tangents
        return _of_tensors(lambda each: each.clone() if each._is_view() else each, self.run(*arguments))


def _of_tensors(change: Callable[[Tensor], Tensor], result: Any) -> Any:
    return change(result) if isinstance(result, Tensor) else tuple(change(each) for each in result)


def _save(derivative: Derivative, ctx: Any, inputs: Arguments, output: Any) -> None:
    ctx.backend = forced_backend()
    derivative.save(ctx, inputs, output)


def _backward(derivative: Derivative, ctx: Any, *gradients: Tensor | None) -> Any:
    """Run on the backend of the forward pass: autograd may be in another thread, or after the end of a block."""
    if all(gradient is None for gradient in gradients):
        return (None,) * len(ctx.needs_input_grad)
    return call_on(ctx.backend, derivative.backward, ctx, *gradients)


def _eager_function(run: Callable[..., Any], derivative: Derivative) -> type[torch.autograd.Function]:
    """Return the autograd function of an operator that is neither traced nor transformed."""

    class Eager(torch.autograd.Function):
        # without setup_context, whose arguments torch binds by name in every call
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            # the gradient of an integer output would otherwise be a tensor of zeros as large as the output
            ctx.set_materialize_grads(False)
            output = run(*arguments)
            _save(derivative, ctx, arguments, output)
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            return _backward(derivative, ctx, *gradients)

    return Eager


class _Unwrapped:
    """A context whose saved tensors are stripped of the wrappers of transformations that have ended."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ctx, name)
        return unwrap_dead_wrappers(found) if name == "saved_tensors" else found


def _transformed_function(
    operator: Callable[..., Any], run: Callable[..., Any], derivative: Derivative | None, batch: Rule
) -> type[torch.autograd.Function]:
    """Return the autograd function of an operator with all rules of `torch.func`; it is slower to call."""

    class Transformed(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Any:
            return run(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.set_materialize_grads(False)
            outputs = (output,) if isinstance(output, Tensor) else output
            ctx.num_outputs = len(outputs)
            ctx.mark_non_differentiable(*(each for each in outputs if not each.is_floating_point()))
            if derivative is None:
                return
            _save(derivative, ctx, inputs, output)
            ctx.save_for_forward(*(each for each in inputs if isinstance(each, Tensor)))
            ctx.others = [None if isinstance(each, Tensor) else (each,) for each in inputs]

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            if derivative is None:
                raise NotImplementedError("this operator has no derivative")
            return _backward(derivative, _Unwrapped(ctx), *unwrap_dead_wrappers(gradients))

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
            if all(tangent is None for tangent in tangents):
                return None if ctx.num_outputs == 1 else (None,) * ctx.num_outputs
            if derivative is None:
                raise NotImplementedError("this operator has no derivative")
            # torch calls this with tangents switched off, which would lose those of outer transformations
            with forward_ad._set_fwd_grad_enabled(True):
                tensors = iter([forward_ad.unpack_dual(each).primal for each in ctx.saved_tensors])
                arguments = tuple(next(tensors) if other is None else other[0] for other in ctx.others)
                return derivative.jvp(operator, arguments, tangents)

        @staticmethod
        def vmap(info: Any, axes: Axes, *arguments: Any) -> tuple[Any, Any]:
            return batch(operator, info.batch_size, axes, arguments)

    return Transformed
