"""Images from samples along trajectories, of the image or of its spectrum."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor, nn

from experiments.data.bsds500 import Split, load_images
from experiments.experiment import Experiment
from experiments.mri.fixed import FixedMethod, InterpolatedNetwork, build_fixed
from experiments.mri.kaiser_bessel import pipe_menon_areas
from experiments.mri.measurements import field_of_view, measure_image, measure_spectrum
from experiments.mri.networks import GriddedNetwork, ScatteredReconstruction, SpectrumReconstruction
from experiments.mri.phantoms import random_phantom, shepp_logan
from experiments.mri.trajectories import TRAJECTORIES, Domain, Trajectory, TrajectoryKind, make_trajectory
from experiments.quality import mean_psnr
from experiments.report import WEIGHTS, Column, Page, Table, by_row, new_figure
from experiments.results import FORBID_EXTRA, Result, replacing, weights_path, write_weights
from experiments.training import RunOptions, TrainingSettings, checkpoint_folder, count_weights, fit
from permutohedral.errors import InputError

SOURCES = {"phantom": "Shepp-Logan", "photographs": "photographs"}
DOMAINS = {"image": "Samples of the image", "spectrum": "Samples of the spectrum"}

Method = Literal["nearest", "linear", "kaiser_bessel", "conjugate_gradients", "network", "permutohedral"]

# pixels over which an object in the field of view fades into the black around it
_EDGE = 4.0
# the factor of undersampling, and the number of the photograph, that the pictures are drawn of
SHOWN_FACTOR = 4.0
SHOWN_IMAGE = 19


@checked_dataclass(frozen=True, config=FORBID_EXTRA)
class MriConfig:
    """One row of the table.

    Attributes:
        name: of the row and its files.
        title: in the table.
        domain: sample the "image" or its "spectrum".
        method: "permutohedral" and "network" (the same spatial network after a fixed method) are learned.
        options: arguments of the method.
        training: how to train. None for a fixed method.
        size: of the images.
        factors: of undersampling. Each training batch has one of them, and one of the trajectories.
        train_images: number of training photographs. Default: all 200.
        test_images: number of test photographs. None: all 200.
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
            raise InputError(f"training {'is missing for' if learned else 'must be None for'} the method {self.method}")
        if self.size % 4 or not self.factors:
            raise InputError(f"size must be a multiple of 4, with at least one factor, got {self.size}")
        # checks the options without changing the random numbers of the caller
        with torch.random.fork_rng(devices=[]):
            build_model(self)


def build_model(config: MriConfig) -> nn.Module:
    """Build the method of a row, with weights drawn from its seed."""
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
        raise InputError(f"options do not fit the method {config.method}: {error}") from error


@dataclass(frozen=True)
class Measurement:
    """Samples of a batch of images.

    Attributes:
        values: `[batch, points, 1]` of the image, `[batch, points, 2]` of the spectrum.
        positions: `[points, 2]`.
        areas: `[points, 2]`, by Pipe and Menon and analytic.
    """

    values: Tensor
    positions: Tensor
    areas: Tensor

    def to(self, device: torch.device) -> Measurement:
        """Return the samples in float32 on a device."""
        return Measurement(*(part.to(device, torch.float32) for part in (self.values, self.positions, self.areas)))


def measure(images: Tensor, domain: Domain, trajectory: Trajectory, areas: Tensor) -> Measurement:
    """Sample images `[batch, size, size]` along a trajectory, in their precision."""
    if domain == "image":
        return Measurement(measure_image(images, trajectory.positions), trajectory.positions, areas)
    dtype = torch.complex128 if images.dtype == torch.float64 else torch.complex64
    values = torch.view_as_real(measure_spectrum(images, trajectory.positions, dtype))
    return Measurement(values, trajectory.positions, areas)


def compensate(trajectory: Trajectory, domain: Domain, size: int) -> Tensor:
    """Return both density compensations of a trajectory, `[points, 2]`."""
    analytic = trajectory.areas
    iterated = pipe_menon_areas(trajectory.positions, size) if domain == "spectrum" else analytic
    return torch.stack([iterated, analytic], dim=1)


