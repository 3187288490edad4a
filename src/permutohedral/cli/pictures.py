"""The commands for picture files: `filter`, `denoise`, `segment` and `demo`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from permutohedral.cli.arrays import (
    Memory,
    Physical,
    Resume,
    Scheduler,
    WorkerCount,
    check_sigmas,
    filter_array,
    parse_sigmas,
)
from permutohedral.cli.shared import STREAM, Json, SigmaRange, SigmaSpace, explained
from permutohedral.errors import InputError
from permutohedral.pictures.field_settings import FieldSettings

if TYPE_CHECKING:
    from permutohedral.pictures.batch import Outcome

_FIELD = FieldSettings()

Sources = Annotated[
    list[Path], typer.Argument(metavar="INPUT...", help="Pictures, folders of them, or - for one on stdin.")
]
Output = Annotated[
    Path, typer.Argument(metavar="OUTPUT", help="Where the result goes, - for stdout, or a folder for several.")
]


class Method(str, Enum):
    """What `permutohedral.bilateral_filter` takes."""

    separable = "separable"
    dense = "dense"
    exact = "exact"
    auto = "auto"


def _share(value: float) -> float:
    """The callback of an option that must lie between 0 and 1."""
    if not 0 < value < 1:
        raise typer.BadParameter("must lie between 0 and 1")
    return value


Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="Also take the folders in a folder.")]


def filter_pictures(  # noqa: PLR0913 (one parameter for each option)
    sources: Sources,
    output: Output,
    guide: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Take the edges from this picture, or from those of the same names in this folder."
        ),
    ] = None,
    sigma_space: Annotated[
        str,
        typer.Option(
            callback=check_sigmas, metavar="PIXELS", help="Bandwidth in space; of arrays one for each axis: 1,2,2."
        ),
    ] = "8.0",
    sigma_range: SigmaRange = 0.1,
    method: Annotated[
        Method,
        typer.Option(help="separable: fast; dense, exact: closer to the definition; auto: closest where as fast."),
    ] = Method.separable,
    halo: Annotated[
        int, typer.Option(min=0, metavar="STEPS", help="More lattice points, for accuracy; takes longer.")
    ] = 0,
    check: Annotated[bool, typer.Option("--check", help="Estimate the error, and tell if it is large.")] = False,
    backend: Annotated[
        str | None, typer.Option(metavar="NAME", help="Force a backend; see permutohedral backends.")
    ] = None,
    recursive: Recursive = False,
    axes: Annotated[
        str | None, typer.Option(metavar="LETTERS", help="Axes of an array, if it does not say: ZYX, CYX, TZYX.")
    ] = None,
    physical: Physical = False,
    workers: WorkerCount = 0,
    memory: Memory = None,
    scheduler: Scheduler = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Smooth pictures, volumes and arrays, and keep edges.

    A bilateral filter, or with --guide a joint bilateral one. The ending of OUTPUT names the format; on stdout it is
    that of the input. An alpha channel is kept as it is, and weights the colors. OUTPUT is replaced if it exists,
    and never half-written. One of several pictures that cannot be read is reported, the others are done, and the
    exit code is 1.

    If OUTPUT ends with .zarr, INPUT is one array of any size, a Zarr array, an OME-Zarr or a TIFF, and is filtered in
    tiles; the options from --axes on are for these.

    Example: permutohedral filter photo.png smooth.png --sigma-space 16

    Example: permutohedral filter depth.png sharp.png --guide photo.png

    Example: permutohedral filter noisy.png smooth.png --sigma-space 2 --method auto --check

    Example: permutohedral filter volume.zarr smooth.zarr --sigma-space 1,2,2 --workers 4 --memory 2GiB
    """
    bandwidths = parse_sigmas(sigma_space)
    of_pictures = guide is not None or method != Method.separable or halo or check or backend or recursive
    of_arrays = axes is not None or workers or memory is not None or scheduler is not None or resume or physical
    with explained():
        if _are_arrays(sources, output):
            if of_pictures:
                raise InputError("--guide, --method, --halo, --check, --backend and --recursive are for pictures")
            running = workers, memory, scheduler
            filter_array(sources, output, (bandwidths, sigma_range), axes, running, (resume, physical), as_json)
            return
        if of_arrays or len(bandwidths) != 1:
            raise InputError(
                "--axes, --physical, --workers, --memory, --scheduler, --resume and several bandwidths are for arrays, "
                "for which OUTPUT ends with .zarr"
            )
        import permutohedral as ph
        from permutohedral.pictures.batch import check_companions, plan_files, process_files
        from permutohedral.pictures.bilateral import Bilateral

        request = Bilateral(bandwidths[0], sigma_range, guide, method.value, halo, check)
        with ph.use_backend(backend):
            _check_stdout(output, as_json)
            files = plan_files(sources, output, recursive)
            check_companions(guide, files)
            outcomes = process_files(request, files, "filtering")
        if as_json:
            _print_json(outcomes)
        elif sys.stdout.isatty():
            for outcome in outcomes:
                if outcome.error is None:
                    typer.echo(outcome.describe())
    _tell_errors(outcomes)


