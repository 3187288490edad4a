"""Digits that are rotated or scaled at test time only.

Transformed copies of the image are stacked along a third coordinate, a permutohedral convolution filters the stack,
and the scores of all levels are pooled at the end. Rotating or scaling the digit moves it along the stack, and the
result with it. Levels lie one lattice step apart, so every level is filtered alike. For angles the bandwidth is snapped
so that a turn is a whole number of steps, and levels beyond its ends repeat the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor, nn
from torch.nn import functional

import permutohedral as ph
from experiments.data.mnist import interpolate
from experiments.experiment import Experiment, Outcome, Row, try_out
from experiments.mnist.model import CLASSES, MARGIN, SIZE, LeNet, SpatialStem, grid_positions
from experiments.mnist.run import Batches, load_digits, scale
from experiments.mnist.sampling import Sampling
from experiments.report import Column, Page, Table, by_row
from experiments.results import FORBID_EXTRA, Result, weights_path, write_weights
from experiments.training import RunOptions, TrainingSettings, checkpoint_folder, count_weights, fit
from permutohedral.errors import InputError

Transformation = Literal["rotation", "scale"]

# largest random angle of the test digits; and their factors
ANGLES = (0, 10, 20, 30, 45, 60, 180)
FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)

_DIMENSION = 3
_CHANNELS = 20
_TEST_BATCH = 250


def lattice_step(dimension: int) -> float:
    """Return the feature units between neighboring lattice points along the last feature.

    Shifting the last feature of all points by this maps the lattice onto itself, and shifts the result of any filter.

    >>> round(lattice_step(3), 4)
    1.0607
    """
    return math.sqrt(1.5 * dimension / (dimension + 1))


def snap_sigma(sigma: float, period: float = 360.0, dimension: int = 3) -> float:
    """Return the bandwidth nearest to `sigma` that divides `period` into whole lattice steps.

    A periodic signal that is repeated beyond its ends is then filtered without a seam.

    >>> sigma = snap_sigma(10.0)
    >>> round(sigma, 3), round(360 / (sigma * lattice_step(3)), 6)
    (9.983, 34.0)
    """
    steps = max(1, round(period / (sigma * lattice_step(dimension))))
    return period / (steps * lattice_step(dimension))


def rotation_features(height: int, width: int, angles: Tensor, sigma_angle: float = 10.0) -> Tensor:
    """Return (y, x, angle) of the pixels of rotated copies of an image.

    Args:
        height: number of rows.
        width: number of columns.
        angles: floating `[levels]`, degrees counterclockwise about the center of the image.
        sigma_angle: degrees per feature unit.

    Returns:
        `[levels * height * width, 3]`, one level after another.
    """
    turn = torch.deg2rad(angles)
    # (y, x) moves to (y cos - x sin, y sin + x cos); y points down
    matrix = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], dim=1).reshape(-1, 2, 2)
    positions = ph.features.positions((height, width), device=angles.device, dtype=angles.dtype)
    center = torch.tensor([(height - 1) / 2, (width - 1) / 2], device=angles.device, dtype=angles.dtype)
    moved = (positions - center) @ matrix.transpose(1, 2) + center
    last = (angles / sigma_angle)[:, None, None].expand(-1, height * width, 1)
    return torch.cat([moved, last], dim=2).flatten(0, 1)


@dataclass(frozen=True)
class Stack:
    """Transformed copies of an image, stacked in (y, x, angle) or (y, x, logarithm of the scale).

    Attributes:
        transformation: "rotation" or "scale".
        bandwidth: of the third coordinate, in degrees or as a natural logarithm of the scale.
        levels: of the result on either side of the original image.

    >>> Stack("rotation", bandwidth=10.0, levels=2).amounts(1).tolist()
    [-10.588234901428223, 0.0, 10.588234901428223]
    """

    transformation: Transformation
    bandwidth: float
    levels: int

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
        amounts, pixels = self.amounts(self.levels + beyond), grid_positions()
        if self.transformation == "rotation":
            return pixels.repeat(len(amounts), 1), rotation_features(SIZE, SIZE, amounts, self.sigma)
        # enlarged pixels would leave gaps: there the image is read once for each pixel of the result
        center, factors = (SIZE - 1) / 2, amounts.exp()[:, None, None]
        positions = (pixels - center) / factors.clamp_min(1) + center
        features = (pixels - center) * factors.clamp_max(1) + center
        last = (amounts / self.sigma)[:, None, None].expand(-1, len(pixels), 1)
        return positions.flatten(0, 1), torch.cat([features, last], dim=2).flatten(0, 1)

    def target(self) -> Tensor:
        """Return the features of the inner 24 x 24 pixels of every level, `[(2 levels + 1) * 576, 3]`."""
        pixels = grid_positions(MARGIN)
        last = (self.amounts(self.levels) / self.sigma)[:, None, None].expand(-1, len(pixels), 1)
        return torch.cat([pixels.expand(len(last), -1, -1), last], dim=2).flatten(0, 1)

    def whole_circle(self) -> Stack:
        """Return the stack of all rotations; with an even number of steps it has the last one twice."""
        return replace(self, levels=round(360 / self.spacing) // 2)


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


class CopiesStem(nn.Module):
    """Interpolate each level to the grid and convolve it there with 5 x 5, without a third coordinate."""

    def __init__(self, channels: int, stack: Stack) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, channels, 1 + 2 * MARGIN)
        self.set_stack(stack)

    def set_stack(self, stack: Stack) -> None:
        """Filter another stack with the same weights, for instance the whole circle."""
        self.stack = stack

    def forward(self, values: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the filtered levels of all images, `[batch * levels, channels, 24, 24]`."""
        amounts = self.stack.amounts(self.stack.levels).to(values)
        images = values.reshape(-1, SIZE, SIZE).repeat_interleave(len(amounts), dim=0)
        copies = transform(images, self.stack.transformation, amounts.repeat(len(values)))
        output: Tensor = self.convolution(copies[:, None])
        return output


