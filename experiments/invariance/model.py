"""Classifiers that know about rotation or scale.

Transformed copies of the image are stacked along a third coordinate, a permutohedral convolution filters the stack,
and the scores of all levels are pooled at the end. Rotating or scaling the digit moves it along the stack, and the
result with it. Levels lie one lattice step apart, so every level is filtered alike. For angles the bandwidth is snapped
so that a turn is a whole number of steps, and levels beyond its ends repeat the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

import permutohedral as ph
from experiments.data.mnist import interpolate
from experiments.invariance.features import lattice_step, log_scale_features, rotation_features, snap_sigma
from experiments.mnist.model import (
    CLASSES,
    MARGIN,
    SIZE,
    TRUNK_OPTIONS,
    LeNet,
    LeNetModel,
    build_lenet,
    grid_positions,
)
from permutohedral.errors import InputError

Transformation = Literal["rotation", "scale"]
InvarianceModel = Literal["lenet", "pcnn", "stack", "copies"]

_DIMENSION = 3


@dataclass(frozen=True)
class Stack:
    """Transformed copies of an image, stacked in (y, x, angle) or (y, x, logarithm of the scale).

    Attributes:
        transformation: "rotation" or "scale".
        bandwidth: of the third coordinate, in degrees or as a natural logarithm of the scale.
        levels: of the result on either side of the original image.
        sigma_space: pixels per feature unit.

    >>> stack = Stack("rotation", bandwidth=10.0, levels=2)
    >>> stack.amounts(1).tolist()
    [-10.588234901428223, 0.0, 10.588234901428223]
    """

    transformation: Transformation
    bandwidth: float
    levels: int
    sigma_space: float = 1.0

    def __post_init__(self) -> None:
        if self.levels < 0:
            raise InputError(f"levels must be at least 0, got {self.levels}")
        for name in ("bandwidth", "sigma_space"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, got {getattr(self, name)}")

    @property
    def sigma(self) -> float:
        """Return the bandwidth; for angles snapped to whole lattice steps of a turn."""
        return snap_sigma(self.bandwidth) if self.transformation == "rotation" else self.bandwidth

    @property
    def spacing(self) -> float:
        """Return the distance between levels, one lattice step, in degrees or as a logarithm."""
        return self.sigma * lattice_step(_DIMENSION)

    def amounts(self, levels: int) -> Tensor:
        """Return degrees or logarithms of `levels` on either side, `[2 levels + 1]`."""
        return self.spacing * torch.arange(-levels, levels + 1)

    def source(self, beyond: int) -> tuple[Tensor, Tensor]:
        """Return the samples of the stack, with `beyond` more levels than the result on either side.

        Returns:
            Positions in the image at which the values are read, `[points, 2]`, and features `[points, 3]`.
        """
        amounts = self.amounts(self.levels + beyond)
        pixels = grid_positions()
        if self.transformation == "rotation":
            return pixels.repeat(len(amounts), 1), rotation_features(SIZE, SIZE, amounts, self.sigma_space, self.sigma)
        # enlarged pixels would leave gaps: there the image is read once for each pixel of the result
        center, enlarging = (SIZE - 1) / 2, amounts.clamp_min(0).exp()
        positions = (pixels - center) / enlarging[:, None, None] + center
        features = log_scale_features(SIZE, SIZE, amounts.clamp_max(0), self.sigma_space, self.sigma)
        features[:, 2] = (amounts / self.sigma).repeat_interleave(len(pixels))
        return positions.flatten(0, 1), features

    def target(self) -> Tensor:
        """Return the features of the inner 24 x 24 pixels of every level, `[(2 levels + 1) * 576, 3]`."""
        pixels = grid_positions(MARGIN) / self.sigma_space
        last = (self.amounts(self.levels) / self.sigma)[:, None, None].expand(-1, len(pixels), 1)
        return torch.cat([pixels.expand(len(last), -1, -1), last], dim=2).flatten(0, 1)


def whole_circle(stack: Stack) -> Stack:
    """Return the stack of all rotations; with an even number of steps it has the last one twice.

    >>> whole_circle(Stack("rotation", bandwidth=10.0, levels=6)).levels
    17
    """
    return replace(stack, levels=round(360 / stack.spacing) // 2)


def transform(images: Tensor, transformation: Transformation, amounts: Tensor) -> Tensor:
    """Rotate or scale images about their center with bilinear interpolation and zeros outside.

    Args:
        images: floating `[batch, height, width]`.
        transformation: "rotation" or "scale".
        amounts: `[batch]`, degrees counterclockwise, or logarithms of factors.
    """
    zero = torch.zeros_like(amounts)
    if transformation == "rotation":
        cosine, sine = torch.deg2rad(amounts).cos(), torch.deg2rad(amounts).sin()
    else:
        cosine, sine = (-amounts).exp(), zero
    # source (x, y) of each pixel of the result
    rows = torch.stack([cosine, -sine, zero, sine, cosine, zero], dim=1).reshape(-1, 2, 3)
    grid = functional.affine_grid(rows, [len(images), 1, *images.shape[1:]], align_corners=False)
    return functional.grid_sample(images[:, None], grid, align_corners=False)[:, 0]


class LevelStem(nn.Module):
    """A first layer from `values [batch, 784, 1]` to `[batch * levels, channels, 24, 24]`, image by image."""

    stack: Stack

    @property
    def num_levels(self) -> int:
        """Return the number of levels of the result."""
        return 2 * self.stack.levels + 1

    def set_stack(self, stack: Stack) -> None:
        """Filter another stack with the same weights, for instance the whole circle."""
        raise NotImplementedError


class CopiesStem(LevelStem):
    """Interpolate each level to the grid and convolve it there, without a third coordinate.

    Args:
        channels: of the result.
        stack: the levels.

    >>> CopiesStem(4, Stack("scale", bandwidth=0.1, levels=1))(torch.rand(2, 784, 1)).shape
    torch.Size([6, 4, 24, 24])
    """

    def __init__(self, channels: int, stack: Stack) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, channels, 1 + 2 * MARGIN)
        self.set_stack(stack)

    def set_stack(self, stack: Stack) -> None:
        self.stack = stack

    def forward(self, values: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the filtered levels of all images; `positions` must be None."""
        _check_no_positions(positions)
        images = values.reshape(-1, SIZE, SIZE).repeat_interleave(self.num_levels, dim=0)
        amounts = self.stack.amounts(self.stack.levels).to(values).repeat(len(values))
        output: Tensor = self.convolution(transform(images, self.stack.transformation, amounts)[:, None])
        return output


