"""The paper's Table (b): denoising BSDS500. One configuration per row; `run` trains and evaluates one."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, cast

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import Timer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from permutohedral.data.bsds500 import GrayImage, Split, add_noise, load_images
from permutohedral.errors import InputError
from permutohedral.experiments.batches import StepBatches, StepNumbers, own_part
from permutohedral.experiments.checkpoints import checkpoint_folder
from permutohedral.experiments.cuda_graph import CapturedStep
from permutohedral.experiments.denoising import quadratic
from permutohedral.experiments.denoising.crops import CropSampler
from permutohedral.experiments.denoising.quadratic import QuadraticErrors
from permutohedral.experiments.experiment import file_stem
from permutohedral.experiments.result import Result, make_result, read_weights, write_text, write_weights
from permutohedral.experiments.training import (
    RunOptions,
    Task,
    TrainingSettings,
    fit,
    is_first_process,
    steps_done,
    track,
)
from permutohedral.models.deep_denoising import DeepDenoiser, count_weights
from permutohedral.models.denoising import LinearDenoiser
from permutohedral.models.pretrained import build_denoiser
from permutohedral.reporting.quality import mean_psnr, psnr

# seconds after which the scores of an evaluation are saved again
_KEEP_EVERY = 10.0

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
        captured_rows: on a GPU, capture the step on crops as a CUDA graph, which saves the host hundreds of launches;
            the lattices then have room for this many lattice points per pixel. None: no graph.
        time_limit: seconds after which training on crops ends, whatever the steps; the result records how many it took.
        loss: "euclidean", the mean squared error; or "logarithmic", the mean over items of its logarithm, which is
            the PSNR that is reported.
        start: "initial" weights of the model, or the "least_squares" solution.
        train_images: how many of the 200; None for all.
        train_on_val: train on the val images, too.
        test_images: how many of the 200; None for all.
        center: take only the central square of this many pixels of every image, for quick trials.
        views: also evaluate the mean over the eight ways to flip and turn an image, each turned back.
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
    captured_rows: float | None = None
    time_limit: float | None = None
    loss: Loss = "logarithmic"
    start: Literal["initial", "least_squares"] = "initial"
    train_images: int | None = None
    train_on_val: bool = False
    test_images: int | None = None
    center: int | None = None
    views: bool = False
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


class EightViews(nn.Module):
    """The mean of what a denoiser makes of an image in all eight ways to flip and turn it."""

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
        The result; None in all but the first process of a training on several devices.
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
    # before the evaluation, which may be interrupted
    if model.state_dict():
        write_weights(options.output / f"{file_stem(config)}.safetensors", model)
    started = time.perf_counter()
    images = load(config, "test", config.test_images, options)
    per_image = _evaluate_resumably(model.to(options.device).eval(), images, config, options)
    seconds["evaluation"] = time.perf_counter() - started
    metrics["psnr"] = sum(per_image.values()) / len(per_image)
    metrics["psnr_per_image"] = per_image
    if config.views:
        of_views = evaluate(EightViews(model), track(images, "evaluating eight views", options), config, options.device)
        metrics["psnr_of_eight_views"] = sum(of_views.values()) / len(of_views)
    return make_result("denoising", config, metrics, seconds, options.device)


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
        model.load_state_dict(read_weights(folder / f"{file_stem(config)}.safetensors"))
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


def _evaluate_resumably(
    model: nn.Module, images: Sequence[GrayImage], config: DenoisingConfig, options: RunOptions
) -> dict[str, float]:
    """`evaluate`, keeping what is done: some methods take minutes for an image."""
    path = checkpoint_folder(config, options.output, config.name) / "psnr.json"
    scores: dict[str, float] = json.loads(path.read_text()) if options.resume and path.is_file() else {}
    kept = time.perf_counter()
    for image in track(images, "evaluating", options):
        if image.name in scores:
            continue
        scores |= evaluate(model, [image], config, options.device)
        if time.perf_counter() - kept > _KEEP_EVERY:
            write_text(path, json.dumps(scores))
            kept = time.perf_counter()
    path.unlink(missing_ok=True)
    return scores


def _train(model: nn.Module, config: DenoisingConfig, options: RunOptions) -> dict[str, Any]:
    images = load(config, "train", config.train_images, options)
    if config.train_on_val:
        images += load(config, "val", config.train_images, options)
    metrics: dict[str, Any] = {}
    errors = None
    linear = cast(LinearDenoiser, model)
    if config.samples == "images" or config.start == "least_squares":
        tracked = track(images, "measuring", options)
        errors = quadratic.measure_quadratic_errors(linear, tracked, config.noise / 255, config.seed, options.device)
        solution = errors.least_squares()
        metrics["train_psnr_of_least_squares"] = mean_psnr(errors.evaluate(solution.to(errors.matrix.device)))
        if config.start == "least_squares":
            linear.set_weights(solution.float())
    if config.samples == "images":
        assert errors is not None
        _train_on_images(model, config, options, errors)
        weights = linear.weights().detach().to(errors.matrix.device)
        return metrics | {"train_psnr": mean_psnr(errors.evaluate(weights))}
    return metrics | _train_on_crops(model, config, options, images)


def _train_on_images(model: nn.Module, config: DenoisingConfig, options: RunOptions, errors: QuadraticErrors) -> None:
    settings, folder = cast(TrainingSettings, config.training), checkpoint_folder(config, options.output, config.name)
    dataset = TensorDataset(errors.matrix.cpu(), errors.vector.cpu(), errors.constant.cpu())
    done = steps_done(options, folder)
    batches = StepBatches(len(dataset), settings.steps, settings.batch_size, config.seed, first=done)
    fit(QuadraticTask(model, settings, config.loss), DataLoader(dataset, batch_sampler=batches), options, folder)


def _train_on_crops(
    model: nn.Module, config: DenoisingConfig, options: RunOptions, images: Sequence[GrayImage]
) -> dict[str, Any]:
    """Train; returns how many steps it took."""
    settings, folder = cast(TrainingSettings, config.training), checkpoint_folder(config, options.output, config.name)
    # torch's types do not know this argument of Module.to
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    task = CropTask(model, settings, config, images)
    numbers = StepNumbers(settings.steps, first=steps_done(options, folder))
    limit = [] if config.time_limit is None else [Timer(timedelta(seconds=config.time_limit), interval="step")]
    fit(task, DataLoader(numbers, batch_size=None), options, folder, limit)
    metrics: dict[str, Any] = {"steps": int(task.trainer.global_step)}
    if isinstance(model, DeepDenoiser) and model.lattice_fullness():
        metrics["lattice_fullness"] = model.lattice_fullness()
        if metrics["lattice_fullness"] > 1:
            warnings.warn(
                f"a lattice had {metrics['lattice_fullness']:.2f} times the lattice points there was room for, and the "
                "rest were mixed up; choose a larger captured_rows",
                stacklevel=2,
            )
    return metrics


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


class CropTask(Task):
    """Trains any denoiser on crops, which are cut and made noisy on the device that trains."""

    def __init__(
        self, model: nn.Module, settings: TrainingSettings, config: DenoisingConfig, images: Sequence[GrayImage]
    ) -> None:
        super().__init__(model, settings)
        self.config, self.images = config, images
        self._captured: CapturedStep | None = None

    def on_fit_start(self) -> None:
        """Bring the images to the device; all batches have one shape, so cuDNN may search for its fastest algorithm."""
        config = self.config
        self.crops = CropSampler(self.images, config.crop, config.noise / 255, config.seed, self.device)
        self._benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True

    def on_fit_end(self) -> None:
        """Leave cuDNN, the model and the memory as they were."""
        torch.backends.cudnn.benchmark = self._benchmark
        if isinstance(self.model, DeepDenoiser):
            self.model.bound_lattices(None)
        self._captured = None

    def training_step(self, number: int) -> Tensor:
        """The loss of batch `number`."""
        noisy, clean = (own_part(images) for images in self.crops.draw(number, self.settings.batch_size))
        if self._captured is None and not self._captures():
            return self._loss(self.model(noisy), clean)
        if self._captured is None:
            if isinstance(self.model, DeepDenoiser):
                self.model.bound_lattices(self.config.captured_rows)
            autocast = torch.bfloat16 if self.settings.precision == "bf16-mixed" else None
            self._captured = CapturedStep(self.model, self._loss, (noisy, clean), autocast)
        return self._captured(noisy, clean)

    def _loss(self, denoised: Tensor, clean: Tensor) -> Tensor:
        return loss_of((denoised.float() - clean).square().mean(dim=(1, 2, 3)), self.config.loss)

    def _captures(self) -> bool:
        alone = not torch.distributed.is_initialized()
        return self.config.captured_rows is not None and self.device.type == "cuda" and alone

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        """Leave the gradients of a captured step in place."""
        if self._captured is None:
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def backward(self, loss: Tensor, *arguments: Any, **options: Any) -> None:
        """A captured step has its gradients already."""
        if self._captured is None:
            super().backward(loss, *arguments, **options)
