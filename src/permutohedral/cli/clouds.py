"""Commands for point clouds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from permutohedral.cli.arrays import Memory, Resume, Scheduler, Workers
from permutohedral.cli.shared import Device, Json, call_job, handle_errors, need_output, positive
from permutohedral.errors import InputError

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
            typer.echo(f"{input} -> {output}: {count:,} points")


@cloud.command("segment")
def segment_cloud(
    input: Annotated[Path, typer.Argument(metavar="INPUT", help=".laz, .las, .ply or .npz file, in meters.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Copy with the classes, of the same format.")],
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Model that 'cloud train' wrote.", show_default="the model of the package"),
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
            typer.echo(", ".join(f"{name} {100 * number / total:.1f} %" for name, number in counts.items()))


@cloud.command("train")
def train_cloud(
    paths: Annotated[
        list[Path],
        typer.Argument(
            callback=need_output,
            metavar="INPUT... OUTPUT",
            help="Classified .laz, .las, .ply or .npz files, in meters; then the model to write, a .safetensors file.",
        ),
    ],
    point_class: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            metavar="NAME=NUMBERS",
            help="Class and its numbers in the files; repeatable. 'cloud segment' writes the last number.",
            show_default="ground=2 vegetation=3,4,5 building=6",
        ),
    ] = None,
    num_steps: Annotated[int, typer.Option("--steps", min=1, metavar="NUMBER", help="Updates of the weights.")] = 1500,
    num_crops: Annotated[int, typer.Option("--crops", min=1, metavar="NUMBER", help="Crops per step.")] = 8,
    start: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Start from this model, with as many classes.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, metavar="NUMBER", help="Of weights and crops.")] = 0,
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint of this output.")] = False,
) -> None:
    """Train a model for 'cloud segment' on your own files.

    Points of other classes are part of the input but do not count. Keep a file for testing. Overwrites OUTPUT
    atomically; checkpoints are in OUTPUT.checkpoint. Needs the extra clouds.

    Example: permutohedral cloud train one.laz two.laz model.safetensors --class road=11 --class other=2,3,4,5,6
    """
    options = locals()
    *inputs, output = options.pop("paths")
    with handle_errors():
        classes = parse_classes(options.pop("point_class"))
        accuracy = call_job("train_cloud", inputs=inputs, output=output, classes=classes, **options)
        typer.echo(f"{100 * accuracy:.1f} % of the classified training points are right", err=True)


def parse_classes(given: list[str] | None) -> dict[str, tuple[int, ...]] | None:
    """Parse NAME=NUMBERS; return the numbers of each class by name, or None without any.

    >>> parse_classes(["road=11", "tree=4,5"])
    {'road': (11,), 'tree': (4, 5)}
    """
    classes: dict[str, tuple[int, ...]] = {}
    for entry in given or ():
        name, _, numbers = entry.partition("=")
        if not name or not all(part.isdecimal() for part in numbers.split(",")) or name in classes:
            raise InputError(f"--class is {entry!r}; pass NAME=NUMBERS, such as tree=4,5, each name once")
        classes[name] = tuple(int(part) for part in numbers.split(","))
    return classes or None
