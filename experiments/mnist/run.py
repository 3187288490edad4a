"""Table (a) of the paper: MNIST from scattered samples."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional

from experiments.data.mnist import interpolate, load_mnist, sample_at_random
from experiments.experiment import Experiment
from experiments.mnist.model import SIZE, LeNet, LeNetModel, build_lenet, grid_positions
from experiments.report import Column, Page, Table
from experiments.results import FORBID_EXTRA, Result, weights_path, write_weights
from experiments.training import RunOptions, TrainingSettings, checkpoint_folder, count_weights, fit
from permutohedral.errors import InputError

# columns of the table: samples over pixels of the test digits, None for the pixels themselves
COLUMNS: dict[str, float | None] = {"original": None, "100 %": 1.0, "60 %": 0.6, "20 %": 0.2}

_TEST_BATCH = 500

# one copy for all rows
load_digits = lru_cache(maxsize=2)(load_mnist)


@dataclass(frozen=True, config=FORBID_EXTRA)
class MnistConfig:
    """One row of the table.

    Attributes:
        name: of the row and its files.
        title: in the table.
        model: "lenet", "pcnn" or "filled".
        training: how to train.
        options: arguments of the model.
        samples: of a training batch: "original", the pixels; "random", new random positions; "mixed", either, with a
            random number of positions.
        share: samples over pixels, of "random".
        least_share: of "mixed": log-uniform shares between this and 1.
        original_chance: of "mixed": probability of a batch of pixels.
        distortion: random distortion of training digits; 1 is up to 12 degrees, 12 % along each axis and 2 pixels.
        label_smoothing: of the cross entropy.
        bias_rate: learning rate of biases over that of weights; Caffe's LeNet has 2.
        paper: accuracies in the paper, in the order of the columns.
        train_images: number of training images. Default: all 60,000.
        test_images: number of test images. Default: all 10,000.
        seed: of weights, batches and positions.
    """

    name: str
    title: str
    model: LeNetModel
    training: TrainingSettings
    options: dict[str, Any] = field(default_factory=dict)
    samples: Literal["original", "random", "mixed"] = "original"
    share: float = 1.0
    least_share: float = 0.15
    original_chance: float = 0.25
    distortion: float = 0.0
    label_smoothing: float = 0.0
    bias_rate: float = 2.0
    paper: tuple[float, ...] | None = None
    train_images: int | None = None
    test_images: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        # checks the options without changing the random numbers of the caller
        with torch.random.fork_rng(devices=[]):
            build_model(self)
        for name in ("share", "least_share"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, got {getattr(self, name)}")
        if self.paper is not None and len(self.paper) != len(COLUMNS):
            raise InputError(f"paper must give {len(COLUMNS)} accuracies, got {len(self.paper)}")


def build_model(config: MnistConfig) -> LeNet:
    """Build the model of a row, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    return build_lenet(config.model, config.options)


def run(config: MnistConfig, options: RunOptions) -> tuple[dict[str, Any], dict[str, float]]:
    """Train and evaluate one row."""
    started = time.perf_counter()
    images, labels = (part[: config.train_images].to(options.device) for part in load_digits("train", options.data))
    model = build_model(config).to(options.device)
    batches = Batches(images, labels, config)

    def loss(step: int) -> Tensor:
        values, positions, wanted = batches(step)
        return functional.cross_entropy(model(values, positions), wanted, label_smoothing=config.label_smoothing)

    biases = [parameter for name, parameter in model.named_parameters() if name.endswith("bias")]
    weights = [parameter for name, parameter in model.named_parameters() if not name.endswith("bias")]
    groups: list[dict[str, Any]] = [
        {"params": weights},
        {"params": biases, "lr": config.bias_rate * config.training.learning_rate},
    ]
    fit(model, loss, config.training, options, checkpoint_folder(config, options), groups=groups)
    trained = time.perf_counter()
    write_weights(weights_path(config, options.output), model)
    images, labels = (part[: config.test_images].to(options.device) for part in load_digits("test", options.data))
    metrics = {"accuracy": evaluate(model.eval(), images, labels, config.seed), "weights": count_weights(model)}
    return metrics, {"training": trained - started, "evaluation": time.perf_counter() - trained}


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor, seed: int) -> dict[str, float]:
    """Return the share of recognized digits for each column of the table.

    Args:
        model: from `build_lenet`.
        images: uint8 `[images, 28, 28]`.
        labels: `[images]`.
        seed: of the positions.
    """
    accuracy = {}
    for column, share in COLUMNS.items():
        right = labels.new_zeros(())
        for first in range(0, len(images), _TEST_BATCH):
            batch = scale(images[first : first + _TEST_BATCH])
            if share is None:
                positions, values = None, batch.flatten(1)[..., None]
            else:
                positions, values = sample_at_random(batch, share, seed, first)
            right += (model(values, positions).argmax(dim=1) == labels[first : first + _TEST_BATCH]).sum()
        accuracy[column] = int(right) / len(images)
    return accuracy


