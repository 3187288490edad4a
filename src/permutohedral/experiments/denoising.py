"""The paper's Table (b): denoising BSDS500. One configuration per row; `run` trains and evaluates one."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import pytorch_lightning as lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from permutohedral.data.bsds500 import GrayImage, Split, add_noise, load_images
from permutohedral.errors import InputError
from permutohedral.experiments import quadratic
from permutohedral.experiments.batches import StepBatches
from permutohedral.experiments.result import Result, describe_environment, read_weights, write_weights
from permutohedral.experiments.training import (
    RunOptions,
    Task,
    TrainingSettings,
    fit,
    is_first_process,
    steps_done,
    track,
)
from permutohedral.models.deep_denoising import count_weights
from permutohedral.models.denoising import LinearDenoiser
from permutohedral.models.pretrained import build_denoiser

Loss = Literal["euclidean", "logarithmic"]


@dataclass(frozen=True)
class DenoisingConfig:
    """One row of the table.

    Attributes:
        name: of the row and its files.
        title: what the table calls it.
        model: "identity" (the noisy input), "spatial", "permutohedral", "combined", "deep", or "bm3d", to compare.
        options: arguments of the model.
        paper: mean PSNR the paper reports, None for rows of our own.
        noise: standard deviation of the noise, of 255.
        training: how to train; None to evaluate the model as it starts.
        samples: what a training step sees: "images", whole, each with its own noise, through their quadratic
            errors (only models that are linear in their weights); or "crops", with fresh noise.
        crop: height and width of a crop.
        loss: "euclidean", the mean squared error; or "logarithmic", the mean over items of its logarithm, which is
            the PSNR that is reported.
        start: "initial" weights of the model, or the "least_squares" solution.
        train_images: how many of the 200; None for all.
        test_images: how many of the 200; None for all.
        center: take only the central square of this many pixels of every image, for quick trials.
        seed: of noise, weights, crops.
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
    loss: Loss = "logarithmic"
    start: Literal["initial", "least_squares"] = "initial"
    train_images: int | None = None
    test_images: int | None = None
    center: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        # checks the options, and leaves the random numbers of the caller alone
        with torch.random.fork_rng(devices=[]):
            build_model(self)
        linear = self.model in ("spatial", "permutohedral", "combined")
        scaled = bool(self.options.get("learn_scale"))
        if self.training and self.model in ("identity", "bm3d"):
            raise InputError(f"the model {self.model} has no weights to train")
        if self.training and self.samples == "images" and (not linear or scaled):
            raise InputError("samples: images needs a model that is linear in all its weights; take samples: crops")
        if self.start == "least_squares" and not linear:
            raise InputError("start: least_squares needs a model that is linear in its weights")


