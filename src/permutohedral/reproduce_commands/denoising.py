"""The command `reproduce denoising`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from permutohedral.reproduce_commands.options import (
    Accelerator,
    Configs,
    Data,
    Devices,
    Explained,
    Output,
    Resume,
    Rows,
    Smoke,
    command_line,
    output_folder,
    tell,
)

if TYPE_CHECKING:
    from permutohedral.experiments.denoising import DenoisingConfig
    from permutohedral.experiments.training import RunOptions


def register(application: typer.Typer, explained: Explained) -> None:
    """Add the command; `explained` turns errors into messages."""

    @application.command("denoising")
    def denoising(  # noqa: PLR0913 (one parameter for each option)
        row: Rows = None,
        config: Configs = None,
        smoke: Smoke = False,
        cross_validate: Annotated[
            bool, typer.Option("--cross-validate", help="First choose the scale of the features on the val images.")
        ] = False,
        output: Output = None,
        data: Data = None,
        accelerator: Accelerator = "auto",
        devices: Devices = 1,
        resume: Resume = False,
    ) -> None:
        """Remove noise from photographs: the paper's Table (b).

        Writes a JSON file for each row, its weights, a report in Markdown and figures.

        Example: permutohedral reproduce denoising --smoke
        """
        with explained():
            from permutohedral.experiments.reproduce import choose_rows
            from permutohedral.experiments.training import RunOptions

            folder = output_folder(output, "denoising", smoke)
            options = RunOptions(folder, data, accelerator, devices, resume, progress=sys.stderr.isatty())
            _reproduce(choose_rows(row or (), config or (), smoke), options, cross_validate)


def _reproduce(configs: list[DenoisingConfig], options: RunOptions, cross_validates: bool) -> None:
    from permutohedral.experiments.reproduce import cross_validate, reproduce, with_scale
    from permutohedral.experiments.result import write_result
    from permutohedral.report import denoising_table, write_denoising_report

    if cross_validates:
        scales = cross_validate(configs[0], options, configs[0].test_images, tell)
        write_result(scales, options.output / "scales.json")
        configs = [with_scale(config, scales) for config in configs]
    results = reproduce(configs, options, tell)
    # the helping processes of a training on several devices have none
    if results:
        typer.echo(denoising_table(results))
        path = write_denoising_report(results, options, command_line())
        typer.echo(f"wrote {path}", err=True)
