"""Applies a network to all points of a scene, tile by tile."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from permutohedral.clouds.scenes import Scene, cut_tiles

# in meters: tiles as wide as crops to train on, and a margin as wide as the network sees well
SIDE, MARGIN = 40.0, 10.0


@torch.no_grad()
def classify_points(
    network: nn.Module,
    scene: Scene,
    device: torch.device,
    side: float = SIDE,
    margin: float = MARGIN,
    tell: Callable[[int], None] | None = None,
) -> Tensor:
    """The class of every point.

    Args:
        network: one of `permutohedral.models.point_segmentation`, on the device.
        scene: on any device.
        device: to compute on.
        side: of a tile, in meters.
        margin: what the network sees around a tile, in meters.
        tell: called after each tile with the number of points that are done.

    Returns:
        int64 `[points]`, on the device of the scene.
    """
    classes = torch.zeros(len(scene.positions), dtype=torch.int64, device=scene.positions.device)
    done = 0
    for points, own in cut_tiles(scene.positions, side, margin):
        tile = scene.select(points).to(device)
        # features near zero are embedded most exactly
        positions = tile.positions - tile.positions.mean(dim=0)
        item = torch.zeros(len(points), dtype=torch.int32, device=device)
        scores = network(tile.values(), positions, item)
        classes[points[own]] = scores.argmax(dim=1).to(classes.device)[own]
        done += int(own.sum())
        if tell is not None:
            tell(done)
    return classes
