"""Digits that are rotated or scaled at test time only."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional

from experiments.experiment import Experiment
from experiments.invariance.model import (
    InvarianceModel,
    InvariantLeNet,
    LevelStem,
    Transformation,
    build_invariance_model,
    pooled_levels,
    transform,
    whole_circle,
)
from experiments.mnist.model import SIZE, LeNet
from experiments.mnist.run import Batches, load_digits, scale
from experiments.mnist.sampling import Sampling
from experiments.report import Column, Page, Table, by_row
from experiments.results import FORBID_EXTRA, Result, weights_path, write_weights
from experiments.training import RunOptions, TrainingSettings, checkpoint_folder, count_weights, fit
from permutohedral.errors import InputError

# largest random angle of the test digits; and their factors
ANGLES = (0, 10, 20, 30, 45, 60, 180)
FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
# transformations for which the change of the first layer is measured
CHANGE_ANGLES = (5, 10, 15, 20, 30, 45, 60, 90, 180)
CHANGE_FACTORS = tuple(factor for factor in FACTORS if factor != 1)

_TEST_BATCH = 250
_CHANGE_IMAGES = 1000
_VALIDATION_IMAGES = 10_000


@dataclass(frozen=True, config=FORBID_EXTRA)
class InvarianceConfig:
    """One row of a table.

    Attributes:
        name: of the row and its files.
        title: in the table.
        transformation: of the test digits and of the stack.
        model: "lenet", "pcnn", "stack" or "copies".
        training: how to train.
        options: arguments of the model.
        window: of a stack: levels on either side of the original that count as right in training. None: all.
        augmentation: transform training digits at random by up to this many degrees, or logarithm of the factor.
        split: evaluate on "test", or on "validation": the last 10,000 training digits, then left out of the training.
        train_images: number of training images. Default: all.
        test_images: number of test images. Default: all.
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
    split: Literal["test", "validation"] = "test"
    train_images: int | None = None
    test_images: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        # checks the options without changing the random numbers of the caller
        with torch.random.fork_rng(devices=[]):
            build_model(self)
        if self.window is not None and self.window < 0:
            raise InputError(f"window must be at least 0, got {self.window}")
        if self.augmentation < 0:
            raise InputError(f"augmentation must be at least 0, got {self.augmentation}")


def build_model(config: InvarianceConfig) -> LeNet:
    """Build the model of a row, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    return build_invariance_model(config.model, config.transformation, config.options)


def choose_digits(
    config: InvarianceConfig, purpose: Literal["train", "test"], options: RunOptions
) -> tuple[Tensor, Tensor]:
    """Return images uint8 `[images, 28, 28]` and labels `[images]` on the device."""
    limit = config.train_images if purpose == "train" else config.test_images
    images, labels = load_digits("train" if config.split == "validation" else purpose, options.data)
    if config.split == "validation":
        held_out = min(_VALIDATION_IMAGES, len(images) // 2)
        part = slice(None, -held_out) if purpose == "train" else slice(-held_out, None)
        images, labels = images[part], labels[part]
    return images[:limit].to(options.device), labels[:limit].to(options.device)


def run(config: InvarianceConfig, options: RunOptions) -> tuple[dict[str, Any], dict[str, float]]:
    """Train and evaluate one row."""
    model = build_model(config).to(options.device)
    digits = choose_digits(config, "train", options)
    batches = Batches(*digits, [config.seed], config.training.batch_size, Sampling("pixels"))

    def loss(step: int) -> Tensor:
        values, _, [labels] = batches(step)
        if config.augmentation:
            amounts = config.augmentation * (2 * torch.rand(len(values), device=values.device) - 1)
            values = _to_values(transform(values.reshape(-1, SIZE, SIZE), config.transformation, amounts))
        if isinstance(model, InvariantLeNet):
            return level_loss(model.level_scores(values), labels, config.window)
        return functional.cross_entropy(model(values), labels)

    # the number of test digits does not matter to the training
    checkpoints = checkpoint_folder(replace(config, test_images=None), options)
    seconds = {"training": fit(model, loss, config.training, options, checkpoints)}
    trained = time.perf_counter()
    write_weights(weights_path(config, options.output), model)
    metrics = measure(model.eval(), *choose_digits(config, "test", options), config)
    if isinstance(model.stem, LevelStem) and config.transformation == "rotation":
        model.stem.set_stack(whole_circle(model.stem.stack))
        circle = measure(model, *choose_digits(config, "test", options), config)
        metrics |= {f"{name}_whole_circle": figures for name, figures in circle.items()}
    metrics["weights"] = count_weights(model)
    return metrics, seconds | {"evaluation": time.perf_counter() - trained}


def level_loss(scores: Tensor, labels: Tensor, window: int | None) -> Tensor:
    """Return the mean negative log-probability of each label at any level near the middle.

    Args:
        scores: `[batch, levels, classes]`; the softmax over both is the probability of a class at a level.
        labels: `[batch]`.
        window: levels on either side of the middle. None: all levels.
    """
    likelihood = scores.flatten(1).log_softmax(dim=1).reshape(scores.shape)
    right = likelihood[torch.arange(len(labels), device=labels.device), :, labels]
    middle = scores.shape[1] // 2
    if window is not None and window < middle:
        right = right[:, middle - window : middle + window + 1]
    return -right.logsumexp(dim=1).mean()


@torch.no_grad()
def measure(model: LeNet, images: Tensor, labels: Tensor, config: InvarianceConfig) -> dict[str, Any]:
    """Return the accuracy for each column of the table, and the change of the first layer."""
    accuracy = {}
    for column, amounts in conditions(config, len(images)).items():
        right = labels.new_zeros(())
        for first in range(0, len(images), _TEST_BATCH):
            batch = scale(images[first : first + _TEST_BATCH])
            seen = transform(batch, config.transformation, amounts[first : first + _TEST_BATCH].to(batch))
            right += (model(_to_values(seen)).argmax(dim=1) == labels[first : first + _TEST_BATCH]).sum()
        accuracy[column] = int(right) / len(images)
    return {
        "accuracy": accuracy,
        "change": measure_change(model.stem, images[:_CHANGE_IMAGES], config.transformation),
    }


def conditions(config: InvarianceConfig, number: int) -> dict[str, Tensor]:
    """Return the transformation of each of `number` test digits, `[number]`, for each column of the table."""
    if config.transformation == "scale":
        return {f"{factor:g}": torch.full((number,), math.log(factor)) for factor in FACTORS}
    generator = torch.Generator().manual_seed(config.seed)
    share = 2 * torch.rand(number, generator=generator) - 1
    return {f"{angle}": angle * share for angle in ANGLES}


@torch.no_grad()
def measure_change(stem: nn.Module, images: Tensor, transformation: Transformation) -> dict[str, float]:
    """Measure how the pooled output of a first layer changes when the images are transformed.

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
        before = pooled_levels(stem, _to_values(batch)).flatten(1)
        for step in steps:
            amount = float(step) if transformation == "rotation" else math.log(step)
            moved = transform(batch, transformation, batch.new_full((len(batch),), amount))
            after = pooled_levels(stem, _to_values(moved)).flatten(1)
            total[f"{step:g}"] += float(((after - before).norm(dim=1) / before.norm(dim=1)).sum())
    return {step: share / len(images) for step, share in total.items()}


