"""What of the page runs in the browser: a Vue component beside the Python that talks to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nicegui.element import Element

STYLE = Path(__file__).parent / "style.css"


class Viewer(Element, component="viewer.js"):
    """Before and after under one divider, their difference, zoom, and strokes.

    Args:
        names: of the two sides.
        group: viewers of one group zoom together, and their sides have pixels of different sizes; "" for none.
        on_stroke: gets a stroke when the mouse is let go.
    """

    def __init__(
        self, names: Sequence[str], group: str = "", on_stroke: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        super().__init__()
        self._props["names"], self._props["group"] = list(names), group
        self._props["differing"] = not group
        self._props["label"] = f"{names[0]} and {names[1]}"
        if on_stroke is not None:
            self.on("stroke", lambda event: on_stroke(event.args))

    def show(self, layers: Sequence[dict[str, Any]], kind: str, number: int) -> None:
        """Load layers (`Session.put`) and draw them: kind "before", "preview" or "full", of the request `number`."""
        self.run_method("show", list(layers), kind, number)

    def clear_after(self) -> None:
        """Show the photo alone."""
        self.run_method("clearAfter")

    def set_strokes(self, strokes: Sequence[dict[str, Any]], brush: dict[str, Any]) -> None:
        """What is drawn over the photo, and what the mouse draws with."""
        self._props["strokes"], self._props["brush"] = list(strokes), brush
        self.update()


class Plane(Element, component="plane.js"):
    """The lattice of the plane, with a point that the mouse moves.

    Args:
        start: x and y of the point.
        on_place: gets x and y.
    """

    def __init__(self, start: tuple[float, float], on_place: Callable[[float, float], None]) -> None:
        super().__init__()
        self._props["start"] = list(start)
        self.on("place", lambda event: on_place(*event.args), throttle=0.03)

    def draw(self, found: dict[str, Any], number: int) -> None:
        """Draw what `compute.lattices.describe_point` found."""
        self.run_method("draw", found, number)