def photographs(split: Split, limit: int | None, folder: Path | None) -> list[Tensor]:
    """Read gray photographs at half their resolution, float32 `[height, width]` each."""
    return [F.avg_pool2d(image.pixels[None], 2)[0] for image in _load_once(split, limit, folder)]


@lru_cache(maxsize=4)
def _load_once(split: Split, limit: int | None, folder: Path | None) -> list[Any]:
    return list(load_images(split, folder, limit))


def held_out(config: MriConfig, options: RunOptions) -> dict[str, Tensor]:
    """Return the images to evaluate on, `[images, size, size]` of each source."""
    images = []
    for picture in photographs("test", config.test_images, options.data):
        top, left = ((extent - config.size) // 2 for extent in picture.shape)
        if min(top, left) < 0:
            raise InputError(f"size {config.size} exceeds the photographs of {tuple(picture.shape)}")
        images.append(picture[top : top + config.size, left : left + config.size])
    sources = {"phantom": shepp_logan(config.size)[None], "photographs": torch.stack(images)}
    return {name: prepare(batch.double(), config.domain) for name, batch in sources.items()}


def prepare(images: Tensor, domain: Domain) -> Tensor:
    """Fade images out towards the edge of the field of view if their spectrum is measured."""
    return images if domain == "image" else images * field_of_view(images.shape[-1], _EDGE).to(images)


class Batches:
    """Make the training batches of a row: half photographs, half phantoms, along one trajectory.

    Args:
        pictures: photographs, larger than the images.
        config: names size, factors and seed.
    """

    def __init__(self, pictures: list[Tensor], config: MriConfig) -> None:
        self.pictures, self.config = pictures, config
        self._areas: dict[tuple[TrajectoryKind, float], Tensor] = {}

    def __call__(self, number: int) -> tuple[Measurement, Tensor]:
        """Return the samples and the images `[batch, size, size]`."""
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
        """Return the density compensation; that of the spectrum does not depend on the rotation and is cached."""
        if self.config.domain == "image":
            return compensate(trajectory, "image", self.config.size)
        if (kind, factor) not in self._areas:
            straight = make_trajectory(kind, "spectrum", self.config.size, factor)
            self._areas[kind, factor] = compensate(straight, "spectrum", self.config.size)
        return self._areas[kind, factor]

    def draw(self, drawn: random.Random, phantom: bool) -> Tensor:
        """Draw a phantom, or a part of a photograph, rotated and flipped."""
        size = self.config.size
        if phantom:
            return random_phantom(size, torch.Generator().manual_seed(drawn.getrandbits(32)))
        picture = drawn.choice(self.pictures)
        top, left = (drawn.randrange(extent - size + 1) for extent in picture.shape)
        image = torch.rot90(picture[top : top + size, left : left + size], drawn.randrange(4))
        return image.flip(0) if drawn.random() < 0.5 else image


def run(config: MriConfig, options: RunOptions) -> tuple[dict[str, Any], dict[str, float]]:
    """Train and evaluate one row."""
    model = build_model(config).to(options.device)
    seconds = {}
    if config.training is not None:
        batches = Batches(photographs("train", config.train_images, options.data), config)

        def loss_of(step: int) -> Tensor:
            measured, clean = batches(step)
            measured, clean = measured.to(options.device), clean.to(options.device)
            images = model(measured.values, measured.positions, measured.areas)
            # the PSNR is a mean of logarithms, too
            loss: Tensor = ((images - clean).square().mean(dim=(1, 2)) + 1e-6).log().mean()
            return loss

        seconds["training"] = fit(model, loss_of, config.training, options, checkpoint_folder(config, options))
        write_weights(weights_path(config, options.output), model)
    started = time.perf_counter()
    metrics = evaluate(model.eval(), config, options) | {"weights": count_weights(model)}
    seconds["evaluation"] = time.perf_counter() - started
    return metrics, seconds


@torch.no_grad()
def evaluate(model: nn.Module, config: MriConfig, options: RunOptions) -> dict[str, Any]:
    """Return mean PSNR and SSIM of every source, trajectory and factor, and milliseconds per image.

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
    with replacing(_examples_path(config.name, config.seed, options)) as partial:
        np.savez_compressed(partial, **examples)
    return {"scores": scores, "milliseconds": times}


def score(made: Tensor, images: Tensor, domain: Domain) -> dict[str, float]:
    """Return mean PSNR in dB for a peak of 1, and SSIM; with a spectrum inside the field of view only.

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
    """Return the shortest time for one image, including its lattice or triangulation.

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


def _examples_path(name: str, seed: int, options: RunOptions) -> Path:
    return options.output / "examples" / f"{name}-{seed}.npz"


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report PSNR and SSIM, a page for each domain and a table for each factor."""
    pages = []
    for domain, title in DOMAINS.items():
        rows = [result for result in results if result.config["domain"] == domain]
        if not rows:
            continue
        config = rows[0].config
        factors = sorted(config["factors"], key=lambda factor: (factor != SHOWN_FACTOR, factor))
        text = (
            f"Mean PSNR in dB / SSIM of images of {config['size']} x {config['size']} pixels: the phantom of Shepp and "
            f"Logan, and the centers of {config['test_images'] or 200} test photographs of BSDS500. Neither is in the "
            "training. A factor is pixels over samples. Milliseconds are processor time for one image. Learned rows "
            "have one set of weights for both sources, both trajectories and all factors."
        )
        figure, caption = draw_examples(rows, options), f"Reconstructions at {SHOWN_FACTOR:g}x"
        figures = {} if figure is None else {f"{domain}_pictures.png": (caption, figure)}
        tables = [Table(_columns(factor), rows) for factor in factors]
        pages.append(Page(title, text, tables, figures=figures, name=domain))
    return pages


def _columns(factor: float) -> list[Column]:
    columns = [Column(f"{factor:g}x", "config/title", "{}"), WEIGHTS]
    for source, title in SOURCES.items():
        for kind in TRAJECTORIES:
            key = f"metrics/scores/{source}, {kind}, {factor:g}x"
            columns.append(Column(f"{title}, {kind}", (f"{key}/psnr", f"{key}/ssim"), "{:.2f} / {:.3f}"))
    times = tuple(f"metrics/milliseconds/{kind}, {factor:g}x" for kind in TRAJECTORIES)
    return [*columns, Column(f"ms, {' / '.join(TRAJECTORIES)}", times, "{:.1f} / {:.1f}")]


def draw_examples(results: Sequence[Result], options: RunOptions) -> Any:
    """Draw the reconstructions of one image of each source by every row; None if there are none."""
    examples = {}
    for runs in by_row(results).values():
        path = _examples_path(runs[0].name, runs[0].seed, options)
        if path.is_file():
            with np.load(path) as content:
                examples[runs[0].config["title"]] = {name: image.astype(np.float32) for name, image in content.items()}
    lines = [(source, kind) for source in SOURCES for kind in TRAJECTORIES]
    if not examples or any(f"{source}, {kind}" not in images for images in examples.values() for source, kind in lines):
        return None
    size, domain = results[0].config["size"], results[0].config["domain"]
    inside = field_of_view(size).bool() if domain == "spectrum" else torch.ones(size, size, dtype=torch.bool)
    figure = new_figure(1.45 * (2 + len(examples)), 1.8 * len(lines))
    axes = figure.subplots(len(lines), 2 + len(examples), squeeze=False)
    for row, (source, kind) in zip(axes, lines, strict=True):
        truth = next(iter(examples.values()))[f"{source}, truth"]
        y, x = make_trajectory(kind, domain, size, SHOWN_FACTOR).positions.T
        row[0].scatter(x, y, s=1, c="black", linewidths=0)
        row[0].set(xlim=(-size / 2, size / 2), ylim=(size / 2, -size / 2), aspect="equal")
        row[0].set_ylabel(f"{SOURCES[source]}, {kind}", fontsize=7)
        shown = [truth, *(images[f"{source}, {kind}"] for images in examples.values())]
        for axis, image in zip(row[1:], shown, strict=True):
            axis.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            error = torch.from_numpy(image - truth)[inside].square().mean()
            axis.set_xlabel("" if image is truth else f"{mean_psnr(error):.2f} dB", fontsize=7)
        for axis in row:
            axis.set(xticks=[], yticks=[])
    for axis, title in zip(axes[0], ["samples", "truth", *examples], strict=True):
        axis.set_title(title.replace(" + ", "\n+ "), fontsize=7)
    return figure


EXPERIMENTS = {"mri": Experiment("mri", MriConfig, run, report)}
