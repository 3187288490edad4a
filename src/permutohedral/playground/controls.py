"""Sliders and choices, each with its name above it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nicegui import ui

from permutohedral.playground.components import Range

Changed = Callable[[], None]


class Slider:
    """A slider over given numbers, so that what is read off it is round.

    Args:
        name: above it, and for screen readers.
        values: from left to right.
        start: one of them.
        unit: behind the number.
        changed: called when it moves.
    """

    def __init__(self, name: str, values: Sequence[float], start: float, unit: str, changed: Changed) -> None:
        self._values, self._changed = list(values), changed
        self._at = self._values.index(start)
        self._range = Range(name, self._values, self._at, unit, self._move)

    @property
    def value(self) -> float:
        """The number it stands at."""
        return self._values[self._at]

    def set(self, value: float) -> None:
        """Move it to one of its numbers."""
        self._range.set(self._values.index(value))
        self._move(self._values.index(value))

    def _move(self, at: int) -> None:
        if at != self._at:
            self._at = at
            self._changed()


class Choice:
    """One of a few words.

    Args:
        name: above it, and for screen readers.
        options: what is kept, and what is read.
        start: one that is kept.
        changed: called when another is chosen.
    """

    def __init__(self, name: str, options: Sequence[str] | dict[Any, str], start: Any, changed: Changed) -> None:
        with ui.element("div").classes("pg-control"):
            with ui.element("div").classes("pg-caption"):
                ui.label(name)
            kept = options if isinstance(options, dict) else list(options)
            self._select = ui.select(kept, value=start, on_change=changed)
            self._select.props(f'dense outlined options-dense aria-label="{name}"')

    @property
    def value(self) -> Any:
        """What is chosen."""
        return self._select.value

    def set(self, value: Any) -> None:
        """Choose."""
        self._select.set_value(value)


def upload_button(text: str, on_file: Callable[[str, bytes], Any]) -> None:
    """A button that opens the browser's choice of files; `on_file` gets name and content."""

    async def take(event: Any) -> None:
        content = await event.file.read()
        upload.reset()
        result = on_file(event.file.name, content)
        if result is not None:
            await result

    def refuse() -> None:
        ui.notify(f"the file is larger than {MOST_BYTES >> 20} MB; scale it first", type="negative")

    upload = ui.upload(on_upload=take, on_rejected=refuse, max_file_size=MOST_BYTES, auto_upload=True)
    upload.classes("hidden")
    ui.button(text, icon="upload_file", on_click=lambda: upload.run_method("pickFiles")).props("flat dense no-caps")


# of one upload; NiceGUI keeps it on the disk meanwhile
MOST_BYTES = 128 << 20
