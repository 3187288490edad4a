"""The rows of the point cloud table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from permutohedral.experiments import rows
from permutohedral.experiments.config import read_config, shipped_configs
from permutohedral.experiments.points import PointsConfig, run
from permutohedral.experiments.result import Result
from permutohedral.experiments.rows import with_seeds as with_seeds
from permutohedral.experiments.training import RunOptions

ROWS = ("pointwise_position", "position", "pointwise_normal", "position_normal_values", "position_normal")


@dataclass(frozen=True)
class PointsSmokeSettings:
    """What a smoke run makes of a row.

    Attributes:
        train_clouds: how many clouds to train with.
        test_clouds: how many to evaluate on.
        steps: training steps.
    """

    train_clouds: int
    test_clouds: int
    steps: int

    def shorten(self, config: PointsConfig) -> PointsConfig:
        """The same row, quickly."""
        training = replace(config.training, steps=self.steps, batch_size=min(8, config.training.batch_size))
        return replace(config, train_clouds=self.train_clouds, test_clouds=self.test_clouds, training=training)


def choose_points_rows(names: Sequence[str], files: Sequence[Path], smoke: bool) -> list[PointsConfig]:
    """The configurations of the rows with these names and in these files; by default all of the table."""
    configs = rows.choose_configs(PointsConfig, "points", names, files, ROWS)
    if smoke:
        settings = read_config(PointsSmokeSettings, shipped_configs("smoke")["points"])
        configs = [settings.shorten(config) for config in configs]
    return configs


def read_points_results(folder: Path) -> list[Result]:
    """All results that runs have left in `folder`, in the order of the table."""
    return rows.read_results(folder, ROWS)


def reproduce_points(
    configs: Sequence[PointsConfig], options: RunOptions, report: rows.Report, jobs: int = 1
) -> Iterator[Result]:
    """Run every configuration, write its result, and yield it; see `run_rows`."""
    return rows.run_rows(configs, run, options, jobs, report)