def _to_values(images: Tensor) -> Tensor:
    """Reshape `[batch, 28, 28]` to `[batch, 784, 1]`."""
    return images.reshape(-1, SIZE * SIZE, 1)


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report accuracies and the change of the first layer."""
    rotated = results[0].experiment == "rotation"
    original, unit = ("0", "°") if rotated else ("1", " x")
    results = _with_whole_circles(results)
    title = Column("Network", "config/title", "{}")
    columns = [title]
    for amount in map("{:g}".format, ANGLES if rotated else FACTORS):
        heading = f"{amount}{unit}" if not rotated else "upright" if amount == original else f"up to {amount}{unit}"
        columns.append(Column(heading, f"metrics/accuracy/{amount}", "{:.4f}", " ± {:.4f}"))
    changes = [
        Column(f"{amount:g}{unit}", f"metrics/change/{amount:g}", "{:.3f}")
        for amount in (CHANGE_ANGLES if rotated else CHANGE_FACTORS)
    ]
    text = (
        f"Share of test digits recognized when {'rotated at random by up to an angle' if rotated else 'scaled'}: mean "
        "over the seeds ± sample standard deviation. All rows but the augmented one train on original digits. "
        "LeNet has ReLU, dropout and Adam here, unlike in table (a)."
    )
    if rotated:
        text += ' "All rotations" is the same trained network with its stack extended to the whole circle afterwards.'
    caption = (
        "Change of the first layer: norm of the difference between its outputs for the original and the transformed "
        "digit, over the norm of the former. Of a stack it is the largest response over the levels."
    )
    return [
        Page(
            f"{'Rotated' if rotated else 'Scaled'} digits",
            text,
            [Table(columns, results), Table([title, *changes], results, caption)],
            name="rotation" if rotated else "scale",
        )
    ]


def _with_whole_circles(results: Sequence[Result]) -> list[Result]:
    """Add a row for every stack of rotations that was extended to the whole circle."""
    rows = []
    for runs in by_row(results).values():
        rows += runs
        for run in (run for run in runs if "accuracy_whole_circle" in run.metrics):
            config = {**run.config, "title": f"{run.config['title']}, all rotations"}
            metrics = {name: run.metrics[f"{name}_whole_circle"] for name in ("accuracy", "change")}
            rows.append(replace(run, name=f"{run.name}, all rotations", config=config, metrics=metrics))
    return rows


EXPERIMENTS = {name: Experiment(name, InvarianceConfig, run, report, seeds=3) for name in ("rotation", "scale")}
