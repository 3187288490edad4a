"""Images from samples of their spectrum along radial lines and spirals: on the lattice, by interpolation, exactly.

Frequencies are (y, x) in cycles over the image, and the center is 0. A factor of undersampling is pixels over samples.
All methods map `values [batch, points, 2]` at the same `positions [points, 2]` to `[batch, size, size]`. They get
`areas [points, 2]`, the part of the plane that each sample stands for: by Pipe and Menon, and analytic.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

import permutohedral as ph
from experiments.data.bsds500 import Split, load_images
from experiments.experiment import Experiment, Outcome, Row, try_out
from experiments.quality import mean_psnr
from experiments.report import WEIGHTS, Column, Page, Table
from experiments.results import FORBID_EXTRA, Result, weights_path, write_weights
from experiments.training import RunOptions, TrainingSettings, checkpoint_folder, count_weights, fit
from permutohedral.errors import InputError

TRAJECTORIES = ("radial", "spiral")
SOURCES = {"phantom": "Shepp-Logan", "photographs": "photographs"}

_ARMS = 4
# points on a fine curve per sample
_CURVE = 32
# pixels over which an object in the field of view fades into the black around it
_EDGE = 4.0


def make_trajectory(kind: str, size: int, factor: float, rotation: float = 0.0) -> tuple[Tensor, Tensor]:
    """Place about size^2 / factor samples in the disc of frequencies up to size / 2.

    Args:
        kind: "radial", straight lines through the center; or "spiral", four arms, whose turns lie one unit apart at
            the center and further apart outside, as the lines do.
        size: of the image.
        factor: of undersampling.
        rotation: of the whole trajectory, in radians.

    Returns:
        Positions float64 `[points, 2]`, and the analytic areas `[points]`.
    """
    if kind not in TRAJECTORIES or not 1 <= factor <= size:
        raise InputError(f"kind must be radial or spiral and factor between 1 and {size}, got {kind!r} and {factor}")
    distance, angle, areas = (_radial if kind == "radial" else _spiral)(size, factor)
    angle = angle + rotation
    positions = torch.stack([distance * angle.sin(), distance * angle.cos()], dim=-1)
    return positions.flatten(0, 1), areas.expand(positions.shape[:2]).flatten()


def _radial(size: int, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    spokes, half = round(size / factor), size // 2
    distance = torch.arange(-half, half, dtype=torch.float64)
    angle = math.pi / spokes * torch.arange(spokes, dtype=torch.float64)[:, None]
    # the spokes share a disc of diameter 1 at the center
    return distance, angle, torch.where(distance == 0, math.pi / 4 / spokes, distance.abs() * math.pi / spokes)


def _spiral(size: int, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    radius, low, high = size / 2, 1e-6, float(size)
    # turns are 1 + growth * r apart; the integral of 2 pi r / (1 + growth r) is the number of samples
    for _ in range(60):
        growth = (low + high) / 2
        samples = 2 * math.pi * (radius / growth - math.log1p(growth * radius) / growth**2)
        low, high = (growth, high) if samples > size * size / factor else (low, growth)
    distance = torch.linspace(0, radius, _CURVE * math.ceil(math.pi * radius**2 / _ARMS + radius), dtype=torch.float64)
    turns = 2 * math.pi / (_ARMS * (1 + growth * distance))
    angle, length = (
        F.pad(torch.cumulative_trapezoid(rate, distance), (1, 0))
        for rate in (turns, (1 + (turns * distance).square()).sqrt())
    )
    wanted = torch.arange(0.0, float(length[-1]), 1.0, dtype=torch.float64)
    place = torch.searchsorted(length, wanted).clamp(1, len(length) - 1)
    share = (wanted - length[place - 1]) / (length[place] - length[place - 1])
    distance, angle = (torch.lerp(line[place - 1], line[place], share) for line in (distance, angle))
    # near the center the arms share a disc of diameter 1
    areas = torch.minimum(1 + growth * distance, 2 * math.pi * distance / _ARMS)
    areas[0] = math.pi / 4 / _ARMS
    return distance, angle + 2 * math.pi / _ARMS * torch.arange(_ARMS, dtype=torch.float64)[:, None], areas


def spectrum_matrices(size: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return exp(-2 pi i k n / size) of either axis, complex128 `[points, size]`; n is 0 at pixel size / 2."""
    pixels = torch.arange(size, dtype=torch.float64, device=positions.device) - size // 2
    angle = -2 * math.pi / size * positions.double()[:, :, None] * pixels
    waves = torch.polar(torch.ones_like(angle), angle)
    return waves[:, 0], waves[:, 1]


