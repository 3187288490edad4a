"""`permutohedral figure ...`: pictures of the lattice, from the lattice."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from permutohedral.cli.shared import SigmaRange, SigmaSpace, explained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Outputs = Annotated[list[Path], typer.Argument(metavar="OUTPUT", help="Files to draw, ending in .svg, .png or .pdf.")]
Points = Annotated[
    int, typer.Option("--points", min=1, max=200, metavar="NUMBER", help="How many points are scattered.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, metavar="NUMBER", help="Of the places of the points.")]
Size = Annotated[
    int, typer.Option("--size", min=1, max=4, metavar="NUMBER", help="s, the reach of the filter in lattice steps.")
]

_SUMMARIES = {
    "splat": "Points add their values to the corners of their simplices.",
    "convolve": "A filter gathers its neighbors on the lattice.",
    "slice": "Points read results from the corners of their simplices.",
    "steps": "All three side by side: Figure 1 of the paper.",
}


def add_to(application: typer.Typer) -> None:
    """Add `figure` with its kinds."""
    figures = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    for kind, summary in _SUMMARIES.items():
        _add_step(figures, kind, summary)
    figures.command("filter")(_draw_filter)
    figures.command("neighborhood")(_draw_neighborhood)
    figures.command("simplices")(_draw_simplices)
    figures.command("levels")(_draw_levels)
    application.add_typer(figures, name="figure", help="Draw the lattice, its operations, filters and simplices.")


def _draw(outputs: list[Path], make: Callable[[], Figure]) -> None:
    from permutohedral.figures.canvas import DPI, MARGIN, check_paths
    from permutohedral.reporting.figure import save_figure

    check_paths(outputs)
    save_figure(make(), outputs, DPI, MARGIN)
    if sys.stdout.isatty():
        typer.echo("wrote " + ", ".join(map(str, outputs)))


def _add_step(figures: typer.Typer, kind: str, summary: str) -> None:
    example = f"Example: permutohedral figure {kind} {kind}.svg {kind}.png"

    @figures.command(kind, help=f"{summary}\n\n{example}")
    def step(outputs: Outputs, points: Points = 14, seed: Seed = 1, size: Size = 2) -> None:
        with explained():
            from permutohedral.figures import STEPS, draw_steps, make_scene

            steps = STEPS if kind == "steps" else (kind,)
            _draw(outputs, lambda: draw_steps(make_scene(points, seed, size), steps))


def _draw_filter(
    outputs: Outputs,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A .safetensors or .npy file.", show_default="the trained denoiser that is shipped"
        ),
    ] = None,
    tensor: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the tensor in it, [taps] or [taps, inputs, outputs]."),
    ] = None,
) -> None:
    """A learned filter: in 2 dimensions whole, in 3 as slices.

    The number of taps tells dimension and size. Without --weights it is the denoiser that comes with the package.

    Example: permutohedral figure filter filter.svg

    Example: permutohedral figure filter filter.svg --weights network.safetensors --tensor layer.weight
    """
    with explained():
        from permutohedral.figures import draw_filter as draw
        from permutohedral.figures.inputs import read_filters, shipped_filters

        _draw(outputs, lambda: draw(shipped_filters() if weights is None else read_filters(weights, tensor)))


def _draw_neighborhood(
    outputs: Outputs,
    dimension: Annotated[int, typer.Option(min=2, max=3, metavar="NUMBER", help="d of the features.")] = 2,
    size: Size = 2,
) -> None:
    """The taps of a filter, numbered, colored by the Gaussian.

    Example: permutohedral figure neighborhood taps.svg --dimension 3 --size 1
    """
    with explained():
        from permutohedral.figures import draw_neighborhood

        _draw(outputs, lambda: draw_neighborhood(dimension, size))


def _draw_simplices(
    outputs: Outputs,
    image: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A picture.", show_default="a photograph of scikit-image")
    ] = None,
    row: Annotated[
        int | None, typer.Option(min=0, metavar="NUMBER", help="Which row of it.", show_default="the middle")
    ] = None,
    sigma_space: SigmaSpace = 8.0,
    sigma_range: SigmaRange = 0.1,
) -> None:
    """The simplices under a row of a picture.

    Over position and gray value, with the row before and after the Gaussian filter.

    Example: permutohedral figure simplices simplices.png --image photo.png --row 100
    """
    with explained():
        from permutohedral.figures.inputs import gray_picture

        def make() -> Figure:
            from permutohedral.figures import draw_simplices

            return draw_simplices(gray_picture(image), row, sigma_space, sigma_range)

        _draw(outputs, make)


def _draw_levels(outputs: Outputs, points: Points = 14, seed: Seed = 3) -> None:
    """Two levels of a lattice pyramid.

    On the right, how the lattice points of one belong to the other.

    Example: permutohedral figure levels levels.svg
    """
    with explained():
        from permutohedral.figures import draw_levels

        _draw(outputs, lambda: draw_levels(points, seed))
