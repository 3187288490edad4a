"""One row of the GrabCut table: a method, with one kind of trimap, on all photographs.

Settings are chosen, and parameters trained, on one half of the photographs, and measured on the other half; then the
halves change places.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from permutohedral.data.grabcut import Photograph, TrimapKind, load_photographs
from permutohedral.errors import InputError
from permutohedral.experiments.grabcut.learned import FieldTraining, LearnedCutout, train
from permutohedral.experiments.grabcut.opencv import opencv_grabcut
from permutohedral.experiments.result import Result, make_result
from permutohedral.experiments.training import RunOptions
from permutohedral.models.cutout import CutoutSettings, Trimap, color_energies, cut_out, first_foreground

Method = Literal["mixtures", "opencv", "fixed", "learned"]
Cutout = Callable[[Tensor, Trimap], Tensor]


@dataclass(frozen=True)
class GrabcutConfig:
    """One row of the table.

    Attributes:
        name: of the row and its files.
        title: what the table calls it.
        method: colors alone; OpenCV's; the field with settings of the grid; or trained.
        trimap: "lasso" or "rect".
        settings: of the field; those of the grid replace them.
        grid: values of settings to choose from, by name; the method "learned" begins with the chosen ones.
        most_settings: so many of the grid's combinations are tried; None for all.
        training: for the method "learned".
        photographs: how many; None for all 50.
        seed: of the training.
    """

    name: str
    title: str
    method: Method
    trimap: TrimapKind
    settings: CutoutSettings = field(default_factory=CutoutSettings)
    grid: dict[str, Any] = field(default_factory=dict)
    most_settings: int | None = None
    training: FieldTraining | None = None
    photographs: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.method in ("fixed", "learned")) != bool(self.grid):
            raise InputError(f"the method {self.method} {'has no' if self.grid else 'needs a'} grid")
        if (self.method == "learned") != (self.training is not None):
            raise InputError(f"the method {self.method} {'needs' if self.method == 'learned' else 'has no'} training")
        self.choices()

    def choices(self) -> list[CutoutSettings]:
        """The settings of the grid."""
        try:
            combined = [replace(self.settings, **dict(zip(self.grid, values, strict=True)))
                        for values in itertools.product(*self.grid.values())]  # fmt: skip
        except TypeError as error:
            raise InputError(f"the grid does not fit the settings: {error}") from error
        return combined[: self.most_settings]


@lru_cache(maxsize=2)
def photographs(trimap: TrimapKind, folder: Path | None, limit: int | None) -> list[Photograph]:
    """Read once for all rows."""
    return load_photographs(trimap, folder, limit)


def run(config: GrabcutConfig, options: RunOptions) -> Result:
    """Evaluate one row."""
    found = photographs(config.trimap, options.data, config.photographs)
    if len(found) < 2:
        raise InputError(f"two halves need at least two photographs, got {len(found)}")
    halves = [found[::2], found[1::2]]
    started = time.perf_counter()
    chosen: list[dict[str, Any]] = []
    scores: dict[str, dict[str, float]] = {}
    for own, other in ((0, 1), (1, 0)):
        cutout, parameters = prepare(config, halves[other], options.device)
        chosen.append(parameters)
        scores.update({photo.name: evaluate(photo, cutout, options.device) for photo in halves[own]})
    metrics = {
        "mean": {
            name: statistics.mean(score[name] for score in scores.values()) for name in next(iter(scores.values()))
        },
        "median_seconds": statistics.median(score["seconds"] for score in scores.values()),
        "chosen": chosen,
        "photographs": {name: {key: round(value, 6) for key, value in score.items()} for name, score in scores.items()},
    }
    return make_result("grabcut", config, metrics, {"all": time.perf_counter() - started}, options.device)


def prepare(config: GrabcutConfig, other: Sequence[Photograph], device: torch.device) -> tuple[Cutout, dict[str, Any]]:
    """What to do with the photographs of one half, given the other half; and its parameters as plain data."""
    if config.method == "opencv":
        return opencv_grabcut, {}
    if config.method == "mixtures":
        return lambda photo, trimap: mixtures_alone(photo, trimap, config.settings.rounds), {}
    settings = choose(config.choices(), other, device)
    if config.training is not None:
        model = LearnedCutout(settings).to(device)
        prepared = [(*to_tensors(photo, device), photo.truth.to(device), photo.counted.to(device)) for photo in other]
        train(model, prepared, config.training, config.seed)
        settings = model.settings()
    return lambda photo, trimap: cut_out(photo, trimap, settings) > 0.5, asdict(settings)


def choose(choices: Sequence[CutoutSettings], half: Sequence[Photograph], device: torch.device) -> CutoutSettings:
    """The settings with the smallest mean share of wrong pixels."""

    losses = [0.0] * len(choices)
    for photo in half:
        pixels, trimap = to_tensors(photo, device)
        # the same for all choices
        colors = color_energies(pixels, trimap, first_foreground(trimap))
        for number, settings in enumerate(choices):
            found = cut_out(pixels, trimap, settings, colors).cpu() > 0.5
            losses[number] += measure(photo, found)["wrong"]
    return choices[losses.index(min(losses))]


def to_tensors(photo: Photograph, device: torch.device) -> tuple[Tensor, Trimap]:
    """The picture `[3, height, width]` between 0 and 1, and its trimap."""
    pixels = photo.pixels.to(device).permute(2, 0, 1).float() / 255
    return pixels, Trimap(*(mask.to(device) for mask in (photo.background, photo.foreground, photo.unknown)))


def mixtures_alone(photo: Tensor, trimap: Trimap, rounds: int) -> Tensor:
    """The more probable color for each unknown pixel on its own: bool `[height, width]`."""
    found = first_foreground(trimap)
    for _ in range(rounds):
        background, foreground = color_energies(photo, trimap, found)
        better = torch.where(trimap.unknown, foreground < background, trimap.foreground)
        if not bool(better.any()):
            break
        found = better
    return found


def evaluate(photo: Photograph, cutout: Cutout, device: torch.device) -> dict[str, float]:
    """What is measured of one photograph, and the seconds it took; without a GPU they are those of the processor."""
    pixels, trimap = to_tensors(photo, device)
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    started = clock()
    found = cutout(pixels, trimap).cpu()
    seconds = clock() - started
    return {**measure(photo, found), "seconds": seconds}


def measure(photo: Photograph, found: Tensor) -> dict[str, float]:
    """Shares of wrong pixels, and intersection over union, of a foreground `[height, width]`."""
    wrong = (found != photo.truth) & photo.counted
    both, either = (found & photo.truth & photo.counted).sum(), ((found | photo.truth) & photo.counted).sum()
    return {
        "wrong": float(wrong.sum() / photo.counted.sum()),
        "wrong_of_unknown": float((wrong & photo.unknown).sum() / (photo.unknown & photo.counted).sum()),
        "intersection_over_union": float(both / either),
    }
