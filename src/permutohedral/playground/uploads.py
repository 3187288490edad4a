"""Files that users give: read beside the page, and refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nicegui import run, ui

from permutohedral.errors import PermutohedralError
from permutohedral.playground.session import Session

if TYPE_CHECKING:
    from permutohedral.playground.compute.photos import Photo

Read = TypeVar("Read")


def explain(error: Exception) -> str:
    """What the user reads: a sentence."""
    if isinstance(error, PermutohedralError):
        return error.message
    if isinstance(error, MemoryError):
        return "there is not enough memory for this; take a smaller picture"
    return f"this went wrong, and should not have: {type(error).__name__}: {error}"


def tell_error(error: Exception) -> None:
    """Show it for a while."""
    close = {"icon": "close", "color": "white", "round": True, "aria-label": "close"}
    ui.notify(explain(error), type="negative", multi_line=True, timeout=8000, actions=[close])


async def read_beside(read: Callable[..., Read], *given: Any) -> Read | None:
    """What `read` makes of a file, in another thread; None after the user was told what is wrong with it."""
    try:
        return await run.io_bound(read, *given)
    # decoders raise any kind of exception for a damaged file
    except Exception as error:
        tell_error(error)
        return None


async def photo_of_upload(session: Session, name: str, content: bytes) -> Photo | None:
    """The photo in an upload; None after the user was told what is wrong with it."""
    return await read_beside(lambda: _read_photo(session.keep_upload(name, content), name))


async def photo_of_path(path: Path, name: str) -> Photo | None:
    """The photo in a file that the user named; None after the user was told what is wrong with it."""
    return await read_beside(_read_photo, path, name)


def _read_photo(path: Path, name: str) -> Photo:
    from permutohedral.playground.compute.photos import read_photo

    return read_photo(path, name)
