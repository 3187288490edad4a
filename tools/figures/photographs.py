"""Photographs of scikit-image, segmented with several settings, and colored from few colors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image, ImageDraw
from skimage import data
from torch import Tensor
from torch.nn import functional

import permutohedral as ph
from experiments.quality import psnr
from permutohedral.apps.io.figure import new_figure
from permutohedral.apps.io.labels import LabelMap, blend_labels
from permutohedral.apps.io.settings import SegmentationSettings
from permutohedral.apps.jobs.segment_image import follow_edges

# corners (x, y) of the saucer with the cup, and of the inside of the cup with its rim
SAUCER = [(170, 90), (250, 25), (400, 60), (470, 180), (440, 310), (300, 385), (150, 340), (80, 220)]
INSIDE = [(180, 130), (220, 30), (330, 25), (400, 90), (370, 190), (230, 200)]
COLORS = torch.tensor([[0.1, 0.2, 0.9], [0.9, 0.1, 0.1], [1.0, 0.85, 0.1]])

WIDE = {"sigma_space": 40.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults (--sigma-space 12): reach too little": {},
    "--sigma-space 40 --strength 15": {**WIDE, "strength": 15.0},
    "--sigma-space 40 --strength 1: too little": {**WIDE, "strength": 1.0},
    "--sigma-space 200 --strength 100: too much": {"sigma_space": 200.0, "strength": 100.0},
    "the same, --sigma-color 0.3: too much": {**WIDE, "strength": 15.0, "sigma_color": 0.3},
}

# pixels of a side of a cell that has one color
FACTOR = 16


def draw_panels(images: Mapping[str, Tensor], columns: int, height: float) -> Figure:
    """Draw images `[3, height, width]` by title, in rows."""
    figure = new_figure(12, height)
    rows = -(-len(images) // columns)
    for number, (title, image) in enumerate(images.items(), 1):
        axes = figure.add_subplot(rows, columns, number)
        axes.imshow(image.permute(1, 2, 0).numpy())
        axes.set_title(title, fontsize=10)
        axes.set_axis_off()
    return figure


def rough_labels() -> Tensor:
    """Return the labels of polygons around the cup of `skimage.data.coffee`, `[height, width]`."""
    height, width = data.coffee().shape[:2]
    rough = Image.new("L", (width, height))
    ImageDraw.Draw(rough).polygon(SAUCER, fill=1)
    ImageDraw.Draw(rough).polygon(INSIDE, fill=2)
    return torch.from_numpy(np.asarray(rough).astype(np.int64))


def draw_segmentation() -> Figure:
    """Draw polygons around a cup, and the labels that a CRF makes of them with each of `SETTINGS`."""
    pixels = torch.from_numpy(data.coffee()).permute(2, 0, 1).float() / 255
    labels = {"rough labels": rough_labels()}
    settings = SegmentationSettings()
    energies = ph.crf.energies_from_labels(labels["rough labels"], 3, certainty=settings.certainty)
    for title, changes in SETTINGS.items():
        labels[title] = follow_edges(energies, pixels, replace(settings, **changes)).argmax(dim=0)
    panels = {title: blend_labels(pixels, LabelMap(found, COLORS)) for title, found in labels.items()}
    return draw_panels(panels, 3, 6.0)


def draw_upsampling() -> Figure:
    """Draw a photograph colored from the colors of cells, and from strokes."""
    photo = torch.from_numpy(data.coffee()[:384, :592].copy()).permute(2, 0, 1).float() / 255
    gray = photo.mean(dim=0, keepdim=True)
    size = (photo.shape[1] // FACTOR, photo.shape[2] // FACTOR)
    coarse = functional.adaptive_avg_pool2d(photo - gray, size)
    blocks = functional.interpolate(coarse[None], photo.shape[1:], mode="nearest")[0]
    bicubic = functional.interpolate(coarse[None], photo.shape[1:], mode="bicubic", align_corners=False)[0]
    solved = ph.upsample(coarse, gray, sigma_color=0.1, mode="solver", smoothness=0.03, num_iterations=25)
    known = _strokes(*photo.shape[1:])
    chroma = torch.where(known, photo - gray, torch.nan)
    colored = ph.bilateral_solver(
        chroma, gray, sample_weight=None, smoothness=0.1, sigma_space=8.0, sigma_color=0.06, num_iterations=100
    )

    def titled(title: str, chroma: Tensor) -> tuple[str, Tensor]:
        image = gray + chroma
        return f"{title}: {psnr(image.clamp(0, 1), photo):.1f} dB", image

    panels = [
        (f"color of cells of {FACTOR} pixels, gray of each", gray + blocks),
        titled("bicubic", bicubic),
        titled('upsample, mode="solver"', solved),
        (
            f"strokes: {100 * float(known.float().mean()):.1f} % of the pixels",
            torch.where(known, photo, gray.expand_as(photo) * 0.5 + 0.5),
        ),
        titled("bilateral_solver", colored),
        ("the photograph", photo),
    ]
    return draw_panels({title: image.clamp(0, 1) for title, image in panels}, 3, 5.6)


def _strokes(height: int, width: int) -> Tensor:
    """Return a mask of short horizontal strokes, bool `[height, width]`: about one pixel of a hundred."""
    known = torch.zeros(height, width, dtype=torch.bool)
    for y in range(15, height, 30):
        for x in range(10 + y % 4 * 8, width - 16, 50):
            known[y, x : x + 15] = True
    return known