def scale(images: Tensor) -> Tensor:
    """Divide bytes by 256, as Caffe's LeNet does."""
    return images.float() / 256


class Batches:
    """Make the training batches of a row on the device of the images. Batch i is always the same.

    Args:
        images: uint8 `[images, 28, 28]`.
        labels: `[images]`.
        config: batch size, samples and seed.
    """

    def __init__(self, images: Tensor, labels: Tensor, config: MnistConfig) -> None:
        self.images, self.labels, self.config = images, labels, config
        self.batch_size = min(config.training.batch_size, len(images))
        self.generator = torch.Generator(images.device)
        self.pixels = grid_positions(device=images.device)
        self.epoch, self.order = -1, torch.empty(0, dtype=torch.long)

    def __call__(self, number: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return values `[batch, points, 1]`, positions `[batch, points, 2]` or None for pixels, labels `[batch]`."""
        epoch, place = divmod(number, len(self.images) // self.batch_size)
        if epoch != self.epoch:
            shuffle = torch.Generator().manual_seed(self._seed(epoch, "order"))
            self.order = torch.randperm(len(self.images), generator=shuffle).to(self.images.device)
            self.epoch = epoch
        chosen = self.order[place * self.batch_size : (place + 1) * self.batch_size]
        images, labels = scale(self.images[chosen]), self.labels[chosen]
        share = self._draw_share(number)
        if share is None and not self.config.distortion:
            return images.flatten(1)[..., None], None, labels
        self.generator.manual_seed(self._seed(number))
        if share is None:
            positions = self.pixels.expand(len(images), -1, -1)
        else:
            samples = max(1, round(share * images[0].numel()))
            positions = self._uniform(len(images), samples, 2) * (SIZE - 1)
        seen = self._distort(positions) if self.config.distortion else positions
        return interpolate(images, seen)[..., None], None if share is None else positions, labels

    def _distort(self, positions: Tensor) -> Tensor:
        """Return the positions `[batch, points, 2]` at which a distorted digit shows the original one."""
        strength, batch = self.config.distortion, len(positions)
        angle, stretch_y, stretch_x = (strength * (2 * self._uniform(3, batch) - 1)).unbind()
        angle = angle * math.radians(12)
        rows = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=1).reshape(batch, 2, 2)
        stretch = torch.stack([1 + 0.12 * stretch_y, 1 + 0.12 * stretch_x], dim=1)
        shift = 2 * strength * (2 * self._uniform(batch, 1, 2) - 1)
        center = (SIZE - 1) / 2
        moved = (positions - center) @ (rows * stretch[:, None]) + center + shift
        # the outermost pixels are background
        return moved.clamp(0, SIZE - 1)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.images.device)

    def _draw_share(self, number: int) -> float | None:
        """Draw samples over pixels of a batch; None for the pixels themselves."""
        config = self.config
        if config.samples != "mixed":
            return config.share if config.samples == "random" else None
        drawn = random.Random(self._seed(number, "share"))
        if drawn.random() < config.original_chance:
            return None
        return math.exp(drawn.uniform(math.log(config.least_share), 0.0))

    def _seed(self, number: int, purpose: str = "positions") -> int:
        # torch's CPU generator uses 32 bits of its seed only
        text = f"{self.config.seed} {purpose} {number}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report accuracies next to the paper's."""
    accuracies = [
        Column(column, f"metrics/accuracy/{column}", "{:.4f}", " ± {:.4f}", f"config/paper/{number}")
        for number, column in enumerate(COLUMNS)
    ]
    text = (
        "Share of recognized test digits. They are given at their pixels (original), or at random positions, with the "
        "given share of samples over pixels: mean over the seeds ± sample standard deviation (the paper's)."
    )
    table = Table([Column("Network", "config/title", "{}"), *accuracies], results)
    return [Page("MNIST from scattered samples", text, [table], name="mnist")]


EXPERIMENTS = {"mnist": Experiment("mnist", MnistConfig, run, report, seeds=3, as_table=True)}
