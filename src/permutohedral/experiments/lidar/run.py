"""Ground, vegetation and buildings in laser scans. One configuration per row; `run` trains and evaluates one.

Trained on the west half of one place and on two others, tested on the east half and on a place never seen.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from permutohedral.clouds.classify import classify_points
from permutohedral.clouds.scenes import UNKNOWN, VALUE_CHANNELS, Above, Cropping, Scene, draw_crop, join, make_scene
from permutohedral.data.lidar import CLASSES, PlaceName, halve, load_scan
from permutohedral.errors import InputError
from permutohedral.experiments.batches import own_part
from permutohedral.experiments.result import Result
from permutohedral.experiments.trained_row import run_row
from permutohedral.experiments.training import RunOptions, Task, TrainingSettings
from permutohedral.models.point_segmentation import SegmentationModel, build_segmenter

# its west half is trained on, its east half tested
HALVED: PlaceName = "zurich"
# never trained on
UNSEEN: PlaceName = "fusa"
PLACES = (HALVED, "lake", "house")

# steps before any is timed, and steps whose median is told
_WARM_UP, _TIMED = 10, 30
# crops that are not thinned out but to their number of points: how a step grows with the points
_DENSE = Cropping(35.0, 40.0, sparsest=60.0, densest=60.0)


@dataclass(frozen=True)
class LidarConfig:
    """One row of the table.

    Attributes:
        name: of the row and its files.
        title: what the table calls it.
        model: "unet", "flat", "pointwise" or "pointnet".
        training: how to train; the batch size counts crops.
        options: arguments of the model.
        places: of the crops; each is drawn from one of these, so a place named twice gives twice as many.
        cropping: how crops are cut out and varied.
        above: what the heights that a network is given are above; with "nothing" it has the positions alone.
        test_points: so many of each test scene, drawn at random; default: all.
        seed: of weights and batches.
    """

    name: str
    title: str
    model: SegmentationModel
    training: TrainingSettings
    options: dict[str, Any] = field(default_factory=dict)
    places: tuple[str, ...] = (HALVED, HALVED, HALVED, "lake", "house")
    cropping: Cropping = field(default_factory=Cropping)
    above: Above = "ground"
    test_points: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [place for place in self.places if place not in PLACES]
        if unknown or not self.places:
            raise InputError(f"places to train on are {', '.join(PLACES)}, got {list(self.places)}")
        # checks the options, and leaves the random numbers of the caller alone
        with torch.random.fork_rng(devices=[]):
            build_model(self)


def build_model(config: LidarConfig) -> nn.Module:
    """The network of a row, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    return build_segmenter(config.model, VALUE_CHANNELS, len(CLASSES), config.options)


@lru_cache(maxsize=8)
def training_scene(place: PlaceName, folder: Path | None, above: Above = "ground") -> Scene:
    """What may be trained on of a place."""
    scan = load_scan(place, folder)
    scan = halve(scan)[0] if place == HALVED else scan
    return make_scene(scan.positions, scan.labels, above)


def test_scenes(folder: Path | None, config: LidarConfig) -> dict[str, Scene]:
    """What is tested on, by the name of the place."""
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


