"""Commands for image files: `permutohedral image ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from permutohedral.apps.cli.shared import (
    Device,
    Json,
    Recursive,
    need_output,
    positive,
    reuse_freed_memory,
    run_job,
    split_paths,
)
from permutohedral.apps.io.settings import SegmentationSettings

image = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_SEGMENTATION = SegmentationSettings()

Paths = Annotated[
    list[Path],
    typer.Argument(
        callback=need_output, metavar="INPUT... OUTPUT",
        help="Images, folders of images, or - for stdin; then the result, - for stdout, or a folder for several.",
    ),
]  # fmt: skip
Output = Annotated[
    Path, typer.Argument(metavar="OUTPUT", help="Result, - for an image on stdout, or a folder for several.")
]
SigmaSpace = Annotated[
    float, typer.Option(callback=positive, metavar="PIXELS", help="Set the bandwidth in space; larger is smoother.")
]
SigmaColor = Annotated[
    float,
    typer.Option(callback=positive, metavar="NUMBER", help="Set the bandwidth in color; black is 0, white is 1."),
]
SigmaLuma = Annotated[
    float, typer.Option(callback=positive, metavar="NUMBER", help="Set the bandwidth in brightness; white is 1.")
]
Smoothness = Annotated[
    float, typer.Option(min=0, metavar="NUMBER", help="Weigh smoothness against the data; larger is smoother.")
]


def _share(value: float) -> float:
    """Check that an option lies between 0 and 1."""
    if not 0 < value < 1:
        raise typer.BadParameter("must lie between 0 and 1")
    return value


@image.command("filter")
def filter_image(
    paths: Paths,
    guide: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Keep the edges of this image, or of a folder with the same names."),
    ] = None,
    sigma_space: SigmaSpace = 8.0,
    sigma_color: SigmaColor = 0.1,
    method: Annotated[
        Literal["lattice", "dense", "exact", "auto"],
        typer.Option(
            help="Choose lattice (fast), dense or exact (more accurate), or auto: most accurate at equal speed."
        ),
    ] = "auto",
    halo: Annotated[
        int, typer.Option(min=0, metavar="STEPS", help="Add lattice points: slower and more accurate.")
    ] = 0,
    check: Annotated[bool, typer.Option("--check", help="Estimate the error, and warn if it is large.")] = False,
    backend: Annotated[
        str | None, typer.Option(metavar="NAME", help="Force a backend; see permutohedral backends.")
    ] = None,
    device: Device = "auto",
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Smooth images and keep their edges (bilateral filter).

    The ending of OUTPUT names the format; stdout has the format of the input. Alpha is kept, and weights the colors.
    Overwrites OUTPUT atomically. If one of several images fails, the others are still processed, and the exit code
    is 1. Needs the extra images.

    Example: permutohedral image filter photo.png smooth.png --sigma-space 16

    Example: permutohedral image filter depth.png sharp.png --guide photo.png

    Example: permutohedral image filter noisy.png smooth.png --sigma-space 2 --check
    """
    run_job("filter_image", split_paths(locals()))


@image.command()
def denoise(
    paths: Paths,
    sigma: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="NUMBER",
            help="State the standard deviation of the noise; white is 255.",
            show_default="estimated",
        ),
    ] = None,
    strength: Annotated[
        float,
        typer.Option(min=0, metavar="NUMBER", help="Multiply the noise that is removed; 0.5 leaves more texture."),
    ] = 1.0,
    device: Device = "auto",
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Remove noise from images.

    Gray or color, of any size. Overwrites OUTPUT atomically. If one of several images fails, the others are still
    processed, and the exit code is 1. Needs the extra images.

    Example: permutohedral image denoise noisy.png clean.png --sigma 25
    """
    arguments = split_paths(locals())
    reuse_freed_memory()
    run_job("denoise_image", arguments)


@image.command()
def segment(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PHOTO LABELS OUTPUT",
            help="Images, or three folders with files of the same names. With --probabilities no LABELS.",
        ),
    ],
    probabilities: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Read a .npy file of floats [labels, height, width], or a folder of them."),
    ] = None,
    trimap: Annotated[
        bool, typer.Option("--trimap", help="Read LABELS as white foreground, black background, and gray between.")
    ] = False,
    black_is_a_label: Annotated[
        bool, typer.Option("--black-is-a-label", help="Take black pixels of LABELS for a label, not for unknown.")
    ] = False,
    overlay: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Draw the labels over the photo into this image, or into a folder for several."
        ),
    ] = None,
    certainty: Annotated[
        float, typer.Option(callback=_share, metavar="NUMBER", help="Set the probability of a given label, below 1.")
    ] = _SEGMENTATION.certainty,
    sigma_space: SigmaSpace = _SEGMENTATION.sigma_space,
    sigma_color: SigmaColor = _SEGMENTATION.sigma_color,
    strength: Annotated[
        float, typer.Option(min=0, metavar="NUMBER", help="Weigh pixels of similar color.")
    ] = _SEGMENTATION.strength,
    smoothness: Annotated[
        float, typer.Option(min=0, metavar="NUMBER", help="Weigh neighboring pixels.")
    ] = _SEGMENTATION.smoothness,
    num_iterations: Annotated[
        int, typer.Option(min=0, metavar="NUMBER", help="Set the number of mean-field iterations.")
    ] = _SEGMENTATION.num_iterations,
    device: Device = "auto",
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="NUMBER",
            help="Compute this many photos of equal size in one call.",
            show_default="CPU 1, GPU 8",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip photos that have a result of the same options.")
    ] = False,
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Make rough labels follow the edges of photos.

    LABELS is an image with one color per label; black and transparent pixels are unknown. --trimap conflicts with
    --black-is-a-label, --certainty, --sigma-space, --sigma-color, --strength, --smoothness and --num-iterations.
    --probabilities conflicts with --black-is-a-label and --certainty. Overwrites OUTPUT atomically; results in a folder
    are PNG. Needs the extra images.

    Example: permutohedral image segment photo.jpg labels.png out.png --overlay overlay.png

    Example: permutohedral image segment photos/ out/ --probabilities network/
    """
    options = locals()
    if len(paths) != (3 if probabilities is None else 2) or (trimap and probabilities is not None):
        raise typer.BadParameter("pass PHOTO LABELS OUTPUT, or PHOTO OUTPUT --probabilities PATH without --trimap")
    inputs, *labels, output = options.pop("paths")
    given = labels[0] if labels else None
    options |= {"inputs": inputs, "output": output, "labels": None if trimap else given}
    run_job("segment_image", options | {"trimap": given if trimap else None})


@image.command()
def colorize(
    inputs: Annotated[Path, typer.Argument(metavar="GRAY", help="Gray image, or a folder of gray images.")],
    strokes: Annotated[
        Path, typer.Argument(metavar="STROKES", help="Image of strokes, or a folder with the same names.")
    ],
    output: Output,
    sigma_space: SigmaSpace = 8.0,
    sigma_luma: SigmaLuma = 0.06,
    smoothness: Smoothness = 0.1,
    device: Device = "auto",
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Color gray images from a few strokes.

    STROKES has the size of GRAY. It is colored on strokes, and transparent or gray elsewhere. Overwrites OUTPUT
    atomically. Needs the extra images.

    Example: permutohedral image colorize gray.png strokes.png out.png
    """
    run_job("colorize_image", locals())
