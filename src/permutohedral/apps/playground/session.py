"""State of one browser tab: its photo, its files, and its runner."""

from __future__ import annotations

import itertools
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from permutohedral.apps.playground.photos import Photo
from permutohedral.apps.playground.runner import Runner


class Session:
    """One browser tab; see `Runner` for `fail` and `busy`, which are not called after `close`."""

    def __init__(self, fail: Callable[[Exception], None], busy: Callable[[bool, float | None], None]) -> None:
        self.key = uuid.uuid4().hex
        self.photo: Photo | None = None
        # images and downloads by tab and name: functions that return their content
        self.files: dict[tuple[str, str], Callable[[], bytes]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="permutohedral-", ignore_cleanup_errors=True)
        self.numbers = itertools.count()
        # the file of the newest upload of each kind
        self._uploads: dict[str, Path] = {}
        self._busy = busy
        self.runner = Runner(fail, self._set_busy)

    def name_upload(self, name: str) -> Path:
        """Return a path for an upload: numbered, with only the ending of the user's name."""
        return Path(self._folder.name) / f"{next(self.numbers)}{Path(name).suffix.lower()}"

    def keep_upload(self, kind: str, path: Path) -> None:
        """Keep an upload as long as the tab is open, or until the next one of its kind, such as "photo"."""
        previous, self._uploads[kind] = self._uploads.get(kind), path
        # Windows keeps a file that is being read
        with suppress(OSError):
            if previous is not None:
                previous.unlink()

    def folder(self, name: str) -> Path:
        """Return a folder for results that lasts as long as the tab is open."""
        path = Path(self._folder.name) / name
        path.mkdir(exist_ok=True)
        return path

    def close(self) -> None:
        """Stop computing, delete all files, and release the memory: FastAPI may keep this object."""
        self.runner.close()
        self.photo = None
        self.files.clear()
        self._folder.cleanup()

    def _set_busy(self, busy: bool, share: float | None) -> None:
        if not self.runner.is_closed:
            self._busy(busy, share)
        elif not busy:
            # delete what was written since the tab was closed
            self._folder.cleanup()
