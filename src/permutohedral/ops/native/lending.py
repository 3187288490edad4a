"""How the compiled core borrows tensors: contiguous, outside of autograd, as capsules of DLPack.

torch makes a capsule in an eighth of the time that the core takes to ask for one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.utils import dlpack

from permutohedral.errors import BackendUnavailable
from permutohedral.ops.primitives import accumulation_dtype

if TYPE_CHECKING:
    from permutohedral._native import Kernels

try:
    from permutohedral import _native as _native
except ImportError as error:
    raise BackendUnavailable(
        f"the compiled core is installed but cannot be loaded: {error}; reinstall permutohedral, or choose "
        'use_backend("reference")'
    ) from error

to_dlpack: Any = dlpack.to_dlpack  # type: ignore[attr-defined]
# named in every call: torch.set_default_device may have set another
CPU = torch.device("cpu")


class _Lending:
    """A module of the core, whose functions are given capsules for tensors, in `dtype` where they are floating."""

    def __init__(self, module: object, dtype: torch.dtype | None) -> None:
        self._module, self._dtype = module, dtype

    def __getattr__(self, name: str) -> Any:
        found, dtype = getattr(self._module, name), self._dtype

        def call(*arguments: Any) -> Any:
            return found(*[to_dlpack(plain(each, dtype)) if isinstance(each, Tensor) else each for each in arguments])

        # found without this method from now on
        setattr(self, name, call)
        return call


# the functions of keys and neighbors
key_core: Any = _Lending(_native, None)
_float32 = cast("Kernels", _Lending(_native.float32, torch.float32))
_float64 = cast("Kernels", _Lending(_native.float64, torch.float64))


def core(dtype: torch.dtype) -> Kernels:
    """The kernels for values of `dtype`."""
    return _float64 if dtype == torch.float64 else _float32


def plain(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor as the core can borrow it, of this dtype if it is floating, with no sign left to torch."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor.dtype is not dtype and dtype is not None and tensor.is_floating_point():
        tensor = tensor.to(dtype)
    if tensor.is_contiguous() or tensor.dim() != 2 or not tensor.mT.is_contiguous() or not tensor.is_floating_point():
        return tensor.contiguous()
    # the planes of a picture, seen as points
    rows = empty(tensor.shape, tensor.dtype)
    core(tensor.dtype).interleave(tensor.mT, rows, threads(tensor.numel()))
    return rows


def empty(shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> Tensor:
    """Uninitialized. Large tensors lie in memory that the core keeps when they are freed, to save page faults."""
    if math.prod(shape) * dtype.itemsize < _native.LEAST_KEPT_BYTES:
        return torch.empty(shape, dtype=dtype, device=CPU)
    return dlpack.from_dlpack(_native.allocate(list(shape), dtype.is_floating_point, 8 * dtype.itemsize))


def threads(work: int) -> int:
    """Threads for `work` elements: waking others costs more than a small sum."""
    return torch.get_num_threads() if work > 1 << 14 else 1


def summed(kernel: str, shape: tuple[int, ...] | torch.Size, work: int, first: Tensor, *others: Any) -> Tensor:
    """What a kernel writes into a tensor of that shape: sums of products of the operands, which are nil of nothing.

    Args:
        kernel: takes the operands, its result, and the number of threads.
        shape: of the result.
        work: how many elements are added up.
        first, others: operands; the result is accumulated and then rounded as the first one demands.
    """
    dtype = accumulation_dtype(first.dtype)
    out = empty(shape, dtype)
    if first.numel() == 0 or any(each.numel() == 0 for each in others if isinstance(each, Tensor)):
        out.zero_()
    elif out.numel() > 0:
        getattr(core(dtype), kernel)(first, *others, out, threads(work))
    return out.to(first.dtype)
