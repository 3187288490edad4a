"""The rows of the reconstruction tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from permutohedral.experiments import rows
from permutohedral.experiments.config import read_config, shipped_configs
from permutohedral.experiments.mri import MriConfig, run
from permutohedral.experiments.result import Result
from permutohedral.experiments.training import RunOptions

# what is sampled first, then the spectrum; fixed methods before learned ones
ROWS = (
    *("image_nearest", "image_linear", "image_kaiser_bessel", "image_lattices", "image_network"),
    *("image_permutohedral", "spectrum_nearest", "spectrum_linear", "spectrum_kaiser_bessel"),
    *("spectrum_conjugate_gradients", "spectrum_gridding", "spectrum_network", "spectrum_permutohedral"),
)


@dataclass(frozen=True)
class MriSmokeSettings:
    """What a smoke run makes of a row.

    Attributes:
        train_images: how many photographs to train with.
        test_images: how many to evaluate on.
        size: of the images.
        steps: training steps.
    """

    train_images: int
    test_images: int
    size: int
    steps: int

    def shorten(self, config: MriConfig) -> MriConfig:
        """The same row, quickly."""
        training = config.training
        if training is not None:
            training = replace(training, steps=self.steps, batch_size=2)
        return replace(
            config, training=training, train_images=self.train_images, test_images=self.test_images, size=self.size
        )


def choose_mri_rows(names: Sequence[str], files: Sequence[Path], smoke: bool) -> list[MriConfig]:
    """The configurations of the rows with these names and in these files; by default all of the tables."""
    configs = rows.choose_configs(MriConfig, "mri", names, files, ROWS)
    if smoke:
        settings = read_config(MriSmokeSettings, shipped_configs("smoke")["mri"])
        configs = [settings.shorten(config) for config in configs]
    return configs


def read_mri_results(folder: Path) -> list[Result]:
    """All results that runs have left in `folder`, in the order of the tables."""
    return rows.read_results(folder, ROWS)


def reproduce_mri(
    configs: Sequence[MriConfig], options: RunOptions, report: rows.Report, jobs: int = 1
) -> Iterator[Result]:
    """Run every configuration, write its result, and yield it; see `run_rows`."""
    return rows.run_rows(configs, run, options, jobs, report)
