"""The rows of the MNIST table, with several seeds, one after another or side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from permutohedral.experiments import rows
from permutohedral.experiments.config import read_config, shipped_configs
from permutohedral.experiments.mnist import MnistConfig, run
from permutohedral.experiments.result import Result
from permutohedral.experiments.rows import Report
from permutohedral.experiments.rows import with_seeds as with_seeds
from permutohedral.experiments.training import RunOptions

# the rows of the paper's table in its order, and ours
PAPER_ROWS = ("lenet", "pcnn", "lenet_100", "pcnn_100", "lenet_60", "pcnn_60", "lenet_20", "pcnn_20")
OUR_ROWS = ("original_only", "mixed", "original_only_distorted", "mixed_distorted")


@dataclass(frozen=True)
class MnistSmokeSettings:
    """What a smoke run makes of a row.

    Attributes:
        train_images: how many images to train with.
        test_images: how many to evaluate on.
        steps: training steps.
    """

    train_images: int
    test_images: int
    steps: int

    def shorten(self, config: MnistConfig) -> MnistConfig:
        """The same row, quickly."""
        training = replace(config.training, steps=self.steps, batch_size=min(16, config.training.batch_size))
        return replace(config, train_images=self.train_images, test_images=self.test_images, training=training)


def choose_mnist_rows(names: Sequence[str], files: Sequence[Path], smoke: bool) -> list[MnistConfig]:
    """The configurations of the rows with these names and in these files; by default the paper's rows and ours."""
    configs = rows.choose_configs(MnistConfig, "mnist", names, files, PAPER_ROWS + OUR_ROWS)
    if smoke:
        settings = read_config(MnistSmokeSettings, shipped_configs("smoke")["mnist"])
        configs = [settings.shorten(config) for config in configs]
    return configs


def read_results(folder: Path) -> list[Result]:
    """All results that runs have left in `folder`, in the order of the table."""
    return rows.read_results(folder, PAPER_ROWS + OUR_ROWS)


def reproduce_mnist(configs: Sequence[MnistConfig], options: RunOptions, jobs: int, report: Report) -> Iterator[Result]:
    """Run every configuration, write its result, and yield it; see `run_rows`."""
    return rows.run_rows(configs, run, options, jobs, report)
