"""Networks that lattice U-Nets are compared with on laser scans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

import permutohedral as ph
from experiments.pointnet import PointNetSegmenter, PointwiseSegmenter
from permutohedral.apps.models.point_segmentation import PointSegmenter
from permutohedral.errors import InputError
from permutohedral.nn.unet import ResidualBlocks, mean_and_density

SegmentationModel = Literal["unet", "flat", "pointwise", "pointnet"]


class FlatSegmenter(nn.Module):
    """Apply the blocks of `LatticeUNet` on one lattice.

    Args:
        in_channels: of the values.
        classes: number of classes.
        channels: of every block.
        blocks: number of blocks.
        step: of the lattice, in meters.

    >>> network = FlatSegmenter(2, 3, channels=8, blocks=1)
    >>> network(torch.rand(50, 2), torch.rand(50, 3) * 9, torch.zeros(50, dtype=torch.int64)).shape
    torch.Size([50, 3])
    """

    def __init__(self, in_channels: int, classes: int, channels: int = 56, blocks: int = 4, step: float = 0.7) -> None:
        super().__init__()
        self.step = step
        self.enter = ph.nn.LatticeConv(in_channels + 1, channels, 3)
        self.blocks = nn.ModuleList(ResidualBlocks(channels, 3) for _ in range(blocks))
        self.head = nn.Sequential(nn.Linear(channels + in_channels, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, values: Tensor, positions: Tensor, item: Tensor) -> Tensor:
        """Return scores `[points, classes]`."""
        lattice = ph.build_lattice(positions / self.step, batch=item)
        lattice_values = self.enter(mean_and_density(values, lattice), lattice)
        items = ph.nn.LatticeItems(lattice)
        for block in self.blocks:
            lattice_values = block(lattice_values, lattice, items)
        scores: Tensor = self.head(torch.cat([ph.slice(lattice_values, lattice), values], dim=1))
        return scores


def build_network(model: SegmentationModel, in_channels: int, classes: int, options: Mapping[str, Any]) -> nn.Module:
    """Build an untrained network by name."""
    networks: dict[str, type[nn.Module]] = {
        "unet": PointSegmenter,
        "flat": FlatSegmenter,
        "pointwise": PointwiseSegmenter,
        "pointnet": PointNetSegmenter,
    }
    if model not in networks:
        raise InputError(f"model must be one of {', '.join(networks)}, got {model!r}")
    try:
        return networks[model](in_channels, classes, **options)
    except TypeError as error:
        raise InputError(f"options do not fit the model {model}: {error}") from error
