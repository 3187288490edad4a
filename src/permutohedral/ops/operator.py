"""What an operator is to torch, and the shortest way to call one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from permutohedral.ops.dispatch import primitives_for
from permutohedral.ops.tracing import is_plain, is_traced, wants_gradient

Result = TypeVar("Result")


class Operator(Generic[Result]):
    """An operator of `torch.library`, and the shortest way to call it.

    torch's dispatcher costs more than a small kernel. What is traced, compiled, batched by `torch.vmap` or made of
    tensor subclasses goes through the registered operator; everything else through a plain
    `torch.autograd.Function` with the same derivative, or straight to the backend.

    Args:
        name: of the primitive, and of the operator `permutohedral::name`.
        schema: arguments and results, in torch's notation.
        shape: gives empty results of the right shapes, for tracing without data.
        run: computes it, by default the backend's primitive of that name.
        keep: puts into a context what `differentiate` needs, None for an operator without derivatives.
        differentiate: of the context and the gradients of the results, the gradients of the arguments.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        shape: Callable[..., Any],
        run: Callable[..., Any] | None = None,
        keep: Callable[..., None] | None = None,
        differentiate: Callable[..., Any] | None = None,
    ) -> None:
        self._name, self._run = name, run
        qualified = f"permutohedral::{name}"
        torch.library.define(qualified, schema, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(qualified, "default", self._run_contiguous)
        torch.library.register_fake(qualified, shape)
        self._function: type[torch.autograd.Function] | None = None
        if keep is not None and differentiate is not None:
            torch.library.register_autograd(qualified, differentiate, setup_context=keep)
            self._function = _function(self.run, keep, differentiate)
        self._registered = getattr(torch.ops.permutohedral, name).default

    def __call__(self, *arguments: Any) -> Result:
        if is_traced() or not is_plain(*arguments):
            return cast(Result, self._registered(*arguments))
        if self._function is None or not wants_gradient(*arguments):
            return self.run(*arguments)
        return cast(Result, self._function.apply(*arguments))

    def run(self, first: Tensor, *others: Any) -> Result:
        """Compute it; `functional` decides what autocast means, so inside a backend it is off."""
        run = self._run or getattr(primitives_for(first), self._name)
        if not torch.is_autocast_enabled(first.device.type):
            return cast(Result, run(first, *others))
        with torch.autocast(first.device.type, enabled=False):
            return cast(Result, run(first, *others))

    def _run_contiguous(self, *arguments: Any) -> Any:
        """A backend may choose the strides of its results; compiled code has been promised contiguous ones."""
        result: Any = self.run(*arguments)
        return result.contiguous() if isinstance(result, Tensor) else tuple(each.contiguous() for each in result)


def _function(
    run: Callable[..., Any], keep: Callable[..., None], differentiate: Callable[..., Any]
) -> type[torch.autograd.Function]:
    class Direct(torch.autograd.Function):
        # without setup_context, whose arguments torch binds by name in every call
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            # the gradient of an integer output would otherwise be a tensor of zeros as large as the output
            ctx.set_materialize_grads(False)
            output = run(*arguments)
            keep(ctx, arguments, output)
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            if all(gradient is None for gradient in gradients):
                return (None,) * len(ctx.needs_input_grad)
            return differentiate(ctx, *gradients)

    return Direct
