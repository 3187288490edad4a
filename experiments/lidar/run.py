"""Ground, vegetation and buildings in laser scans.

Trained on the west half of one place and on two others, tested on the east half and on a place never seen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any, cast

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from experiments.data.lidar import CLASSES, PlaceName, halve, load_scan
from experiments.experiment import Experiment, Row, try_out
from experiments.lidar.networks import SegmentationModel, build_network
from experiments.lidar.scenes import (
    UNKNOWN,
    VALUE_CHANNELS,
    Above,
    Cropping,
    Scene,
    crop_loss,
    draw_crops,
    make_scene,
)
from experiments.markdown import markdown_table
from experiments.report import WEIGHTS, Column, Page, Table, by_row
from experiments.results import FORBID_EXTRA, Result, weights_path, write_weights
from experiments.training import RunOptions, TrainingSettings, checkpoint_folder, count_weights, fit
from permutohedral.apps.jobs.cloud_tiles import classify_points
from permutohedral.errors import InputError

# trained on its west half, tested on its east half
HALVED: PlaceName = "zurich"
# never trained on
UNSEEN: PlaceName = "fusa"
PLACES = (HALVED, "lake", "house")

# networks with levels and without, trained alike
PAIRS = (
    ("unet_linear", "flat_coarse"),
    ("unet_linear", "flat_positions"),
    ("unet", "flat"),
    ("unet_short", "flat_short"),
    ("unet_short", "flat_short_wide"),
    ("unet_short", "flat_short_small"),
)


@dataclass(frozen=True, config=FORBID_EXTRA)
class LidarConfig(Row):
    """One row of the table.

    Attributes:
        model: "unet", "flat", "pointwise" or "pointnet".
        training: how to train; the batch size counts crops.
        options: arguments of the model.
        places: of the crops. A place that is named twice gives twice as many.
        cropping: how crops are cut out and varied.
        above: origin of the heights that a network gets; with "nothing" it gets the positions alone.
        test_points: number of random points of each test scene. Default: all.
    """

    model: SegmentationModel
    training: TrainingSettings
    options: dict[str, Any] = field(default_factory=dict)
    places: tuple[str, ...] = (HALVED, HALVED, HALVED, "lake", "house")
    cropping: Cropping = field(default_factory=Cropping)
    above: Above = "ground"
    test_points: int | None = None

    def __post_init__(self) -> None:
        unknown = [place for place in self.places if place not in PLACES]
        if unknown or not self.places:
            raise InputError(f"places must be among {', '.join(PLACES)}, got {list(self.places)}")
        try_out(build_model, self)


def build_model(config: LidarConfig) -> nn.Module:
    """Build the network of a row, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    return build_network(config.model, VALUE_CHANNELS, len(CLASSES), config.options)


@lru_cache(maxsize=8)
def training_scene(place: PlaceName, folder: Path | None, above: Above = "ground") -> Scene:
    """Return the part of a place to train on."""
    scan = load_scan(place, folder)
    scan = halve(scan)[0] if place == HALVED else scan
    return make_scene(scan.positions, scan.labels, above)


def test_scenes(folder: Path | None, config: LidarConfig) -> dict[str, Scene]:
    """Return the scenes to test on, by the name of the place."""
    scans = {HALVED: halve(load_scan(HALVED, folder))[1], UNSEEN: load_scan(UNSEEN, folder)}
    scenes: dict[str, Scene] = {
        name: make_scene(scan.positions, scan.labels, config.above) for name, scan in scans.items()
    }
    if config.test_points is None:
        return scenes
    generator = torch.Generator().manual_seed(0)
    numbers = {name: len(scene.positions) for name, scene in scenes.items()}
    chosen = {
        name: torch.randperm(number, generator=generator)[: config.test_points] for name, number in numbers.items()
    }
    return {name: scene.select(chosen[name]) for name, scene in scenes.items()}


def make_batches(config: LidarConfig, options: RunOptions) -> Callable[[int], tuple[Scene, Tensor]]:
    """Return a function of the step: its crops in one scene, and the crop of each point. They are always the same."""
    names = cast("set[PlaceName]", set(config.places))
    scenes = {name: training_scene(name, options.data, config.above).to(options.device) for name in sorted(names)}
    chosen = [scenes[cast(PlaceName, name)] for name in config.places]
    crops = range(config.training.batch_size)
    return lambda step: draw_crops(chosen, step, crops, config.cropping, config.seed)


