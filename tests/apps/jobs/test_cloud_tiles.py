"""Tiles of clouds, their classes, and pictures of them from above."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from town import make_town

from permutohedral.apps.jobs.cloud_tiles import DENSEST, classify_points, cut_tiles, measure_density


def town(points: int = 3000) -> Tensor:
    """Return positions near the origin."""
    positions, _ = make_town(points)
    return (positions - positions.mean(dim=0)).float()


def test_tiles_hold_every_point_once_with_margins() -> None:
    positions = town()
    seen = torch.zeros(3000, dtype=torch.int64)
    for points, own in cut_tiles(positions, 15.0, 4.0):
        seen[points[own]] += 1
        square = positions[points[own], :2]
        low, high = square.amin(dim=0), square.amax(dim=0)
        assert bool((high - low <= 15.0).all())
        # all points within three meters are there
        near = ((positions[:, :2] > low - 3) & (positions[:, :2] < high + 3)).all(dim=1)
        assert set(near.nonzero()[:, 0].tolist()) <= set(points.tolist())
    assert seen.tolist() == [1] * 3000
    assert list(cut_tiles(torch.zeros(0, 3), 15.0, 4.0)) == []


class Threshold(nn.Module):
    """Predicts class 1 where the value is 1, and records densities."""

    def __init__(self) -> None:
        super().__init__()
        self.densities: list[float] = []

    def forward(self, values: Tensor, positions: Tensor, item: Tensor) -> Tensor:
        self.densities.append(measure_density(positions))
        assert item.dtype == torch.int32
        assert not bool(item.any())
        high = (values[:, 0] > 0.5).float()
        return torch.stack([1 - high, high], dim=1)


def test_classifies_all_points_at_limited_density() -> None:
    positions, network, reports = town(40_000), Threshold(), list[int]()
    high = positions[:, 2:] > 3
    where = torch.device("cpu")
    classes = classify_points(network, positions, high.float(), where, side=20.0, margin=5.0, progress=reports.append)
    assert torch.equal(classes, high[:, 0].long())
    assert reports[-1] == 40_000
    assert reports == sorted(reports)
    assert measure_density(positions) > 2 * DENSEST
    assert max(network.densities) < 1.2 * DENSEST
    assert classify_points(network, positions[:0], high[:0], where).shape == (0,)


def test_images_of_narrow_clouds_are_bounded(tmp_path: Path) -> None:
    """A power line from south to north, drawn as wide as others, would be hundreds of meters high."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from PIL import Image

    from permutohedral.apps.io.figure import draw_from_above

    line = torch.stack([torch.zeros(2000), torch.arange(2000) * 10.0, torch.ones(2000)], dim=1)
    draw_from_above(line, torch.zeros(2000, dtype=torch.int64), ["wire"], tmp_path / "above.png")
    with Image.open(tmp_path / "above.png") as image:
        assert max(image.size) < 4000


def test_pictures_have_no_gaps_between_points(tmp_path: Path) -> None:
    """Points at random leave some pixels without a point."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from PIL import Image

    from permutohedral.apps.io.figure import draw_from_above

    points = torch.rand(40_000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([100.0, 100.0, 2.0])
    draw_from_above(points, torch.zeros(40_000, dtype=torch.int64), ["ground"], tmp_path / "above.png")
    with Image.open(tmp_path / "above.png") as image:
        width, height = image.size
        inner = np.asarray(image.convert("RGB"))[height // 4 : height // 2, width // 3 : width // 2]
    assert (inner.min(axis=2) > 250).mean() < 0.002
