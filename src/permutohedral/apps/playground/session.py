"""State of one browser tab: its photo, its files, its runner, and the stream of its image layers."""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import WebSocket

from permutohedral.apps.playground.runner import Request, Runner

if TYPE_CHECKING:
    from permutohedral.apps.playground.photos import Layer, Photo

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
        self._folder = tempfile.TemporaryDirectory(prefix="permutohedral-", ignore_cleanup_errors=True)
        self._seconds: dict[Any, float] = {}
        self._numbers = itertools.count()
        # the file of the newest upload of each kind
        self._uploads: dict[str, Path] = {}
        self._busy = busy
        self.is_closed = False
        self._runner = Runner(self.on_page, partial(self.on_page, fail), self._finish)

    def name_upload(self, name: str) -> Path:
        """Return a path for an upload: numbered, with only the ending of the user's name."""
        return Path(self._folder.name) / f"{next(self._numbers)}{Path(name).suffix.lower()}"

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
        """Stop computing, delete all files, and release the memory: FastAPI may keep this object."""
        self.is_closed = True
        self._runner.close()
        self.photo, self.stream = None, LayerStream()
        self.files.clear()
        self._folder.cleanup()

    @property
    def is_computing(self) -> bool:
        """Whether the thread of this tab is busy."""
        return self._runner.busy

    def _finish(self) -> None:
        """Report that no work is left, or delete what was written since the tab was closed; on the runner's thread."""
        if self.is_closed:
            self._folder.cleanup()
        else:
            self.on_page(self._report_idle)

    def _report_idle(self) -> None:
        # a new request may wait
        if not self._runner.has_work:
            self._busy(False)

    def on_page(self, call: Callable[..., None], *given: Any) -> None:
        """Call a function in the thread of the page, unless the tab is closed by then."""

        def call_if_open() -> None:
            if not self.is_closed:
                call(*given)

        # the loop may have ended
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call_if_open)


class LayerStream:
    """Layers of one browser tab, without stale ones. Call all methods in the thread of the page."""

    def __init__(self) -> None:
        # messages by the name of their layer
        self._newest: dict[str, bytes] = {}
        self._connections: set[_Connection] = set()

    def put(self, name: str, layer: Layer | None, kind: str, number: int) -> None:
        """Send a layer in place of waiting layers of the same name; None removes the layer.

        `kind` is "before", "preview" or "full", and `number` that of the request.
        """
        message = _encode(name, layer, kind, number)
        self._newest[name] = message
        for connection in self._connections:
            connection.put(name, message)

    async def serve(self, socket: WebSocket) -> None:
        """Send all layers, and new ones as they come, until the browser disconnects."""
        await socket.accept()
        connection = _Connection(socket)
        for name, message in self._newest.items():
            connection.put(name, message)
        self._connections.add(connection)
        sending = asyncio.create_task(connection.send())
        try:
            while (await socket.receive())["type"] != "websocket.disconnect":
                pass
        finally:
            self._connections.discard(connection)
            sending.cancel()


class _Connection:
    """Queue of one socket."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._waiting: dict[str, bytes] = {}
        self._changed = asyncio.Event()

    def put(self, name: str, message: bytes) -> None:
        # last in the queue
        self._waiting.pop(name, None)
        self._waiting[name] = message
        self._changed.set()

    async def send(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._waiting:
                await self._socket.send_bytes(self._waiting.pop(next(iter(self._waiting))))


def _encode(name: str, layer: Layer | None, kind: str, number: int) -> bytes:
    """Encode the length of the header in four bytes, the header as JSON, and the planes."""
    header: dict[str, object] = {"name": name, "kind": kind, "number": number, "channels": 0}
    planes = b""
    if layer is not None:
        size = {"channels": layer.channels, "height": layer.height, "width": layer.width}
        header, planes = {**header, **size, "region": layer.region}, layer.planes
    written = json.dumps(header).encode()
    return b"".join([len(written).to_bytes(4, "little"), written, planes])
