"""The command `filter`."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from permutohedral.reproduce_commands.options import Explained

if TYPE_CHECKING:
    from permutohedral.filter_files import Outcome, Request


def positive(value: float) -> float:
    """The callback of an option that must be a positive number."""
    if not (math.isfinite(value) and value > 0):
        raise typer.BadParameter("must be positive and finite")
    return value


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


def register(application: typer.Typer, explained: Explained) -> None:
    """Add the command; `explained` turns errors into messages."""

    @application.command("filter")
    def filter_command(
        source: Annotated[Path, typer.Argument(metavar="INPUT", help="The picture to filter, or a folder of them.")],
        output: Annotated[
            Path, typer.Argument(metavar="OUTPUT", help="Where the result goes, or the folder for the results.")
        ],
        guide: Annotated[
            Path | None,
            typer.Option(
                metavar="PATH", help="Take the edges from this picture, or from those of the same names in this folder."
            ),
        ] = None,
        sigma_space: SigmaSpace = 8.0,
        sigma_range: SigmaRange = 0.1,
        backend: Annotated[
            str | None, typer.Option(metavar="NAME", help="Force a backend; see permutohedral backends.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    ) -> None:
        """Smooth a picture, or a folder of them, and keep the edges.

        A bilateral filter, or with --guide a joint bilateral one. The ending of OUTPUT names the format; an alpha
        channel is kept as it is. OUTPUT is replaced if it exists, and never half-written. A picture of a folder that
        cannot be read is reported, the others are done, and the exit code is 1.

        Example: permutohedral filter photo.png smooth.png --sigma-space 16

        Example: permutohedral filter depth.png sharp.png --guide photo.png
        """
        with explained():
            from permutohedral.filter_files import Request

            outcomes = _filter(source, output, Request(sigma_space, sigma_range, guide), backend)
            if as_json:
                typer.echo(json.dumps([outcome.as_data() for outcome in outcomes], indent=2))
            elif sys.stdout.isatty():
                for outcome in outcomes:
                    if outcome.error is None:
                        size = f"{outcome.width} x {outcome.height} pixels"
                        typer.echo(f"wrote {outcome.output}: {size}, filtered in {outcome.seconds:.2f} s")
            for outcome in outcomes:
                if outcome.error is not None:
                    typer.echo(f"error: {outcome.error}", err=True)
        if any(outcome.error is not None for outcome in outcomes):
            raise typer.Exit(1)


def _filter(source: Path, output: Path, request: Request, backend: str | None) -> list[Outcome]:
    from rich.console import Console
    from rich.progress import Progress

    import permutohedral as ph
    from permutohedral.filter_files import filter_file
    from permutohedral.image_files import plan_files

    outcomes = []
    files = plan_files(source, output)
    console = Console(stderr=True)
    with (
        ph.use_backend(backend),
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        # of a single file the share that is done is not known
        bar = progress.add_task("filtering", total=len(files) if len(files) > 1 else None)
        for path, target in files:
            progress.update(bar, description=path.name)
            outcomes.append(filter_file(path, target, request))
            progress.update(bar, advance=1)
    return outcomes
