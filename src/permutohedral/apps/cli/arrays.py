"""Commands for arrays of any size, and options for work on Dask workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from permutohedral.apps.cli.shared import Device, Json, Recursive, need_output, positive, run_job, split_paths

array = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Workers = Annotated[int, typer.Option(min=0, metavar="NUMBER", help="Start worker processes; 0 computes in this one.")]
Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Limit the memory per worker, such as 2GiB.", show_default="an equal share"),
]
Scheduler = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Use the Dask scheduler at this address.", show_default="none")
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an interrupted command; keep a complete OUTPUT.")]


def parse_sigmas(text: str) -> list[float]:
    """Parse a positive number, or several with commas between."""
    try:
        return [positive(float(part)) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a number, or numbers with commas between") from error


def parse_range(text: str) -> tuple[float, float]:
    """Parse two numbers with a comma between."""
    try:
        low, high = map(float, text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not two numbers with a comma between") from error
    return low, high


@array.command("filter")
def filter_array(
    paths: Annotated[
        list[Path],
        typer.Argument(
            callback=need_output,
            metavar="INPUT... OUTPUT",
            help="Zarr, OME-Zarr or TIFF of any size; then a Zarr store, or a folder for several.",
        ),
    ],
    sigma_space: Annotated[
        Any,
        typer.Option(parser=parse_sigmas, metavar="SAMPLES", help="Set the bandwidth in space; 1,2,2 sets each axis."),
    ] = "8.0",
    sigma_color: Annotated[
        float,
        typer.Option(
            callback=positive, metavar="NUMBER", help="Set the bandwidth in values; the largest integer is 1."
        ),
    ] = 0.1,
    value_range: Annotated[
        Any,
        typer.Option(
            parser=parse_range,
            metavar="LOW,HIGH",
            help="Count these values as 0 and 1, such as 0,4095 for 12 bits.",
            show_default="0 and the largest integer",
        ),
    ] = None,
    axes: Annotated[
        str | None,
        typer.Option(
            metavar="LETTERS",
            help="Name the axes: ZYX, CYX, TZYX, ...; T times, C channels.",
            show_default="as stored, else ZYX",
        ),
    ] = None,
    physical: Annotated[
        bool, typer.Option("--physical", help="Take --sigma-space in the units of an OME-Zarr, not in samples.")
    ] = False,
    device: Device = "auto",
    workers: Workers = 0,
    memory: Memory = None,
    scheduler: Scheduler = None,
    resume: Resume = False,
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Smooth arrays of any size and keep edges.

    Filters tile by tile; the result equals the filter of the whole array. OUTPUT has the axes, dtype, chunks and
    compression of INPUT; pages of a TIFF that exceed the memory become smaller chunks. It appears, and replaces an
    earlier result, when it is complete. Needs the extra dask.

    Example: permutohedral array filter volume.zarr smooth.zarr --sigma-space 1,2,2 --workers 4 --memory 2GiB
    """
    run_job("filter_array", split_paths(locals()))
