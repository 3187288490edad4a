from __future__ import annotations

import pytest
import torch

from permutohedral.data.solids import SOLIDS, make_clouds
from permutohedral.errors import InputError


@pytest.mark.parametrize("name", SOLIDS)
def test_normals_stand_on_the_surface(name: str) -> None:
    positions, normals = SOLIDS[name](3000, torch.Generator().manual_seed(0))
    assert float((normals.norm(dim=1) - 1).abs().max()) < 1e-5
    # the nearest other point lies in the tangent plane, except where two faces meet
    apart = torch.cdist(positions, positions).fill_diagonal_(torch.inf)
    nearest = positions[apart.argmin(dim=1)] - positions
    slope = (nearest * normals).sum(dim=1).abs() / nearest.norm(dim=1)
    assert float(slope.median()) < 0.15


@pytest.mark.parametrize("name", SOLIDS)
def test_normals_point_outward(name: str) -> None:
    positions, normals = SOLIDS[name](3000, torch.Generator().manual_seed(0))
    # the divergence theorem: the mean of x . n over a closed surface is three volumes over its area, which is positive
    assert float(((positions - positions.mean(dim=0)) * normals).sum(dim=1).mean()) > 0.05


def test_points_lie_evenly_on_a_torus() -> None:
    positions, _ = SOLIDS["torus"](20_000, torch.Generator().manual_seed(0))
    ring = positions[:, :2].norm(dim=1)
    thickness = float(positions[:, 2].abs().max())
    # the outer half has (pi + 2 thickness) / (2 pi) of the area
    expected = 0.5 + thickness / torch.pi
    assert abs(float((ring > 1).float().mean()) - expected) < 0.015


def test_clouds_are_reproducible_ragged_and_within_the_unit_ball() -> None:
    clouds, again, other = make_clouds(40, seed=3), make_clouds(40, seed=3), make_clouds(40, seed=4)
    assert torch.equal(clouds.positions, again.positions)
    assert not torch.equal(clouds.positions[:10], other.positions[:10])
    counts = torch.bincount(clouds.item)
    assert len(counts) == 40
    assert int(counts.min()) > 20
    assert len(counts.unique()) > 10
    # noise reaches a little beyond
    assert float(clouds.positions.norm(dim=1).max()) < 1.2
    assert set(clouds.labels.tolist()) == set(range(len(SOLIDS)))


def test_a_scan_shows_one_side_only() -> None:
    clouds = make_clouds(60, seed=0, noise=0.0)
    assert float(clouds.normals[:, 2].min()) > -0.11


def test_clouds_can_be_selected() -> None:
    clouds = make_clouds(10, seed=0)
    chosen = clouds.select(torch.tensor([7, 2]))
    assert torch.equal(chosen.labels, clouds.labels[[7, 2]])
    assert torch.equal(chosen.positions[chosen.item == 1], clouds.positions[clouds.item == 2])
    assert torch.equal(chosen.normals[chosen.item == 0], clouds.normals[clouds.item == 7])


@pytest.mark.parametrize("arguments", [{"number": 0}, {"points": (8, 9)}, {"points": (64, 40)}, {"noise": -1.0}])
def test_what_cannot_be_made_is_told(arguments: dict[str, object]) -> None:
    with pytest.raises(InputError, match="cannot make"):
        make_clouds(**({"number": 2, "seed": 0} | arguments))  # type: ignore[arg-type]
