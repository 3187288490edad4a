"""The tab with the bilateral filter."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from nicegui import ui

from permutohedral.playground.code import Code, filter_code
from permutohedral.playground.components import Viewer
from permutohedral.playground.controls import Choice, Slider, upload_button
from permutohedral.playground.panel import Panel
from permutohedral.playground.runner import Check, Steps
from permutohedral.playground.session import REST
from permutohedral.playground.settings import METHODS, FilterSettings
from permutohedral.playground.uploads import photo_of_upload, read_beside

if TYPE_CHECKING:
    from permutohedral.playground.compute.filtering import Averaged
    from permutohedral.playground.compute.photos import Photo

_SPACE = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 40.0, 48.0, 64.0)
_RANGE = (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)

_SIZE = "of the size of the photo"


class FilterPanel(Panel):
    """Smooths, and keeps edges."""

    title = "filter"
    hint = "Averages pixels that are near in place and in color: smooths, and keeps edges."

    def add_controls(self) -> None:
        self._guide: Photo | None = None
        start = FilterSettings()
        self._space = Slider("sigma over space", _SPACE, start.sigma_space, " px", self.refresh)
        self._range = Slider("sigma over color", _RANGE, start.sigma_range, "", self.refresh)
        self._method = Choice("method", METHODS, start.method, self.refresh)
        self._halo = Slider("halo", (0, 1, 2), 0, " steps", self.refresh)
        self._edges = Choice("edges from", {False: "the photo itself", True: "a guide"}, False, self._choose_edges)
        with ui.element("div").classes("hidden") as self._upload:
            upload_button("choose the guide", self._take_guide)
            self._guide_name = ui.label(_SIZE).classes("pg-hint")

    def add_view(self) -> None:
        Viewer(self.session.key, {"before": "photo", "after": "filter/after"}, ("photo", "filtered"))

    def take_photo(self) -> None:
        # its guide was for another
        self._guide = None
        self._edges.set(False)
        self._guide_name.set_text(_SIZE)
        self.put("after", None, "before", 0)

    def settings(self) -> FilterSettings:
        """What the controls say."""
        guided = bool(self._edges.value) and self._guide is not None
        return FilterSettings(self._space.value, self._range.value, self._method.value, int(self._halo.value), guided)

    def code(self) -> Code:
        photo = self.session.photo
        assert photo is not None
        guide = None if self._guide is None else self._guide.name
        return filter_code(self.settings(), photo.name, guide, photo.num_pixels, photo.is_transparent)

    def compute(self) -> None:
        photo, guide, settings, number = self.session.photo, self._guide, self.settings(), self.number
        assert photo is not None
        kind = (photo.num_pixels, settings.method, settings.halo)

        def request(check: Check) -> Steps:
            from permutohedral.playground.compute import filtering

            yield from self.preview_first(number, kind, partial(filtering.preview, photo, guide, settings))
            found = filtering.filter_photo(photo, guide, settings, check)
            yield partial(show_full, found)
            yield REST
            error = filtering.estimate(photo, guide, settings, found)
            told = f"error about <b>{100 * error.relative:.2g} %</b>, at a pixel <b>{255 * error.worst:.2g}</b> of 255"
            yield partial(self.tell, found.result.cost, told)

        def show_full(found: Averaged) -> None:
            result = found.result
            self.session.remember(kind, result.cost.seconds)
            self.put("after", result.layer, "full", number)
            self.tell(result.cost, "error …")
            if number == self.number:
                self.offer([("smooth.png", lambda: _encode(photo, found))])

        self.submit(request)

    def _choose_edges(self) -> None:
        self._upload.classes(**{"remove" if self._edges.value else "add": "hidden"})
        if self._guide is not None:
            self.refresh()

    async def _take_guide(self, name: str, content: bytes) -> None:
        guide = await photo_of_upload(self.session, name, content)
        if guide is None or await read_beside(_check_guide, self.session.photo, guide) is None:
            return
        self._guide = guide
        self._guide_name.set_text(name)
        self.refresh()


def _check_guide(photo: Photo, guide: Photo) -> Photo:
    from permutohedral.playground.compute.filtering import check_guide

    return check_guide(photo, guide)


def _encode(photo: Photo, found: Averaged) -> bytes:
    from permutohedral.playground.compute.layers import encode_png

    return encode_png(photo.picture.with_pixels(found.result.pixels))
