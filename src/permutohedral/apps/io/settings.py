"""Defaults, types and checks that jobs on files share, importable without torch."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import sys
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
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
# share of white beyond which all colors are alike
_LARGEST_SIGMA = 2.0
_LARGEST_COUNT = (1 << 31) - 1


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
    """Convert the argument `name`; raise `InputError` unless it is the path of a file, a folder, or of neither yet."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(
            f"{name} is of type {type(value).__name__}; pass the path of a file, or call a function of arrays, such as "
            "ph.bilateral_filter"
        )
    if not os.fspath(value):
        raise InputError(f"{name} is an empty path; pass the path of a file or a folder")
    path = Path(value)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return path
    # a name that is too long or has a null character, a link to itself
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name} is {str(path)[:40]!r}, which no file can be: {reason}; pass another path") from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode) and path != STREAM:
        raise InputError(f"{name} {path} is a pipe or a device; pass a file, or - for an image on stdin or stdout")
    return path


def optional_path(name: str, path: PathLike | None) -> Path | None:
    """Convert the argument `name` like `to_path`, and keep None."""
    return None if path is None else to_path(name, path)


def check_outputs(inputs: Iterable[Path], outputs: Iterable[Path]) -> None:
    """Raise `InputError` if an output would overwrite an input or another output, also by another name of the file.

    >>> check_outputs([Path("photo.png")], [Path("smooth.png"), Path("./photo.png")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    permutohedral.errors.InputError: the result would overwrite photo.png; name another file or folder ...
    """
    known = {_identity(path): path for path in inputs if path != STREAM}
    taken: dict[Hashable, Path] = {}
    for path in outputs:
        identity = _identity(path)
        if identity in known:
            raise InputError(f"the result would overwrite {known[identity]}; name another file or folder")
        if identity in taken:
            both = path if path == taken[identity] else f"{taken[identity]}, also named {path}"
            raise InputError(f"two results would both be {both}; name one of them differently")
        taken[identity] = path


def _identity(path: Path) -> Hashable:
    """Return a key that all names of a file share: links, and other letter case where the system ignores it."""
    try:
        status = path.stat()
        return status.st_dev, status.st_ino
    except OSError:
        real = os.path.realpath(path)
        return real.casefold() if sys.platform in ("darwin", "win32") else real


def check_positive(name: str, value: float) -> None:
    """Raise `InputError` unless a number is positive and finite."""
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} is {value}; pass a positive, finite number")


def digest(description: Any) -> str:
    """Return a hash of JSON data, to recognize an input without storing its path in the output."""
    return hashlib.sha256(json.dumps(description).encode()).hexdigest()


def check_count(name: str, value: int, least: int = 0) -> None:
    """Raise `InputError` unless a number is whole and at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if value > _LARGEST_COUNT:
        raise InputError(f"{name} must be at most {_LARGEST_COUNT:,}, got {value!r}")


def warn_of_large_sigma(sigma_color: float) -> None:
    """Warn about a bandwidth over colors in units of 255, where white is 1."""
    if _LARGEST_SIGMA < sigma_color < math.inf:
        warnings.warn(
            f"sigma_color is {sigma_color:g}, but white is 1, so colors hardly matter; pass {sigma_color / 255:.2g} "
            f"for {sigma_color:g} of 255",
            stacklevel=3,
        )


def choose_device(name: str) -> torch.device:
    """Return the device for "cpu", "cuda", "cuda:1", "mps", or "auto": a CUDA GPU if there is one, else the CPU."""
    import torch

    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise InputError(f"device is {name!r}; pass auto, cpu, cuda, cuda:1 or mps")
    kind, _, index = name.partition(":")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and int(index or 0) >= gpus:
        raise InputError(f"device is {name!r}, but torch finds {gpus or 'no'} CUDA GPUs; pass cpu or auto")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise InputError("device is 'mps', which torch does not find; pass cpu or auto")
    return torch.device("cuda" if gpus else "cpu") if kind == "auto" else torch.device(name)


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
