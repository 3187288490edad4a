"""Commands for image files: `permutohedral image ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from permutohedral.apps.cli.shared import (
    Device,
    Json,
    need_output,
    positive,
    reuse_freed_memory,
    run_batch,
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
Guide = Annotated[Path, typer.Argument(metavar="GUIDE", help="Photo, or a folder of photos with the same names.")]
Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="Also process the folders in a folder.")]
SigmaSpace = Annotated[float, typer.Option(callback=positive, metavar="PIXELS", help="Bandwidth in space.")]
SigmaColor = Annotated[
    float, typer.Option(callback=positive, metavar="NUMBER", help="Bandwidth in color; black is 0, white is 1.")
]
SigmaSpaceByMode = Annotated[
    float | None,
    typer.Option("--sigma-space", min=0.01, metavar="PIXELS", help="Bandwidth in space.", show_default="by mode"),
]
SigmaLuma = Annotated[
    float, typer.Option(callback=positive, metavar="NUMBER", help="Bandwidth in brightness; white is 1.")
]
SigmaChroma = Annotated[
    float, typer.Option(callback=positive, metavar="NUMBER", help="Bandwidth in color, if GUIDE has colors.")
]
Weight = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Image or .npy file, or folder: white, or 1, is certain, 0 is unknown."),
]
Unknown = Annotated[float | None, typer.Option(metavar="NUMBER", help="Number that marks unknown pixels of a map.")]
Smoothness = Annotated[float, typer.Option(min=0, metavar="NUMBER", help="Weight of smoothness against the data.")]


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
        typer.Option(help="lattice: fast; dense, exact: more accurate; auto: most accurate at equal speed."),
    ] = "auto",
    halo: Annotated[
        int, typer.Option(min=0, metavar="STEPS", help="Extra lattice points: slower and more accurate.")
    ] = 0,
    check: Annotated[bool, typer.Option("--check", help="Estimate the error, and warn if it is large.")] = False,
    backend: Annotated[
        str | None, typer.Option(metavar="NAME", help="Force a backend; see permutohedral backends.")
    ] = None,
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
    run_batch("filter_image", split_paths(locals()))


@image.command()
def denoise(
    paths: Paths,
    sigma: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="NUMBER", help="Standard deviation of the noise; white is 255.", show_default="estimated"
        ),
    ] = None,
    strength: Annotated[
        float, typer.Option(min=0, metavar="NUMBER", help="Factor of the removed noise: 0.5 leaves more texture.")
    ] = 1.0,
    model: Annotated[
        str,
        typer.Option(metavar="NAME", help="auto, deep_small, or pcnn_cnn (fast), pcnn, pcnn_gauss, cnn."),
    ] = "auto",
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
    run_batch("denoise_image", arguments)


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
        typer.Option(metavar="PATH", help="A .npy file of floats [labels, height, width], or a folder of them."),
    ] = None,
    trimap: Annotated[
        bool, typer.Option("--trimap", help="LABELS has white foreground, black background, gray between.")
    ] = False,
    black_is_a_label: Annotated[
        bool, typer.Option("--black-is-a-label", help="Black pixels of LABELS are not unknown.")
    ] = False,
    overlay: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Image of the labels over the photo, or a folder for several.")
    ] = None,
    certainty: Annotated[
        float, typer.Option(callback=_share, metavar="NUMBER", help="Probability of a given label, below 1.")
    ] = _SEGMENTATION.certainty,
    sigma_space: SigmaSpace = _SEGMENTATION.sigma_space,
    sigma_color: SigmaColor = _SEGMENTATION.sigma_color,
    strength: Annotated[
        float, typer.Option(min=0, metavar="NUMBER", help="Weight of pixels of similar color.")
    ] = _SEGMENTATION.strength,
    smoothness: Annotated[
        float, typer.Option(min=0, metavar="NUMBER", help="Weight of neighboring pixels.")
    ] = _SEGMENTATION.smoothness,
    num_iterations: Annotated[
        int, typer.Option(min=0, metavar="NUMBER", help="Mean-field iterations.")
    ] = _SEGMENTATION.num_iterations,
    device: Device = "auto",
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="NUMBER", help="Photos of equal size in one call.", show_default="CPU 1, GPU 8"),
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
    sources, *labels, output = options.pop("paths")
    given = labels[0] if labels else None
    options |= {"sources": sources, "output": output, "labels": None if trimap else given}
    run_batch("segment_image", options | {"trimap": given if trimap else None})


@image.command()
def upsample(
    sources: Annotated[Path, typer.Argument(metavar="COARSE", help="Small map, or a folder of maps.")],
    guide: Guide,
    output: Output,
    mode: Annotated[
        Literal["gaussian", "affine", "solver"],
        typer.Option(help="gaussian: fast; affine: for maps that look like the guide; solver: best, slower."),
    ] = "solver",
    sigma_space: SigmaSpaceByMode = None,
    sigma_luma: SigmaLuma = 0.12,
    sigma_chroma: SigmaChroma = 0.05,
    num_iterations: Annotated[
        int | None, typer.Option(min=0, metavar="NUMBER", help="Corrections, or iterations.", show_default="by mode")
    ] = None,
    sampling: Annotated[
        Literal["area", "point"],
        typer.Option(
            help="area: samples of the map are means of cells; point: every n-th pixel, else results overshoot."
        ),
    ] = "area",
    smoothness: Smoothness = 0.3,
    sample_weight: Weight = None,
    unknown: Unknown = None,
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Upsample small maps to the size of photos, along their edges.

    Maps of depth, flow, labels or color: images of 8 and 16 bits, TIFF of floats, and .npy [height, width] or
    [channels, height, width]. Results keep the units. NaN and transparent pixels are filled. Overwrites OUTPUT
    atomically. If one of several maps fails, the others are still processed, and the exit code is 1.

    Needs the extra images.

    Example: permutohedral image upsample depth.png photo.jpg out.png

    Example: permutohedral image upsample depth.npy photo.jpg out.npy --mode gaussian
    """
    run_batch("upsample_map", locals())


@image.command()
def solve(
    sources: Annotated[Path, typer.Argument(metavar="MAP", help="Map of the size of the photo, or a folder of maps.")],
    guide: Guide,
    output: Output,
    sample_weight: Weight = None,
    smoothness: Smoothness = 0.3,
    sigma_space: SigmaSpace = 8.0,
    sigma_luma: SigmaLuma = 0.12,
    sigma_chroma: SigmaChroma = 0.05,
    unknown: Unknown = None,
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Smooth maps along the edges of photos, and fill holes.

    Takes the same maps as upsample, at the size of the photo. Overwrites OUTPUT atomically. Needs the extra images.

    Example: permutohedral image solve depth.png photo.jpg out.png --unknown 0
    """
    run_batch("solve_map", locals())


@image.command()
def colorize(
    sources: Annotated[Path, typer.Argument(metavar="GRAY", help="Gray image, or a folder of gray images.")],
    strokes: Annotated[
        Path, typer.Argument(metavar="STROKES", help="Image of strokes, or a folder with the same names.")
    ],
    output: Output,
    sigma_space: SigmaSpace = 8.0,
    sigma_luma: SigmaLuma = 0.06,
    smoothness: Smoothness = 0.1,
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Color gray images from a few strokes.

    STROKES has the size of GRAY. It is colored on strokes, and transparent or gray elsewhere. Overwrites OUTPUT
    atomically. Needs the extra images.

    Example: permutohedral image colorize gray.png strokes.png out.png
    """
    run_batch("colorize_image", locals())
