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

from permutohedral.errors import DataError, InputError, StorageError
from permutohedral.files.atomic import cannot_write, write_bytes

_NOTES = ".permutohedral"


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

        After an error of the input, a folder without finished parts is deleted.
        """
        from filelock import FileLock, Timeout

        path = self.target.with_name(self.target.name + ".lock")
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
            parts = self.folder / _NOTES / "parts"
            if parts.is_dir() and not any(parts.iterdir()):
                shutil.rmtree(self.folder, ignore_errors=True)
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
        warnings.warn(f"{self.target} is complete", stacklevel=3)
        return True

    def begin(self, settings: Mapping[str, Any], resume: bool) -> Any:
        """Create the folder, or resume what an interrupted call left.

        `settings` is everything that determines the result, as JSON; resuming with others raises. Without `resume`, a
        folder of an interrupted call is deleted with a warning. If the target exists, a warning says that it will be
        replaced. Returns the division that `record` stored if the call resumes.
        """
        notes = self.folder / _NOTES
        if resume and self._settings_path.is_file():
            begun, division = json.loads(self._settings_path.read_text())
            check_settings(self.folder, begun, settings)
            return division
        if self.folder.exists() and not notes.is_dir():
            raise InputError(f"output needs {self.folder}, which was not created by permutohedral; move or delete it")
        try:
            if self._settings_path.is_file():
                message = f"{self.folder}, left by an interrupted call, is deleted; resume would continue it"
                warnings.warn(message, stacklevel=3)
            if self.folder.exists():
                shutil.rmtree(self.folder)
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

        An interruption before the renaming can be resumed.
        """
        replaced = self.target.with_name(f"{self.target.name}.replaced.{os.getpid()}")
        try:
            if self.target.exists():
                os.replace(self.target, replaced)
            os.replace(self.folder, self.target)
            shutil.rmtree(self.target / _NOTES)
            if replaced.exists():
                shutil.rmtree(replaced)
        except OSError as error:
            raise cannot_write(self.target, error) from error

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder)

    @property
    def _settings_path(self) -> Path:
        return self.folder / _NOTES / "settings.json"

    def _mark(self, part: tuple[int, ...]) -> Path:
        return self.folder / _NOTES / "parts" / ".".join(map(str, part))


def check_settings(path: Path, begun: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise unless the settings to resume with are those that `path` was started with."""
    # compared as text, since NaN in attributes differs from itself
    changed = [key for key in settings if json.dumps(begun.get(key)) != json.dumps(settings[key])]
    if changed:
        raise InputError(
            f"resume needs the settings that {path} was started with, but these differ: {', '.join(changed)}; pass the "
            "same, or start again without resume"
        )
