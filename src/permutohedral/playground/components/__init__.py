"""What of the page runs in the browser: a Vue component beside the Python that talks to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nicegui.element import Element

STYLE = Path(__file__).parent / "style.css"


class Viewer(Element, component="viewer.js", esm={"playground-layers": "layers"}):
    """Before and after under one divider, their difference, zoom, and strokes.

    Args:
        session: key of the session, whose layers it shows.
        layers: names of the layers "before" and "after", and of "truth", to which a result is compared, if it is known.
        names: of the two sides.
        group: viewers of one group zoom together; "" for none.
        on_stroke: gets a stroke when the mouse is let go.
    """

    def __init__(
        self,
        session: str,
        layers: dict[str, str],
        names: Sequence[str],
        group: str = "",
        on_stroke: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        super().__init__()
        self._props["session"], self._props["layers"] = session, layers
        self._props["names"], self._props["group"] = list(names), group
        self._props["label"] = f"{names[0]} and {names[1]}"
        if on_stroke is not None:
            self.on("stroke", lambda event: on_stroke(event.args))

    def set_strokes(self, strokes: Sequence[dict[str, Any]], brush: dict[str, Any]) -> None:
        """What is drawn over the photo, and what the mouse draws with."""
        self._props["strokes"], self._props["brush"] = list(strokes), brush
        self.update()


class Range(Element, component="slider.js"):
    """A slider over given numbers.

    Args:
        name: above it, and for screen readers.
        values: from left to right.
        start: which of them it stands at.
        unit: behind the number.
        on_move: gets which of them it was moved to.
    """

    def __init__(
        self, name: str, values: Sequence[float], start: int, unit: str, on_move: Callable[[int], None]
    ) -> None:
        super().__init__()
        self._props.update({"name": name, "values": list(values), "start": start, "unit": unit})
        self.on("move", lambda event: on_move(event.args), throttle=0.02)

    def set(self, at: int) -> None:
        """Move it."""
        self.run_method("set", at)


class Progress(Element, component="progress.js"):
    """A bar over what is computed."""

    def set(self, busy: bool, share: float | None = None) -> None:
        """Whether something is computed, and how much of it is done if that is known."""
        self.run_method("set", busy, share)


class Tab(Element, component="tab.js"):
    """The content of a tab, hidden at first.

    Args:
        title: of the tab.
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self._props["title"] = title

    def set_open(self, is_open: bool) -> None:
        """Show or hide it."""
        self._props["open"] = is_open
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
