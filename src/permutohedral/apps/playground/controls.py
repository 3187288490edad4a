"""Sliders, choices, the viewer, upload buttons, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from nicegui import ui
from nicegui.element import Element
from nicegui.elements.mixins.value_element import ValueElement
from nicegui.elements.upload_files import FileUpload

from permutohedral.apps.playground.session import Session
from permutohedral.errors import PermutohedralError

Read = TypeVar("Read")
ui.button.default_props("flat dense no-caps")
# size of an upload, which NiceGUI stores on disk
MAX_BYTES = 128 << 20
# reading takes several times the memory of the pixels, so all tabs take turns
_reader = ThreadPoolExecutor(1)


class Viewer(Element, component="viewer.js"):
    """Images "before" and "after" under one divider, zoom, and strokes.

    `names` has those of the two sides. `on_stroke` is called with each stroke of the brush.
    """

    def __init__(self, names: Sequence[str], on_stroke: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._props["names"] = list(names)
        self.on("stroke", lambda event: on_stroke(event.args))

    def show(self, **props: Any) -> None:
        """Set properties of the component: size, before, after, strokes, brush."""
        self._props.update(props)
        self.update()


class _Index(ValueElement[float]):
    """A slider that moves without waiting for the server, unlike `ui.slider`."""

    LOOPBACK = False


class Slider:
    """Slider over a list of round numbers; `unit` is the text after the number."""

    def __init__(
        self, name: str, numbers: Sequence[float], start: float, unit: str, changed: Callable[[], None]
    ) -> None:
        self._numbers, self._unit, self._changed = list(numbers), unit, changed
        with _control(name):
            self._text = ui.label().classes("pg-value")
        index = self._numbers.index(start)
        self._index = _Index(tag="q-slider", value=index, on_value_change=self._move, throttle=0.02)
        self._index.props(f'min=0 max={len(numbers) - 1} step=1 snap aria-label="{name}"')
        self._show()

    @property
    def value(self) -> float:
        """The current number."""
        return self._numbers[int(self._index.value)]

    def set_value(self, value: float) -> None:
        """Move the slider to one of its numbers."""
        self._index.set_value(self._numbers.index(value))

    def _move(self) -> None:
        self._show()
        self._changed()

    def _show(self) -> None:
        self._text.set_text(f"{self.value:g}{self._unit}")


def choice(name: str, options: Sequence[str], start: str, changed: Callable[[], None]) -> ui.select:
    """Add a choice between a few values."""
    with _control(name):
        pass
    select = ui.select(list(options), value=start, on_change=changed)
    return select.props(f'dense outlined options-dense aria-label="{name}"')


@contextmanager
def _control(name: str) -> Iterator[None]:
    with ui.element("div").classes("pg-caption"):
        ui.label(name)
        yield


def upload_button(text: str, on_file: Callable[[FileUpload], Awaitable[None]]) -> None:
    """Add a button that uploads a file, with which `on_file` is called."""

    async def take(event: Any) -> None:
        upload.reset()
        await on_file(event.file)

    def reject() -> None:
        ui.notify(f"the file is larger than {MAX_BYTES >> 20} MB; scale it first", type="negative", position="top")

    upload = ui.upload(on_upload=take, on_rejected=reject, max_file_size=MAX_BYTES, auto_upload=True)
    upload.classes("hidden")
    ui.button(text, icon="upload_file", on_click=lambda: upload.run_method("pickFiles"))


def show_error(error: Exception) -> None:
    """Show a message for a few seconds."""
    if isinstance(error, PermutohedralError):
        message = error.message
    elif isinstance(error, MemoryError):
        message = "there is not enough memory; choose a smaller photo"
    else:
        message = f"unexpected error: {type(error).__name__}: {error}"
    close = {"icon": "close", "color": "white", "aria-label": "close"}
    ui.notify(message, type="negative", position="top", timeout=8000, actions=[close])


async def read_upload(
    session: Session, file: FileUpload, read: Callable[[Path, str], Read]
) -> tuple[Path, Read] | None:
    """Write an upload to a file, and call `read` with its path and the user's name in another thread.

    Return the path, for `Session.keep_upload`, and the result; after an error, show it and return None.
    """
    if session.runner.is_closed:
        return None
    path = session.name_upload(file.name)
    try:
        await file.save(path)
        return path, await read_in_turn(read, path, file.name)
    # decoders raise any exception for a damaged file
    except Exception as error:
        show_error(error)
    with suppress(OSError, ValueError):
        path.unlink()
    return None


async def read_in_turn(read: Callable[[Path, str], Read], path: Path, name: str) -> Read:
    """Call `read` in another thread, one call after another for all tabs."""
    return await asyncio.get_running_loop().run_in_executor(_reader, read, path, name)
