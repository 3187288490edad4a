"""Triton kernels and their launch: `kernel[constants](grid, tensors, sizes)`."""

from __future__ import annotations

import ctypes
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial, reduce, wraps
from operator import attrgetter, or_
from typing import Any, ParamSpec, TypeVar

import torch
import triton
import triton.language as tl
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
# kernels are compiled for sizes of 32 bits
_SIZE_LIMIT = 1 << 31
# a binary with one of these needs scratch memory or launch attributes that the core does not pass to the driver; older
# versions of Triton have fewer of them
_UNSUPPORTED_METADATA = "global_scratch_size", "profile_scratch_size", "launch_cooperative_grid", "launch_pdl"
# maps of such functions are faster than comprehensions
_dtype_of, _address_of = attrgetter("dtype"), Tensor.data_ptr

# whether Triton interprets the kernels on the CPU; Triton decides that when they are defined
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
# inline PTX needs a compiler and an NVIDIA GPU
HAS_PTX = torch.version.hip is None and not INTERPRETED

# number of programs along three axes
Grid = tuple[int, int, int]


def on_device(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run a function on the device of its first argument, a tensor: Triton launches on the current device."""

    @wraps(function)
    def launcher(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        first = args[0]
        assert isinstance(first, Tensor)
        if not first.is_cuda or first.get_device() == torch._C._cuda_getDevice():
            return function(*args, **kwargs)
        with torch.cuda.device(first.device):
            return function(*args, **kwargs)

    return launcher


def cdiv(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def power_of_two(number: int, least: int = 1) -> int:
    """Return the smallest power of two that is at least `number` and `least`."""
    return max(1 << max(number - 1, 0).bit_length(), least)


def tile(channels: int) -> tuple[int, int]:
    """Return BLOCK and BLOCK_C: about 1024 elements, and one thread per point if channels are few."""
    block_c = min(power_of_two(channels), WIDEST_TILE)
    return max(min(1024 // block_c, 128), 16), block_c


def rows_contiguous(tensor: Tensor) -> Tensor:
    """Return `tensor`, or a copy whose last axis is contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def empty_corners(points: int, corners: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate `[points, corners]`, corner by corner, each padded to a multiple of four points."""
    padded = (points + 3) & ~3
    whole = torch.empty_strided((padded, corners), (1, padded), dtype=dtype, device=device)
    # the fastest way to shorten it
    return whole if padded == points else whole.as_strided((points, corners), (1, padded))


# the stream of a device that work is queued in; builds of torch for the CPU have none
stream_of: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)


@cache
def _driver_launch() -> int | None:
    """Return the address of `cuLaunchKernel`, or None without a CUDA driver or the compiled core."""
    if _native is None or not HAS_PTX:
        return None
    try:
        return ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


class Variant:
    """A kernel with its constants: `variant(grid, tensors, sizes)` launches it.

    Triton looks at every argument of every launch, which takes longer than a small kernel runs. So the compiled core
    caches binaries by dtype and launches them (3.7 instead of 6.7 us on an H200 host, 135fd71). Triton launches
    arguments that no cached binary fits.

    Args:
        function: from `triton.jit`, which must not specialize on the sizes.
        constants: by name, followed by Triton's options.
    """

    __slots__ = ("_binaries", "_constants", "_core", "_function", "_tile")

    def __init__(self, function: Any, constants: dict[str, Any]) -> None:
        self._function, self._constants = function, constants
        self._tile: tuple[int, int] = constants.get("BLOCK", 1), constants.get("BLOCK_C", 1)
        launch = _driver_launch()
        self._core = None if launch is None else _native.GpuKernel(launch, _address_of)
        # the core launches these, so they live as long as this object
        self._binaries: list[Any] = []

    def tiles(self, rows: int, channels: int) -> Grid:
        """Return the grid whose tiles (constants BLOCK and BLOCK_C) cover `[rows, channels]`."""
        height, width = self._tile
        return -(-rows // height), -(-channels // width), 1

    def __call__(self, grid: Grid, tensors: tuple[Tensor, ...], sizes: tuple[float, ...]) -> None:
        """Launch on the current device and stream.

        Args:
            grid: number of programs along three axes.
            tensors: read and written by the kernel, all on the current device; at least one. Pass any other tensor for
                one that the kernel does not use.
            sizes: numbers that change from call to call.
        """
        device, core = tensors[0].get_device(), self._core
        if core is None or not core.start(grid, tensors, sizes, device, stream_of(device)):
            self._launch_with_triton(grid, tensors, sizes, device)

    def prepare(self, grid: Grid, tensors: tuple[Tensor, ...], sizes: tuple[float, ...]) -> Callable[[], None]:
        """Return a function that repeats this launch on the stream that is current now.

        The core checks the arguments once, and keeps the tensors alive.
        """
        device, core = tensors[0].get_device(), self._core
        again = None if core is None else core.prepare(grid, tensors, sizes, device, stream_of(device))
        return partial(self, grid, tensors, sizes) if again is None else again

    def _launch_with_triton(
        self, grid: Grid, tensors: tuple[Tensor, ...], sizes: tuple[float, ...], device: int
    ) -> None:
        """Launch through Triton and cache the compiled binary."""
        try:
            aligned = not reduce(or_, map(_address_of, tensors)) & _MISALIGNED
        except RuntimeError:
            self(grid, _unwrapped(tensors), sizes)
            return
        binary = self._function[grid](*tensors, *sizes, **self._constants)
        if self._core is None or not aligned or max(sizes, default=0) >= _SIZE_LIMIT:
            return
        about = binary.metadata
        if about.num_ctas != 1 or any(getattr(about, name, 0) for name in _UNSUPPORTED_METADATA):
            return
        kinds = "".join("f" if isinstance(size, float) else "i" for size in sizes)
        threads = about.num_warps * about.target.warp_size
        self._core.keep(device, tuple(map(_dtype_of, tensors)), kinds, binary.function, threads, about.shared)
        self._binaries.append(binary)


def _unwrapped(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the tensors inside wrappers that a finished transformation of `torch.func` left behind."""
    bare = unwrap_dead_wrappers(tensors)
    if all(one is other for one, other in zip(tensors, bare, strict=True)):
        raise RuntimeError("a kernel was launched with a tensor that has no memory")
    return tuple(bare)


class Kernel(dict[Any, Variant]):
    """A `triton.jit` function and its variants, created when they are first used.

    `kernel[constants]` is the variant for these values of the `tl.constexpr` parameters, in the order of the signature.
    Values of the `options` follow them; None stands for Triton's default.
    """

    def __init__(self, function: Any, options: Sequence[str] = ()) -> None:
        super().__init__()
        self.function = function
        parameters = inspect.signature(function.fn).parameters.values()
        self._names = *(each.name for each in parameters if "constexpr" in str(each.annotation)), *options

    def __missing__(self, constants: Any) -> Variant:
        values = constants if isinstance(constants, tuple) else (constants,)
        named = {name: value for name, value in zip(self._names, values, strict=True) if value is not None}
        variant = self[constants] = Variant(self.function, named)
        return variant


def kernel(*, sizes: Sequence[str] = (), options: Sequence[str] = ()) -> Callable[[Any], Kernel]:
    """Return a decorator that makes a `Kernel` of a function.

    Args:
        sizes: parameters that are numbers and change from call to call. They follow the tensors.
        options: of Triton, such as "num_warps"; their values follow the constants of a variant.
    """
    return lambda function: Kernel(triton.jit(function, do_not_specialize=list(sizes)), options)


# a variant and the arguments of its launch
Launch = tuple[Variant, Grid, tuple[Tensor, ...], tuple[float, ...]]


def launch_all(launches: Iterable[Launch]) -> None:
    """Launch one after another."""
    for variant, grid, tensors, sizes in launches:
        variant(grid, tensors, sizes)


def prepare_all(launches: Iterable[Launch]) -> list[Callable[[], None]]:
    """Return functions that repeat the launches: see `Variant.prepare`."""
    return [variant.prepare(grid, tensors, sizes) for variant, grid, tensors, sizes in launches]


_CLEARED = 4096


@triton.jit
def fill_block(elements, first, number, CONTENT: tl.constexpr, BLOCK: tl.constexpr):
    """Fill up to BLOCK elements from `first` on with CONTENT; there are `number` in all."""
    place = first + tl.arange(0, BLOCK)
    content = tl.full([BLOCK], CONTENT, elements.dtype.element_ty)
    if first + BLOCK <= number:
        # without a mask a thread stores several elements with one instruction
        tl.store(elements + place, content)
    else:
        tl.store(elements + place, content, mask=place < number)


@kernel(sizes=["number"], options=["num_warps"])
def clear_kernel(elements, number, BLOCK: tl.constexpr):
    fill_block(elements, tl.program_id(0).to(tl.int64) * BLOCK, number, 0, BLOCK)


def clear(elements: Tensor) -> Launch:
    """Return the launch that fills a contiguous tensor, which is not empty, with zeros."""
    number = elements.numel()
    return clear_kernel[_CLEARED, 8], (-(-number // _CLEARED), 1, 1), (elements,), (number,)


def zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return `torch.zeros` on the current device, without torch's dispatcher."""
    output = torch.empty(shape, dtype=dtype, device=device)
    if output.numel():
        launch_all([clear(output)])
    return output
