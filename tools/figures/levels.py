"""Two levels of a pyramid: the vertices that they share, and the edges that the others divide."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

import permutohedral as ph
from figures.canvas import ARROW, GRID, INK, POINT, bare
from permutohedral.apps.io.figure import new_figure
from permutohedral.lattice.geometry import lattice_positions

MIDDLE = "#2563eb"


def draw_levels(points: int, seed: int) -> Figure:
    """Draw points on the lattice of two levels, and how a fine lattice point belongs to the coarse level.

    Args:
        points: how many are scattered.
        seed: of their places.
    """
    generator = torch.Generator().manual_seed(seed)
    features = torch.rand(points, 2, generator=generator, dtype=torch.float64) * torch.tensor([4.0, 6.0])
    pyramid = ph.levels.build_pyramid(features, num_levels=2)
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    scales = (1.0, 2.0)
    fine, coarse = (
        lattice_positions(level.source).numpy() * scale for level, scale in zip(pyramid.levels, scales, strict=True)
    )
    for level, positions, color, width in zip(pyramid.levels, (fine, coarse), (GRID, INK), (1.0, 1.6), strict=True):
        _draw_simplices(left, positions[level.source.vertices.numpy()], color, width)
    left.scatter(features[:, 1], features[:, 0], s=16, color=POINT, zorder=3)
    bare(left, "simplices of the points on two levels")
    parents = pyramid.tables[0].parents.numpy()
    _draw_parents(right, fine, coarse, parents)
    bare(right, "a fine lattice point is a coarse one, or the middle of a coarse edge")
    for axes in (left, right):
        axes.set_xlim(coarse[:, 1].min() - 0.6, coarse[:, 1].max() + 0.6)
        axes.set_ylim(coarse[:, 0].max() + 0.6, coarse[:, 0].min() - 0.6)
    return figure


def _draw_simplices(axes: Axes, corners: np.ndarray, color: str, width: float) -> None:
    outlines = [np.concatenate([simplex, simplex[:1]])[:, ::-1] for simplex in corners]
    axes.add_collection(LineCollection(outlines, colors=color, linewidths=width, zorder=1))


def _draw_parents(axes: Axes, fine: np.ndarray, coarse: np.ndarray, parents: np.ndarray) -> None:
    shared = parents[:, 0] == parents[:, 1]
    edges = coarse[parents[~shared]][:, :, ::-1]
    axes.add_collection(LineCollection(list(edges), colors=INK, linewidths=1.2, zorder=1))
    axes.scatter(coarse[:, 1], coarse[:, 0], s=60, facecolor="white", edgecolor=INK, linewidths=1.4, zorder=2)
    axes.scatter(fine[shared, 1], fine[shared, 0], s=22, color=ARROW, zorder=3, label="on both levels: weight 1")
    label = "in the middle of an edge: 1/2 and 1/2"
    axes.scatter(fine[~shared, 1], fine[~shared, 0], s=22, color=MIDDLE, zorder=3, label=label)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=2, frameon=False, fontsize=10)
