"""Atomic file writes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from permutohedral.errors import PermutohedralError, StorageError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file atomically, and create its folder if necessary; yield the path to write to.

    The path lies in a private folder next to `path`, and replaces `path` when the block ends. If the block raises,
    `path` is unchanged. A symbolic link stays, and the file it points to is overwritten. An overwritten file keeps its
    permissions. Raises `StorageError` if the folder or the file cannot be written.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "new" / "note.txt") as partial:
    ...         _ = partial.write_text("complete")
    ...     (Path(folder) / "new" / "note.txt").read_text()
    'complete'
    """
    # os.path returns False where the folder is not readable; the write then raises the reason
    target = Path(os.path.realpath(path)) if os.path.islink(path) else path
    exists = os.path.exists(target)
    if exists and not os.path.isfile(target) and not os.path.isdir(target):
        raise StorageError(f"cannot write {path}: {target} is a device or a pipe; pass the path of a file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        parent = target.parent
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=parent, ignore_cleanup_errors=True) as folder:
            # some writers choose the format by the suffix
            partial = Path(folder) / target.name
            yield partial
            # Windows flushes a descriptor only if it is writable
            with open(partial, "r+b") as file:
                os.fsync(file.fileno())
            if exists:
                shutil.copymode(target, partial)
            os.replace(partial, target)
    except OSError as error:
        if isinstance(error, PermutohedralError):
            raise
        raise cannot_write(path, error) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to a file atomically; see `replacing`."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def cannot_write(path: Path, error: OSError) -> StorageError:
    """Return the `StorageError` for a file that the system cannot write."""
    before = "the existing file is unchanged" if path.exists() else "no file was created"
    return StorageError(f"cannot write {path}: {error.strerror or error}; {before}")
