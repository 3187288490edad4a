"""The commands `reproduce` and `denoise`; `cli` adds them to the others."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from permutohedral.denoise import Outcome, Request
    from permutohedral.experiments.denoising import DenoisingConfig
    from permutohedral.experiments.mnist import MnistConfig
    from permutohedral.experiments.result import Result
    from permutohedral.experiments.training import RunOptions

Explained = Callable[[], AbstractContextManager[None]]


class Experiment(str, Enum):
    """The tables that can be reproduced."""

    denoising = "denoising"
    mnist = "mnist"


Data = Annotated[
    Path | None,
    typer.Option(help="Folder of the datasets; without it they are downloaded.", envvar="PERMUTOHEDRAL_DATA"),
]


def register(application: typer.Typer, explained: Explained) -> None:
    """Add the commands; `explained` turns errors into messages."""
    _add_reproduce(application, explained)
    _add_denoise(application, explained)


def _add_reproduce(application: typer.Typer, explained: Explained) -> None:
    @application.command()
    def reproduce(  # noqa: PLR0913 (one parameter for each option)
        experiment: Annotated[Experiment, typer.Argument(help="Which table of the paper.")],
        row: Annotated[list[str] | None, typer.Option(help="Only this row; may be repeated.")] = None,
        config: Annotated[list[Path] | None, typer.Option(help="A row of your own, as YAML; may be repeated.")] = None,
        smoke: Annotated[bool, typer.Option("--smoke", help="A few small images, under a minute.")] = False,
        cross_validate: Annotated[
            bool, typer.Option("--cross-validate", help="First choose the scale of the features on the val images.")
        ] = False,
        seeds: Annotated[
            int | None,
            typer.Option(min=1, help="mnist: how often to train each row.", show_default="3, 1 with --smoke"),
        ] = None,
        jobs: Annotated[int, typer.Option(min=1, help="mnist: how many trainings run side by side.")] = 1,
        report_only: Annotated[
            bool, typer.Option("--report-only", help="mnist: train nothing, report what the output folder holds.")
        ] = False,
        output: Annotated[Path | None, typer.Option(help="Folder for all results.", show_default="out/...")] = None,
        data: Data = None,
        accelerator: Annotated[str, typer.Option(help="auto, cpu or gpu.")] = "auto",
        devices: Annotated[int, typer.Option(min=1, help="How many to train on.")] = 1,
        resume: Annotated[bool, typer.Option("--resume", help="Keep rows that are done, go on with the rest.")] = False,
    ) -> None:
        """Train and evaluate the rows of a table, and print them beside the paper's.

        Writes a JSON file for each row, its weights, a report in Markdown and figures.

        Example: permutohedral reproduce denoising --smoke
        """
        with explained():
            from permutohedral.experiments.mnist_rows import choose_mnist_rows, read_results, with_seeds
            from permutohedral.experiments.reproduce import choose_rows
            from permutohedral.experiments.training import RunOptions

            folder = output or Path("out") / (experiment.value + ("-smoke" if smoke else ""))
            options = RunOptions(folder, data, accelerator, devices, resume, progress=sys.stderr.isatty())
            if experiment is Experiment.mnist and report_only:
                _report_mnist(read_results(folder), folder)
                return
            if experiment is Experiment.mnist:
                rows = choose_mnist_rows(row or (), config or (), smoke)
                _reproduce_mnist(with_seeds(rows, seeds or (1 if smoke else 3)), options, jobs)
                return
            _reproduce_denoising(choose_rows(row or (), config or (), smoke), options, cross_validate)


def _add_denoise(application: typer.Typer, explained: Explained) -> None:
    @application.command()
    def denoise(
        source: Annotated[Path, typer.Argument(metavar="INPUT", help="A noisy picture, or a folder of them.")],
        output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Where the result goes, or the results.")],
        sigma: Annotated[
            float | None,
            typer.Option(min=0, help="Standard deviation of the noise; white is 255.", show_default="estimated"),
        ] = None,
        model: Annotated[str, typer.Option(help="pcnn_cnn, pcnn, pcnn_gauss or cnn.")] = "pcnn_cnn",
        reference: Annotated[
            Path | None, typer.Option(help="The clean picture, or their folder, to measure PSNR and SSIM with.")
        ] = None,
        compare: Annotated[Path | None, typer.Option(help="Draw before and after here (a folder for many).")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    ) -> None:
        """Remove noise from a picture, or from all pictures in a folder.

        Gray or color, of any size. OUTPUT is replaced if it exists, and never half-written. A picture that cannot
        be read is reported, the others are done, and the exit code is 1.

        Example: permutohedral denoise noisy.png clean.png --sigma 25
        """
        with explained():
            from permutohedral.denoise import Request
            from permutohedral.models.image_denoiser import ImageDenoiser

            request = Request(ImageDenoiser(model), sigma, reference, compare)
            outcomes = _denoise(source, output, request)
            if as_json:
                typer.echo(json.dumps([outcome.as_data() for outcome in outcomes], indent=2))
            elif sys.stdout.isatty() or reference is not None:
                for outcome in outcomes:
                    typer.echo(_describe(outcome))
            for outcome in outcomes:
                if outcome.error is not None:
                    typer.echo(f"error: {outcome.error}", err=True)
        if any(outcome.error is not None for outcome in outcomes):
            raise typer.Exit(1)


def _reproduce_denoising(configs: list[DenoisingConfig], options: RunOptions, cross_validates: bool) -> None:
    from permutohedral.experiments.reproduce import cross_validate, reproduce, with_scale
    from permutohedral.experiments.result import write_result
    from permutohedral.experiments.training import is_first_process
    from permutohedral.report import denoising_table, write_denoising_report

    def report(line: str) -> None:
        if is_first_process():
            typer.echo(line, err=True)

    if cross_validates:
        scales = cross_validate(configs[0], options, configs[0].test_images, report)
        write_result(scales, options.output / "scales.json")
        configs = [with_scale(config, scales) for config in configs]
    results = reproduce(configs, options, report)
    # the helping processes of a training on several devices have none
    if results:
        typer.echo(denoising_table(results))
        path = write_denoising_report(results, options, shlex.join(["permutohedral", *sys.argv[1:]]))
        typer.echo(f"wrote {path}", err=True)


def _reproduce_mnist(configs: list[MnistConfig], options: RunOptions, jobs: int) -> None:
    from permutohedral.experiments.mnist_rows import reproduce_mnist
    from permutohedral.experiments.training import is_first_process
    from permutohedral.report import write_mnist_report

    def report(line: str) -> None:
        if is_first_process():
            typer.echo(line, err=True)

    order = list(dict.fromkeys(config.name for config in configs))
    results: list[Result] = []
    for result in reproduce_mnist(configs, options, jobs, report):
        results = sorted([*results, result], key=lambda known: (order.index(known.name), known.seed))
        # after every row, so that an interrupted run leaves a report
        write_mnist_report(results, options.output, _command())
    if results:
        _report_mnist(results, options.output)


def _report_mnist(results: list[Result], folder: Path) -> None:
    from permutohedral.report import mnist_table, write_mnist_report

    path = write_mnist_report(results, folder, _command())
    typer.echo(mnist_table(results))
    typer.echo(f"wrote {path}", err=True)


def _command() -> str:
    """The command that trains anew what is reported."""
    return shlex.join(["permutohedral", *(word for word in sys.argv[1:] if word not in ("--resume", "--report-only"))])


def _denoise(source: Path, output: Path, request: Request) -> list[Outcome]:
    from rich.console import Console
    from rich.progress import Progress

    from permutohedral.denoise import denoise_file, plan_files

    files = plan_files(source, output)
    if len(files) > 1 and request.compare is not None:
        request.compare.mkdir(parents=True, exist_ok=True)
    outcomes = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("denoising", total=len(files))
        for number, (path, target) in enumerate(files):
            progress.update(bar, description=path.name)

            def advance(share: float, number: int = number) -> None:
                progress.update(bar, completed=number + share)

            outcomes.append(denoise_file(path, target, request, advance))
            progress.update(bar, completed=number + 1)
    return outcomes


def _describe(outcome: Outcome) -> str:
    if outcome.error is not None:
        return f"{outcome.source}: failed"
    scores = ""
    if outcome.psnr is not None:
        scores += f", PSNR {outcome.psnr[0]:.2f} to {outcome.psnr[1]:.2f} dB"
    if outcome.ssim is not None:
        scores += f", SSIM {outcome.ssim[0]:.4f} to {outcome.ssim[1]:.4f}"
    return f"{outcome.source}: noise {outcome.sigma:g}, wrote {outcome.output}{scores}"
