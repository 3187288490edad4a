"""The simplices that the pixels of an image occupy: one row of it, over position and gray value."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

import permutohedral as ph
from figures.canvas import ARROW, GRID, INK, POINT, draw_grid, grid_points
from permutohedral.apps.io.figure import new_figure
from permutohedral.lattice.geometry import lattice_positions


def draw_simplices(image: Tensor, sigma_space: float, sigma_color: float) -> Figure:
    """Draw an image, the simplices of its middle row, and that row before and after the Gaussian filter.

    Args:
        image: gray `[height, width]` between 0 and 1.
        sigma_space: pixels per standard deviation.
        sigma_color: gray values per standard deviation.
    """
    height, width = image.shape
    row = height // 2
    signal = image[row].double()
    features = torch.stack([signal / sigma_color, torch.arange(width).double() / sigma_space], dim=1)
    figure = new_figure(11, 6.2)
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.75), height_ratios=(2.1, 1))
    picture, cells, profile = (figure.add_subplot(grid[place]) for place in ((0, 0), (0, 1), (1, 1)))
    picture.imshow(image.numpy(), cmap="gray", vmin=0, vmax=1)
    picture.add_patch(Rectangle((-0.5, row - 1.5), width, 3, facecolor=POINT, edgecolor="none"))
    picture.set_title(f"row {row} of the picture", fontsize=11, color=INK)
    picture.set_axis_off()
    lattice = ph.build_lattice(features, neighborhood_size=0, separable=True)
    _draw_cells(cells, features, lattice, sigma_color)
    filtered = ph.gaussian_filter(signal[:, None], lattice)[:, 0]
    _draw_profile(profile, signal, filtered)
    note = figure.add_subplot(grid[1, 0])
    note.set_axis_off()
    note.text(
        0.0, 0.95,
        f"{width} pixels\n{lattice.num_lattice_points} lattice points\n"
        f"sigma_space = {sigma_space:g} pixels\nsigma_color = {sigma_color:g}",
        fontsize=10, va="top", color=INK, transform=note.transAxes,
    )  # fmt: skip
    return figure


def _draw_cells(axes: Axes, features: Tensor, lattice: ph.Lattice, sigma_color: float) -> None:
    positions = lattice_positions(lattice.source).numpy()
    low, high = positions.min(axis=0) - 0.3, positions.max(axis=0) + 0.3
    draw_grid(axes, grid_points(low, high))
    triangles, counts = np.unique(np.sort(lattice.source.vertices.numpy(), axis=1), axis=0, return_counts=True)
    cells = PolyCollection(
        list(positions[triangles][:, :, ::-1]), array=counts, cmap="Blues", edgecolors=GRID, linewidths=0.6, zorder=1.5
    )
    cells.set_clim(0, max(int(counts.max()), 2))
    axes.add_collection(cells)
    axes.scatter(positions[:, 1], positions[:, 0], s=14, color=INK, zorder=3)
    axes.scatter(features[:, 1], features[:, 0], s=7, color=POINT, edgecolors="none", zorder=4)
    axes.set(xlim=(low[1], high[1]), ylim=(low[0], high[0]), aspect="equal")
    axes.set_xlabel("position, in standard deviations", fontsize=9, color=INK)
    axes.set_ylabel("gray value,\nin standard deviations", fontsize=9, color=INK)
    axes.set_title("the simplices its pixels occupy: darker, more pixels", fontsize=11, color=INK)
    axes.tick_params(labelsize=8)


def _draw_profile(axes: Axes, signal: Tensor, filtered: Tensor) -> None:
    axes.plot(signal.numpy(), color=POINT, linewidth=1.0, label="row")
    axes.plot(filtered.numpy(), color=ARROW, linewidth=1.6, label="filtered on the lattice")
    axes.set_xlim(0, len(signal) - 1)
    axes.set_xlabel("pixel", fontsize=9, color=INK)
    axes.set_ylabel("gray value", fontsize=9, color=INK)
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower right")
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
