"""The paper's Table (a): MNIST from scattered samples. One configuration per row; `run` trains and evaluates one."""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from permutohedral.data.mnist import MnistSplit, RandomSamples, interpolate, load_mnist
from permutohedral.errors import InputError
from permutohedral.experiments.batches import own_part
from permutohedral.experiments.result import Result
from permutohedral.experiments.trained_row import load_row, run_row
from permutohedral.experiments.training import RunOptions, Task, TrainingSettings
from permutohedral.models.lenet import SIZE, LeNet, LeNetModel, build_lenet, grid_positions

# the columns of the table: what the digits of the test set are known at, and samples over pixels (None: the pixels)
COLUMNS: dict[str, float | None] = {"original": None, "100 %": 1.0, "60 %": 0.6, "20 %": 0.2}

_TEST_BATCH = 500


@dataclass(frozen=True)
class MnistConfig:
    """One row of the table.

    Attributes:
        name: of the row and its files.
        title: what the table calls it.
        model: "lenet", "pcnn" or "filled".
        training: how to train.
        options: arguments of the model.
        samples: what a training batch is known at: "original", the pixels; "random", fresh random positions;
            "mixed", the pixels or a random number of random positions, drawn for each batch.
        share: samples over pixels, of "random".
        least_share: of "mixed": the shares are between this and 1, their logarithms uniform.
        original_chance: of "mixed": how often a batch is of pixels.
        distortion: rotate, stretch and shift every training digit at random: 1 is up to 12 degrees, 12 % along each
            axis and 2 pixels.
        label_smoothing: of the cross entropy.
        bias_rate: learning rate of the biases over that of the weights; Caffe's LeNet has 2.
        paper: accuracies the paper reports, in the order of the columns; None for rows of our own.
        train_images: how many of the 60,000; None for all.
        test_images: how many of the 10,000; None for all.
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
        # checks the options, and leaves the random numbers of the caller alone
        with torch.random.fork_rng(devices=[]):
            build_model(self)
        for name in ("share", "least_share"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, got {getattr(self, name)}")
        if self.paper is not None and len(self.paper) != len(COLUMNS):
            raise InputError(f"paper must give {len(COLUMNS)} accuracies, got {len(self.paper)}")


def build_model(config: MnistConfig) -> LeNet:
    """The model of a row, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    return build_lenet(config.model, config.options)


def load(split: MnistSplit, limit: int | None, options: RunOptions) -> tuple[Tensor, Tensor]:
    """Images uint8 `[images, 28, 28]` and labels `[images]` of a split."""
    images, labels = _load_once(split, options.data)
    return images[:limit], labels[:limit]


@lru_cache(maxsize=2)
def _load_once(split: MnistSplit, folder: Path | None) -> tuple[Tensor, Tensor]:
    return load_mnist(split, folder)


def run(config: MnistConfig, options: RunOptions) -> Result | None:
    """Train and evaluate one row.

    Returns:
        The result; None in all but the first process of a training on several devices.
    """

    def measure(model: LeNet) -> dict[str, Any]:
        images, labels = (tensor.to(options.device) for tensor in load("test", config.test_images, options))
        return {"accuracy": evaluate(model, images, labels, config.seed)}

    digits = load("train", config.train_images, options)
    return run_row(
        "mnist", config, options, lambda: build_model(config), lambda model: DigitsTask(model, config, *digits), measure
    )


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor, seed: int) -> dict[str, float]:
    """Share of the digits that are recognized, for each column of the table.

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
                values, positions = batch.flatten(1)[..., None], None
            else:
                positions, values = RandomSamples(share, seed)(batch, range(first, first + len(batch)))
            right += (model(values, positions).argmax(dim=1) == labels[first : first + _TEST_BATCH]).sum()
        accuracy[column] = int(right) / len(images)
    return accuracy


def scale(images: Tensor) -> Tensor:
    """Bytes as Caffe's LeNet takes them: over 256."""
    return images.float() / 256


class Batches:
    """The training batches of a row, made where the images are.

    Batch number i is the same whenever it is drawn, so a resumed training goes on as if uninterrupted: the images
    are shuffled for every epoch, the positions are fresh in every batch.

    Args:
        images: uint8 `[images, 28, 28]`.
        labels: `[images]`.
        config: names batch size, samples and seed.
    """

    def __init__(self, images: Tensor, labels: Tensor, config: MnistConfig) -> None:
        self.images, self.labels, self.config = images, labels, config
        self.batch_size = min(config.training.batch_size, len(images))
        self.generator = torch.Generator(images.device)
        self.pixels = grid_positions(device=images.device)
        self.epoch, self.order = -1, torch.empty(0, dtype=torch.long)

    def __call__(self, number: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """Values `[batch, points, 1]`, positions `[batch, points, 2]` or None for pixels, labels `[batch]`."""
        epoch, place = divmod(number, len(self.images) // self.batch_size)
        if epoch != self.epoch:
            shuffle = torch.Generator().manual_seed(self._seed(epoch, "order"))
            self.order = torch.randperm(len(self.images), generator=shuffle).to(self.images.device)
            self.epoch = epoch
        chosen = self.order[place * self.batch_size : (place + 1) * self.batch_size]
        images, labels = scale(self.images[chosen]), self.labels[chosen]
        share = self.draw_share(number)
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
        """Where in its image each digit is looked at, so that it appears distorted; `[batch, points, 2]`."""
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

    def draw_share(self, number: int) -> float | None:
        """Samples over pixels of batch `number`; None for the pixels themselves."""
        config = self.config
        if config.samples != "mixed":
            return config.share if config.samples == "random" else None
        drawn = random.Random(self._seed(number, "share"))
        if drawn.random() < config.original_chance:
            return None
        return math.exp(drawn.uniform(math.log(config.least_share), 0.0))

    def _seed(self, number: int, purpose: str = "positions") -> int:
        # a generator on the processor takes only 32 bits of its seed, so that all must matter
        text = f"{self.config.seed} {purpose} {number}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


class DigitsTask(Task):
    """Trains a classifier on batches it makes itself, by their number."""

    def __init__(self, model: nn.Module, config: MnistConfig, images: Tensor, labels: Tensor) -> None:
        super().__init__(model, config.training)
        self.config, self.digits = config, (images, labels)

    def on_fit_start(self) -> None:
        """Move the digits to the device, once."""
        images, labels = (tensor.to(self.device) for tensor in self.digits)
        self.batches = Batches(images, labels, self.config)

    def training_step(self, number: int) -> Tensor:
        """The loss of a batch."""
        values, positions, labels = self.batches(number)
        values, labels = own_part(values), own_part(labels)
        positions = None if positions is None else own_part(positions)
        scores = self.model(values, positions)
        return functional.cross_entropy(scores, labels, label_smoothing=self.config.label_smoothing)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Weights, and biases with their own learning rate."""
        biases = [parameter for name, parameter in self.named_parameters() if name.endswith("bias")]
        weights = [parameter for name, parameter in self.named_parameters() if not name.endswith("bias")]
        return [
            {"params": weights},
            {"params": biases, "lr": self.config.bias_rate * self.settings.learning_rate},
        ]


def load_weights(config: MnistConfig, folder: Path) -> LeNet:
    """The model of a row, with the weights that `run` left in the output folder."""
    return load_row(build_model(config), config, folder)
