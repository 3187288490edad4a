"""Parts that commands share: error messages, progress bars, reports and options."""

from __future__ import annotations

import ctypes
import json
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from permutohedral.apps.cli.extras import extra_of_command
from permutohedral.apps.io.settings import STREAM
from permutohedral.errors import DataError, InputError, PermutohedralError

if TYPE_CHECKING:
    from permutohedral.apps.io.settings import Progress

# modules that come with the extras
_OPTIONAL_MODULES = {
    *("PIL", "skimage", "matplotlib", "safetensors", "tifffile", "imagecodecs"),
    *("laspy", "lazrs", "plyfile"),
    *("nicegui", "fastapi", "starlette", "uvicorn"),
    *("dask", "distributed", "zarr", "filelock"),
    "rich",
}
# parameters of glibc's mallopt, from malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# tensors of a tile have 25 MB, those of a photo of 12 megapixels 48 or 144 MB
_MAX_REUSED_BYTES, _MAX_FREE_BYTES = 1 << 25, 1 << 28


@contextmanager
def handle_errors() -> Iterator[None]:
    """Print errors that the user can fix as one line on stderr, and exit with code 1; after Ctrl-C with 130."""
    try:
        yield
    except KeyboardInterrupt as error:
        typer.echo("; ".join(("interrupted", *error.args)), err=True)
        raise typer.Exit(130) from error
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OPTIONAL_MODULES:
            raise
        _fail(f"this needs the module {error.name}: pip install 'permutohedral[{extra_of_command()}]'")
    except PermutohedralError as error:
        # errors of files and options need no link to a page
        _fail(error.message if type(error) in (DataError, InputError) else str(error))


def _fail(message: str) -> None:
    show(f"error: {message}", err=True)
    raise typer.Exit(1)


def show(text: str, err: bool = False) -> None:
    """Print a line with file names, whose control characters could change the terminal."""
    typer.echo(printable(text), err=err)


def printable(text: str) -> str:
    r"""Escape control characters, but for line breaks.

    >>> print(printable("\x1b[31m.png"))
    \x1b[31m.png
    """
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode() for each in text
    )


def reuse_freed_memory() -> None:
    """Make glibc keep freed tensors for the next ones, instead of returning their pages to the system.

    Their page faults take a tenth of the processor time of `image denoise`. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAX_REUSED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _MAX_FREE_BYTES)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Yield a progress callback that draws a bar on stderr if it is a terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        # the bar pulses until there is progress
        task = bar.add_task("", total=None)

        def report(done: float, total: float, stage: str) -> None:
            bar.update(task, description=escape(printable(stage)), completed=done, total=total if done > 0 else None)

        yield report


def run_job(name: str, options: dict[str, Any]) -> None:
    """Call a function of `permutohedral.apps` with a progress bar, and print its warnings and its results.

    `options` are the parameters of the command: the arguments of the function, `as_json`, and optionally `backend`.
    Exits with code 1 if a file failed.
    """
    as_json, backend = options.pop("as_json"), options.pop("backend", None)
    to_stdout = options["output"] == STREAM
    with handle_errors(), warnings.catch_warnings(), progress_bar() as progress:
        if to_stdout and as_json:
            raise InputError("an image and JSON cannot both go to stdout; name a file for the image")
        if to_stdout and sys.stdout.isatty():
            raise InputError("the image would go to the terminal; redirect stdout, or name a file")
        import permutohedral as ph

        warnings.showwarning = lambda message, *_: show(f"note: {message}", err=True)
        # by Pillow; `apps` has a limit of its own
        warnings.filterwarnings("ignore", message="Image size .* could be decompression bomb")
        try:
            with ph.backends.use(backend):
                results = getattr(ph.apps, name)(**options, errors="report", progress=progress)
        except KeyboardInterrupt as interruption:
            interruption.args = ("the same command with --resume continues",) * ("resume" in options)
            raise
    if as_json:
        typer.echo(json.dumps([result.to_json() for result in results], indent=2))
    elif sys.stdout.isatty():
        for result in results:
            show(result.describe(), err=to_stdout)
    for result in results:
        for note in result.notes():
            show(f"note: {note}", err=True)
    failed = [result.error for result in results if result.error is not None]
    for error in failed:
        show(f"error: {error}", err=True)
    if failed:
        raise typer.Exit(1)


def need_output(paths: list[Path]) -> list[Path]:
    """Check that an argument INPUT... OUTPUT has both; click would miss the first instead of the last."""
    if len(paths) == 1:
        raise typer.BadParameter(printable(f"OUTPUT is missing after {paths[0]}"))
    return paths


def split_paths(options: dict[str, Any]) -> dict[str, Any]:
    """Replace the parameter `paths` of a command by `inputs` and `output`."""
    *inputs, output = options.pop("paths")
    return {"inputs": inputs, "output": output, **options}


def positive(value: float) -> float:
    """Check that an option is a positive number."""
    if not (math.isfinite(value) and value > 0):
        raise typer.BadParameter("must be positive and finite")
    return value


Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON; default: print lines of text.")]
Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="Also process the folders in a folder.")]
Device = Annotated[
    str, typer.Option(metavar="NAME", help="Compute on cpu, cuda, cuda:1, mps, or auto: a CUDA GPU if there is one.")
]
