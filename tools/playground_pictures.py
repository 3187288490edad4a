"""Make docs/images/playground-*.jpg: each tab of `permutohedral playground`, wide and on a phone.

`python tools/playground_pictures.py`; needs Chromium (Debian's package chromium). The photo is of scikit-image.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

import playground_browser as pb
from PIL import Image
from playwright.sync_api import Page

from permutohedral.apps.io.atomic import write_bytes
from permutohedral.apps.playground.page import example_photo
from permutohedral.apps.playground.strokes import EXAMPLE_STROKES

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
TABS = ("filter", "denoise", "segment", "upsample")
WIDTHS = (1400, 400)
# size of one image in the documentation, by the width of the page
SAVED = {1400: (1100, 46_000), 400: (300, 26_000)}


def prepare(page: Page, tab: str, photo_width: int) -> None:
    """Use a tab until it shows a result."""
    pb.choose_tab(page, tab)
    if tab == "denoise":
        for _ in range(5):
            pb.slider(page, "noise to add first").press("ArrowRight")
        page.locator('.pg-panel a[download="noisy.png"]').wait_for()
    if tab == "segment":
        for stroke in EXAMPLE_STROKES:
            page.get_by_label(f"brush {stroke.label + 1}").click()
            pb.draw(page, stroke.points, photo_width)
    pb.wait_for_result(page)
    # the error and the captions follow
    page.wait_for_timeout(500)
    page.evaluate("() => window.scrollTo(0, 0)")


def save(content: bytes, path: Path, width: int, most_bytes: int) -> None:
    """Save a JPEG of a width, and of the best quality that is small enough."""
    image = Image.open(io.BytesIO(content)).convert("RGB")
    image = image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)
    for quality in range(90, 20, -5):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality, optimize=True)
        if file.tell() < most_bytes:
            break
    write_bytes(path, file.getvalue())
    print(f"wrote {path.name}: {file.tell():,} bytes", file=sys.stderr)


def main() -> None:
    """Make all images."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(example_photo(), folder / "coffee.png")
        photo_width = Image.open(folder / "coffee.png").width
        with pb.serve(folder, "coffee.png") as server, pb.browse() as browser:
            for width in WIDTHS:
                with pb.open_page(browser, server.address, width) as page:
                    pb.wait_for_result(page)
                    for tab in TABS:
                        prepare(page, tab, photo_width)
                        picture = page.screenshot(full_page=True)
                        file = f"playground-{tab}{'' if width == WIDTHS[0] else '-phone'}.jpg"
                        save(picture, IMAGES / file, *SAVED[width])


if __name__ == "__main__":
    main()
