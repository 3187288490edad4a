"""Draws docs/images/segmentation.jpg: too little, enough and too much of each number of `permutohedral image segment`.

Run as `make figures`. The photograph is of scikit-image; its labels are polygons with few corners.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from skimage import data
from torch import Tensor

import permutohedral as ph
from permutohedral.files.figure import new_figure, save_figure
from permutohedral.files.formats.labels import LabelMap, blend_labels
from permutohedral.files.segmentation import follow_edges
from permutohedral.files.settings import SegmentationSettings

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "docs" / "images" / "segmentation.jpg"

# corners (x, y) of the saucer with the cup, and of the inside of the cup with its rim
SAUCER = [(170, 90), (250, 25), (400, 60), (470, 180), (440, 310), (300, 385), (150, 340), (80, 220)]
INSIDE = [(180, 130), (220, 30), (330, 25), (400, 90), (370, 190), (230, 200)]
COLORS = torch.tensor([[0.1, 0.2, 0.9], [0.9, 0.1, 0.1], [1.0, 0.85, 0.1]])

WIDE = {"sigma_space": 40.0}
PANELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("defaults (--sigma-space 12): reach too little", {}),
    ("--sigma-space 40 --strength 15", {**WIDE, "strength": 15.0}),
    ("--sigma-space 40 --strength 1: too little", {**WIDE, "strength": 1.0}),
    ("--sigma-space 200 --strength 100: too much", {"sigma_space": 200.0, "strength": 100.0}),
    ("the same, --sigma-color 0.3: too much", {**WIDE, "strength": 15.0, "sigma_color": 0.3}),
)


def rough_labels(height: int, width: int) -> Tensor:
    """0 for the table, 1 for saucer and cup, 2 for what is in the cup: int64 `[height, width]`."""
    image = Image.new("L", (width, height))
    ImageDraw.Draw(image).polygon(SAUCER, fill=1)
    ImageDraw.Draw(image).polygon(INSIDE, fill=2)
    return torch.from_numpy(np.asarray(image).astype(np.int64))


def main() -> None:
    """Draw the figure."""
    pixels = torch.from_numpy(data.coffee()).permute(2, 0, 1).float() / 255
    labels = rough_labels(*pixels.shape[1:])
    settings = SegmentationSettings()
    energies = ph.crf.energies_from_labels(labels, 3, settings.certainty)
    drawn = [("rough labels", labels)]
    for title, changes in PANELS:
        marginals = follow_edges(energies, pixels, replace(settings, **changes))
        drawn.append((title, marginals.argmax(dim=0)))
    figure = new_figure(12, 6.0)
    for number, (title, found) in enumerate(drawn):
        axes = figure.add_subplot(2, 3, number + 1)
        axes.imshow(blend_labels(pixels, LabelMap(found, COLORS)).permute(1, 2, 0).numpy())
        axes.set_title(title, fontsize=10)
        axes.set_axis_off()
    save_figure(figure, OUTPUT, dpi=90)


if __name__ == "__main__":
    main()
