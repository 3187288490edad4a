"""Argument checks like those of pydensecrf: TypeError for wrong types, ValueError for wrong values."""

from __future__ import annotations

import numbers
import operator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from permutohedral.errors import InputError

# limit of C's int in pydensecrf
_MAX_COUNT = 2**31 - 1


def as_array(name: str, given: object, dtype: DTypeLike, axes: int) -> NDArray[Any]:
    """Return `given` as an array without a copy; it must be writable and in C order."""
    array = given if isinstance(given, np.ndarray) else _from_buffer(name, given)
    wanted = np.dtype(dtype)
    if array.dtype != wanted:
        scale = ", times 255 if white is 1" if wanted == np.uint8 and array.dtype.kind == "f" else ""
        raise InputError(f"{name} must be {wanted}, got {array.dtype}; convert with .astype(np.{wanted}){scale}")
    if array.ndim != axes:
        raise InputError(f"{name} must have {axes} axes, got shape {array.shape}")
    if not array.flags.c_contiguous:
        raise InputError(f"{name} must be C-contiguous; use np.ascontiguousarray")
    # pydensecrf rejects read-only arrays, such as numpy.asarray(Image.open(...))
    return array if array.flags.writeable else array.copy()


def _from_buffer(name: str, given: object) -> NDArray[Any]:
    try:
        return np.asarray(memoryview(given))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be a NumPy array, got {type(given).__name__}") from None


def as_count(name: str, given: Any, least: int | None = None) -> int:
    """Return a whole number; fractions are truncated, as in pydensecrf."""
    try:
        number = int(given) if isinstance(given, numbers.Real) else operator.index(given)  # type: ignore[call-overload]
    except (OverflowError, ValueError):
        raise InputError(f"{name} must be a whole number, got {given!r}") from None
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {type(given).__name__}") from None
    if (least is not None and number < least) or number > _MAX_COUNT:
        raise InputError(f"{name} must lie between {least} and {_MAX_COUNT}, got {given!r}")
    return int(number)


def as_float(name: str, given: object) -> float:
    """Return a finite number."""
    try:
        number = float(given)  # type: ignore[arg-type]
    except OverflowError:
        number = float("inf")
    except TypeError:
        raise TypeError(f"{name} must be a number, got {type(given).__name__}") from None
    if not np.isfinite(np.float32(number)):
        raise InputError(f"{name} must be finite, got {given!r}")
    return number


def as_bandwidths(name: str, given: Any, count: int) -> list[np.float32]:
    """Return `count` standard deviations: a number repeated, or the first of a sequence."""
    try:
        several = [given] * count if isinstance(given, numbers.Number) else [given[axis] for axis in range(count)]
    except (IndexError, KeyError):
        raise InputError(f"{name} must be a number or {count} numbers, got {given!r}") from None
    found = [np.float32(as_float(name, number)) for number in several]
    if not all(found):
        raise InputError(f"{name} must not be zero, got {given!r}; pass a small number to separate pixels")
    return found
