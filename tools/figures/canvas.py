"""Parts of several figures: colors, resolution, the lattice as a backdrop."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from numpy.typing import NDArray

from permutohedral.lattice.geometry import step_positions

Array = NDArray[np.float64]

GRID = "#c9ced6"
INK = "#1f2937"
POINT = "#f59e0b"
ARROW = "#9f1239"
DIVERGING = "RdBu_r"

# how these figures are saved: pixels per inch, and inches around what is drawn
DPI, MARGIN = 150, 0.12


def bare(axes: Axes, title: str = "") -> None:
    """Remove ticks and frame, and give both axes one scale."""
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    if title:
        axes.set_title(title, fontsize=12, color=INK)


def grid_points(low: Array, high: Array) -> Array:
    """Return all points of the two-dimensional lattice in a box, occupied or not, as `[points, 2]`."""
    first, second = step_positions(2).numpy()[:2]
    reach = int(np.ceil(2 * max(np.abs(low).max(), np.abs(high).max()))) + 2
    numbers = np.arange(-reach, reach + 1)
    points = (numbers[:, None, None] * first + numbers[None, :, None] * second).reshape(-1, 2)
    inside = ((points >= low - 1e-9) & (points <= high + 1e-9)).all(axis=1)
    return np.asarray(points[inside])


def draw_grid(axes: Axes, points: Array) -> None:
    """Draw `points [points, 2]`, (y, x) as in an image, and the edges between nearest ones."""
    present = {tuple(point) for point in np.round(points, 6)}
    segments = []
    for step in step_positions(2).numpy():
        for point in points:
            if tuple(np.round(point + step, 6)) in present:
                segments.append([point[::-1], (point + step)[::-1]])
    axes.add_collection(LineCollection(segments, colors=GRID, linewidths=0.8, zorder=1))
    axes.scatter(points[:, 1], points[:, 0], s=9, color=GRID, zorder=2)
