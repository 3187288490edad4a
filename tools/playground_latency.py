"""How long the playground takes from a moved slider to the picture, in the browser: results/playground.json.

`python tools/playground_latency.py`; needs Chromium (Debian's package chromium). The photo is of four photographs of
scikit-image beside each other, 1024 x 1024 pixels. A slider is moved by one step with a key of the keyboard, and the
clock of the page runs from that key until the frame with the picture is painted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import playground_browser as pb
from PIL import Image
from playwright.sync_api import Page
from skimage import data

from permutohedral.reporting.atomic import write_bytes
from permutohedral.reporting.provenance import find_commit, find_processor

RESULT = Path(__file__).resolve().parents[1] / "results" / "playground.json"

# every picture that the first viewer draws, with milliseconds since the last key
_WATCH = """() => {
  const viewer = document.querySelector('.pg-panel:not(.hidden) .pg-viewer');
  window.addEventListener('keydown', () => { window.pressed = performance.now(); }, { capture: true });
  new MutationObserver(() => {
    const { shown } = viewer.dataset;
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      window.drawn.push({ shown, after: performance.now() - window.pressed });
      if (shown === 'full') window.finish();
    };
    // a message that is sent before a frame is painted comes after it
    requestAnimationFrame(() => port2.postMessage(null));
  }).observe(viewer, { attributes: true, attributeFilter: ['data-number', 'data-shown'] });
}"""
# a promise, since a question asked again and again would take time from what is measured
_AWAIT = """() => {
  window.drawn = [];
  window.finished = new Promise(finish => { window.finish = finish; });
}"""


def photograph() -> Image.Image:
    """A megapixel with the texture and noise of cameras: an enlarged picture would be too smooth."""
    quarter = data.astronaut()
    rows = [np.hstack([quarter, quarter[:, ::-1]]), np.hstack([quarter[::-1], quarter[::-1, ::-1]])]
    return Image.fromarray(np.vstack(rows))


def move(page: Page, name: str, moves: int) -> dict[str, list[float]]:
    """Move a slider there and back, waiting for the whole picture each time: milliseconds to it and to a preview."""
    target = pb.slider(page, name)
    target.focus()
    times: dict[str, list[float]] = {"full": [], "preview": []}
    for number in range(moves):
        page.evaluate(_AWAIT)
        page.keyboard.press("ArrowRight" if number % 2 == 0 else "ArrowLeft")
        for drawn in page.evaluate("() => window.finished.then(() => window.drawn)"):
            times[drawn["shown"]].append(drawn["after"])
        # the estimated error is under way
        pb.wait_until_idle(page)
    return times


def summarize(times: list[float]) -> dict[str, float | int]:
    """Median and ninth decile, in milliseconds."""
    ordered = sorted(times)
    ninth = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return {"median": round(statistics.median(ordered), 1), "ninth_decile": round(ninth, 1), "moves": len(ordered)}


def choose_method(page: Page, method: str) -> None:
    """Choose it, and wait for its picture."""
    page.locator('.pg-panel:not(.hidden) [aria-label="method"]').first.click()
    page.get_by_role("option", name=method, exact=True).click()
    page.wait_for_timeout(500)
    pb.wait_until_idle(page)


def measure(folder: Path, moves: int) -> dict[str, Any]:
    """All rows."""
    rows: dict[str, Any] = {}
    # compiled modules and a browser that ran before, as on a user's second day
    with pb.serve(folder, "photo.png"):
        pass
    with pb.browse() as browser, pb.serve(folder, "photo.png") as server:
        rows["server"] = {"median": round(1000 * (time.monotonic() - server.started), 1)}
        with pb.open_page(browser, server.address) as page:
            page.get_by_role("tab", name="filter", exact=True).wait_for()
            rows["page"] = {"median": round(1000 * (time.monotonic() - server.started), 1)}
            pb.wait_for_result(page)
            rows["first picture"] = {"median": round(1000 * (time.monotonic() - server.started), 1)}
            page.evaluate(_WATCH)
            # the first moves teach it how long a picture takes
            move(page, "sigma over space", 2)
            rows["filter"] = summarize(move(page, "sigma over space", moves)["full"])
            choose_method(page, "exact")
            pb.wait_until_idle(page)
            rows["preview"] = summarize(move(page, "sigma over space", max(3, moves // 3))["preview"])
    return rows


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=30)
    parser.add_argument("--json", type=Path, default=RESULT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        photo = photograph()
        photo.save(Path(name) / "photo.png")
        rows = measure(Path(name), arguments.moves)
    hardware = {"processor": find_processor(), "cores": os.cpu_count()}
    result = {"hardware": hardware, "commit": find_commit(), "pixels": list(photo.size), "milliseconds": rows}
    write_bytes(arguments.json, (json.dumps(result, indent=2) + "\n").encode())
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
