"""Levels: pyramids of nested lattices, and operations that move lattice values between them."""

from __future__ import annotations

from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.lattice.bounded import build_bounded_pyramid
from permutohedral.lattice.checks import (
    bind_on_lattice,
    check_weight,
    count,
    lattice_to_rows,
    to_autocast,
    unfold,
)
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.memory import check_rows
from permutohedral.lattice.pyramid import LatticePyramid, LevelTables, build_pyramid
from permutohedral.ops.contract import accumulation_dtype

__all__ = [
    "LatticePyramid",
    "LevelTables",
    "build_bounded_pyramid",
    "build_pyramid",
    "coarsen",
    "convolve_down",
    "convolve_up",
    "pool",
    "refine",
]


def coarsen(lattice_values: Tensor, pyramid: LatticePyramid, level: int) -> Tensor:
    """Sum lattice values into the next coarser level: P^T, which maps splatted values to those splatted there.

    Args:
        lattice_values: `[lattice_points, channels]` of `level`, or `[..., lattice_points, channels]`.
        pyramid: from `build_pyramid`.
        level: of `lattice_values`; the result is on `level + 1`.

    Returns:
        `[coarse lattice_points, channels]`, with the leading axes of `lattice_values`.

    >>> import torch
    >>> import permutohedral as ph
    >>> pyramid = ph.levels.build_pyramid(torch.rand(100, 3, dtype=torch.float64) * 9, num_levels=2)
    >>> values = torch.rand(100, 2, dtype=torch.float64)
    >>> fine, coarse = (ph.splat(values, lattice) for lattice in pyramid.levels)
    >>> bool(torch.allclose(ph.levels.coarsen(fine, pyramid, level=0), coarse))
    True
    """
    fine, coarse, tables = _between(pyramid, level)
    ops = bind_on_lattice(lattice_values, fine, fine.source)
    rows, leading = lattice_to_rows(lattice_values)
    check_rows(coarse.num_lattice_points, rows.shape[1], rows)
    shares = _half_shares(rows, tables.parents)
    return unfold(ops.splat(rows, tables.parents, shares, coarse.num_lattice_points), leading)


def refine(lattice_values: Tensor, pyramid: LatticePyramid, level: int) -> Tensor:
    """Interpolate lattice values on the next finer level: P, the adjoint of `coarsen`; slices stay the same.

    Args:
        lattice_values: `[coarse lattice_points, channels]` of `level + 1`, or with leading axes.
        pyramid: from `build_pyramid`.
        level: of the result.

    Returns:
        `[lattice_points, channels]`, with the leading axes of `lattice_values`.

    >>> import torch
    >>> import permutohedral as ph
    >>> pyramid = ph.levels.build_pyramid(torch.rand(100, 3) * 9, num_levels=2)
    >>> coarse = torch.ones(pyramid.levels[1].num_lattice_points, 1)
    >>> bool((ph.levels.refine(coarse, pyramid, level=0) == 1).all())
    True
    """
    fine, coarse, tables = _between(pyramid, level)
    ops = bind_on_lattice(lattice_values, coarse, coarse.source)
    rows, leading = lattice_to_rows(lattice_values)
    check_rows(fine.num_lattice_points, rows.shape[1], rows)
    means = ops.slice(rows, tables.parents, _half_shares(rows, tables.parents))
    return unfold(means, leading)


def convolve_down(lattice_values: Tensor, weight: Tensor, pyramid: LatticePyramid, level: int) -> Tensor:
    """Convolve with a stride of 2: at each coarse lattice point J, l'_J = sum_k w_k l_{2 J + offset_k}.

    Args:
        lattice_values: `[lattice_points, in_channels]` of `level`, or with leading axes.
        weight: `[filter_size, in_channels / groups, out_channels]`, or `[filter_size]`, one filter for every channel.
        pyramid: from `build_pyramid`.
        level: of `lattice_values`; the result is on `level + 1`.

    Returns:
        `[coarse lattice_points, out_channels]`, with the leading axes of `lattice_values`.

    >>> import torch
    >>> import permutohedral as ph
    >>> pyramid = ph.levels.build_pyramid(torch.rand(100, 2) * 9, num_levels=2)
    >>> fine = torch.rand(pyramid.levels[0].num_lattice_points, 4)
    >>> ph.levels.convolve_down(fine, torch.randn(7, 4, 8), pyramid, level=0).shape[1]
    8
    """
    fine, _, tables = _between(pyramid, level)
    return _convolve_between(lattice_values, weight, fine, tables.down, tables.up)


