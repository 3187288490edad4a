"""A point cloud from above: the class of the highest point of every pixel, darker where it is low."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from permutohedral.reporting.figure import new_figure, save_figure

_MOST_PIXELS = 1200
# in inches; a corridor from south to north is drawn as high as this, and narrower
_WIDTH, _MOST_HEIGHT = 8.0, 24.0
# ground, vegetation, building, then others
_COLORS = ("#c8a26b", "#3f8f3f", "#c2453a", "#3a78c2", "#8a4fbf", "#e0c63a", "#4fbfb5", "#7a7a7a")


def draw_from_above(positions: Tensor, classes: Tensor, names: Sequence[str], path: Path) -> None:
    """Draw classes from above.

    Args:
        positions: `[points, 3]`.
        classes: int64 `[points]`.
        names: of the classes.
        path: of the picture; the ending names the format.
    """
    pixels = _paint(positions.cpu().float(), classes.cpu())
    height, width, _ = pixels.shape
    figure = new_figure(_WIDTH, min(max(_WIDTH * height / width, 2.0), _MOST_HEIGHT) + 0.5)
    axes = figure.subplots()
    axes.imshow(pixels.flip(0).numpy())
    axes.set_axis_off()
    for number, name in enumerate(names):
        axes.scatter([], [], color=_COLORS[number % len(_COLORS)], label=name)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=4, frameon=False)
    save_figure(figure, path)


def _paint(positions: Tensor, classes: Tensor) -> Tensor:
    """Colors from 0 to 1, `[height, width, 3]`, the first row in the south; white where there are no points."""
    if not len(positions):
        return torch.ones(1, 1, 3)
    flat = positions[:, :2] - positions[:, :2].amin(dim=0)
    # as many pixels as points have room, at least two points for each
    extent = flat.amax(dim=0).clamp_min(1e-6)
    side = max(float((2 * extent.prod() / len(positions)).sqrt()), float(extent.max()) / _MOST_PIXELS, 1e-6)
    place = (flat / side).long()
    columns, rows = (int(last) + 1 for last in place.amax(dim=0))
    pixel = place[:, 1] * columns + place[:, 0]
    # drawn from the lowest to the highest
    order = positions[:, 2].argsort()
    order = order[pixel[order].argsort(stable=True)]
    last = torch.ones_like(order, dtype=torch.bool)
    last[:-1] = pixel[order[1:]] != pixel[order[:-1]]
    highest = order[last]
    palette = torch.tensor([[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in _COLORS])
    heights = positions[highest, 2]
    low, high = torch.quantile(heights[:: max(len(heights) // 100_000, 1)], torch.tensor([0.01, 0.99])).tolist()
    light = 0.55 + 0.45 * ((heights - low) / max(high - low, 1e-6)).clamp(0, 1)
    canvas = torch.ones(rows * columns, 3)
    canvas[pixel[highest]] = palette[classes[highest] % len(_COLORS)] * light[:, None]
    return canvas.view(rows, columns, 3)
