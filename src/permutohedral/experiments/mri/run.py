"""Images from samples along trajectories, taken of the image or of its spectrum. `run` trains and evaluates one row."""

from __future__ import annotations

import hashlib
import math
import random
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytorch_lightning as lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from permutohedral.data.bsds500 import Split, load_images
from permutohedral.data.measurements import field_of_view, measure_image, measure_spectrum
from permutohedral.data.phantoms import random_phantom, shepp_logan
from permutohedral.data.trajectories import TRAJECTORIES, Domain, Trajectory, TrajectoryKind, make_trajectory
from permutohedral.errors import InputError
from permutohedral.experiments.batches import StepNumbers, own_part
from permutohedral.experiments.checkpoints import checkpoint_folder
from permutohedral.experiments.experiment import file_stem
from permutohedral.experiments.result import Result, make_result, write_weights
from permutohedral.experiments.training import RunOptions, Task, TrainingSettings, fit, steps_done
from permutohedral.models.interpolation import FixedMethod, InterpolatedNetwork, build_fixed
from permutohedral.models.kaiser_bessel import pipe_menon_areas
from permutohedral.models.reconstruction import GriddedNetwork, ScatteredReconstruction, SpectrumReconstruction
from permutohedral.reporting.atomic import replacing
from permutohedral.reporting.quality import mean_psnr

Method = Literal["nearest", "linear", "kaiser_bessel", "conjugate_gradients", "network", "permutohedral"]

# pixels over which an object in the field of view fades into the black around it
_EDGE = 4.0
# the factor of undersampling, and the number of the photograph, that the pictures are drawn of
SHOWN_FACTOR = 4.0
SHOWN_IMAGE = 19


@dataclass(frozen=True)
class MriConfig:
    """One row of the table.

    Attributes:
        name: of the row and its files.
        title: what the table calls it.
        domain: what is sampled: the "image", or its "spectrum".
        method: "permutohedral" and "network" (the same spatial network behind a fixed method) are learned.
        options: arguments of the method.
        training: how to train; None for a fixed method.
        size: of the images.
        factors: of undersampling; each training batch has one of them, and one of the trajectories.
        train_images: photographs to train with; None for all 200.
        test_images: photographs to evaluate on; None for all 200.
        seed: of weights, images and trajectories.
    """

    name: str
    title: str
    domain: Domain
    method: Method
    options: dict[str, Any] = field(default_factory=dict)
    training: TrainingSettings | None = None
    size: int = 64
    factors: tuple[float, ...] = (2.0, 4.0, 8.0)
    train_images: int | None = None
    test_images: int | None = 50
    seed: int = 0

    def __post_init__(self) -> None:
        learned = self.method in ("network", "permutohedral")
        if learned != (self.training is not None):
            raise InputError(f"the method {self.method} {'needs' if learned else 'has no weights for'} a training")
        if self.size % 4 or not self.factors:
            raise InputError(f"size must be a multiple of 4, with at least one factor, got {self.size}")
        # checks the options, and leaves the random numbers of the caller alone
        with torch.random.fork_rng(devices=[]):
            build_model(self)


