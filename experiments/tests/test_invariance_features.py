"""Features of stacks of transformed images."""

from __future__ import annotations

import math

import pytest
import torch
from support import DEVICE, assert_close
from torch import Tensor

import permutohedral as ph
from experiments.invariance.features import (
    lattice_step,
    log_scale_features,
    rotation_features,
    snap_sigma,
)


def test_a_quarter_turn_is_the_rotated_image() -> None:
    height, width = 4, 6
    image = torch.rand(height, width)
    turned = torch.rot90(image)
    features = rotation_features(height, width, torch.tensor([0.0, 90.0], dtype=torch.float64))
    # the middle stays where it is, so the corner of the turned image moves
    corner = torch.tensor([(height - width) / 2, (width - height) / 2], dtype=torch.float64)
    place = (features[height * width :, :2] - corner).round().long()
    assert torch.equal(turned[place[:, 0], place[:, 1]], image.flatten())
    assert torch.equal(features[: height * width, :2], ph.position_features(height, width, dtype=torch.float64))
    assert features[:, 2].unique().tolist() == [0.0, 9.0]


def test_scaled_positions_move_away_from_the_middle() -> None:
    log_scales = torch.tensor([0.5, 2.0], dtype=torch.float64).log()
    half, double = log_scale_features(3, 5, log_scales, sigma_space=2.0, sigma_scale=0.1).chunk(2)
    middle = torch.tensor([0.5, 1.0], dtype=torch.float64)
    assert_close((double - half)[:, :2], 3 * (half[:, :2] - middle))
    assert_close(double[:, 2], torch.full_like(double[:, 2], 10 * math.log(2)))


@pytest.mark.parametrize(("dimension", "size"), [(2, 1), (3, 1), (3, 2), (5, 1)])
def test_a_lattice_step_moves_the_result_along(dimension: int, size: int) -> None:
    features = torch.rand(60, dimension, dtype=torch.float64, device=DEVICE) * 3
    moved = features.clone()
    moved[:, -1] += lattice_step(dimension)
    filter_size = ph.Neighborhood(dimension, size).filter_size
    weight = torch.randn(filter_size, 1, 2, dtype=torch.float64, device=DEVICE)
    values = torch.rand(60, 1, dtype=torch.float64, device=DEVICE)
    results = [ph.permutohedral_filter(values, points, weight, None, size) for points in (features, moved)]
    assert_close(results[1], results[0])


@pytest.mark.parametrize("sigma", [10.0, 25.0, 400.0])
def test_a_repeated_signal_is_filtered_without_a_seam(sigma: float) -> None:
    """With the rounded bandwidth results a period apart agree, whatever the filter; with another one they do not."""
    angles = 360 * torch.rand(200, dtype=torch.float64, device=DEVICE)
    positions, values = torch.rand(2, 200, 2, dtype=torch.float64, device=DEVICE)
    weight = torch.randn(15, 2, 1, dtype=torch.float64, device=DEVICE)
    turns = max(2, math.ceil(3 * 2 * sigma / 360))

    def seam(bandwidth: float) -> tuple[Tensor, Tensor]:
        repeated = torch.cat([angles + 360 * turn for turn in range(-turns, turns + 2)])
        features = torch.cat([3 * positions.repeat(2 * turns + 2, 1), repeated[:, None] / bandwidth], dim=1)
        targets = torch.cat([3 * positions, angles[:, None] / bandwidth], dim=1)
        beyond = torch.cat([3 * positions, (angles + 360)[:, None] / bandwidth], dim=1)
        filtered = [
            ph.permutohedral_filter(values.repeat(2 * turns + 2, 1), features, weight, points)
            for points in (targets, beyond)
        ]
        return filtered[0], filtered[1]

    here, there = seam(snap_sigma(sigma))
    assert_close(there, here)
    here, there = seam(1.03 * snap_sigma(sigma))
    assert float((there - here).norm()) > 0.001 * float(here.norm())


def test_the_rounded_bandwidth_is_near_the_one_asked_for() -> None:
    for sigma in (5.0, 10.0, 20.0):
        assert abs(snap_sigma(sigma) / sigma - 1) < 0.05
    assert snap_sigma(1e6) == pytest.approx(360 / lattice_step(3))
