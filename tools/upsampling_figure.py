"""Draws docs/images/upsampling.jpg: color 16 times as large along gray, and a gray picture colored from strokes.

Run as `make figures`. The photograph is of scikit-image.
"""

from __future__ import annotations

from pathlib import Path

import torch
from skimage import data
from torch import Tensor
from torch.nn import functional

import permutohedral as ph
from experiments.quality import psnr
from permutohedral.files.figure import new_figure, save_figure

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "docs" / "images" / "upsampling.jpg"

FACTOR = 16


def strokes_of(height: int, width: int) -> Tensor:
    """Where short horizontal strokes lie, bool `[height, width]`: about one pixel of a hundred."""
    known = torch.zeros(height, width, dtype=torch.bool)
    for y in range(15, height, 30):
        for x in range(10 + y % 4 * 8, width - 16, 50):
            known[y, x : x + 15] = True
    return known


def main() -> None:
    """Draw the figure."""
    photo = torch.from_numpy(data.coffee()[:384, :592].copy()).permute(2, 0, 1).float() / 255
    gray = photo.mean(dim=0, keepdim=True)
    size = (photo.shape[1] // FACTOR, photo.shape[2] // FACTOR)
    coarse = functional.adaptive_avg_pool2d(photo - gray, size)
    blocks = functional.interpolate(coarse[None], photo.shape[1:], mode="nearest")[0]
    bicubic = functional.interpolate(coarse[None], photo.shape[1:], mode="bicubic", align_corners=False)[0]
    solved = ph.upsample(coarse, gray, sigma_range=0.1, mode="solver", smoothness=0.03, steps=25)
    known = strokes_of(*photo.shape[1:])
    drawn = torch.where(known, photo, gray.expand_as(photo) * 0.5 + 0.5)
    chroma = torch.where(known, photo - gray, torch.nan)
    colored = ph.bilateral_solver(chroma, gray, None, 0.1, 8.0, 0.06, iterations=100)
    panels = [
        (f"color of cells of {FACTOR} pixels, gray of each", gray + blocks),
        ("bicubic", gray + bicubic),
        ('upsample, mode="solver"', gray + solved),
        (f"strokes: {100 * float(known.float().mean()):.1f} % of the pixels", drawn),
        ("bilateral_solver", gray + colored),
        ("the photograph", photo),
    ]
    figure = new_figure(12, 5.6)
    for number, (title, found) in enumerate(panels):
        axes = figure.add_subplot(2, 3, number + 1)
        axes.imshow(found.clamp(0, 1).permute(1, 2, 0).numpy())
        known_truth = number in (1, 2, 4)
        axes.set_title(f"{title}: {psnr(found.clamp(0, 1), photo):.1f} dB" if known_truth else title, fontsize=10)
        axes.set_axis_off()
    save_figure(figure, OUTPUT, dpi=90)


if __name__ == "__main__":
    main()
