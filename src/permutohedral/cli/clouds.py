"""The commands for point clouds: `smooth-points`, `segment-points` and `train-points`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from permutohedral.cli.arrays import Memory, Resume, Scheduler, WorkerCount
from permutohedral.cli.shared import Json, explained, positive

Accelerator = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu or gpu.")]


def segment_points(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A .laz, .las, .ply or .npz file, in meters.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="A copy with the classes, of the same format.")],
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A network that train-points wrote.", show_default="the one that is shipped"),
    ] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the classes from above here.")] = None,
    accelerator: Accelerator = "auto",
    as_json: Json = False,
) -> None:
    """Find ground, vegetation and buildings in laser scans.

    For airborne scans of any size: the last coordinate is up, and positions are in meters. The classes go into
    the standard field, as 2, 5 and 6; everything else in the file stays. OUTPUT is replaced if it exists, and never
    half-written.

    Example: permutohedral segment-points scan.laz classified.laz --picture classes.png
    """
    with explained():
        from permutohedral.clouds.segment import segment_file

        counts = segment_file(source, output, model, picture, accelerator)
        if as_json:
            typer.echo(json.dumps(counts, indent=2))
        elif sys.stdout.isatty():
            total = max(sum(counts.values()), 1)
            typer.echo(", ".join(f"{name} {100 * number / total:.1f} %" for name, number in counts.items()))


def train_points(  # noqa: PLR0913 (one parameter for each option)
    sources: Annotated[
        list[Path], typer.Argument(metavar="INPUT...", help="Classified .laz, .las, .ply or .npz files, in meters.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The network, a .safetensors file.")],
    point_class: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            metavar="NAME=NUMBERS",
            help="A class and its numbers in the files; may be repeated. The last number is what is written.",
            show_default="ground=2 vegetation=3,4,5 building=6",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Updates of the weights.")] = 1500,
    crops: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Crops in a step.")] = 8,
    start: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Go on from the weights of this network of as many classes.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, metavar="NUMBER", help="Of weights and crops.")] = 0,
    accelerator: Accelerator = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted training.")] = False,
) -> None:
    """Train a network for segment-points on files of your own.

    Points of other classes are seen, and neither learned nor counted. Keep a file aside, and compare what
    segment-points makes of it. OUTPUT is replaced if it exists, and never half-written; checkpoints lie beside it.

    Example: permutohedral train-points one.laz two.laz network.safetensors --class road=11 --class other=2,3,4,5,6
    """
    with explained():
        from permutohedral.experiments.lidar.own_files import OwnTraining, train_on_files
        from permutohedral.experiments.training import RunOptions

        training = OwnTraining(parse_classes(point_class), steps, crops, start, seed)
        folder = output.with_name(output.name + ".training")
        options = RunOptions(folder, None, accelerator, 1, resume, progress=sys.stderr.isatty())
        accuracy = train_on_files(sources, output, training, options)
        typer.echo(f"{100 * accuracy:.1f} % of the classified points it was trained on are right", err=True)


def smooth_points(  # noqa: PLR0913 (one parameter for each option)
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A .laz or .las file of any size.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="A copy of it, .laz or .las.")],
    sigma: Annotated[
        float, typer.Option(callback=positive, metavar="NUMBER", help="Bandwidth, in units of the coordinates.")
    ] = 1.0,
    field: Annotated[
        str, typer.Option(metavar="NAME", help="What is smoothed: position, or a field such as intensity.")
    ] = "position",
    workers: WorkerCount = 0,
    memory: Memory = None,
    scheduler: Scheduler = None,
    resume: Resume = False,
) -> None:
    """Smooth the points of laser scans, or what they measured.

    Each point, or one field of it, becomes the Gaussian mean of those around. The file is read in chunks, and
    everything else in it stays. OUTPUT is replaced if it exists, and never half-written.

    Example: permutohedral smooth-points scan.laz smooth.laz --sigma 2.0

    Example: permutohedral smooth-points scan.laz smooth.laz --field intensity --workers 4 --memory 2GiB
    """
    with explained():
        from permutohedral.arrays.workers import Workers
        from permutohedral.clouds.smooth import smooth_file

        count = smooth_file(source, output, sigma, field, Workers(workers, memory, scheduler), resume)
        if sys.stdout.isatty():
            typer.echo(f"{source} -> {output}: {count:,} points")


def parse_classes(given: list[str] | None) -> dict[str, tuple[int, ...]] | None:
    """The numbers of each class by its name, from NAME=NUMBERS; None if none is given.

    >>> parse_classes(["road=11", "tree=4,5"])
    {'road': (11,), 'tree': (4, 5)}
    """
    from permutohedral.errors import InputError

    classes: dict[str, tuple[int, ...]] = {}
    for entry in given or ():
        name, _, numbers = entry.partition("=")
        if not name or not all(part.isdecimal() for part in numbers.split(",")) or name in classes:
            raise InputError(f"--class takes NAME=NUMBERS once for each name, such as tree=4,5, got {entry!r}")
        classes[name] = tuple(int(part) for part in numbers.split(","))
    return classes or None
