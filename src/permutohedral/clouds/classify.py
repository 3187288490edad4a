"""Applies a network to all points of a scene: tile by tile, and where the points are dense, in several goes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from permutohedral.clouds.scenes import DENSEST, Scene, cut_tiles, density_of

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
        for part in _deal(scene.positions[points]):
            tile = scene.select(points[part]).to(device)
            # features near zero are embedded most exactly
            positions = tile.positions - tile.positions.mean(dim=0)
            item = torch.zeros(len(part), dtype=torch.int32, device=device)
            found = network(tile.values(), positions, item).argmax(dim=1).to(classes.device)
            classes[points[part[own[part]]]] = found[own[part]]
        done += int(own.sum())
        if tell is not None:
            tell(done)
    return classes


def _deal(positions: Tensor) -> list[Tensor]:
    """A dense cloud as several, no denser than a network knows: which points are in each."""
    parts = max(math.ceil(density_of(positions) / DENSEST), 1)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(positions), generator=generator).to(positions.device)
    return [order[part::parts] for part in range(parts)]
