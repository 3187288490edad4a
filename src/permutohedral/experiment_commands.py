"""The commands `reproduce` and `denoise`; `cli` adds them to the others."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from permutohedral import reproduce_commands
from permutohedral.reproduce_commands.options import Explained

if TYPE_CHECKING:
    from permutohedral.denoise import Outcome, Request


def register(application: typer.Typer, explained: Explained) -> None:
    """Add the commands; `explained` turns errors into messages."""
    reproduce_commands.register(application, explained)
    _add_denoise(application, explained)


def _add_denoise(application: typer.Typer, explained: Explained) -> None:
    @application.command()
    def denoise(
        source: Annotated[Path, typer.Argument(metavar="INPUT", help="A noisy picture, or a folder of them.")],
        output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Where the result goes, or the results.")],
        sigma: Annotated[
            float | None,
            typer.Option(
                min=0, metavar="NUMBER", help="Standard deviation of the noise; white is 255.", show_default="estimated"
            ),
        ] = None,
        model: Annotated[
            str,
            typer.Option(
                metavar="NAME", help="auto, deep_small, deep_large, or pcnn_cnn (fast), pcnn, pcnn_gauss, cnn."
            ),
        ] = "auto",
        reference: Annotated[
            Path | None,
            typer.Option(metavar="PATH", help="The clean picture, or their folder, to measure PSNR and SSIM with."),
        ] = None,
        compare: Annotated[
            Path | None, typer.Option(metavar="PATH", help="Draw before and after here (a folder for many).")
        ] = None,
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


def _denoise(source: Path, output: Path, request: Request) -> list[Outcome]:
    from rich.console import Console
    from rich.progress import Progress

    from permutohedral.denoise import denoise_file
    from permutohedral.image_files import plan_files

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
    model = "" if outcome.model is None else f", {outcome.model}"
    return f"{outcome.source}: noise {outcome.sigma:g}{model}, wrote {outcome.output}{scores}"
