"""Options and helpers that the experiments share."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from permutohedral.experiments.result import Result

Explained = Callable[[], AbstractContextManager[None]]

Rows = Annotated[
    list[str] | None,
    typer.Option("--row", metavar="NAME", help="Only this row; may be repeated. A wrong name tells the right ones."),
]
Configs = Annotated[
    list[Path] | None, typer.Option("--config", metavar="FILE", help="A row of your own, as YAML; may be repeated.")
]
Smoke = Annotated[bool, typer.Option("--smoke", help="The whole way on little data, under a minute.")]
Seeds = Annotated[
    int | None,
    typer.Option(min=1, metavar="NUMBER", help="How often to train each row.", show_default="3, 1 with --smoke"),
]
Jobs = Annotated[int, typer.Option(min=1, metavar="NUMBER", help="How many trainings run side by side.")]
ReportOnly = Annotated[bool, typer.Option("--report-only", help="Train nothing, report what the output folder holds.")]
Output = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for all results.", show_default="out/...")]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Folder of the datasets; without it they are downloaded.", envvar="PERMUTOHEDRAL_DATA"
    ),
]
Accelerator = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu or gpu.")]
Devices = Annotated[int, typer.Option(min=1, metavar="NUMBER", help="How many to train on.")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep rows that are done, go on with the rest.")]


def output_folder(output: Path | None, experiment: str, smoke: bool) -> Path:
    """Where the results go if no folder is given.

    >>> output_folder(None, "mnist", smoke=True).as_posix()
    'out/mnist-smoke'
    """
    return output or Path("out") / (experiment + ("-smoke" if smoke else ""))


def tell(line: str) -> None:
    """Print a line about the progress on stderr, from the process that evaluates and writes."""
    from permutohedral.experiments.training import is_first_process

    if is_first_process():
        typer.echo(line, err=True)


def gather(results: Iterable[Result], names: Iterable[str], write: Callable[[list[Result]], object]) -> list[Result]:
    """All results in the order of their rows' `names`; `write` is called with those known after every one.

    So an interrupted run leaves a report.
    """
    order = list(dict.fromkeys(names))
    known: list[Result] = []
    for result in results:
        known = sorted([*known, result], key=lambda one: (order.index(one.name), one.seed))
        write(known)
    return known


def command_line() -> str:
    """The command that makes anew what is reported."""
    return shlex.join(["permutohedral", *(word for word in sys.argv[1:] if word not in ("--resume", "--report-only"))])
