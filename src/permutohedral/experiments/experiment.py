"""What an experiment is, and which ones there are. Listing them loads neither torch's trainers nor any network."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from permutohedral.errors import InputError
from permutohedral.experiments.config import read_config, read_mapping, shipped_configs

if TYPE_CHECKING:
    from permutohedral.experiments.result import Result
    from permutohedral.experiments.training import RunOptions

# a frozen dataclass with name, title, seed and training
Config = TypeVar("Config", bound=Any)

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Entry:
    """An experiment as the command line lists it.

    Attributes:
        name: of its command, its configurations and its results.
        folder: beside this file, whose `report.py` has it in `EXPERIMENTS`.
        summary: what it does, in a line.
        details: what it leaves behind, in a paragraph or more.
        flags: its own options, by name, and what they do; `Experiment.flags` has the functions behind them.
    """

    name: str
    folder: str
    summary: str
    details: str
    flags: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> Experiment[Any]:
        """The experiment itself, with everything that it needs to run."""
        module = importlib.import_module(f"permutohedral.experiments.{self.folder}.report")
        experiment: Experiment[Any] = module.EXPERIMENTS[self.name]
        return experiment


# in the order of the help
REGISTRY = (
    Entry(
        "denoising",
        "denoising",
        "Remove noise from photographs: the paper's Table (b).",
        "Writes a JSON file for each row, its weights, a report in Markdown and figures.",
        {"cross_validate": "First choose the scale of the features on the val images."},
    ),
    Entry(
        "mnist",
        "mnist",
        "Recognize digits from scattered samples: the paper's Table (a).",
        "Writes a JSON file for each row and seed, its weights, a report in Markdown and a figure.",
    ),
    Entry(
        "rotation",
        "invariance",
        "Recognize rotated digits, having seen upright ones.",
        "Writes a JSON file for each row and seed, a report in Markdown and a figure.",
    ),
    Entry(
        "scale",
        "invariance",
        "Recognize scaled digits, having seen them in one size.",
        "Writes a JSON file for each row and seed, a report in Markdown and a figure.",
    ),
    Entry(
        "mri",
        "mri",
        "Make images from samples along radial and spiral trajectories.",
        "The samples are of the image, or of its spectrum.\n\n"
        "Writes a JSON file for each row, its weights, reports in Markdown and figures.",
    ),
    Entry(
        "points",
        "points",
        "Recognize solids from noisy, partly hidden point clouds.",
        "The clouds are made on the spot.\n\n"
        "Writes a JSON file for each row and seed, its weights, a report in Markdown and figures.",
    ),
    Entry(
        "parts",
        "parts",
        "Tell the categories of toy parts from their shapes.",
        "Writes a JSON file for each row and seed, its weights and a report in Markdown.",
    ),
    Entry(
        "upsampling",
        "upsampling",
        "Bring depth and color to the size of a picture, along its edges.",
        "The Middlebury scenes must be in the folder of the datasets. The rows with opencv in their names need OpenCV "
        "with its contributed modules.\n\n"
        "Writes a JSON file for each row, and a report in Markdown.",
    ),
    Entry(
        "features",
        "upsampling",
        "Bring the features of a network to the size of its picture.",
        "They are those of a shipped denoiser, averaged over cells. The rows with opencv in their names need OpenCV "
        "with its contributed modules.\n\n"
        "Writes a JSON file for each row, and a report in Markdown.",
    ),
    Entry(
        "lidar",
        "lidar",
        "Tell ground, vegetation and buildings apart in laser scans.",
        "The scans must be in the folder of the datasets. Rows that are run when they are named: unet_small, "
        "unet_small_no_ground, unet_one_place, unet_no_augmentation, unet_no_ground, flat_no_ground, unet_linear, "
        "flat_coarse, unet_short, flat_short, flat_short_small and flat_short_wide.\n\n"
        "Writes a JSON file for each row and seed, its weights, and a report in Markdown.",
        {"time_steps": "First time a training step of each row, with nothing beside it."},
    ),
    Entry(
        "grabcut",
        "grabcut",
        "Cut objects out of photographs with dense random fields.",
        "The GrabCut database must be in the folder of the datasets. The rows opencv_lasso and opencv_rect need OpenCV."
        "\n\n"
        "Writes a JSON file for each row, and a report in Markdown.",
    ),
)


def load_experiment(name: str) -> Experiment[Any]:
    """The experiment of this name."""
    return next(entry for entry in REGISTRY if entry.name == name).load()


@dataclass(frozen=True)
class Experiment(Generic[Config]):
    """An experiment: the rows of its table, how one is made, and how they are reported.

    Attributes:
        name: as in the registry; its rows are in `configs/<name>`, what a smoke run lowers them to in
            `configs/smoke/<name>.yaml`.
        config: dataclass of a row.
        rows: those that run by default, in the order of the table.
        run: trains and evaluates one row; returns None in all but the first process of a training on several devices.
        headline: the main figures of a result, for the line that reports that it is done.
        tables: the results as text.
        write_report: writes pages and figures of results into the output folder, with the command that reproduces
            them; returns the pages.
        more_rows: those that run only when they are named; in the table after `rows`.
        seeds: how often each row is trained by default.
        report_on: what a report covers: the results of this "run"; the same, rewritten after "each row"; or all results
            in the output "folder".
        flat: results lie in the output folder itself, not in `runs`, and seed 0 is not part of their names.
        flags: by name of an option that only this experiment has, what it does to the rows before they run.
    """

    name: str
    config: type[Config]
    rows: tuple[str, ...]
    run: Callable[[Config, RunOptions], Result | None]
    headline: Callable[[Result], str]
    tables: Callable[[Sequence[Result]], str]
    write_report: Callable[[Sequence[Result], RunOptions, str], list[Path]]
    more_rows: tuple[str, ...] = ()
    seeds: int = 3
    report_on: Literal["run", "each row", "folder"] = "run"
    flat: bool = False
    flags: Mapping[str, Callable[[list[Config], RunOptions, Tell], list[Config]]] = field(default_factory=dict)

    def choose_rows(self, names: Sequence[str] = (), files: Sequence[Path] = (), smoke: bool = False) -> list[Config]:
        """The configurations of the rows with these names and in these files; without any, of `rows`.

        Raises:
            InputError: there is no such row or file, or it is no configuration.
        """
        shipped = shipped_configs(self.name)
        if not names and not files:
            names = self.rows
        unknown = [name for name in names if name not in shipped]
        if unknown:
            raise InputError(f"there is no row {unknown[0]!r}; there are {', '.join(shipped)}")
        configs = [read_config(self.config, path) for path in [*(shipped[name] for name in names), *files]]
        if smoke:
            limits = read_mapping(shipped_configs("smoke")[self.name])
            configs = [shorten(config, limits) for config in configs]
        return configs

    def result_path(self, config: Config, folder: Path) -> Path:
        """Where the result of a row with its seed goes."""
        if self.flat:
            return folder / f"{file_stem(config)}.json"
        return folder / "runs" / f"{config.name}-{config.seed}.json"

    def read_results(self, folder: Path) -> list[Result]:
        """All results that runs have left in `folder`, in the order of the table, others after them.

        Raises:
            InputError: there are none, or one cannot be read.
        """
        from permutohedral.experiments.result import read_result

        runs = folder if self.flat else folder / "runs"
        results = [read_result(path) for path in sorted(runs.glob("*.json"))]
        if self.flat:
            # other measurements, such as the choice of the scale, lie beside the rows
            results = [result for result in results if result.config.get("name") == result.name]
        if not results:
            raise InputError(f"there are no results in {runs}")
        names = list(dict.fromkeys([*self.rows, *self.more_rows, *(result.name for result in results)]))
        return sorted(results, key=lambda result: (names.index(result.name), result.seed))


def with_seeds(configs: Sequence[Config], number: int) -> list[Config]:
    """Every row with `number` seeds: all rows with the first seed, then all with the next.

    An interrupted run then has something of every row.
    """
    return [replace(config, seed=config.seed + offset) for offset in range(number) for config in configs]


def file_stem(config: Any) -> str:
    """The name of a row's files where most rows have one seed: that of the row, with its seed unless that is 0."""
    return f"{config.name}-{config.seed}" if config.seed else str(config.name)


def shorten(config: Config, limits: Mapping[str, Any]) -> Config:
    """The same row, quickly: no number exceeds the one of the same name in `limits`, and None is replaced by it."""
    changes: dict[str, Any] = {}
    for name, limit in limits.items():
        own = getattr(config, name)
        if isinstance(limit, Mapping):
            # a row that is not trained has no training to shorten
            changes[name] = None if own is None else shorten(own, limit)
        else:
            changes[name] = limit if own is None else min(own, limit)
    return replace(config, **changes)