class CropsTask(Task):
    """Trains a network on crops, which it draws itself, by the number of the step.

    Args:
        model: one of `permutohedral.models.point_segmentation`.
        settings: how to train; the batch size counts crops.
        scenes: with labels, by name.
        places: names of scenes; each crop is drawn from one of these.
        cropping: how.
        seed: of the crops.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: TrainingSettings,
        scenes: dict[str, Scene],
        places: tuple[str, ...],
        cropping: Cropping,
        seed: int,
    ) -> None:
        super().__init__(model, settings)
        self.scenes, self.places, self.cropping, self.seed = scenes, places, cropping, seed

    def training_step(self, number: int) -> Tensor:
        """The loss of a batch of crops: the mean over all points whose class is known."""
        return self.loss(*self.draw_batch(number))

    def draw_batch(self, number: int) -> tuple[Scene, Tensor]:
        """The crops of a step, and the crop of each point."""
        self.scenes = {name: scene.to(self.device) for name, scene in self.scenes.items()}
        return join([self.draw(number, place) for place in own_part(range(self.settings.batch_size))])

    def loss(self, crops: Scene, item: Tensor) -> Tensor:
        """Of a batch."""
        scores = self.model(crops.values(), crops.positions, item)
        assert crops.labels is not None
        return F.cross_entropy(scores, crops.labels, ignore_index=UNKNOWN)

    def draw(self, number: int, place: int) -> Scene:
        """A crop of a step."""
        seed = (self.seed * 1_000_003 + number) * 1009 + place
        generator = torch.Generator(self.device).manual_seed(seed)
        chance = int(torch.randint(1 << 30, (1,), generator=torch.Generator().manual_seed(seed)))
        name = self.places[chance % len(self.places)]
        return draw_crop(self.scenes[name], self.cropping, generator)


def make_task(config: LidarConfig, model: nn.Module, folder: Path | None) -> CropsTask:
    """The training of a row."""
    names = cast("set[PlaceName]", set(config.places))
    scenes: dict[str, Scene] = {name: training_scene(name, folder, config.above) for name in sorted(names)}
    return CropsTask(model, config.training, scenes, config.places, config.cropping, config.seed)


def run(config: LidarConfig, options: RunOptions) -> Result | None:
    """Train and evaluate one row.

    Returns:
        The result; None in all but the first process of a training on several devices.
    """

    def measure(model: nn.Module) -> dict[str, Any]:
        scenes = test_scenes(options.data, config)
        return merge({name: evaluate(model, scene, options.device) for name, scene in scenes.items()})

    return run_row(
        "lidar",
        config,
        options,
        lambda: build_model(config),
        lambda model: make_task(config, model, options.data),
        measure,
    )


def merge(measured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The figures of each place, by figure.

    >>> merge({"a": {"miou": 0.5}, "b": {"miou": 0.6}})
    {'miou': {'a': 0.5, 'b': 0.6}}
    """
    names = next(iter(measured.values()))
    return {name: {place: figures[name] for place, figures in measured.items()} for name in names}


def evaluate(network: nn.Module, scene: Scene, device: torch.device) -> dict[str, Any]:
    """Share of points that are right, intersection over union of each class and its mean, and the confusion.

    The confusion has a row of counts for each class. Points whose class is not known are seen and not counted.
    """
    assert scene.labels is not None
    guesses = classify_points(network, scene, device)
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
        "confusion": confusion.tolist(),
    }


def time_step(config: LidarConfig, options: RunOptions) -> dict[str, float]:
    """Milliseconds of a training step with nothing beside it, once its crops are drawn, and its points: medians.

    Of the crops that the row learns from, and of `dense` ones; as `fit` trains, forward and backward in one thread.
    """
    dense = replace(config, places=(HALVED,), cropping=replace(_DENSE, points=config.cropping.points))
    times, points = _time_steps(config, options)
    dense_times, dense_points = _time_steps(dense, options)
    return {"milliseconds": times, "points": points, "dense_milliseconds": dense_times, "dense_points": dense_points}


def _time_steps(config: LidarConfig, options: RunOptions) -> tuple[float, float]:
    task = make_task(config, build_model(config), options.data).to(options.device)
    optimizer = cast(torch.optim.Optimizer, task.configure_optimizers()["optimizer"])
    times, points = [], []
    for number in range(_WARM_UP + _TIMED):
        crops, item = task.draw_batch(number)
        _synchronize(options.device)
        started = time.perf_counter()
        optimizer.zero_grad()
        with torch.autograd.set_multithreading_enabled(False):
            task.loss(crops, item).backward()
        optimizer.step()
        _synchronize(options.device)
        times.append(1000 * (time.perf_counter() - started))
        points.append(len(item))
    return median(times[_WARM_UP:]), median(points[_WARM_UP:])


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
