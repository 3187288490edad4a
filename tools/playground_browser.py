"""The playground in a real browser: a server in its own process, and Chromium driven by Playwright.

Tests and the images of the documentation use it. It needs the system's Chromium (Debian's package chromium).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, sync_playwright

PATIENCE = 30.0


def find_chromium() -> str | None:
    """Return the path of the system's Chromium, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@dataclass
class Server:
    """A running playground.

    Attributes:
        process: of the server.
        address: of the page, with the token.
    """

    process: subprocess.Popen[str]
    address: str

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C, and return the exit code and the text on stderr."""
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors


@contextmanager
def serve(folder: Path, *arguments: str) -> Iterator[Server]:
    """Run `permutohedral playground` in a folder during the block, without opening a browser."""
    process = subprocess.Popen(
        [sys.executable, "-m", "permutohedral", "playground", "--no-browser", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address.startswith("http"):
            raise RuntimeError(f"the playground did not start: {process.communicate(timeout=PATIENCE)[1]}")
        yield Server(process, address)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@contextmanager
def browse() -> Iterator[Browser]:
    """Start Chromium without a window."""
    path = find_chromium()
    if path is None:
        raise RuntimeError("no Chromium is installed; on Debian or Ubuntu: apt install chromium")
    with sync_playwright() as playwright:
        # the sandbox of Chromium does not run as root
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def open_page(browser: Browser, address: str, width: int = 1300, height: int = 900) -> Iterator[Page]:
    """Open a page in a new window without cookies."""
    context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True)
    context.set_default_timeout(1000 * PATIENCE)
    page = context.new_page()
    page.goto(address, wait_until="commit")
    yield page
    context.close()


def choose_tab(page: Page, name: str) -> None:
    """Open a tab of the page."""
    page.get_by_role("tab", name=name, exact=True).click()
    # otherwise later lookups might find elements of the previous tab
    page.locator(f'.pg-panel[data-tab="{name}"]').wait_for()


def viewer(page: Page) -> Locator:
    """Return the viewer of the open tab."""
    return page.locator(".pg-viewer")


def wait_for_result(page: Page) -> None:
    """Wait until the open tab shows full results."""
    page.locator('.pg-viewer[data-shown="full"]').wait_for()
    wait_until_idle(page)


def wait_until_idle(page: Page) -> None:
    """Wait until the open tab has nothing left to compute."""
    page.locator('.pg-busy[data-busy="false"]').wait_for(state="attached")


def slider(page: Page, name: str) -> Locator:
    """Return the part of a slider of the open tab that takes the keys."""
    return page.locator(f'.pg-panel [aria-label="{name}"] [tabindex]')


def draw(page: Page, points: Sequence[tuple[float, float]], photo_width: int) -> None:
    """Draw a stroke through points of the photo, which is shown whole."""
    photo = viewer(page).locator(".pg-scroll")
    photo.scroll_into_view_if_needed()
    box = photo.bounding_box()
    assert box is not None
    scale = box["width"] / photo_width
    places = [(box["x"] + scale * x, box["y"] + scale * y) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=6)
    page.mouse.up()


def shown_code(page: Page, title: str) -> str:
    """Return the code of the open tab; `title` is "Python" or "command line"."""
    return page.locator(f'.pg-panel [data-code="{title}"]').inner_text()


def download(page: Page, name: str) -> bytes:
    """Return the content of a file that the open tab offers."""
    with page.expect_download() as waiting:
        page.locator(f'.pg-panel a[download="{name}"]').click()
    return Path(waiting.value.path()).read_bytes()
