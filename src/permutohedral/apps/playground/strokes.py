"""Strokes of the mouse, drawn as a label map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from permutohedral.errors import InputError

NEEDS_STROKES = "draw over two regions or more, each with its own brush"
# colors of the brushes; white is 255
BRUSHES: tuple[tuple[int, int, int], ...] = ((30, 136, 229), (67, 160, 71), (229, 57, 53), (253, 216, 53))


@dataclass(frozen=True)
class Stroke:
    """A line drawn with a brush; `radius` and `points` (x and y) are in pixels of the photo."""

    label: int
    radius: float
    points: tuple[tuple[float, float], ...]


def draw_strokes(strokes: Sequence[Stroke], height: int, width: int, factor: int = 1) -> NDArray[Any]:
    """Draw strokes on a photo that is smaller by `factor`; return int64 labels `[height, width]`, -1 for none.

    Raises `InputError` if fewer than two labels are visible.
    """
    image = Image.new("L", (width, height), 0)
    draw = ImageDraw.Draw(image)
    for stroke in strokes:
        points = [(x / factor, y / factor) for x, y in stroke.points]
        radius = stroke.radius / factor
        draw.line(points, fill=stroke.label + 1, width=max(1, round(2 * radius)))
        for x, y in points:
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=stroke.label + 1)
    labels = np.asarray(image).astype(np.int64) - 1
    if len(np.unique(labels[labels >= 0])) < 2:
        raise InputError(NEEDS_STROKES)
    return labels


def write_strokes(strokes: Sequence[Stroke], height: int, width: int, path: Path) -> None:
    """Write strokes as an image of the colors of their brushes on black."""
    colors = np.array([*BRUSHES, (0, 0, 0)], np.uint8)
    Image.fromarray(colors[draw_strokes(strokes, height, width)]).save(path)


# over the photo of a cup that comes with scikit-image: the table, the cup and its saucer, the coffee
EXAMPLE_STROKES = (
    Stroke(0, 5.0, ((30.0, 130.0), (25.0, 330.0), (60.0, 380.0))),
    Stroke(0, 5.0, ((30.0, 30.0), (90.0, 20.0), (90.0, 75.0), (150.0, 40.0))),
    Stroke(0, 5.0, ((450.0, 40.0), (560.0, 120.0), (560.0, 330.0), (480.0, 370.0))),
    Stroke(2, 5.0, ((110.0, 160.0), (110.0, 240.0), (190.0, 330.0), (300.0, 365.0), (420.0, 320.0), (455.0, 240.0))),
    Stroke(2, 5.0, ((190.0, 120.0), (205.0, 60.0), (280.0, 35.0), (370.0, 70.0), (385.0, 150.0), (300.0, 200.0))),
    Stroke(2, 5.0, ((230.0, 250.0), (330.0, 230.0), (360.0, 290.0), (408.0, 90.0))),
    Stroke(3, 5.0, ((240.0, 115.0), (225.0, 140.0), (290.0, 165.0), (345.0, 150.0), (300.0, 105.0))),
)
