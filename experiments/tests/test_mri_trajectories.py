from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from experiments.mri.trajectories import TRAJECTORIES, Domain, TrajectoryKind, make_trajectory
from permutohedral.errors import InputError

SIZE = 64


@pytest.mark.parametrize("kind", TRAJECTORIES)
@pytest.mark.parametrize("domain", get_args(Domain))
@pytest.mark.parametrize("factor", [2.0, 4.0, 8.0])
def test_there_are_as_many_samples_as_the_factor_says(kind: TrajectoryKind, domain: Domain, factor: float) -> None:
    samples = len(make_trajectory(kind, domain, SIZE, factor).positions)
    assert abs(samples * factor / SIZE**2 - 1) < 0.05


@pytest.mark.parametrize("kind", TRAJECTORIES)
@pytest.mark.parametrize("factor", [2.0, 4.0, 8.0])
def test_samples_of_the_spectrum_fill_its_disc(kind: TrajectoryKind, factor: float) -> None:
    trajectory = make_trajectory(kind, "spectrum", SIZE, factor, rotation=0.3)
    distance = trajectory.positions.norm(dim=1)
    assert float(distance.max()) <= SIZE / 2 + 1e-9
    assert float(distance.max()) > SIZE / 2 - 1
    # the areas share the disc among them
    assert abs(float(trajectory.areas.sum()) / (math.pi * SIZE**2 / 4) - 1) < 0.05


@pytest.mark.parametrize("kind", TRAJECTORIES)
def test_samples_at_the_center_share_its_disc(kind: TrajectoryKind) -> None:
    trajectory = make_trajectory(kind, "spectrum", SIZE, 4.0)
    center = trajectory.positions.norm(dim=1) < 0.25
    assert int(center.sum()) >= 4
    assert float(trajectory.areas[center].sum()) == pytest.approx(math.pi / 4)


@pytest.mark.parametrize("kind", TRAJECTORIES)
def test_samples_of_the_image_reach_into_its_corners(kind: TrajectoryKind) -> None:
    positions = make_trajectory(kind, "image", SIZE, 4.0, rotation=0.7).positions
    assert float(positions.abs().max()) <= (SIZE - 1) / 2
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 2) * (SIZE - 1) / 2
    assert float(torch.cdist(corners, positions).min(dim=1).values.max()) < 6


@pytest.mark.parametrize("domain", get_args(Domain))
def test_samples_on_a_spiral_are_one_unit_apart(domain: Domain) -> None:
    trajectory = make_trajectory("spiral", domain, SIZE, 4.0)
    arm = trajectory.positions[: len(trajectory.positions) // 8]
    steps = arm[arm.norm(dim=1) > 4].diff(dim=0).norm(dim=1)
    # chords are a little shorter than their arcs, more so near the center
    assert len(steps) > 50
    assert float(steps.min()) > 0.98
    assert float(steps.max()) < 1.001


def test_turns_are_as_far_apart_as_the_areas_say() -> None:
    positions, areas = (lambda t: (t.positions, t.areas))(make_trajectory("spiral", "spectrum", SIZE, 4.0))
    distance = positions.norm(dim=1)
    along_x = (positions[:, 0].abs() < 0.6) & (positions[:, 1] > 8)
    crossings = distance[along_x].sort()
    gaps = crossings.values.diff()
    between = areas[along_x][crossings.indices]
    wide = gaps > 1.5
    assert int(wide.sum()) >= 3
    assert float((gaps[wide] / (between[1:] + between[:-1])[wide] * 2 - 1).abs().max()) < 0.25


def test_a_rotation_turns_every_sample() -> None:
    straight = make_trajectory("radial", "spectrum", SIZE, 8.0)
    turned = make_trajectory("radial", "spectrum", SIZE, 8.0, rotation=math.pi / 2)
    expected = torch.stack([straight.positions[:, 1], -straight.positions[:, 0]], dim=1)
    assert float((turned.positions - expected).abs().max()) < 1e-9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("circle", "image", 64, 2.0), "there is no trajectory 'circle'"),
        (("radial", "sound", 64, 2.0), "of the 'sound'"),
        (("radial", "image", 64, 0.5), "factor between 1 and size"),
        (("radial", "image", 4, 2.0), "size must be at least 8"),
    ],
)
def test_rejects_wrong_arguments(arguments: tuple[str, str, int, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_trajectory(*arguments)  # type: ignore[arg-type]
