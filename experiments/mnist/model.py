"""Classifiers of digits that are known at scattered points: Caffe's LeNet after interpolation, and PCNN.

All take `values [batch, points, 1]` at `positions [batch, points, 2]`, (y, x) in pixels, and return `[batch, 10]`.
Without positions the points are the 28 x 28 pixels in row order. Only the stem differs: the layer that makes
`[batch, channels, 24, 24]` from the points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.filters.normalization import Normalization

SIZE = 28
CLASSES = 10
# a filter of 5 x 5 leaves the inner 24 x 24 pixels
MARGIN = 2

LeNetModel = Literal["lenet", "pcnn"]
TRUNK_OPTIONS = ("channels", "hidden", "rectify", "dropout")


def grid_positions(margin: int = 0, device: torch.device | str | None = None) -> Tensor:
    """Return the pixels at least `margin` from the border, `[(28 - 2 margin)^2, 2]`, in row order.

    >>> grid_positions(margin=2)[:2].tolist()
    [[2.0, 2.0], [2.0, 3.0]]
    """
    line = torch.arange(margin, SIZE - margin, dtype=torch.float32, device=device)
    return torch.cartesian_prod(line, line)


def interpolate_to_grid(values: Tensor, positions: Tensor) -> Tensor:
    """Average the samples around each pixel with bilinear weights; pixels without samples are zero.

    Args:
        values: `[batch, points, 1]`.
        positions: `[batch, points, 2]`, from 0 to 27.

    Returns:
        `[batch, 1, 28, 28]`.

    >>> interpolate_to_grid(torch.ones(1, 1, 1), torch.tensor([[[2.0, 3.5]]]))[0, 0, 2, 2:6].tolist()
    [0.0, 1.0, 1.0, 0.0]
    """
    total, mass = splat_to_grid(values, positions)
    return total / torch.where(mass > 0, mass, 1.0)


def splat_to_grid(values: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the samples around each pixel with bilinear weights; return the sums of values and of weights.

    Both are `[batch, 1, 28, 28]`.

    >>> splat_to_grid(torch.ones(1, 2, 1), torch.tensor([[[2.0, 3.5], [2.0, 4.0]]]))[1][0, 0, 2, 2:6].tolist()
    [0.0, 0.5, 1.5, 0.0]
    """
    batch = values.shape[0]
    corner = positions.floor().clamp(0, SIZE - 2)
    y, x = (positions - corner).unbind(dim=2)
    weight = torch.cat([(1 - y) * (1 - x), (1 - y) * x, y * (1 - x), y * x], dim=1)
    first = (corner[..., 0] * SIZE + corner[..., 1]).long()
    pixel = torch.cat([first, first + 1, first + SIZE, first + SIZE + 1], dim=1)
    empty = values.new_zeros(batch, SIZE * SIZE)
    mass = empty.scatter_add(1, pixel, weight)
    total = empty.scatter_add(1, pixel, weight * values[..., 0].repeat(1, 4))
    return total.reshape(batch, 1, SIZE, SIZE), mass.reshape(batch, 1, SIZE, SIZE)


