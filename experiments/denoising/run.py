"""Table (b) of the paper: denoising BSDS500."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import Any, Literal, cast

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from experiments.data.bsds500 import GrayImage, Split, add_noise, load_images
from experiments.denoising.crops import CropSampler
from experiments.denoising.quadratic import (
    LinearDenoiser,
    QuadraticErrors,
    evaluate_errors,
    measure_quadratic_errors,
    set_weights,
    weights_of,
)
from experiments.experiment import Experiment, Log
from experiments.quality import mean_psnr, psnr
from experiments.report import WEIGHTS, Column, Page, Table
from experiments.results import FORBID_EXTRA, Result, weights_path, write_json, write_weights
from experiments.training import RunOptions, StepBatches, TrainingSettings, checkpoint_folder, count_weights, fit
from permutohedral.errors import InputError
from permutohedral.models.deep_denoising import DeepDenoiser
from permutohedral.models.denoising import PermutohedralDenoiser
from permutohedral.models.pretrained import build_denoiser

# the grid of --first cross_validate
SIGMA_SPACES = (1.0, 1.25, 1.5, 1.75, 2.0)
SIGMA_COLORS = (0.175, 0.2, 0.225, 0.25, 0.3)


@dataclass(frozen=True, config=FORBID_EXTRA)
class DenoisingConfig:
    """One row of the table.

    Attributes:
        name: of the row and its files.
        title: in the table.
        model: "identity" (the noisy input), "spatial", "permutohedral", "combined", "deep" or "bm3d".
        options: arguments of the model.
        paper: mean PSNR in the paper.
        noise: standard deviation of the noise, of 255.
        training: how to train. None: evaluate the initial model.
        samples: of a training step: whole "images" with fixed noise, through their quadratic errors, for models that
            are linear in their weights; or "crops" with new noise.
        crop: height and width of a crop.
        captured_rows: on a GPU, capture the step on crops as a CUDA graph, with this many lattice points per pixel.
        loss: "euclidean", the mean squared error; or "logarithmic", the mean of its logarithm, as in the PSNR.
        start: "initial" weights, or the "least_squares" solution.
        train_images: number of training images. Default: all 200.
        train_on_val: train on the val images, too.
        test_images: number of test images. Default: all 200.
        center: use only the central square of this many pixels of every image.
        views: also evaluate the mean over the eight flips and rotations of an image.
        seed: of noise, weights and crops.
    """

    name: str
    title: str
    model: Literal["identity", "spatial", "permutohedral", "combined", "deep", "bm3d"]
    options: dict[str, Any] = field(default_factory=dict)
    paper: float | None = None
    noise: float = 25.0
    training: TrainingSettings | None = None
    samples: Literal["images", "crops"] = "images"
    crop: int = 64
    captured_rows: float | None = None
    loss: Literal["euclidean", "logarithmic"] = "logarithmic"
    start: Literal["initial", "least_squares"] = "initial"
    train_images: int | None = None
    train_on_val: bool = False
    test_images: int | None = None
    center: int | None = None
    views: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        # checks the options without changing the random numbers of the caller
        with torch.random.fork_rng(devices=[]):
            build_model(self)
        linear = self.model in ("spatial", "permutohedral", "combined")
        scaled = bool(self.options.get("learn_sigma"))
        if self.training and self.model in ("identity", "bm3d"):
            raise InputError(f"training must be None: the model {self.model} has no weights")
        if self.training and self.samples == "images" and (not linear or scaled):
            raise InputError("samples: images needs a model that is linear in all its weights; use samples: crops")
        if self.start == "least_squares" and not linear:
            raise InputError("start: least_squares needs a model that is linear in its weights; use start: initial")


def build_model(config: DenoisingConfig) -> nn.Module:
    """Build the model of a row, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    return Bm3d(config.noise / 255) if config.model == "bm3d" else build_denoiser(config.model, config.options)


