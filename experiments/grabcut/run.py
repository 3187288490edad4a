"""Objects cut out of the photographs of the GrabCut database.

Settings are chosen, and parameters trained, on one half of the photographs, and measured on the other half. Then the
halves are swapped.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from experiments.data.grabcut import Photograph, TrimapKind, load_photographs
from experiments.experiment import Experiment, Row
from experiments.grabcut.learned import LearnedCutout, make_loss
from experiments.report import TITLE, Column, Page, Table
from experiments.results import FORBID_EXTRA, Result, weights_path, write_weights
from experiments.training import RunOptions, TrainingSettings, checkpoint_folder, fit
from permutohedral.apps.jobs.cutout import CutoutSettings, Trimap, color_energies, cut_out, first_foreground
from permutohedral.errors import InputError

Method = Literal["mixtures", "opencv", "fixed", "learned"]
Cutout = Callable[[Tensor, Trimap], Tensor]

# the number that its authors use
_OPENCV_ITERATIONS = 5


@dataclass(frozen=True, config=FORBID_EXTRA)
class GrabcutConfig(Row):
    """One row of the table.

    Attributes:
        method: "mixtures" (colors alone), "opencv", or the field with "fixed" settings of the grid or "learned" ones.
        trimap: "lasso" or "rect".
        settings: of the field, replaced by those of the grid.
        grid: values of settings to choose from, by name. The method "learned" starts with the chosen ones.
        most_settings: number of combinations of the grid. Default: all.
        training: for the method "learned"; each step has a part of one photograph.
        crop: extent of that part in pixels.
        photographs: number of photographs. Default: all 50.
    """

    method: Method
    trimap: TrimapKind
    settings: CutoutSettings = field(default_factory=CutoutSettings)
    grid: dict[str, Any] = field(default_factory=dict)
    most_settings: int | None = None
    training: TrainingSettings | None = None
    crop: int = 160
    photographs: int | None = None

    def __post_init__(self) -> None:
        if (self.method in ("fixed", "learned")) != bool(self.grid):
            raise InputError(f"grid {'must be empty' if self.grid else 'is missing'} for the method {self.method}")
        if (self.method == "learned") != (self.training is not None):
            raise InputError(
                f"training {'is missing' if self.training is None else 'must be None'} for the method {self.method}"
            )
        self.choices()

    def choices(self) -> list[CutoutSettings]:
        """Return the combinations of the grid."""
        try:
            combined = [replace(self.settings, **dict(zip(self.grid, values, strict=True)))
                        for values in itertools.product(*self.grid.values())]  # fmt: skip
        except TypeError as error:
            raise InputError(f"grid does not fit the settings: {error}") from error
        return combined[: self.most_settings]


@lru_cache(maxsize=2)
def photographs(trimap: TrimapKind, folder: Path | None, limit: int | None) -> list[Photograph]:
    """Read the photographs once for all rows."""
    return load_photographs(trimap, folder, limit)


def run(config: GrabcutConfig, options: RunOptions) -> tuple[dict[str, Any], dict[str, float]]:
    """Evaluate one row."""
    found = photographs(config.trimap, options.data, config.photographs)
    if len(found) < 2:
        raise InputError(f"photographs must be at least 2 for two halves, got {len(found)}")
    halves = [found[::2], found[1::2]]
    started = time.perf_counter()
    chosen: dict[str, dict[str, Any]] = {}
    scores: dict[str, dict[str, float]] = {}
    for own, other in ((0, 1), (1, 0)):
        cutout, parameters = prepare(config, halves[other], options, f"-{own}")
        if parameters:
            chosen[f"half {own + 1}"] = parameters
        scores.update({photo.name: evaluate(photo, cutout, options.device) for photo in halves[own]})
    metrics: dict[str, Any] = {
        "mean": {
            name: statistics.mean(score[name] for score in scores.values()) for name in next(iter(scores.values()))
        },
        "median_seconds": statistics.median(score["seconds"] for score in scores.values()),
        "photographs": len(scores),
    }
    if chosen:
        metrics["chosen"] = chosen
    return metrics, {"all": time.perf_counter() - started}


def prepare(
    config: GrabcutConfig, other: Sequence[Photograph], options: RunOptions, suffix: str
) -> tuple[Cutout, dict[str, Any]]:
    """Return the method for one half, given the other half, and its parameters as plain data.

    Weights and checkpoints have a `suffix`.
    """
    if config.method == "opencv":
        return opencv_grabcut, {}
    if config.method == "mixtures":
        return lambda photo, trimap: mixtures_alone(photo, trimap, config.settings.rounds), {}
    device = options.device
    settings = choose(config.choices(), other, device)
    if config.training is not None:
        model = LearnedCutout(settings).to(device)
        prepared = [(*to_tensors(photo, device), photo.truth.to(device), photo.counted.to(device)) for photo in other]
        loss = make_loss(model, prepared, config.training.steps, config.crop, config.seed)
        fit(model, loss, config.training, options, checkpoint_folder(config, options, suffix))
        write_weights(weights_path(config, options.output, suffix), model)
        settings = model.settings()
    return lambda photo, trimap: cut_out(photo, trimap, settings) > 0.5, asdict(settings)


def choose(choices: Sequence[CutoutSettings], half: Sequence[Photograph], device: torch.device) -> CutoutSettings:
    """Return the settings with the smallest mean share of wrong pixels."""
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
    """Return the image `[3, height, width]` between 0 and 1, and its trimap."""
    pixels = photo.pixels.to(device).permute(2, 0, 1).float() / 255
    return pixels, Trimap(*(mask.to(device) for mask in (photo.background, photo.foreground, photo.unknown)))


def mixtures_alone(photo: Tensor, trimap: Trimap, rounds: int) -> Tensor:
    """Classify each unknown pixel by its color alone: bool `[height, width]`."""
    found = first_foreground(trimap)
    for _ in range(rounds):
        background, foreground = color_energies(photo, trimap, found)
        better = torch.where(trimap.unknown, foreground < background, trimap.foreground)
        if not bool(better.any()):
            break
        found = better
    return found


def evaluate(photo: Photograph, cutout: Cutout, device: torch.device) -> dict[str, float]:
    """Return the scores of one photograph and the seconds taken; without a GPU of processor time."""
    pixels, trimap = to_tensors(photo, device)
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    started = clock()
    found = cutout(pixels, trimap).cpu()
    seconds = clock() - started
    return {**measure(photo, found), "seconds": seconds}


def measure(photo: Photograph, found: Tensor) -> dict[str, float]:
    """Return shares of wrong pixels, and intersection over union, of a foreground `[height, width]`."""
    wrong = (found != photo.truth) & photo.counted
    both, either = (found & photo.truth & photo.counted).sum(), ((found | photo.truth) & photo.counted).sum()
    return {
        "wrong": float(wrong.sum() / photo.counted.sum()),
        "wrong_of_unknown": float((wrong & photo.unknown).sum() / (photo.unknown & photo.counted).sum()),
        "intersection_over_union": float(both / either),
    }


def opencv_grabcut(photo: Tensor, trimap: Trimap) -> Tensor:
    """Return the foreground by OpenCV, bool `[height, width]`; unknown pixels start as foreground, as in its paper."""
    try:
        import cv2
    except ModuleNotFoundError as error:
        raise InputError("method: opencv needs OpenCV; run pip install opencv-python-headless") from error
    # compared with one thread of ours
    cv2.setNumThreads(1)
    picture = (photo.permute(1, 2, 0) * 255).round().byte().cpu().numpy()[..., ::-1].copy()
    mask = np.full(picture.shape[:2], cv2.GC_BGD, np.uint8)
    mask[trimap.unknown.cpu().numpy()] = cv2.GC_PR_FGD
    mask[trimap.foreground.cpu().numpy()] = cv2.GC_FGD
    models = np.zeros((1, 65)), np.zeros((1, 65))
    cv2.grabCut(picture, mask, None, *models, _OPENCV_ITERATIONS, cv2.GC_INIT_WITH_MASK)
    return torch.from_numpy((mask == cv2.GC_FGD) | (mask == cv2.GC_PR_FGD))


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report wrong pixels and time."""
    number = max(result.metrics["photographs"] for result in results)
    text = (
        f"Means over {number} photographs of the GrabCut database: the share of wrong "
        "pixels among all that count (not those in which foreground and background mix), and among those that the "
        "trimap leaves unknown; intersection over union; the median of the seconds of processor time for a photograph, "
        "colors and lattices included. Settings are chosen, and parameters trained, on the other half."
    )
    columns = [
        TITLE,
        Column("wrong, % of all", "metrics/mean/wrong", factor=100),
        Column("wrong, % of unknown", "metrics/mean/wrong_of_unknown", factor=100),
        Column("IoU, %", "metrics/mean/intersection_over_union", "{:.1f}", factor=100),
        Column("seconds", "metrics/median_seconds"),
    ]
    return [Page("Objects cut out of photographs", text, [Table(columns, results)], name="grabcut")]


EXPERIMENTS = {"grabcut": Experiment("grabcut", GrabcutConfig, run, report)}
