"""What every launcher needs: how kernels are started, on which device, in blocks of which size."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from functools import cache, partial, reduce, wraps
from operator import attrgetter, or_
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers

try:
    from permutohedral import _native
except ImportError:
    _native = None  # type: ignore[assignment]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# most channels of a tile
WIDEST_TILE = 64
# kernels are compiled for pointers that are multiples of 16 bytes, as those of torch's allocations are
_MISALIGNED = 15
# and for sizes of 32 bits
_MOST = 1 << 31
# kernels that have one of these need memory for each start, or more than the core tells the driver; older versions of
# Triton know fewer of them
_MORE_THAN_A_START = "global_scratch_size", "profile_scratch_size", "launch_cooperative_grid", "launch_pdl"
# maps of such functions are faster than comprehensions
_dtype_of, _address_of = attrgetter("dtype"), Tensor.data_ptr


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


def empty_corners(points: int, corners: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`[points, corners]`, corner by corner in memory, with room for a multiple of four points at each."""
    room = (points + 3) & ~3
    whole = torch.empty_strided((room, corners), (1, room), dtype=dtype, device=device)
    # the fastest of the ways to shorten it
    return whole if room == points else whole.as_strided((points, corners), (1, room))


def tile(channels: int) -> dict[str, int]:
    """The shape of tiles: about 1024 elements, and a thread for each point of few channels."""
    block_c = min(power_of_two(channels), WIDEST_TILE)
    return {"BLOCK": max(min(1024 // block_c, 128), 16), "BLOCK_C": block_c}


# the stream that work on a device is queued in; builds of torch for the CPU have none
stream_of: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)


# number of programs along three axes
Grid = tuple[int, int, int]


@cache
def _driver_launch() -> int | None:
    """The address of the CUDA driver's function that starts a kernel, None without a driver or the compiled core."""
    if _native is None or not HAS_PTX:
        return None
    try:
        return ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


class Bound:
    """A kernel with its constants: `bound(grid, tensors, sizes)` is `kernel[grid](*tensors, *sizes, **constants)`.

    Triton keeps the same binaries, but finding one takes it longer than a small kernel runs: it looks at every
    argument anew. So the compiled core keeps those that were compiled by what they were compiled for, and starts them;
    where it cannot, Triton does.

    Args:
        kernel: from `triton.jit`, which must not specialize on the sizes (`do_not_specialize`).
        constants: those the kernel is compiled for, then Triton's options.
    """

    __slots__ = ("_binaries", "_constants", "_core", "_kernel", "_tile")

    def __init__(self, kernel: Any, **constants: Any) -> None:
        self._kernel, self._constants = kernel, constants
        self._tile: tuple[int, int] = constants.get("BLOCK", 1), constants.get("BLOCK_C", 1)
        launch = _driver_launch()
        self._core = None if launch is None else _native.GpuKernel(launch, _address_of)
        # what the core starts lives as long as this
        self._binaries: list[Any] = []

    def tiles(self, rows: int, channels: int) -> Grid:
        """As many programs as tiles (constants BLOCK and BLOCK_C) cover `[rows, channels]`."""
        height, width = self._tile
        return -(-rows // height), -(-channels // width), 1

    def __call__(self, grid: Grid, tensors: tuple[Tensor, ...], sizes: tuple[float, ...]) -> None:
        """Start it on the current device and stream.

        Args:
            grid: number of programs along three axes.
            tensors: what the kernel reads and writes, all on the current device; at least one. A kernel that can do
                without one takes any other tensor in its place.
            sizes: numbers that change from call to call.
        """
        device, core = tensors[0].get_device(), self._core
        if core is None or not core.start(grid, tensors, sizes, device, stream_of(device)):
            self._start_as_documented(grid, tensors, sizes, device)

    def prepare(self, grid: Grid, tensors: tuple[Tensor, ...], sizes: tuple[float, ...]) -> Callable[[], None]:
        """What starts it with these arguments on the stream that is the current one now, for those who do so often.

        The core does not look at the arguments again, and keeps the tensors.
        """
        device, core = tensors[0].get_device(), self._core
        again = None if core is None else core.prepare(grid, tensors, sizes, device, stream_of(device))
        return partial(self, grid, tensors, sizes) if again is None else again

    def _start_as_documented(
        self, grid: Grid, tensors: tuple[Tensor, ...], sizes: tuple[float, ...], device: int
    ) -> None:
        """Start it by Triton's own means, and keep the binary if that is the usual one."""
        try:
            aligned = not reduce(or_, map(_address_of, tensors)) & _MISALIGNED
        except RuntimeError:
            self(grid, _unwrapped(tensors), sizes)
            return
        binary = self._kernel[grid](*tensors, *sizes, **self._constants)
        if self._core is None or not aligned or max(sizes, default=0) >= _MOST:
            return
        about = binary.metadata
        if about.num_ctas != 1 or any(getattr(about, name, 0) for name in _MORE_THAN_A_START):
            return
        kinds = "".join("f" if isinstance(size, float) else "i" for size in sizes)
        threads = about.num_warps * about.target.warp_size
        self._core.keep(device, tuple(map(_dtype_of, tensors)), kinds, binary.function, threads, about.shared)
        self._binaries.append(binary)


_bound: dict[tuple[object, ...], Bound] = {}


def bind(kernel: Any, **constants: Any) -> Bound:
    """A kernel with its constants, made once. Who computes some of them has a function under `cache` of its own, which
    is asked faster.
    """
    # a kernel itself would be hashed by its source, every time
    key = id(kernel), *constants.items()
    bound = _bound.get(key)
    if bound is None:
        bound = _bound[key] = Bound(kernel, **constants)
    return bound


def _unwrapped(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The tensors inside of those that a transformation of `torch.func` has left behind: these have no memory."""
    bare = unwrap_dead_wrappers(tensors)
    if all(one is other for one, other in zip(tensors, bare, strict=True)):
        raise RuntimeError("a kernel was to be started with a tensor that has no memory")
    return tuple(bare)


# a kernel and what it is to be started with: `launch[0](*launch[1:])`
Launch = tuple[Bound, Grid, tuple[Tensor, ...], tuple[float, ...]]


def start_all(launches: Iterable[Launch]) -> None:
    """Start them, one after another."""
    for bound, grid, tensors, sizes in launches:
        bound(grid, tensors, sizes)


def prepare_all(launches: Iterable[Launch]) -> list[Callable[[], None]]:
    """What starts them, again and again: see `Bound.prepare`."""
    return [bound.prepare(grid, tensors, sizes) for bound, grid, tensors, sizes in launches]


def launch(
    kernel: Any, grid: tuple[int, ...], tensors: tuple[Tensor, ...], sizes: tuple[float, ...], **constants: Any
) -> None:
    """`kernel[grid](*tensors, *sizes, **constants)`, for up to three axes: see `Bound`."""
    columns, rows, layers = (*grid, 1, 1)[:3]
    bind(kernel, **constants)((columns, rows, layers), tensors, sizes)
