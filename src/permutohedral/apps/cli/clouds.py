"""Commands for point clouds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from permutohedral.apps.cli.arrays import Memory, Resume, Scheduler, Workers
from permutohedral.apps.cli.shared import Device, Json, call_job, handle_errors, positive, show

cloud = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@cloud.command("smooth")
def smooth_cloud(
    input: Annotated[Path, typer.Argument(metavar="INPUT", help=".laz or .las file of any size.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Smoothed copy, .laz or .las.")],
    sigma_space: Annotated[
        float, typer.Option(callback=positive, metavar="NUMBER", help="Bandwidth, in units of the coordinates.")
    ] = 1.0,
    field: Annotated[
        str, typer.Option(metavar="NAME", help="What to smooth: position, or a field such as intensity.")
    ] = "position",
    workers: Workers = 0,
    memory: Memory = None,
    scheduler: Scheduler = None,
    resume: Resume = False,
) -> None:
    """Smooth the positions of laser scans, or another field.

    Replaces each value by about the Gaussian mean of the points around. Everything else in the file is kept. Overwrites
    OUTPUT atomically, but not INPUT. Needs the extra clouds.

    Example: permutohedral cloud smooth scan.laz smooth.laz --sigma-space 2.0

    Example: permutohedral cloud smooth scan.laz smooth.laz --field intensity --workers 4 --memory 2GiB
    """
    options = locals()
    with handle_errors():
        count = call_job("smooth_cloud", **options)
        if sys.stdout.isatty():
            show(f"{input} -> {output}: {count:,} points")


@cloud.command("segment")
def segment_cloud(
    input: Annotated[Path, typer.Argument(metavar="INPUT", help=".laz, .las, .ply or .npz file, in meters.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Copy with the classes, of the same format.")],
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Model of PointSegmenter.save.", show_default="the model of the package"),
    ] = None,
    image: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the classes from above.")] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Find ground, vegetation and buildings in laser scans.

    For airborne scans of any size, in meters, the last coordinate up. Writes the classes 2, 5 and 6 of the LAS
    standard, and keeps everything else in the file. Overwrites OUTPUT atomically, but not INPUT. Needs the extra
    clouds.

    Example: permutohedral cloud segment scan.laz classified.laz --image classes.png
    """
    options = locals()
    del options["as_json"]
    with handle_errors():
        counts = call_job("segment_cloud", **options)
        if as_json:
            typer.echo(json.dumps(counts, indent=2))
        elif sys.stdout.isatty():
            total = max(sum(counts.values()), 1)
            show(", ".join(f"{name} {100 * number / total:.1f} %" for name, number in counts.items()))
