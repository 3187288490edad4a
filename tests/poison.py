"""Fill uninitialized memory with NaN or the largest integer, so that tests notice when it is read.

torch fills such memory only in its deterministic mode, which also selects other kernels. So its allocators are wrapped
here, as is that of the native core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _device

from permutohedral.ops import dispatch

# `with torch.device(...)` knows the functions that it applies to from its first use on: it must not keep wrapped ones
_device._device_constructors()

# every function that allocates uninitialized memory
_ALLOCATORS = [
    (torch, "empty"),
    (torch, "empty_like"),
    (torch, "empty_strided"),
    (torch, "empty_permuted"),
    (Tensor, "new_empty"),
    (Tensor, "new_empty_strided"),
]


def fill_with_poison(tensor: Tensor) -> None:
    """Fill with NaN, True for bool, or the largest integer."""
    dtype = tensor.dtype
    if dtype.is_floating_point or dtype.is_complex:
        value: float | bool = float("nan")
    else:
        value = True if dtype == torch.bool else torch.iinfo(dtype).max
    # detached: a leaf that requires its gradient must not be written to
    tensor.detach().fill_(value)


def _poisoning(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    session = os.getpid()

    def poisoned(*arguments: Any, **options: Any) -> Tensor:
        tensor = allocate(*arguments, **options)
        # what is traced has no memory yet
        traced = torch.compiler.is_compiling() or type(tensor) not in (Tensor, torch.nn.Parameter)
        # a large fill takes torch's threads, and these do not survive a fork
        if not traced and not tensor.is_meta and os.getpid() == session:
            fill_with_poison(tensor)
        return tensor

    return poisoned


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Poison newly allocated memory inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        for place, name in _ALLOCATORS:
            patch.setattr(place, name, _poisoning(getattr(place, name)))
        if "native" in dispatch.available():
            from permutohedral.ops.native import bridge

            # large tensors that torch does not allocate
            patch.setattr(bridge, "empty", _poisoning(bridge.empty))
        yield
