"""Stores that are being written: under another name until they are whole, with marks of the tiles that are done."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from permutohedral.errors import InputError
from permutohedral.reporting.atomic import cannot_write, write_bytes

_NOTES = ".permutohedral"


@dataclass(frozen=True)
class Unfinished:
    """A folder beside its final name.

    Attributes:
        target: the final name.

    >>> Unfinished(Path("out.zarr")).folder
    PosixPath('out.zarr.unfinished')
    """

    target: Path

    @property
    def folder(self) -> Path:
        """Where it is written."""
        return self.target.with_name(self.target.name + ".unfinished")

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Around all that is done with it: no other command has it meanwhile. A killed one bars nobody.

        Raises:
            InputError: another command has it.
            StorageError: its folder cannot be written.
        """
        from filelock import FileLock, Timeout

        path = self.target.with_name(self.target.name + ".lock")
        lock = FileLock(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # the system lets go of it when the process ends, however it does
            lock.acquire(timeout=0)
        except Timeout as error:
            raise InputError(
                f"another command is writing {self.target}: wait until it is done, or name another OUTPUT"
            ) from error
        except OSError as error:
            raise cannot_write(self.target, error) from error
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            lock.release()

    def begin(self, settings: Mapping[str, Any], resume: bool) -> Any:
        """Make the folder, or take up what an interrupted call left.

        Args:
            settings: what decides the result; JSON. What was begun with others is not taken up.
            resume: whether to take up what is there, instead of beginning anew.

        Returns:
            How what is taken up was divided, as `note` got it; None if nothing was.

        Raises:
            InputError: what is there was begun with other settings, or is something else.
            StorageError: the folder cannot be written.
        """
        notes = self.folder / _NOTES
        # without settings it was hardly begun
        if resume and (notes / "settings.json").is_file():
            begun, division = json.loads((notes / "settings.json").read_text())
            wanted = json.loads(json.dumps(settings))
            # as text: NaN, which attributes may hold, equals nothing
            if json.dumps(begun) != json.dumps(wanted):
                changed = ", ".join(key for key in wanted if begun.get(key) != wanted[key])
                raise InputError(
                    f"{self.folder} was begun with other settings ({changed}): give the same, or leave --resume away "
                    "to begin anew"
                )
            return division
        if self.folder.exists() and not notes.is_dir():
            raise InputError(f"{self.folder} is in the way, and no command has notes in it; move it, or remove it")
        try:
            if self.folder.exists():
                shutil.rmtree(self.folder)
            (notes / "tiles").mkdir(parents=True)
        except OSError as error:
            raise cannot_write(self.target, error) from error
        return None

    def note(self, settings: Mapping[str, Any], division: Any) -> None:
        """From now on the folder can be taken up, divided in the same way."""
        write_bytes(self.folder / _NOTES / "settings.json", json.dumps([settings, division]).encode())

    def is_done(self, tile: tuple[int, ...]) -> bool:
        """Whether a tile was written."""
        return self._mark(tile).exists()

    @contextmanager
    def writing(self, tile: tuple[int, ...]) -> Iterator[None]:
        """Around what writes a tile: notes that it was written, once it was.

        Raises:
            StorageError: it cannot be written.
        """
        try:
            yield
            self._mark(tile).touch()
        except OSError as error:
            raise cannot_write(self.target, error) from error

    def finish(self) -> None:
        """Give the store its final name, in the place of what has it.

        Until then its notes stay: who is interrupted here can take it up.

        Raises:
            StorageError: it cannot be renamed.
        """
        replaced = self.target.with_name(f"{self.target.name}.replaced.{os.getpid()}")
        try:
            if self.target.exists():
                os.rename(self.target, replaced)
            os.rename(self.folder, self.target)
            shutil.rmtree(self.target / _NOTES)
            if replaced.exists():
                shutil.rmtree(replaced)
        except OSError as error:
            raise cannot_write(self.target, error) from error

    def remove(self) -> None:
        """Forget all of it."""
        shutil.rmtree(self.folder)

    def _mark(self, tile: tuple[int, ...]) -> Path:
        return self.folder / _NOTES / "tiles" / ".".join(map(str, tile))
