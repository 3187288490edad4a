"""Commands for arrays of any size, and options for work on Dask workers."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from permutohedral.apps.cli.shared import Json, call_job, handle_errors, positive, show

array = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Workers = Annotated[int, typer.Option(min=0, metavar="NUMBER", help="Worker processes; 0 computes in this one.")]
Memory = Annotated[str | None, typer.Option(metavar="SIZE", help="Memory limit per worker, such as 2GiB.")]
Scheduler = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address of an existing Dask scheduler.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an interrupted command; keep a complete OUTPUT.")]


def parse_sigmas(text: str) -> list[float]:
    """Parse a positive number, or several with commas between."""
    try:
        return [positive(float(part)) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a number, or numbers with commas between") from error


@array.command("filter")
def filter_array(
    input: Annotated[Path, typer.Argument(metavar="INPUT", help="Zarr array, OME-Zarr or TIFF of any size.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Zarr store to write; ends with .zarr.")],
    sigma_space: Annotated[
        Any, typer.Option(parser=parse_sigmas, metavar="SAMPLES", help="Bandwidth in space; 1,2,2 sets each axis.")
    ] = "8.0",
    sigma_color: Annotated[
        float,
        typer.Option(callback=positive, metavar="NUMBER", help="Bandwidth in values; for integers, white is 1."),
    ] = 0.1,
    axes: Annotated[
        str | None,
        typer.Option(
            metavar="LETTERS", help="ZYX, CYX, TZYX, ...: T times, C channels.", show_default="as stored, else ZYX"
        ),
    ] = None,
    physical: Annotated[
        bool, typer.Option("--physical", help="Take --sigma-space in the units of an OME-Zarr, not in samples.")
    ] = False,
    workers: Workers = 0,
    memory: Memory = None,
    scheduler: Scheduler = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Smooth arrays of any size and keep edges.

    Filters tile by tile; the result equals the filter of the whole array. OUTPUT has the axes, dtype, chunks and
    compression of INPUT; pages of a TIFF that exceed the memory become smaller chunks. It appears, and replaces an
    earlier result, when it is complete. Needs the extra dask.

    Example: permutohedral array filter volume.zarr smooth.zarr --sigma-space 1,2,2 --workers 4 --memory 2GiB
    """
    options = locals()
    del options["as_json"]
    with handle_errors():
        started = time.perf_counter()
        result = call_job("filter_array", **options)
        seconds = time.perf_counter() - started
        if as_json:
            report = {"input": str(input), "output": str(output), "shape": result.shape, "axes": result.axes}
            typer.echo(json.dumps([{**report, "tiles": result.num_tiles, "seconds": round(seconds, 3)}], indent=2))
        elif sys.stdout.isatty():
            shape = " x ".join(map(str, result.shape))
            show(f"{input} -> {output}: {shape} ({result.axes}), {result.num_tiles} tiles in {seconds:.1f} s")
