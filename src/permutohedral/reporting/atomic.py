"""Atomic writing: files are replaced whole or not at all. And messages for errors of the disk."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from permutohedral.errors import StorageError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all. Makes its folder if there is none.

    Through a symbolic link the file is replaced that it points to; a file that is replaced keeps its permissions.

    Yields:
        a path beside `path` to write to. It takes the place of `path` when the block ends, once it is on the disk; if
        the block fails, it is removed, and what was at `path` stays.

    Raises:
        StorageError: the folder or the file cannot be written; says why.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "new" / "note.txt") as partial:
    ...         _ = partial.write_text("whole")
    ...     (Path(folder) / "new" / "note.txt").read_text()
    'whole'
    """
    target = _target(path)
    # the suffix stays, since some writers choose the format by it
    partial = target.with_name(f".{target.stem}.{os.getpid()}.partial{target.suffix}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _forget_abandoned(target)
        yield partial
        _flush(partial)
        _take_over_mode(target, partial)
        os.replace(partial, target)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file of `content` whole or not at all; `replacing` says what becomes of links and permissions.

    Raises:
        StorageError: the folder or the file cannot be written; says why.
    """
    with replacing(path) as partial:
        # nobody may read meanwhile what only the owner may read later
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _mode(_target(path)) or 0o666)
        with open(descriptor, "wb") as file:
            file.write(content)


def _target(path: Path) -> Path:
    """The file that is replaced: a link stays, and what it points to is replaced."""
    # these functions answer no where the folder may not be read; writing then tells why
    target = Path(os.path.realpath(path)) if os.path.islink(path) else path
    if os.path.exists(target) and not os.path.isfile(target) and not os.path.isdir(target):
        raise StorageError(f"cannot write {path}: {target} is a device or a pipe; name a file")
    return target


def _mode(target: Path) -> int | None:
    """Who may read and write the file; None if there is none."""
    try:
        return stat.S_IMODE(target.stat().st_mode)
    except OSError:
        return None


def _take_over_mode(target: Path, partial: Path) -> None:
    mode = _mode(target)
    if mode is not None:
        # some file systems know no permissions
        with contextlib.suppress(OSError):
            partial.chmod(mode)


def cannot_write(path: Path, error: OSError) -> StorageError:
    """The error for a file that cannot be written, from the system's."""
    before = "what was there before is unchanged" if path.exists() else "nothing was left there"
    return StorageError(f"cannot write {path}: {error.strerror or error}; {before}")


def _flush(partial: Path) -> None:
    """Flush to the disk, so that a crash of the machine never leaves an empty file under the final name."""
    with open(partial, "rb") as file:
        os.fsync(file.fileno())


def _forget_abandoned(path: Path) -> None:
    """Remove what processes that were killed left beside `path`."""
    prefix, ending = f".{path.stem}.", f".partial{path.suffix}"
    for other in path.parent.glob(f"{_literal(prefix)}*{_literal(ending)}"):
        process = other.name[len(prefix) : -len(ending)]
        if process.isdigit() and not _is_running(int(process)):
            with contextlib.suppress(OSError):
                other.unlink()


def _literal(text: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in text)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
