"""Upsampling along a guide and the bilateral solver: their parts as one call of the backend, where nothing is traced.

A backend that has them is used through this; the others, and what `why_in_steps` gives a reason for, compose them of
operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from math import inf
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from permutohedral.ops.guided_primitives import CoarseGrid, GuidedPrimitives
from permutohedral.ops.one_call import in_one_call

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _tensors_of(arguments: tuple[Any, ...]) -> Iterator[Tensor]:
    for each in arguments:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, tuple):
            yield from _tensors_of(each)


def _fused(primitive: Callable[Concatenate[Any, Arguments], Result]) -> Callable[Arguments, Result | None]:
    """A primitive of the backend of its tensors, None where it is composed: see `in_one_call`."""

    @wraps(primitive)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result | None:
        function = in_one_call(primitive.__name__, *_tensors_of(args))
        return None if function is None else function(*args, **kwargs)

    return run


mix_rows = _fused(GuidedPrimitives.mix_rows)
sum_cells = _fused(GuidedPrimitives.sum_cells)
upsample_rows = _fused(GuidedPrimitives.upsample_rows)
add_beside = _fused(GuidedPrimitives.add_beside)
balance = _fused(GuidedPrimitives.balance)
spread_cells = _fused(GuidedPrimitives.spread_cells)
solve_on_lattice = _fused(GuidedPrimitives.solve_on_lattice)
_cell_features = _fused(GuidedPrimitives.cell_features)
_upsample_map = _fused(GuidedPrimitives.upsample_map)


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
    """See `GuidedPrimitives.cell_features`; None where torch computes it.

    Args:
        guide, grid: see there.
        sigma_space: in fine samples; only positive numbers are taken, one, or one for each axis.
        sigma_range: in units of the guide's values, likewise.
    """
    sigmas = _plain_sigmas(guide, grid, sigma_space, sigma_range)
    return None if sigmas is None else _cell_features(guide, grid, sigmas)


def upsample_map(
    rows: Tensor, guide: Tensor, grid: CoarseGrid, sigmas: tuple[object, object], how: tuple[float, int, bool]
) -> Tensor | None:
    """`upsample_rows` along a guide, lattice included; None where the lattice is built first.

    Args:
        rows: `[coarse samples, channels]`; if one is not finite, the lattice is built first.
        guide: `[..., channels, *fine]`, of one item.
        grid: coarse and fine.
        sigmas: see `cell_features`.
        how: least mass, steps and planes of `upsample_rows`.
    """
    plain = _plain_sigmas(guide, grid, *sigmas)
    return None if plain is None else _upsample_map(rows, guide, grid, plain, *how)
