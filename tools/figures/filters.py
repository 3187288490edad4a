"""Filters on the lattice: taps at their places, two dimensions in full, three as slices."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from figures.canvas import DIVERGING, GRID, INK, Array, bare
from permutohedral.errors import InputError
from permutohedral.files.figure import new_figure
from permutohedral.lattice.geometry import tap_positions
from permutohedral.ops.neighborhood import Neighborhood, count_taps, gaussian_weight

# more panels would be illegible
_MOST_PANELS = 24
# longest line of a title beside a row of slices
_TITLE_LETTERS = 16


def neighborhood_with_taps(filter_size: int) -> Neighborhood:
    """The neighborhood in two or three dimensions that has this many taps.

    >>> neighborhood_with_taps(65)
    Neighborhood(dimension=3, size=2, dilation=1, filter_size=65)
    """
    for dimension in (2, 3):
        for size in range(1, 12):
            if count_taps(dimension, size) == filter_size:
                return Neighborhood(dimension, size)
    known = ", ".join(str(count_taps(d, s)) for d in (2, 3) for s in (1, 2, 3))
    raise InputError(
        f"a filter of {filter_size} taps belongs to no neighborhood of 2 or 3 dimensions, which have {known}, ... taps"
    )


def draw_filter(filters: Mapping[str, Tensor], third: str = "the third feature") -> Figure:
    """Draw filters of two dimensions side by side, or of three dimensions as a row of slices for each.

    Args:
        filters: `[filter_size]` by title, all of one size.
        third: what the third dimension is.
    """
    neighborhood = neighborhood_with_taps(len(next(iter(filters.values()))))
    if len(filters) > _MOST_PANELS:
        raise InputError(f"{len(filters)} filters do not fit into a figure; choose at most {_MOST_PANELS}")
    if neighborhood.dimension == 2:
        return _draw_planes(filters, neighborhood)
    return _draw_slices(filters, neighborhood, third)


def draw_neighborhood(dimension: int, size: int) -> Figure:
    """Draw the taps of a neighborhood of 2 or 3 dimensions with their numbers, colored by the Gaussian's weight."""
    if dimension not in (2, 3):
        raise InputError(f"a neighborhood can be drawn in 2 and 3 dimensions, got {dimension}")
    neighborhood = Neighborhood(dimension, size)
    if size < 1 or neighborhood.filter_size > 400:
        raise InputError(f"{neighborhood.filter_size} taps cannot be drawn; choose a size from 1 to 4")
    weight = gaussian_weight(dimension, size)
    title = f"d = {dimension}, s = {size}: {neighborhood.filter_size} taps"
    if dimension == 2:
        figure = _draw_planes({title: weight}, neighborhood, numbered=True)
    else:
        figure = _draw_slices({title: weight}, neighborhood, "the third feature", numbered=True)
    return figure


def _hexagons(axes: Axes, positions: Array, weight: Array, colors: ScalarMappable, radius: float) -> None:
    """A hexagon of this radius around each tap; 1 / sqrt(3) fills the cell of a lattice point in the plane."""
    angles = np.deg2rad(60 * np.arange(6))
    corners = radius * np.stack([np.sin(angles), np.cos(angles)], axis=1)
    shapes = positions[:, None, ::-1] + corners
    axes.add_collection(
        PolyCollection(list(shapes), facecolors=colors.to_rgba(weight), edgecolors=GRID, linewidths=0.7)
    )


def _number(axes: Axes, positions: Array, numbers: NDArray[Any], weight: Array, fontsize: float) -> None:
    for position, number, strength in zip(positions, numbers, weight, strict=True):
        color = "white" if strength > 0.6 else INK
        axes.text(position[1], position[0], str(int(number)), fontsize=fontsize, ha="center", va="center", color=color)


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
        if numbered:
            _number(axis, positions, np.arange(len(numbers)), numbers, 11)
        _frame(axis, limit)
        axis.set_title(title, fontsize=12 if len(filters) == 1 else 9, color=INK)
    _bar(figure, list(axes), colors)
    return figure


def _draw_slices(
    filters: Mapping[str, Tensor], neighborhood: Neighborhood, third: str, numbered: bool = False
) -> Figure:
    positions = tap_positions(neighborhood).numpy()
    layers = sorted(set(np.round(positions[:, 2], 4).tolist()))
    side = 1.3 if numbered else 1.15
    figure = new_figure(side * len(layers) + 1.0, (side + 0.25) * len(filters) + 0.5)
    axes = figure.subplots(len(filters), len(layers), squeeze=False)
    limit = float(np.abs(positions[:, :2]).max()) + 0.6
    for row, (title, weight) in zip(axes, filters.items(), strict=True):
        numbers = weight.detach().cpu().double().numpy()
        colors = _colors([weight])
        for axis, layer in zip(row, layers, strict=True):
            inside = np.abs(positions[:, 2] - layer) < 1e-3
            _hexagons(axis, positions[inside, :2], numbers[inside], colors, radius=0.47)
            if numbered:
                _number(axis, positions[inside, :2], np.flatnonzero(inside), numbers[inside], 8)
            _frame(axis, limit)
            axis.set_facecolor("#f6f7f9")
        lines = (textwrap.fill(part, _TITLE_LETTERS) for part in title.replace(": ", ":\n").splitlines())
        row[0].set_ylabel("\n".join(lines), fontsize=9, color=INK)
        _bar(figure, list(row), colors)
    for axis, layer in zip(axes[-1], layers, strict=True):
        axis.set_xlabel(f"{layer:+.2f}", fontsize=8, color=INK)
    figure.supxlabel(f"offset in {third}, in standard deviations", fontsize=9, color=INK)
    return figure


def _colors(weights: Sequence[Tensor]) -> ScalarMappable:
    """One scale for all: from white where nothing is negative, else with white at zero."""
    bound = max(float(weight.abs().max()) for weight in weights) or 1.0
    if all(float(weight.min()) >= 0 for weight in weights):
        return ScalarMappable(Normalize(0, bound), "Reds")
    return ScalarMappable(Normalize(-bound, bound), DIVERGING)


def _bar(figure: Figure, axes: list[Axes], colors: ScalarMappable) -> None:
    bar = figure.colorbar(colors, ax=axes, shrink=0.8, fraction=0.04, pad=0.02)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
