"""Classification of point clouds of solids. One configuration per row; `run` trains and evaluates one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from permutohedral.data.solids import SOLIDS, PointClouds, make_clouds
from permutohedral.errors import InputError
from permutohedral.experiments.batches import own_part
from permutohedral.experiments.result import Result
from permutohedral.experiments.trained_row import run_row
from permutohedral.experiments.training import RunOptions, Task, TrainingSettings
from permutohedral.models.point_cloud import PointModel, build_classifier

_TEST_BATCH = 100
# apart from each other, and the same for every row and seed
_TRAIN_SEED, _TEST_SEED = 1, 2


@dataclass(frozen=True)
class PointsConfig:
    """One row of the table.

    Attributes:
        name: of the row and its files.
        title: what the table calls it.
        model: "permutohedral" or "pointwise".
        training: how to train.
        options: arguments of the model.
        train_clouds: how many to train with.
        test_clouds: how many to evaluate on.
        noise: of the positions; see `make_clouds`.
        seed: of weights and batches.
    """

    name: str
    title: str
    model: PointModel
    training: TrainingSettings
    options: dict[str, Any] = field(default_factory=dict)
    train_clouds: int = 4000
    test_clouds: int = 2000
    noise: float = 0.03
    seed: int = 0

    def __post_init__(self) -> None:
        # checks the options, and leaves the random numbers of the caller alone
        with torch.random.fork_rng(devices=[]):
            build_model(self)
        if self.training.batch_size > self.train_clouds:
            raise InputError(
                f"a batch of {self.training.batch_size} exceeds the {self.train_clouds} clouds to train with"
            )


def build_model(config: PointsConfig) -> nn.Module:
    """The model of a row, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    return build_classifier(config.model, len(SOLIDS), config.options)


@lru_cache(maxsize=2)
def _make_once(number: int, seed: int, noise: float) -> PointClouds:
    return make_clouds(number, seed, noise=noise)


class CloudsTask(Task):
    """Trains a classifier on batches of clouds it chooses itself, by the number of the step."""

    def __init__(self, model: nn.Module, config: PointsConfig, clouds: PointClouds) -> None:
        super().__init__(model, config.training)
        self.config, self.clouds = config, clouds

    def training_step(self, number: int) -> Tensor:
        """The loss of a batch."""
        clouds = self.clouds.select(own_part(self.choose(number))).to(self.device)
        scores = self.model(clouds.positions, clouds.normals, clouds.item)
        return F.cross_entropy(scores, clouds.labels)

    def choose(self, number: int) -> Tensor:
        """The clouds of a step: every epoch has an order of its own."""
        size = self.settings.batch_size
        epoch, place = divmod(number, len(self.clouds.labels) // size)
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + epoch)
        return torch.randperm(len(self.clouds.labels), generator=generator)[place * size : (place + 1) * size]


def run(config: PointsConfig, options: RunOptions) -> Result | None:
    """Train and evaluate one row.

    Returns:
        The result; None in all but the first process of a training on several devices.
    """

    def measure(model: nn.Module) -> dict[str, Any]:
        return evaluate(model, _make_once(config.test_clouds, _TEST_SEED, config.noise), options.device)

    clouds = _make_once(config.train_clouds, _TRAIN_SEED, config.noise)
    return run_row(
        "points", config, options, lambda: build_model(config), lambda model: CloudsTask(model, config, clouds), measure
    )


@torch.no_grad()
def evaluate(model: nn.Module, clouds: PointClouds, device: torch.device) -> dict[str, Any]:
    """Share of the clouds that are recognized, and the confusion: a row of counts for each solid.

    >>> class Always(nn.Module):
    ...     def forward(self, positions, normals, item):
    ...         return F.one_hot(torch.zeros(int(item.max()) + 1, dtype=torch.int64), len(SOLIDS)).float()
    >>> clouds = make_clouds(5, seed=0)
    >>> measured = evaluate(Always(), clouds, torch.device("cpu"))
    >>> measured["accuracy"]["all"] == int((clouds.labels == 0).sum()) / 5
    True
    """
    confusion = torch.zeros(len(SOLIDS), len(SOLIDS), dtype=torch.int64)
    for first in range(0, len(clouds.labels), _TEST_BATCH):
        chosen = torch.arange(first, min(first + _TEST_BATCH, len(clouds.labels)))
        batch = clouds.select(chosen).to(device)
        guesses = model(batch.positions, batch.normals, batch.item).argmax(dim=1)
        pairs = (batch.labels * len(SOLIDS) + guesses).cpu()
        confusion += torch.bincount(pairs, minlength=confusion.numel()).reshape_as(confusion)
    right = int(confusion.diagonal().sum())
    return {"accuracy": {"all": right / len(clouds.labels)}, "confusion": confusion.tolist()}
