"""Draw the figures of the documentation: `PYTHONPATH=.:tools python -m figures docs/images`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from skimage import data

from figures.canvas import DPI, MARGIN
from figures.filters import draw_filter, draw_neighborhood
from figures.guide import draw_commands, draw_crf
from figures.levels import draw_levels
from figures.photographs import draw_segmentation, draw_upsampling
from figures.simplices import draw_simplices
from figures.steps import draw_steps, make_scene
from permutohedral.apps.io.figure import save_figure
from permutohedral.lattice.neighborhood import gaussian_weight


def main(folder: Path) -> None:
    """Draw all figures into `folder`."""
    # the row pcnn of experiments/denoising, for noise of 25
    trained = torch.from_numpy(np.load(Path(__file__).parent / "trained_filter.npy"))
    camera = torch.from_numpy(data.camera())[::2, ::2].float() / 255
    figures = {
        "steps.svg": draw_steps(make_scene(14, 1, 2)),
        "neighborhood.svg": draw_neighborhood(2),
        "filter.svg": draw_filter({"Gaussian": gaussian_weight(3, 2), "trained": trained}, size=2),
        "simplices.png": draw_simplices(camera, 8.0, 0.1),
        "levels.svg": draw_levels(14, 3),
    }
    for name, figure in figures.items():
        save_figure(figure, folder / name, DPI, MARGIN)
    save_figure(draw_segmentation(), folder / "segmentation.jpg", dpi=90)
    save_figure(draw_upsampling(), folder / "upsampling.jpg", dpi=90)
    save_figure(draw_crf(), folder / "crf.jpg", dpi=90)
    with tempfile.TemporaryDirectory() as scratch:
        save_figure(draw_commands(Path(scratch)), folder / "commands.jpg", dpi=90)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
