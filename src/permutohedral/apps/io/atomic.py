"""Atomic file writes."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from permutohedral.errors import PermutohedralError, StorageError

# folders of files that are being written, and seconds after which they were left by a killed process
_PREFIX, _STALE = ".permutohedral-", 24 * 3600


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file atomically, and create its folder if necessary; yield the path to write to.

    The path lies in a private folder next to `path`, and replaces `path` when the block ends. If the block raises,
    `path` is unchanged. A symbolic link stays, and the file it points to is overwritten. An overwritten file keeps its
    owner, permissions and extended attributes; its hard links keep the old content. Raises `StorageError` if the folder
    or the file cannot be written, or the file is write-protected.

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
        if exists and not os.path.isdir(target):
            _check_writable(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        parent = target.parent
        _remove_stale(parent)
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True) as folder:
            # some writers choose the format by the suffix
            partial = Path(folder) / target.name
            yield partial
            # Windows flushes a descriptor only if it is writable
            with open(partial, "r+b") as file:
                os.fsync(file.fileno())
            if exists:
                _copy_ownership(target, partial)
            os.replace(partial, target)
    except OSError as error:
        if isinstance(error, PermutohedralError):
            raise
        raise cannot_write(path, error) from error


def _check_writable(target: Path) -> None:
    """Raise `OSError` if a file must not be changed, although the folder allows to replace it."""
    os.close(os.open(target, os.O_WRONLY))
    # root may write any file, but one without any such permission is protected on purpose
    if not os.stat(target).st_mode & 0o222:
        raise PermissionError(errno.EACCES, "it is write-protected")


def _remove_stale(parent: Path) -> None:
    """Delete what killed processes have left."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - folder.lstat().st_mtime > _STALE:
                shutil.rmtree(folder)


def _copy_ownership(source: Path, target: Path) -> None:
    """Copy owner and group as far as the system allows it, permissions, and extended attributes."""
    status = source.stat()
    # Windows has neither, macOS no extended attributes in `os`
    if hasattr(os, "chown"):
        for owner in (status.st_uid, -1):
            with suppress(PermissionError):
                os.chown(target, owner, status.st_gid)
                break
    if hasattr(os, "listxattr"):
        with suppress(OSError):
            for name in os.listxattr(source):
                os.setxattr(target, name, os.getxattr(source, name))
    # last, since another owner clears some of them
    shutil.copymode(source, target)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to a file atomically; see `replacing`."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def cannot_write(path: Path, error: OSError) -> StorageError:
    """Return the `StorageError` for a file that the system cannot write."""
    before = "the existing file is unchanged" if path.exists() else "no file was created"
    return StorageError(f"cannot write {path}: {error.strerror or error}; {before}")
