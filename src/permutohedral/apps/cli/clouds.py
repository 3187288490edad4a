"""Commands for point clouds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from permutohedral.apps.cli.arrays import Memory, Resume, Scheduler, Workers
from permutohedral.apps.cli.shared import Device, Json, Recursive, need_output, positive, run_job, split_paths

cloud = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@cloud.command("smooth")
def smooth_cloud(
    paths: Annotated[
        list[Path],
        typer.Argument(
            callback=need_output,
            metavar="INPUT... OUTPUT",
            help=".laz or .las files of any size; then the smoothed copy, or a folder for several.",
        ),
    ],
    sigma_space: Annotated[
        float, typer.Option(callback=positive, metavar="NUMBER", help="Set the bandwidth, in units of the coordinates.")
    ] = 1.0,
    field: Annotated[
        str, typer.Option(metavar="NAME", help="Smooth position, or a field such as intensity.")
    ] = "position",
    device: Annotated[str, typer.Option(metavar="NAME", help="Compute on auto or cpu.")] = "auto",
    workers: Workers = 0,
    memory: Memory = None,
    scheduler: Scheduler = None,
    resume: Resume = False,
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Smooth the positions of laser scans, or another field.

    Replaces each value by about the Gaussian mean of the points around. Everything else in the file is kept. Overwrites
    OUTPUT atomically, but not INPUT. Needs the extra clouds.

    Example: permutohedral cloud smooth scan.laz smooth.laz --sigma-space 2.0

    Example: permutohedral cloud smooth scan.laz smooth.laz --field intensity --workers 4 --memory 2GiB
    """
    run_job("smooth_cloud", split_paths(locals()))


@cloud.command("segment")
def segment_cloud(
    paths: Annotated[
        list[Path],
        typer.Argument(
            callback=need_output,
            metavar="INPUT... OUTPUT",
            help=".laz, .las, .ply or .npz files, in meters; then a copy with the classes, or a folder for several.",
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read the network that PointSegmenter.save wrote.", show_default="required"),
    ] = None,
    image: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the classes from above.", show_default="none")
    ] = None,
    device: Device = "auto",
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Classify the points of laser scans with your network.

    For scans of any size, in meters, the last coordinate up. Writes the classes of --model, and keeps everything else
    in the file. No network is shipped: a tutorial trains one on classified points in thirty lines. Overwrites OUTPUT
    atomically, but not INPUT. Needs the extra clouds.

    Example: permutohedral cloud segment scan.laz classified.laz --model model.safetensors --image classes.png
    """
    run_job("segment_cloud", split_paths(locals()))
