"""What is a tensor one can compute with, and what to do with anything else."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from permutohedral.errors import InputError


def check_tensor(name: str, given: object) -> None:
    """Raise unless `given` is a dense tensor.

    >>> check_tensor("values", torch.zeros(3))
    """
    if not isinstance(given, Tensor):
        raise InputError(f"{name} must be a torch.Tensor, got {type(given).__name__}; use torch.as_tensor")
    if given.layout != torch.strided:
        raise InputError(f"{name} must be dense, got a tensor of the layout {given.layout}; use .to_dense()")


def refuse_torchscript() -> None:
    """Raise inside of `torch.jit.trace`.

    >>> refuse_torchscript()
    """
    if torch._C._get_tracing_state() is not None:
        raise InputError(
            "torch.jit.trace, and torch.onnx.export with dynamo=False, would record the lattice of the example as a "
            "constant; use torch.compile or torch.export"
        )


def refuse_scripting(layer: object) -> NoReturn:
    """What `torch.jit.script` calls as the method `__prepare_scriptable__` of a layer."""
    raise InputError(
        f"torch.jit.script cannot compile {type(layer).__name__}, whose lattice depends on the data; use torch.compile "
        "or torch.export"
    )


def check_count(name: str, number: object, least: int = 0) -> None:
    """Raise unless `number` is a whole number of at least `least`.

    >>> check_count("channels", 3)
    """
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {number!r}")
