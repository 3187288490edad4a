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
        if photo is not None:
            _check_picture(photo)
        from permutohedral.playground.server import serve

        serve(photo, host, port, browser, typer.echo)


def _check_picture(path: Path) -> None:
    """Refuse what is no picture now: its pixels are read when the page is open, since that loads torch."""
    from PIL import Image, UnidentifiedImageError

    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        with Image.open(path):
            pass
    except UnidentifiedImageError as error:
        raise InputError(f"{path} is no picture that can be read") from error
