"""Draw the figures of the lattice for the documentation: `python tools/figures docs/images`."""

from __future__ import annotations

import sys
from pathlib import Path

# the folder of this package, as for the tests
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from figures import STEPS, draw_filter, draw_levels, draw_neighborhood, draw_simplices, draw_steps, make_scene
from figures.canvas import DPI, MARGIN
from figures.inputs import gray_picture, shipped_filters
from permutohedral.files.figure import save_figure


def main(folder: Path) -> None:
    """Draw all figures into `folder`."""
    figures = {
        "steps.svg": draw_steps(make_scene(14, 1, 2), STEPS),
        "neighborhood.svg": draw_neighborhood(2, 2),
        "filter.svg": draw_filter(shipped_filters()),
        "simplices.png": draw_simplices(gray_picture(None), None, 8.0, 0.1),
        "levels.svg": draw_levels(14, 3),
    }
    for name, figure in figures.items():
        save_figure(figure, folder / name, DPI, MARGIN)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
