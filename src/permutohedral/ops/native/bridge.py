"""Calls of the compiled core: tensors are passed as DLPack capsules, contiguous and outside of autograd.

Inputs are converted and copied as the core needs them. Buffers that the core writes are passed by `written`, without
conversion: the core rejects others. torch makes a capsule in an eighth of the time that the core takes to ask for one.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import dlpack

from permutohedral.errors import BackendUnavailable, InputError
from permutohedral.ops.contract import ACCUMULATION

try:
    from permutohedral import _native as _native
except ImportError as error:
    raise BackendUnavailable(
        f"the compiled core is installed but cannot be loaded: {error}; reinstall permutohedral, or choose "
        'permutohedral.backends.set_default("reference")'
    ) from error

to_dlpack: Any = dlpack.to_dlpack  # type: ignore[attr-defined]
# of a capsule, without the questions that torch asks of other objects
from_dlpack: Any = torch._C._from_dlpack
# environment variable: how much freed memory the core keeps for the next calls, in megabytes
KEPT_MEMORY_VARIABLE = "PERMUTOHEDRAL_KEPT_MEMORY"
# environment variable: the largest number of threads of the core, for one of several worker processes
THREADS_VARIABLE = "PERMUTOHEDRAL_NUM_THREADS"
# versions 2 and 1 of control groups: processor time per period, and the period
_CONTROL_GROUPS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))
# smaller planes are copied by torch, in a third of the time
_LEAST_INTERLEAVED = 1 << 12
# named in every call: torch.set_default_device may have set another
CPU = torch.device("cpu")


def limit_kept_memory(setting: str | None = None) -> None:
    """Keep at most `setting` megabytes of freed memory; default: the environment variable, if it is set."""
    setting = os.environ.get(KEPT_MEMORY_VARIABLE) if setting is None else setting
    if setting is None:
        return
    if not setting.isdecimal():
        raise InputError(f"{KEPT_MEMORY_VARIABLE} must be a number of megabytes, got {setting!r}")
    _native.limit_kept_memory(min(int(setting) << 20, sys.maxsize))


limit_kept_memory()


def thread_limit(groups: str = "/sys/fs/cgroup") -> int:
    """Return the largest number of threads: the environment variable, or the processors of the control group.

    `groups` is the folder of the control groups.
    """
    setting = os.environ.get(THREADS_VARIABLE)
    if setting is not None:
        if not setting.isdecimal() or int(setting) == 0:
            raise InputError(f"{THREADS_VARIABLE} must be a positive number of threads, got {setting!r}")
        return int(setting)
    for files in _CONTROL_GROUPS:
        # "max" is no number, and means no limit, as -1 does
        with contextlib.suppress(OSError, ValueError):
            time, period = map(int, " ".join(Path(groups, file).read_text() for file in files).split())
            if time > 0:
                return math.ceil(time / period)
    return sys.maxsize


_MAX_THREADS = thread_limit()


class _Core:
    """Call functions of the core with tensors, also in tuples and lists, converted to DLPack capsules.

    Args:
        module: holds the functions.
        dtype: of floating inputs, which are converted to it; None leaves them.
    """

    def __init__(self, module: object, dtype: torch.dtype | None) -> None:
        self.module, self._dtype = module, dtype

    def __getattr__(self, name: str) -> Any:
        found, dtype = getattr(self.module, name), self._dtype

        def call(*arguments: Any) -> Any:
            # the core borrows the tensors, which stay alive here until it returns
            alive: list[Tensor] = []
            return found(*_to_capsules(arguments, dtype, alive))

        # found without this method from now on
        setattr(self, name, call)
        return call


class Written(tuple[Any]):
    """The capsule of a buffer that the core writes."""


def _to_capsules(arguments: Any, dtype: torch.dtype | None, alive: list[Tensor]) -> list[Any]:
    """Return the capsules of tensors, which are added to `alive`; tuples become lists, other arguments stay."""
    capsules = []
    for each in arguments:
        if isinstance(each, Tensor):
            tensor = contiguous_for_core(each, dtype)
            alive.append(tensor)
            capsules.append(to_dlpack(tensor))
        elif isinstance(each, (tuple, list)) and type(each) is not Written:
            capsules.append(_to_capsules(each, dtype, alive))
        else:
            capsules.append(each)
    return capsules


def written(tensor: Tensor) -> Written:
    """Return what the core takes for a buffer that it writes, which the caller keeps alive.

    The core raises TypeError if the buffer is not contiguous or has another dtype than the kernel.
    """
    return Written((to_dlpack(tensor),))


# the functions of keys and neighbors
key_core: Any = _Core(_native, None)
_float32: Any = _Core(_native.float32, torch.float32)
_float64: Any = _Core(_native.float64, torch.float64)


def core(dtype: torch.dtype) -> Any:
    """Return the kernels for values of `dtype`."""
    return _float64 if dtype == torch.float64 else _float32


def contiguous_for_core(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the tensor contiguous, detached, without a lazy sign, and in `dtype` if it is floating."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor.dtype is not dtype and dtype is not None and tensor.is_floating_point():
        tensor = tensor.to(dtype)
    if tensor.is_contiguous():
        return tensor
    interleaved = tensor.dim() == 2 and tensor.dtype in (torch.float32, torch.float64) and tensor.mT.is_contiguous()
    # torch copies small tensors in the calling thread
    if not interleaved or tensor.numel() < _LEAST_INTERLEAVED:
        return tensor.contiguous()
    # the planes of an image, viewed as points
    rows = empty(tensor.shape, tensor.dtype)
    core(tensor.dtype).interleave(tensor.mT, written(rows), threads(tensor.numel()))
    return rows


def empty(shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> Tensor:
    """Return an uninitialized tensor. The core keeps the memory of large ones when they are freed."""
    if math.prod(shape) * dtype.itemsize < _native.LEAST_KEPT_BYTES:
        return torch.empty(shape, dtype=dtype, device=CPU)
    fresh: Tensor = from_dlpack(_native.allocate(list(shape), dtype.is_floating_point, 8 * dtype.itemsize))
    return fresh


def run_in_place(kernel: str, rows: Tensor, by: Tensor) -> Tensor:
    """Return the result of a kernel that works on contiguous rows, which it may overwrite; `by` is contiguous."""
    rounded = rows.dtype
    dtype = ACCUMULATION.get(rounded, rounded)
    module = _native.float64 if dtype is torch.float64 else _native.float32
    wide, by = rows if dtype is rounded else rows.to(dtype), by.detach().to(dtype)
    getattr(module, kernel)((to_dlpack(wide),), to_dlpack(by), threads(wide.numel()))
    return wide if dtype is rounded else wide.to(rounded)


def threads(work: int) -> int:
    """Return the number of threads for `work` elements: waking others costs more than a small sum."""
    return min(torch.get_num_threads(), _MAX_THREADS) if work > 1 << 14 else 1


def run_kernel(kernel: str, shape: tuple[int, ...] | torch.Size, work: int, *operands: Any) -> Tensor:
    """Return the result of a kernel that sums products of its operands; without elements the sum is zero.

    Args:
        kernel: takes the operands, its result, and the number of threads.
        shape: of the result.
        work: number of elements that are added.
        operands: tensors, tuples of tensors or None, and numbers. The result is accumulated and rounded according to
            the dtype of the first.
    """
    rounded = operands[0].dtype
    dtype = ACCUMULATION.get(rounded, rounded)
    # every small kernel passes here, so there are no calls of Python in these loops
    capsules, alive, is_empty = [], [], False
    for operand in operands:
        parts = []
        for part in operand if type(operand) is tuple else (operand,):
            capsule = part
            if isinstance(part, Tensor):
                given, part = part.dtype, part.detach() if part.requires_grad else part  # noqa: PLW2901
                if not part.is_contiguous() or (given is not dtype and given.is_floating_point) or part.is_neg():
                    part = contiguous_for_core(part, dtype)  # noqa: PLW2901
                is_empty = is_empty or part.numel() == 0
                alive.append(part)
                capsule = to_dlpack(part)
            parts.append(capsule)
        capsules.append(parts if type(operand) is tuple else parts[0])
    out = empty(shape, dtype)
    if is_empty:
        out.zero_()
    elif out.numel() > 0:
        module = _native.float64 if dtype is torch.float64 else _native.float32
        getattr(module, kernel)(*capsules, (to_dlpack(out),), threads(work))
    return out if dtype is rounded else out.to(rounded)
