"""Fused functions of a backend against their definitions in `Backend`, which its primitives compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from mean_field_cases import field, move
from support import DEVICE, assert_close, draw
from torch import Tensor

import permutohedral as ph
from permutohedral.ops.backend import Backend
from permutohedral.ops.contract import FieldPlan, FilterTables
from permutohedral.ops.dispatch import backend_on
from permutohedral.ops.items import ItemRows, ItemsNorm


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


CASES: dict[str, Callable[[torch.dtype], tuple[Any, ...]]] = {
    "picture_features": lambda dtype: (draw(2, 3, 8, 9, dtype=dtype), [2.0, 2.0], [0.5] * 3, (0, 0), 0.25),
    "filter_points": lambda dtype: (draw(60, 4, dtype=dtype), 3 * draw(60, 3, dtype=dtype), None, fits),
    "filter_gaussian": filter_gaussian,
    "filter_learned": filter_learned,
    "mean_field": mean_field,
    "normalize_items": normalize_items,
    "slice_planes": slice_planes,
    "embed_differential": lambda dtype: (draw(60, 3, dtype=dtype), draw(60, 3, seed=1, dtype=dtype)),
}


@pytest.mark.parametrize("name", CASES)
def test_overrides_equal_their_definitions(name: str, backend: str, dtype: torch.dtype) -> None:
    ops, arguments = backend_on(DEVICE.type), CASES[name](dtype)
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
