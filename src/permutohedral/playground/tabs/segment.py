"""The tab that spreads strokes of the mouse to regions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from nicegui import ui

from permutohedral.pictures.field_settings import FieldSettings
from permutohedral.playground.code import Code, segment_code
from permutohedral.playground.components import Viewer
from permutohedral.playground.controls import Slider
from permutohedral.playground.panel import Panel
from permutohedral.playground.runner import Check, Steps
from permutohedral.playground.settings import BRUSHES, STROKES, Stroke

if TYPE_CHECKING:
    from permutohedral.pictures.label_maps import LabelMap
    from permutohedral.playground.compute.segmenting import Segments

_COLORS = ["#{:02x}{:02x}{:02x}".format(*color) for color in BRUSHES]
_SPACE = (4.0, 8.0, 12.0, 20.0, 30.0, 40.0, 60.0, 80.0, 120.0, 160.0)
_RANGE = (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3)
_WEIGHT = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)


class SegmentPanel(Panel):
    """Spreads labels along edges."""

    title = "segment"
    hint = (
        "Draw over regions with the mouse, each with a brush of its own: a dense random field spreads them to pixels "
        "of like color."
    )

    def add_controls(self) -> None:
        self._strokes: list[Stroke] = []
        self._brush = 0
        start = STROKES
        with ui.element("div").classes("pg-row"):
            self._brushes = [ui.element("button").classes("pg-brush") for _ in _COLORS]
        for number, (brush, color) in enumerate(zip(self._brushes, _COLORS, strict=True)):
            brush.style(f"background: {color}").props(f'aria-label="brush {number + 1}"')
            brush.on("click", partial(self._choose, number))
        with ui.element("div").classes("pg-row"):
            ui.button("undo", icon="undo", on_click=self._undo).props("flat dense no-caps")
            ui.button("clear", icon="delete_outline", on_click=self._clear).props("flat dense no-caps")
        self._radius = Slider("brush", (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0), 6.0, " px", self._show_strokes)
        self._space = Slider("sigma over space", _SPACE, start.sigma_space, " px", self.refresh)
        self._range = Slider("sigma over color", _RANGE, start.sigma_range, "", self.refresh)
        self._weight = Slider("weight of like colors", _WEIGHT, start.strength, "", self.refresh)
        self._near = Slider("weight of neighbors", _WEIGHT, start.smoothness, "", self.refresh)
        shares = (0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
        self._certainty = Slider("certainty of strokes", shares, start.certainty, "", self.refresh)
        self._steps = Slider("steps", (1, 2, 3, 5, 10, 20), start.steps, "", self.refresh)

    def add_view(self) -> None:
        layers = {"before": "photo", "after": "segment/after"}
        self._viewer = Viewer(self.session.key, layers, ("photo", "labels"), on_stroke=self._take_stroke)
        self._choose(0)

    def take_photo(self) -> None:
        self._strokes = []
        self._show_strokes()
        self.put("after", None, "before", 0)

    def draw_example(self, strokes: tuple[Stroke, ...]) -> None:
        """Strokes for the photo that comes with the page."""
        self._strokes = list(strokes)
        self._show_strokes()
        self.refresh()

    def settings(self) -> FieldSettings:
        """What the controls say."""
        return FieldSettings(
            self._certainty.value, self._space.value, self._range.value, self._weight.value, self._near.value,
            int(self._steps.value),
        )  # fmt: skip

    def code(self) -> Code:
        photo = self.session.photo
        assert photo is not None
        return segment_code(self.settings(), photo.name, photo.is_transparent)

    def compute(self) -> None:
        photo, strokes, settings, number = self.session.photo, tuple(self._strokes), self.settings(), self.number
        assert photo is not None
        kind = (photo.num_pixels, "segment")
        if len({stroke.label for stroke in strokes}) < 2:
            self.drop()
            self.put("after", None, "before", number)
            self.tell(None, "draw over two regions or more, each with a brush of its own")
            return

        def request(check: Check) -> Steps:
            from permutohedral.playground.compute import segmenting

            yield from self.preview_first(number, kind, partial(segmenting.preview, photo, strokes, settings))
            yield partial(show_full, segmenting.segment_photo(photo, strokes, settings, self.progress(check)))

        def show_full(found: Segments) -> None:
            from permutohedral.playground.compute.segmenting import shares

            self.session.remember(kind, found.result.cost.seconds)
            self.put("after", found.result.layer, "full", number)
            square = '<i style="color: rgb{}">&#9632;</i> <b>{:.0f} %</b>'
            parts = (square.format(color, 100 * share) for color, share in shares(found))
            self.tell(found.result.cost, *parts, f"in doubt <b>{100 * found.doubt:.2g} %</b> of the pixels")
            if number == self.number:
                self.offer([("out.png", partial(_encode, found.found)), ("labels.png", partial(_encode, found.given))])

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
        self._strokes.append(Stroke(int(drawn["label"]), float(drawn["radius"]), points))
        self._show_strokes()
        self.refresh()

    def _undo(self) -> None:
        self._strokes = self._strokes[:-1]
        self._show_strokes()
        self.refresh()

    def _clear(self) -> None:
        self._strokes = []
        self._show_strokes()
        self.refresh()


def _encode(labels: LabelMap) -> bytes:
    from permutohedral.playground.compute.layers import encode_png

    return encode_png(labels.paint())
