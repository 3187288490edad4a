"""The command `reproduce mri`."""

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
    Smoke,
    command_line,
    output_folder,
    tell,
)

if TYPE_CHECKING:
    from permutohedral.experiments.result import Result


def register(application: typer.Typer, explained: Explained) -> None:
    """Add the command; `explained` turns errors into messages."""

    @application.command("mri")
    def mri(  # noqa: PLR0913 (one parameter for each option)
        row: Rows = None,
        config: Configs = None,
        smoke: Smoke = False,
        jobs: Jobs = 1,
        report_only: ReportOnly = False,
        output: Output = None,
        data: Data = None,
        accelerator: Accelerator = "auto",
        devices: Devices = 1,
        resume: Resume = False,
    ) -> None:
        """Make images of samples along radial and spiral trajectories.

        The samples are of the image, or of its spectrum.

        Writes a JSON file for each row, its weights, reports in Markdown and figures.

        Example: permutohedral reproduce mri --smoke
        """
        with explained():
            from permutohedral.experiments.mri_rows import choose_mri_rows, read_mri_results, reproduce_mri
            from permutohedral.experiments.training import RunOptions

            folder = output_folder(output, "mri", smoke)
            options = RunOptions(folder, data, accelerator, devices, resume, progress=sys.stderr.isatty())
            if report_only:
                _report(read_mri_results(folder), folder)
                return
            # the helping processes of a training on several devices have no results
            if list(reproduce_mri(choose_mri_rows(row or (), config or (), smoke), options, tell, jobs)):
                _report(read_mri_results(folder), folder)


def _report(results: list[Result], folder: Path) -> None:
    from permutohedral.mri_report import DOMAINS, by_domain, mri_tables, write_mri_report

    paths = write_mri_report(results, folder, command_line())
    for domain, rows in by_domain(results).items():
        typer.echo(f"{DOMAINS[domain]}: PSNR in dB / SSIM\n\n{mri_tables(rows)}\n")
    typer.echo(f"wrote {', '.join(map(str, paths))}", err=True)
