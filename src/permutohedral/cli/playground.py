"""The command `permutohedral playground`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from permutohedral.cli.shared import handle_errors


def playground(
    photo: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PHOTO]", help="First photo.", show_default="one of scikit-image", exists=True, dir_okay=False
        ),
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
        from permutohedral.playground.server import serve

        serve(photo, host, port, browser, typer.echo)
