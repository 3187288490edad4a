"""Server of the page, by default for this machine only."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
import threading
import warnings
import webbrowser
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from nicegui import ui

from permutohedral.apps.playground.access import SizeLimited, TokenRequired
from permutohedral.apps.playground.controls import MAX_BYTES
from permutohedral.apps.playground.page import build_page
from permutohedral.apps.playground.photos import read_photo
from permutohedral.apps.playground.session import Session
from permutohedral.errors import InputError

# seconds to wait for open sockets at the end
_SECONDS_TO_END = 1
# of a form around an upload
_FORM_BYTES = 1 << 16
_ICON = (
    '<svg viewBox="0 0 32 32" xmlns="http://www.w3.org/2000/svg"><path d="M16 3 27 9.5v13L16 29 5 22.500v-13z" '
    'fill="#3f51b5"/><path d="M16 16 27 9.500M16 16 5 9.500M16 16v13" stroke="#fff" stroke-width="2.200"/></svg>'
)


class Playground:
    """The page, its images and its downloads; `photo` is the first photo, None for the example."""

    def __init__(self, photo: Path | None) -> None:
        self.sessions: dict[str, Session] = {}
        self.app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        self.app.add_api_route("/files/{key}/{tab}/{name}", self._file)
        ui.page("/", title="permutohedral playground", favicon=_ICON)(lambda: build_page(photo, self.sessions))
        # compression is slower than the connection; nothing is bound, and the page has its own style sheet
        ui.run_with(
            self.app, gzip_middleware_factory=None, binding_refresh_interval=None, tailwind=False,
            show_welcome_message=False, reconnect_timeout=10,
        )  # fmt: skip

    async def _file(self, key: str, tab: str, name: str) -> Response:
        make = self.sessions[key].files.get((tab, name)) if key in self.sessions else None
        if make is None:
            raise HTTPException(404)
        content = await run_in_threadpool(make)
        headers = {"cache-control": "no-store", "content-disposition": f'attachment; filename="{name}"'}
        # the images of the viewers are bitmaps
        media_type = "image/bmp" if name.endswith(".bmp") else "application/octet-stream"
        return Response(content, media_type=media_type, headers=headers)


def serve(photo: Path | None, host: str, port: int, open_browser: bool, announce: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C; port 0 chooses a free one. `announce` is called with the address."""
    if photo is not None:
        # errors of later photos appear on the page
        read_photo(photo, str(photo))
    listener = _listen(host, port)
    port, token = listener.getsockname()[1], secrets.token_urlsafe(24)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{port}/?token={token}"
    playground = Playground(photo)

    app = TokenRequired(SizeLimited(playground.app, MAX_BYTES + _FORM_BYTES), token, port)
    config = uvicorn.Config(
        app, log_level="error", timeout_graceful_shutdown=_SECONDS_TO_END, ws_max_size=1 << 24,
        ws_per_message_deflate=False,
    )  # fmt: skip
    # the first requests wait until the server has started
    announce(address)
    # NiceGUI looks at all objects when it stops, and one of torch's warns
    warnings.filterwarnings("ignore", "`torch.distributed.reduce_op`", FutureWarning)
    # after Ctrl-C or SIGTERM the server has closed all sockets, and raises the signal again
    try:
        with suppress(KeyboardInterrupt), ExitStack() as stack:
            if open_browser:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="permutohedral-")))
                page = _write_redirection(address, folder)
                # a browser may start slowly
                threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
            uvicorn.Server(config).run(sockets=[listener])
    finally:
        _end(playground)


def _write_redirection(address: str, folder: Path) -> Path:
    """Write a page that leads to an address: all users of a machine see the arguments of a browser."""
    page = folder / "playground.html"
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
    return page


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    # UnicodeError: the name is too long
    except (OSError, UnicodeError) as error:
        raise InputError(f"cannot listen at {host}, port {port}: {error}") from error


def _end(playground: Playground) -> None:
    """Close all sessions; exit even during a computation, which cannot be interrupted."""
    computing = any(session.runner.is_computing for session in playground.sessions.values())
    for session in playground.sessions.values():
        session.close()
    if computing:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
