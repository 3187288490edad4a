"""The page: its head, its tabs, and the photo that they share."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from nicegui import ui
from nicegui.elements.upload_files import FileUpload

from permutohedral.apps.playground.controls import read_in_turn, read_upload, show_error, upload_button
from permutohedral.apps.playground.panel import Panel
from permutohedral.apps.playground.photos import Photo, read_photo
from permutohedral.apps.playground.session import Session
from permutohedral.apps.playground.strokes import EXAMPLE_STROKES
from permutohedral.apps.playground.tabs import DenoisePanel, FilterPanel, SegmentPanel, UpsamplePanel


def example_photo() -> Path:
    """Return the path of a photo that comes with scikit-image."""
    found = importlib.util.find_spec("skimage")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("the example needs scikit-image", name="skimage")
    return Path(found.submodule_search_locations[0]) / "data" / "coffee.png"


class Page:
    """Content of one browser tab; `photo` is the first photo, None for the example."""

    def __init__(self, photo: Path | None) -> None:
        ui.add_css(Path(__file__).parent / "style.css")
        # the cookie is set, so the token need not stay on the screen
        ui.add_head_html('<script>history.replaceState(null, "", location.pathname)</script>')
        ui.colors(primary="#3f51b5")
        self._slot = ui.context.slot
        self.session = Session(self._fail, self._set_busy)
        self._first = photo
        with ui.element("div").classes("pg-head"):
            ui.html("<span>permutohedral</span> playground", sanitize=False).classes("pg-name")
            tabs = ui.tabs(on_change=lambda event: self._open(event.value)).classes("pg-tabs").props("dense no-caps")
            with ui.element("div").classes("pg-photo"):
                self._name = ui.label("loading").classes("pg-file")
                upload_button("open a photo", self._take_upload)
            self._progress = ui.linear_progress(show_value=False, size="3px").classes("pg-busy")
        self.panels: dict[str, Panel] = {}
        with ui.tab_panels(tabs, animated=False).classes("pg-panels"):
            for kind in (FilterPanel, DenoisePanel, SegmentPanel, UpsamplePanel):
                with tabs:
                    ui.tab(kind.title)
                with ui.tab_panel(kind.title):
                    self.panels[kind.title] = kind(self.session)
        tabs.set_value(FilterPanel.title)

    async def load(self) -> None:
        """Load the first photo."""
        path = example_photo() if self._first is None else self._first
        try:
            photo = await read_in_turn(read_photo, path, str(path))
        # decoders raise any exception for a damaged file
        except Exception as error:
            self._fail(error)
            self._name.set_text("no photo")
            return
        self._show(photo)
        if self._first is None:
            segment = self.panels["segment"]
            assert isinstance(segment, SegmentPanel)
            segment.set_strokes(list(EXAMPLE_STROKES))
            # the example has no noise
            self.panels["denoise"].set_values({"added": 25.0})

    async def _take_upload(self, file: FileUpload) -> None:
        found = await read_upload(self.session, file, read_photo)
        if found is not None:
            path, photo = found
            self._show(photo)
            self.session.keep_upload("photo", path)

    def _show(self, photo: Photo) -> None:
        # the tab was closed while the photo was read
        if self.session.runner.is_closed:
            return
        self.session.runner.drop()
        self.session.photo = photo
        height, width = photo.size
        self._name.set_text(f"{Path(photo.name).name} · {width} x {height}")
        for panel in self.panels.values():
            panel.reset()

    def _open(self, title: str) -> None:
        for panel in self.panels.values():
            panel.open(panel.title == title)

    def _fail(self, error: Exception) -> None:
        with self._slot:
            show_error(error)

    def _set_busy(self, busy: bool, share: float | None) -> None:
        self._progress.set_value(share or 0)
        self._progress.props(f'data-busy="{str(busy).lower()}"').props(
            **{"add" if share is None else "remove": "indeterminate"}
        )


async def build_page(photo: Path | None, sessions: dict[str, Session]) -> None:
    """Build the page of a new browser tab, and delete its session when the tab is closed."""
    page = Page(photo)
    session = page.session
    sessions[session.key] = session

    def forget() -> None:
        sessions.pop(session.key, None)
        session.close()

    ui.context.client.on_delete(forget)
    await ui.context.client.connected()
    # a client that never connects is deleted
    if session.key in sessions:
        await page.load()