class EightViews(nn.Module):
    """Average a denoiser over the eight flips and rotations of an image."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, noisy: Tensor) -> Tensor:
        """Denoise `[1, 1, height, width]`."""
        total = torch.zeros_like(noisy)
        for axes in ((-2, -1), (-1, -2)):
            views = noisy.transpose(*axes) if axes == (-1, -2) else noisy
            flips: list[list[int]] = [[], [-2], [-1], [-2, -1]]
            denoised = self.model(torch.cat([views.flip(flip) for flip in flips]))
            back = sum(view.flip(flip) for view, flip in zip(denoised.split(1), flips, strict=True))
            total += back.transpose(*axes) if axes == (-1, -2) else back
        return total / 8


class Bm3d(nn.Module):
    """BM3D from the package bm3d, on the CPU."""

    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.sigma = sigma

    def forward(self, noisy: Tensor) -> Tensor:
        """Denoise `[batch, 1, height, width]`."""
        try:
            from bm3d import bm3d
        except ModuleNotFoundError as error:
            raise InputError("model: bm3d needs the package bm3d; run pip install bm3d") from error
        images = [torch.from_numpy(bm3d(image[0].cpu().double().numpy(), self.sigma)) for image in noisy]
        return torch.stack(images)[:, None].to(noisy)


def run(config: DenoisingConfig, options: RunOptions) -> tuple[dict[str, Any], dict[str, float]]:
    """Train and evaluate one row."""
    model = build_model(config).to(options.device)
    seconds: dict[str, float] = {}
    metrics: dict[str, Any] = {"weights": count_weights(model)}
    started = time.perf_counter()
    if config.training is not None:
        metrics |= train(model, config, config.training, options)
        seconds["training"] = time.perf_counter() - started
    if model.state_dict():
        write_weights(weights_path(config, options.output), model)
    started = time.perf_counter()
    images = load(config, "test", config.test_images, options)
    scores = evaluate(model.eval(), options.track(images, "evaluating"), config, options.device)
    seconds["evaluation"] = time.perf_counter() - started
    metrics |= {"psnr": sum(scores.values()) / len(scores), "psnr_per_image": scores}
    if config.views:
        scores = evaluate(EightViews(model), options.track(images, "evaluating views"), config, options.device)
        metrics["psnr_of_eight_views"] = sum(scores.values()) / len(scores)
    return metrics, seconds


def load(config: DenoisingConfig, split: Split, limit: int | None, options: RunOptions) -> list[GrayImage]:
    """Read images of a split, cropped to the center that the configuration names."""
    images = load_images(split, options.data, limit)
    return images if config.center is None else [center(image, config.center) for image in images]


def center(image: GrayImage, size: int) -> GrayImage:
    """Return the central square of `size` pixels."""
    top, left = (max(0, (extent - size) // 2) for extent in image.pixels.shape)
    return GrayImage(image.name, image.pixels[top : top + size, left : left + size])


@torch.no_grad()
def evaluate(
    model: nn.Module, images: Iterable[GrayImage], config: DenoisingConfig, device: torch.device
) -> dict[str, float]:
    """Return the PSNR in dB of every image, by name."""
    scores = {}
    for image in images:
        noisy = add_noise(image, config.noise / 255, config.seed).to(device)
        scores[image.name] = psnr(model(noisy[None, None])[0, 0], image.pixels.to(device))
    return scores


def train(model: nn.Module, config: DenoisingConfig, settings: TrainingSettings, options: RunOptions) -> dict[str, Any]:
    """Train a model and return metrics of the training."""
    images = load(config, "train", config.train_images, options)
    if config.train_on_val:
        images += load(config, "val", config.train_images, options)
    if config.samples == "crops" and config.start == "initial":
        return _train_on_crops(model, config, settings, options, images)
    linear = cast(LinearDenoiser, model)
    tracked = options.track(images, "measuring")
    errors = measure_quadratic_errors(linear, tracked, config.noise / 255, config.seed, options.device)
    solution = errors.least_squares()
    metrics: dict[str, Any] = {
        "train_psnr_of_least_squares": mean_psnr(errors.evaluate(solution.to(errors.matrix.device)))
    }
    if config.start == "least_squares":
        set_weights(linear, solution.float())
    if config.samples == "crops":
        return metrics | _train_on_crops(model, config, settings, options, images)
    _train_on_images(model, config, settings, options, errors)
    return metrics | {"train_psnr": mean_psnr(errors.evaluate(weights_of(linear).detach()))}


def _train_on_images(
    model: nn.Module, config: DenoisingConfig, settings: TrainingSettings, options: RunOptions, errors: QuadraticErrors
) -> None:
    batches = StepBatches(len(errors.constant), settings.batch_size, config.seed)

    def loss(step: int) -> Tensor:
        chosen = batches(step)
        matrix, vector, constant = errors.matrix[chosen], errors.vector[chosen], errors.constant[chosen]
        return loss_of(evaluate_errors(matrix, vector, constant, weights_of(cast(LinearDenoiser, model))), config)

    fit(model, loss, settings, options, checkpoint_folder(config, options))


def _train_on_crops(
    model: nn.Module,
    config: DenoisingConfig,
    settings: TrainingSettings,
    options: RunOptions,
    images: Sequence[GrayImage],
) -> dict[str, Any]:
    # torch's types do not know this argument of Module.to
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    crops = CropSampler(images, config.crop, config.noise / 255, config.seed, options.device)
    capture = config.captured_rows is not None and options.device.type == "cuda"
    if capture and isinstance(model, DeepDenoiser):
        model.bound_lattices(config.captured_rows)

    def loss(noisy: Tensor, clean: Tensor) -> Tensor:
        return loss_of((model(noisy).float() - clean).square().mean(dim=(1, 2, 3)), config)

    # all batches have one shape, so cuDNN may search for its fastest algorithm
    benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        fit(
            model,
            loss,
            settings,
            options,
            checkpoint_folder(config, options),
            batch=lambda step: crops.draw(step, settings.batch_size),
            capture=capture,
        )
    finally:
        torch.backends.cudnn.benchmark = benchmark
    metrics: dict[str, Any] = {"steps": settings.steps}
    if isinstance(model, DeepDenoiser) and model.lattice_fullness():
        model.bound_lattices(None)
        metrics["lattice_fullness"] = model.lattice_fullness()
        if metrics["lattice_fullness"] > 1:
            warnings.warn(f"captured_rows is too small by a factor of {metrics['lattice_fullness']:.2f}", stacklevel=2)
    return metrics


def loss_of(errors: Tensor, config: DenoisingConfig) -> Tensor:
    """Return the loss of a batch from the mean squared error of each item."""
    return errors.log().mean() if config.loss == "logarithmic" else errors.mean() / 2


def cross_validate(configs: list[DenoisingConfig], options: RunOptions, log: Log) -> list[DenoisingConfig]:
    """Choose the scale of the features on the validation images, as the paper does, and write `scales.json`."""
    first = configs[0]
    images = load(first, "val", first.test_images, options)
    scores: dict[tuple[float, float], float] = {}
    for scale in ((space, color) for space in SIGMA_SPACES for color in SIGMA_COLORS):
        found = evaluate(PermutohedralDenoiser(*scale).to(options.device), images, first, options.device)
        scores[scale] = sum(found.values()) / len(found)
        log(f"sigma_space {scale[0]:g} pixels, sigma_color {scale[1]:g}: {scores[scale]:.3f} dB")
    best = max(scores, key=lambda scale: (scores[scale], scale))
    chosen = dict(zip(("sigma_space", "sigma_color"), best, strict=True))
    table = {f"{space:g}, {color:g}": score for (space, color), score in scores.items()}
    write_json(options.output / "scales.json", {"metrics": {"psnr": table, **chosen}, "val_images": len(images)})
    return [
        replace(config, options=config.options | chosen)
        if "sigma_space" in config.options and config.model != "deep"
        else config
        for config in configs
    ]


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report PSNR next to the paper's."""
    config = results[0].config
    columns = [
        Column("Method", "config/title", "{}"),
        WEIGHTS,
        Column("Paper, dB", "config/paper"),
        Column("Ours, dB", "metrics/psnr"),
        Column("Mean of eight views, dB", "metrics/psnr_of_eight_views"),
        Column("Training images, dB", "metrics/train_psnr", "{:.3f}"),
        Column("Closed form on these, dB", "metrics/train_psnr_of_least_squares", "{:.3f}"),
    ]
    square = "" if config["center"] is None else f", the central {config['center']} x {config['center']} pixels of each"
    text = (
        f"Mean PSNR over {len(results[0].metrics['psnr_per_image'])} test images of BSDS500{square}. The noise has a "
        f"standard deviation of {config['noise']:g}/255 and is not clipped. The closed form is the least-squares "
        "solution for models that are linear in their weights."
    )
    return [Page("Denoising", text, [Table(columns, results)])]


EXPERIMENTS = {
    "denoising": Experiment("denoising", DenoisingConfig, run, report, actions={"cross_validate": cross_validate})
}
