"""What every launcher needs: how kernels are started, on which device, in blocks of which size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial, reduce, wraps
from operator import attrgetter, or_
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# most channels of a tile
WIDEST_TILE = 64
# kernels are compiled for pointers that are multiples of 16 bytes, as those of torch's allocations are
_MISALIGNED = 15
# and for sizes of 32 bits
_MOST = 1 << 31
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
_stream_of: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)


# number of programs along three axes
Grid = tuple[int, int, int]
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

    __slots__ = ("_constants", "_kernel", "_starters", "_tile")
    # becomes False where a version of Triton starts kernels in another way than this does; they are then started as
    # documented
    direct: ClassVar[bool] = not INTERPRETED

    def __init__(self, kernel: Any, **constants: Any) -> None:
        self._kernel, self._constants = kernel, constants
        self._starters: dict[tuple[object, ...], _Starter] = {}
        self._tile: tuple[int, int] = constants.get("BLOCK", 1), constants.get("BLOCK_C", 1)

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
        device = tensors[0].get_device()
        try:
            kind, addresses = (device, *map(_dtype_of, tensors)), (*map(_address_of, tensors),)
        except RuntimeError:
            self(grid, _unwrapped(tensors), sizes)
            return
        usual = not reduce(or_, addresses) & _MISALIGNED and (not sizes or max(sizes) < _MOST)
        starter = self._starters.get(kind)
        if starter is None or not Bound.direct or not usual:
            self._start_as_documented(grid, tensors, sizes, kind if usual else None)
            return
        start, before, behind = starter
        try:
            start(*grid, _stream_of(device), *before, *addresses, *sizes, *behind)
        except TypeError:
            Bound.direct = False
            self._start_as_documented(grid, tensors, sizes, None)

    def prepare(self, grid: Grid, tensors: tuple[Tensor, ...], sizes: tuple[float, ...]) -> Callable[[], None]:
        """What starts it with these arguments, for those who do so many times: it does not look at them again.

        It keeps the tensors, and starts the kernel on the stream that is the current one now.
        """
        device = tensors[0].get_device()
        starter, addresses = self._starters.get((device, *map(_dtype_of, tensors))), [*map(_address_of, tensors)]
        if (
            starter is None
            or not Bound.direct
            or reduce(or_, addresses) & _MISALIGNED
            or max(sizes, default=0) >= _MOST
        ):
            return partial(self, grid, tensors, sizes)
        start, before, behind = starter
        again = partial(start, *grid, _stream_of(device), *before, *addresses, *sizes, *behind)
        # addresses alone would not keep memory from being given to others
        again.tensors = tensors  # type: ignore[attr-defined]
        return again

    def _start_as_documented(
        self,
        grid: tuple[int, ...],
        tensors: tuple[Tensor, ...],
        sizes: tuple[float, ...],
        kind: tuple[object, ...] | None,
    ) -> None:
        """Start it by Triton's own means, and keep the binary if that is one for arguments of a `kind`."""
        binary = self._kernel[grid](*tensors, *sizes, **self._constants)
        if kind is None or not Bound.direct:
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


def _unwrapped(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The tensors inside of those that a transformation of `torch.func` has left behind: these have no memory."""
    bare = unwrap_dead_wrappers(tensors)
    if all(one is other for one, other in zip(tensors, bare, strict=True)):
        raise RuntimeError("a kernel was to be started with a tensor that has no memory")
    return tuple(bare)


# a kernel and what it is to be started with: `launch[0](*launch[1:])`, or the same prepared
Launch = tuple[Bound, Grid, tuple[Tensor, ...], tuple[float, ...]]


def start_all(launches: Iterable[Launch]) -> None:
    """Start them, one after another."""
    for bound, grid, tensors, sizes in launches:
        bound(grid, tensors, sizes)


def prepare_all(launches: Iterable[Launch]) -> list[Callable[[], None]]:
    """What starts them, again and again: see `Bound.prepare`."""
    return [bound.prepare(grid, tensors, sizes) for bound, grid, tensors, sizes in launches]


_bound: dict[tuple[object, ...], Bound] = {}


def bind(kernel: Any, **constants: Any) -> Bound:
    """The kernel with these constants, made once."""
    key = (id(kernel), *constants.values())
    bound = _bound.get(key)
    if bound is None:
        bound = _bound[key] = Bound(kernel, **constants)
    return bound


def launch(
    kernel: Any, grid: tuple[int, ...], tensors: tuple[Tensor, ...], sizes: tuple[float, ...], **constants: Any
) -> None:
    """`kernel[grid](*tensors, *sizes, **constants)`, for up to three axes: see `Bound`."""
    columns, rows, layers = (*grid, 1, 1)[:3]
    bind(kernel, **constants)((columns, rows, layers), tensors, sizes)
