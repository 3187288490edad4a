"""Scenes: heights above the ground and training crops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from town import GROUND, HOUSE, TREE, make_town

from experiments.lidar.scenes import (
    UNKNOWN,
    VALUE_CHANNELS,
    Cropping,
    Scene,
    draw_crop,
    heights_above_ground,
    join_scenes,
    make_scene,
)
from permutohedral.apps.jobs.cloud_tiles import measure_density
from permutohedral.errors import InputError

PLAIN = Cropping(20.0, 20.0, 10**6, 1e3, 1e3, scale=0.0, jitter=0.0, lift=0.0, turn=False)


def town(points: int = 3000) -> Scene:
    positions, labels = make_town(points)
    return make_scene(positions, labels.long())


def draw(scene: Scene, cropping: Cropping, seed: int = 0) -> Scene:
    return draw_crop(scene, cropping, torch.Generator().manual_seed(seed))


def test_scenes_lie_near_the_origin_and_have_heights() -> None:
    positions, labels = make_town()
    scene = make_scene(positions, labels.long())
    assert scene.positions.dtype == torch.float32
    between = (positions - positions[0]).float()
    torch.testing.assert_close(scene.positions - scene.positions[0], between, atol=1e-4, rtol=0)
    assert scene.values().shape == (3000, VALUE_CHANNELS)
    without = make_scene(positions, above="median")
    assert float(without.heights.median()) == 0.0
    assert not bool(make_scene(positions, above="nothing").heights.any())
    assert len((without.heights - without.positions[:, 2:]).round(decimals=3).unique()) == 1


def test_plain_crops_are_squares_of_the_scene() -> None:
    scene, crop = town(), draw(town(), PLAIN)
    assert crop.labels is not None
    assert scene.labels is not None
    assert bool((crop.positions[:, :2].abs() < 10).all())
    # heights identify points: each has its class and its position, up to one shift
    row = {tuple(heights): number for number, heights in enumerate(scene.heights.tolist())}
    rows = torch.tensor([row[tuple(heights)] for heights in crop.heights.tolist()])
    assert torch.equal(crop.labels, scene.labels[rows])
    shifts = scene.positions[rows] - crop.positions
    torch.testing.assert_close(shifts, shifts[:1].expand_as(shifts), atol=1e-4, rtol=0)
    # and nothing of the square is missing
    inside = (scene.positions[:, :2] - shifts[0, :2]).abs().amax(dim=1) < 9.99
    assert set(inside.nonzero()[:, 0].tolist()) <= set(rows.tolist())


def test_rotation_keeps_distances_and_scaling_changes_them() -> None:
    scene = town()
    turned = draw(scene, Cropping(60.0, 60.0, 10**6, 1e3, 1e3, scale=0.0, jitter=0.0, lift=0.0))
    # the square is wider than the town but for its corners
    assert len(turned.positions) > 1500
    crop = draw(scene, Cropping(200.0, 200.0, 10**6, 1e3, 1e3, scale=0.0, jitter=0.0, lift=0.0))
    expected = torch.pdist(scene.positions[:50])
    torch.testing.assert_close(torch.pdist(crop.positions[:50]), expected, atol=1e-3, rtol=0)
    scaled = draw(scene, Cropping(200.0, 200.0, 10**6, 1e3, 1e3, scale=0.3, jitter=0.0, lift=0.0))
    ratio = torch.pdist(scaled.positions[:50]) / expected
    assert float(ratio.max() - ratio.min()) < 1e-3
    assert 0.7 < float(ratio.mean()) < 1.3
    assert abs(float(ratio.mean()) - 1) > 1e-3
    torch.testing.assert_close(scaled.heights, scene.heights * float(ratio.mean()), atol=1e-3, rtol=1e-3)


def test_crops_are_thinned() -> None:
    scene = town(20_000)
    assert measure_density(scene.positions) == pytest.approx(12.5, rel=0.05)
    sparse = draw(scene, Cropping(20.0, 20.0, 10**6, 3.0, 3.0))
    assert measure_density(sparse.positions) == pytest.approx(3.0, rel=0.2)
    assert 300 < len(draw(scene, Cropping(40.0, 40.0, 500)).positions) < 600


def test_crops_are_reproducible() -> None:
    scene = town()
    assert torch.equal(draw(scene, Cropping()).positions, draw(scene, Cropping()).positions)
    assert len(draw(scene, Cropping()).positions) != len(draw(scene, Cropping(), seed=1).positions)


def test_crops_are_centered_on_labelled_points() -> None:
    scene = town()
    labels = torch.full_like(scene.labels, UNKNOWN)  # type: ignore[arg-type]
    labels[7] = 1
    crop = draw(Scene(scene.positions, scene.heights, labels), PLAIN)
    assert crop.labels is not None
    [place] = (crop.labels == 1).nonzero().tolist()
    assert crop.positions[place, :2].abs().max() < 1e-4


def test_joined_scenes_are_a_ragged_batch() -> None:
    scene = town(100)
    both, item = join_scenes([scene.select(torch.arange(30)), scene.select(torch.arange(30, 100))])
    assert torch.equal(both.positions, scene.positions)
    assert item.tolist() == [0] * 30 + [1] * 70


def test_rejects_bad_crops() -> None:
    with pytest.raises(InputError, match="0 < smallest <= largest"):
        Cropping(smallest=50.0, largest=40.0)
    with pytest.raises(InputError, match="0 < sparsest <= densest"):
        Cropping(sparsest=20.0)


def test_heights_on_a_slope() -> None:
    positions, labels = make_town(6000)
    heights = heights_above_ground(positions, window=16.0)
    assert heights.dtype == torch.float64
    # cells of two meters on a slope of one tenth
    inner = (positions[:, 0] - positions[:, 0].mean()).abs() < 10
    assert float(heights[inner & (labels == GROUND)].abs().max()) < 0.3
    assert float((heights[labels == HOUSE] - 6).abs().max()) < 0.3
    assert 1.8 < float(heights[labels == TREE].min()) < float(heights[labels == TREE].max()) < 8.5
    # at the upper edge the window has lower points only
    assert float(heights[labels == GROUND].max()) < 0.1 * 8 + 0.3


def test_structures_wider_than_the_window_are_ground() -> None:
    positions, labels = make_town(6000)
    assert float(heights_above_ground(positions, window=4.0, cell=1.0)[labels == HOUSE].median()) < 0.5


def test_ignores_points_far_below() -> None:
    positions, _ = make_town(6000)
    expected = heights_above_ground(positions, window=16.0)
    # a few in one place, as below a glass roof
    deep = positions[:3] - torch.tensor([0.0, 0.0, 30.0])
    with_noise = heights_above_ground(torch.cat([positions, deep]), window=16.0)
    assert float((with_noise[: len(expected)] - expected).abs().max()) < 0.2


def test_heights_do_not_depend_on_order_and_origin() -> None:
    positions, _ = make_town(2000)
    expected = heights_above_ground(positions, window=16.0)
    order = torch.from_numpy(np.random.default_rng(0).permutation(2000))
    moved = positions + torch.tensor([0.0, 0.0, 77.0])
    torch.testing.assert_close(heights_above_ground(moved[order], window=16.0), expected[order])


def test_heights_of_few_points() -> None:
    assert heights_above_ground(torch.zeros(0, 3), window=16.0).shape == (0,)
    assert heights_above_ground(torch.ones(1, 3), window=16.0).tolist() == [0.0]
    # two places so far apart that there is no ground between them
    apart = torch.tensor([[0.0, 0.0, 5.0], [500.0, 500.0, 9.0]])
    assert heights_above_ground(apart, window=16.0).tolist() == [0.0, 0.0]


def test_rejects_clouds_that_are_too_wide() -> None:
    with pytest.raises(InputError, match="remove points that are far from all others"):
        heights_above_ground(torch.tensor([[0.0, 0.0, 0.0], [1e6, 1e6, 0.0]]), window=16.0)
