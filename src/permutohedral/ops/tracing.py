"""What torch does with a call: whether it is traced or transformed, of which tensors, with which derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

Result = TypeVar("Result")

_PLAIN = (Tensor, torch.nn.Parameter)


def is_plain(*arguments: Any) -> bool:
    """Whether all tensors are ordinary ones, no subclasses."""
    # a loop is twice as fast as all() of a generator
    for argument in arguments:  # noqa: SIM110
        if type(argument) not in _PLAIN and isinstance(argument, Tensor):
            return False
    return True


def is_traced() -> bool:
    """Whether torch traces what runs, or transforms it, or pushes tangents forward through it."""
    return is_recorded() or is_transformed()


def is_recorded() -> bool:
    """Whether torch makes a program of what runs, and numbers may not be there to be read: a part of `is_traced`."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state() is not None
    )


def is_transformed() -> bool:
    """Whether `torch.func` transforms what runs, or tangents are pushed forward through it: a part of `is_traced`."""
    return bool(torch._C._are_functorch_transforms_active()) or forward_ad._current_level >= 0


# torch.compile calls it while it traces, instead of tracing it
is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_batched(tensor: Tensor) -> bool:
    """Whether `torch.vmap` batches the tensor: its numbers cannot be read."""
    return bool(torch._C._functorch.is_batchedtensor(tensor))


@contextmanager
def plain_numbers(tensor: Tensor) -> Iterator[Tensor]:
    """What a tensor holds that `torch.func` has wrapped, the axes of `torch.vmap` included, for reading."""
    if not torch._C._are_functorch_transforms_active():
        yield tensor
        return
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    with torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack():
        yield tensor


def is_unreadable() -> bool:
    """Whether `torch.func.linearize` records the call: then nothing can be asked of its numbers."""
    return is_recorded() and is_transformed()


def surely_all(answers: Tensor) -> bool:
    """Whether all answers are yes; no where they cannot be read."""
    if is_unreadable():
        return False
    with plain_numbers(answers) as numbers:
        return bool(numbers.all())


def wants_gradient(*arguments: Any) -> bool:
    """Whether a derivative with respect to one of the arguments may be asked for."""
    # a tensor of an inner transformation does not tell which derivatives the outer ones take
    return is_transformed() or requires_gradient(*arguments)


def requires_gradient(*arguments: Any) -> bool:
    """Whether autograd records what is computed from the arguments, where nothing is transformed."""
    if not torch.is_grad_enabled():
        return False
    # a loop is twice as fast as any() of a generator
    for argument in arguments:  # noqa: SIM110
        if isinstance(argument, Tensor) and argument.requires_grad:
            return True
    return False


def why_in_steps(*tensors: Any) -> str | None:
    """Why a filter of these tensors is composed of operators one by one, None if it may be one call of the backend.

    >>> why_in_steps(torch.zeros(3)) is None
    True
    """
    if is_traced():
        return "torch traces or transforms the call"
    device = None
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in _PLAIN:
            return f"an argument is of the type {type(tensor).__name__}"
        if device is None:
            device = tensor.device
        elif tensor.device != device:
            return "the tensors are on different devices"
        if tensor.layout is not torch.strided:
            return "a tensor is not dense"
    if device is None or device.type == "meta":
        return "there are no numbers to compute with"
    return "autocast is enabled" if is_autocast(device) else None


def is_autocast(device: torch.device) -> bool:
    """Whether autocast is enabled there."""
    # the question about a device takes eight times as long
    return torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(device.type)


def is_compiled_in_parts() -> bool:
    """Whether torch.compile traces, and would break the graph at an operator whose sizes only the data tells.

    It does so unless it is called with `fullgraph=True` or told to capture such operators.
    """
    return torch.compiler.is_compiling() and _breaks_at_unknown_sizes()


def _breaks_at_unknown_sizes() -> bool:
    context = torch._guards.TracingContext.try_get()
    mode = None if context is None else context.fake_mode
    return mode is not None and mode.shape_env is not None and not mode.shape_env.allow_dynamic_output_shape_ops


# torch.compile calls it while it traces, instead of tracing it
_breaks_at_unknown_sizes._dynamo_marked_constant = True  # type: ignore[attr-defined]


def uncompiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """The function, which torch.compile calls and does not look into; torch's compiler is not loaded for it."""
    outside: Callable[..., Result] = torch._compile._disable_dynamo(function)
    return outside
