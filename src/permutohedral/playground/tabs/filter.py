"""Tab with the bilateral filter."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nicegui import ui

from permutohedral.playground.components import Slider, Viewer
from permutohedral.playground.controls import Choice, read_in_thread, read_upload, upload_button
from permutohedral.playground.jobs import Code, Job
from permutohedral.playground.panel import Panel
from permutohedral.playground.runner import Check, Steps
from permutohedral.playground.session import REST

if TYPE_CHECKING:
    from permutohedral.playground.photos import Photo

# values of the controls at the start: the defaults of `permutohedral image filter`
START: dict[str, Any] = {"sigma_space": 8.0, "sigma_color": 0.1, "method": "auto", "halo": 0}
_METHODS = ("separable", "dense", "exact", "auto")
_SPACE = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 40.0, 48.0, 64.0)
_COLOR = (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
_SIZE = "of the size of the photo"


def filter_job(photo: str | Path, output: str | Path, guide: str | Path | None, options: dict[str, Any]) -> Job:
    """Return the job of this tab."""
    return Job("filter_image", (photo, output), {"guide": guide, **options})


class FilterPanel(Panel):
    """Bilateral filter of the photo."""

    title = "filter"
    hint = "Averages pixels that are near in place and in color: smooths, and keeps edges."

    def add_controls(self) -> None:
        self._guide: Photo | None = None
        self._space = Slider("sigma over space", _SPACE, START["sigma_space"], " px", self.refresh)
        self._color = Slider("sigma over color", _COLOR, START["sigma_color"], "", self.refresh)
        self._method = Choice("method", _METHODS, START["method"], self.refresh)
        self._halo = Slider("halo", (0, 1, 2), START["halo"], " steps", self.refresh)
        self._edges = Choice("edges from", {False: "the photo itself", True: "a guide"}, False, self._choose_edges)
        with ui.element("div").classes("hidden") as self._upload:
            upload_button("choose the guide", self._take_guide)
            self._guide_name = ui.label(_SIZE).classes("pg-hint")

    def add_view(self) -> None:
        Viewer(self.session.key, {"before": "photo", "after": "filter/after"}, ("photo", "filtered"))

    def take_photo(self) -> None:
        self._guide = None
        self._edges.set(False)
        self._guide_name.set_text(_SIZE)
        self.put("after", None, "before", 0)

    def _options(self) -> dict[str, Any]:
        return {
            "sigma_space": self._space.value,
            "sigma_color": self._color.value,
            "method": self._method.value,
            "halo": int(self._halo.value),
        }

    def _used_guide(self) -> Photo | None:
        return self._guide if self._edges.value else None

    def code(self) -> Code:
        guide = self._used_guide()
        return filter_job(self.photo.name, "smooth.png", None if guide is None else guide.name, self._options()).code()

    def compute(self) -> None:
        photo, guide, options, number = self.photo, self._used_guide(), self._options(), self.number
        kind = (photo.num_pixels, options["method"], options["halo"])
        # TIFF is faster to write than PNG
        output = self.session.folder(self.title) / "smooth.tif"
        job = filter_job(photo.path, output, None if guide is None else guide.path, options)

        def request(check: Check) -> Steps:
            from permutohedral.playground import compute

            yield from self.preview_first(number, kind, partial(compute.preview_filter, photo, guide, options))
            result = compute.filter_photo(photo, job, self.progress(check))
            yield partial(self.show, result, kind, number)
            yield REST
            checked = compute.filter_photo(photo, job, self.progress(check), check=True)
            yield partial(self.report, result.seconds, *checked.details)

        self.submit(request)

    def _choose_edges(self) -> None:
        self._upload.classes(**{"remove" if self._edges.value else "add": "hidden"})
        if self._guide is not None:
            self.refresh()

    async def _take_guide(self, name: str, content: bytes) -> None:
        guide = await read_upload(self.session, name, content)
        if guide is None or await read_in_thread(_check_guide, self.photo, guide) is None:
            return
        self._guide = guide
        self._guide_name.set_text(name)
        self.refresh()


def _check_guide(photo: Photo, guide: Photo) -> Photo:
    from permutohedral.playground.photos import check_guide

    return check_guide(photo, guide)
