"""What an operator is to torch, and the shortest way to call one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import forward_ad

from permutohedral.ops.batching import Arguments, Axes, Rule, one_after_another
from permutohedral.ops.dispatch import forced_backend, on_backend, primitives_for
from permutohedral.ops.tracing import is_autocast, is_plain, is_traced, is_transformed, requires_gradient, uncompiled

Result = TypeVar("Result")

Tangents = tuple[Tensor | None, ...]
PushForward = Callable[[Callable[..., Any], Arguments, Tangents], Any]


@dataclass(frozen=True)
class Derivative:
    """The derivative of an operator in both directions, made of operators.

    Attributes:
        keep: puts into a context what `pull_back` needs, of the context, the arguments and the result.
        pull_back: of the context and the gradients of the results, the gradients of the arguments.
        push_forward: of the operator, the arguments and their tangents, the tangents of the results. A tangent is None
            where there is none, but one of them is not.
    """

    keep: Callable[..., None]
    pull_back: Callable[..., Any]
    push_forward: PushForward


def multilinear(adjoints: dict[int, Callable[..., Tensor]]) -> Derivative:
    """The derivative of an operator that is linear in one argument, or in each of two, and constant in the others.

    Args:
        adjoints: by the places of these arguments, the gradient with respect to each, of the gradient of the result and
            of all arguments. Where there is only one, it is not kept, and None stands for it. The last argument may be
            a number, the others are tensors or None.
    """
    alone = next(iter(adjoints)) if len(adjoints) == 1 else None

    def keep(ctx: Any, inputs: Arguments, output: Tensor) -> None:
        count = len(inputs) - (not isinstance(inputs[-1], Tensor))
        ctx.number = inputs[count:]
        ctx.save_for_backward(*(None if place == alone else inputs[place] for place in range(count)))

    def pull_back(ctx: Any, gradient: Tensor) -> Tangents:
        arguments = *ctx.saved_tensors, *ctx.number
        return tuple(
            adjoints[place](gradient, *arguments) if is_needed and place in adjoints else None
            for place, is_needed in enumerate(ctx.needs_input_grad)
        )

    def push_forward(operator: Callable[..., Any], arguments: Arguments, tangents: Tangents) -> Tensor:
        def with_tangent(place: int, tangent: Tensor | None) -> Tensor:
            result: Tensor = operator(*arguments[:place], tangent, *arguments[place + 1 :])
            return result

        parts = [with_tangent(place, tangents[place]) for place in adjoints if tangents[place] is not None]
        if not parts:
            # torch takes no None for the tangent of a result that has numbers
            place = next(iter(adjoints))
            return with_tangent(place, torch.zeros_like(arguments[place]))
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    return Derivative(keep, pull_back, push_forward)


class Operator(Generic[Result]):
    """An operator of `torch.library`, and the shortest way to call it.

    torch's dispatcher costs more than a small kernel. What is traced, compiled or made of tensor subclasses goes
    through the registered operator; what `torch.func` transforms, or has tangents, through a
    `torch.autograd.Function` that knows how; everything else through a plain one with the same derivative, or straight
    to the backend.

    Args:
        name: of the primitive, and of the operator `permutohedral::name`.
        schema: arguments and results, in torch's notation.
        shape: gives empty results of the right shapes, for tracing without data.
        run: computes it, by default the backend's primitive of that name.
        composed: computes it of other primitives, for a backend that has none of that name.
        derivative: None for an operator without derivatives.
        batch: how `torch.vmap` runs it, by default one item after another (`batching.py`).
    """

    def __init__(
        self,
        name: str,
        schema: str,
        shape: Callable[..., Any],
        run: Callable[..., Any] | None = None,
        *,
        composed: Callable[..., Any] | None = None,
        derivative: Derivative | None = None,
        batch: Rule = one_after_another,
    ) -> None:
        self._name, self._run, self._composed = name, run, composed
        qualified = f"permutohedral::{name}"
        torch.library.define(qualified, schema, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(qualified, "default", self._run_contiguous)
        torch.library.register_fake(qualified, shape)
        self._function: type[torch.autograd.Function] | None = None
        if derivative is not None:
            torch.library.register_autograd(qualified, derivative.pull_back, setup_context=derivative.keep)
            self._function = direct_function(self.run, derivative.keep, derivative.pull_back)
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
        """Compute it; `functional` decides what autocast means, so inside a backend it is off."""
        run: Any = self._run or getattr(primitives_for(first), self._name, self._composed)
        if not is_autocast(first.device):
            return cast(Result, run(first, *others))
        with torch.autocast(first.device.type, enabled=False):
            return cast(Result, run(first, *others))

    def _run_contiguous(self, *arguments: Any) -> Any:
        """A backend may choose the strides of its results; compiled code has been promised contiguous ones."""
        return _of_tensors(Tensor.contiguous, self.run(*arguments))

    def _transform(self, *arguments: Any) -> Result:
        return cast(Result, self._transformed.apply(*arguments))

    def _run_below(self, *arguments: Any) -> Any:
        """Compute it below all transformations, which torch may trace."""
        if torch._C._len_torch_dispatch_stack() or not is_plain(*arguments):
            return self._registered(*arguments)
        # a backend may give parts of larger tensors, to which torch can attach no tangent
        return _of_tensors(lambda each: each.clone() if each._is_view() else each, self.run(*arguments))


def _of_tensors(change: Callable[[Tensor], Tensor], result: Any) -> Any:
    return change(result) if isinstance(result, Tensor) else tuple(change(each) for each in result)


def direct_function(
    run: Callable[..., Any], keep: Callable[..., None], pull_back: Callable[..., Any]
) -> type[torch.autograd.Function]:
    """What autograd sees of a computation that is neither traced nor transformed: see `Derivative`."""

    class Direct(torch.autograd.Function):
        # without setup_context, whose arguments torch binds by name in every call
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            # the gradient of an integer output would otherwise be a tensor of zeros as large as the output
            ctx.set_materialize_grads(False)
            ctx.backend = forced_backend()
            output = run(*arguments)
            keep(ctx, arguments, output)
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            return _pull_back(pull_back, ctx, gradients)

    return Direct


def _pull_back(pull_back: Callable[..., Any], ctx: Any, gradients: tuple[Tensor | None, ...]) -> Any:
    """On the backend of the forward pass: autograd may be in a thread of its own, or after the end of a block."""
    if all(gradient is None for gradient in gradients):
        return (None,) * len(ctx.needs_input_grad)
    if ctx.backend is forced_backend():
        return pull_back(ctx, *gradients)
    with on_backend(ctx.backend):
        return pull_back(ctx, *gradients)


class _Unwrapped:
    """A context whose tensors are free of the wrappers of transformations that have ended: these hold no memory."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ctx, name)
        return unwrap_dead_wrappers(found) if name == "saved_tensors" else found


