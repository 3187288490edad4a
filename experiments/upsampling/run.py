"""Coarse maps upsampled to the size of an image. Settings are chosen on other images than those measured."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor
from torch.nn import functional

from experiments.data.bsds500 import load_colors
from experiments.data.middlebury import load_scene
from experiments.experiment import Experiment, Row
from experiments.quality import psnr
from experiments.report import TITLE, Column, Page, Table
from experiments.results import FORBID_EXTRA, Result
from experiments.training import RunOptions, TrainingSettings
from experiments.upsampling.learned import train
from experiments.upsampling.methods import METHODS, Upsample
from permutohedral.apps import Denoiser
from permutohedral.errors import InputError

Task = Literal["depth", "colors", "kept", "features"]

_CHOSEN_ON, _MEASURED_ON = ("cones", "teddy"), ("art", "books", "moebius", "tsukuba", "venus")
# images of BSDS500: of val to choose settings on, of test to measure
_VAL_PICTURES, _TEST_PICTURES = 5, 50
# features have many channels
_FEATURE_PICTURES = 10

CAPTIONS = {
    "depth": "Disparities along a photograph: root mean square error in units of 8 bits",
    "colors": "RGB along gray: PSNR in dB",
    "features": "24 channels of a network along its gray input: variance over mean square error in dB",
    "kept": "RGB along gray, of one pixel out of as many along each axis: PSNR in dB",
}


@checked_dataclass(frozen=True, config=FORBID_EXTRA)
class UpsamplingConfig(Row):
    """One row of a table.

    Attributes:
        task: "depth", disparities along a photograph; "colors", RGB along gray; "features", hidden channels of a
            network along its gray input; all of these as means of cells. "kept", RGB along gray of one pixel out of
            `factor` along each axis.
        method: name in `METHODS`.
        factors: size of the result over that of the map, along each axis.
        grid: values of settings to choose from, by name.
        most_settings: number of combinations of the grid. Default: all.
        pictures: number of images to choose on, and to measure. Default: all.
        training: of the method "filter", which starts with the best settings of the grid.
    """

    task: Task
    method: str
    factors: tuple[int, ...] = (4, 8, 16)
    grid: dict[str, Any] = field(default_factory=dict)
    most_settings: int | None = None
    pictures: int | None = None
    training: TrainingSettings | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.training is not None and (self.method != "filter" or self.task != "kept"):
            raise InputError("training must be None unless the method is filter and the task kept")

    def choices(self) -> list[dict[str, Any]]:
        """Return the combinations of the grid."""
        combined = [
            dict(zip(self.grid, values, strict=True)) for values in itertools.product(*map(_listed, self.grid.values()))
        ]
        return combined[: self.most_settings]


@dataclass(frozen=True)
class Picture:
    """The true map and its guide."""

    truth: Tensor
    guide: Tensor


@lru_cache(maxsize=2)
def pictures_of(task: Task, folder: Path | None, limit: int | None) -> tuple[list[Picture], list[Picture]]:
    """Return the images to choose settings on, and those to measure."""
    if task == "depth":
        sets = []
        for names in (_CHOSEN_ON, _MEASURED_ON):
            scenes = [load_scene(name, folder) for name in names[:limit]]
            sets.append([Picture(scene.disparity, scene.color) for scene in scenes])
        return sets[0], sets[1]
    measured = _FEATURE_PICTURES if task == "features" else _TEST_PICTURES
    several = load_colors("val", folder, limit or _VAL_PICTURES), load_colors("test", folder, limit or measured)
    chosen_on, measured_on = ([_colored(rgb, task) for rgb in each.values()] for each in several)
    return chosen_on, measured_on


def _colored(rgb: Tensor, task: Task) -> Picture:
    # whole cells, as in published comparisons
    rgb = rgb[:, : rgb.shape[1] // 16 * 16, : rgb.shape[2] // 16 * 16]
    gray = rgb.mean(dim=0, keepdim=True)
    return Picture(features_of_network(gray) if task == "features" else rgb, gray)


def features_of_network(gray: Tensor) -> Tensor:
    """Return the input of the last layer of the shipped denoiser, `[24, height, width]`, with variance 1."""
    model, _ = Denoiser.from_pretrained().network_for(25.0)
    kept: list[Tensor] = []
    handle = model.get_submodule("tail").register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0][0]))
    with torch.no_grad():
        model(gray[None])
    handle.remove()
    features = kept[0] - kept[0].mean(dim=(1, 2), keepdim=True)
    return features / features.std(dim=(1, 2), keepdim=True).clamp_min(1e-6)


def run(config: UpsamplingConfig, options: RunOptions) -> tuple[dict[str, Any], dict[str, float]]:
    """Choose settings for each factor, train if the row asks for it, and evaluate."""
    chosen_on, measured_on = pictures_of(config.task, options.data, config.pictures)
    started = time.perf_counter()
    metrics: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for factor in config.factors:
        method = METHODS[config.method]
        settings = choose(config, chosen_on, factor)
        if config.training is not None:
            method, seconds[f"training {factor}x"] = train(config, factor, settings, options)
        measured = [evaluate(method, config.task, each, factor, settings) for each in measured_on]
        scores, times = zip(*measured, strict=True)
        metrics[str(factor)] = {"score": statistics.mean(scores), "milliseconds": 1000 * max(times)}
        # settings with one value are in the row
        chosen = {name: value for name, value in settings.items() if len(_listed(config.grid[name])) > 1}
        if chosen:
            metrics[str(factor)]["chosen"] = chosen
    seconds["all"] = time.perf_counter() - started
    return metrics, seconds


def choose(config: UpsamplingConfig, pictures: Sequence[Picture], factor: int) -> dict[str, Any]:
    """Return the settings with the best mean score."""
    choices = config.choices()
    if len(choices) == 1:
        return choices[0]
    method, task = METHODS[config.method], config.task

    def score(settings: dict[str, Any]) -> float:
        return statistics.mean(evaluate(method, task, each, factor, settings)[0] for each in pictures)

    means = [score(settings) for settings in choices]
    # a filter may fail on some settings
    finite = [mean if math.isfinite(mean) else (math.inf if config.task == "depth" else -math.inf) for mean in means]
    best = min(finite) if config.task == "depth" else max(finite)
    return choices[finite.index(best)]


def evaluate(
    method: Upsample, task: Task, picture: Picture, factor: int, settings: dict[str, Any]
) -> tuple[float, float]:
    """Return the score and the seconds of processor time.

    The score is the root mean square error in units of 8 bits for "depth", for features their variance over the mean
    square error in dB, else the PSNR in dB.
    """
    if task == "kept":
        coarse = picture.truth[:, ::factor, ::factor].contiguous()
    else:
        height, width = (max(1, round(extent / factor)) for extent in picture.truth.shape[1:])
        coarse = functional.adaptive_avg_pool2d(picture.truth, (height, width))
    with torch.no_grad():
        started = time.process_time()
        found = method(coarse, picture.guide, factor, settings)
        seconds = time.process_time() - started
    if task == "features":
        return -10 * math.log10(float((found - picture.truth).square().mean())), seconds
    if task == "depth":
        return float((found.clamp(0, 255) - picture.truth).square().mean().sqrt()), seconds
    return psnr(found.clamp(0, 1), picture.truth), seconds


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (list, tuple)) else [values]


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report the scores of each task, a table for each."""
    text = (
        "Coarse maps are means of cells, except in the table of pixels that were kept. Settings of every method are "
        "chosen on other images (cones and teddy of Middlebury; five val images of BSDS500) than those measured (art, "
        "books, moebius, tsukuba, venus; 50 test images, ten for features). Milliseconds are processor time of one run "
        "for the largest image. The settings chosen for each factor are in the CSV file next to this page."
    )
    tasks = [task for task in CAPTIONS if any(result.config["task"] == task for result in results)]
    tables = [make_table(results, task) for task in tasks]
    return [Page("Upsampling along edges", text, tables, name=results[0].experiment)]


def make_table(results: Sequence[Result], task: str) -> Table:
    """Return the table of a task.

    >>> metrics = {"8": {"score": 3.25, "milliseconds": 800.4}}
    >>> table = make_table([Result("upsampling", "a", {"title": "A", "task": "depth"}, metrics, 0)], "depth")
    >>> print(str(table).splitlines()[-1])
    | A | 3.25 | 800 |
    """
    rows = [result for result in results if result.config["task"] == task]
    factors = sorted({factor for row in rows for factor in row.metrics}, key=int)
    timed = "8" if "8" in factors else factors[0]
    columns = [Column(f"{factor}x", f"metrics/{factor}/score") for factor in factors]
    time_column = Column(f"ms, {timed}x", f"metrics/{timed}/milliseconds", "{:.0f}")
    return Table([TITLE, *columns, time_column], rows, CAPTIONS[task], task)


EXPERIMENTS = {name: Experiment(name, UpsamplingConfig, run, report) for name in ("upsampling", "features")}
