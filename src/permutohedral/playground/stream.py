"""Sends layers to the browser as they come: of each name the newest alone."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from fastapi import WebSocket

if TYPE_CHECKING:
    from permutohedral.playground.compute.layers import Layer


class LayerStream:
    """The layers of one browser tab, which it gets through a socket.

    All methods belong to the thread of the page.
    """

    def __init__(self) -> None:
        # messages by the name of their layer
        self._newest: dict[str, bytes] = {}
        self._connections: set[_Connection] = set()

    def put(self, name: str, layer: Layer | None, kind: str, number: int) -> None:
        """Send a layer, or that there is none of this name, instead of those of this name that still wait.

        Args:
            name: for whoever shows it.
            layer: None if there is none any more.
            kind: "before", "preview" or "full".
            number: of the request.
        """
        message = _encode(name, layer, kind, number)
        self._newest[name] = message
        for connection in self._connections:
            connection.put(name, message)

    async def serve(self, socket: WebSocket) -> None:
        """Send all that is to be shown, and then what comes, until the browser leaves."""
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
    """What still waits to be sent through a socket."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._waiting: dict[str, bytes] = {}
        self._changed = asyncio.Event()

    def put(self, name: str, message: bytes) -> None:
        # behind those of other names, which were put before
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
    """The length of the head as four bytes, the head as JSON, and the planes."""
    head: dict[str, object] = {"name": name, "kind": kind, "number": number, "channels": 0}
    planes = b""
    if layer is not None:
        size = {"channels": layer.channels, "height": layer.height, "width": layer.width}
        head, planes = {**head, **size, "region": layer.region}, layer.planes
    written = json.dumps(head).encode()
    return b"".join([len(written).to_bytes(4, "little"), written, planes])
