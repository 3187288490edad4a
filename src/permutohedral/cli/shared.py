"""What the commands share: errors as messages, and options of the same name and meaning."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from permutohedral.errors import InputError, PermutohedralError

_EXTRA_OF_MODULE = {
    **dict.fromkeys(("PIL", "skimage", "matplotlib", "safetensors", "tifffile"), "images"),
    **dict.fromkeys(("pytorch_lightning", "pooch", "scipy", "yaml"), "experiments"),
    **dict.fromkeys(("laspy", "lazrs", "plyfile"), "clouds"),
    **dict.fromkeys(("nicegui", "fastapi", "starlette", "uvicorn"), "playground"),
    **dict.fromkeys(("dask", "distributed", "zarr"), "dask"),
    "rich": "cli",
}


# stdin as an input, stdout as an output; pictures.files has the same, and loads torch
STREAM = Path("-")


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors that the user can fix into one line on stderr and exit code 1."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF_MODULE.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _fail(f"this needs the module {error.name}: pip install 'permutohedral[{extra}]'")
    except PermutohedralError as error:
        # errors of files and options need no link to a page
        _fail(error.message if type(error) is InputError else str(error))


def _fail(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1)


def positive(value: float) -> float:
    """The callback of an option that must be a positive number."""
    if not (math.isfinite(value) and value > 0):
        raise typer.BadParameter("must be positive and finite")
    return value


Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
SigmaSpace = Annotated[float, typer.Option(callback=positive, metavar="PIXELS", help="Bandwidth in space.")]
SigmaRange = Annotated[
    float,
    typer.Option(
        "--sigma-range",
        "--sigma-color",
        callback=positive,
        metavar="NUMBER",
        help="Bandwidth in color; black is 0 and white is 1.",
    ),
]
