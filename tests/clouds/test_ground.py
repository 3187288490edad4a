"""Heights above the ground."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from town import GROUND, HOUSE, TREE, make_town

from permutohedral.clouds.ground import heights_above_ground
from permutohedral.errors import InputError


def test_what_stands_on_a_slope_is_as_high_as_it_is() -> None:
    positions, labels = make_town(6000)
    heights = heights_above_ground(positions, window=16.0)
    assert heights.dtype == torch.float64
    # cells of two meters on a slope of one tenth
    inner = (positions[:, 0] - positions[:, 0].mean()).abs() < 10
    assert float(heights[inner & (labels == GROUND)].abs().max()) < 0.3
    assert float((heights[labels == HOUSE] - 6).abs().max()) < 0.3
    assert 1.8 < float(heights[labels == TREE].min()) < float(heights[labels == TREE].max()) < 8.5
    # at the upper edge of the cloud the window sees only what is below
    assert float(heights[labels == GROUND].max()) < 0.1 * 8 + 0.3


def test_what_is_wider_than_the_window_is_ground() -> None:
    positions, labels = make_town(6000)
    assert float(heights_above_ground(positions, window=4.0, cell=1.0)[labels == HOUSE].median()) < 0.5


def test_points_far_below_change_nothing() -> None:
    positions, _ = make_town(6000)
    expected = heights_above_ground(positions, window=16.0)
    # a few in one place, as light that went through a glass roof
    deep = positions[:3] - torch.tensor([0.0, 0.0, 30.0])
    with_noise = heights_above_ground(torch.cat([positions, deep]), window=16.0)
    assert float((with_noise[: len(expected)] - expected).abs().max()) < 0.2


def test_the_order_and_the_origin_do_not_matter() -> None:
    positions, _ = make_town(2000)
    expected = heights_above_ground(positions, window=16.0)
    order = torch.from_numpy(np.random.default_rng(0).permutation(2000))
    moved = positions + torch.tensor([0.0, 0.0, 77.0])
    torch.testing.assert_close(heights_above_ground(moved[order], window=16.0), expected[order])


def test_few_points() -> None:
    assert heights_above_ground(torch.zeros(0, 3), window=16.0).shape == (0,)
    assert heights_above_ground(torch.ones(1, 3), window=16.0).tolist() == [0.0]
    # two places so far apart that there is no ground between them
    apart = torch.tensor([[0.0, 0.0, 5.0], [500.0, 500.0, 9.0]])
    assert heights_above_ground(apart, window=16.0).tolist() == [0.0, 0.0]


def test_a_cloud_without_end_is_refused() -> None:
    with pytest.raises(InputError, match="remove points that are far from all others"):
        heights_above_ground(torch.tensor([[0.0, 0.0, 0.0], [1e6, 1e6, 0.0]]), window=16.0)
