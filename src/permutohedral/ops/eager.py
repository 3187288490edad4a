"""Call the operators without torch's dispatcher where nothing is traced: it costs more than a small kernel.

What is traced, compiled, batched by `torch.vmap` or made of tensor subclasses goes through the registered operators;
everything else through plain `torch.autograd.Function`s with the same derivatives, or straight to the backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)


def is_plain(*arguments: Any) -> bool:
    """Whether all tensors are ordinary ones."""
    # a loop is twice as fast as all() of a generator
    for argument in arguments:  # noqa: SIM110
        if type(argument) not in _PLAIN and isinstance(argument, Tensor):
            return False
    return True


def is_watched() -> bool:
    """Whether torch traces what runs, or transforms it."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
    )


def direct(
    registered: Callable[..., Any],
    run: Callable[..., Any],
    setup: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """The operator `registered`, called in the shortest way.

    Args:
        registered: the operator in torch's registry.
        run: computes it.
        setup: keeps what `backward` needs, None for an operator without derivatives.
        backward: its derivative.
    """
    function = None if setup is None or backward is None else _function(run, setup, backward)

    def operator(*arguments: Any) -> Any:
        if is_watched() or not is_plain(*arguments):
            return registered(*arguments)
        if function is None or not torch.is_grad_enabled() or not requires_grad(*arguments):
            return run(*arguments)
        return function.apply(*arguments)

    return operator


def requires_grad(*arguments: Any) -> bool:
    """Whether a derivative with respect to one of the arguments may be wanted."""
    # a loop is twice as fast as any() of a generator
    for argument in arguments:  # noqa: SIM110
        if isinstance(argument, Tensor) and argument.requires_grad:
            return True
    return False


def _function(
    run: Callable[..., Any], keep: Callable[..., None], differentiate: Callable[..., Any]
) -> type[torch.autograd.Function]:
    class Operator(torch.autograd.Function):
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

    return Operator
