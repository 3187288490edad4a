"""The page in a real browser: one server and one Chromium for all tests of this file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import playground_browser as pb
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page
from typer.testing import CliRunner

from permutohedral.apps.cli.application import application

pytestmark = pytest.mark.skipif(pb.find_chromium() is None, reason="needs Chromium: apt install chromium")

WIDTH, HEIGHT = 120, 80


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a photo of two colors."""
    folder = tmp_path_factory.mktemp("playground")
    numbers = np.random.default_rng(0).normal(80, 15, (HEIGHT, WIDTH, 3))
    numbers[:, WIDTH // 2 :, 0] += 110
    Image.fromarray(numbers.clip(0, 255).astype(np.uint8)).save(folder / "photo.png")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[pb.Server]:
    with pb.serve(folder, "photo.png") as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with pb.browse() as browser:
        yield browser


@pytest.fixture(scope="module")
def page(server: pb.Server, browser: Browser) -> Iterator[Page]:
    elsewhere: list[str] = []
    errors: list[str] = []
    with pb.open_page(browser, server.address) as page:
        page.on("request", lambda request: elsewhere.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        pb.wait_for_result(page)
        assert "token" not in page.url
        yield page
        own = server.address.partition("?")[0]
        assert [url for url in elsewhere if not url.startswith((own, own.replace("http", "ws"), "data:"))] == []
        assert errors == []


def check_code(page: Page, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, *needed: str) -> None:
    """Check that the shown code writes the file that is downloaded."""
    for other in needed:
        (folder / other).write_bytes(pb.download(page, other))
    downloaded = pb.download(page, name)
    monkeypatch.chdir(folder)
    exec(compile(pb.shown_code(page, "Python"), "shown", "exec"), {})
    assert (folder / name).read_bytes() == downloaded
    (folder / name).unlink()
    words = shlex.split(pb.shown_code(page, "command line"))
    assert CliRunner().invoke(application, words[1:]).exit_code == 0
    assert (folder / name).read_bytes() == downloaded


def test_filter(page: Page, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = pb.viewer(page).get_attribute("data-number")
    pb.slider(page, "sigma over space").press("ArrowLeft")
    page.wait_for_function(
        "([viewer, before]) => viewer.dataset.number !== before && viewer.dataset.shown === 'full'",
        arg=[pb.viewer(page).element_handle(), before],
    )
    pb.wait_for_result(page)
    assert "sigma_space=6.0" in pb.shown_code(page, "Python")
    page.get_by_text("mean error about").wait_for()
    check_code(page, folder, "smooth.png", monkeypatch)


def test_divider_zoom_and_move(page: Page) -> None:
    photo = pb.viewer(page).locator(".pg-scroll")
    photo.scroll_into_view_if_needed()
    box = photo.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 4

    def look() -> bytes:
        # two frames, since changes are drawn in the next one
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return pb.viewer(page).screenshot()

    def drag(start: float, end: float) -> None:
        page.mouse.move(start, y)
        page.mouse.down()
        page.mouse.move(end, y, steps=4)
        page.mouse.up()

    seen = [look()]
    drag(x, x - box["width"] / 4)
    assert abs(float(page.get_by_label("divider of").input_value()) - 25) < 1
    seen.append(look())
    page.mouse.wheel(0, -400)
    seen.append(look())
    drag(x, x - 60)
    seen.append(look())
    page.get_by_role("button", name="fit").click()
    assert len(set(seen)) == len(seen)


def test_shows_the_code_without_scrolling(page: Page) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    pb.wait_for_result(page)
    for title in ("Python", "command line"):
        box = page.locator(f'[data-code="{title}"]').bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900
        assert box["x"] + box["width"] <= 1400


def test_defaults(page: Page) -> None:
    assert "--sigma-space" in pb.shown_code(page, "command line")
    page.get_by_role("button", name="defaults").click()
    page.wait_for_function("() => !document.querySelector('[data-code=\"command line\"]').innerText.includes('--')")
    pb.wait_for_result(page)


def test_denoise(page: Page, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pb.choose_tab(page, "denoise")
    pb.wait_for_result(page)
    pb.slider(page, "noise to add first").press("ArrowRight")
    page.locator('.pg-panel a[download="noisy.png"]').wait_for()
    check_code(page, folder, "clean.png", monkeypatch, "noisy.png")


def test_segment_from_strokes(page: Page, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pb.choose_tab(page, "segment")
    page.get_by_text("draw over two regions or more").wait_for()
    pb.draw(page, [(20, 15), (25, 60)], WIDTH)
    page.get_by_label("brush 3").click()
    pb.draw(page, [(95, 15), (100, 60)], WIDTH)
    pb.wait_for_result(page)
    check_code(page, folder, "out.png", monkeypatch, "labels.png")
    labels = np.asarray(Image.open(folder / "out.png"))
    # each half has the color of the brush that was used there
    assert labels[40, 10].tolist() == [30, 136, 229]
    assert labels[40, 110].tolist() == [229, 57, 53]


def test_upsample(page: Page, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pb.choose_tab(page, "upsample")
    pb.wait_for_result(page)
    page.locator('.pg-panel a[download="out.png"]').wait_for()
    check_code(page, folder, "out.png", monkeypatch, "coarse.png", "guide.png")


def test_shows_the_error_of_an_upload_in_its_own_tab(
    page: Page, browser: Browser, server: pb.Server, folder: Path
) -> None:
    shown = page.locator(".pg-file").inner_text()
    with pb.open_page(browser, server.address, width=400) as other:
        pb.wait_for_result(other)
        upload = other.locator("input[type=file]").first
        upload.set_input_files({"name": "song.mp3", "mimeType": "audio/mpeg", "buffer": b"ID3 not an image"})
        other.get_by_text("song.mp3 is not an image").wait_for()
        assert "Traceback" not in other.content()
        Image.new("RGB", (50, 30), (200, 90, 10)).save(folder / "small.png")
        upload.set_input_files(folder / "small.png")
        other.get_by_text("50 x 30").wait_for()
        pb.wait_for_result(other)
        # nothing is wider than a phone
        assert other.evaluate("() => document.documentElement.scrollWidth") <= 400
    assert page.locator(".pg-file").inner_text() == shown


def test_ctrl_c_stops_the_server_while_the_page_is_open(page: Page, server: pb.Server) -> None:
    pb.choose_tab(page, "filter")
    pb.slider(page, "sigma over space").press("ArrowRight")
    assert server.interrupt() == (0, "")
