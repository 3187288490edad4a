"""Network that classifies the points of clouds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from permutohedral.apps.models.saving import load_network, save_network
from permutohedral.errors import InputError
from permutohedral.nn import LatticeUNet


class PointSegmenter(nn.Module):
    """Apply `LatticeUNet` to positions in meters.

    It takes a ragged batch, `values [points, in_channels]`, `positions [points, 3]` in meters and `batch [points]`, the
    cloud of each point, and returns `[points, classes]`.

    Args:
        in_channels: of the values; 0 is a network of the positions alone, as `permutohedral cloud segment` needs it.
        classes: number of classes, or their numbers in files by name, such as `{"ground": 2, "building": 6}`.
        channels: of each level, the finest first.
        step: of the finest lattice, in meters.
        between: see `LatticeUNet`.

    >>> import torch, permutohedral as ph
    >>> network = ph.apps.PointSegmenter(2, 3, channels=(8, 16))
    >>> network(torch.rand(50, 2), torch.rand(50, 3) * 9, torch.zeros(50, dtype=torch.int64)).shape
    torch.Size([50, 3])
    """

    def __init__(
        self,
        in_channels: int,
        classes: int | Mapping[str, int],
        channels: Sequence[int] = (16, 24, 40, 48),
        step: float = 0.7,
        between: Literal["linear", "convolution"] = "linear",
    ) -> None:
        super().__init__()
        if isinstance(classes, int) and classes > 256:
            raise InputError(f"classes is {classes}; pass at most 256, since files store a class in 8 bits")
        self.classes = dict(classes) if isinstance(classes, Mapping) else {f"{n}": n for n in range(classes)}
        for name, number in self.classes.items():
            if type(number) is not int or not 0 <= number <= 255:
                raise InputError(f"classes have the number {number!r} for {name!r}; pass numbers from 0 to 255")
        self._options = {"channels": list(channels), "step": step, "between": between}
        self.network = LatticeUNet(in_channels, len(self.classes), step=step, widths=tuple(channels), between=between)

    @property
    def step(self) -> float:
        """Return the step of the finest lattice, in meters."""
        return self.network.step

    @classmethod
    def load(cls, path: str | Path) -> PointSegmenter:
        """Read a network that `save` wrote.

        Raises:
            DataError: the file is missing, damaged, or not such a network.
        """
        return load_network(cls, path)

    def save(self, path: str | Path) -> None:
        """Write the network for `load`, and for `--model` of `permutohedral cloud segment`.

        >>> import tempfile, permutohedral as ph
        >>> with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        ...     ph.apps.PointSegmenter(0, {"road": 11, "other": 1}, channels=(8,)).save(file.name)
        ...     ph.apps.PointSegmenter.load(file.name).classes
        {'road': 11, 'other': 1}
        """
        save_network(self, {"in_channels": self.network.in_channels, "classes": self.classes, **self._options}, path)

    def forward(self, values: Tensor, positions: Tensor, batch: Tensor) -> Tensor:
        """Return scores `[points, classes]`."""
        scores: Tensor = self.network(values, positions, batch)
        return scores
