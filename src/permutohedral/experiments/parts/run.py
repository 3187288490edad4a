"""The categories of the LDraw parts from their shapes. One configuration per row; `run` trains and evaluates one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from permutohedral.data.ldraw import Parts, load_parts
from permutohedral.experiments.batches import own_part
from permutohedral.experiments.result import Result
from permutohedral.experiments.trained_row import run_row
from permutohedral.experiments.training import RunOptions, Task, TrainingSettings
from permutohedral.models.part_classification import PartModel, build_part_classifier

_TEST_BATCH = 64
# clouds are turned about the axis that is vertical in the library, scaled and shaken
_VERTICAL, _SCALE, _JITTER = 1, 0.1, 0.005


@dataclass(frozen=True)
class PartsConfig:
    """One row of the table.

    Attributes:
        name: of the row and its files.
        title: what the table calls it.
        model: "lattice" or "pointwise".
        training: how to train; the batch size counts clouds.
        options: arguments of the model.
        points: of each cloud, drawn anew in each step; the first ones in tests.
        test_clouds: so many of the parts to test on; default: all.
        seed: of weights and batches.
    """

    name: str
    title: str
    model: PartModel
    training: TrainingSettings
    options: dict[str, Any] = field(default_factory=dict)
    points: int = 512
    test_clouds: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        # checks the options, and leaves the random numbers of the caller alone
        with torch.random.fork_rng(devices=[]):
            build_model(self, classes=2)


def build_model(config: PartsConfig, classes: int) -> nn.Module:
    """The model of a row, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    return build_part_classifier(config.model, classes, config.options)


@lru_cache(maxsize=1)
def _load_once(folder: Path | None) -> tuple[Parts, Parts]:
    return load_parts(folder).split()


class PartsTask(Task):
    """Trains a classifier on batches of clouds it chooses itself, by the number of the step."""

    def __init__(self, model: nn.Module, config: PartsConfig, parts: Parts) -> None:
        super().__init__(model, config.training)
        self.config, self.parts = config, parts

    def training_step(self, number: int) -> Tensor:
        """The loss of a batch."""
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + number)
        drawn = torch.randint(len(self.parts.labels), (self.settings.batch_size,), generator=generator)
        chosen = self.parts.select(own_part(drawn))
        clouds = vary(draw_points(chosen.positions, self.config.points, generator), generator)
        return F.cross_entropy(
            self.model(*flatten(clouds.to(self.device))), chosen.labels.to(self.device), label_smoothing=0.1
        )


def draw_points(positions: Tensor, points: int, generator: torch.Generator) -> Tensor:
    """So many points of every cloud, `[clouds, points, 3]`.

    >>> draw_points(torch.rand(2, 9, 3), 4, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 4, 3])
    """
    order = torch.rand(positions.shape[:2], generator=generator).argsort(dim=1)[:, :points]
    return positions.gather(1, order[:, :, None].expand(-1, -1, 3))


def vary(clouds: Tensor, generator: torch.Generator) -> Tensor:
    """Each cloud turned about the vertical, scaled, and its points moved a little."""
    items = len(clouds)
    angle = 2 * math.pi * torch.rand(items, generator=generator)
    cosine, sine = angle.cos()[:, None], angle.sin()[:, None]
    first, up, second = (clouds[:, :, axis] for axis in (0, _VERTICAL, 2))
    turned = torch.stack([cosine * first - sine * second, up, sine * first + cosine * second], dim=2)
    scale = 1 + _SCALE * (2 * torch.rand(items, 1, 1, generator=generator) - 1)
    return turned * scale + _JITTER * torch.randn(clouds.shape, generator=generator)


def flatten(clouds: Tensor) -> tuple[Tensor, Tensor]:
    """Clouds of equally many points as a ragged batch: positions `[points, 3]`, and the cloud of each point."""
    item = torch.arange(len(clouds), device=clouds.device).repeat_interleave(clouds.shape[1])
    return clouds.flatten(0, 1), item


def run(config: PartsConfig, options: RunOptions) -> Result | None:
    """Train and evaluate one row.

    Returns:
        The result; None in all but the first process of a training on several devices.
    """
    learned, tested = _load_once(options.data)

    def measure(model: nn.Module) -> dict[str, Any]:
        return evaluate(model, tested.select(torch.arange(len(tested.labels))[: config.test_clouds]), config.points)

    return run_row(
        "parts",
        config,
        options,
        lambda: build_model(config, len(learned.classes)),
        lambda model: PartsTask(model, config, learned),
        measure,
    )


@torch.no_grad()
def evaluate(model: nn.Module, parts: Parts, points: int) -> dict[str, Any]:
    """Share of the parts whose category is found, of all and as a mean over the categories, and how many there are."""
    device = next(model.parameters()).device
    guesses = []
    for first in range(0, len(parts.labels), _TEST_BATCH):
        clouds = parts.positions[first : first + _TEST_BATCH, :points].to(device)
        guesses.append(model(*flatten(clouds)).argmax(dim=1).cpu())
    right = (torch.cat(guesses) == parts.labels).double()
    shares = [float(right[parts.labels == label].mean()) for label in parts.labels.unique().tolist()]
    accuracy = {"all": float(right.mean()), "mean of the categories": sum(shares) / len(shares)}
    return {"accuracy": accuracy, "parts": len(right), "categories": len(shares)}
