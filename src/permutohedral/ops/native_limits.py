"""The limits of the compiled core: of dimensions, of lattice points, and of the memory that it keeps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from permutohedral.errors import InputError

# environment variable: how much freed memory the core keeps for the next calls, in megabytes
KEPT_MEMORY_VARIABLE = "PERMUTOHEDRAL_KEPT_MEMORY"


def limit_kept_memory(setting: str | None = None) -> None:
    """Keep at most `setting` megabytes of freed memory; by default what the environment says, if it says anything.

    >>> limit_kept_memory("512")
    """
    from permutohedral import _native

    setting = os.environ.get(KEPT_MEMORY_VARIABLE) if setting is None else setting
    if setting is None:
        return
    if not setting.isdecimal():
        raise InputError(f"{KEPT_MEMORY_VARIABLE} must be a number of megabytes, got {setting!r}")
    _native.limit_kept_memory(int(setting) << 20)


def check_dimension(dimension: int) -> None:
    """Raise if features of this dimension are too many for the core."""
    from permutohedral import _native

    if dimension > _native.MAX_DIMENSION:
        raise InputError(
            f"the native backend takes features of up to {_native.MAX_DIMENSION} dimensions, got {dimension}; "
            'use_backend("reference") takes any'
        )


@contextmanager
def refusing_too_many() -> Iterator[None]:
    """Turn the core's error for more lattice points than int32 can number into one of the package's."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from error
