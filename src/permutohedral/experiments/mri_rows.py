"""Runs the rows of the reconstruction tables one after another, and writes what they gave."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from permutohedral.errors import InputError
from permutohedral.experiments.config import read_config, shipped_configs
from permutohedral.experiments.mri import MriConfig, run
from permutohedral.experiments.result import Result, read_result, write_result
from permutohedral.experiments.training import RunOptions

# what is sampled first, then the spectrum; fixed methods before learned ones
ROWS = (
    *("image_nearest", "image_linear", "image_kaiser_bessel", "image_lattices", "image_network"),
    *("image_permutohedral", "spectrum_nearest", "spectrum_linear", "spectrum_kaiser_bessel"),
    *("spectrum_conjugate_gradients", "spectrum_gridding", "spectrum_network", "spectrum_permutohedral"),
)

Report = Callable[[str], None]


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
    """The configurations of the rows with these names and in these files; by default all that are shipped."""
    shipped = shipped_configs("mri")
    if not names and not files:
        names = ROWS
    unknown = [name for name in names if name not in shipped]
    if unknown:
        raise InputError(f"there is no row {unknown[0]!r}; there are {', '.join(shipped)}")
    configs = [read_config(MriConfig, path) for path in [*(shipped[name] for name in names), *files]]
    if smoke:
        settings = read_config(MriSmokeSettings, shipped_configs("smoke")["mri"])
        configs = [settings.shorten(config) for config in configs]
    return configs


def result_path(name: str, folder: Path) -> Path:
    """Where the result of a row goes."""
    return folder / "rows" / f"{name}.json"


def read_mri_results(folder: Path) -> list[Result]:
    """All results that runs have left in `folder`, in the order of the table."""
    results = [read_result(path) for path in sorted((folder / "rows").glob("*.json"))]
    if not results:
        raise InputError(f"there are no results in {folder / 'rows'}")
    order = [*ROWS, *(result.name for result in results)]
    return sorted(results, key=lambda result: order.index(result.name))


def reproduce_mri(configs: Sequence[MriConfig], options: RunOptions, report: Report) -> list[Result]:
    """Run every row and write its result into the output folder.

    Args:
        configs: the rows.
        options: where and on what; `resume` keeps rows that are done.
        report: told of every row that begins or ends.
    """
    results = []
    for config in configs:
        path = result_path(config.name, options.output)
        kept = _done(config, path) if options.resume else None
        if kept is not None:
            report(f"{config.domain}, {config.title}: kept from {path}")
            results.append(kept)
            continue
        report(f"{config.domain}, {config.title} ...")
        result = run(config, options)
        if result is None:
            continue
        write_result(result, path)
        report(f"{config.domain}, {config.title}: done in {sum(result.seconds.values()):.0f} s")
        results.append(result)
    return results


def _done(config: MriConfig, path: Path) -> Result | None:
    """The result of an earlier run with this very configuration."""
    if not path.is_file():
        return None
    result = read_result(path)
    return result if result.config == json.loads(json.dumps(asdict(config))) else None
