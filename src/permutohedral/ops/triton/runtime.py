"""What every launcher needs: how kernels are started, on which device, in blocks of which size."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import reduce, wraps
from operator import attrgetter, or_
from typing import Any, ClassVar, ParamSpec, TypeVar

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
# maps of such functions are faster than comprehensions
_dtype_of = attrgetter("dtype")


def on_device(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run a launcher on the device of its first argument, a tensor: Triton launches on the current device."""

    @wraps(function)
    def launcher(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        first = args[0]
        assert isinstance(first, Tensor)
        if not first.is_cuda or first.get_device() == torch._C._cuda_getDevice():
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


def tile(channels: int) -> dict[str, int]:
    """The shape of tiles: about 1024 elements, and a thread for each point of few channels."""
    block_c = min(power_of_two(channels), WIDEST_TILE)
    return {"BLOCK": max(min(1024 // block_c, 128), 16), "BLOCK_C": block_c}


def _is_usual(addresses: Sequence[int], sizes: tuple[float, ...]) -> bool:
    """Whether these are what kernels are compiled for first."""
    return not reduce(or_, addresses) & _MISALIGNED and (not sizes or max(sizes) < _MOST)


# what starts a binary: a function of C, and its arguments before and behind ours
_Starter = tuple[Any, tuple[Any, ...], tuple[Any, ...]]


class Bound:
    """A kernel with its constants: `bound(grid, tensors, sizes)` is `kernel[grid](*tensors, *sizes, **constants)`.

    Triton keeps the same binaries, but finding one takes it longer than a small kernel runs: it looks at every
    argument anew. So those that were compiled are kept here by what they were compiled for, and started directly.

    Args:
        kernel: from `triton.jit`, which must not specialize on the sizes (`do_not_specialize`).
        constants: those the kernel is compiled for, in its order, then Triton's options.
    """

    __slots__ = ("_constants", "_kernel", "_starters")
    # becomes False where a version of Triton starts kernels in another way than this does; they are then started as
    # documented
    direct: ClassVar[bool] = not INTERPRETED

    def __init__(self, kernel: Any, **constants: Any) -> None:
        self._kernel, self._constants = kernel, constants
        self._starters: dict[tuple[object, ...], _Starter] = {}

    def over(self, rows: int, channels: int, tensors: tuple[Tensor, ...], sizes: tuple[float, ...]) -> None:
        """Start as many programs as tiles (constants BLOCK and BLOCK_C) cover `[rows, channels]`."""
        block, block_c = self._constants["BLOCK"], self._constants["BLOCK_C"]
        self((-(-rows // block), -(-channels // block_c), 1), tensors, sizes)

    def __call__(self, grid: tuple[int, int, int], tensors: tuple[Tensor, ...], sizes: tuple[float, ...]) -> None:
        """Start it on the current device and stream.

        Args:
            grid: number of programs along three axes.
            tensors: what the kernel reads and writes, all on the current device; at least one. A kernel that can do
                without one takes any other tensor in its place.
            sizes: numbers that change from call to call.
        """
        device = tensors[0].get_device()
        kind = (device, *map(_dtype_of, tensors))
        addresses = (*map(Tensor.data_ptr, tensors),)
        starter = self._starters.get(kind)
        if starter is None or not Bound.direct or not _is_usual(addresses, sizes):
            self._start_as_documented(grid, tensors, sizes, kind)
            return
        start, before, behind = starter
        try:
            start(*grid, _stream_of(device), *before, *addresses, *sizes, *behind)
        except TypeError:
            Bound.direct = False
            self._start_as_documented(grid, tensors, sizes, kind)

    def _start_as_documented(
        self, grid: tuple[int, ...], tensors: tuple[Tensor, ...], sizes: tuple[float, ...], kind: tuple[object, ...]
    ) -> None:
        binary = self._kernel[grid](*tensors, *sizes, **self._constants)
        if not Bound.direct or not _is_usual([tensor.data_ptr() for tensor in tensors], sizes):
            return
        try:
            self._keep(kind, binary)
        except AttributeError:
            Bound.direct = False

    def _keep(self, kind: tuple[object, ...], binary: Any) -> None:
        starter = binary.run
        # with memory of their own such kernels need an allocation for each start
        if starter.global_scratch_size or starter.profile_scratch_size:
            return
        options = starter.launch_cooperative_grid, starter.launch_pdl
        # no scratch memory; no metadata and no hooks for a profiler of Triton's
        before = binary.function, *options, None, None, binary.packed_metadata, None, None, None
        # the constants are passed, too, and ignored
        behind = tuple(self._constants[name] for name in self._kernel.arg_names if name in self._constants)
        self._starters[kind] = starter.launch, before, behind


def _stream_of(device: int) -> int:
    return torch._C._cuda_getCurrentRawStream(device)


_bound: dict[tuple[object, ...], Bound] = {}


def launch(
    kernel: Any, grid: tuple[int, ...], tensors: tuple[Tensor, ...], sizes: tuple[float, ...], **constants: Any
) -> None:
    """`kernel[grid](*tensors, *sizes, **constants)`, for up to three axes: see `Bound`, which is made once."""
    key = (id(kernel), *constants.values())
    bound = _bound.get(key)
    if bound is None:
        bound = _bound[key] = Bound(kernel, **constants)
    columns, rows, layers = (*grid, 1, 1)[:3]
    bound((columns, rows, layers), tensors, sizes)
