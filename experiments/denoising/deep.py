"""Deep denoisers with and without permutohedral blocks, trained on random crops of BSDS500."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from experiments.denoising.crops import CropSampler
from experiments.denoising.images import Split, evaluate, read_images
from experiments.experiment import Experiment
from experiments.report import WEIGHTS, Column, Page, Table
from experiments.results import FORBID_EXTRA, Result, weights_path, write_weights
from experiments.training import RunOptions, TrainingSettings, checkpoint_folder, count_weights, fit
from permutohedral.apps.models.network import DeepDenoiser


@dataclass(frozen=True, config=FORBID_EXTRA)
class DeepConfig:
    """One row of the table.

    Attributes:
        name: of the row and its files.
        title: in the table.
        options: arguments of `DeepDenoiser`.
        training: how to train, on the training and the validation images.
        noise: standard deviation of the noise, of 255.
        crop: height and width of a crop.
        captured_rows: on a GPU, capture the step as a CUDA graph, with this many lattice points per pixel.
        train_images: number of training images of either split. Default: all.
        test_images: number of test images. Default: all 200.
        center: use only the central square of this many pixels of every image.
        split: of the images on which the network is evaluated.
        seed: of noise, weights and crops.
    """

    name: str
    title: str
    options: dict[str, Any]
    training: TrainingSettings
    noise: float = 25.0
    crop: int = 128
    captured_rows: float | None = None
    train_images: int | None = None
    test_images: int | None = None
    center: int | None = None
    split: Split = "test"
    seed: int = 0

    def __post_init__(self) -> None:
        # checks the options without changing the random numbers of the caller
        with torch.random.fork_rng(devices=[]):
            build_model(self)


def build_model(config: DeepConfig) -> DeepDenoiser:
    """Build the network of a row, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    return DeepDenoiser(**config.options)


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


def run(config: DeepConfig, options: RunOptions) -> tuple[dict[str, Any], dict[str, float]]:
    """Train and evaluate one row."""
    model = build_model(config).to(options.device)
    started = time.perf_counter()
    metrics = {"weights": count_weights(model)} | train(model, config, options)
    seconds = {"training": time.perf_counter() - started}
    write_weights(weights_path(config, options.output), model)
    started = time.perf_counter()
    images = read_images(config.split, options.data, config.test_images, config.center)
    for metric, denoiser in (("psnr", model.eval()), ("psnr_of_eight_views", EightViews(model))):
        tracked = options.track(images, "evaluating")
        metrics[metric] = evaluate(denoiser, tracked, config.noise / 255, config.seed, options.device)
    seconds["evaluation"] = time.perf_counter() - started
    return metrics, seconds


def train(model: nn.Module, config: DeepConfig, options: RunOptions) -> dict[str, Any]:
    """Train a network on crops and return metrics of the training."""
    place = options.data, config.train_images, config.center
    images = read_images("train", *place) + read_images("validation", *place)
    # torch's types do not know this argument of Module.to
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    crops = CropSampler(images, config.crop, config.noise / 255, config.seed, options.device)
    capture = config.captured_rows is not None and options.device.type == "cuda"
    if capture and isinstance(model, DeepDenoiser):
        model.bound_lattices(config.captured_rows)

    def loss(noisy: Tensor, clean: Tensor) -> Tensor:
        errors: Tensor = (model(noisy).float() - clean).square().mean(dim=(1, 2, 3))
        return errors.log().mean()

    # all batches have one shape, so cuDNN may search for its fastest algorithm
    benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        fit(
            model,
            loss,
            config.training,
            options,
            checkpoint_folder(config, options),
            batch=lambda step: crops.draw(step, config.training.batch_size),
            capture=capture,
        )
    finally:
        torch.backends.cudnn.benchmark = benchmark
    metrics: dict[str, Any] = {"steps": config.training.steps}
    if isinstance(model, DeepDenoiser) and model.lattice_fullness():
        model.bound_lattices(None)
        metrics["lattice_fullness"] = model.lattice_fullness()
        if metrics["lattice_fullness"] > 1:
            warnings.warn(f"captured_rows is too small by a factor of {metrics['lattice_fullness']:.2f}", stacklevel=2)
    return metrics


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report the PSNR of the networks."""
    columns = [
        Column("Method", "config/title", "{}"),
        WEIGHTS,
        Column("dB", "metrics/psnr"),
        Column("Mean of eight views, dB", "metrics/psnr_of_eight_views"),
    ]
    text = "Mean PSNR over the test images of BSDS500. The noise has a standard deviation of 25/255 and is not clipped."
    return [Page("Deep denoising", text, [Table(columns, results)], name="deep_denoising")]


EXPERIMENTS = {"deep_denoising": Experiment("deep_denoising", DeepConfig, run, report)}
