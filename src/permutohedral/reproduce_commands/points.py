"""The command `reproduce points`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from permutohedral.reproduce_commands.options import (
    Accelerator,
    Configs,
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
    output_folder,
    tell,
)

if TYPE_CHECKING:
    from permutohedral.experiments.result import Result


def register(application: typer.Typer, explained: Explained) -> None:
    """Add the command; `explained` turns errors into messages."""

    @application.command("points")
    def points(  # noqa: PLR0913 (one parameter for each option)
        row: Rows = None,
        config: Configs = None,
        smoke: Smoke = False,
        seeds: Seeds = None,
        jobs: Jobs = 1,
        report_only: ReportOnly = False,
        output: Output = None,
        accelerator: Accelerator = "auto",
        devices: Devices = 1,
        resume: Resume = False,
    ) -> None:
        """Recognize solids from noisy, partly hidden point clouds.

        The clouds are made on the spot.

        Writes a JSON file for each row and seed, its weights, a report in Markdown and figures.

        Example: permutohedral reproduce points --smoke
        """
        with explained():
            from permutohedral.experiments.points_rows import (
                choose_points_rows,
                read_points_results,
                reproduce_points,
                with_seeds,
            )
            from permutohedral.experiments.training import RunOptions

            folder = output_folder(output, "points", smoke)
            options = RunOptions(folder, None, accelerator, devices, resume, progress=sys.stderr.isatty())
            if report_only:
                _report(read_points_results(folder), folder)
                return
            rows = with_seeds(choose_points_rows(row or (), config or (), smoke), seeds or (1 if smoke else 3))
            # the helping processes of a training on several devices have no results
            if list(reproduce_points(rows, options, tell, jobs)):
                _report(read_points_results(folder), folder)


def _report(results: list[Result], folder: Path) -> None:
    from permutohedral.points_report import points_table, write_points_report

    path = write_points_report(results, folder, command_line())
    typer.echo(points_table(results))
    typer.echo(f"wrote {path}", err=True)
