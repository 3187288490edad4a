"""Networks that classify the points of clouds.

All take a ragged batch, `values [points, channels]`, `positions [points, 3]` in meters and `item [points]`, the cloud
of each point. They return `[points, classes]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.models.lattice_unet import Between, LatticeUNet


class UNetSegmenter(nn.Module):
    """Apply `LatticeUNet` to positions in meters.

    Args:
        in_channels: of the values.
        classes: number of classes.
        channels: of each level, the finest first.
        step: of the finest lattice, in meters.
        between: see `LatticeUNet`.

    >>> import torch
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
        """Return scores `[points, classes]`."""
        scores: Tensor = self.network(values, positions / self.step, item)
        return scores


class PointwiseSegmenter(nn.Module):
    """Apply the same network to the values of every point.

    Args:
        in_channels: of the values.
        classes: number of classes.
        channels: of the hidden layers.

    >>> import torch
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
        """Return scores `[points, classes]`."""
        for linear, norm in zip(self.linears, self.norms, strict=True):
            values = F.relu(norm(linear(values)))
        scores: Tensor = self.head(values)
        return scores


_MODELS: dict[str, type[nn.Module]] = {"unet": UNetSegmenter, "pointwise": PointwiseSegmenter}


def build_segmenter(model: str, in_channels: int, classes: int, options: Mapping[str, Any]) -> nn.Module:
    """Build an untrained network by name.

    Args:
        model: "unet" or "pointwise".
        in_channels: of the values.
        classes: number of classes.
        options: further arguments of its class.

    >>> build_segmenter("pointwise", 2, 3, {"channels": [4]}).head.out_features
    3
    """
    if model not in _MODELS:
        raise InputError(f"model must be one of {', '.join(_MODELS)}, got {model!r}")
    try:
        return _MODELS[model](in_channels, classes, **options)
    except TypeError as error:
        raise InputError(f"options do not fit the model {model}: {error}") from error
