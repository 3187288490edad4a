"""The rows of the tables on rotation and on scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from permutohedral.experiments import rows
from permutohedral.experiments.config import read_config, shipped_configs
from permutohedral.experiments.invariance import InvarianceConfig, run
from permutohedral.experiments.result import Result
from permutohedral.experiments.training import RunOptions
from permutohedral.models.invariance import Transformation

# in the order of the tables
ROWS: dict[Transformation, tuple[str, ...]] = {
    "rotation": ("lenet", "pcnn", "rotation_pcnn", "lenet_copies", "lenet_augmented"),
    "scale": ("lenet", "pcnn", "scale_pcnn", "lenet_copies", "lenet_augmented"),
}


@dataclass(frozen=True)
class InvarianceSmokeSettings:
    """What a smoke run makes of a row.

    Attributes:
        train_images: how many images to train with.
        test_images: how many to evaluate on.
        steps: training steps.
    """

    train_images: int
    test_images: int
    steps: int

    def shorten(self, config: InvarianceConfig) -> InvarianceConfig:
        """The same row, quickly."""
        training = replace(config.training, steps=self.steps, batch_size=min(16, config.training.batch_size), warmup=0)
        return replace(config, train_images=self.train_images, test_images=self.test_images, training=training)


def choose_invariance_rows(
    transformation: Transformation, names: Sequence[str], files: Sequence[Path], smoke: bool
) -> list[InvarianceConfig]:
    """The configurations of the rows with these names and in these files; by default all of the table."""
    configs = rows.choose_configs(InvarianceConfig, transformation, names, files, ROWS[transformation])
    if smoke:
        settings = read_config(InvarianceSmokeSettings, shipped_configs("smoke")[transformation])
        configs = [settings.shorten(config) for config in configs]
    return configs


def read_invariance_results(transformation: Transformation, folder: Path) -> list[Result]:
    """All results that runs have left in `folder`, in the order of the table."""
    return rows.read_results(folder, ROWS[transformation])


def reproduce_invariance(
    configs: Sequence[InvarianceConfig], options: RunOptions, jobs: int, report: rows.Report
) -> Iterator[Result]:
    """Run every configuration, write its result, and yield it; see `run_rows`."""
    return rows.run_rows(configs, run, options, jobs, report)
