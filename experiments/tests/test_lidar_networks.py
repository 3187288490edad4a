"""Networks for the points of clouds."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from experiments.lidar.networks import SegmentationModel, build_network
from experiments.pointnet import _Level, nearest
from permutohedral.errors import InputError

SMALL: dict[SegmentationModel, dict[str, Any]] = {
    "unet": {"channels": [8, 8]},
    "flat": {"channels": 8, "blocks": 1},
    "pointwise": {"channels": [8]},
    "pointnet": {"channels": [8, 8, 8], "cells": [1.0, 2.0], "neighbors": 4},
}


def cloud(points: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.rand(points, 2), torch.rand(points, 3) * 5, (torch.arange(points) * 2 // points).int()


@pytest.mark.parametrize("model", SMALL)
def test_every_weight_learns(model: SegmentationModel) -> None:
    torch.manual_seed(0)
    network = build_network(model, 2, 3, SMALL[model])
    scores = network(*cloud())
    assert scores.shape == (60, 3)
    scores.logsumexp(dim=1).sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in network.parameters() if p.dim() > 1)


@pytest.mark.parametrize("model", SMALL)
def test_clouds_of_a_batch_do_not_see_each_other(model: SegmentationModel) -> None:
    torch.manual_seed(0)
    network = build_network(model, 2, 3, SMALL[model])
    values, positions, item = cloud()
    together = network(values, positions, item)
    alone = network(values[:30], positions[:30], item[:30])
    torch.testing.assert_close(together[:30], alone, atol=1e-5, rtol=1e-4)
    moved = positions + torch.where(item[:, None] == 1, 100.0, 0.0)
    torch.testing.assert_close(network(values, moved, item)[:30], alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("model", ["unet", "flat", "pointnet"])
def test_neighbors_matter(model: SegmentationModel) -> None:
    torch.manual_seed(0)
    network = build_network(model, 2, 3, SMALL[model])
    values, positions, item = cloud()
    changed = values.clone()
    changed[1:30] += 1
    assert float((network(changed, positions, item)[0] - network(values, positions, item)[0]).abs().max()) > 1e-3


def test_nearest_points_by_their_definition() -> None:
    torch.manual_seed(0)
    points, queries = torch.rand(40, 3), torch.rand(25, 3)
    point_item, query_item = (torch.arange(40) // 20), (torch.arange(25) // 13)
    found = nearest(_Level(queries, query_item), _Level(points, point_item), 3)
    for number in range(25):
        same = (point_item == query_item[number]).nonzero()[:, 0]
        distances = (points[same] - queries[number]).norm(dim=1)
        assert found[number].tolist() == same[distances.argsort()[:3]].tolist()
    few = nearest(_Level(queries[:2], query_item[:2]), _Level(points[:2], point_item[:2]), 3)
    assert few[:, 2].tolist() == few[:, 1].tolist()


def test_rejects_unknown_models_and_options() -> None:
    with pytest.raises(InputError, match="model must be one of unet, flat, pointwise, pointnet, got 'tree'"):
        build_network(cast(Any, "tree"), 2, 3, {})
    with pytest.raises(InputError, match="options do not fit the model flat"):
        build_network("flat", 2, 3, {"depth": 3})
