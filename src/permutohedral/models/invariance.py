"""Classifiers of digits that know about rotation or scale: transformed versions of the image are stacked in a third
coordinate, a permutohedral convolution filters the stack, and what it says about each level is pooled at the end.

Rotating (scaling) the digit moves it along the stack, and the result with it. The levels lie one lattice step apart, so
moving by one level moves the lattice onto itself: every level is filtered alike. Angles wrap around the same way: the
bandwidth is rounded so that a whole turn is a whole number of steps, and levels beyond its ends repeat the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from permutohedral.data.mnist import interpolate
from permutohedral.errors import InputError
from permutohedral.features import lattice_step, log_scale_features, rotation_features, whole_steps_sigma
from permutohedral.filters.normalization import Normalization
from permutohedral.lattice import Lattice, build_lattice
from permutohedral.models.lenet import CLASSES, MARGIN, SIZE, LeNet, LeNetModel, build_lenet, grid_positions
from permutohedral.nn.convolution import PermutohedralConvolution

Transformation = Literal["rotation", "scale"]
InvarianceModel = Literal["lenet", "pcnn", "stack", "copies"]

_DIMENSION = 3


@dataclass(frozen=True)
class Stack:
    """Transformed versions of an image, stacked in (y, x, angle) or (y, x, logarithm of the scale).

    Attributes:
        transformation: "rotation" or "scale".
        bandwidth: of the third coordinate: degrees, or natural logarithm of the scale.
        levels: of the result on either side of the image as it is.
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
        """The bandwidth; of angles the one nearby that divides a whole turn into lattice steps."""
        return whole_steps_sigma(self.bandwidth) if self.transformation == "rotation" else self.bandwidth

    @property
    def spacing(self) -> float:
        """From level to level: one lattice step, in degrees or as a logarithm."""
        return self.sigma * lattice_step(_DIMENSION)

    def amounts(self, levels: int) -> Tensor:
        """Degrees or logarithms of `levels` on either side, `[2 levels + 1]`."""
        return self.spacing * torch.arange(-levels, levels + 1)

    def source(self, beyond: int) -> tuple[Tensor, Tensor]:
        """The samples of the stack, with levels `beyond` those of the result on either side.

        Returns:
            positions: where in the image each value is taken, `[points, 2]`.
            features: `[points, 3]`.
        """
        amounts = self.amounts(self.levels + beyond)
        pixels = grid_positions()
        if self.transformation == "rotation":
            return pixels.repeat(len(amounts), 1), rotation_features(SIZE, SIZE, amounts, self.sigma_space, self.sigma)
        # enlarged pixels would leave gaps between them: there the image is read once for each pixel of the result
        middle, enlarging = (SIZE - 1) / 2, amounts.clamp_min(0).exp()
        positions = (pixels - middle) / enlarging[:, None, None] + middle
        features = log_scale_features(SIZE, SIZE, amounts.clamp_max(0), self.sigma_space, self.sigma)
        features[:, 2] = (amounts / self.sigma).repeat_interleave(len(pixels))
        return positions.flatten(0, 1), features

    def target(self) -> Tensor:
        """Features of the results, the inner 24 x 24 pixels of every level: `[(2 levels + 1) * 576, 3]`."""
        pixels = grid_positions(MARGIN) / self.sigma_space
        last = (self.amounts(self.levels) / self.sigma)[:, None, None].expand(-1, len(pixels), 1)
        return torch.cat([pixels.expand(len(last), -1, -1), last], dim=2).flatten(0, 1)


class LevelStem(nn.Module):
    """A first layer that makes `[batch * levels, channels, 24, 24]` from images, the levels of an image together."""

    stack: Stack

    @property
    def num_levels(self) -> int:
        """Levels of the result."""
        return 2 * self.stack.levels + 1

    def set_stack(self, stack: Stack) -> None:
        """Filter another stack with the same filter, for instance the whole circle."""
        raise NotImplementedError


