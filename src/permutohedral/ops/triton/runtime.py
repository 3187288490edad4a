"""What every launcher needs: how kernels are started, on which device, in blocks of which size."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# most channels of a tile
WIDEST_TILE = 64
# kernels are compiled for pointers that are multiples of 16 bytes, as those of torch's allocations are
_MISALIGNED = 15
# and for sizes of 32 bits
_MOST = 1 << 31


def on_device(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run a launcher on the device of its first argument, a tensor: Triton launches on the current device."""

    @functools.wraps(function)
    def launcher(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        first = args[0]
        assert isinstance(first, Tensor)
        if not first.is_cuda or first.get_device() == torch.cuda.current_device():
            return function(*args, **kwargs)
        with torch.cuda.device(first.device):
            return function(*args, **kwargs)

    return launcher


# whether Triton runs the kernels in its interpreter, on the CPU; it decides that when they are defined
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
# inline PTX needs a compiler, and an NVIDIA GPU
HAS_PTX = torch.version.hip is None and not INTERPRETED


def cdiv(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least `number` and `least`."""
    return max(1 << max(number - 1, 0).bit_length(), least)


def rows_contiguous(tensor: Tensor) -> Tensor:
    """`tensor`, or a copy whose last axis is contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def tile(rows: int, channels: int, run: int = 1) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid, and the shape of the tiles: about 1024 elements, and a thread for each point of few channels."""
    block_c = min(power_of_two(channels), WIDEST_TILE)
    block = max(min(1024 // block_c, 128), 16)
    return (cdiv(rows, block * run), cdiv(channels, block_c)), {"BLOCK": block, "BLOCK_C": block_c}


class _Launcher:
    """Compiled kernels by what they were compiled for.

    Triton keeps the same binaries, but finding one takes it longer than a small kernel runs: it looks at every
    argument anew. So they are started as Triton's own launcher does it; `direct` becomes False where a version of
    Triton does that in another way, and kernels are then started as documented.
    """

    def __init__(self) -> None:
        self.compiled: dict[tuple[object, ...], tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = {}
        self.direct = not INTERPRETED

    def add(self, key: tuple[object, ...], kernel: Any, binary: Any, constants: dict[str, Any]) -> None:
        """Keep what starts a binary: a function of C, and its arguments before and behind ours."""
        starter = binary.run
        # with memory of their own such kernels need an allocation for each start
        if starter.global_scratch_size or starter.profile_scratch_size:
            return
        options = starter.launch_cooperative_grid, starter.launch_pdl
        # no scratch memory; no metadata and no hooks for a profiler of Triton's
        before = binary.function, *options, None, None, binary.packed_metadata, None, None, None
        # the constants are passed, too, and ignored
        self.compiled[key] = (
            starter.launch,
            before,
            tuple(constants[name] for name in kernel.arg_names if name in constants),
        )


_launcher = _Launcher()


def launch(
    kernel: Any, grid: tuple[int, ...], tensors: tuple[Tensor, ...], sizes: tuple[float, ...], **constants: Any
) -> None:
    """`kernel[grid](*tensors, *sizes, **constants)`.

    Args:
        kernel: from `triton.jit`, which must not specialize on the sizes (`do_not_specialize`).
        grid: number of programs along up to three axes.
        tensors: what the kernel reads and writes, all on the current device; at least one. A kernel that can do
            without one takes any other tensor in its place.
        sizes: numbers that change from call to call.
        constants: those the kernel is compiled for, in its order, then Triton's options.
    """
    if not _launcher.direct:
        kernel[grid](*tensors, *sizes, **constants)
        return
    device, addresses, bits = tensors[0].get_device(), [], 0
    key: list[object] = [id(kernel), device]
    for tensor in tensors:
        address = tensor.data_ptr()
        bits |= address
        addresses.append(address)
        key.append(tensor.dtype)
    if bits & _MISALIGNED or max(sizes, default=0) >= _MOST:
        kernel[grid](*tensors, *sizes, **constants)
        return
    known = (*key, *constants.values())
    compiled = _launcher.compiled.get(known)
    if compiled is None:
        binary = kernel[grid](*tensors, *sizes, **constants)
        try:
            _launcher.add(known, kernel, binary, constants)
        except AttributeError:
            _launcher.direct = False
        return
    start, before, behind = compiled
    columns, rows, layers = (*grid, 1, 1)[:3]
    stream = torch._C._cuda_getCurrentRawStream(device)
    try:
        start(columns, rows, layers, stream, *before, *addresses, *sizes, *behind)
    except TypeError:
        _launcher.direct = False
        kernel[grid](*tensors, *sizes, **constants)
