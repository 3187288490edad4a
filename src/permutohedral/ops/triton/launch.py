"""What every launcher needs: sizes of blocks, the device of a tensor, how the kernels are being run."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def on_device(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run a launcher on the device of its first argument, a tensor: Triton launches on the current device."""

    @functools.wraps(function)
    def launcher(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        first = args[0]
        assert isinstance(first, Tensor)
        if not first.is_cuda or first.device.index == torch.cuda.current_device():
            return function(*args, **kwargs)
        with torch.cuda.device(first.device):
            return function(*args, **kwargs)

    return launcher


def interpreted() -> bool:
    """Whether Triton runs the kernels in its interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def has_ptx() -> bool:
    """Whether kernels may hold inline PTX: compiled, and for NVIDIA."""
    return torch.version.hip is None and not interpreted()


def cdiv(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least `number` and `least`."""
    return max(1 << max(number - 1, 0).bit_length(), least)