def build_model(config: DenoisingConfig) -> nn.Module:
    """The model of a row, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    if config.model == "bm3d":
        return Bm3d(config.noise / 255)
    return build_denoiser(config.model, config.options)


class Bm3d(nn.Module):
    """Block matching and collaborative filtering, from the package bm3d: what learned denoisers are measured by."""

    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.sigma = sigma

    def forward(self, noisy: Tensor) -> Tensor:
        """Denoise `[batch, 1, height, width]`, on the processor."""
        try:
            from bm3d import bm3d
        except ModuleNotFoundError as error:
            raise InputError("the row BM3D needs the package bm3d: pip install bm3d") from error
        images = [torch.from_numpy(bm3d(image[0].cpu().double().numpy(), self.sigma)) for image in noisy]
        return torch.stack(images)[:, None].to(noisy)


def run(config: DenoisingConfig, options: RunOptions) -> Result | None:
    """Train and evaluate one row.

    Returns:
        The result; None in the helping processes of a training on several devices.
    """
    lightning.seed_everything(config.seed, workers=True, verbose=False)
    model = build_model(config).to(options.device)
    seconds: dict[str, float] = {}
    metrics: dict[str, Any] = {"weights": count_weights(model)}
    if config.training is not None:
        started = time.perf_counter()
        metrics |= _train(model, config, options)
        seconds["training"] = time.perf_counter() - started
    if not is_first_process():
        return None
    started = time.perf_counter()
    images = load(config, "test", config.test_images, options)
    per_image = evaluate(model.to(options.device).eval(), track(images, "evaluating", options), config, options.device)
    seconds["evaluation"] = time.perf_counter() - started
    metrics["psnr"] = sum(per_image.values()) / len(per_image)
    metrics["psnr_per_image"] = per_image
    if model.state_dict():
        write_weights(options.output / f"{config.name}.safetensors", model)
    return Result(
        experiment="denoising",
        name=config.name,
        config=asdict(config),
        metrics=metrics,
        seed=config.seed,
        seconds=seconds,
        environment=describe_environment(options.device),
    )


def load(config: DenoisingConfig, split: Split, limit: int | None, options: RunOptions) -> list[GrayImage]:
    """The images of a split as the configuration wants them."""
    images = load_images(split, options.data, limit)
    return images if config.center is None else [center(image, config.center) for image in images]


def center(image: GrayImage, size: int) -> GrayImage:
    """The central square of `size` pixels of an image."""
    top, left = (max(0, (extent - size) // 2) for extent in image.pixels.shape)
    return GrayImage(image.name, image.pixels[top : top + size, left : left + size])


def load_weights(config: DenoisingConfig, folder: Path) -> nn.Module:
    """The model of a row, with the weights that `run` left in the output folder."""
    model = build_model(config).eval()
    if model.state_dict():
        model.load_state_dict(read_weights(folder / f"{config.name}.safetensors"))
    return model


@torch.no_grad()
def evaluate(
    model: nn.Module, images: Iterable[GrayImage], config: DenoisingConfig, device: torch.device
) -> dict[str, float]:
    """PSNR in dB of every whole image, by name."""
    scores = {}
    for image in images:
        noisy = add_noise(image, config.noise / 255, config.seed).to(device)
        denoised = model(noisy[None, None])[0, 0]
        scores[image.name] = psnr(denoised, image.pixels.to(device))
    return scores


def psnr(image: Tensor, clean: Tensor) -> float:
    """Peak signal-to-noise ratio in dB, the peak being 1.

    >>> psnr(torch.full((2, 2), 0.1), torch.zeros(2, 2))
    20.0
    """
    return round(float(-10 * (image.double() - clean.double()).square().mean().log10()), 6)


def _train(model: nn.Module, config: DenoisingConfig, options: RunOptions) -> dict[str, Any]:
    images = load(config, "train", config.train_images, options)
    settings = cast(TrainingSettings, config.training)
    metrics: dict[str, Any] = {}
    errors = None
    if config.samples == "images" or config.start == "least_squares":
        linear = cast(LinearDenoiser, model)
        tracked = track(images, "measuring", options)
        errors = quadratic.measure_quadratic_errors(linear, tracked, config.noise / 255, config.seed, options.device)
        solution = errors.least_squares()
        metrics["train_psnr_of_least_squares"] = _mean_psnr(errors.evaluate(solution.to(errors.matrix.device)))
        if config.start == "least_squares":
            linear.set_weights(solution.float())
    checkpoints = options.output / "checkpoints" / f"{config.name}-{_digest(config)}"
    task: Task
    if config.samples == "images":
        assert errors is not None
        dataset: Dataset[Any] = TensorDataset(errors.matrix.cpu(), errors.vector.cpu(), errors.constant.cpu())
        task = QuadraticTask(model, settings, config.loss)
    else:
        dataset = Crops(images, config, settings.steps * settings.batch_size)
        task = ImageTask(model, settings, config.loss)
    # a GPU takes crops faster than one process cuts them
    workers = min(8, os.cpu_count() or 1) if config.samples == "crops" and options.device.type == "cuda" else 0
    items = len(images) if config.samples == "images" else None
    done = steps_done(options, checkpoints)
    batches = StepBatches(items, settings.steps, settings.batch_size, config.seed, first=done)
    loader = DataLoader(dataset, batch_sampler=batches, num_workers=workers, pin_memory=workers > 0)
    fit(task, loader, options, checkpoints)
    if config.samples == "images":
        assert errors is not None
        weights = cast(LinearDenoiser, task.model).weights().detach().to(errors.matrix.device)
        metrics["train_psnr"] = _mean_psnr(errors.evaluate(weights))
    return metrics


def _digest(config: DenoisingConfig) -> str:
    """Tells configurations apart whose checkpoints do not fit each other; a training may be made longer."""
    content = asdict(config)
    content["training"].pop("steps")
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def _mean_psnr(errors: Tensor) -> float:
    return float(-10 * errors.log10().mean())


def loss_of(errors: Tensor, kind: Loss) -> Tensor:
    """The loss of a batch from the mean squared error of each item."""
    return errors.log().mean() if kind == "logarithmic" else errors.mean() / 2


class QuadraticTask(Task):
    """Trains a linear denoiser on whole images through their quadratic errors."""

    def __init__(self, model: nn.Module, settings: TrainingSettings, loss: Loss) -> None:
        super().__init__(model, settings)
        self.loss: Loss = loss

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """The loss of a batch of images."""
        weights = cast(LinearDenoiser, self.model).weights()
        return loss_of(quadratic.evaluate(batch[0], batch[1], batch[2], weights), self.loss)


class ImageTask(Task):
    """Trains any denoiser on crops."""

    def __init__(self, model: nn.Module, settings: TrainingSettings, loss: Loss) -> None:
        super().__init__(model, settings)
        self.loss: Loss = loss

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """The loss of a batch of crops."""
        noisy, clean = batch
        errors = (self.model(noisy) - clean).square().mean(dim=(1, 2, 3))
        return loss_of(errors, self.loss)


class Crops(Dataset[tuple[Tensor, Tensor]]):
    """Random crops of images, flipped and turned at random, with fresh noise.

    Crop number i is the same whenever and wherever it is drawn, so a resumed training goes on as if uninterrupted.

    Args:
        images: to crop.
        config: names the size of the crops, the noise and the seed.
        number: of crops.
        first: the crop to begin with.
    """

    def __init__(self, images: Sequence[GrayImage], config: DenoisingConfig, number: int, first: int = 0) -> None:
        self.images, self.config, self.number, self.first = images, config, number, first

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """A noisy and a clean crop, `[1, crop, crop]` each."""
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_000_007 + self.first + index)

        def draw(limit: int) -> int:
            return int(torch.randint(limit, (), generator=generator))

        pixels, size = self.images[draw(len(self.images))].pixels, self.config.crop
        if min(pixels.shape) < size:
            raise InputError(f"crops of {size} pixels do not fit an image of {tuple(pixels.shape)}")
        top, left = (draw(extent - size + 1) for extent in pixels.shape)
        clean = torch.rot90(pixels[top : top + size, left : left + size], draw(4))
        clean = (clean.flip(0) if draw(2) else clean)[None].contiguous()
        return clean + self.config.noise / 255 * torch.randn(clean.shape, generator=generator), clean
