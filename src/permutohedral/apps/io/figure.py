"""Matplotlib figures, drawn without a display and written atomically."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from torch import Tensor

from permutohedral.apps.io.atomic import write_bytes
from permutohedral.errors import InputError

# clouds from above: pixels of the longer side, and inches of the figure
_MAX_PIXELS = 1200
_WIDTH, _MAX_HEIGHT = 8.0, 24.0
# ground, vegetation, building, others
_COLORS = ("#c8a26b", "#3f8f3f", "#c2453a", "#3a78c2", "#8a4fbf", "#e0c63a", "#4fbfb5", "#7a7a7a")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; sizes are in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def check_ending(path: Path) -> None:
    """Raise `InputError` if Matplotlib cannot write the format that the ending names."""
    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise InputError(f"cannot write the figure {path}: its ending must be one of {', '.join(sorted(known))}")


def save_figure(figure: Figure, paths: Path | Sequence[Path], dpi: int = 120, margin: float | None = None) -> None:
    """Write a figure in the format of each ending; the same figure gives the same bytes.

    `margin`, in inches, crops the figure to the drawing and that margin.
    """
    options: dict[str, Any] = {} if margin is None else {"bbox_inches": "tight", "pad_inches": margin}
    for path in [paths] if isinstance(paths, Path) else paths:
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        try:
            # in memory first: some encoders ignore a short write to a full disk
            content = io.BytesIO()
            with matplotlib.rc_context({"svg.hashsalt": "permutohedral"}):
                figure.savefig(content, format=path.suffix[1:] or None, dpi=dpi, metadata=metadata, **options)
        except ValueError as error:
            raise InputError(f"cannot write the figure {path}: {error}") from error
        write_bytes(path, content.getvalue())


def draw_from_above(positions: Tensor, classes: Tensor, names: Sequence[str], path: Path) -> None:
    """Draw `classes [points]` of `positions [points, 3]` from above: the highest per pixel, low ones darker."""
    pixels = _paint(positions.cpu().float(), classes.cpu())
    height, width, _ = pixels.shape
    figure = new_figure(_WIDTH, min(max(_WIDTH * height / width, 2.0), _MAX_HEIGHT) + 0.5)
    axes = figure.subplots()
    axes.imshow(pixels.flip(0).numpy())
    axes.set_axis_off()
    for number, name in enumerate(names):
        axes.scatter([], [], color=_COLORS[number % len(_COLORS)], label=name)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=4, frameon=False)
    save_figure(figure, path)


def _paint(positions: Tensor, classes: Tensor) -> Tensor:
    """Return colors in [0, 1], `[height, width, 3]`, the first row in the south, white without points."""
    if not len(positions):
        return torch.ones(1, 1, 3)
    flat = positions[:, :2] - positions[:, :2].amin(dim=0)
    # about two points per pixel
    extent = flat.amax(dim=0).clamp_min(1e-6)
    side = max(float((2 * extent.prod() / len(positions)).sqrt()), float(extent.max()) / _MAX_PIXELS, 1e-6)
    place = (flat / side).long()
    columns, rows = (int(last) + 1 for last in place.amax(dim=0))
    pixel = place[:, 1] * columns + place[:, 0]
    # the highest point of each pixel: of equal indices, NumPy assigns the last
    order = positions[:, 2].argsort().numpy()
    owner = np.full(rows * columns, -1)
    owner[pixel.numpy()[order]] = order
    highest = torch.from_numpy(owner[owner >= 0])
    palette = torch.tensor([[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in _COLORS])
    heights = positions[highest, 2]
    low, high = torch.quantile(heights[:: max(len(heights) // 100_000, 1)], torch.tensor([0.01, 0.99])).tolist()
    light = 0.55 + 0.45 * ((heights - low) / max(high - low, 1e-6)).clamp(0, 1)
    canvas = torch.ones(rows * columns, 3)
    canvas[pixel[highest]] = palette[classes[highest] % len(_COLORS)] * light[:, None]
    return _fill_gaps(canvas.view(rows, columns, 3))


def _fill_gaps(canvas: Tensor) -> Tensor:
    """Fill white pixels that have at least four painted neighbors; by chance, a pixel in seven has no point."""
    for _ in range(2):
        padded = torch.nn.functional.pad(canvas, (0, 0, 1, 1, 1, 1), value=1.0)
        height, width = canvas.shape[:2]
        shifts = [(y, x) for y in range(3) for x in range(3) if (y, x) != (1, 1)]
        around = torch.stack([padded[y : y + height, x : x + width] for y, x in shifts])
        painted = (around < 1).any(dim=3)
        first = painted.int().argmax(dim=0)[None, ..., None].expand(1, -1, -1, 3)
        is_gap = (canvas == 1).all(dim=2) & (painted.sum(dim=0) >= 4)
        canvas = torch.where(is_gap[..., None], around.gather(0, first)[0], canvas)
    return canvas
