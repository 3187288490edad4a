"""Runs the rows of the point cloud table with several seeds, and gathers the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from permutohedral.errors import InputError
from permutohedral.experiments.config import read_config, shipped_configs
from permutohedral.experiments.points import PointsConfig, run
from permutohedral.experiments.result import Result, read_result, write_result
from permutohedral.experiments.training import RunOptions

ROWS = ("pointwise_position", "position", "pointwise_normal", "position_normal_values", "position_normal")

Report = Callable[[str], None]


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
    """The configurations of the rows with these names and in these files; by default all that are shipped."""
    shipped = shipped_configs("points")
    if not names and not files:
        names = ROWS
    unknown = [name for name in names if name not in shipped]
    if unknown:
        raise InputError(f"there is no row {unknown[0]!r}; there are {', '.join(shipped)}")
    configs = [read_config(PointsConfig, path) for path in [*(shipped[name] for name in names), *files]]
    if smoke:
        settings = read_config(PointsSmokeSettings, shipped_configs("smoke")["points"])
        configs = [settings.shorten(config) for config in configs]
    return configs


def with_seeds(configs: Sequence[PointsConfig], number: int) -> list[PointsConfig]:
    """Every row with `number` seeds: all rows with the first seed, then all with the next."""
    return [replace(config, seed=config.seed + offset) for offset in range(number) for config in configs]


def read_points_results(folder: Path) -> list[Result]:
    """All results that runs have left in `folder`, in the order of the table."""
    results = [read_result(path) for path in sorted((folder / "runs").glob("*.json"))]
    if not results:
        raise InputError(f"there are no results in {folder / 'runs'}")
    order = [*ROWS, *(result.name for result in results)]
    return sorted(results, key=lambda result: (order.index(result.name), result.seed))


def reproduce_points(configs: Sequence[PointsConfig], options: RunOptions, report: Report) -> Iterator[Result]:
    """Run every configuration, write its result into the output folder, and yield it.

    Args:
        configs: rows with their seeds, the most important first.
        options: where and on what; `resume` keeps rows that are done.
        report: told of every row that ends.
    """
    for number, config in enumerate(configs, start=1):
        path = options.output / "runs" / f"{config.name}-{config.seed}.json"
        kept = _done(config, path) if options.resume else None
        place = f"{number} of {len(configs)}: {config.title}, seed {config.seed}"
        if kept is not None:
            report(f"{place}: kept from {path}")
            yield kept
            continue
        result = run(config, options)
        if result is None:
            continue
        write_result(result, path)
        report(f"{place}: {result.metrics['accuracy']:.4f} in {sum(result.seconds.values()):.0f} s")
        yield result


def _done(config: PointsConfig, path: Path) -> Result | None:
    """The result of an earlier run with this very configuration."""
    if not path.is_file():
        return None
    result = read_result(path)
    return result if result.config == json.loads(json.dumps(asdict(config))) else None