class SpatialStem(nn.Module):
    """Interpolate the points to the grid and convolve it with filters of 5 x 5."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, channels, 1 + 2 * MARGIN)

    def forward(self, values: Tensor, positions: Tensor | None) -> Tensor:
        """Return `[batch, channels, 24, 24]`."""
        image = values.reshape(-1, 1, SIZE, SIZE) if positions is None else interpolate_to_grid(values, positions)
        output: Tensor = self.convolution(image)
        return output


class PermutohedralStem(nn.Module):
    """Filter the points with one permutohedral convolution, evaluated on the grid.

    Args:
        channels: of the result.
        neighborhood_size: s of the filter.
        scale: lattice steps per pixel.
        normalization: of `PermutohedralConv`.
    """

    grid: Tensor
    target: Tensor

    def __init__(
        self,
        channels: int,
        neighborhood_size: int = 2,
        scale: float = 1.0,
        normalization: Normalization = "density",
    ) -> None:
        super().__init__()
        self.scale = scale
        self.convolution = ph.nn.PermutohedralConv(1, channels, 2, neighborhood_size, normalization=normalization)
        self.register_buffer("grid", grid_positions(), persistent=False)
        self.register_buffer("target", grid_positions(MARGIN), persistent=False)
        # of the pixels, which are the same for every batch of one size
        self._lattices: dict[tuple[int, torch.device], ph.Lattice] = {}

    def build_lattice(self, positions: Tensor) -> ph.Lattice:
        """Build the lattice of a batch."""
        target = (self.target * self.scale).expand(positions.shape[0], -1, -1)
        return ph.build_lattice(positions * self.scale, target, neighborhood_size=self.convolution.neighborhood_size)

    def forward(self, values: Tensor, positions: Tensor | None) -> Tensor:
        """Return `[batch, channels, 24, 24]`."""
        if positions is not None:
            lattice = self.build_lattice(positions)
        else:
            key = (values.shape[0], self.grid.device)
            # sizes: a training batch, a test batch and the rest of the test set
            if key not in self._lattices and len(self._lattices) > 3:
                self._lattices.clear()
            if key not in self._lattices:
                self._lattices[key] = self.build_lattice(self.grid.expand(values.shape[0], -1, -1))
            lattice = self._lattices[key]
        output: Tensor = self.convolution(values, lattice)
        side = SIZE - 2 * MARGIN
        return output.transpose(1, 2).reshape(output.shape[0], -1, side, side)


class LeNet(nn.Module):
    """Caffe's LeNet: a first convolution of 20 filters, pooling, one of 50, pooling, 500 units, 10.

    Args:
        stem: makes `[batch, channels[0], 24, 24]` from the points.
        channels: filters of the two convolutions.
        hidden: units of the layer before the last.
        rectify: apply ReLU after the convolutions, too.
        dropout: of the inputs of the last two layers.

    >>> model = LeNet(SpatialStem(20))
    >>> model(torch.rand(4, 784, 1)).shape
    torch.Size([4, 10])
    """

    def __init__(
        self,
        stem: nn.Module,
        channels: tuple[int, int] = (20, 50),
        hidden: int = 500,
        rectify: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.convolution = nn.Conv2d(channels[0], channels[1], 5)
        self.hidden = nn.Linear(channels[1] * 4 * 4, hidden)
        self.classes = nn.Linear(hidden, CLASSES)
        self.rectify, self.dropout = rectify, dropout
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights as Caffe's "xavier": uniform with variance 1 / inputs, biases zero."""
        for module in self.modules():
            if isinstance(module, ph.nn.PermutohedralConv):
                inputs = module.weight.shape[0] * module.weight.shape[1]
            elif isinstance(module, nn.Conv2d | nn.Linear):
                inputs = module.weight[0].numel()
            else:
                continue
            bound = math.sqrt(3 / inputs)
            nn.init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, values: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the scores of the classes, `[batch, 10]`.

        Args:
            values: `[batch, points, 1]`, from 0 to 1.
            positions: `[batch, points, 2]`, (y, x) in pixels. Default: the pixels, in row order.
        """
        pooled = self._pool(self.stem(values, positions))
        pooled = self._pool(self.convolution(pooled))
        hidden = functional.relu(self.hidden(self._drop(pooled.flatten(1))))
        scores: Tensor = self.classes(self._drop(hidden))
        return scores

    def _pool(self, image: Tensor) -> Tensor:
        pooled = functional.max_pool2d(image, 2)
        return functional.relu(pooled) if self.rectify else pooled

    def _drop(self, inputs: Tensor) -> Tensor:
        return functional.dropout(inputs, self.dropout, self.training)


_STEMS = {"lenet": SpatialStem, "pcnn": PermutohedralStem}


def build_lenet(model: LeNetModel, options: Mapping[str, Any] | None = None) -> LeNet:
    """Build a classifier by name.

    Args:
        model: "lenet" (`SpatialStem`) or "pcnn" (`PermutohedralStem`).
        options: arguments of `LeNet` and of the stem.

    >>> build_lenet("pcnn", {"neighborhood_size": 1}).stem.convolution.neighborhood_size
    1
    """
    trunk = {name: value for name, value in (options or {}).items() if name in TRUNK_OPTIONS}
    stem = {name: value for name, value in (options or {}).items() if name not in TRUNK_OPTIONS}
    try:
        channels = trunk.pop("channels", (20, 50))
        return LeNet(_STEMS[model](channels[0], **stem), tuple(channels), **trunk)
    except TypeError as error:
        raise InputError(f"options do not fit the model {model}: {error}") from error
