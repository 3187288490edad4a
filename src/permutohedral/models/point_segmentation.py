"""Network that classifies the points of clouds."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from permutohedral.models.lattice_unet import Between, LatticeUNet


class UNetSegmenter(nn.Module):
    """Apply `LatticeUNet` to positions in meters.

    It takes a ragged batch, `values [points, channels]`, `positions [points, 3]` in meters and `item [points]`, the
    cloud of each point, and returns `[points, classes]`.

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
