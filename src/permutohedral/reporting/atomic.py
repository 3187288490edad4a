"""Atomic writing: files are replaced whole or not at all. And messages for errors of the disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from permutohedral.errors import StorageError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all. Makes its folder if there is none.

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
    # the suffix stays, since some writers choose the format by it
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _forget_abandoned(path)
        yield partial
        _flush(partial)
        os.replace(partial, path)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


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