class StackStem(nn.Module):
    """Filter the stack with one permutohedral convolution, on a lattice that all images share."""

    positions: Tensor
    features: Tensor
    target: Tensor

    def __init__(self, channels: int, stack: Stack) -> None:
        super().__init__()
        self.convolution = ph.nn.PermutohedralConv(1, channels, _DIMENSION, normalization="density")
        self.set_stack(stack)

    def set_stack(self, stack: Stack) -> None:
        """Filter another stack with the same weights, for instance the whole circle."""
        self.stack = stack
        # one step for the simplex of a target and one for that of a sample, whose far ends have weight zero
        positions, features = stack.source(beyond=2)
        device = self.convolution.weight.device
        for name, tensor in (("positions", positions), ("features", features), ("target", stack.target())):
            self.register_buffer(name, tensor.to(device), persistent=False)
        self._lattice: ph.Lattice | None = None

    def forward(self, values: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the filtered levels of all images, `[batch * levels, channels, 24, 24]`."""
        # built at the first call and on every other device
        if self._lattice is None or self._lattice.device != self.features.device:
            self._lattice = ph.build_lattice(self.features, self.target)
        if self.stack.transformation == "rotation":
            samples = values.repeat(1, len(self.positions) // SIZE**2, 1)
        else:
            images = values.reshape(-1, SIZE, SIZE)
            samples = interpolate(images, self.positions.expand(len(images), -1, -1))[..., None]
        output: Tensor = self.convolution(samples, self._lattice)
        side = SIZE - 2 * MARGIN
        levels = output.reshape(len(values) * (2 * self.stack.levels + 1), side * side, -1)
        return levels.transpose(1, 2).reshape(len(levels), -1, side, side)


class InvariantLeNet(LeNet):
    """Apply LeNet to every level of a stack and pool the scores over the levels.

    The pooled score of a class is the logarithm of the summed probabilities of its levels.
    """

    stem: StackStem | CopiesStem

    def level_scores(self, values: Tensor) -> Tensor:
        """Return the scores of the classes at every level, `[batch, levels, 10]`."""
        return super().forward(values).reshape(len(values), -1, CLASSES)

    def forward(self, values: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the scores of the classes, `[batch, 10]`, for `values [batch, 784, 1]` from 0 to 1."""
        return self.level_scores(values).logsumexp(dim=1)


@checked_dataclass(frozen=True, config=FORBID_EXTRA)
class InvarianceConfig(Row):
    """One row of a table. All networks have ReLU after both convolutions and dropout of 0.5.

    Attributes:
        transformation: of the test digits and of the stack.
        model: "lenet", "stack" (`StackStem`) or "copies" (`CopiesStem`).
        training: how to train.
        bandwidth: of the stack.
        levels: of the stack, on either side of the original.
        augmentation: transform training digits at random by up to this many degrees, or logarithm of the factor.
        train_images: number of training images. Default: all.
        test_images: number of test images. Default: all.
    """

    transformation: Transformation
    model: Literal["lenet", "stack", "copies"]
    training: TrainingSettings
    bandwidth: float | None = None
    levels: int | None = None
    augmentation: float = 0.0
    train_images: int | None = None
    test_images: int | None = None

    def __post_init__(self) -> None:
        for name in ("bandwidth", "levels"):
            if (getattr(self, name) is None) != (self.model == "lenet") or (getattr(self, name) or 1) <= 0:
                raise InputError(f"{name} must be positive for a stack or copies, and None for lenet")
        try_out(build_model, self)


def build_model(config: InvarianceConfig) -> LeNet:
    """Build the model of a row, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    if config.bandwidth is None or config.levels is None:
        return LeNet(SpatialStem(_CHANNELS), rectify=True, dropout=0.5)
    stem = StackStem if config.model == "stack" else CopiesStem
    stack = Stack(config.transformation, config.bandwidth, config.levels)
    return InvariantLeNet(stem(_CHANNELS, stack), rectify=True, dropout=0.5)


def run(config: InvarianceConfig, options: RunOptions) -> Outcome:
    """Train and evaluate one row."""
    model = build_model(config).to(options.device)
    images, labels = (part[: config.train_images].to(options.device) for part in load_digits("train", options.data))
    batches = Batches(images, labels, [config.seed], config.training.batch_size, Sampling("pixels"))

    def loss(step: int) -> Tensor:
        values, _, [right] = batches(step)
        if config.augmentation:
            amounts = config.augmentation * (2 * torch.rand(len(values), device=values.device) - 1)
            values = transform(values.reshape(-1, SIZE, SIZE), config.transformation, amounts).reshape(values.shape)
        scores = model.level_scores(values) if isinstance(model, InvariantLeNet) else model(values)[:, None]
        return level_loss(scores, right)

    seconds = {"training": fit(model, loss, config.training, options, checkpoint_folder(config, options))}
    started = time.perf_counter()
    write_weights(weights_path(config, options.output), model)
    metrics = {"accuracy": measure(model.eval(), config, options)}
    if isinstance(model, InvariantLeNet) and config.transformation == "rotation":
        model.stem.set_stack(model.stem.stack.whole_circle())
        metrics["accuracy_whole_circle"] = measure(model, config, options)
    return {**metrics, "weights": count_weights(model)}, seconds | {"evaluation": time.perf_counter() - started}


def level_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean negative log-probability of each label at any level.

    Args:
        scores: `[batch, levels, classes]`; the softmax over both is the probability of a class at a level.
        labels: `[batch]`.
    """
    likelihood = scores.flatten(1).log_softmax(dim=1).reshape(scores.shape)
    return -likelihood[torch.arange(len(labels), device=labels.device), :, labels].logsumexp(dim=1).mean()


@torch.no_grad()
def measure(model: LeNet, config: InvarianceConfig, options: RunOptions) -> dict[str, float]:
    """Return the share of recognized test digits for each column of the table."""
    images, labels = (part[: config.test_images].to(options.device) for part in load_digits("test", options.data))
    found = {}
    for column, amounts in conditions(config, len(images)).items():
        right = 0
        for seen, amount, label in zip(*(part.split(_TEST_BATCH) for part in (images, amounts, labels)), strict=True):
            moved = transform(scale(seen), config.transformation, amount.to(seen.device))
            right += int((model(moved.flatten(1)[..., None]).argmax(dim=1) == label).sum())
        found[column] = right / len(images)
    return found


def conditions(config: InvarianceConfig, number: int) -> dict[str, Tensor]:
    """Return the transformation of each of `number` test digits, `[number]`, for each column of the table."""
    if config.transformation == "scale":
        return {f"{factor:g}": torch.full((number,), math.log(factor)) for factor in FACTORS}
    generator = torch.Generator().manual_seed(config.seed)
    share = 2 * torch.rand(number, generator=generator) - 1
    return {f"{angle}": angle * share for angle in ANGLES}


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report the accuracies."""
    name = results[0].experiment
    rotated = name == "rotation"
    headings = ["upright", *(f"up to {angle}°" for angle in ANGLES[1:])] if rotated else [f"{f:g} x" for f in FACTORS]
    keys = map("{:g}".format, ANGLES if rotated else FACTORS)
    columns: list[Column] = [Column("Network", "config/title", "{}")]
    columns += [
        Column(heading, f"metrics/accuracy/{key}", "{:.4f}", " ± {:.4f}")
        for heading, key in zip(headings, keys, strict=True)
    ]
    text = (
        f"Share of test digits recognized when {'rotated at random by up to an angle' if rotated else 'scaled'}: mean "
        "over the seeds ± sample standard deviation. All rows but the augmented one train on original digits. "
        "LeNet has ReLU, dropout and Adam here, unlike in table (a)."
    )
    if rotated:
        text += ' "All rotations" is the same trained network with its stack extended to the whole circle afterwards.'
    table = Table(columns, _with_whole_circles(results), heading="accuracy")
    return [Page(f"{name.capitalize()} of digits", text, [table], name=name)]


def _with_whole_circles(results: Sequence[Result]) -> list[Result]:
    """Add a row for every stack of rotations that was extended to the whole circle."""
    rows = []
    for runs in by_row(results).values():
        rows += runs
        for run in (run for run in runs if "accuracy_whole_circle" in run.metrics):
            config: dict[str, Any] = {**run.config, "title": f"{run.config['title']}, all rotations"}
            metrics = {"accuracy": run.metrics["accuracy_whole_circle"]}
            rows.append(replace(run, name=f"{run.name}_whole_circle", config=config, metrics=metrics, seconds={}))
    return rows


EXPERIMENTS = {name: Experiment(name, InvarianceConfig, run, report, seeds=3) for name in ("rotation", "scale")}
