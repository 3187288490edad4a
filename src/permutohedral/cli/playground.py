"""The command `playground`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from permutohedral.cli.shared import explained
from permutohedral.errors import InputError


def playground(
    photo: Annotated[
        Path | None, typer.Argument(metavar="[PHOTO]", help="The first photo.", show_default="one of scikit-image")
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; others than this machine only if named.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="NUMBER", help="0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Try filters on a page with sliders, in the browser.

    Filter, denoise, segment and upsample a photo, and move a point on the lattice; the page shows the Python and the
    command line that do the same. It loads nothing from elsewhere. Its address, with a token that keeps others out,
    is printed; Ctrl-C ends it.

    Example: permutohedral playground photo.jpg
    """
    with explained():
        if photo is not None and not photo.is_file():
            raise InputError(f"there is no file {photo}")
        from permutohedral.playground.server import serve

        serve(photo, host, port, browser, typer.echo)
