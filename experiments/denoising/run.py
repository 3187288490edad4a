"""Table (b) of the paper: denoising BSDS500 with filters that are linear in their weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from experiments.denoising.images import Split, evaluate, read_images
from experiments.denoising.models import CombinedDenoiser, PermutohedralDenoiser, SpatialDenoiser
from experiments.denoising.quadratic import (
    LinearDenoiser,
    QuadraticErrors,
    evaluate_errors,
    measure_quadratic_errors,
    set_weights,
    weights_of,
)
from experiments.denoising.walk import WalkingConv
from experiments.experiment import Experiment
from experiments.report import WEIGHTS, Column, Page, Table
from experiments.results import FORBID_EXTRA, Result, weights_path, write_weights
from experiments.training import RunOptions, StepBatches, TrainingSettings, checkpoint_folder, count_weights, fit
from permutohedral.errors import InputError
from permutohedral.filters.normalization import Normalization
from permutohedral.nn import PermutohedralConv


@dataclass(frozen=True, config=FORBID_EXTRA)
class Candidates:
    """Settings among which a row chooses on validation images.

    Attributes:
        sigma_spaces: standard deviations over positions, in pixels.
        sigma_colors: standard deviations over gray values, each tried with every one over positions.
        steps: numbers of training steps.
    """

    sigma_spaces: tuple[float, ...] = ()
    sigma_colors: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, config=FORBID_EXTRA)
class DenoisingConfig:
    """One row of the tables.

    Attributes:
        name: of the row and its files.
        title: in the table.
        model: "identity" (the noisy input), "spatial", "permutohedral", or "combined" (the sum of the last two).
        paper: mean PSNR in the paper.
        table: in which the row stands: the "paper"'s, or that of "choices" or "least_squares" solutions.
        base: name of the row from which this one differs in a single choice.
        size: width of the spatial filter.
        sigma_space: standard deviation over positions, in pixels, on the lattice.
        sigma_color: standard deviation over gray values; white is 1.
        neighbors: on the lattice: "exact", or "walk" as the released layer finds them.
        normalization: see `permutohedral_filter`.
        around: see `PermutohedralConv`.
        weights: "initial" (the Gaussian on the lattice, the mean over the spatial filter), or "least_squares".
        training: how to train on whole images, starting from `weights`. None: not at all.
        loss: "euclidean", the mean squared error; or "logarithmic", the mean of its logarithm, as in the PSNR.
        candidates: settings to choose among. None: those of the row.
        noise: standard deviation of the noise, of 255.
        split: of the images on which the row is evaluated.
        train_images: number of training images. Default: all 200.
        test_images: number of images of `split`. Default: all.
        center: use only the central square of this many pixels of every image.
        seed: of the noise.
    """

    name: str
    title: str
    model: Literal["identity", "spatial", "permutohedral", "combined"]
    paper: float | None = None
    table: Literal["paper", "choices", "least_squares"] = "paper"
    base: str | None = None
    size: int = 5
    sigma_space: float | None = None
    sigma_color: float | None = None
    neighbors: Literal["exact", "walk"] = "exact"
    normalization: Normalization = "homogeneous"
    around: Literal["gaussian"] | None = None
    weights: Literal["initial", "least_squares"] = "initial"
    training: TrainingSettings | None = None
    loss: Literal["euclidean", "logarithmic"] = "euclidean"
    candidates: Candidates | None = None
    noise: float = 25.0
    split: Split = "test"
    train_images: int | None = None
    test_images: int | None = None
    center: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model == "identity" and (self.training or self.weights != "initial"):
            raise InputError("training must be None and weights initial: the noisy input has no weights")
        on_lattice = self.model in ("permutohedral", "combined")
        tries_scales = self.candidates is not None and self.candidates.sigma_spaces
        if on_lattice and not tries_scales and (self.sigma_space is None or self.sigma_color is None):
            raise InputError(f"sigma_space and sigma_color must be given for the model {self.model}")
        if self.candidates is not None and self.split != "validation":
            raise InputError(f"split must be validation for a row with candidates, got {self.split}")
        if self.candidates is not None and self.candidates.steps and self.training is None:
            raise InputError("training must be given for candidates with steps")


def build_model(config: DenoisingConfig) -> LinearDenoiser | nn.Identity:
    """Build the initial model of a row."""
    if config.model == "identity":
        return nn.Identity()
    if config.model == "spatial":
        return SpatialDenoiser(config.size)
    assert config.sigma_space is not None
    assert config.sigma_color is not None
    scale = config.sigma_space, config.sigma_color
    layer = PermutohedralConv if config.neighbors == "exact" else WalkingConv
    convolution = layer(
        1, 1, 3, 2, bias=False, init="gaussian", around=config.around, normalization=config.normalization
    )
    if config.model == "permutohedral":
        filtered = PermutohedralDenoiser(*scale)
        filtered.convolution = convolution
        return filtered
    combined = CombinedDenoiser(*scale, size=config.size)
    combined.permutohedral.convolution = convolution
    return combined


def run(config: DenoisingConfig, options: RunOptions) -> tuple[dict[str, Any], dict[str, float]]:
    """Fit and evaluate one row, or each of its candidates."""
    started = time.perf_counter()
    if config.candidates is not None:
        scores = {
            name: measure_psnr(fit_model(candidate, options), candidate, options)
            for name, candidate in list_candidates(config).items()
        }
        return {"psnr": scores}, {"selection": time.perf_counter() - started}
    model = fit_model(config, options)
    seconds = {"training": time.perf_counter() - started}
    if model.state_dict():
        write_weights(weights_path(config, options.output), model)
    started = time.perf_counter()
    score = measure_psnr(model, config, options)
    seconds["evaluation"] = time.perf_counter() - started
    return {"weights": count_weights(model), "psnr": score}, seconds


def list_candidates(config: DenoisingConfig) -> dict[str, DenoisingConfig]:
    """Return the rows among which a row chooses, by the settings in which they differ."""
    tried = config.candidates or Candidates()
    found = {
        f"{space:g} px, {color:g}": replace(config, candidates=None, sigma_space=space, sigma_color=color)
        for space in tried.sigma_spaces
        for color in tried.sigma_colors
    }
    if config.training is not None:
        for steps in tried.steps:
            training = replace(config.training, steps=steps)
            found[f"{steps:,} steps"] = replace(config, candidates=None, training=training)
    return found


def measure_psnr(model: nn.Module, config: DenoisingConfig, options: RunOptions) -> float:
    """Return the mean PSNR in dB over the images of the row's split."""
    images = read_images(config.split, options.data, config.test_images, config.center)
    tracked = options.track(images, "evaluating")
    return evaluate(model, tracked, config.noise / 255, config.seed, options.device)