def measure_spectrum(images: Tensor, positions: Tensor) -> Tensor:
    """Compute s(k) = 1 / size * sum_n x_n exp(-2 pi i k n / size) exactly: `[batch, points, 2]`."""
    dtype = torch.complex128 if images.dtype == torch.float64 else torch.complex64
    along_y, along_x = (matrix.to(dtype) for matrix in spectrum_matrices(images.shape[-1], positions))
    spectrum = (torch.einsum("pn,bnm->bpm", along_y, images.to(dtype)) * along_x).sum(dim=-1)
    return torch.view_as_real(spectrum / images.shape[-1])


def field_of_view(size: int, edge: float = 0.0) -> Tensor:
    """Return the disc that is measured of an image: float32 `[size, size]`, from 1 to 0 over `edge` pixels."""
    line = torch.arange(size) - size // 2
    inside = size / 2 - (line[:, None].square() + line.square()).sqrt()
    return (inside / edge).clamp(0, 1) if edge > 0 else (inside > 0).float()


def centered_grid(size: int, step: float = 1.0) -> Tensor:
    """Return the places of a grid around its center, `[(size / step)^2, 2]`, in row order."""
    number = round(size / step)
    line = (torch.arange(number, dtype=torch.float32) - number // 2) * step
    return torch.cartesian_prod(line, line)


def centered_inverse(spectrum: Tensor) -> Tensor:
    """Return the inverse Fourier transform of the last two axes, whose origins are in the middle."""
    image = torch.fft.ifft2(torch.fft.ifftshift(spectrum, dim=(-2, -1)))
    shifted: Tensor = torch.fft.fftshift(image, dim=(-2, -1))
    return shifted


class KaiserBesselGridding:
    """Approximate 1 / size * sum_i areas_i s_i exp(2 pi i k_i n / size), the adjoint of the measurement.

    Samples are spread onto a grid oversampled twice with a kernel of `width` cells (Beatty et al., 2005).
    """

    def __init__(self, size: int, width: int = 6) -> None:
        self.size, self.width, self.cells = size, width, 2 * size
        self.beta = math.pi * math.sqrt((width * 0.75) ** 2 - 0.8)

    def __call__(self, samples: Tensor, positions: Tensor, areas: Tensor) -> Tensor:
        """Make images complex128 `[batch, size, size]` from complex samples `[batch, points]`."""
        cell, weight = self.spread(positions)
        values = (samples * areas)[:, :, None].to(torch.complex128) * weight
        grid = values.new_zeros(len(samples), self.cells**2).index_add(1, cell.flatten(), values.flatten(1))
        # the sum over cells lacks the factor 1 / cells^2 of the inverse transform
        image = centered_inverse(grid.unflatten(1, (self.cells, self.cells))) * self.cells**2 / self.size
        middle = slice((self.cells - self.size) // 2, (self.cells + self.size) // 2)
        pixels = torch.arange(self.size, dtype=torch.float64) - self.size // 2
        root = (self.beta**2 - (math.pi * self.width * pixels / self.cells).square()).sqrt()
        # the transform of the kernel
        gain = (torch.sinh(root) / root).to(image.device)
        return image[:, middle, middle] / (gain[:, None] * gain)

    def spread(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cells in reach of each sample, int64 `[points, width^2]`, and the kernel there."""
        place = positions.double() * (self.cells / self.size) + self.cells // 2
        first = torch.floor(place - self.width / 2).long() + 1
        cells = first[:, :, None] + torch.arange(self.width, device=positions.device)
        inside = 1 - (2 * (place[:, :, None] - cells) / self.width).square()
        weight = torch.where(inside >= 0, torch.special.i0(self.beta * inside.clamp_min(0).sqrt()) / self.width, 0.0)
        # the spectrum of an image of whole pixels is periodic
        cells = cells % self.cells
        cell = cells[:, 0, :, None] * self.cells + cells[:, 1, None, :]
        return cell.flatten(1), (weight[:, 0, :, None] * weight[:, 1, None, :]).flatten(1)

    def compensate(self, positions: Tensor) -> Tensor:
        """Find areas under which the spread samples add up to one (Pipe and Menon, 1999)."""
        cell, weight = self.spread(positions)
        areas = torch.ones(len(positions), dtype=torch.float64)
        for _ in range(30):
            grid = torch.zeros(self.cells**2, dtype=torch.float64)
            grid = grid.index_add(0, cell.flatten(), (areas[:, None] * weight).flatten())
            areas = areas / (grid[cell] * weight).sum(dim=1)
        # a grid of ones, spread and read, weighs each cell by the square of the kernel's sum; a cell has an area, too
        mass = (math.sinh(self.beta) / self.beta) ** 4
        return areas * mass * (self.size / self.cells) ** 2


class Linear(nn.Module):
    """Interpolate linearly between the samples by SciPy, zero outside of their hull, then transform back."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, values: Tensor, positions: Tensor, areas: Tensor) -> Tensor:
        """Make images."""
        from scipy.interpolate import LinearNDInterpolator

        samples = values.double().cpu().transpose(0, 1).numpy()
        places = centered_grid(self.size).double().numpy()
        grid = torch.from_numpy(LinearNDInterpolator(positions.double().cpu().numpy(), samples, 0.0)(places))
        spectrum = torch.view_as_complex(grid.transpose(0, 1).reshape(-1, self.size, self.size, 2).contiguous())
        # the measurement divides by the size, the inverse transform by its square
        return (centered_inverse(spectrum).real * self.size * field_of_view(self.size)).to(values)


class ConjugateGradients(nn.Module):
    """Fit the real image inside the field of view to the samples by least squares, under the exact transform.

    Few iterations keep what the samples do not determine near zero.
    """

    def __init__(self, size: int, iterations: int = 15) -> None:
        super().__init__()
        self.size, self.iterations = size, iterations

    def forward(self, values: Tensor, positions: Tensor, areas: Tensor) -> Tensor:
        """Make images."""
        along_y, along_x = spectrum_matrices(self.size, positions)
        field = field_of_view(self.size).double()

        def adjoint(samples: Tensor) -> Tensor:
            image = torch.einsum("bp,pn,pm->bnm", samples, along_y.conj(), along_x.conj())
            return image.real / self.size * field

        residual = adjoint(torch.view_as_complex(values.double().contiguous()))
        image, direction = torch.zeros_like(residual), residual
        squared = residual.square().sum(dim=(1, 2), keepdim=True)
        for _ in range(self.iterations):
            product = adjoint(torch.view_as_complex(measure_spectrum(direction, positions)))
            step = squared / (direction * product).sum(dim=(1, 2), keepdim=True).clamp_min(1e-300)
            image, residual = image + step * direction, residual - step * product
            before, squared = squared, residual.square().sum(dim=(1, 2), keepdim=True)
            direction = residual + squared / before.clamp_min(1e-300) * direction
        return image.to(values)


class Gridding(nn.Module):
    """Grid with the kernel of Kaiser and Bessel and the first of the areas; or with both and a learned sum."""

    def __init__(self, size: int, width: int = 6, learned: bool = False) -> None:
        super().__init__()
        self.gridding = KaiserBesselGridding(size, width)
        self.register_buffer("field", field_of_view(size), persistent=False)
        self.field: Tensor
        self.finish = Sum(4) if learned else None

    def forward(self, values: Tensor, positions: Tensor, areas: Tensor) -> Tensor:
        """Make images."""
        samples = torch.view_as_complex(values.contiguous())
        if self.finish is None:
            return self.gridding(samples, positions, areas[:, 0]).real.to(values) * self.field
        images = torch.stack([self.gridding(samples, positions, weight) for weight in areas.unbind(1)], dim=1)
        parts = torch.view_as_real(images).permute(0, 1, 4, 2, 3).flatten(1, 2).to(values)
        image: Tensor = self.finish(parts * self.field) * self.field
        return image


class LatticeGridding(nn.Module):
    """Grid with a learned filter of 19 taps on the permutohedral lattice, transform back, and sum the channels.

    The filter takes the two parts of each complex sample, times each of its areas, to `spectra` complex channels on a
    grid oversampled twice. It starts as the Gaussian, by whose Fourier transform the images are divided.

    Args:
        size: of the image.
        spectra: complex channels.
        scale: cycles over the image per lattice step.
    """

    def __init__(self, size: int, spectra: int = 4, scale: float = 0.5) -> None:
        super().__init__()
        self.size, self.scale, self.spectra = size, scale, spectra
        self.register_buffer("grid", centered_grid(size, 0.5), persistent=False)
        # beyond the field of view there is nothing to divide
        gain = field_of_view(size) / lattice_apodization(size, scale).clamp_min(1e-6)
        self.register_buffer("gain", gain, persistent=False)
        self.register_buffer("field", field_of_view(size), persistent=False)
        self.grid: Tensor
        self.gain: Tensor
        self.field: Tensor
        self.filter = ph.nn.PermutohedralConv(4, 2 * spectra, 2, neighborhood_size=2, bias=False, normalization="none")
        taps = ph.lattice.gaussian_weight(2, 2, torch.float32)
        with torch.no_grad():
            self.filter.weight.mul_(0.1 * float(taps.max()))
            self.filter.weight[:, :, :2] = 0.0
            for part in range(2):
                self.filter.weight[:, part, part] = taps
        self.finish = Sum(2 * spectra)

    def forward(self, values: Tensor, positions: Tensor, areas: Tensor) -> Tensor:
        """Make images."""
        image: Tensor = self.finish(self.transform(values, positions, areas))
        return image * self.field

    def transform(self, values: Tensor, positions: Tensor, areas: Tensor) -> Tensor:
        """Return real and imaginary parts of the gridded images, `[batch, 2 spectra, size, size]`."""
        weighted = (areas.to(values)[:, :, None] * values[:, :, None, :]).flatten(2)
        lattice = ph.build_lattice(positions.to(self.grid) / self.scale, self.grid / self.scale, neighborhood_size=2)
        gridded, cells = self.filter(weighted, lattice), 2 * self.size
        parts = gridded.transpose(1, 2).reshape(len(values), self.spectra, 2, cells, cells)
        middle = slice(self.size // 2, self.size // 2 + self.size)
        images = centered_inverse(torch.complex(parts[:, :, 0], parts[:, :, 1]))[..., middle, middle]
        # the sum over cells lacks the factor 1 / cells^2 of the inverse transform; a cell has an area of 1 / 4
        images = images * (self.gain * cells**2 / 4 / self.size)
        return torch.view_as_real(images).permute(0, 1, 4, 2, 3).flatten(1, 2)


def lattice_apodization(size: int, scale: float) -> Tensor:
    """Return the Fourier transform of splat, Gaussian and slice at the pixels: float32 `[size, size]`.

    Splatting and slicing interpolate linearly in the triangles of the lattice. That kernel is a box spline, the
    convolution of segments along the three axes u_j, so its transform is the product of sinc(u_j . x); the taps at
    o_t add sum_t w_t cos(2 pi o_t . x). This is the mean over all positions of a sample relative to the lattice.
    """
    offsets, nearest = ph.lattice.tap_positions(ph.lattice.Neighborhood(2, 2)), ph.lattice.Neighborhood(2, 1)
    # taps are in lexicographic order: the last axis comes first
    axes = ph.lattice.tap_positions(nearest)[nearest.taps.sum(dim=1) == 1].flip(0)
    frequencies = centered_grid(size).double() * scale / size
    interpolation = torch.sinc(frequencies @ axes.T).prod(dim=1)
    taps = torch.cos(2 * math.pi * frequencies @ offsets.T) @ ph.lattice.gaussian_weight(2, 2, torch.float64)
    # a lattice point has a cell of the area sin(120 degrees); slicing and splatting interpolate once each
    return (math.sqrt(0.75) * scale**2 * interpolation.square() * taps).reshape(size, size).float()


class Sum(nn.Module):
    """A learned sum of channels, added to the first."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(in_channels))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, image: Tensor) -> Tensor:
        return image[:, 0] + torch.einsum("bchw,c->bhw", image, self.weights) + self.bias


METHODS: dict[str, type[nn.Module]] = {
    "linear": Linear,
    "kaiser_bessel": Gridding,
    "conjugate_gradients": ConjugateGradients,
    "permutohedral": LatticeGridding,
}


@dataclass(frozen=True, config=FORBID_EXTRA)
class MriConfig(Row):
    """One row of the table.

    Attributes:
        method: see `METHODS`.
        options: arguments of the method.
        training: how to train. None for a method without weights.
        size: of the images.
        factors: of undersampling. Each training batch has one of them, and one of the trajectories.
        train_images: number of training photographs. Default: all 200.
        test_images: number of test photographs. None: all 200.
    """

    method: Literal["linear", "kaiser_bessel", "conjugate_gradients", "permutohedral"]
    options: dict[str, Any] = field(default_factory=dict)
    training: TrainingSettings | None = None
    size: int = 64
    factors: tuple[float, ...] = (2.0, 4.0, 8.0)
    train_images: int | None = None
    test_images: int | None = 50

    def __post_init__(self) -> None:
        learned = self.method == "permutohedral" or bool(self.options.get("learned"))
        if learned != (self.training is not None):
            raise InputError(f"training {'is missing for' if learned else 'must be None for'} the method {self.method}")
        if self.size % 2 or not self.factors:
            raise InputError(f"size must be even, with at least one factor, got {self.size}")
        try_out(build_model, self)


def build_model(config: MriConfig) -> nn.Module:
    """Build the method of a row, with weights drawn from its seed."""
    torch.manual_seed(config.seed)
    try:
        return METHODS[config.method](config.size, **config.options)
    except TypeError as error:
        raise InputError(f"options do not fit the method {config.method}: {error}") from error


def shepp_logan(size: int) -> Tensor:
    """Return the phantom of Shepp and Logan, from scikit-image: float32 `[size, size]` in [0, 1]."""
    from skimage.data import shepp_logan_phantom

    pixels = torch.from_numpy(shepp_logan_phantom()).float()
    return F.adaptive_avg_pool2d(pixels[None], size)[0].clamp(0, 1)


def photographs(split: Split, limit: int | None, options: RunOptions) -> list[Tensor]:
    """Read gray photographs at half their resolution, float32 `[height, width]` each."""
    return [F.avg_pool2d(image.pixels[None], 2)[0] for image in load_images(split, options.data, limit)]


@lru_cache
def compensate(kind: str, size: int, factor: float) -> Tensor:
    """Return both areas of the samples of a trajectory, `[points, 2]`; they do not depend on its rotation."""
    positions, analytic = make_trajectory(kind, size, factor)
    return torch.stack([KaiserBesselGridding(size, width=4).compensate(positions), analytic], dim=1)


def draw_batch(step: int, pictures: Sequence[Tensor], config: MriConfig) -> tuple[Tensor, ...]:
    """Return values, positions and areas of parts of photographs along one trajectory, and the parts."""
    assert config.training is not None
    drawn, size, images = random.Random(f"{config.seed} {step}"), config.size, []
    for picture in drawn.choices(pictures, k=config.training.batch_size):
        top, left = (drawn.randrange(extent - size + 1) for extent in picture.shape)
        image = torch.rot90(picture[top : top + size, left : left + size], drawn.randrange(4))
        images.append(image.flip(0) if drawn.random() < 0.5 else image)
    kind, factor = drawn.choice(TRAJECTORIES), drawn.choice(config.factors)
    positions, _ = make_trajectory(kind, size, factor, drawn.uniform(0, math.pi))
    clean = torch.stack(images) * field_of_view(size, _EDGE)
    return measure_spectrum(clean, positions), positions, compensate(kind, size, factor), clean


def run(config: MriConfig, options: RunOptions) -> Outcome:
    """Train and evaluate one row."""
    model, seconds = build_model(config).to(options.device), dict[str, float]()
    if config.training is not None:
        pictures = photographs("train", config.train_images, options)

        def loss(step: int) -> Tensor:
            *measured, clean = (part.to(options.device, torch.float32) for part in draw_batch(step, pictures, config))
            # the PSNR is a mean of logarithms, too
            squared: Tensor = (model(*measured) - clean).square().mean(dim=(1, 2))
            return (squared + 1e-6).log().mean()

        seconds["training"] = fit(model, loss, config.training, options, checkpoint_folder(config, options))
        write_weights(weights_path(config, options.output), model)
    started = time.perf_counter()
    metrics = {"psnr": evaluate(model.eval(), config, options), "weights": count_weights(model)}
    return metrics, seconds | {"evaluation": time.perf_counter() - started}


@torch.no_grad()
def evaluate(model: nn.Module, config: MriConfig, options: RunOptions) -> dict[str, float]:
    """Return the mean PSNR of every source, trajectory and factor."""
    size, scores, centers = config.size, dict[str, float](), []
    for picture in photographs("test", config.test_images, options):
        top, left = ((extent - size) // 2 for extent in picture.shape)
        centers.append(picture[top : top + size, left : left + size])
    sources = {"phantom": shepp_logan(size)[None], "photographs": torch.stack(centers)}
    for source, batch in sources.items():
        images = batch.double() * field_of_view(size, _EDGE)
        for kind in TRAJECTORIES:
            for factor in config.factors:
                positions, _ = make_trajectory(kind, size, factor)
                parts = measure_spectrum(images, positions), positions, compensate(kind, size, factor)
                values, *places = (part.to(options.device, torch.float32) for part in parts)
                errors = (model(values, *places).double().cpu() - images)[:, field_of_view(size) > 0].square()
                scores[f"{source}, {kind}, {factor:g}x"] = mean_psnr(errors.mean(dim=1).clamp_min(1e-12))
    return scores


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report the PSNR of all methods."""
    config = results[0].config
    factors = [f"{factor:g}x" for factor in config["factors"]]
    text = (
        f"Mean PSNR in dB inside the field of view at {' / '.join(factors)} of images of {config['size']} x "
        f"{config['size']} pixels: the phantom of Shepp and Logan, and the centers of {config['test_images'] or 200} "
        "test photographs of BSDS500. A factor is pixels over samples. "
        "Learned rows have one set of weights for both trajectories and all factors, and saw photographs only."
    )
    columns = [Column("Method", "config/title", "{}"), WEIGHTS]
    for source, title in SOURCES.items():
        for kind in TRAJECTORIES:
            paths = tuple(f"metrics/psnr/{source}, {kind}, {factor}" for factor in factors)
            columns.append(Column(f"{title}, {kind}", paths, " / ".join(["{:.2f}"] * len(factors))))
    return [Page("Samples of the spectrum", text, [Table(columns, results, heading="PSNR")], name="mri")]


EXPERIMENTS = {"mri": Experiment("mri", MriConfig, run, report)}
