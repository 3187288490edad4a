"""Layers reach the browser in order, only the newest of each name, and again after it reconnects."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from fastapi import WebSocket

from permutohedral.apps.playground.photos import Layer
from permutohedral.apps.playground.session import LayerStream

LAYER = Layer(bytes(range(12)), 3, 2, 2, (0, 0, 4, 4))


class Browser:
    """The other end of a socket, whose connection is slow until its gate is opened."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, Any], bytes]] = []
        self.gate, self.leaving = asyncio.Event(), asyncio.Event()

    async def accept(self) -> None:
        """It always does."""

    async def send_bytes(self, message: bytes) -> None:
        length = int.from_bytes(message[:4], "little")
        self.got.append((json.loads(message[4 : 4 + length]), message[4 + length :]))
        await self.gate.wait()

    async def receive(self) -> dict[str, str]:
        await self.leaving.wait()
        return {"type": "websocket.disconnect"}

    @property
    def shown(self) -> list[tuple[str, int]]:
        return [(head["name"], head["number"]) for head, _ in self.got]


async def settle() -> None:
    """Let all tasks go on that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_sends_a_layer_with_its_header() -> None:
    async def run() -> None:
        stream, browser = LayerStream(), Browser()
        serving = asyncio.create_task(stream.serve(cast("WebSocket", browser)))
        await settle()
        stream.put("photo", LAYER, "before", 3)
        await settle()
        head, planes = browser.got[0]
        assert planes == LAYER.planes
        size = {"channels": 3, "height": 2, "width": 2, "region": [0, 0, 4, 4]}
        assert head == {"name": "photo", "kind": "before", "number": 3, **size}
        browser.leaving.set()
        await serving

    asyncio.run(run())


def test_drops_stale_layers_and_sends_all_after_a_reconnection() -> None:
    async def run() -> None:
        stream, browser = LayerStream(), Browser()
        stream.put("photo", LAYER, "before", 0)
        serving = asyncio.create_task(stream.serve(cast("WebSocket", browser)))
        await settle()
        for number in (1, 2):
            stream.put("filter/after", LAYER, "full", number)
            stream.put("segment/after", LAYER, "full", number)
        stream.put("filter/after", None, "before", 3)
        browser.gate.set()
        await settle()
        assert browser.shown == [("photo", 0), ("segment/after", 2), ("filter/after", 3)]
        assert browser.got[-1][0]["channels"] == 0
        browser.leaving.set()
        await serving
        stream.put("photo", LAYER, "before", 4)
        assert len(browser.got) == 3
        other = Browser()
        other.gate.set()
        serving = asyncio.create_task(stream.serve(cast("WebSocket", other)))
        await settle()
        assert sorted(other.shown) == [("filter/after", 3), ("photo", 4), ("segment/after", 2)]
        other.leaving.set()
        await serving

    asyncio.run(run())
