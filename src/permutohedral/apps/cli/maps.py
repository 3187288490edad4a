"""Commands for maps along the edges of photos: `permutohedral map ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from permutohedral.apps.cli.images import Output, SigmaLuma, SigmaSpace, Smoothness
from permutohedral.apps.cli.shared import Device, Json, Recursive, positive, run_job

map_ = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Guide = Annotated[Path, typer.Argument(metavar="GUIDE", help="Photo, or a folder of photos with the same names.")]
SigmaSpaceByMode = Annotated[
    float | None,
    typer.Option(
        "--sigma-space", min=0.01, metavar="PIXELS", help="Set the bandwidth in space; larger is smoother.",
        show_default="by mode",
    ),
]  # fmt: skip
SigmaChroma = Annotated[
    float, typer.Option(callback=positive, metavar="NUMBER", help="Set the bandwidth in color, if GUIDE has colors.")
]
Weight = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH", help="Read an image or .npy file, or a folder: white, or 1, is certain, 0 is unknown.",
        show_default="all certain",
    ),
]  # fmt: skip
Unknown = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", help="Take this number for unknown pixels of a map.", show_default="none"),
]


@map_.command()
def upsample(
    inputs: Annotated[Path, typer.Argument(metavar="COARSE", help="Small map, or a folder of maps.")],
    guide: Guide,
    output: Output,
    mode: Annotated[
        Literal["gaussian", "affine", "solver"],
        typer.Option(
            help="Choose gaussian (fast), affine (for maps that look like the guide), or solver (best, slower)."
        ),
    ] = "solver",
    sigma_space: SigmaSpaceByMode = None,
    sigma_luma: SigmaLuma = 0.12,
    sigma_chroma: SigmaChroma = 0.05,
    num_iterations: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="NUMBER", help="Set the number of corrections or iterations.", show_default="by mode"
        ),
    ] = None,
    sampling: Annotated[
        Literal["area", "point"],
        typer.Option(help="State how the map was made: area (means of cells) or point (every n-th pixel)."),
    ] = "area",
    smoothness: Smoothness = 0.3,
    sample_weight: Weight = None,
    unknown: Unknown = None,
    device: Device = "auto",
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Upsample small maps to the size of photos, along their edges.

    Maps of depth, flow, labels or color: images of 8 and 16 bits, TIFF of floats, and .npy [height, width] or
    [channels, height, width]. Results keep the units. NaN and transparent pixels are filled. Overwrites OUTPUT
    atomically. If one of several maps fails, the others are still processed, and the exit code is 1.

    Needs the extra images.

    Example: permutohedral map upsample depth.png photo.jpg out.png

    Example: permutohedral map upsample depth.npy photo.jpg out.npy --mode gaussian
    """
    run_job("upsample_map", locals())


@map_.command()
def solve(
    inputs: Annotated[Path, typer.Argument(metavar="MAP", help="Map of the size of the photo, or a folder of maps.")],
    guide: Guide,
    output: Output,
    sample_weight: Weight = None,
    smoothness: Smoothness = 0.3,
    sigma_space: SigmaSpace = 8.0,
    sigma_luma: SigmaLuma = 0.12,
    sigma_chroma: SigmaChroma = 0.05,
    unknown: Unknown = None,
    device: Device = "auto",
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Smooth maps along the edges of photos, and fill holes.

    Takes the same maps as upsample, at the size of the photo. Overwrites OUTPUT atomically. Needs the extra images.

    Example: permutohedral map solve depth.png photo.jpg out.png --unknown 0
    """
    run_job("solve_map", locals())


@map_.command()
def fill(
    inputs: Annotated[Path, typer.Argument(metavar="MAP", help="Map of the size of the photo, or a folder of maps.")],
    guide: Guide,
    output: Output,
    sample_weight: Weight = None,
    smoothness: Smoothness = 0.3,
    sigma_space: SigmaSpace = 8.0,
    sigma_luma: SigmaLuma = 0.12,
    sigma_chroma: SigmaChroma = 0.05,
    unknown: Unknown = None,
    device: Device = "auto",
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Fill the holes of maps along the edges of photos.

    Takes the same maps as solve, and keeps every known number. Holes are NaN, transparent, --unknown, or of weight 0.
    Overwrites OUTPUT atomically. Needs the extra images.

    Example: permutohedral map fill depth.png photo.jpg out.png --unknown 0
    """
    run_job("fill_map", locals())
