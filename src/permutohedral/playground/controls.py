"""Choices, upload buttons, files of the user, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nicegui import run, ui

from permutohedral.errors import PermutohedralError
from permutohedral.playground.session import Session

if TYPE_CHECKING:
    from permutohedral.playground.photos import Photo

Read = TypeVar("Read")
# size of an upload, which NiceGUI stores on disk
MAX_BYTES = 128 << 20


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


def upload_button(text: str, on_file: Callable[[str, bytes], Any]) -> None:
    """Add a button that uploads a file; `on_file` is called with its name and content."""

    async def take(event: Any) -> None:
        content = await event.file.read()
        upload.reset()
        result = on_file(event.file.name, content)
        if result is not None:
            await result

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


async def read_in_thread(read: Callable[..., Read], *given: Any) -> Read | None:
    """Call `read` in another thread; after an error, show it and return None."""
    try:
        return await run.io_bound(read, *given)
    # decoders raise any exception for a damaged file
    except Exception as error:
        show_error(error)
        return None


async def read_upload(session: Session, name: str, content: bytes) -> Photo | None:
    """Read the photo in an upload; after an error, show it and return None."""
    return await read_in_thread(lambda: _read_photo(session.keep_upload(name, content), name))


async def read_path(path: Path) -> Photo | None:
    """Read a photo that the user has named; after an error, show it and return None."""
    return await read_in_thread(_read_photo, path, str(path))


def _read_photo(path: Path, name: str) -> Photo:
    from permutohedral.playground.photos import read_photo

    return read_photo(path, name)
