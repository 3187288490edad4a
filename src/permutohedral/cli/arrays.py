"""What commands share that work on data beyond memory: where their tasks run, and going on after an interruption."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from permutohedral.cli.shared import positive
from permutohedral.errors import InputError

WorkerCount = Annotated[
    int, typer.Option("--workers", min=0, metavar="NUMBER", help="Processes to start; 0: this one does it.")
]
Memory = Annotated[str | None, typer.Option(metavar="SIZE", help="Limit of a worker's memory, such as 2GiB.")]
Scheduler = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Of a Dask cluster that does it instead.")]
Physical = Annotated[
    bool, typer.Option("--physical", help="--sigma-space is in the units of an OME-Zarr, not samples.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")]


def parse_sigmas(text: str) -> tuple[float, ...]:
    """Positive numbers between commas.

    >>> parse_sigmas("1,2.5,2.5")
    (1.0, 2.5, 2.5)
    """
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no number, or numbers between commas") from error
    return tuple(positive(number) for number in numbers)


def check_sigmas(text: str) -> str:
    """The callback of an option that `parse_sigmas` takes."""
    parse_sigmas(text)
    return text


def filter_array(
    sources: list[Path],
    output: Path,
    sigmas: tuple[tuple[float, ...], float],
    axes: str | None,
    running: tuple[int, str | None, str | None],
    options: tuple[bool, bool],
    as_json: bool,
) -> None:
    """Filter one array into a store, and tell about it; `options` are those to go on, and for physical bandwidths."""
    from permutohedral.arrays import bilateral
    from permutohedral.arrays.workers import Workers

    if len(sources) != 1:
        raise InputError("arrays are filtered one by one: give one INPUT, and OUTPUT")
    started = time.perf_counter()
    tiling = bilateral.filter_array(sources[0], output, *sigmas, axes, Workers(*running), *options)
    seconds = time.perf_counter() - started
    shape, tiles = tiling.source.shape, sum(1 for _ in tiling.indices())
    if as_json:
        told = {"input": str(sources[0]), "output": str(output), "shape": shape, "axes": tiling.source.axes}
        typer.echo(json.dumps([{**told, "tiles": tiles, "seconds": round(seconds, 3)}], indent=2))
    elif sys.stdout.isatty():
        extents = " x ".join(map(str, shape))
        typer.echo(f"{sources[0]} -> {output}: {extents} ({tiling.source.axes}), {tiles} tiles in {seconds:.1f} s")
