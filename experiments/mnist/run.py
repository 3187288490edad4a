"""Table (a) of the paper: MNIST from scattered samples; and samples that are not uniform."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional

from experiments.data.mnist import load_mnist
from experiments.experiment import Experiment, Outcome
from experiments.mnist.sampling import Sampling, derive_seed
from experiments.mnist.stack import FirstLayer, StackedLeNet, read_taps
from experiments.report import Column, Lines, Page, Table, by_row, mean_of
from experiments.results import FORBID_EXTRA, Result, hash_settings, weights_path, write_weights
from experiments.training import RunOptions, TrainingSettings, checkpoint_folder, fit
from permutohedral.errors import InputError

# in a tie the first one is chosen
CONTENDERS: dict[str, dict[FirstLayer, str]] = {
    "LeNet": {"lenet": "as it is", "lenet_share": "divided by the occupied share"},
    "PCNN": {"pcnn_none": "none", "pcnn_density": "density", "pcnn_coverage": "coverage"},
}
# 97.5 % points of Student's t, by degrees of freedom
_STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}

_HELD_OUT = 5000
_TEST_BATCH = 500

# one copy for all rows
load_digits = lru_cache(maxsize=2)(load_mnist)


@dataclass(frozen=True, config=FORBID_EXTRA)
class MnistConfig:
    """One row of the table.

    Attributes:
        name: of the row and its files.
        title: in the table.
        model: the first layer, of the interpolated image ("lenet...") or of the lattice ("pcnn_" and a normalization).
        samples: of training digits.
        tests: samples of test digits, by the column of the table.
        training: how to train.
        paper: accuracies in the paper, in the order of the columns.
        split: evaluate on "test", or on "validation": the last 5,000 training digits, then left out of the training.
        train_images: number of training images. Default: all.
        test_images: number of test images. Default: all.
        seed: of weights, batches and positions.
    """

    name: str
    title: str
    model: FirstLayer
    samples: Sampling
    tests: dict[str, Sampling]
    training: TrainingSettings
    paper: tuple[float, ...] | None = None
    split: Literal["test", "validation"] = "test"
    train_images: int | None = None
    test_images: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.paper is not None and len(self.paper) != len(self.tests):
            raise InputError(f"paper must give {len(self.tests)} accuracies, got {len(self.paper)}")


def choose_digits(config: MnistConfig, purpose: Literal["train", "test"], options: RunOptions) -> tuple[Tensor, Tensor]:
    """Return images uint8 `[images, 28, 28]` and labels `[images]` on the device."""
    limit = config.train_images if purpose == "train" else config.test_images
    images, labels = load_digits("train" if config.split == "validation" else purpose, options.data)
    if config.split == "validation":
        part = slice(None, -_HELD_OUT) if purpose == "train" else slice(-_HELD_OUT, None)
        images, labels = images[part], labels[part]
    return images[:limit].to(options.device), labels[:limit].to(options.device)


class Networks:
    """Networks of several rows and seeds, which see the same batches.

    Args:
        configs: rows that differ in the first layer and in the seed.
        device: of the weights.
    """

    def __init__(self, configs: Sequence[MnistConfig], device: torch.device) -> None:
        self.layers = list(dict.fromkeys(config.model for config in configs))
        self.seeds = list(dict.fromkeys(config.seed for config in configs))
        self.seed_of = torch.tensor([self.seeds.index(config.seed) for config in configs], device=device)
        layer_of = torch.tensor([self.layers.index(config.model) for config in configs], device=device)
        pairs = layer_of * len(self.seeds) + self.seed_of
        is_every_pair = pairs.tolist() == list(range(len(self.layers) * len(self.seeds)))
        self.pair_of = None if is_every_pair else pairs
        self.model = StackedLeNet([config.model for config in configs], [config.seed for config in configs]).to(device)

    def read(self, values: Tensor, positions: Tensor) -> Tensor:
        """Return the inputs of the model, given samples `[seeds * batch, points, ...]`."""
        taps = read_taps(self.layers, values, positions)
        pairs = taps.reshape(len(self.layers) * len(self.seeds), -1, *taps.shape[2:])
        # all pairs of layers and seeds need no copy
        return pairs if self.pair_of is None else pairs[self.pair_of]


def run_group(configs: list[MnistConfig], options: RunOptions) -> list[Outcome]:
    """Train and evaluate rows that differ in the first layer and in the seed."""
    first = configs[0]
    networks = Networks(configs, options.device)
    batches = Batches(*choose_digits(first, "train", options), networks.seeds, first.training.batch_size, first.samples)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        values, positions, labels = batches(step)
        return networks.read(values, positions), labels[networks.seed_of]

    def loss(taps: Tensor, labels: Tensor) -> Tensor:
        scores = networks.model(taps)
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum") / labels.shape[1]

    biases = [parameter for name, parameter in networks.model.named_parameters() if name.endswith("bias")]
    weights = [parameter for name, parameter in networks.model.named_parameters() if not name.endswith("bias")]
    # Caffe's LeNet trains biases twice as fast
    groups: list[dict[str, Any]] = [{"params": weights}, {"params": biases, "lr": 2 * first.training.learning_rate}]
    members = hash_settings({"networks": [[config.name, config.seed] for config in configs]})
    folder = checkpoint_folder(first, options, f"-{members}")
    capture = options.device.type == "cuda"
    training = fit(networks.model, loss, first.training, options, folder, batch=batch, groups=groups, capture=capture)
    trained = time.perf_counter()
    write_weights(weights_path(first, options.output), networks.model)
    accuracies = evaluate(networks, *choose_digits(first, "test", options), first.tests)
    evaluation = time.perf_counter() - trained
    # the time of a group is shared by its networks
    seconds = {"training": training / len(configs), "evaluation": evaluation / len(configs)}
    return [({"accuracy": accuracy}, seconds) for accuracy in accuracies]


def run(config: MnistConfig, options: RunOptions) -> Outcome:
    """Train and evaluate one row."""
    return run_group([config], options)[0]


@torch.no_grad()
def evaluate(
    networks: Networks, images: Tensor, labels: Tensor, tests: Mapping[str, Sampling]
) -> list[dict[str, float]]:
    """Return the share of recognized digits of each network for each column of the table.

    Args:
        networks: of all rows and seeds.
        images: uint8 `[images, 28, 28]`.
        labels: `[images]`.
        tests: samples of each column.
    """
    found: list[dict[str, float]] = [{} for _ in networks.seed_of]
    for column, sampling in tests.items():
        right = labels.new_zeros(len(found))
        for first in range(0, len(images), _TEST_BATCH):
            batch = scale(images[first : first + _TEST_BATCH]).repeat(len(networks.seeds), 1, 1)
            purpose = f"test {sampling.kind} {sampling.share} {first}"
            taps = networks.read(*sampling.sample(batch, networks.seeds, purpose))
            right += (networks.model(taps).argmax(dim=2) == labels[first : first + _TEST_BATCH]).sum(dim=1)
        for accuracy, number in zip(found, right.tolist(), strict=True):
            accuracy[column] = number / len(images)
    return found


def scale(images: Tensor) -> Tensor:
    """Divide bytes by 256, as Caffe's LeNet does."""
    return images.float() / 256


