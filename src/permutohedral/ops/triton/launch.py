"""What every launcher needs: sizes of blocks, the device of a tensor, how the kernels are being run."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# what starts a compiled kernel: its launcher, the function, metadata, constants
Handle = tuple[Any, Any, Any, list[Any]]
# addresses that have one of these bits were not compiled for
MISALIGNED = 15


class Launch(NamedTuple):
    """A launch as it was asked for, and what can repeat it on other addresses, if anything can."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Tensor | int | None, ...]
    meta: dict[str, Any]
    handle: Handle | None


class Recorder(Protocol):
    """Is told of launches."""

    def note(self, launch: Launch) -> None: ...


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


def rows_contiguous(tensor: Tensor) -> Tensor:
    """`tensor`, or a copy whose last axis is contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class _Direct:
    """Compiled kernels by what they were compiled for, and whether this version of Triton lets one call them."""

    compiled: ClassVar[dict[tuple[object, ...], Handle]] = {}
    works = not interpreted()


class _Watched(threading.local):
    """Who is told of the launches of this thread."""

    recorder: Recorder | None = None


watched = _Watched()


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Tensor | int | None, **meta: Any) -> None:
    """`kernel[grid](*arguments, **meta)`, without Triton's handling of the arguments from the second time on.

    That handling costs the host more than a small kernel costs the GPU. Sizes and strides must not be specialized on,
    and the first argument must be a tensor; `meta` holds the constants in the kernel's order, then the options.
    """
    handle = _launch(kernel, grid, arguments, meta)
    if watched.recorder is not None:
        watched.recorder.note(Launch(kernel, grid, arguments, meta, handle))


def _launch(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Tensor | int | None, ...], meta: dict[str, Any]
) -> Handle | None:
    """What can start the kernel on other addresses, None if it had to be started as Triton documents it."""
    if not _Direct.works:
        kernel[grid](*arguments, **meta)
        return None
    addresses = sizes = 0
    device: int = arguments[0].get_device()  # type: ignore[union-attr]
    key: list[object] = [id(kernel), device]
    # addresses take the place of tensors, which the launcher would have to ask for them
    plain: list[int | None] = []
    for argument in arguments:
        if type(argument) is int:
            sizes |= argument
            plain.append(argument)
        elif argument is None:
            key.append(None)
            plain.append(None)
        else:
            address = argument.data_ptr()  # type: ignore[union-attr]
            addresses |= address
            key.append(argument.dtype)  # type: ignore[union-attr]
            plain.append(address)
    if addresses & MISALIGNED or sizes >> 31:
        kernel[grid](*arguments, **meta)
        return None
    known = _Direct.compiled.get((*key, *meta.values()))
    if known is None:
        compiled = kernel[grid](*arguments, **meta)
        # the binary takes the constants, too, and ignores them
        constants = [meta[name] for name in kernel.arg_names if name in meta]
        known = compiled.run, compiled.function, compiled.packed_metadata, constants
        _Direct.compiled[(*key, *meta.values())] = known
        return known
    run, function, metadata, constants = known
    columns, rows, layers = (*grid, 1, 1)[:3]
    stream = torch._C._cuda_getCurrentRawStream(device)
    try:
        # without metadata and hooks for a profiler of Triton's
        run(columns, rows, layers, stream, function, metadata, None, None, None, *plain, *constants)
    except TypeError:
        start_as_documented()
        kernel[grid](*arguments, **meta)
        return None
    return known


def start_as_documented() -> None:
    """From now on: the binaries of this version of Triton take other arguments."""
    _Direct.works = False
