"""Scenes: crops to train on, tiles, and classes of all points."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from town import make_town

from permutohedral.clouds.classify import classify_points
from permutohedral.clouds.scenes import (
    DENSEST,
    UNKNOWN,
    VALUE_CHANNELS,
    Cropping,
    Scene,
    cut_tiles,
    density_of,
    draw_crop,
    join,
    make_scene,
)
from permutohedral.data.lidar import to_classes
from permutohedral.errors import InputError

PLAIN = Cropping(20.0, 20.0, 10**6, 1e3, 1e3, scale=0.0, jitter=0.0, lift=0.0, turn=False)


def town(points: int = 3000) -> Scene:
    positions, labels = make_town(points)
    return make_scene(positions, to_classes(labels))


def draw(scene: Scene, cropping: Cropping, seed: int = 0) -> Scene:
    return draw_crop(scene, cropping, torch.Generator().manual_seed(seed))


def test_a_scene_is_near_the_origin_and_has_heights() -> None:
    positions, labels = make_town()
    scene = make_scene(positions, to_classes(labels))
    assert scene.positions.dtype == torch.float32
    between = (positions - positions[0]).float()
    torch.testing.assert_close(scene.positions - scene.positions[0], between, atol=1e-4, rtol=0)
    assert scene.values().shape == (3000, VALUE_CHANNELS)
    without = make_scene(positions, above="median")
    assert float(without.heights.median()) == 0.0
    assert not bool(make_scene(positions, above="nothing").heights.any())
    assert len((without.heights - without.positions[:, 2:]).round(decimals=3).unique()) == 1


def test_a_plain_crop_is_a_square_of_the_scene() -> None:
    scene, crop = town(), draw(town(), PLAIN)
    assert crop.labels is not None
    assert scene.labels is not None
    assert bool((crop.positions[:, :2].abs() < 10).all())
    # heights tell points apart: each is where it was, up to one shift, with its class
    row = {tuple(heights): number for number, heights in enumerate(scene.heights.tolist())}
    rows = torch.tensor([row[tuple(heights)] for heights in crop.heights.tolist()])
    assert torch.equal(crop.labels, scene.labels[rows])
    shifts = scene.positions[rows] - crop.positions
    torch.testing.assert_close(shifts, shifts[:1].expand_as(shifts), atol=1e-4, rtol=0)
    # and nothing of the square is missing
    inside = (scene.positions[:, :2] - shifts[0, :2]).abs().amax(dim=1) < 9.99
    assert set(inside.nonzero()[:, 0].tolist()) <= set(rows.tolist())


def test_turning_keeps_distances_and_scaling_changes_them() -> None:
    scene = town()
    turned = draw(scene, Cropping(60.0, 60.0, 10**6, 1e3, 1e3, scale=0.0, jitter=0.0, lift=0.0))
    # the square is wider than the town in any direction but its corners: most points are there, in their order
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


def test_crops_are_thinned_out() -> None:
    scene = town(20_000)
    assert density_of(scene.positions) == pytest.approx(12.5, rel=0.05)
    sparse = draw(scene, Cropping(20.0, 20.0, 10**6, 3.0, 3.0))
    assert density_of(sparse.positions) == pytest.approx(3.0, rel=0.2)
    assert 300 < len(draw(scene, Cropping(40.0, 40.0, 500)).positions) < 600


def test_the_same_numbers_draw_the_same_crop() -> None:
    scene = town()
    assert torch.equal(draw(scene, Cropping()).positions, draw(scene, Cropping()).positions)
    assert len(draw(scene, Cropping()).positions) != len(draw(scene, Cropping(), seed=1).positions)


def test_crops_are_around_points_whose_class_is_known() -> None:
    scene = town()
    labels = torch.full_like(scene.labels, UNKNOWN)  # type: ignore[arg-type]
    labels[7] = 1
    crop = draw(Scene(scene.positions, scene.heights, labels), PLAIN)
    assert crop.labels is not None
    [place] = (crop.labels == 1).nonzero().tolist()
    assert crop.positions[place, :2].abs().max() < 1e-4


def test_joined_scenes_are_a_ragged_batch() -> None:
    scene = town(100)
    both, item = join([scene.select(torch.arange(30)), scene.select(torch.arange(30, 100))])
    assert torch.equal(both.positions, scene.positions)
    assert item.tolist() == [0] * 30 + [1] * 70


def test_wrong_crops_are_refused() -> None:
    with pytest.raises(InputError, match="0 < smallest <= largest"):
        Cropping(smallest=50.0, largest=40.0)
    with pytest.raises(InputError, match="0 < sparsest <= densest"):
        Cropping(sparsest=20.0)


def test_tiles_hold_every_point_once_and_their_margins() -> None:
    positions = town().positions
    seen = torch.zeros(3000, dtype=torch.int64)
    for points, own in cut_tiles(positions, 15.0, 4.0):
        seen[points[own]] += 1
        square = positions[points[own], :2]
        low, high = square.amin(dim=0), square.amax(dim=0)
        assert bool((high - low <= 15.0).all())
        # all that is within three meters of its points is there
        near = ((positions[:, :2] > low - 3) & (positions[:, :2] < high + 3)).all(dim=1)
        assert set(near.nonzero()[:, 0].tolist()) <= set(points.tolist())
    assert seen.tolist() == [1] * 3000
    assert list(cut_tiles(torch.zeros(0, 3), 15.0, 4.0)) == []


class Height(nn.Module):
    """Class 1 above three meters; remembers what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.densities: list[float] = []

    def forward(self, values: Tensor, positions: Tensor, item: Tensor) -> Tensor:
        self.densities.append(density_of(positions))
        assert item.dtype == torch.int32
        assert not bool(item.any())
        high = (values[:, 2] > 0.3).float()
        return torch.stack([1 - high, high], dim=1)


def test_all_points_are_classified_at_a_density_that_networks_know() -> None:
    scene, network, told = town(40_000), Height(), list[int]()
    classes = classify_points(network, scene, torch.device("cpu"), side=20.0, margin=5.0, tell=told.append)
    assert torch.equal(classes, (scene.heights[:, 2] > 3).long())
    assert told[-1] == 40_000
    assert told == sorted(told)
    assert density_of(scene.positions) > 2 * DENSEST
    assert max(network.densities) < 1.2 * DENSEST
    assert classify_points(network, scene.select(torch.zeros(0, dtype=torch.int64)), torch.device("cpu")).shape == (0,)
