"""Networks that classify the points of clouds. All take a ragged batch, `values [points, channels]`, `positions
[points, 3]` in meters and `item [points]`, the cloud of each point, and return `[points, classes]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.filters.steps import slice
from permutohedral.lattice import build_lattice
from permutohedral.models.lattice_unet import Between, LatticeUNet, ResidualBlock, mean_and_density
from permutohedral.models.set_abstraction import PointNetSegmenter
from permutohedral.nn.group_norm import LatticeItems
from permutohedral.nn.levels import LatticeConvolution

SegmentationModel = Literal["unet", "flat", "pointwise", "pointnet"]


class UNetSegmenter(nn.Module):
    """`LatticeUNet` on positions in meters.

    Args:
        in_channels: of the values.
        classes: how many.
        channels: of each level, the finest first.
        step: of the finest lattice, in meters.
        between: how values go from level to level: see `LatticeUNet`.

    >>> network = UNetSegmenter(2, 3, channels=(8, 16))
    >>> network(torch.rand(50, 2), torch.rand(50, 3) * 9, torch.zeros(50, dtype=torch.int64)).shape
    torch.Size([50, 3])
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        channels: Sequence[int] = (16, 24, 40, 48),
        step: float = 0.7,
        between: Between = "linear",
    ) -> None:
        super().__init__()
        self.step = step
        self.network = LatticeUNet(in_channels, classes, 3, tuple(channels), between)

    def forward(self, values: Tensor, positions: Tensor, item: Tensor) -> Tensor:
        """`[points, classes]`."""
        scores: Tensor = self.network(values, positions / self.step, item)
        return scores


class FlatSegmenter(nn.Module):
    """The blocks of `LatticeUNet`, all on one lattice.

    Args:
        in_channels: of the values.
        classes: how many.
        channels: of every block.
        blocks: how many.
        step: of the lattice, in meters.

    >>> network = FlatSegmenter(2, 3, channels=8, blocks=1)
    >>> network(torch.rand(50, 2), torch.rand(50, 3) * 9, torch.zeros(50, dtype=torch.int64)).shape
    torch.Size([50, 3])
    """

    def __init__(self, in_channels: int, classes: int, channels: int = 56, blocks: int = 4, step: float = 0.7) -> None:
        super().__init__()
        self.step = step
        self.enter = LatticeConvolution(in_channels + 1, channels, 3)
        self.blocks = nn.ModuleList(ResidualBlock(channels, 3) for _ in range(blocks))
        self.head = nn.Sequential(nn.Linear(channels + in_channels, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, values: Tensor, positions: Tensor, item: Tensor) -> Tensor:
        """`[points, classes]`."""
        lattice = build_lattice(positions / self.step, batch=item)
        lattice_values = self.enter(mean_and_density(values, lattice), lattice)
        items = LatticeItems(lattice)
        for block in self.blocks:
            lattice_values = block(lattice_values, lattice, items)
        scores: Tensor = self.head(torch.cat([slice(lattice_values, lattice), values], dim=1))
        return scores


class PointwiseSegmenter(nn.Module):
    """The same network for every point, which sees nothing of the others but what the values tell.

    Args:
        in_channels: of the values.
        classes: how many.
        channels: of the hidden layers.

    >>> network = PointwiseSegmenter(2, 3, channels=(8, 8))
    >>> network(torch.rand(50, 2), torch.rand(50, 3) * 9, torch.zeros(50, dtype=torch.int64)).shape
    torch.Size([50, 3])
    """

    def __init__(self, in_channels: int, classes: int, channels: Sequence[int] = (360, 360, 360, 360)) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise([in_channels, *channels]))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in channels)
        self.head = nn.Linear(channels[-1], classes)

    def forward(self, values: Tensor, positions: Tensor, item: Tensor) -> Tensor:
        """`[points, classes]`."""
        for linear, norm in zip(self.linears, self.norms, strict=True):
            values = F.relu(norm(linear(values)))
        scores: Tensor = self.head(values)
        return scores


_MODELS: dict[str, type[nn.Module]] = {
    "unet": UNetSegmenter,
    "flat": FlatSegmenter,
    "pointwise": PointwiseSegmenter,
    "pointnet": PointNetSegmenter,
}


def build_segmenter(model: str, in_channels: int, classes: int, options: Mapping[str, Any]) -> nn.Module:
    """A network by name, without training.

    Args:
        model: "unet", "flat", "pointwise" or "pointnet".
        in_channels: of the values.
        classes: how many.
        options: further arguments of its class.

    >>> build_segmenter("pointwise", 2, 3, {"channels": [4]}).head.out_features
    3
    """
    if model not in _MODELS:
        raise InputError(f"there is no network {model!r}; there are {', '.join(_MODELS)}")
    try:
        return _MODELS[model](in_channels, classes, **options)
    except TypeError as error:
        raise InputError(f"the options of the model {model} do not fit: {error}") from error