def fit_model(config: DenoisingConfig, options: RunOptions) -> nn.Module:
    """Build the model of a row and fit its weights to the training images."""
    model = build_model(config).to(options.device)
    if isinstance(model, nn.Identity) or (config.training is None and config.weights == "initial"):
        return model
    errors = measure_training_errors(config, options)
    if config.weights == "least_squares":
        set_weights(model, errors.least_squares().float())
    if config.training is not None:
        train(model, errors, config, config.training, options)
    return model


def measure_training_errors(config: DenoisingConfig, options: RunOptions) -> QuadraticErrors:
    """Return the errors of the training images; rows that differ in their weights only share them."""
    same: dict[str, Any] = {"name": "", "title": "", "paper": None, "table": "paper", "base": None, "around": None}
    same |= {"weights": "initial", "training": None, "loss": "euclidean", "candidates": None}
    return _measure_errors(replace(config, split="train", test_images=None, **same), options)


# the rows of one seed have nine kinds of features
@lru_cache(maxsize=32)
def _measure_errors(config: DenoisingConfig, options: RunOptions) -> QuadraticErrors:
    model = build_model(config).to(options.device)
    assert not isinstance(model, nn.Identity)
    images = options.track(read_images("train", options.data, config.train_images, config.center), "measuring")
    return measure_quadratic_errors(model, images, config.noise / 255, config.seed, options.device)


def train(
    model: LinearDenoiser,
    errors: QuadraticErrors,
    config: DenoisingConfig,
    settings: TrainingSettings,
    options: RunOptions,
) -> None:
    """Train the weights of a model on the quadratic errors of whole images."""
    batches = StepBatches(len(errors.constant), settings.batch_size, config.seed)

    def loss(step: int) -> Tensor:
        chosen = batches(step)
        batch = errors.matrix[chosen], errors.vector[chosen], errors.constant[chosen]
        each = evaluate_errors(*batch, weights_of(model))
        return each.log().mean() if config.loss == "logarithmic" else each.mean() / 2

    fit(model, loss, settings, options, checkpoint_folder(config, options))


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report PSNR next to the paper's, and what each choice is worth."""
    titles = {result.name: result.config["title"] for result in results}
    scores = {result.key: result.metrics["psnr"] for result in results}
    tested, chosen = list[Result](), list[Result]()
    for result in results:
        config, metrics = result.config, dict(result.metrics)
        if config["candidates"] is not None:
            metrics["chosen"] = max(metrics["psnr"], key=metrics["psnr"].__getitem__)
            metrics["psnr"] = metrics["psnr"][metrics["chosen"]]
            chosen.append(replace(result, metrics=metrics))
            continue
        if config["paper"] is not None:
            metrics["difference"] = metrics["psnr"] - config["paper"]
        base = scores.get((config["base"], result.split, result.seed))
        if base is not None:
            metrics |= {"before": titles[config["base"]], "gain": metrics["psnr"] - base}
        tested.append(replace(result, metrics=metrics))
    title, psnr = Column("Method", "config/title", "{}"), Column("Ours, dB", "metrics/psnr", spread=" ± {:.3f}")
    paper = Column("Paper, dB", "config/paper"), psnr, Column("Difference, dB", "metrics/difference", "{:+.2f}")
    scale = Column("Position, px", "config/sigma_space", "{:g}"), Column("Gray value", "config/sigma_color", "{:g}")
    before = Column("Compared with", "metrics/before", "{}")
    layouts = {
        "paper": ("Table (b)", [title, WEIGHTS, *paper]),
        "choices": (
            "One choice at a time",
            [title, before, *scale, psnr, Column("Gain, dB", "metrics/gain", "{:+.2f}")],
        ),
        "least_squares": ("Least squares", [title, WEIGHTS, *scale, psnr]),
    }
    tables = [
        Table(columns, rows, heading=heading)
        for name, (heading, columns) in layouts.items()
        if (rows := [result for result in tested if result.config["table"] == name])
    ]
    if chosen:
        columns = [title, Column("Chosen", "metrics/chosen", "{}"), Column("Validation, dB", "metrics/psnr")]
        tables.append(Table(columns, chosen, heading="Chosen on validation images"))
    text = (
        "Mean PSNR over the test images of BSDS500 ± its sample standard deviation over seeds of the noise. The noise "
        "has a standard deviation of 25/255 and is not clipped."
    )
    return [Page("Denoising", text, tables, name="denoising")]


EXPERIMENTS = {"denoising": Experiment("denoising", DenoisingConfig, run, report, seeds=3)}
