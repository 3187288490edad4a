"""Choices, upload buttons, files of the user, and their errors."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nicegui import run, ui
from nicegui.elements.upload_files import FileUpload

from permutohedral.apps.playground.session import Session
from permutohedral.errors import PermutohedralError

if TYPE_CHECKING:
    from permutohedral.apps.playground.photos import Photo

Read = TypeVar("Read")
# size of an upload, which NiceGUI stores on disk
MAX_BYTES = 128 << 20
# reading takes several times the memory of the pixels, so all tabs take turns
_reading = threading.Lock()


class Choice:
    """Choice between a few values, or values with their texts; calls `changed` with another choice."""

    def __init__(
        self, name: str, options: Sequence[str] | dict[Any, str], start: Any, changed: Callable[[], None]
    ) -> None:
        with ui.element("div").classes("pg-control"):
            with ui.element("div").classes("pg-caption"):
                ui.label(name)
            kept = options if isinstance(options, dict) else list(options)
            self._select = ui.select(kept, value=start, on_change=changed)
            self._select.props(f'dense outlined options-dense aria-label="{name}"')

    @property
    def value(self) -> Any:
        """The chosen value."""
        return self._select.value


def upload_button(text: str, on_file: Callable[[FileUpload], Awaitable[None]]) -> None:
    """Add a button that uploads a file, with which `on_file` is called."""

    async def take(event: Any) -> None:
        upload.reset()
        await on_file(event.file)

    def reject() -> None:
        ui.notify(f"the file is larger than {MAX_BYTES >> 20} MB; scale it first", type="negative")

    upload = ui.upload(on_upload=take, on_rejected=reject, max_file_size=MAX_BYTES, auto_upload=True)
    upload.classes("hidden")
    ui.button(text, icon="upload_file", on_click=lambda: upload.run_method("pickFiles")).props("flat dense no-caps")


def show_error(error: Exception) -> None:
    """Show a message for a few seconds."""
    if isinstance(error, PermutohedralError):
        message = error.message
    elif isinstance(error, MemoryError):
        message = "there is not enough memory; choose a smaller photo"
    else:
        message = f"unexpected error: {type(error).__name__}: {error}"
    close = {"icon": "close", "color": "white", "round": True, "aria-label": "close"}
    ui.notify(message, type="negative", multi_line=True, timeout=8000, actions=[close])


async def read_upload(
    session: Session, file: FileUpload, read: Callable[[Path, str], Read]
) -> tuple[Path, Read] | None:
    """Write an upload to a file, and call `read` with its path and the user's name in another thread.

    Return the path, for `Session.keep_upload`, and the result; after an error, show it and return None.
    """
    if session.is_closed:
        return None
    path, found = session.name_upload(file.name), None
    try:
        await file.save(path)
        found = await read_in_turn(read, path, file.name)
    # decoders raise any exception for a damaged file
    except Exception as error:
        show_error(error)
    if found is None:
        with suppress(OSError, ValueError):
            path.unlink()
        return None
    return path, found


async def read_in_turn(read: Callable[[Path, str], Read], path: Path, name: str) -> Read | None:
    """Call `read` in another thread, one call after another for all tabs; return None if the server stops."""

    def wait_and_read() -> Read:
        with _reading:
            return read(path, name)

    return await run.io_bound(wait_and_read)


def read_photo(path: Path, name: str) -> Photo:
    """Read a photo; messages call it `name`."""
    from permutohedral.apps.playground import photos

    return photos.read_photo(path, name)
