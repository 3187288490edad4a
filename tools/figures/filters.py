"""Filters on the lattice, drawn at the positions of their taps: two dimensions in full, three as slices."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from figures.canvas import DIVERGING, GRID, INK, Array, bare
from permutohedral.files.figure import new_figure
from permutohedral.lattice.geometry import tap_positions
from permutohedral.ops.neighborhood import Neighborhood, count_taps, gaussian_weight

# longest line of a title next to a row of slices
_TITLE_LETTERS = 16


def neighborhood_with_taps(filter_size: int) -> Neighborhood:
    """Return the neighborhood in two or three dimensions that has this many taps.

    >>> neighborhood_with_taps(65)
    Neighborhood(dimension=3, size=2, dilation=1, filter_size=65)
    """
    sizes = ((dimension, size) for dimension in (2, 3) for size in range(1, 12))
    return next(Neighborhood(*each) for each in sizes if count_taps(*each) == filter_size)


def draw_filter(filters: Mapping[str, Tensor]) -> Figure:
    """Draw filters of two dimensions side by side, or of three dimensions as a row of slices for each.

    Args:
        filters: `[filter_size]` by title, all of one size.
    """
    neighborhood = neighborhood_with_taps(len(next(iter(filters.values()))))
    return (_draw_planes if neighborhood.dimension == 2 else _draw_slices)(filters, neighborhood)


def draw_neighborhood(size: int) -> Figure:
    """Draw the taps of a neighborhood of two dimensions with their numbers, colored by the Gaussian's weight."""
    neighborhood = Neighborhood(2, size)
    title = f"d = 2, s = {size}: {neighborhood.filter_size} taps"
    return _draw_planes({title: gaussian_weight(2, size)}, neighborhood, numbered=True)


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


def _draw_planes(filters: Mapping[str, Tensor], neighborhood: Neighborhood, numbered: bool = False) -> Figure:
    positions = tap_positions(neighborhood).numpy()
    columns = min(len(filters), 4 if len(filters) <= 8 else 6)
    rows = -(-len(filters) // columns)
    side = 4.4 if len(filters) == 1 else max(1.7, 7.8 / columns)
    figure = new_figure(side * columns + 0.9, (side + 0.2) * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    colors = _colors(list(filters.values()))
    limit = float(np.abs(positions).max()) + 0.7
    for axis in axes[len(filters) :]:
        axis.set_axis_off()
    for axis, (title, weight) in zip(axes, filters.items(), strict=False):
        numbers = weight.detach().cpu().double().numpy()
        _hexagons(axis, positions, numbers, colors, radius=1 / np.sqrt(3))
        for number, (y, x) in enumerate(positions if numbered else ()):
            color = "white" if numbers[number] > 0.6 else INK
            axis.text(x, y, str(number), fontsize=11, ha="center", va="center", color=color)
        _frame(axis, limit)
        axis.set_title(title, fontsize=12 if len(filters) == 1 else 9, color=INK)
    _bar(figure, list(axes), colors)
    return figure


def _draw_slices(filters: Mapping[str, Tensor], neighborhood: Neighborhood) -> Figure:
    positions = tap_positions(neighborhood).numpy()
    layers = sorted(set(np.round(positions[:, 2], 4).tolist()))
    side = 1.15
    figure = new_figure(side * len(layers) + 1.0, (side + 0.25) * len(filters) + 0.5)
    axes = figure.subplots(len(filters), len(layers), squeeze=False)
    limit = float(np.abs(positions[:, :2]).max()) + 0.6
    for row, (title, weight) in zip(axes, filters.items(), strict=True):
        numbers = weight.detach().cpu().double().numpy()
        colors = _colors([weight])
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


def _colors(weights: Sequence[Tensor]) -> ScalarMappable:
    """Return one scale for all: from white where nothing is negative, else with white at zero."""
    bound = max(float(weight.abs().max()) for weight in weights) or 1.0
    if all(float(weight.min()) >= 0 for weight in weights):
        return ScalarMappable(Normalize(0, bound), "Reds")
    return ScalarMappable(Normalize(-bound, bound), DIVERGING)


def _bar(figure: Figure, axes: list[Axes], colors: ScalarMappable) -> None:
    bar = figure.colorbar(colors, ax=axes, shrink=0.8, fraction=0.04, pad=0.02)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
