"""The command `reproduce mnist`."""

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
    from permutohedral.experiments.mnist import MnistConfig
    from permutohedral.experiments.result import Result
    from permutohedral.experiments.training import RunOptions


def register(application: typer.Typer, explained: Explained) -> None:
    """Add the command; `explained` turns errors into messages."""

    @application.command("mnist")
    def mnist(  # noqa: PLR0913 (one parameter for each option)
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
        """Recognize digits from scattered samples: the paper's Table (a).

        Writes a JSON file for each row and seed, its weights, a report in Markdown and a figure.

        Example: permutohedral reproduce mnist --smoke
        """
        with explained():
            from permutohedral.experiments.mnist_rows import choose_mnist_rows, read_results, with_seeds
            from permutohedral.experiments.training import RunOptions

            folder = output_folder(output, "mnist", smoke)
            options = RunOptions(folder, data, accelerator, devices, resume, progress=sys.stderr.isatty())
            if report_only:
                _report(read_results(folder), folder)
                return
            rows = choose_mnist_rows(row or (), config or (), smoke)
            _reproduce(with_seeds(rows, seeds or (1 if smoke else 3)), options, jobs)


def _reproduce(configs: list[MnistConfig], options: RunOptions, jobs: int) -> None:
    from permutohedral.experiments.mnist_rows import reproduce_mnist
    from permutohedral.mnist_report import write_mnist_report

    results = gather(
        reproduce_mnist(configs, options, jobs, tell),
        (config.name for config in configs),
        lambda known: write_mnist_report(known, options.output, command_line()),
    )
    if results:
        _report(results, options.output)


def _report(results: list[Result], folder: Path) -> None:
    from permutohedral.mnist_report import mnist_table, write_mnist_report

    path = write_mnist_report(results, folder, command_line())
    typer.echo(mnist_table(results))
    typer.echo(f"wrote {path}", err=True)