def _transformed_function(
    operator: Callable[..., Any], run: Callable[..., Any], derivative: Derivative | None, batch: Rule
) -> type[torch.autograd.Function]:
    """The operator with all that `torch.func` asks for; slower to call."""

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
            ctx.backend = forced_backend()
            derivative.keep(ctx, inputs, output)
            ctx.save_for_forward(*(each for each in inputs if isinstance(each, Tensor)))
            ctx.others = [None if isinstance(each, Tensor) else (each,) for each in inputs]

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            if derivative is None:
                raise NotImplementedError("this operator has no derivative")
            return _pull_back(derivative.pull_back, _Unwrapped(ctx), unwrap_dead_wrappers(gradients))

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
            if all(tangent is None for tangent in tangents):
                return None if ctx.num_outputs == 1 else (None,) * ctx.num_outputs
            if derivative is None:
                raise NotImplementedError("this operator has no derivative")
            # torch calls this with tangents switched off, which loses those of transformations around this one
            with forward_ad._set_fwd_grad_enabled(True):
                tensors = iter([forward_ad.unpack_dual(each).primal for each in ctx.saved_tensors])
                arguments = tuple(next(tensors) if other is None else other[0] for other in ctx.others)
                return derivative.push_forward(operator, arguments, tangents)

        @staticmethod
        def vmap(info: Any, axes: Axes, *arguments: Any) -> tuple[Any, Any]:
            return batch(operator, info.batch_size, axes, arguments)

    return Transformed
