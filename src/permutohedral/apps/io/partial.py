"""Outputs under construction: a folder next to the final name, with a record of the finished parts."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from permutohedral.apps.io.atomic import cannot_write, write_bytes
from permutohedral.errors import DataError, InputError, StorageError

# folder of the record; a call that is killed at its very end leaves it in the result
NOTES = ".permutohedral"


@dataclass(frozen=True)
class PartialStore:
    """Folder that becomes `target` once all of its parts are written.

    >>> PartialStore(Path("out.zarr")).folder.name
    'out.zarr.unfinished'
    """

    target: Path

    @property
    def folder(self) -> Path:
        """Where parts are written."""
        return self.target.with_name(self.target.name + ".unfinished")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the target; the system releases it when a process is killed.

        After an error of the input, a folder without finished parts is deleted. Raises `InputError` if another process
        has the lock, or the user has a file of its name.
        """
        from filelock import FileLock, Timeout

        path = self.target.with_name(self.target.name + ".lock")
        # locks are empty files, and deleted afterwards
        if path.is_file() and path.stat().st_size > 0:
            raise InputError(f"output needs {path}, which was not created by permutohedral; move or delete it")
        lock = FileLock(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout as error:
            raise InputError(
                f"output {self.target} is being written by another process; wait for it, or pass another output"
            ) from error
        except OSError as error:
            raise cannot_write(self.target, error) from error
        try:
            yield
        except (InputError, DataError):
            parts = self.folder / NOTES / "parts"
            if parts.is_dir() and not any(parts.iterdir()):
                with suppress(OSError):
                    self.remove()
            raise
        finally:
            # elsewhere deleted before another process locks it; Windows deletes no open file
            if os.name == "nt":
                lock.release()
            with suppress(PermissionError):
                path.unlink(missing_ok=True)
            lock.release()

    def is_complete(
        self, read_settings: Callable[[Path], Mapping[str, Any] | None], settings: Mapping[str, Any]
    ) -> bool:
        """Return whether the target has the result, so that there is nothing to resume, and warn if so.

        `read_settings` returns the settings that the target was written with, or None; settings that differ raise.
        """
        finished = None if self._settings_path.is_file() else read_settings(self.target)
        if finished is None:
            return False
        check_settings(self.target, finished, settings)
        # left if the call was killed at its very end
        shutil.rmtree(self.target / NOTES, ignore_errors=True)
        if self._is_own():
            self.remove()
        warnings.warn(f"{self.target} is complete", stacklevel=3)
        return True

    def begin(self, settings: Mapping[str, Any], resume: bool) -> Any:
        """Create the folder, or resume what an interrupted call left.

        `settings` is everything that determines the result, as JSON; resuming with others raises. Without `resume`, a
        folder of an interrupted call is deleted with a warning. If the target exists, a warning says that it will be
        replaced. Returns the division that `record` stored if the call resumes.
        """
        notes = self.folder / NOTES
        if resume and self._settings_path.is_file():
            begun, division = json.loads(self._settings_path.read_text())
            check_settings(self.folder, begun, settings)
            return division
        if self.folder.exists() and not self._is_own():
            raise InputError(f"output needs {self.folder}, which was not created by permutohedral; move or delete it")
        try:
            if self._settings_path.is_file():
                message = f"{self.folder}, left by an interrupted call, is deleted; resume would continue it"
                warnings.warn(message, stacklevel=3)
            if self._previous.exists() and not self.target.exists():
                os.replace(self._previous, self.target)
            if self.folder.exists():
                self.remove()
            (notes / "parts").mkdir(parents=True)
        except OSError as error:
            raise cannot_write(self.target, error) from error
        if self.target.exists():
            warnings.warn(f"{self.target} exists, and is replaced when the new result is complete", stacklevel=3)
        return None

    def record(self, settings: Mapping[str, Any], division: Any) -> None:
        """Store settings and division, so that later calls can resume."""
        write_bytes(self._settings_path, json.dumps([settings, division]).encode())

    def is_done(self, part: tuple[int, ...]) -> bool:
        """Return whether a part was written."""
        return self._mark(part).exists()

    @contextmanager
    def writing(self, part: tuple[int, ...]) -> Iterator[None]:
        """Mark a part as done once the block that writes it ends."""
        try:
            yield
            self._mark(part).touch()
        except OSError as error:
            raise StorageError(
                f"cannot write {self.folder}: {error.strerror or error}; its finished parts are kept; make room, then "
                "continue with --resume, in Python resume=True"
            ) from error

    def finish(self) -> None:
        """Rename the folder to the target, and delete the previous target.

        An interruption before the renaming can be resumed. The previous target waits in the folder, so that it is never
        left under another name.
        """
        try:
            if self.target.exists():
                shutil.rmtree(self._previous, ignore_errors=True)
                os.replace(self.target, self._previous)
            os.replace(self.folder, self.target)
            shutil.rmtree(self.target / NOTES)
        except OSError as error:
            raise cannot_write(self.target, error) from error

    def remove(self) -> None:
        """Delete the folder.

        The settings go first, since a part of the data cannot be resumed; the notes that mark the folder go last.
        """
        self._settings_path.unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if path.is_file():
                path.unlink()
            elif path.name != NOTES:
                shutil.rmtree(path)
        shutil.rmtree(self.folder)

    def _is_own(self) -> bool:
        """Return whether the folder exists and was created by `begin`, perhaps just before the call was killed."""
        return self.folder.is_dir() and ((self.folder / NOTES).is_dir() or not any(self.folder.iterdir()))

    @property
    def _settings_path(self) -> Path:
        return self.folder / NOTES / "settings.json"

    @property
    def _previous(self) -> Path:
        """Place of the previous target while `finish` replaces it."""
        return self.folder / NOTES / "previous"

    def _mark(self, part: tuple[int, ...]) -> Path:
        return self.folder / NOTES / "parts" / ".".join(map(str, part))


def check_settings(path: Path, begun: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise unless the settings to resume with are those that `path` was started with."""
    # compared as text, since NaN in attributes differs from itself
    changed = [key for key in settings if json.dumps(begun.get(key)) != json.dumps(settings[key])]
    if changed:
        raise InputError(
            f"resume needs the settings that {path} was started with, but these differ: {', '.join(changed)}; pass the "
            "same, or start again without resume"
        )
