"""The commands for maps along edges: `upsample`, `solve` and `colorize`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from permutohedral.cli.pictures import Recursive, report
from permutohedral.cli.shared import Json, explained, positive

if TYPE_CHECKING:
    from permutohedral.pictures.batch import Outcome, Request
    from permutohedral.pictures.guided import Follow

Guide = Annotated[Path, typer.Argument(metavar="GUIDE", help="The photo, or the folder of those of the same names.")]
Output = Annotated[Path, typer.Argument(metavar="OUTPUT", help="Where the result goes, or a folder for several.")]
Space = Annotated[
    float | None,
    typer.Option("--sigma-space", min=0.01, metavar="PIXELS", help="Bandwidth in space.", show_default="by mode"),
]
Gray = Annotated[float, typer.Option(callback=positive, metavar="NUMBER", help="Bandwidth in brightness; white is 1.")]
Color = Annotated[float, typer.Option(callback=positive, metavar="NUMBER", help="Bandwidth in color, if GUIDE has it.")]
Confidence = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Picture or .npy, or folder: white, or 1, is certain; 0 unknown.")
]
Unknown = Annotated[float | None, typer.Option(metavar="NUMBER", help="This number in a map stands for unknown.")]
Smoothness = Annotated[
    float, typer.Option(min=0, metavar="NUMBER", help="Of the solver: smooth against near the data.")
]


class Mode(str, Enum):
    """What `permutohedral.upsample` takes."""

    gaussian = "gaussian"
    affine = "affine"
    solver = "solver"


def upsample(  # noqa: PLR0913 (one parameter for each option)
    coarse: Annotated[Path, typer.Argument(metavar="COARSE", help="A small map, or a folder of them.")],
    guide: Guide,
    output: Output,
    mode: Annotated[
        Mode, typer.Option(help="gaussian: fast; affine: the map is like the guide; solver: best, slower.")
    ] = Mode.solver,
    sigma_space: Space = None,
    sigma_gray: Gray = 0.12,
    sigma_color: Color = 0.05,
    sigma_time: Annotated[
        float | None,
        typer.Option(min=0.01, metavar="FRAMES", help="Bandwidth in time: folders are the frames of a video."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=0, metavar="NUMBER", help="Corrections, or iterations.", show_default="by mode")
    ] = None,
    smoothness: Smoothness = 0.3,
    confidence: Confidence = None,
    unknown: Unknown = None,
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Bring small maps to the size of photos, along their edges.

    Depth, flow, labels or color; pictures of 8 and 16 bits, TIFF of floats, and .npy [height, width] or [channels,
    height, width] keep their range. NaN and transparent pixels are unknown, and filled. A map that cannot be read is
    reported, the others are done, and the exit code is 1.

    With --sigma-time the files of the folders, in the order of their names, are the frames of a video, and what is seen
    in several of them is averaged. That is done by the mode gaussian, with some frames in memory at a time.

    Example: permutohedral upsample depth.png photo.jpg out.png

    Example: permutohedral upsample depth.npy photo.jpg out.npy --mode gaussian
    """
    with explained():
        from permutohedral.pictures.guided import EdgeSettings, Follow

        edges = EdgeSettings(sigma_space, sigma_gray, sigma_color)
        request = Follow(mode.value, guide, confidence, unknown, edges, steps, smoothness)
        if sigma_time is None:
            outcomes = _process(request, coarse, output, recursive, "upsampling")
        else:
            outcomes = _process_video(request, coarse, output, sigma_time)
    report(outcomes, as_json)


def solve(  # noqa: PLR0913 (one parameter for each option)
    target: Annotated[Path, typer.Argument(metavar="MAP", help="A map of the size of the photo, or a folder.")],
    guide: Guide,
    output: Output,
    confidence: Confidence = None,
    smoothness: Smoothness = 0.3,
    sigma_space: Space = None,
    sigma_gray: Gray = 0.12,
    sigma_color: Color = 0.05,
    unknown: Unknown = None,
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Smooth maps along the edges of photos, and fill holes.

    The bilateral solver, for depth, flow and the like: near the data where these are certain. Files are those of
    upsample.

    Example: permutohedral solve depth.png photo.jpg out.png --confidence certain.png

    Example: permutohedral solve depth.png photo.jpg out.png --unknown 0
    """
    with explained():
        from permutohedral.pictures.guided import EdgeSettings, Follow

        edges = EdgeSettings(sigma_space, sigma_gray, sigma_color)
        request = Follow("solve", guide, confidence, unknown, edges, None, smoothness)
        outcomes = _process(request, target, output, recursive, "solving")
    report(outcomes, as_json)


def colorize(  # noqa: PLR0913 (one parameter for each option)
    gray: Annotated[Path, typer.Argument(metavar="GRAY", help="A gray picture, or a folder of them.")],
    strokes: Annotated[Path, typer.Argument(metavar="STROKES", help="Strokes of color, or their folder.")],
    output: Output,
    sigma_space: Annotated[float, typer.Option(callback=positive, metavar="PIXELS", help="Bandwidth in space.")] = 8.0,
    sigma_gray: Gray = 0.06,
    smoothness: Smoothness = 0.1,
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Color gray pictures from a few strokes.

    STROKES has the size of GRAY: colored where a stroke is, and transparent or gray elsewhere.

    Example: permutohedral colorize gray.png strokes.png out.png
    """
    with explained():
        from permutohedral.pictures.batch import plan_files, process_files
        from permutohedral.pictures.guided import Colorize, EdgeSettings

        request = Colorize(strokes, EdgeSettings(sigma_space, sigma_gray), smoothness)
        outcomes = process_files(request, plan_files(gray, output, recursive), "coloring")
    report(outcomes, as_json)


def _process_video(request: Follow, source: Path, output: Path, sigma_time: float) -> list[Outcome]:
    from permutohedral.pictures.maps import plan_maps
    from permutohedral.pictures.video import upsample_video

    return upsample_video(request, plan_maps(source, output, False), sigma_time)


def _process(request: Request, source: Path, output: Path, recursive: bool, title: str) -> list[Outcome]:
    from permutohedral.pictures.batch import process_files
    from permutohedral.pictures.maps import plan_maps

    return process_files(request, plan_maps(source, output, recursive), title)
