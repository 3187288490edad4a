"""Networks that classify clouds by their positions alone. Both take a ragged batch, `positions [points, 3]` within the
unit ball and `item [points]`, the cloud of each point, and return `[clouds, classes]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.models.lattice_unet import LatticeClassifier
from permutohedral.models.point_cloud import PointwiseClassifier

PartModel = Literal["lattice", "pointwise"]


class LatticePartClassifier(nn.Module):
    """`LatticeClassifier` whose values are the positions.

    Args:
        classes: how many.
        channels: of each level, the finest first.
        step: of the finest lattice.

    >>> import torch
    >>> network = LatticePartClassifier(5, channels=(8, 16))
    >>> network(torch.rand(50, 3), torch.arange(50) // 25).shape
    torch.Size([2, 5])
    """

    def __init__(self, classes: int, channels: Sequence[int] = (16, 32, 48, 64), step: float = 0.1) -> None:
        super().__init__()
        self.step = step
        self.network = LatticeClassifier(3, classes, 3, tuple(channels))

    def forward(self, positions: Tensor, item: Tensor) -> Tensor:
        """`[clouds, classes]`."""
        scores: Tensor = self.network(positions, positions / self.step, item)
        return scores


class PointwisePartClassifier(nn.Module):
    """`PointwiseClassifier` of positions: the idea of PointNet.

    Args:
        classes: how many.
        options: further arguments of `PointwiseClassifier`.

    >>> import torch
    >>> PointwisePartClassifier(5, channels=(8, 8))(torch.rand(50, 3), torch.arange(50) // 25).shape
    torch.Size([2, 5])
    """

    def __init__(self, classes: int, **options: Any) -> None:
        super().__init__()
        self.network = PointwiseClassifier(classes, "position", **options)

    def forward(self, positions: Tensor, item: Tensor) -> Tensor:
        """`[clouds, classes]`."""
        scores: Tensor = self.network(positions, positions, item)
        return scores


def build_part_classifier(model: PartModel, classes: int, options: Mapping[str, Any]) -> nn.Module:
    """A network by name, without training.

    >>> type(build_part_classifier("lattice", 3, {"channels": [4]})).__name__
    'LatticePartClassifier'
    """
    kinds: dict[str, type[nn.Module]] = {"lattice": LatticePartClassifier, "pointwise": PointwisePartClassifier}
    if model not in kinds:
        raise InputError(f"there is no network {model!r}; there are {', '.join(kinds)}")
    try:
        return kinds[model](classes, **options)
    except TypeError as error:
        raise InputError(f"the options of the model {model} do not fit: {error}") from error