def convolve_up(lattice_values: Tensor, weight: Tensor, pyramid: LatticePyramid, level: int) -> Tensor:
    """Run the transposed convolution: at each fine lattice point x, l'_x = sum_k w_k l_{(x + offset_k) / 2}.

    The sum is over the taps that lie on the coarse lattice: one or two for a filter of size 1, none is missed.

    Args:
        lattice_values: `[coarse lattice_points, in_channels]` of `level + 1`, or with leading axes.
        weight: see `convolve_down`.
        pyramid: from `build_pyramid`.
        level: of the result.

    Returns:
        `[lattice_points, out_channels]`, with the leading axes of `lattice_values`.

    >>> import torch
    >>> import permutohedral as ph
    >>> pyramid = ph.levels.build_pyramid(torch.rand(100, 2) * 9, num_levels=2)
    >>> coarse = torch.rand(pyramid.levels[1].num_lattice_points, 8)
    >>> ph.levels.convolve_up(coarse, torch.randn(7, 8, 4), pyramid, level=0).shape[1]
    4
    """
    _, coarse, tables = _between(pyramid, level)
    return _convolve_between(lattice_values, weight, coarse, tables.up, tables.down)


def pool(lattice_values: Tensor, pyramid: LatticePyramid, level: int) -> Tensor:
    """Return the largest value of each channel among a coarse lattice point and the fine ones around it.

    Args:
        lattice_values: `[lattice_points, channels]` of `level`, or with leading axes.
        pyramid: from `build_pyramid`.
        level: of `lattice_values`; the result is on `level + 1`.

    Returns:
        `[coarse lattice_points, channels]`, with the leading axes of `lattice_values`.

    >>> import torch
    >>> import permutohedral as ph
    >>> pyramid = ph.levels.build_pyramid(torch.rand(100, 2) * 9, num_levels=2)
    >>> fine = torch.rand(pyramid.levels[0].num_lattice_points, 4)
    >>> bool(ph.levels.pool(fine, pyramid, level=0).max() == fine.max())
    True
    """
    fine, coarse, tables = _between(pyramid, level)
    ops = bind_on_lattice(lattice_values, fine, fine.source)
    rows, leading = lattice_to_rows(lattice_values)
    check_rows(coarse.num_lattice_points, rows.shape[1], rows)
    return unfold(ops.splat_largest(rows, tables.parents, coarse.num_lattice_points), leading)


def tables_between(pyramid: LatticePyramid, level: int) -> LevelTables:
    """Return the tables between a level and the next.

    >>> import torch
    >>> import permutohedral as ph
    >>> tables_between(ph.levels.build_pyramid(torch.zeros(9, 2), num_levels=2), level=0).down.shape
    torch.Size([7, 3])
    """
    steps = len(pyramid.tables)
    if type(level) is not int or not 0 <= level < steps:
        raise InputError(
            f"level must be the finer of two levels of the pyramid, from 0 to {steps - 1}, got {level!r}; build the "
            "pyramid with more levels"
        )
    return pyramid.tables[level]


def _half_shares(values: Tensor, parents: Tensor) -> Tensor:
    """Return the weight of both parents of each lattice point, like parents."""
    return values.new_full((1, 1), 0.5, dtype=accumulation_dtype(values.dtype)).expand(parents.shape)


def _between(pyramid: LatticePyramid, level: int) -> tuple[Lattice, Lattice, LevelTables]:
    """Return the fine and the coarse lattice, and the tables between them."""
    tables = tables_between(pyramid, level)
    return pyramid.levels[level], pyramid.levels[level + 1], tables


def _convolve_between(
    lattice_values: Tensor, weight: Tensor, source: Lattice, neighbors: Tensor, reverse: Tensor
) -> Tensor:
    ops = bind_on_lattice(lattice_values, source, source.source, weight)
    rows, leading = lattice_to_rows(lattice_values)
    rows, weight = to_autocast(rows, weight)
    weight, groups = check_weight(weight, rows.shape[1] // max(count(leading), 1), rows, source)
    # items that share a lattice are folded into channels, so they are groups of their own
    if count(leading) > 1:
        weight, groups = weight.repeat(1, 1, count(leading)), groups * count(leading)
    check_rows(neighbors.shape[1], weight.shape[2], rows)
    opposite = source.neighborhood.opposite(source.device)
    return unfold(ops.convolve(rows, weight, neighbors, groups, reverse, opposite), leading)
