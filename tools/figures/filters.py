"""Filters on the lattice, drawn at the positions of their taps: two dimensions in full, three as slices."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from figures.canvas import DIVERGING, GRID, INK, Array, bare
from permutohedral.apps.io.figure import new_figure
from permutohedral.lattice.geometry import tap_positions
from permutohedral.lattice.neighborhood import Neighborhood, gaussian_weight

# longest line of a title next to a row of slices
_TITLE_LETTERS = 16


def draw_neighborhood(size: int) -> Figure:
    """Draw the taps of a neighborhood of two dimensions with their numbers, colored by the Gaussian's weight."""
    neighborhood = Neighborhood(2, size)
    positions, weight = tap_positions(neighborhood).numpy(), gaussian_weight(2, size)
    # the plane, the bar next to it and the title above it
    figure = new_figure(4.4 + 0.9, 4.4 + 0.2)
    axes = figure.subplots()
    colors = _colors(weight)
    numbers = weight.double().numpy()
    _hexagons(axes, positions, numbers, colors, radius=1 / np.sqrt(3))
    for number, (y, x) in enumerate(positions):
        color = "white" if numbers[number] > 0.6 else INK
        axes.text(x, y, str(number), fontsize=11, ha="center", va="center", color=color)
    _frame(axes, float(np.abs(positions).max()) + 0.7)
    axes.set_title(f"d = 2, s = {size}: {neighborhood.filter_size} taps", fontsize=12, color=INK)
    _bar(figure, [axes], colors)
    return figure


def _hexagons(axes: Axes, positions: Array, weight: Array, colors: ScalarMappable, radius: float) -> None:
    """Draw a hexagon of this radius around each tap; 1 / sqrt(3) fills the cell of a lattice point in the plane."""
    angles = np.deg2rad(60 * np.arange(6))
    corners = radius * np.stack([np.sin(angles), np.cos(angles)], axis=1)
    shapes = positions[:, None, ::-1] + corners
    axes.add_collection(
        PolyCollection(list(shapes), facecolors=colors.to_rgba(weight), edgecolors=GRID, linewidths=0.7)
    )


def _frame(axes: Axes, limit: float) -> None:
    bare(axes)
    axes.set_xlim(-limit, limit)
    axes.set_ylim(limit, -limit)


def draw_filter(filters: Mapping[str, Tensor], size: int) -> Figure:
    """Draw filters of three dimensions as a row of slices for each.

    Args:
        filters: `[filter_size]` by title.
        size: of their neighborhood.
    """
    positions = tap_positions(Neighborhood(3, size)).numpy()
    layers = sorted(set(np.round(positions[:, 2], 4).tolist()))
    side = 1.15
    figure = new_figure(side * len(layers) + 1.0, (side + 0.25) * len(filters) + 0.5)
    axes = figure.subplots(len(filters), len(layers), squeeze=False)
    limit = float(np.abs(positions[:, :2]).max()) + 0.6
    for row, (title, weight) in zip(axes, filters.items(), strict=True):
        numbers = weight.detach().cpu().double().numpy()
        colors = _colors(weight)
        for axis, layer in zip(row, layers, strict=True):
            inside = np.abs(positions[:, 2] - layer) < 1e-3
            _hexagons(axis, positions[inside, :2], numbers[inside], colors, radius=0.47)
            _frame(axis, limit)
            axis.set_facecolor("#f6f7f9")
        lines = (textwrap.fill(part, _TITLE_LETTERS) for part in title.replace(": ", ":\n").splitlines())
        row[0].set_ylabel("\n".join(lines), fontsize=9, color=INK)
        _bar(figure, list(row), colors)
    for axis, layer in zip(axes[-1], layers, strict=True):
        axis.set_xlabel(f"{layer:+.2f}", fontsize=8, color=INK)
    figure.supxlabel("offset in the third feature, in standard deviations", fontsize=9, color=INK)
    return figure


def _colors(weight: Tensor) -> ScalarMappable:
    """Return a scale from white where nothing is negative, else with white at zero."""
    bound = float(weight.abs().max()) or 1.0
    if float(weight.min()) >= 0:
        return ScalarMappable(Normalize(0, bound), "Reds")
    return ScalarMappable(Normalize(-bound, bound), DIVERGING)


def _bar(figure: Figure, axes: list[Axes], colors: ScalarMappable) -> None:
    bar = figure.colorbar(colors, ax=axes, shrink=0.8, fraction=0.04, pad=0.02)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
