"""Vue components of the page, and the Python classes that control them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nicegui.element import Element

STYLE = Path(__file__).parent / "style.css"


class Viewer(Element, component="viewer.js", esm={"playground-layers": "layers"}):
    """Before and after under one divider, zoom, and strokes.

    `layers` has the names of the layers "before" and "after", `names` those of the two sides. `on_stroke` is called
    with a stroke when the mouse button is released.
    """

    def __init__(
        self,
        session: str,
        layers: dict[str, str],
        names: Sequence[str],
        on_stroke: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        super().__init__()
        self._props["session"], self._props["layers"] = session, layers
        self._props["names"] = list(names)
        self._props["label"] = f"{names[0]} and {names[1]}"
        if on_stroke is not None:
            self.on("stroke", lambda event: on_stroke(event.args))

    def set_strokes(self, strokes: Sequence[dict[str, Any]], brush: dict[str, Any]) -> None:
        """Set the strokes over the photo, and the brush of the mouse."""
        self._props["strokes"], self._props["brush"] = list(strokes), brush
        self.update()


class Slider(Element, component="slider.js"):
    """Slider over a list of round numbers; `unit` is the text after the number."""

    def __init__(
        self, name: str, values: Sequence[float], start: float, unit: str, changed: Callable[[], None]
    ) -> None:
        super().__init__()
        self._numbers, self._changed = list(values), changed
        self._index = self._numbers.index(start)
        self._props.update({"name": name, "values": self._numbers, "start": self._index, "unit": unit})
        self.on("move", lambda event: self._move(event.args), throttle=0.02)

    @property
    def value(self) -> float:
        """The current number."""
        return self._numbers[self._index]

    def set(self, value: float) -> None:
        """Move the slider to one of its numbers."""
        index = self._numbers.index(value)
        self.run_method("set", index)
        self._move(index)

    def _move(self, index: int) -> None:
        if index != self._index:
            self._index = index
            self._changed()


class Progress(Element, component="progress.js"):
    """Progress bar."""

    def set(self, busy: bool, share: float | None = None) -> None:
        """Show whether something is computed, and the share that is done if it is known."""
        self.run_method("set", busy, share)


class Tab(Element, component="tab.js"):
    """Content of a tab, hidden at first."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._props["title"] = title

    def set_open(self, is_open: bool) -> None:
        """Show or hide the tab."""
        self._props["open"] = is_open
        self.update()
