"""Every error this package raises on purpose.

All of them are `PermutohedralError`s; each also inherits from the built-in exception a caller
would expect, so `except ValueError` keeps working.
"""


class PermutohedralError(Exception):
    """Base of all errors raised by `permutohedral`."""


class InputError(PermutohedralError, ValueError):
    """A value, shape, dtype or device does not fit; the message says what would."""


class FeatureRangeError(InputError):
    """A feature is NaN, infinite, or so far from the origin that its lattice key does not fit."""


class NeighborhoodError(InputError):
    """A neighborhood that cannot be built: bad dimension or size, or too many taps."""


class MemoryLimitError(PermutohedralError, MemoryError):
    """A request that would need more memory than the stated limit; nothing was allocated."""


class BackendUnavailable(PermutohedralError, RuntimeError):
    """A backend was asked for by name and cannot run here; the message says why."""


class DataError(PermutohedralError, OSError):
    """A file of a dataset is missing, damaged or cannot be downloaded; the message says what to do."""


class StorageError(PermutohedralError, OSError):
    """A result or checkpoint cannot be written, or read again; what was there before is untouched."""


class TrainingError(PermutohedralError, RuntimeError):
    """A training cannot go on, for one of its processes ended; the last checkpoint is still there."""
