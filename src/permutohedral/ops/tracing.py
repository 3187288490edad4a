"""How torch runs a call: traced or transformed, with which tensors, gradients and autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from permutohedral.errors import InputError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_PLAIN = (Tensor, torch.nn.Parameter)
# whether fullgraph=True of torch.compile captures operators whose sizes depend on the data
_CAPTURES_SIZES = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 11)


def has_no_subclass(*arguments: Any) -> bool:
    """Return whether no tensor is of a subclass."""
    # a loop is twice as fast as all() of a generator
    for argument in arguments:  # noqa: SIM110
        if type(argument) not in _PLAIN and isinstance(argument, Tensor):
            return False
    return True


def is_traced() -> bool:
    """Return whether torch traces or transforms the call, or pushes tangents forward through it."""
    return is_recorded() or is_transformed()


def is_recorded() -> bool:
    """Return whether torch records the call as a graph, so that numbers may not be readable."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state() is not None
    )


def is_transformed() -> bool:
    """Return whether `torch.func` transforms the call, or tangents are pushed forward through it."""
    return bool(torch._C._are_functorch_transforms_active()) or forward_ad._current_level >= 0


# torch.compile calls it while it traces, instead of tracing it
is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_batched(tensor: Tensor) -> bool:
    """Return whether `torch.vmap` batches the tensor, so that its numbers cannot be read."""
    return bool(torch._C._functorch.is_batchedtensor(tensor))


@contextmanager
def plain_numbers(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensor inside the wrappers of `torch.func`, with the axes of `torch.vmap`, for reading."""
    if not torch._C._are_functorch_transforms_active():
        yield tensor
        return
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    with torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack():
        yield tensor


def surely_all(answers: Tensor) -> bool:
    """Return whether all elements are true; False if they cannot be read."""
    if is_recorded():
        return False
    with plain_numbers(answers) as numbers:
        return bool(numbers.all())


def wants_gradient(*arguments: Any) -> bool:
    """Return whether a derivative with respect to one of the arguments may be wanted."""
    # a tensor of an inner transformation does not show which derivatives the outer ones take
    return is_transformed() or requires_gradient(*arguments)


def requires_gradient(*arguments: Any) -> bool:
    """Return whether autograd records operations on the arguments; for calls that are not transformed."""
    if not torch.is_grad_enabled():
        return False
    # a loop is twice as fast as any() of a generator
    for argument in arguments:  # noqa: SIM110
        if isinstance(argument, Tensor) and argument.requires_grad:
            return True
    return False


def is_autocast(device: torch.device) -> bool:
    """Return whether autocast is enabled on the device."""
    # asking about a device takes eight times as long
    return torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(device.type)


def is_compiled_in_parts() -> bool:
    """Return whether torch.compile traces, and breaks the graph at operators whose sizes depend on the data.

    It does unless it is called with `fullgraph=True` or configured to capture such operators.
    """
    return torch.compiler.is_compiling() and _breaks_at_unknown_sizes()


def _breaks_at_unknown_sizes() -> bool:
    context = torch._guards.TracingContext.try_get()
    mode = None if context is None else context.fake_mode
    breaks = mode is not None and mode.shape_env is not None and not mode.shape_env.allow_dynamic_output_shape_ops
    if breaks and not _CAPTURES_SIZES:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        if InstructionTranslator.current_tx().one_graph:
            raise InputError(
                "fullgraph=True of torch.compile needs torch 2.11 or newer for functions that build a lattice, got "
                f"torch {torch.__version__}; leave out fullgraph"
            )
    return breaks


# torch.compile calls it while it traces, instead of tracing it
_breaks_at_unknown_sizes._dynamo_marked_constant = True  # type: ignore[attr-defined]


def uncompiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function that torch.compile calls without tracing it; this does not load the compiler."""
    outside: Callable[..., Result] = torch._compile._disable_dynamo(function)
    return outside


def breaks_graph(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let torch.compile call a function without tracing it: one break of the graph around all of it.

    The function builds a lattice, which breaks the graph anyway. A break inside of nested functions breaks each of
    them, and the parts between are more expensive to call than to run. A graph that must be whole includes it.
    """
    outside = uncompiled(function)

    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return outside(*args, **kwargs) if is_compiled_in_parts() else function(*args, **kwargs)

    return run


def with_storable_results(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a function create tensors that autograd can save later, also under `torch.inference_mode`."""

    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return function(*args, **kwargs)

    return run
