"""Defaults, types and checks that jobs on files share, importable without torch."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from permutohedral.errors import DataError, InputError, PermutohedralError

if TYPE_CHECKING:
    import torch

PathLike = str | os.PathLike[str]
# progress callback: called with the amount done, the total, and the name of the stage
Progress = Callable[[float, float, str], None]
# stdin as a source, stdout as an output
STREAM = Path("-")
# extent of a tile with its margins, in pixels; an image of no more pixels is filtered in one call
TILE = 2048


@dataclass(frozen=True)
class SegmentationSettings:
    """Dense CRF over labels or probabilities.

    Attributes:
        certainty: probability of a given label.
        sigma_space: bandwidth of the bilateral kernel in pixels.
        sigma_color: bandwidth of the bilateral kernel in color; white is 1.
        strength: weight of the bilateral kernel.
        smoothness: weight of the spatial kernel, whose bandwidth is 3 pixels.
        num_iterations: mean-field iterations.
    """

    certainty: float = 0.7
    sigma_space: float = 12.0
    sigma_color: float = 0.03
    strength: float = 4.0
    smoothness: float = 1.0
    num_iterations: int = 10


def to_path(name: str, value: PathLike) -> Path:
    """Convert the argument `name`; raise `InputError` unless it is a path."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(
            f"{name} is of type {type(value).__name__}; pass the path of a file, or call a function of arrays, such as "
            "ph.bilateral_filter"
        )
    return Path(value)


def check_not_overwritten(source: Path, output: Path) -> None:
    """Raise `InputError` if `output` is the file `source`."""
    if output != STREAM and output.resolve() == source.resolve():
        raise InputError(f"the result would overwrite {source}; name another file")


def check_positive(name: str, value: float) -> None:
    """Raise `InputError` unless a number is positive and finite."""
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} is {value}; pass a positive, finite number")


def digest(description: Any) -> str:
    """Return a hash of JSON data, to recognize an input without storing its path in the output."""
    return hashlib.sha256(json.dumps(description).encode()).hexdigest()


def choose_device(name: str) -> torch.device:
    """Return the device for "auto", "cpu" or "cuda"; raise `InputError` if there is none."""
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device is {name!r}; pass auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device is 'cuda', but torch finds no GPU; pass cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


@contextmanager
def reading(what: str, error_type: type[PermutohedralError] = DataError) -> Iterator[None]:
    """Raise `error_type` for any error of a library in the block; readers raise errors of many types."""
    try:
        yield
    except (PermutohedralError, ModuleNotFoundError):
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise error_type(f"cannot read {what}: {reason}") from error
