"""Tensors that many lattices share, cached for each device. Do not write to them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from permutohedral.ops.tracing import is_traced

# larger tensors are cheaper to recompute than to cache
_LARGEST = 1 << 21


def items_of_points(items: int, points: int, device: torch.device) -> Tensor:
    """Return the item of each point, `points` of each item in sequence: int32 `[items * points]`.

    >>> items_of_points(2, 3, torch.device("cpu")).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    if is_traced() or items * points > _LARGEST:
        return _make_items(items, points, device)
    return _cached_items(items, points, device)


def _make_items(items: int, points: int, device: torch.device) -> Tensor:
    return torch.arange(items, dtype=torch.int32, device=device).repeat_interleave(points)


@functools.lru_cache(maxsize=24)
def _cached_items(items: int, points: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        tensor = _make_items(items, points, device)
    if tensor.is_cuda:
        # other streams will read it, too
        torch.cuda.current_stream(tensor.device).synchronize()
    return tensor


# by name, since torch.compile cannot pass functions to a constant
_BUILDERS: dict[str, Callable[..., Tensor]] = {}


def shared_constant(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Let `constant` find a function by its name; it takes integers, and makes a tensor on the CPU."""
    _BUILDERS[build.__name__] = build
    return build


@functools.lru_cache(maxsize=256)
def _build(name: str, dtype: torch.dtype, device: torch.device, *arguments: int) -> Tensor:
    # converted before it is moved: not every device has float64
    return _BUILDERS[name](*arguments).to(dtype).to(device)


def _build_apart(name: str, dtype: torch.dtype, device: torch.device, *arguments: int) -> Tensor:
    """Make tensors that outlive a graph or a transformation of torch, and serve where gradients are wanted."""
    with torch.inference_mode(False), torch._C._DisableFuncTorch(), _disable_current_modes():
        return _build(name, dtype, device, *arguments)


def _constant_list(name: str, *arguments: int) -> list[Any]:
    with torch.inference_mode(False), torch._C._DisableFuncTorch(), _disable_current_modes():
        return _BUILDERS[name](*arguments).tolist()


# what torch.compiler.assume_constant_result sets, without loading the compiler, which doubles the time to import
_constant_list._dynamo_marked_constant = True  # type: ignore[attr-defined]


def constant(name: str, dtype: torch.dtype, device: torch.device | str, *arguments: int) -> Tensor:
    """Return the tensor of a shared constant, cached.

    Torch writes its elements into a graph instead of recording how they are made.

    Args:
        name: of the function that builds it, decorated with `shared_constant`.
        dtype, device: of the tensor.
        arguments: of the function.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        # a size that torch.compile takes for unknown becomes a number
        numbers = _constant_list(name, *(operator.index(each) for each in arguments))
        return torch.tensor(numbers, dtype=dtype, device=device)
    if torch._C._are_functorch_transforms_active() or torch.is_inference_mode_enabled():
        return _build_apart(name, dtype, torch.device(device), *arguments)
    return _build(name, dtype, torch.device(device), *arguments)


@shared_constant
def _axis_offsets(dimension: int) -> Tensor:
    d = dimension
    ahead = (d + 1) * torch.eye(d + 1, dtype=torch.int32, device="cpu")[:, :d] - 1
    return torch.stack([ahead, -ahead], dim=1).flatten(0, 1).to(torch.int32)


@shared_constant
def _axis_opposite(dimension: int) -> Tensor:
    return torch.arange(2 * (dimension + 1), device="cpu").view(-1, 2).flip(1).flatten()


def axis_offsets(dimension: int, device: torch.device | str = "cpu") -> Tensor:
    """Offsets of +e_0, -e_0, +e_1, ..., -e_d, int32 `[2 (d + 1), d]`: the steps of the separable Gaussian."""
    return constant("_axis_offsets", torch.int32, device, dimension)


def axis_opposite(dimension: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the step at the negative offset of each of `axis_offsets`, int64 `[2 (d + 1)]`."""
    return constant("_axis_opposite", torch.int64, device, dimension)
