"""Every tab of the page shows its result; NiceGUI simulates the browser."""

from __future__ import annotations

import asyncio
import gc
import logging
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("nicegui", reason="NiceGUI is not installed")

from nicegui import Client, ui
from nicegui.elements.upload_files import SmallFileUpload
from nicegui.testing import user_simulation

from permutohedral.apps.playground import controls
from permutohedral.apps.playground.page import Page, build_page
from permutohedral.apps.playground.session import Session
from permutohedral.apps.playground.strokes import Stroke
from permutohedral.apps.playground.tabs import SegmentPanel, UpsamplePanel

STROKES = [Stroke(0, 3.0, ((8.0, 5.0), (8.0, 30.0))), Stroke(2, 3.0, ((45.0, 5.0), (45.0, 30.0)))]
OFFERED = {
    "filter": {"smooth.png"},
    "denoise": {"clean.png"},
    "segment": {"out.png", "labels.png"},
    "upsample": {"out.png", "coarse.png", "guide.png"},
}


def write_photo(path: Path) -> Path:
    numbers = np.random.default_rng(0).normal(80, 15, (36, 52, 3))
    numbers[:, 26:, 0] += 110
    Image.fromarray(numbers.clip(0, 255).astype(np.uint8)).save(path)
    return path


async def wait_until(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


def test_every_tab_offers_its_result(tmp_path: Path) -> None:
    write_photo(tmp_path / "photo.png")
    pages: list[Page] = []

    async def build() -> None:
        pages.append(Page(tmp_path / "photo.png"))
        await pages[0].load()

    async def wait_for(tab: str) -> None:
        def is_offered() -> bool:
            names = {name for found, name in pages[0].session.files if found == tab}
            return {name for name in names if not name.endswith(".bmp")} == OFFERED[tab]

        await wait_until(is_offered, f"no result in the tab {tab}")

    async def run() -> None:
        async with user_simulation() as user:
            ui.page("/")(build)
            await user.open("/")
            await wait_for("filter")
            for tab in ("denoise", "segment", "upsample"):
                user.find(kind=ui.tab, content=tab).click()
                panel = pages[0].panels[tab]
                if isinstance(panel, SegmentPanel):
                    await asyncio.sleep(0.1)
                    panel.set_strokes(STROKES)
                await wait_for(tab)
            for (_, name), make in pages[0].session.files.items():
                assert make().startswith(b"BM" if name.endswith(".bmp") else b"\x89PNG")
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


def test_closed_tab_releases_its_photo_and_results(tmp_path: Path) -> None:
    """FastAPI keeps the functions of routes, and by an upload button the whole page."""
    sessions: dict[str, Session] = {}
    kept: list[weakref.ref[object]] = []
    write_photo(tmp_path / "photo.png")

    async def use_a_tab() -> None:
        [session] = sessions.values()
        await wait_until(lambda: ("filter", "smooth.png") in session.files, "no result")
        photo = session.photo
        assert photo is not None
        for each in (photo, photo.image.pixels, photo.layer, session.files["filter", "smooth.png"]):
            kept.append(weakref.ref(each))

    async def run() -> None:
        async with user_simulation() as user:
            ui.page("/")(lambda: build_page(tmp_path / "photo.png", sessions))
            await user.open("/")
            await use_a_tab()
            [client] = [client for client in Client.instances.values() if client.page.path == "/"]
            client.delete()
            # a computation that cannot be interrupted ends first
            await wait_until(lambda: gc.collect() >= 0 and not any(each() for each in kept), "the photo is kept")

    asyncio.run(run())


def test_a_tab_keeps_one_upload_of_each_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    pages: list[Page] = []
    photo = write_photo(tmp_path / "photo.png").read_bytes()
    np.save(tmp_path / "map.npy", np.ones((4, 5), np.float32))
    depth = (tmp_path / "map.npy").read_bytes()
    errors: list[Exception] = []
    monkeypatch.setattr(controls, "show_error", errors.append)

    async def build() -> None:
        pages.append(Page(tmp_path / "photo.png"))
        await pages[0].load()

    async def run() -> None:
        async with user_simulation() as user:
            ui.page("/")(build)
            await user.open("/")
            page = pages[0]
            await wait_until(lambda: page.session.photo is not None, "no photo")
            upsample = page.panels["upsample"]
            assert isinstance(upsample, UpsamplePanel)
            for _ in range(3):
                await page._take_upload(SmallFileUpload("../../a.png", "", photo))
                await upsample._take_map(SmallFileUpload("a.npy", "", depth))
                await page._take_upload(SmallFileUpload("b.png", "", photo[:100]))
            assert len(errors) == 3
            uploads = [path for path in page.session.folder("x").parent.iterdir() if path.is_file()]
            assert sorted(path.suffix for path in uploads) == [".npy", ".png"]
            # also during a computation
            page.session.close()
            await wait_until(lambda: list(tmp_path.glob("permutohedral-*")) == [], "the folder is kept")

    asyncio.run(run())


def test_uploads_are_read_in_turn(tmp_path: Path) -> None:
    """Reading a photo takes several times the memory of its pixels."""
    reading, most = threading.Semaphore(0), 0

    def read(path: Path, name: str) -> str:
        nonlocal most
        reading.release()
        time.sleep(0.02)
        most = max(most, reading._value)
        reading.acquire()
        return name

    async def run() -> list[str]:
        async with user_simulation():
            return list(await asyncio.gather(*(controls.read_in_turn(read, tmp_path, f"{n}") for n in range(5))))

    assert asyncio.run(run()) == [f"{n}" for n in range(5)]
    assert most == 1
