"""Upsampling along a guide and the bilateral solver: their parts as one call of the backend, where nothing is traced.

A backend that has them is used through this; the others, and what `why_in_steps` gives a reason for, compose them of
operators.
"""

from __future__ import annotations

from math import inf
from typing import Any

from torch import Tensor

from permutohedral.ops.dispatch import primitives_for
from permutohedral.ops.guided_primitives import CoarseGrid, GaussianTables, SeenCells, SolverTables
from permutohedral.ops.one_call import in_one_call
from permutohedral.ops.tracing import why_in_steps


def mix_rows(rows: Tensor, vertices: Tensor, weights: Tensor, planes: bool) -> Tensor | None:
    """In one call, None where it is a slice: see `FusedPrimitives.mix_rows`."""
    run = in_one_call("mix_rows", rows, weights)
    return None if run is None else run(rows, vertices, weights, planes)


def sum_cells(
    vertices: Tensor, barycentric: Tensor, coarse: tuple[int, ...], fine: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor] | None:
    """In one call, None where points are sliced and averaged: see `FusedPrimitives.sum_cells`."""
    run = in_one_call("sum_cells", barycentric, vertices)
    return None if run is None else run(vertices, barycentric, coarse, fine)


def _plain_sigmas(guide: Tensor, grid: CoarseGrid, sigma_space: object, sigma_range: object) -> list[float] | None:
    """Bandwidths of the axes and of the channels of a guide, None unless they are plain positive numbers."""
    sigmas: list[float] = []
    for sigma, number in ((sigma_space, len(grid.fine)), (sigma_range, guide.shape[-len(grid.fine) - 1])):
        several: list[Any] = list(sigma) if isinstance(sigma, (list, tuple)) else [sigma] * number
        if len(several) != number or not all(isinstance(each, (int, float)) and 0 < each < inf for each in several):
            return None
        sigmas += several
    return sigmas


def cell_features(guide: Tensor, grid: CoarseGrid, sigma_space: object, sigma_range: object) -> Tensor | None:
    """In one call, None where torch computes it: see `FusedPrimitives.cell_features`.

    Args:
        guide, grid: see there.
        sigma_space: in fine samples; only positive numbers are taken, one, or one for each axis.
        sigma_range: in units of the guide's values, likewise.
    """
    run = in_one_call("cell_features", guide)
    sigmas = None if run is None else _plain_sigmas(guide, grid, sigma_space, sigma_range)
    return None if run is None or sigmas is None else run(guide, grid, sigmas)


def upsample_map(
    rows: Tensor, guide: Tensor, grid: CoarseGrid, sigmas: tuple[object, object], how: tuple[float, int, bool]
) -> Tensor | None:
    """`upsample_rows` along a guide, lattice included, in one call; None where the lattice is built first.

    Args:
        rows: `[coarse samples, channels]`; if one is not finite, the lattice is built first.
        guide: `[..., channels, *fine]`, of one item.
        grid: coarse and fine.
        sigmas: see `cell_features`.
        how: least mass, steps and planes of `FusedPrimitives.upsample_rows`.
    """
    run = in_one_call("upsample_map", guide, rows)
    plain = None if run is None else _plain_sigmas(guide, grid, *sigmas)
    return None if run is None or plain is None else run(rows, guide, grid, plain, *how)


def upsample_rows(
    rows: Tensor, tables: GaussianTables, grid: CoarseGrid, least_mass: float, steps: int, planes: bool
) -> Tensor | None:
    """In one call, None where it is composed: see `FusedPrimitives.upsample_rows`."""
    run = in_one_call("upsample_rows", rows, *tables)
    return None if run is None else run(rows, tables, grid, least_mass, steps, planes)


def add_beside(rows: Tensor, axis_neighbors: Tensor) -> Tensor | None:
    """In one call, None where it is composed: see `FusedPrimitives.add_beside`."""
    run = in_one_call("add_beside", rows, axis_neighbors)
    return None if run is None else run(rows, axis_neighbors)


def balance(scale: Tensor, wanted: Tensor, axis_neighbors: Tensor, steps: int) -> tuple[Tensor, Tensor] | None:
    """In one call, None where it is composed: see `FusedPrimitives.balance`."""
    run = in_one_call("balance", wanted, axis_neighbors)
    return None if run is None else run(scale, wanted, axis_neighbors, steps)


def spread_cells(rows: Tensor, cells: SeenCells, num_lattice_points: int) -> Tensor | None:
    """In one call, None where it is composed: see `FusedPrimitives.spread_cells`."""
    run = in_one_call("spread_cells", rows, cells.barycentric)
    return None if run is None else run(rows, cells, num_lattice_points)


def solve_on_lattice(
    right: Tensor, start: Tensor, tables: SolverTables, iterations: int, tolerance: float
) -> Tensor | None:
    """In one call, None where it is composed: see `FusedPrimitives.solve_on_lattice`."""
    if why_in_steps(right, start, tables.diagonal) is not None:
        return None
    run = getattr(primitives_for(right), "solve_on_lattice", None)
    solution: Tensor | None = None if run is None else run(right, start, tables, iterations, tolerance)
    return solution
