"""Checks of tensors and numbers that the public functions share."""

from __future__ import annotations

import math
import operator
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from permutohedral.errors import InputError

# complex numbers, and floating numbers of less than 16 bits
_UNSUPPORTED = tuple(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and (dtype.is_complex or (dtype.is_floating_point and dtype.itemsize < 2))
)


def check_tensor(name: str, given: object) -> None:
    """Raise unless `given` is a dense tensor of a dtype that is computed with."""
    if not isinstance(given, Tensor):
        raise InputError(f"{name} must be a torch.Tensor, got {type(given).__name__}; use torch.as_tensor")
    if given.layout != torch.strided:
        raise InputError(f"{name} must be dense, got a tensor of the layout {given.layout}; use .to_dense()")
    if given.dtype in _UNSUPPORTED:
        raise InputError(f"{name} must be real, of at least 16 bits, got {given.dtype}; convert it, such as to float32")


def check_features(features: Tensor, target_features: Tensor | None) -> int:
    """Validate ranks, dtypes and devices of points; returns the dimension."""
    reject_torchscript()
    for name, given in (("features", features), ("target_features", target_features)):
        if given is None:
            continue
        check_tensor(name, given)
        if given.dim() not in (2, 3):
            raise InputError(
                f"{name} must be [points, dimension] or [batch, points, dimension], got shape {tuple(given.shape)}"
            )
        if given.shape[-1] < 1:
            raise InputError(f"{name} must have at least one dimension, got shape {tuple(given.shape)}")
        if given.dtype not in (torch.float32, torch.float64):
            raise InputError(f"{name} must be float32 or float64, got {given.dtype}; convert with .float()")
    if target_features is not None:
        _check_alike(features, target_features)
    if features.is_meta:
        raise InputError("features are on the device 'meta', which holds no numbers to build a lattice from")
    # where torch.compile takes sizes for unknown: the taps of a filter are made of this one
    return operator.index(features.shape[-1])


def _check_alike(features: Tensor, target_features: Tensor) -> None:
    if features.shape[-1] != target_features.shape[-1]:
        raise InputError(
            f"features and target_features must have the same dimension, got {features.shape[-1]} and "
            f"{target_features.shape[-1]}"
        )
    if features.dim() != target_features.dim() or (
        features.dim() == 3 and features.shape[0] != target_features.shape[0]
    ):
        raise InputError(
            "features and target_features must both be flat or both be batches of one size, got shapes "
            f"{tuple(features.shape)} and {tuple(target_features.shape)}"
        )
    if features.dtype != target_features.dtype or features.device != target_features.device:
        raise InputError(
            "features and target_features must share dtype and device, got "
            f"{features.dtype} on {features.device} and {target_features.dtype} on {target_features.device}"
        )


def reject_torchscript() -> None:
    """Raise inside of `torch.jit.trace`."""
    if torch._C._get_tracing_state() is not None:
        raise InputError(
            "torch.jit.trace, and torch.onnx.export with dynamo=False, would record the lattice of the example as a "
            "constant; use torch.compile or torch.export"
        )


def reject_scripting(layer: object) -> NoReturn:
    """Raise: `torch.jit.script` calls this as the method `__prepare_scriptable__` of a layer."""
    raise InputError(
        f"torch.jit.script cannot compile {type(layer).__name__}, whose lattice depends on the data; use torch.compile "
        "or torch.export"
    )


# the largest int64
_MOST = 2**63 - 1


def check_count(name: str, number: object, least: int = 0) -> None:
    """Raise unless `number` is a whole number of at least `least`."""
    # torch.export may take sizes for unknown
    if isinstance(number, bool) or not isinstance(number, (int, torch.SymInt)) or number < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {number!r}")
    if number > _MOST:
        raise InputError(f"{name} must be at most {_MOST:,}, got {number!r}")


def has_finite_sum(tensor: Tensor) -> bool:
    """Return whether the sum of a tensor is finite; then so are all its elements.

    A sum of finite numbers may overflow. It takes a fraction of the time of `isfinite`. On the CPU NumPy sums in the
    calling thread, since torch's idle threads busy-wait.

    >>> has_finite_sum(torch.ones(3)), has_finite_sum(torch.tensor([1.0, torch.nan]))
    (True, False)
    """
    if tensor.device.type != "cpu" or tensor.dtype not in (torch.float32, torch.float64):
        return math.isfinite(float(tensor.detach().sum(dtype=torch.float32)))
    with np.errstate(all="ignore"):
        return math.isfinite(float(np.add.reduce(tensor.numpy(force=True), axis=None)))