class StackStem(LevelStem):
    """Filter the stack with one permutohedral convolution, on a lattice that all images share.

    Args:
        channels: of the result.
        stack: the domain of the convolution.
        neighborhood_size: s of the filter.
        normalization: of `PermutohedralConv`.

    >>> stem = StackStem(4, Stack("rotation", bandwidth=10.0, levels=1))
    >>> stem(torch.rand(2, 784, 1)).shape
    torch.Size([6, 4, 24, 24])
    """

    positions: Tensor
    features: Tensor
    target: Tensor

    def __init__(
        self,
        channels: int,
        stack: Stack,
        neighborhood_size: int = 1,
        normalization: Literal["none", "homogeneous", "density"] = "density",
    ) -> None:
        super().__init__()
        self.convolution = ph.nn.PermutohedralConv(
            1, channels, _DIMENSION, neighborhood_size, normalization=normalization
        )
        self.set_stack(stack)

    def set_stack(self, stack: Stack) -> None:
        self.stack = stack
        # one step for the simplex of a target and one for that of a sample, whose far ends have weight zero
        positions, features = stack.source(beyond=self.convolution.neighborhood_size + 1)
        device = self.convolution.weight.device
        for name, tensor in (("positions", positions), ("features", features), ("target", stack.target())):
            self.register_buffer(name, tensor.to(device), persistent=False)
        self._lattice: ph.Lattice | None = None

    def lattice(self) -> ph.Lattice:
        """Return the lattice of the stack, built at the first call and on every other device."""
        if self._lattice is None or self._lattice.device != self.features.device:
            self._lattice = ph.build_lattice(
                self.features, self.target, neighborhood_size=self.convolution.neighborhood_size
            )
        return self._lattice

    def forward(self, values: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the filtered levels of all images; `positions` must be None."""
        _check_no_positions(positions)
        output = self.convolution(self.sample(values), self.lattice())
        side = SIZE - 2 * MARGIN
        levels = output.reshape(len(values) * self.num_levels, side * side, -1)
        result: Tensor = levels.transpose(1, 2).reshape(len(levels), -1, side, side)
        return result

    def sample(self, values: Tensor) -> Tensor:
        """Return the values of the samples of the stack, `[batch, points, 1]`."""
        if self.stack.transformation == "rotation":
            return values.repeat(1, len(self.positions) // SIZE**2, 1)
        images = values.reshape(-1, SIZE, SIZE)
        return interpolate(images, self.positions.expand(len(images), -1, -1))[..., None]


def _check_no_positions(positions: Tensor | None) -> None:
    if positions is not None:
        raise InputError("positions must be None: a stack is made of whole images; pass their pixels in row order")


class InvariantLeNet(LeNet):
    """Apply LeNet to every level of a stack and pool the scores over the levels.

    The pooled score of a class is the logarithm of the summed probabilities of its levels.

    >>> model = InvariantLeNet(StackStem(20, Stack("rotation", bandwidth=10.0, levels=1)))
    >>> model(torch.rand(4, 784, 1)).shape
    torch.Size([4, 10])
    """

    stem: LevelStem

    def level_scores(self, values: Tensor) -> Tensor:
        """Return the scores of the classes at every level, `[batch, levels, 10]`."""
        scores = super().forward(values)
        return scores.reshape(len(values), self.stem.num_levels, CLASSES)

    def forward(self, values: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the scores of the classes, `[batch, 10]`, for `values [batch, 784, 1]` from 0 to 1."""
        _check_no_positions(positions)
        pooled: Tensor = self.level_scores(values).logsumexp(dim=1)
        return pooled


def pooled_levels(stem: nn.Module, values: Tensor) -> Tensor:
    """Return the response of a first layer, the largest over the levels: `[batch, channels, 24, 24]`.

    The response to an empty image is subtracted.
    """
    empty = torch.zeros_like(values[:1])
    output: Tensor = stem(torch.cat([values, empty]), None)
    if isinstance(stem, LevelStem):
        output = output.reshape(-1, stem.num_levels, *output.shape[1:]).amax(dim=1)
    return output[:-1] - output[-1:]


def build_invariance_model(
    model: InvarianceModel, transformation: Transformation, options: Mapping[str, Any] | None = None
) -> LeNet:
    """Build a classifier by name.

    Args:
        model: "lenet", "pcnn" (both as in `build_lenet`), "stack" (`StackStem`) or "copies" (`CopiesStem`).
        transformation: of the stack.
        options: arguments of `LeNet`, of the stem and of `Stack`.

    >>> build_invariance_model("stack", "scale", {"bandwidth": 0.1, "levels": 3}).stem.num_levels
    7
    """
    if model not in ("stack", "copies"):
        return build_lenet(cast(LeNetModel, model), options)
    parts: dict[str, dict[str, Any]] = {"stack": {}, "stem": {}, "trunk": {}}
    for name, value in (options or {}).items():
        part = "stack" if name in ("bandwidth", "levels", "sigma_space") else "stem"
        parts["trunk" if name in TRUNK_OPTIONS else part][name] = value
    try:
        channels = tuple(parts["trunk"].pop("channels", (20, 50)))
        stem_of = StackStem if model == "stack" else CopiesStem
        stem = stem_of(channels[0], Stack(transformation, **parts["stack"]), **parts["stem"])
        return InvariantLeNet(stem, channels, **parts["trunk"])
    except TypeError as error:
        raise InputError(f"options do not fit the model {model}: {error}") from error
