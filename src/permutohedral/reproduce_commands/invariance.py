"""The commands `reproduce rotation` and `reproduce scale`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from permutohedral.reproduce_commands.options import (
    Accelerator,
    Configs,
    Data,
    Devices,
    Explained,
    Jobs,
    Output,
    ReportOnly,
    Resume,
    Rows,
    Seeds,
    Smoke,
    command_line,
    gather,
    output_folder,
    tell,
)

if TYPE_CHECKING:
    from permutohedral.experiments.invariance import InvarianceConfig
    from permutohedral.experiments.result import Result
    from permutohedral.experiments.training import RunOptions
    from permutohedral.models.invariance import Transformation

_HELP: dict[Transformation, str] = {
    "rotation": "Recognize rotated digits, having seen upright ones.",
    "scale": "Recognize scaled digits, having seen them in one size.",
}


def register(application: typer.Typer, explained: Explained) -> None:
    """Add the commands; `explained` turns errors into messages."""
    for transformation in _HELP:
        _add(application, explained, transformation)


def _add(application: typer.Typer, explained: Explained, transformation: Transformation) -> None:
    help_text = (
        f"{_HELP[transformation]}\n\nWrites a JSON file for each row and seed, a report in Markdown and a figure.\n\n"
        f"Example: permutohedral reproduce {transformation} --smoke"
    )

    @application.command(transformation, help=help_text)
    def invariance(  # noqa: PLR0913 (one parameter for each option)
        row: Rows = None,
        config: Configs = None,
        smoke: Smoke = False,
        seeds: Seeds = None,
        jobs: Jobs = 1,
        report_only: ReportOnly = False,
        output: Output = None,
        data: Data = None,
        accelerator: Accelerator = "auto",
        devices: Devices = 1,
        resume: Resume = False,
    ) -> None:
        with explained():
            from permutohedral.experiments.invariance_rows import choose_invariance_rows, read_invariance_results
            from permutohedral.experiments.rows import with_seeds
            from permutohedral.experiments.training import RunOptions

            folder = output_folder(output, transformation, smoke)
            options = RunOptions(folder, data, accelerator, devices, resume, progress=sys.stderr.isatty())
            if report_only:
                _report(read_invariance_results(transformation, folder), folder)
                return
            rows = choose_invariance_rows(transformation, row or (), config or (), smoke)
            _reproduce(with_seeds(rows, seeds or (1 if smoke else 3)), options, jobs)


def _reproduce(configs: list[InvarianceConfig], options: RunOptions, jobs: int) -> None:
    from permutohedral.experiments.invariance_rows import reproduce_invariance
    from permutohedral.invariance_report import write_invariance_report

    results = gather(
        reproduce_invariance(configs, options, jobs, tell),
        (config.name for config in configs),
        lambda known: write_invariance_report(known, options.output, command_line()),
    )
    if results:
        _report(results, options.output)


def _report(results: list[Result], folder: Path) -> None:
    from permutohedral.invariance_report import accuracy_table, change_table, write_invariance_report

    path = write_invariance_report(results, folder, command_line())
    typer.echo(accuracy_table(results))
    typer.echo(f"\n{change_table(results)}")
    typer.echo(f"wrote {path}", err=True)