def run(config: LidarConfig, options: RunOptions) -> tuple[dict[str, Any], dict[str, float]]:
    """Train and evaluate one row."""
    network = build_model(config).to(options.device)
    batches, checkpoints = make_batches(config, options), checkpoint_folder(config, options)

    def loss(*batch: Any) -> Tensor:
        return crop_loss(network, *batch)

    seconds = {"training": fit(network, loss, config.training, options, checkpoints, batch=batches)}
    trained = time.perf_counter()
    write_weights(weights_path(config, options.output), network)
    network.eval()
    scenes = test_scenes(options.data, config)
    metrics = merge({name: evaluate(network, scene, options.device) for name, scene in scenes.items()})
    metrics["weights"] = count_weights(network)
    return metrics, seconds | {"evaluation": time.perf_counter() - trained}


def merge(measured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Turn metrics by place into places by metric.

    >>> merge({"a": {"miou": 0.5}, "b": {"miou": 0.6}})
    {'miou': {'a': 0.5, 'b': 0.6}}
    """
    names = next(iter(measured.values()))
    return {name: {place: figures[name] for place, figures in measured.items()} for name in names}


def evaluate(network: nn.Module, scene: Scene, device: torch.device) -> dict[str, Any]:
    """Return accuracy, intersection over union of each class, and its mean.

    Points whose class is unknown are seen but not counted.
    """
    assert scene.labels is not None
    guesses = classify_points(network, scene.positions, scene.values(), device)
    counted = scene.labels != UNKNOWN
    pairs = scene.labels[counted] * len(CLASSES) + guesses[counted]
    confusion = torch.bincount(pairs, minlength=len(CLASSES) ** 2).view(len(CLASSES), -1)
    right = confusion.diagonal().double()
    union = confusion.sum(dim=0) + confusion.sum(dim=1) - right
    shares = (right / union.clamp_min(1)).tolist()
    return {
        "accuracy": float(right.sum() / confusion.sum().clamp_min(1)),
        "miou": sum(shares) / len(shares),
        "iou": dict(zip(CLASSES, shares, strict=True)),
    }


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report mIoU of every network, and the gain of levels."""
    columns = [
        Column("Network", "config/title", "{}"),
        WEIGHTS,
        Column("Steps", "config/training/steps", "{:,}"),
        Column("Crops a step", "config/training/batch_size", "{}"),
    ]
    for place, title in ((HALVED, f"mIoU, other half of {HALVED}"), (UNSEEN, f"mIoU, {UNSEEN}, never seen")):
        columns.append(Column(title, f"metrics/miou/{place}", "{:.3f}", " ± {:.3f}"))
        paths = tuple(f"metrics/iou/{place}/{name}" for name in CLASSES)
        columns.append(Column(" / ".join(CLASSES), paths, " / ".join(["{:.3f}"] * len(CLASSES))))
    text = (
        "mIoU is the mean over the classes of the intersection over the union of points, the mean over the seeds ± "
        f"sample standard deviation. {HALVED.capitalize()}: trained on the west half, tested on all points of the east "
        f"half. {UNSEEN.capitalize()}: another country, another scanner, a fifteenth of the density, never trained on. "
        "Points of overlapping flights, water, bridges and noise, and unclassified points, are seen but not counted."
    )
    notes = [f"Networks with levels compared with networks on one level, trained alike:\n\n{gaps_table(results)}"]
    return [Page("Laser scans: ground, vegetation and buildings", text, [Table(columns, results)], notes, "lidar")]


def gaps_table(results: Sequence[Result]) -> str:
    """Return a table of differences of means over the seeds ± the standard deviation of the difference.

    >>> metrics = [{"miou": {HALVED: share, UNSEEN: 0.5}, "weights": 7000} for share in (0.9, 0.8)]
    >>> pair = [Result("lidar", name, {}, each, 0) for name, each in zip(PAIRS[0], metrics, strict=True)]
    >>> print(gaps_table(pair).splitlines()[2])
    | unet_linear (7,000) | flat_coarse (7,000) | +0.100 | +0.000 |
    """
    runs, lines = by_row(results), []
    for pair in (pair for pair in PAIRS if all(name in runs for name in pair)):
        cells = [f"{name} ({runs[name][0].metrics['weights']:,})" for name in pair]
        for place in (HALVED, UNSEEN):
            levels, flat = ([run.metrics["miou"][place] for run in runs[name]] for name in pair)
            # seeds are independent, so variances add up
            known = min(len(levels), len(flat)) > 1
            spread = f" ± {math.hypot(stdev(levels), stdev(flat)):.3f}" if known else ""
            cells.append(f"{mean(levels) - mean(flat):+.3f}{spread}")
        lines.append(cells)
    heads = ["With levels (weights)", "On one level (weights)", f"ahead on {HALVED}, mIoU", f"ahead on {UNSEEN}, mIoU"]
    return markdown_table(heads, lines)


EXPERIMENTS = {"lidar": Experiment("lidar", LidarConfig, run, report, seeds=3)}
