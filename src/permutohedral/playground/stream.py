"""Stream of image layers over a WebSocket, which drops stale ones."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from fastapi import WebSocket

if TYPE_CHECKING:
    from permutohedral.playground.photos import Layer


class LayerStream:
    """Layers of one browser tab. Call all methods in the thread of the page."""

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