def denoise(  # noqa: PLR0913 (one parameter for each option)
    sources: Sources,
    output: Output,
    sigma: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="NUMBER", help="Standard deviation of the noise; white is 255.", show_default="estimated"
        ),
    ] = None,
    strength: Annotated[
        float, typer.Option(min=0, metavar="NUMBER", help="Remove that many times the noise: 0.5 leaves more texture.")
    ] = 1.0,
    model: Annotated[
        str,
        typer.Option(metavar="NAME", help="auto, deep_small, deep_large, or pcnn_cnn (fast), pcnn, pcnn_gauss, cnn."),
    ] = "auto",
    reference: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The clean picture, or their folder, to measure PSNR and SSIM with."),
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Draw before and after here (a folder for many).")
    ] = None,
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Remove noise from pictures.

    Gray or color, of any size. OUTPUT is replaced if it exists, and never half-written. A picture that cannot
    be read is reported, the others are done, and the exit code is 1.

    Example: permutohedral denoise noisy.png clean.png --sigma 25
    """
    with explained():
        from permutohedral.models.image_denoiser import ImageDenoiser
        from permutohedral.pictures.batch import plan_files, process_files
        from permutohedral.pictures.denoise import Denoise

        request = Denoise(ImageDenoiser(model), sigma, reference, compare, strength)
        _check_stdout(output, as_json)
        files = plan_files(sources, output, recursive)
        request.check(files)
        outcomes = process_files(request, files, "denoising")
        if as_json:
            _print_json(outcomes)
        elif sys.stdout.isatty() or reference is not None:
            for outcome in outcomes:
                typer.echo(outcome.describe(), err=output == STREAM)
    _tell_errors(outcomes)


def segment(  # noqa: PLR0913 (one parameter for each option)
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PHOTO LABELS OUTPUT",
            help="Pictures, or three folders: labels have the names of the photos. With --probabilities no LABELS.",
        ),
    ],
    probabilities: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="A .npy file, floats [labels, height, width], or a folder of them."),
    ] = None,
    trimap: Annotated[
        bool, typer.Option("--trimap", help="LABELS is white foreground, black background, gray between.")
    ] = False,
    black_is_a_label: Annotated[
        bool, typer.Option("--black-is-a-label", help="Else black pixels of LABELS are unknown.")
    ] = False,
    overlay: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Draw labels over the photo here (a folder for many).")
    ] = None,
    certainty: Annotated[
        float, typer.Option(callback=_share, metavar="NUMBER", help="How probable a given label is, below 1.")
    ] = _FIELD.certainty,
    sigma_space: SigmaSpace = _FIELD.sigma_space,
    sigma_range: SigmaRange = _FIELD.sigma_range,
    strength: Annotated[
        float, typer.Option(min=0, metavar="NUMBER", help="How much pixels of like color agree.")
    ] = _FIELD.strength,
    smoothness: Annotated[
        float, typer.Option(min=0, metavar="NUMBER", help="How much pixels beside each other agree.")
    ] = _FIELD.smoothness,
    steps: Annotated[int, typer.Option(min=0, metavar="NUMBER", help="Steps of the mean field.")] = _FIELD.steps,
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Make labels follow the edges of photos.

    LABELS is a picture with a color for each label; black and transparent pixels are unknown. --trimap has settings of
    its own. docs/segmentation.md says how to choose the numbers. OUTPUT is replaced if it exists, and never
    half-written; in a folder results are PNG.

    Example: permutohedral segment photo.jpg labels.png out.png --overlay overlay.png

    Example: permutohedral segment photos/ out/ --probabilities network/
    """
    with explained():
        from permutohedral.pictures.batch import plan_files, process_files
        from permutohedral.pictures.segment import Segment, name_results

        if len(paths) != (3 if probabilities is None else 2) or (trimap and probabilities is not None):
            raise InputError("give PHOTO LABELS OUTPUT, or PHOTO OUTPUT with --probabilities, which take no --trimap")
        settings = FieldSettings(certainty, sigma_space, sigma_range, strength, smoothness, steps)
        labels = paths[1] if probabilities is None else None
        request = Segment(labels, probabilities, trimap, black_is_a_label, overlay, settings)
        output = paths[-1]
        _check_stdout(output, as_json)
        files = name_results(plan_files(paths[0], output, recursive), output)
        request.check(files)
        outcomes = process_files(request, files, "segmenting")
    report(outcomes, as_json)


def demo(
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the figure.")] = Path("out"),
    steps: Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Training steps.")] = 150,
) -> None:
    """Filter a picture, train a filter, try every denoiser.

    Takes under a minute and downloads nothing: the pictures come with scikit-image.

    Example: permutohedral demo --output out
    """
    with explained():
        from permutohedral.pictures.demo import run

        run(output, steps)


def _are_arrays(sources: Sequence[Path], output: Path) -> bool:
    """Whether the request is for arrays in stores, and not for pictures."""
    return output.suffix == ".zarr" or any(source.suffix == ".zarr" for source in sources)


def report(outcomes: Sequence[Outcome], as_json: bool) -> None:
    """Print what was asked for, or on a terminal a line for each file; end with code 1 if anything went wrong."""
    if as_json:
        _print_json(outcomes)
    elif sys.stdout.isatty():
        for outcome in outcomes:
            typer.echo(outcome.describe())
    _tell_errors(outcomes)


def _check_stdout(output: Path, as_json: bool) -> None:
    """A picture on stdout leaves no room for anything else, and is of no use on a terminal."""
    if output == STREAM and as_json:
        raise InputError("a picture and JSON cannot both go to stdout; name a file for the picture")
    if output == STREAM and sys.stdout.isatty():
        raise InputError("the picture would go to the terminal; send stdout to a file or a program, or name a file")


def _print_json(outcomes: Sequence[Outcome]) -> None:
    typer.echo(json.dumps([outcome.as_data() for outcome in outcomes], indent=2))


def _tell_errors(outcomes: Sequence[Outcome]) -> None:
    """Tell on stderr what each result lacks and what went wrong, and end with code 1 if anything did."""
    for outcome in outcomes:
        if (note := outcome.note()) is not None:
            typer.echo(f"note: {note}", err=True)
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    for error in errors:
        typer.echo(f"error: {error}", err=True)
    if errors:
        raise typer.Exit(1)