class Batches:
    """Make training batches on the device of the images. Batch i of a seed is always the same.

    Args:
        images: uint8 `[images, 28, 28]`.
        labels: `[images]`.
        seeds: of the order of the images, and of their samples.
        batch_size: images per step and seed.
        sampling: where the images are sampled.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, seeds: Sequence[int], batch_size: int, sampling: Sampling
    ) -> None:
        self.images, self.labels, self.seeds, self.sampling = images, labels, seeds, sampling
        self.batch_size = min(batch_size, len(images))
        self.epoch, self.order = -1, torch.empty(0, dtype=torch.long)

    def __call__(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return values and positions as `Sampling.sample` does, and labels `[seeds, batch]`."""
        epoch, place = divmod(step, len(self.images) // self.batch_size)
        if epoch != self.epoch:
            self.epoch, self.order = epoch, torch.stack([self._shuffle(seed, epoch) for seed in self.seeds])
            self.order = self.order.to(self.images.device)
        chosen = self.order[:, place * self.batch_size : (place + 1) * self.batch_size]
        images = scale(self.images[chosen.flatten()])
        return *self.sampling.sample(images, self.seeds, f"positions {step}"), self.labels[chosen]

    def _shuffle(self, seed: int, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(seed, f"order {epoch}"))
        return torch.randperm(len(self.images), generator=generator)


def trained_on(config: Mapping[str, Any]) -> str:
    """Return the column of the table whose samples a row is trained on."""
    tests: dict[str, Any] = config["tests"]
    return next(column for column, sampling in tests.items() if sampling == config["samples"])


def choose(results: Sequence[Result]) -> dict[str, dict[str, str]]:
    """Return the chosen rows, by the samples of training digits and by "LeNet" and "PCNN".

    Args:
        results: on validation digits; those with the samples of the training count.
    """
    chosen: dict[str, dict[str, str]] = {}
    means: dict[tuple[str, str], float] = {}
    rows = {name: runs for name, runs in by_row(results).items() if _family(runs[0])}
    for name, runs in rows.items():
        column, family = trained_on(runs[0].config), _family(runs[0])
        mean = mean_of(runs, f"metrics/accuracy/{column}")
        if mean > means.get((column, family), 0):
            means[column, family] = mean
            chosen.setdefault(column, {})[family] = name
    return chosen


def _family(result: Result) -> str:
    """Return "LeNet" or "PCNN"; nothing for rows outside of the comparison."""
    return next((family for family, models in CONTENDERS.items() if result.config["model"] in models), "")


def tabulate_choice(results: Sequence[Result]) -> Lines:
    """Make the table of the choice on validation digits."""
    chosen = {name for pair in choose(results).values() for name in pair.values()}
    models = [model for family in CONTENDERS.values() for model in family]
    lines: dict[str, list[str]] = {}
    for name, runs in by_row(results).items():
        if _family(runs[0]):
            column = trained_on(runs[0].config)
            cells = lines.setdefault(column, [column, *[""] * len(models)])
            text = Column("", f"metrics/accuracy/{column}", "{:.4f}", " ± {:.4f}").cell(runs)
            cells[1 + models.index(runs[0].config["model"])] = f"**{text}**" if name in chosen else text
    titles = [f"{family}, {how}" for family, models in CONTENDERS.items() for how in models.values()]
    caption = (
        "Share of recognized validation digits, with the samples that the network was trained on: mean over the seeds "
        "± sample standard deviation. The bold ones are compared on test digits."
    )
    return Lines(["Trained on", *titles], lines, caption, "chosen")


def compare(results: Sequence[Result], chosen: Mapping[str, Mapping[str, str]]) -> list[Lines]:
    """Make the tables of the counted comparison: the chosen LeNet and PCNN of every training, and the count."""
    rows = by_row(results)
    lines: dict[str, list[str]] = {}
    counts = {"PCNN": 0, "LeNet": 0, "neither": 0}
    columns = list(results[0].config["tests"])
    for trained, pair in chosen.items():
        runs = {family: rows.get(name, []) for family, name in pair.items()}
        seeds = [{run.seed for run in each} for each in runs.values()]
        if len(runs) < len(CONTENDERS) or not seeds[0] or seeds[0] != seeds[1]:
            continue
        cells: dict[str, list[str]] = {"LeNet": [], "PCNN": [], "difference": []}
        for column in columns:
            accuracies = {family: [run.metrics["accuracy"][column] for run in each] for family, each in runs.items()}
            means = {family: f"{statistics.mean(values):.4f}" for family, values in accuracies.items()}
            for family, text in means.items():
                cells[family].append(f"**{text}**" if text == max(means.values()) else text)
            differences = [p - q for p, q in zip(accuracies["PCNN"], accuracies["LeNet"], strict=True)]
            mean, half = statistics.mean(differences), half_interval(differences)
            cells["difference"].append(f"{mean:+.4f} ± {half:.4f}")
            counts["neither" if abs(mean) <= half else "PCNN" if mean > 0 else "LeNet"] += 1
        for family in CONTENDERS:
            how = CONTENDERS[family][runs[family][0].config["model"]]
            lines[pair[family]] = [trained, f"{family}, {how}", *cells[family]]
        lines[f"difference_{trained}"] = [trained, "difference", *cells["difference"]]
    if not lines:
        return []
    caption = (
        "The networks that were chosen on validation digits. The larger mean is bold. The difference is PCNN - LeNet, "
        "paired by seed, with its 95 % interval."
    )
    count = Lines(
        ["PCNN leads", "LeNet leads", "neither"],
        {"count": list(map(str, counts.values()))},
        "Cells whose interval does not contain zero, and the others.",
        "count",
        text_columns=(),
    )
    return [Lines(["Trained on", "Network", *columns], lines, caption, "compared", text_columns=(0, 1)), count]


def half_interval(differences: Sequence[float]) -> float:
    """Return half the length of the 95 % interval of a mean by Student's t.

    >>> round(half_interval([0.0, 1.0, 2.0]), 3)
    2.484
    """
    if len(differences) < 2:
        return math.inf
    return _STUDENT[len(differences) - 1] * statistics.stdev(differences) / math.sqrt(len(differences))


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report accuracies next to the paper's, and the counted comparison."""
    name = results[0].experiment
    columns = [Column("Network", "config/title", "{}")]
    for number, column in enumerate(results[0].config["tests"]):
        columns.append(Column(column, f"metrics/accuracy/{column}", "{:.4f}", " ± {:.4f}", f"config/paper/{number}"))
    test = [result for result in results if result.split == "test"]
    validation = [result for result in results if result.split == "validation"]
    others = [result for result in validation if not _family(result)]
    tables: list[Table | Lines] = []
    if test:
        caption = "Share of recognized test digits: mean over the seeds ± sample standard deviation (the paper's)."
        tables += [Table(columns, test, caption, "all"), *compare(test, choose(validation))]
    if len(validation) > len(others):
        tables.append(tabulate_choice(validation))
    if others:
        caption = "Ways to interpolate, on validation digits: mean over the seeds ± sample standard deviation."
        plain = [Column(column.title, column.path, column.format, column.spread) for column in columns]
        tables.append(Table(plain, others, caption, "readings"))
    titles = {"mnist": "MNIST from scattered samples", "sampling": "MNIST from samples that are not uniform"}
    text = (
        "Columns are the samples of test digits; rows are named after those of training digits. Networks with the same "
        "training are trained together, and share its time. The protocol is `experiments/mnist/PROTOCOL.md`."
    )
    return [Page(titles[name], text, tables, name=name)]


def group(config: MnistConfig) -> str:
    """Return what rows have in common that are trained together."""
    different = {"name": None, "title": None, "model": None, "paper": None, "seed": None}
    return hash_settings(asdict(config) | different)


EXPERIMENTS = {
    name: Experiment(name, MnistConfig, run, report, seeds=5, group=group, run_group=run_group)
    for name in ("mnist", "sampling")
}
