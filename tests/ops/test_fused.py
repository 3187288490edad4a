"""Fused functions of a backend against their definitions in `Backend`, which its primitives compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from mean_field_cases import field, move
from support import DEVICE, assert_close, draw
from torch import Tensor

import permutohedral as ph
from permutohedral.guided.grids import Grids
from permutohedral.guided.solver import CellMeans
from permutohedral.ops.backend import Backend
from permutohedral.ops.contract import FieldPlan, FilterTables
from permutohedral.ops.dispatch import backend_on
from permutohedral.ops.items import ItemRows, ItemsNorm
from permutohedral.ops.smoothness import AxisNeighbors, SmoothEquations, Smoothness


def fits(num_lattice_points: int) -> None:
    """There is enough memory."""


def lattice_of(dtype: torch.dtype) -> ph.Lattice:
    features, targets = 3 * draw(60, 3, dtype=dtype), 3 * draw(20, 3, seed=1, dtype=dtype)
    return ph.build_lattice(features, targets, separable=True)


def filter_gaussian(dtype: torch.dtype) -> tuple[Any, ...]:
    lattice = lattice_of(dtype)
    source, target = lattice.source, lattice.target
    tables = source.vertices, source.barycentric, lattice.axis_neighbors, target.vertices, target.barycentric
    return draw(60, 4, dtype=dtype), *tables


def filter_learned(dtype: torch.dtype, by_density: bool = True) -> tuple[Any, ...]:
    lattice = lattice_of(dtype)
    links = lattice.neighbors, 2, lattice.reverse_neighbors, lattice.opposite
    tables = FilterTables(lattice.source, lattice.target, *links, by_density)
    return draw(60, 4, dtype=dtype), draw(15, 2, 6, dtype=dtype), draw(6, dtype=dtype), tables


def mean_field(dtype: torch.dtype) -> tuple[Any, ...]:
    torch.manual_seed(0)
    energies, kernels = field(3, 40, dtype, with_costs=True)
    return energies.to(DEVICE), None, FieldPlan([move(each, DEVICE.type) for each in kernels], 2, False)


def normalize_items(dtype: torch.dtype) -> tuple[Any, ...]:
    item = torch.arange(60, dtype=torch.int32, device=DEVICE) % 3
    norm = ItemsNorm(ItemRows(item, 3), 2, 1e-5, True)
    return draw(60, 4, dtype=dtype), draw(4, dtype=dtype), draw(4, seed=1, dtype=dtype), norm


def slice_planes(dtype: torch.dtype) -> tuple[Any, ...]:
    target = lattice_of(dtype).target
    return draw(target.num_lattice_points, 4, dtype=dtype), target.vertices, target.barycentric


def _smoothness(dtype: torch.dtype, extents: tuple[int, int]) -> tuple[ph.Lattice, Smoothness]:
    features = ph.features.bilateral(draw(3, *extents, dtype=dtype), sigma_space=4.0, sigma_color=0.5)
    lattice = ph.build_lattice(features, neighborhood_size=0, separable=True)
    assert lattice.axis_neighbors is not None
    points, neighbors = lattice.num_lattice_points, AxisNeighbors(lattice.axis_neighbors, dtype)
    return lattice, Smoothness(neighbors, 0.5 + 0.1 * draw(points, 1, dtype=dtype).abs(), draw(points, 1, dtype=dtype))


def sum_axis_neighbors(dtype: torch.dtype, channels: int = 3) -> tuple[Any, ...]:
    lattice, smoothness = _smoothness(dtype, (12, 10))
    return draw(lattice.num_lattice_points, channels, dtype=dtype), smoothness.neighbors


def solve_smooth(
    dtype: torch.dtype, channels: int = 1, size: tuple[int, int] | None = None, iterations: int = 6
) -> tuple[Any, ...]:
    """Return equations with a channel that is solved from the start, and masked lattice points."""
    extents = (50, 60)
    lattice, smoothness = _smoothness(dtype, extents)
    points, source = lattice.num_lattice_points, lattice.source
    scale = smoothness.scale * (draw(points, channels, seed=3, dtype=dtype) > -1)
    ops = backend_on(DEVICE.type)
    mass = smoothness.scale * ops.sum_axis_neighbors(smoothness.scale, smoothness.neighbors)
    smoothness = Smoothness(smoothness.neighbors, scale if channels > 1 else scale[:, :1], mass)
    strength, data = 0.1 + draw(1, channels, dtype=dtype).abs(), draw(points, channels, seed=1, dtype=dtype).abs()
    weights, cells = data, None
    if size is not None:
        cells = CellMeans(source.vertices, source.barycentric, points, Grids(size, extents, "area"))
        weights = 10 * draw(math.prod(size), channels, seed=1, dtype=dtype).abs()
        data = cells.gather(ops, weights)
    own = smoothness.mass - smoothness.scale.square() * len(smoothness.neighbors.rows)
    diagonal = strength * own + data + 1e-3
    right = 1e3 * draw(points, channels, seed=2, dtype=dtype)
    right[:, -1] *= channels == 1
    matrix = SmoothEquations(smoothness, strength, data, diagonal, weights, cells)
    return matrix, right, torch.zeros_like(right), iterations, 0.0


CASES: dict[str, Callable[[torch.dtype], tuple[Any, ...]]] = {
    "picture_features": lambda dtype: (draw(2, 3, 8, 9, dtype=dtype), [2.0, 2.0], [0.5] * 3, (0, 0), 0.25),
    "filter_points": lambda dtype: (draw(60, 4, dtype=dtype), 3 * draw(60, 3, dtype=dtype), None, fits),
    "filter_gaussian": filter_gaussian,
    "filter_learned": filter_learned,
    "mean_field": mean_field,
    "normalize_items": normalize_items,
    "slice_planes": slice_planes,
    "sum_axis_neighbors": sum_axis_neighbors,
    "sum_axis_neighbors-1": partial(sum_axis_neighbors, channels=1),
    "solve_smooth": solve_smooth,
    "solve_smooth-channels": partial(solve_smooth, channels=6),
    "solve_smooth-cells": partial(solve_smooth, size=(10, 6)),
    "solve_smooth-cells-channels": partial(solve_smooth, channels=3, size=(7, 9)),
    "embed_differential": lambda dtype: (draw(60, 3, dtype=dtype), draw(60, 3, seed=1, dtype=dtype)),
}


@pytest.mark.parametrize("name", CASES)
def test_overrides_equal_their_definitions(name: str, backend: str, dtype: torch.dtype) -> None:
    ops, arguments = backend_on(DEVICE.type), CASES[name](dtype)
    name = name.partition("-")[0]
    found, expected = getattr(ops, name)(*arguments), getattr(Backend, name)(ops, *arguments)
    if isinstance(found, tuple):
        found, expected = found[0], expected[0]
    assert_close(found, expected)


def test_index_with_neighbors(backend: str, dtype: torch.dtype) -> None:
    """Lattice points may be numbered in another order."""
    ops, features = backend_on(DEVICE.type), 3 * draw(60, 3, dtype=dtype)
    neighborhood = ph.lattice.Neighborhood(3, 1)
    taps = neighborhood.offsets(DEVICE), neighborhood.opposite(DEVICE)

    def run(function: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, Tensor]:
        keys, vertices, barycentric, _, neighbors = function(features, None, *taps, fits)
        around = torch.where((neighbors >= 0)[:, :, None], keys[neighbors.clamp_min(0).long()], -1)
        return around[:, vertices.long()], barycentric

    definition = partial(Backend.index_with_neighbors, ops)
    for one, other in zip(run(ops.index_with_neighbors), run(definition), strict=True):
        assert_close(one.double(), other.double())


@pytest.mark.parametrize("name", ["filter_learned", "mean_field", "normalize_items"])
def test_derivatives_equal_those_of_definitions(name: str, backend: str) -> None:
    """`f_backward`, or the derivatives of the primitives, through what `bind` returns."""
    from permutohedral.ops.binding import bind

    given = CASES[name](torch.float32)
    leaves = [each.requires_grad_() for each in given[:3] if isinstance(each, Tensor)]
    ops = bind(*leaves)
    gradients = []
    for function in (getattr(ops, name), lambda *arguments: getattr(Backend, name)(ops, *arguments)):
        output = function(*given)[0]
        gradients.append(torch.autograd.grad((output * draw(*output.shape, dtype=torch.float32)).sum(), leaves))
    for one, other in zip(*gradients, strict=True):
        assert_close(one, other)
