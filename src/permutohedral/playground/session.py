"""What belongs to one browser tab: its photo, the layers it shows, its files, and its runner."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from permutohedral.playground.runner import Runner, Stage
from permutohedral.playground.stream import LayerStream

if TYPE_CHECKING:
    from permutohedral.playground.compute.photos import Photo

# above this a smaller picture is shown first
SLOW = 0.15
# above this the whole picture waits until the slider rests
VERY_SLOW = 0.5
# seconds without a move after which a slider rests
REST = 0.25


class Session:
    """One browser tab.

    Args:
        fail: shows a sentence to the user.
        busy: told whether something is computed.
    """

    def __init__(self, fail: Callable[[Exception], None], busy: Callable[[bool], None]) -> None:
        self.key = uuid.uuid4().hex
        self.photo: Photo | None = None
        self.stream = LayerStream()
        # by tab and name: what makes the content of a file when it is asked for
        self.files: dict[tuple[str, str], Callable[[], bytes]] = {}
        self._loop = asyncio.get_running_loop()
        self._folder = tempfile.TemporaryDirectory(prefix="permutohedral-")
        self._seconds: dict[Any, float] = {}
        self._numbers = itertools.count()
        self._busy = busy
        self._runner = Runner(lambda error: self.on_page(fail, error), lambda: self.on_page(self._tell_idle))

    def keep_upload(self, name: str, content: bytes) -> Path:
        """A file with this content, for as long as the tab is open."""
        # the number keeps two of one name apart; only the ending of the user's name is taken
        path = Path(self._folder.name) / f"{next(self._numbers)}{Path(name).suffix.lower()}"
        path.write_bytes(content)
        return path

    def submit(self, stages: Sequence[Stage]) -> None:
        """Compute these next, instead of all that waits; each is shown on the page."""
        self._busy(True)
        self._runner.submit([replace(stage, show=partial(self.on_page, stage.show)) for stage in stages])

    def is_slow(self, kind: Any) -> bool:
        """Whether a computation of this kind took so long that a preview comes first; so is what was never done."""
        return self._seconds.get(kind, SLOW + 1) > SLOW

    def rest_before(self, kind: Any) -> float:
        """How long a computation of this kind waits for the slider to rest."""
        return REST if self._seconds.get(kind, 0.0) > VERY_SLOW else 0.0

    def remember(self, kind: Any, seconds: float) -> None:
        """How long a computation of this kind took."""
        self._seconds[kind] = seconds

    def close(self) -> None:
        """Drop everything."""
        self._runner.close()
        self._folder.cleanup()

    @property
    def is_computing(self) -> bool:
        """Whether the thread of this tab is busy."""
        return self._runner.busy

    def _tell_idle(self) -> None:
        # a request may have come meanwhile
        if not self._runner.has_work:
            self._busy(False)

    def on_page(self, call: Callable[..., None], *given: Any) -> None:
        """Call it in the thread of the page."""
        # the page belongs to the thread of the loop, which may have ended
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *given)
