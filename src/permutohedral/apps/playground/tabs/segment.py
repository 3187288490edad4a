"""Tab that spreads strokes of the mouse to regions."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from nicegui import ui

from permutohedral.apps.io.settings import SegmentationSettings
from permutohedral.apps.playground.components import Slider, Viewer
from permutohedral.apps.playground.jobs import Job
from permutohedral.apps.playground.panel import Panel
from permutohedral.apps.playground.runner import Check, Steps
from permutohedral.apps.playground.strokes import BRUSHES, NEEDS_STROKES, Stroke, write_strokes

# values of the controls at the start: the defaults of `permutohedral image segment`
START: dict[str, Any] = asdict(SegmentationSettings())
_COLORS = ["#{:02x}{:02x}{:02x}".format(*color) for color in BRUSHES]
_SLIDERS = {
    "sigma_space": ("sigma over space", (4.0, 8.0, 12.0, 20.0, 30.0, 40.0, 60.0, 80.0, 120.0, 160.0), " px"),
    "sigma_color": ("sigma over color", (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3), ""),
    "strength": ("weight of similar colors", (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0), ""),
    "smoothness": ("weight of neighbors", (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0), ""),
    "certainty": ("certainty of strokes", (0.6, 0.7, 0.8, 0.9, 0.95, 0.99), ""),
    "num_iterations": ("iterations", (1, 2, 3, 5, 10, 20), ""),
}


class SegmentPanel(Panel):
    """Segmentation of the photo from strokes."""

    title = "segment"
    start = START
    hint = "Draw over regions, each with its own brush: a dense random field spreads them to pixels of similar color."

    def add_controls(self) -> None:
        self._strokes: list[Stroke] = []
        self._brush = 0
        with ui.element("div").classes("pg-row"):
            self._brushes = [ui.element("button").classes("pg-brush") for _ in _COLORS]
        for number, (brush, color) in enumerate(zip(self._brushes, _COLORS, strict=True)):
            brush.style(f"background: {color}").props(f'aria-label="brush {number + 1}"')
            brush.on("click", partial(self._choose, number))
        with ui.element("div").classes("pg-row"):
            undo = ui.button("undo", icon="undo", on_click=lambda: self.set_strokes(self._strokes[:-1]))
            clear = ui.button("clear", icon="delete_outline", on_click=lambda: self.set_strokes([]))
            for button in (undo, clear):
                button.props("flat dense no-caps")
        self._radius = Slider("brush", (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0), 6.0, " px", self._show_strokes)
        self.controls = {
            option: Slider(name, values, START[option], unit, self.refresh)
            for option, (name, values, unit) in _SLIDERS.items()
        }

    def add_view(self) -> None:
        layers = {"before": "photo", "after": "segment/after"}
        self._viewer = Viewer(self.session.key, layers, ("photo", "labels"), on_stroke=self._take_stroke)
        self._choose(0)

    def take_photo(self) -> None:
        self._strokes = []
        self._show_strokes()

    def set_strokes(self, strokes: list[Stroke]) -> None:
        """Replace all strokes."""
        self._strokes = strokes
        self._show_strokes()
        self.refresh()

    def job(self) -> Job:
        return Job("segment_image", (self.photo.name, "out.png"), {"labels": "labels.png", **self.shown_options()})

    def compute(self) -> None:
        photo, strokes, options, number = self.photo, tuple(self._strokes), self.options(), self.number
        kind = (photo.num_pixels, "segment")
        if len({stroke.label for stroke in strokes}) < 2:
            self.drop()
            self.put("after", None, "before", number)
            self.report(None, NEEDS_STROKES)
            return
        folder = self.session.folder(self.title)
        written = {"labels": folder / "labels.png", "overlay": folder / "overlay.tif"}
        job = Job("segment_image", (photo.path, folder / "out.png"), {**options, **written})

        def request(check: Check) -> Steps:
            from permutohedral.apps.playground import compute

            yield from self.preview_first(number, kind, partial(compute.preview_segments, photo, strokes, options))
            write_strokes(strokes, *photo.size, folder / "labels.png")
            yield partial(self.show, compute.segment_photo(job, self.progress(check)), kind, number)

        self.submit(request)

    def _choose(self, number: int) -> None:
        self._brush = number
        for other, brush in enumerate(self._brushes):
            brush.classes(**{"add" if other == number else "remove": "on"})
        self._show_strokes()

    def _show_strokes(self) -> None:
        drawn = [
            {"points": stroke.points, "radius": stroke.radius, "color": _COLORS[stroke.label]}
            for stroke in self._strokes
        ]
        brush = {"label": self._brush, "radius": self._radius.value, "color": _COLORS[self._brush]}
        self._viewer.set_strokes(drawn, brush)

    def _take_stroke(self, drawn: dict[str, Any]) -> None:
        points = tuple((float(x), float(y)) for x, y in drawn["points"])
        self.set_strokes([*self._strokes, Stroke(int(drawn["label"]), float(drawn["radius"]), points)])