class CopiesStem(LevelStem):
    """The same without a third coordinate: each level is interpolated onto the grid, and convolved there by itself.

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
        make = rotation_features if stack.transformation == "rotation" else log_scale_features
        # a level shows what lies at the inversely transformed position
        places = make(SIZE, SIZE, -stack.amounts(stack.levels))[:, :2].reshape(-1, SIZE, SIZE, 2)
        grid = ((2 * places + 1) / SIZE - 1).flip(-1)
        self.register_buffer("grid", grid.to(self.convolution.weight.device), persistent=False)
        self.grid: Tensor

    def forward(self, values: Tensor, positions: Tensor | None = None) -> Tensor:
        """`[batch * levels, channels, 24, 24]`, see `StackStem`."""
        _refuse(positions)
        images = values.reshape(1, -1, SIZE, SIZE).expand(self.num_levels, -1, -1, -1)
        levels = functional.grid_sample(images, self.grid, align_corners=False)
        output: Tensor = self.convolution(levels.transpose(0, 1).reshape(-1, 1, SIZE, SIZE))
        return output


class StackStem(LevelStem):
    """One permutohedral convolution over the stack: the lattice is the same for all images and built once.

    Args:
        channels: of the result.
        stack: the domain of the convolution.
        neighborhood_size: s of the filter.
        normalization: of `PermutohedralConvolution`.

    >>> stem = StackStem(4, Stack("rotation", bandwidth=10.0, levels=1))
    >>> stem(torch.rand(2, 784, 1)).shape
    torch.Size([6, 4, 24, 24])
    """

    def __init__(
        self, channels: int, stack: Stack, neighborhood_size: int = 1, normalization: Normalization = "density"
    ) -> None:
        super().__init__()
        self.convolution = PermutohedralConvolution(
            1, channels, _DIMENSION, neighborhood_size, normalization=normalization
        )
        self.set_stack(stack)

    def set_stack(self, stack: Stack) -> None:
        self.stack = stack
        # one step of the simplex around a target and one around a sample, whose far ends have weight zero
        positions, features = stack.source(beyond=self.convolution.neighborhood_size + 1)
        device = self.convolution.weight.device
        for name, tensor in (("positions", positions), ("features", features), ("target", stack.target())):
            self.register_buffer(name, tensor.to(device), persistent=False)
        self.positions: Tensor
        self.features: Tensor
        self.target: Tensor
        self._lattice: Lattice | None = None

    def lattice(self) -> Lattice:
        """Under the stack; built at the first call, and again on another device."""
        if self._lattice is None or self._lattice.device != self.features.device:
            self._lattice = build_lattice(self.features, self.target, self.convolution.neighborhood_size)
        return self._lattice

    def forward(self, values: Tensor, positions: Tensor | None = None) -> Tensor:
        """The filtered levels of all images, `[batch * levels, channels, 24, 24]`, the levels of an image together.

        Args:
            values: `[batch, 784, 1]`.
            positions: must be None: the images come as pixels.
        """
        _refuse(positions)
        output = self.convolution(self.sample(values), lattice=self.lattice())
        side = SIZE - 2 * MARGIN
        levels = output.reshape(len(values) * self.num_levels, side * side, -1)
        result: Tensor = levels.transpose(1, 2).reshape(len(levels), -1, side, side)
        return result

    def sample(self, values: Tensor) -> Tensor:
        """What the samples of the stack hold, `[batch, points, 1]`."""
        if self.stack.transformation == "rotation":
            return values.repeat(1, len(self.positions) // SIZE**2, 1)
        images = values.reshape(-1, SIZE, SIZE)
        return interpolate(images, self.positions.expand(len(images), -1, -1))[..., None]


def _refuse(positions: Tensor | None) -> None:
    if positions is not None:
        raise InputError("a stack is made of images: give their pixels in row order, without positions")


class InvariantLeNet(LeNet):
    """LeNet on every level of a stack, with one set of weights: scores of (class, level) that are pooled over levels.

    The pooled score of a class is the logarithm of the summed probabilities of its levels, all levels being equally
    likely beforehand.

    >>> model = InvariantLeNet(StackStem(20, Stack("rotation", bandwidth=10.0, levels=1)))
    >>> model(torch.rand(4, 784, 1)).shape
    torch.Size([4, 10])
    """

    stem: LevelStem

    def level_scores(self, values: Tensor) -> Tensor:
        """Scores of the classes at every level, `[batch, levels, 10]`."""
        scores = super().forward(values)
        return scores.reshape(len(values), self.stem.num_levels, CLASSES)

    def forward(self, values: Tensor, positions: Tensor | None = None) -> Tensor:
        """Scores of the classes, `[batch, 10]`.

        Args:
            values: `[batch, 784, 1]`, from 0 to 1.
            positions: must be None.
        """
        _refuse(positions)
        pooled: Tensor = self.level_scores(values).logsumexp(dim=1)
        return pooled


def pooled_levels(stem: nn.Module, values: Tensor) -> Tensor:
    """What the first layer says about images, pooled over the transformation: `[batch, channels, 24, 24]`.

    The largest response of the levels of a stack; the response itself of other layers. That to an empty image is
    subtracted: it says nothing about the image.
    """
    empty = torch.zeros_like(values[:1])
    output: Tensor = stem(torch.cat([values, empty]), None)
    if isinstance(stem, LevelStem):
        output = output.reshape(-1, stem.num_levels, *output.shape[1:]).amax(dim=1)
    return output[:-1] - output[-1:]


def build_invariance_model(
    model: InvarianceModel, transformation: Transformation, options: Mapping[str, Any] | None = None
) -> LeNet:
    """A classifier by name.

    Args:
        model: "lenet", "pcnn" (both as in `build_lenet`), "stack" or "copies" (`InvariantLeNet` with `StackStem` or
            `CopiesStem`).
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
        parts["trunk" if name in ("channels", "hidden", "rectify", "dropout") else part][name] = value
    try:
        channels = tuple(parts["trunk"].pop("channels", (20, 50)))
        stem_of = StackStem if model == "stack" else CopiesStem
        stem = stem_of(channels[0], Stack(transformation, **parts["stack"]), **parts["stem"])
        return InvariantLeNet(stem, channels, **parts["trunk"])
    except TypeError as error:
        raise InputError(f"the options of the model {model} do not fit: {error}") from error


def whole_circle(stack: Stack) -> Stack:
    """The stack of all rotations; of an even number of steps the last is there twice.

    >>> whole_circle(Stack("rotation", bandwidth=10.0, levels=6)).levels
    17
    """
    return replace(stack, levels=round(360 / stack.spacing) // 2)
