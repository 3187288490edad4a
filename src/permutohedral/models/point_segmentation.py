"""Network that classifies the points of clouds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from permutohedral.models.lattice_unet import Between, LatticeUNet
from permutohedral.models.pretrained import open_weights


class PointSegmenter(nn.Module):
    """Apply `LatticeUNet` to positions in meters.

    It takes a ragged batch, `values [points, channels]`, `positions [points, 3]` in meters and `item [points]`, the
    cloud of each point, and returns `[points, classes]`.

    Args:
        in_channels: of the values.
        classes: number of classes.
        channels: of each level, the finest first.
        step: of the finest lattice, in meters.
        between: see `LatticeUNet`.

    >>> import torch, permutohedral as ph
    >>> network = ph.models.PointSegmenter(2, 3, channels=(8, 16))
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

    @classmethod
    def from_pretrained(cls, path: str | Path | None = None) -> PointSegmenter:
        """Load a network from a file of `permutohedral cloud train`.

        Args:
            path: default: the shipped network for ground, vegetation and buildings in airborne laser scans. Its values
                are those of `permutohedral.files.cloud_scenes.make_scene`.

        >>> import permutohedral as ph
        >>> ph.models.PointSegmenter.from_pretrained().step
        0.7
        """
        with open_weights(shipped_segmenter() if path is None else path) as file:
            content = json.loads(file.metadata()["points"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
        # the first convolution reads the values and their density
        in_channels = tensors["network.encoder.enter.weight"].shape[1] - 1
        network = cls(in_channels, len(content["classes"]), **content["options"])
        network.load_state_dict(tensors)
        return network.eval()

    def forward(self, values: Tensor, positions: Tensor, item: Tensor) -> Tensor:
        """Return scores `[points, classes]`."""
        scores: Tensor = self.network(values, positions / self.step, item)
        return scores


def shipped_segmenter() -> Path:
    """Return the path of the shipped weights."""
    return Path(__file__).resolve().parent / "weights" / "lidar.safetensors"
