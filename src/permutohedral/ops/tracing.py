"""What torch does with a call: whether it is traced or transformed, of which tensors, with which derivatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)


def is_plain(*arguments: Any) -> bool:
    """Whether all tensors are ordinary ones, no subclasses."""
    # a loop is twice as fast as all() of a generator
    for argument in arguments:  # noqa: SIM110
        if type(argument) not in _PLAIN and isinstance(argument, Tensor):
            return False
    return True


def is_traced() -> bool:
    """Whether torch traces what runs, or transforms it."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
    )


def wants_gradient(*arguments: Any) -> bool:
    """Whether a derivative with respect to one of the arguments may be asked for."""
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
    if not is_plain(*tensors):
        return "a tensor is of a subclass of torch.Tensor"
    first = tensors[0]
    if not isinstance(first, Tensor):
        return "the values are no tensor"
    for tensor in tensors:
        if tensor is not None and tensor.device != first.device:
            return "the tensors are on different devices"
    if torch.is_autocast_enabled(first.device.type):
        return "autocast is enabled"
    return None
