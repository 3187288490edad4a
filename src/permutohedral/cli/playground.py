"""The command `permutohedral playground`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from permutohedral.cli.shared import handle_errors
from permutohedral.errors import InputError


def playground(
    photo: Annotated[
        Path | None, typer.Argument(metavar="[PHOTO]", help="First photo.", show_default="one of scikit-image")
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; the default serves this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="NUMBER", help="Port; 0 chooses a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Try filters on a page with sliders, in the browser.

    Filter, denoise, segment and upsample a photo. The page shows the Python code and the command that do the same, and
    loads nothing from the network. Its address, with an access token, is printed; Ctrl-C stops it. Needs the extra
    playground.

    Example: permutohedral playground photo.jpg
    """
    with handle_errors():
        if photo is not None:
            _check_image(photo)
        from permutohedral.playground.server import serve

        serve(photo, host, port, browser, typer.echo)


def _check_image(path: Path) -> None:
    """Raise if `path` is not an image, before the page opens and loads torch."""
    from PIL import Image, UnidentifiedImageError

    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        with Image.open(path):
            pass
    except UnidentifiedImageError as error:
        raise InputError(f"{path} is not an image that can be read") from error
