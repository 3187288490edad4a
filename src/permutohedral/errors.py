"""Errors of this package.

All inherit from `PermutohedralError`, and from the built-in exception that fits, so `except ValueError` works. Each
message links to the section of the documentation that explains it.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AccuracyWarning",
    "BackendUnavailable",
    "DataError",
    "FeatureRangeError",
    "InputError",
    "MemoryLimitError",
    "NeighborhoodError",
    "PermutohedralError",
    "StorageError",
]

# pyproject.toml has the same address
DOCUMENTATION = "https://permutohedral.readthedocs.io/"
# explains errors, with one section per kind
PAGE = DOCUMENTATION + "guide/errors.html"


class PermutohedralError(Exception):
    """Base of all errors raised by `permutohedral`.

    >>> import permutohedral as ph
    >>> print(ph.errors.InputError("features must be finite"))
    features must be finite (see https://permutohedral.readthedocs.io/guide/errors.html#input)
    >>> ph.errors.InputError("features must be finite").message
    'features must be finite'
    """

    section: ClassVar[str] = "errors"

    @property
    def message(self) -> str:
        """Message without the link."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        # the message may already contain another error's link
        return self.message if PAGE in self.message else f"{self.message} (see {PAGE}#{self.section})"


class InputError(PermutohedralError, ValueError):
    """A value, shape, dtype or device does not fit; the message says what to pass."""

    section = "input"


class FeatureRangeError(InputError):
    """A feature is NaN, infinite, or so far from the origin that its lattice key does not fit."""

    section = "feature-range"


class NeighborhoodError(InputError):
    """A neighborhood that cannot be built: bad dimension or size, or too many taps."""

    section = "neighborhood"


# in this order, since MemoryError makes its instances in its own way, which Dask calls where it sends errors
class MemoryLimitError(MemoryError, PermutohedralError):
    """A request needs more memory than the limit; nothing was allocated."""

    section = "memory"


class BackendUnavailable(PermutohedralError, RuntimeError):
    """A backend was asked for by name and cannot run here; the message says why."""

    section = "backend"


class DataError(PermutohedralError, OSError):
    """An input file is missing, damaged or cannot be downloaded; the message says what to do."""

    section = "data"


class StorageError(PermutohedralError, OSError):
    """A result or checkpoint cannot be written or read; existing files are untouched."""

    section = "storage"


class AccuracyWarning(UserWarning):
    """An approximation is farther from the exact result than requested."""
