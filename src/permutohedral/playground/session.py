"""State of one browser tab: its photo, its files, its layers and its runner."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from permutohedral.playground.runner import Request, Runner
from permutohedral.playground.stream import LayerStream

if TYPE_CHECKING:
    from permutohedral.playground.photos import Photo

# seconds above which a preview comes first
SLOW = 0.06
# seconds above which the full result waits until the slider rests
VERY_SLOW = 0.5
# seconds without a move after which a slider rests
REST = 0.25


class Session:
    """One browser tab; `fail` is called with an error to show, `busy` with whether something is computed."""

    def __init__(self, fail: Callable[[Exception], None], busy: Callable[[bool], None]) -> None:
        self.key = uuid.uuid4().hex
        self.photo: Photo | None = None
        self.stream = LayerStream()
        # downloads by tab and name: functions that return their content
        self.files: dict[tuple[str, str], Callable[[], bytes]] = {}
        self._loop = asyncio.get_running_loop()
        self._folder = tempfile.TemporaryDirectory(prefix="permutohedral-")
        self._seconds: dict[Any, float] = {}
        self._numbers = itertools.count()
        self._busy = busy
        self._runner = Runner(self.on_page, partial(self.on_page, fail), partial(self.on_page, self._report_idle))

    def keep_upload(self, name: str, content: bytes) -> Path:
        """Write an upload to a file that lasts as long as the tab is open."""
        # numbered, with only the ending of the user's name
        path = Path(self._folder.name) / f"{next(self._numbers)}{Path(name).suffix.lower()}"
        path.write_bytes(content)
        return path

    def folder(self, name: str) -> Path:
        """Return a folder for results that lasts as long as the tab is open."""
        path = Path(self._folder.name) / name
        path.mkdir(exist_ok=True)
        return path

    def submit(self, request: Request) -> None:
        """Compute this next, in place of waiting requests; results are shown on the page."""
        self._busy(True)
        self._runner.submit(request)

    def is_slow(self, kind: Any) -> bool:
        """Return whether a preview comes before a computation of this kind; also true for the first one."""
        return self._seconds.get(kind, SLOW + 1) > SLOW

    def rest_before(self, kind: Any) -> float:
        """Return how long a computation of this kind waits for the slider to rest, in seconds."""
        return REST if self._seconds.get(kind, 0.0) > VERY_SLOW else 0.0

    def remember(self, kind: Any, seconds: float) -> None:
        """Store the duration of a computation of this kind."""
        self._seconds[kind] = seconds

    def close(self) -> None:
        """Stop computing, and delete all files."""
        self._runner.close()
        self._folder.cleanup()

    @property
    def is_computing(self) -> bool:
        """Whether the thread of this tab is busy."""
        return self._runner.busy

    def _report_idle(self) -> None:
        # a new request may wait
        if not self._runner.has_work:
            self._busy(False)

    def on_page(self, call: Callable[..., None], *given: Any) -> None:
        """Call a function in the thread of the page, whose loop may have ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *given)