def build_model(config: MriConfig) -> nn.Module:
    """The method of a row, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    kinds = {
        ("permutohedral", "image"): ScatteredReconstruction,
        ("permutohedral", "spectrum"): SpectrumReconstruction,
        ("network", "image"): InterpolatedNetwork,
        ("network", "spectrum"): GriddedNetwork,
    }
    try:
        if config.method in get_args(FixedMethod):
            return build_fixed(config.method, config.domain, config.size, config.options)  # type: ignore[arg-type]
        model: nn.Module = kinds[config.method, config.domain](config.size, **config.options)
        return model
    except TypeError as error:
        raise InputError(f"the options of the method {config.method} do not fit: {error}") from error


@dataclass(frozen=True)
class Measurement:
    """What is known of a batch of images.

    Attributes:
        values: `[batch, points, 1]` of the image, `[batch, points, 2]` of the spectrum.
        positions: `[points, 2]`.
        areas: `[points, 2]`, by Pipe and Menon and analytic.
    """

    values: Tensor
    positions: Tensor
    areas: Tensor

    def to(self, device: torch.device) -> Measurement:
        """The same in float32 on a device."""
        return Measurement(*(part.to(device, torch.float32) for part in (self.values, self.positions, self.areas)))


def measure(images: Tensor, domain: Domain, trajectory: Trajectory, areas: Tensor) -> Measurement:
    """Sample images `[batch, size, size]` along a trajectory, in their precision."""
    if domain == "image":
        return Measurement(measure_image(images, trajectory.positions), trajectory.positions, areas)
    dtype = torch.complex128 if images.dtype == torch.float64 else torch.complex64
    values = torch.view_as_real(measure_spectrum(images, trajectory.positions, dtype))
    return Measurement(values, trajectory.positions, areas)


def compensate(trajectory: Trajectory, domain: Domain, size: int) -> Tensor:
    """Both density compensations of a trajectory, `[points, 2]`."""
    analytic = trajectory.areas
    iterated = pipe_menon_areas(trajectory.positions, size) if domain == "spectrum" else analytic
    return torch.stack([iterated, analytic], dim=1)


def photographs(split: Split, limit: int | None, folder: Path | None) -> list[Tensor]:
    """Gray photographs at half their resolution, float32 `[height, width]` each."""
    return [F.avg_pool2d(image.pixels[None], 2)[0] for image in _load_once(split, limit, folder)]


@lru_cache(maxsize=4)
def _load_once(split: Split, limit: int | None, folder: Path | None) -> list[Any]:
    return list(load_images(split, folder, limit))


def held_out(config: MriConfig, options: RunOptions) -> dict[str, Tensor]:
    """The images that a row is evaluated on, `[images, size, size]` of each source."""
    images = []
    for picture in photographs("test", config.test_images, options.data):
        top, left = ((extent - config.size) // 2 for extent in picture.shape)
        if min(top, left) < 0:
            raise InputError(f"size {config.size} exceeds the photographs of {tuple(picture.shape)}")
        images.append(picture[top : top + config.size, left : left + config.size])
    sources = {"phantom": shepp_logan(config.size)[None], "photographs": torch.stack(images)}
    return {name: prepare(batch.double(), config.domain) for name, batch in sources.items()}


def prepare(images: Tensor, domain: Domain) -> Tensor:
    """Images as they lie before the instrument: what is measured in its spectrum fades out towards the edge."""
    return images if domain == "image" else images * field_of_view(images.shape[-1], _EDGE).to(images)


class Batches:
    """The training batches of a row, by their number: half photographs, half phantoms, along one trajectory.

    Args:
        pictures: photographs, larger than the images.
        config: names size, factors and seed.
    """

    def __init__(self, pictures: list[Tensor], config: MriConfig) -> None:
        self.pictures, self.config = pictures, config
        self._areas: dict[tuple[TrajectoryKind, float], Tensor] = {}

    def __call__(self, number: int) -> tuple[Measurement, Tensor]:
        """What is known, and the images `[batch, size, size]`."""
        config = self.config
        assert config.training is not None
        digest = hashlib.blake2b(f"{config.seed} {number}".encode(), digest_size=4).digest()
        drawn = random.Random(digest)
        images = [self.draw(drawn, place % 2 == 1) for place in range(config.training.batch_size)]
        kind, factor = drawn.choice(TRAJECTORIES), drawn.choice(config.factors)
        turn = drawn.uniform(0, math.pi)
        trajectory = make_trajectory(kind, config.domain, config.size, factor, turn)
        clean = prepare(torch.stack(images), config.domain)
        return measure(clean, config.domain, trajectory, self.areas(kind, factor, trajectory)), clean

    def areas(self, kind: TrajectoryKind, factor: float, trajectory: Trajectory) -> Tensor:
        """Density compensation; in the spectrum the iteration is done once, as a turned trajectory has the same."""
        if self.config.domain == "image":
            return compensate(trajectory, "image", self.config.size)
        if (kind, factor) not in self._areas:
            straight = make_trajectory(kind, "spectrum", self.config.size, factor)
            self._areas[kind, factor] = compensate(straight, "spectrum", self.config.size)
        return self._areas[kind, factor]

    def draw(self, drawn: random.Random, phantom: bool) -> Tensor:
        """A phantom, or a part of a photograph, turned and flipped."""
        size = self.config.size
        if phantom:
            return random_phantom(size, torch.Generator().manual_seed(drawn.getrandbits(32)))
        picture = drawn.choice(self.pictures)
        top, left = (drawn.randrange(extent - size + 1) for extent in picture.shape)
        image = torch.rot90(picture[top : top + size, left : left + size], drawn.randrange(4))
        return image.flip(0) if drawn.random() < 0.5 else image


class ReconstructionTask(Task):
    """Trains a reconstruction on batches it makes itself, by their number."""

    def __init__(self, model: nn.Module, settings: TrainingSettings, batches: Batches) -> None:
        super().__init__(model, settings)
        self.batches = batches

    def training_step(self, number: int) -> Tensor:
        """The mean logarithm of the squared error: the PSNR that is reported."""
        measured, clean = self.batches(number)
        measured, clean = measured.to(self.device), clean.to(self.device)
        images = self.model(own_part(measured.values), measured.positions, measured.areas)
        errors = (images - own_part(clean)).square().mean(dim=(1, 2))
        loss: Tensor = (errors + 1e-6).log().mean()
        return loss


def run(config: MriConfig, options: RunOptions) -> Result | None:
    """Train and evaluate one row.

    Returns:
        The result; None in all but the first process of a training on several devices.
    """
    lightning.seed_everything(config.seed, workers=True, verbose=False)
    model = build_model(config)
    seconds = {}
    if config.training is not None:
        started = time.perf_counter()
        if not _train(model, config.training, config, options):
            return None
        seconds["training"] = time.perf_counter() - started
        write_weights(options.output / "weights" / f"{file_stem(config)}.safetensors", model)
    started = time.perf_counter()
    metrics = evaluate(model.to(options.device).eval(), config, options)
    seconds["evaluation"] = time.perf_counter() - started
    metrics["weights"] = sum(parameter.numel() for parameter in model.parameters())
    return make_result("mri", config, metrics, seconds, options.device)


def _train(model: nn.Module, settings: TrainingSettings, config: MriConfig, options: RunOptions) -> bool:
    """Whether this process is the one that goes on to evaluate."""
    checkpoints = checkpoint_folder(config, options.output, config.name)
    batches = Batches(photographs("train", config.train_images, options.data), config)
    numbers = StepNumbers(settings.steps, first=steps_done(options, checkpoints))
    task = ReconstructionTask(model, settings, batches)
    return fit(task, DataLoader(numbers, batch_size=None), options, checkpoints)


@torch.no_grad()
def evaluate(model: nn.Module, config: MriConfig, options: RunOptions) -> dict[str, Any]:
    """Mean PSNR and SSIM of every source, trajectory and factor, and the milliseconds that one image takes.

    Reconstructions of one image of each source go to `examples` in the output folder.
    """
    scores: dict[str, Any] = {}
    times: dict[str, float] = {}
    examples: dict[str, Any] = {}
    for source, images in held_out(config, options).items():
        for kind in TRAJECTORIES:
            for factor in config.factors:
                trajectory = make_trajectory(kind, config.domain, config.size, factor)
                areas = compensate(trajectory, config.domain, config.size)
                measured = measure(images, config.domain, trajectory, areas).to(options.device)
                made = model(measured.values, measured.positions, measured.areas).double().cpu()
                scores[f"{source}, {kind}, {factor:g}x"] = score(made, images, config.domain)
                times[f"{kind}, {factor:g}x"] = _milliseconds(model, measured)
                if factor == SHOWN_FACTOR:
                    shown = min(SHOWN_IMAGE, len(images) - 1)
                    examples[f"{source}, {kind}"] = made[shown].half().numpy()
                    examples[f"{source}, truth"] = images[shown].half().numpy()
    with replacing(options.output / "examples" / f"{file_stem(config)}.npz") as partial:
        np.savez_compressed(partial, **examples)
    return {"scores": scores, "milliseconds": times}


def score(made: Tensor, images: Tensor, domain: Domain) -> dict[str, float]:
    """Mean PSNR in dB, the peak being 1, and SSIM; what is known of the spectrum is compared in the field of view.

    >>> score(torch.full((1, 16, 16), 0.1), torch.zeros(1, 16, 16), "image")["psnr"]
    20.0
    """
    from skimage.metrics import structural_similarity

    size = images.shape[-1]
    inside = field_of_view(size).bool() if domain == "spectrum" else torch.ones(size, size, dtype=torch.bool)
    errors = (made - images)[:, inside].square().mean(dim=1)
    similarity = []
    for image, truth in zip(made.numpy(), images.numpy(), strict=True):
        _, everywhere = structural_similarity(image, truth, data_range=1.0, full=True)
        similarity.append(float(everywhere[inside.numpy()].mean()))
    return {"psnr": round(mean_psnr(errors.clamp_min(1e-12)), 4), "ssim": round(sum(similarity) / len(similarity), 5)}


def _milliseconds(model: nn.Module, measured: Measurement, repeats: int = 5) -> float:
    """The shortest of a few times for one image, including its lattice or triangulation.

    Without a GPU it is CPU time, which other load on the machine affects little.
    """
    clock = time.perf_counter if measured.values.is_cuda else time.process_time
    times = []
    for _ in range(repeats):
        started = clock()
        model(measured.values[:1], measured.positions, measured.areas)
        if measured.values.is_cuda:
            torch.cuda.synchronize()
        times.append(clock() - started)
    return round(1000 * min(times), 3)
