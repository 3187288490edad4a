"""Upsampling in one call, in Triton's interpreter, against the same composed of operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import assert_close
from torch import Tensor

import permutohedral as ph
from permutohedral.guided import joint
from permutohedral.guided.grids import Grids
from permutohedral.ops import triton as kernels
from permutohedral.ops.contract import Declined
from permutohedral.ops.dispatch import use_backend

# coarse and fine extents, axes of items, whether these share the guide, and channels
CASES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], bool, int, str]] = [
    ((2, 3), (8, 9), (), True, 1, "area"),
    ((3, 2), (7, 9), (2,), False, 3, "area"),
    ((2, 2), (5, 4), (3,), True, 2, "point"),
    ((4,), (11,), (), True, 1, "point"),
    ((2, 1, 2), (3, 4, 5), (1,), False, 2, "area"),
]


def corner_by_corner(table: Tensor) -> Tensor:
    return table.T.contiguous().T


@pytest.mark.parametrize("case", CASES, ids=str)
def test_upsample_rows(case: Any) -> None:
    size, space, leading, shared, channels, sampling = case
    generator = torch.Generator().manual_seed(len(space))
    coarse = torch.rand(*leading, channels, *size, generator=generator, dtype=torch.float64)
    guide = torch.rand(*([] if shared else leading), 2, *space, generator=generator, dtype=torch.float64)
    if not shared:
        # reached by nothing
        guide[..., -1] = 100.0
    with use_backend("reference"):
        upsampler = ph.Upsampler(guide, size, None, 0.7, sampling=sampling, spatial_axes=len(space))
        expected = upsampler(coarse, steps=2)
    lattice = upsampler._joint.lattice
    sides = (lattice.source, lattice.target)
    (vertices, weights), targets = ([corner_by_corner(t) for t in (side.vertices, side.barycentric)] for side in sides)
    assert lattice.axis_neighbors is not None
    tables = vertices, weights, lattice.axis_neighbors, targets[0], targets[1]
    items = 1 if shared else len(guide)
    rows = coarse.reshape(items, -1, upsampler.grids.table.cells).mT.reshape(items * upsampler.grids.table.cells, -1)
    for planes in (True, False):
        found = kernels.upsample_rows(rows, tables, upsampler.grids.table, joint.LEAST_MASS, 2, planes)
        assert not isinstance(found, Declined)
        found = found if planes else found.view(items, -1, rows.shape[1]).mT
        assert_close(found.reshape(expected.shape), expected)


@pytest.mark.parametrize("sampling", ["area", "point"])
def test_cell_features(sampling: Any) -> None:
    guide, grids = torch.rand(2, 3, 7, 10), Grids((3, 4), (7, 10), sampling)
    with use_backend("reference"):
        expected = joint.joint_features(guide, grids, (1.5, 2.5), 0.3)
    with use_backend("triton"):
        found = joint.joint_features(guide, grids, (1.5, 2.5), 0.3)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


def test_upsample_map() -> None:
    """On lattices of more points than were expected and of fewer; and of a map that is left to the composition."""
    coarse, guide = torch.rand(1, 1, 2, 2), torch.rand(1, 1, 4, 5)
    holes = coarse.clone()
    holes[0, 0, 1, 1] = torch.nan
    # no point lies on a side of a simplex, where rounding decides between two
    for maps, sigmas in ((coarse, (1.83, 0.31)), (coarse, (7.83, 3.1)), (holes, (7.83, 3.1))):
        with use_backend("reference"):
            expected = ph.upsample(maps.double(), guide.double(), *sigmas)
        with use_backend("triton"):
            assert_close(ph.upsample(maps, guide, *sigmas), expected)
