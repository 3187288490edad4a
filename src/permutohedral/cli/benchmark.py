"""The command `benchmark`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from permutohedral.cli.shared import explained


def benchmark(  # noqa: PLR0913 (one parameter for each option)
    only: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Names of workloads with commas between them.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu or cuda.")] = "cpu",
    threads: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="Thread counts, such as 1,2.", show_default="1, all cores")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Rounds of repetitions.")] = 7,
    peers: Annotated[bool, typer.Option(help="Also run the other libraries that are installed.")] = True,
    tests: Annotated[bool, typer.Option("--tests", help="Run the operators' tests first.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder with bsds500/test.", envvar="PERMUTOHEDRAL_DATA", show_envvar=True),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything here.")] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write one line for each figure here.")
    ] = None,
    chart: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Draw a chart here; may be repeated.")
    ] = None,
) -> None:
    """Time the operators beside their peers, with their errors.

    An operator whose result disagrees with the reference is not timed, and the exit code is 1.

    Example: permutohedral benchmark --only W1,W2 --threads 1,2 --json benchmark.json --chart benchmark.svg
    """
    with explained():
        from permutohedral.benchmarks import command, runner

        options = runner.Options(
            only=None if only is None else only.split(","),
            device=device,
            threads=command.parse_threads(threads),
            repeats=repeats,
            with_peers=peers,
            data=command.data_folder(data),
            tests=tests,
        )
        code = command.main(options, json_file, csv_file, chart or [])
    if code:
        raise typer.Exit(code)
