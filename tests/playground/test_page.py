"""Every tab of the page shows its result; NiceGUI simulates the browser."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("nicegui", reason="NiceGUI is not installed")

from nicegui import Client, ui
from nicegui.testing import user_simulation

from permutohedral.playground.page import Page, build_page
from permutohedral.playground.session import Session
from permutohedral.playground.strokes import Stroke
from permutohedral.playground.tabs.segment import SegmentPanel

STROKES = [Stroke(0, 3.0, ((8.0, 5.0), (8.0, 30.0))), Stroke(2, 3.0, ((45.0, 5.0), (45.0, 30.0)))]
OFFERED = {
    "filter": {"smooth.png"},
    "denoise": {"clean.png"},
    "segment": {"out.png", "labels.png"},
    "upsample": {"out.png", "coarse.png", "guide.png"},
}


def test_every_tab_offers_its_result(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(80, 15, (36, 52, 3))
    numbers[:, 26:, 0] += 110
    Image.fromarray(numbers.clip(0, 255).astype(np.uint8)).save(tmp_path / "photo.png")
    pages: list[Page] = []

    async def build() -> None:
        pages.append(Page(tmp_path / "photo.png"))
        await pages[0].load()

    async def wait_for(tab: str) -> None:
        deadline = time.monotonic() + 30
        while {name for found, name in pages[0].session.files if found == tab} != OFFERED[tab]:
            assert time.monotonic() < deadline, f"no result in the tab {tab}"
            await asyncio.sleep(0.02)

    async def run() -> None:
        async with user_simulation() as user:
            ui.page("/")(build)
            await user.open("/")
            await wait_for("filter")
            for tab in ("denoise", "segment", "upsample"):
                user.find(kind=ui.tab, content=tab).click()
                panel = pages[0]._panels[tab]
                if isinstance(panel, SegmentPanel):
                    await asyncio.sleep(0.1)
                    panel.set_strokes(STROKES)
                await wait_for(tab)
            assert all(make().startswith(b"\x89PNG") for make in pages[0].session.files.values())
            pages[0].session.close()

    asyncio.run(run())


def test_a_page_that_is_fetched_but_never_opened_is_deleted(caplog: pytest.LogCaptureFixture) -> None:
    """As by curl, which runs no script."""
    sessions: dict[str, Session] = {}

    async def run() -> None:
        async with user_simulation() as user:
            ui.page("/")(lambda: build_page(None, sessions))
            response = await user.http_client.get("/")
            assert response.status_code == 200
            assert len(sessions) == 1
            # NiceGUI deletes it after a minute
            [client] = [client for client in Client.instances.values() if client.page.path == "/"]
            client.delete()
            await asyncio.sleep(0.5)

    asyncio.run(run())
    assert sessions == {}
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
