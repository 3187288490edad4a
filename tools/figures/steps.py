"""Splat, convolve, slice: Figure 1 of the paper, drawn from a lattice that was built for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import permutohedral as ph
from figures.canvas import ARROW, DIVERGING, INK, POINT, Array, bare, draw_grid, grid_points
from permutohedral.apps.io.figure import new_figure
from permutohedral.lattice.geometry import lattice_positions, tap_positions

_MARGIN = 0.9


@dataclass(frozen=True)
class Scene:
    """Points in the plane, their lattice, and the signal at every stage.

    Attributes:
        features: `[points, 2]`.
        values: `[points, 1]`.
        lattice: under the points, with s = 2.
        splatted: `[lattice_points, 1]`.
        convolved: `[lattice_points, 1]`.
        sliced: `[points, 1]`.
    """

    features: Tensor
    values: Tensor
    lattice: ph.Lattice
    splatted: Tensor
    convolved: Tensor
    sliced: Tensor


def make_scene(num_points: int = 14, seed: int = 1, neighborhood_size: int = 2) -> Scene:
    """Scatter points in a disc with a smooth signal, and filter it with the Gaussian on the taps.

    >>> make_scene().values.shape
    torch.Size([14, 1])
    """
    generator = torch.Generator().manual_seed(seed)
    # each point is the best of several candidates, the farthest from those before it, so that none hides another
    chosen = [torch.zeros(2, dtype=torch.float64)]
    for _ in range(num_points):
        drawn = torch.rand(12, 2, generator=generator, dtype=torch.float64) * 4.6 - 2.3
        drawn = drawn[drawn.norm(dim=1) < 2.3]
        chosen.append(drawn[torch.cdist(drawn, torch.stack(chosen)).amin(dim=1).argmax()])
    features = torch.stack(chosen[1:])
    values = torch.sin(1.1 * features[:, 1:] + 0.5) - 0.4 * torch.cos(1.3 * features[:, :1])
    lattice = ph.build_lattice(features, neighborhood_size=neighborhood_size)
    splatted = ph.splat(values, lattice)
    weight = ph.lattice.gaussian_weight(2, neighborhood_size, torch.float64)
    convolved = ph.convolve(splatted, weight / weight.sum(), lattice)
    return Scene(features, values, lattice, splatted, convolved, ph.slice(convolved, lattice))


def draw_steps(scene: Scene) -> Figure:
    """Draw splat, convolve and slice side by side, with the formulas of the paper."""
    figure = new_figure(12.9, 4.9)
    corners = lattice_positions(scene.lattice.source).numpy()
    low, high = corners.min(axis=0) - _MARGIN, corners.max(axis=0) + _MARGIN
    for number, draw in enumerate((_draw_splat, _draw_convolve, _draw_slice), 1):
        axis = figure.add_subplot(1, 3, number)
        draw_grid(axis, grid_points(low, high))
        draw(axis, scene)
        bare(axis)
        axis.set_xlim(low[1] - 0.2, high[1] + 0.2)
        axis.set_ylim(high[0] + 0.2, low[0] - 0.2)
    return figure


def _title(axes: Axes, title: str, formula: str) -> None:
    axes.set_title(title, fontsize=15, color=INK, loc="left")
    axes.set_xlabel(formula, fontsize=10.5, color=INK)


def _discs(axes: Axes, positions: Array, values: Tensor, size: float, **style: Any) -> None:
    numbers = values[:, 0].numpy()
    bound = float(np.abs(numbers).max()) or 1.0
    axes.scatter(positions[:, 1], positions[:, 0], c=numbers, s=size, cmap=DIVERGING, vmin=-bound, vmax=bound, **style)


def _draw_points(axes: Axes, scene: Scene, values: Tensor) -> None:
    _discs(axes, scene.features.numpy(), values, 46, edgecolors=POINT, linewidths=1.8, zorder=6)


def _draw_lattice_values(axes: Axes, scene: Scene, values: Tensor) -> None:
    _discs(axes, lattice_positions(scene.lattice.source).numpy(), values, 120, edgecolors=INK, linewidths=0.8, zorder=4)


def _middle_point(scene: Scene) -> int:
    """Return a point near the middle, well inside of its simplex, with the others far from its corners."""
    source = scene.lattice.source
    corners = lattice_positions(source)[source.vertices.long()]
    distance = torch.cdist(corners, scene.features)
    distance[torch.arange(len(distance)), :, torch.arange(len(distance))] = 9.0
    fitness = distance.amin(dim=(1, 2)) + source.barycentric.amin(dim=1) - 0.3 * scene.features.norm(dim=1)
    return int(fitness.argmax())


def _arrows(axes: Axes, scene: Scene, into_lattice: bool) -> None:
    """Draw arrows between one point and its corners, with the barycentric weights."""
    chosen = _middle_point(scene)
    point = scene.features[chosen].numpy()
    source = scene.lattice.source
    corners = lattice_positions(source)[source.vertices[chosen].long()].numpy()
    axes.fill(corners[:, 1], corners[:, 0], color=ARROW, alpha=0.12, zorder=1.5, linewidth=0)
    for corner, weight in zip(corners, source.barycentric[chosen].tolist(), strict=True):
        start, end = (point, corner) if into_lattice else (corner, point)
        style = {"arrowstyle": "-|>", "color": ARROW, "lw": 1.4, "shrinkA": 5, "shrinkB": 6, "mutation_scale": 11}
        axes.annotate("", (end[1], end[0]), (start[1], start[0]), arrowprops=style, zorder=7)
        away = corner + 0.4 * (corner - corners.mean(axis=0)) / np.linalg.norm(corner - corners.mean(axis=0))
        axes.text(
            away[1], away[0], f"{weight:.2f}", color=ARROW, fontsize=9.5, ha="center", va="center", zorder=8,
            bbox={"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
        )  # fmt: skip


def _draw_splat(axes: Axes, scene: Scene) -> None:
    _draw_lattice_values(axes, scene, scene.splatted)
    _draw_points(axes, scene, scene.values)
    _arrows(axes, scene, into_lattice=True)
    _title(axes, "Splat", r"$l_j = \sum_{i \in C(j)}\, b_{i,j}\, v_i$")


def _draw_convolve(axes: Axes, scene: Scene) -> None:
    positions = lattice_positions(scene.lattice.source).numpy()
    center = int(np.linalg.norm(positions, axis=1).argmin())
    neighborhood = scene.lattice.neighborhood
    taps = tap_positions(neighborhood).numpy() + positions[center]
    weight = ph.lattice.gaussian_weight(2, neighborhood.neighborhood_size, torch.float64).numpy()
    missing = scene.lattice.neighbors[:, center].numpy() < 0
    _draw_lattice_values(axes, scene, scene.convolved)
    for tap, strength, lost in zip(taps[1:], weight[1:], missing[1:], strict=True):
        line = {"color": ARROW, "lw": 0.4 + 2.6 * strength, "zorder": 3, "alpha": 0.9}
        axes.plot([tap[1], taps[0, 1]], [tap[0], taps[0, 0]], linestyle=":" if lost else "-", **line)
    axes.scatter(taps[:, 1], taps[:, 0], s=230, facecolors="none", edgecolors=ARROW, linewidths=1.3, zorder=5)
    _title(
        axes,
        "Convolve",
        r"$l'_{j'} = \sum_{(n,j) \in N(j')}\, w_n\, l_j$" + f"   (s = {neighborhood.neighborhood_size})",
    )


def _draw_slice(axes: Axes, scene: Scene) -> None:
    _draw_lattice_values(axes, scene, scene.convolved)
    _draw_points(axes, scene, scene.sliced)
    _arrows(axes, scene, into_lattice=False)
    _title(axes, "Slice", r"$v'_k = \sum_{j \in C(k)}\, b_{k,j}\, l'_j$")
