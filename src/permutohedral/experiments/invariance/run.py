"""Digits that are rotated or scaled at test time only. One configuration per row; `run` trains and evaluates one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from permutohedral.errors import InputError
from permutohedral.experiments.batches import own_part
from permutohedral.experiments.mnist.run import Batches, MnistConfig, load, scale
from permutohedral.experiments.result import Result
from permutohedral.experiments.trained_row import load_row, run_row
from permutohedral.experiments.training import RunOptions, Task, TrainingSettings, track
from permutohedral.models.invariance import (
    InvarianceModel,
    InvariantLeNet,
    LevelStem,
    Transformation,
    build_invariance_model,
    pooled_levels,
    whole_circle,
)
from permutohedral.models.lenet import SIZE, LeNet

# largest angles of the test digits, each rotated at random; and factors, the same for all
ANGLES = (0, 10, 20, 30, 45, 60, 180)
FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
# by how much the change of the first layer is measured
CHANGE_ANGLES = (5, 10, 15, 20, 30, 45, 60, 90, 180)
CHANGE_FACTORS = tuple(factor for factor in FACTORS if factor != 1)

_TEST_BATCH = 250
_CHANGE_IMAGES = 1000
_VALIDATION_IMAGES = 10_000


@dataclass(frozen=True)
class InvarianceConfig:
    """One row of a table.

    Attributes:
        name: of the row and its files.
        title: what the table calls it.
        transformation: "rotation" or "scale" of the test digits, and of the stack.
        model: "lenet", "pcnn", "stack" or "copies".
        training: how to train.
        options: arguments of the model.
        window: of a stack: how many levels on either side of the digit as it is count as right in training;
            None: all.
        augmentation: transform the training digits at random: by up to this many degrees, or by factors whose
            logarithms are up to this; 0: not at all.
        paper: accuracy that the paper's source reports for digits as they are.
        split: what to evaluate on: "test", or "validation", the last 10,000 training digits, which are then left out of
            the training: to choose settings.
        train_images: how many to train with; None for all.
        test_images: how many to evaluate on; None for all.
        seed: of weights, batches and angles.
    """

    name: str
    title: str
    transformation: Transformation
    model: InvarianceModel
    training: TrainingSettings
    options: dict[str, Any] = field(default_factory=dict)
    window: int | None = 0
    augmentation: float = 0.0
    paper: float | None = None
    split: Literal["test", "validation"] = "test"
    train_images: int | None = None
    test_images: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        # checks the options, and leaves the random numbers of the caller alone
        with torch.random.fork_rng(devices=[]):
            build_model(self)
        if self.window is not None and self.window < 0:
            raise InputError(f"window must be at least 0, got {self.window}")
        if self.augmentation < 0:
            raise InputError(f"augmentation must not be negative, got {self.augmentation}")


def build_model(config: InvarianceConfig) -> LeNet:
    """The model of a row, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    return build_invariance_model(config.model, config.transformation, config.options)


