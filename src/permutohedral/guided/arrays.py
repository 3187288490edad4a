"""NumPy arrays in, NumPy arrays out."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.errors import InputError

# all data of a call are tensors, or all are arrays
Data = TypeVar("Data", Tensor, NDArray[Any])


def to_tensor(given: Tensor | NDArray[Any]) -> Tensor:
    """An array as a tensor on the CPU, that shares its memory if it can; anything else stays.

    Raises:
        InputError: the array is masked, or of numbers that torch does not know.
    """
    if not isinstance(given, np.ndarray):
        return given
    if np.ma.is_masked(given):
        raise InputError("tensors have no masks: give the array with .filled(numpy.nan), where NaN is unknown")
    # torch knows neither steps backward nor another order of bytes, and warns about what must not be written
    plain = given.astype(given.dtype.newbyteorder("="), order="C", copy=not given.flags.writeable)
    try:
        return torch.from_numpy(plain)
    except TypeError as error:
        raise InputError(f"torch knows no numbers of type {given.dtype}; convert the array to float32") from error


def optional_tensor(given: Tensor | NDArray[Any] | None) -> Tensor | None:
    """`to_tensor` of what may be left out."""
    return None if given is None else to_tensor(given)


def as_given(result: Tensor, given: Data) -> Data:
    """The result as an array if `given` is one; derivatives end there, whatever else was given.

    >>> as_given(torch.zeros(2), np.zeros(3))
    array([0., 0.], dtype=float32)
    """
    if isinstance(given, np.ndarray):
        return result.detach().numpy()
    return result