def digits(config: InvarianceConfig, purpose: Literal["train", "test"], options: RunOptions) -> tuple[Tensor, Tensor]:
    """Images uint8 `[images, 28, 28]` and labels `[images]` to train with or to evaluate on."""
    limit = config.train_images if purpose == "train" else config.test_images
    if config.split == "test":
        return load(purpose, limit, options)
    images, labels = load("train", None, options)
    held_out = min(_VALIDATION_IMAGES, len(images) // 2)
    part = slice(None, -held_out) if purpose == "train" else slice(-held_out, None)
    return images[part][:limit], labels[part][:limit]


def transform(images: Tensor, transformation: Transformation, amounts: Tensor) -> Tensor:
    """Rotate or scale images `[batch, 28, 28]` about their middle, interpolating bilinearly; zero from outside.

    Args:
        images: floating `[batch, height, width]`.
        transformation: what to do.
        amounts: `[batch]`, degrees counterclockwise, or logarithms of factors.
    """
    zero = torch.zeros_like(amounts)
    if transformation == "rotation":
        cosine, sine = torch.deg2rad(amounts).cos(), torch.deg2rad(amounts).sin()
    else:
        cosine, sine = (-amounts).exp(), zero
    # where each pixel of the result comes from, (x, y)
    rows = torch.stack([cosine, -sine, zero, sine, cosine, zero], dim=1).reshape(-1, 2, 3)
    grid = functional.affine_grid(rows, [len(images), 1, *images.shape[1:]], align_corners=False)
    return functional.grid_sample(images[:, None], grid, align_corners=False)[:, 0]


def run(config: InvarianceConfig, options: RunOptions) -> Result | None:
    """Train and evaluate one row.

    Returns:
        The result; None in all but the first process of a training on several devices.
    """

    def measure(model: LeNet) -> dict[str, Any]:
        images, labels = (tensor.to(options.device) for tensor in digits(config, "test", options))
        few = images[:_CHANGE_IMAGES]
        metrics = {
            "accuracy": evaluate(model, images, labels, config, options),
            "change": measure_change(model.stem, few, config.transformation),
        }
        if isinstance(model.stem, LevelStem) and config.transformation == "rotation":
            model.stem.set_stack(whole_circle(model.stem.stack))
            metrics["accuracy_whole_circle"] = evaluate(model, images, labels, config, options)
            metrics["change_whole_circle"] = measure_change(model.stem, few, config.transformation)
        return metrics

    known = digits(config, "train", options)
    return run_row(
        config.transformation,
        config,
        options,
        lambda: build_model(config),
        lambda model: InvarianceTask(model, config, *known),
        measure,
        trained_as=replace(config, test_images=None),
    )


def conditions(config: InvarianceConfig, number: int) -> dict[str, Tensor]:
    """How far each of `number` test digits is transformed, `[number]`, for each column of the table."""
    if config.transformation == "scale":
        return {f"{factor:g}": torch.full((number,), math.log(factor)) for factor in FACTORS}
    generator = torch.Generator().manual_seed(config.seed)
    share = 2 * torch.rand(number, generator=generator) - 1
    return {f"{angle}": angle * share for angle in ANGLES}


@torch.no_grad()
def evaluate(
    model: nn.Module, images: Tensor, labels: Tensor, config: InvarianceConfig, options: RunOptions
) -> dict[str, float]:
    """Share of the digits that are recognized, for each column of the table.

    Args:
        model: from `build_model`.
        images: uint8 `[images, 28, 28]`.
        labels: `[images]`.
        config: of the row.
        options: whether to show a bar.
    """
    accuracy = {}
    for column, amounts in track(list(conditions(config, len(images)).items()), "evaluating", options):
        right = labels.new_zeros(())
        for first in range(0, len(images), _TEST_BATCH):
            batch = scale(images[first : first + _TEST_BATCH])
            seen = transform(batch, config.transformation, amounts[first : first + _TEST_BATCH].to(batch))
            right += (model(_as_values(seen)).argmax(dim=1) == labels[first : first + _TEST_BATCH]).sum()
        accuracy[column] = int(right) / len(images)
    return accuracy


@torch.no_grad()
def measure_change(stem: nn.Module, images: Tensor, transformation: Transformation) -> dict[str, float]:
    """How much the pooled output of a first layer changes when the images are transformed: a mean of relative norms.

    Args:
        stem: of a model.
        images: uint8 `[images, 28, 28]`.
        transformation: of the images.

    Returns:
        By angle or factor: the mean over images of |output of the transformed - output| / |output|.
    """
    steps = CHANGE_ANGLES if transformation == "rotation" else CHANGE_FACTORS
    total = dict.fromkeys((f"{step:g}" for step in steps), 0.0)
    for first in range(0, len(images), _TEST_BATCH // 5):
        batch = scale(images[first : first + _TEST_BATCH // 5])
        before = pooled_levels(stem, _as_values(batch)).flatten(1)
        for step in steps:
            amount = float(step) if transformation == "rotation" else math.log(step)
            moved = transform(batch, transformation, batch.new_full((len(batch),), amount))
            after = pooled_levels(stem, _as_values(moved)).flatten(1)
            total[f"{step:g}"] += float(((after - before).norm(dim=1) / before.norm(dim=1)).sum())
    return {step: share / len(images) for step, share in total.items()}


def _as_values(images: Tensor) -> Tensor:
    """`[batch, 28, 28]` to `[batch, 784, 1]`."""
    return images.reshape(-1, SIZE * SIZE, 1)


class InvarianceTask(Task):
    """Trains a classifier on digits as they are, or transformed at random where the row asks for it."""

    def __init__(self, model: nn.Module, config: InvarianceConfig, images: Tensor, labels: Tensor) -> None:
        super().__init__(model, config.training)
        self.config, self.digits = config, (images, labels)

    def on_fit_start(self) -> None:
        """Move the digits to the device, once."""
        images, labels = (tensor.to(self.device) for tensor in self.digits)
        as_they_are = MnistConfig("pixels", "Pixels", "lenet", self.config.training, seed=self.config.seed)
        self.batches = Batches(images, labels, as_they_are)

    def training_step(self, number: int) -> Tensor:
        """The loss of a batch."""
        values, _, labels = self.batches(number)
        values, labels = own_part(values), own_part(labels)
        if self.config.augmentation:
            amounts = self.config.augmentation * (2 * torch.rand(len(values), device=values.device) - 1)
            values = _as_values(transform(values.reshape(-1, SIZE, SIZE), self.config.transformation, amounts))
        if isinstance(self.model, InvariantLeNet):
            return level_loss(self.model.level_scores(values), labels, self.config.window)
        return functional.cross_entropy(self.model(values), labels)


def level_loss(scores: Tensor, labels: Tensor, window: int | None) -> Tensor:
    """The mean negative logarithm of the probability of each label at any level within `window` of the middle.

    Args:
        scores: `[batch, levels, classes]`; the softmax over both is the probability of a class at a level.
        labels: `[batch]`.
        window: levels on either side of the middle; None: any level will do.
    """
    likelihood = scores.flatten(1).log_softmax(dim=1).reshape(scores.shape)
    right = likelihood[torch.arange(len(labels), device=labels.device), :, labels]
    middle = scores.shape[1] // 2
    if window is not None and window < middle:
        right = right[:, middle - window : middle + window + 1]
    return -right.logsumexp(dim=1).mean()


def load_weights(config: InvarianceConfig, folder: Path) -> LeNet:
    """The model of a row, with the weights that `run` left in the output folder."""
    return load_row(build_model(config), config, folder)
