"""The demonstration behind `make demo`: an edge-aware filter, a filter that learns, and every denoiser that is shipped.

The pictures come inside scikit-image; nothing is downloaded.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.axes import Axes
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from skimage import data
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import InputError
from permutohedral.models.image_denoiser import ImageDenoiser
from permutohedral.models.pretrained import shipped_models
from permutohedral.reporting.figure import new_figure, save_figure
from permutohedral.reporting.quality import psnr

NOISE = 25 / 255
# bandwidths in pixels and in color of the edge-aware filter, and of the features of the learned one
SMOOTH = (16.0, 0.15)
DENOISE = (2.0, 0.3)
BATCH_SIZE, PATCH = 2, 64


@dataclass(frozen=True)
class Denoising:
    """A noisy picture, before and after training; all `[3, height, width]`."""

    clean: Tensor
    noisy: Tensor
    untrained: Tensor
    trained: Tensor


def run(folder: Path, steps: int) -> None:
    """Filter, train, denoise, draw `folder/demo.png` and `folder/denoised.png`, and say what was done."""
    console = Console(highlight=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder {folder}: {error.strerror}") from error
    picture = load_picture("astronaut")
    started = time.perf_counter()
    smooth = ph.bilateral_filter(picture, *SMOOTH)
    _, height, width = picture.shape
    console.print(
        f"Filtered a {width} x {height} photograph edge-aware in {time.perf_counter() - started:.1f} s "
        f"(backend {ph.explain_backend(picture).partition(':')[0]}): a Gaussian of {SMOOTH[0]:g} pixels and "
        f"{SMOOTH[1]:g} in color, in 5 dimensions."
    )
    layer = ph.nn.PermutohedralConvolution(
        3, 3, dimension=5, init="gaussian", normalization="homogeneous", learn_scale=True
    )
    generator = torch.Generator().manual_seed(0)
    clean = picture[:, :256, 96:352]
    noisy = clean + NOISE * torch.randn(clean.shape, generator=generator)
    untrained = denoise(layer, noisy)
    started = time.perf_counter()
    train(layer, [load_picture(name) for name in ("chelsea", "coffee", "rocket")], steps, generator)
    result = Denoising(clean, noisy, untrained, denoise(layer, noisy))
    console.print(
        f"Trained a lattice filter of {layer.weight.shape[0]} taps, 3 to 3 channels, on three other pictures: "
        f"{steps} steps in {time.perf_counter() - started:.1f} s."
    )
    console.print(
        f"On a picture it never saw: noisy {psnr(noisy, clean):.2f} dB, Gaussian filter it started from "
        f"{psnr(untrained, clean):.2f} dB, trained {psnr(result.trained, clean):.2f} dB."
    )
    compared = compare_denoisers(torch.from_numpy(data.camera()[64:320, 128:384]).float()[None] / 255, generator)
    console.print(_table(compared))
    console.print(f"Look at {draw(folder / 'demo.png', picture, smooth, result)}")
    console.print(f"Look at {draw_denoisers(folder / 'denoised.png', compared)}")


@dataclass(frozen=True)
class Denoised:
    """What one method makes of the noisy picture.

    Attributes:
        title: of the method.
        pixels: `[1, height, width]`.
        psnr: in dB, None for the picture without noise.
        seconds: it took, None where nothing was computed.
    """

    title: str
    pixels: Tensor
    psnr: float | None = None
    seconds: float | None = None


def compare_denoisers(clean: Tensor, generator: torch.Generator) -> list[Denoised]:
    """Add noise to a gray picture `[1, height, width]`, and remove it with every denoiser that is shipped."""
    noisy = clean + NOISE * torch.randn(clean.shape, generator=generator)
    found = [Denoised("noisy", noisy, psnr(noisy, clean))]
    for name in shipped_models():
        started = time.perf_counter()
        pixels = ImageDenoiser(name)(noisy, NOISE)
        found.append(Denoised(name, pixels, psnr(pixels, clean), time.perf_counter() - started))
    return [*sorted(found, key=lambda each: each.psnr or 0.0), Denoised("without noise", clean)]


def _table(compared: list[Denoised]) -> Table:
    table = Table("denoiser", box=SIMPLE, title="A photograph with noise of 25/255", title_justify="left")
    table.add_column("PSNR, dB", justify="right")
    table.add_column("seconds", justify="right")
    for each in compared:
        if each.psnr is not None:
            table.add_row(each.title, f"{each.psnr:.2f}", "" if each.seconds is None else f"{each.seconds:.2f}")
    return table


def load_picture(name: str) -> Tensor:
    """A color picture of scikit-image, `[3, height, width]` between 0 and 1."""
    pixels = torch.from_numpy(getattr(data, name)())
    return pixels.permute(2, 0, 1).float() / 255


def denoise(layer: ph.nn.PermutohedralConvolution, noisy: Tensor) -> Tensor:
    """Apply the layer over position and color of the noisy picture itself, without gradients."""
    with torch.no_grad():
        return _apply(layer, noisy)


def _apply(layer: ph.nn.PermutohedralConvolution, images: Tensor) -> Tensor:
    """`[..., 3, height, width]` to the same shape; the pixels are the points."""
    features = ph.bilateral_features(images, *DENOISE)
    output: Tensor = layer(images.flatten(-2).mT, features)
    return output.mT.reshape(images.shape)


def train(
    layer: ph.nn.PermutohedralConvolution, pictures: list[Tensor], steps: int, generator: torch.Generator
) -> None:
    """Minimize the squared error on noisy patches, with a progress bar on a terminal."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=steps)
        for _ in range(steps):
            clean = torch.stack([_random_patch(pictures, generator) for _ in range(BATCH_SIZE)])
            noisy = clean + NOISE * torch.randn(clean.shape, generator=generator)
            denoised = _apply(layer, noisy)
            loss = (denoised - clean).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            progress.update(task, advance=1, description=f"{psnr(denoised, clean):.1f} dB")


def _random_patch(pictures: list[Tensor], generator: torch.Generator) -> Tensor:
    """`[3, PATCH, PATCH]` out of one of the pictures."""
    picture = pictures[_below(len(pictures), generator)]
    y, x = (_below(extent - PATCH + 1, generator) for extent in picture.shape[1:])
    return picture[:, y : y + PATCH, x : x + PATCH]


def _below(limit: int, generator: torch.Generator) -> int:
    return int(torch.randint(limit, (), generator=generator))


def draw(path: Path, picture: Tensor, smooth: Tensor, result: Denoising) -> Path:
    """The figure: above the edge-aware filter, below the learned one."""
    figure = new_figure(12, 8.9)
    grid = figure.add_gridspec(2, 1, height_ratios=(1.47, 1))
    above, below = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    above.suptitle("Edge-aware filter: the same Gaussian in position and color", fontsize=13)
    detail = torch.cat([image[:, 20:200, 130:310] for image in (picture, smooth)], dim=1)
    panels = [
        (picture, "photograph"),
        (smooth, f"filtered: {SMOOTH[0]:g} pixels, {SMOOTH[1]:g} in color"),
        (detail, "detail, before and after"),
    ]
    for axes, (image, title) in zip(above.subplots(1, 3, width_ratios=(2, 2, 1)), panels, strict=True):
        _show(axes, image, title)
    below.suptitle("Learned filter: trained on other pictures to remove noise", fontsize=13)
    panels = [
        (result.noisy, f"noisy, {psnr(result.noisy, result.clean):.2f} dB"),
        (result.untrained, f"before training (Gaussian), {psnr(result.untrained, result.clean):.2f} dB"),
        (result.trained, f"after training, {psnr(result.trained, result.clean):.2f} dB"),
        (result.clean, "without noise"),
    ]
    for axes, (image, title) in zip(below.subplots(1, 4), panels, strict=True):
        _show(axes, image, title)
    save_figure(figure, path, dpi=110)
    return path


def draw_denoisers(path: Path, compared: list[Denoised]) -> Path:
    """The figure: what every method makes of the noisy picture."""
    columns = 4
    rows = -(-len(compared) // columns)
    figure = new_figure(3 * columns, 3.2 * rows)
    for number, each in enumerate(compared):
        title = each.title if each.psnr is None else f"{each.title}, {each.psnr:.2f} dB"
        _show(figure.add_subplot(rows, columns, number + 1), each.pixels, title)
    save_figure(figure, path, dpi=110)
    return path


def _show(axes: Axes, image: Tensor, title: str) -> None:
    axes.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy().squeeze(), cmap="gray", vmin=0, vmax=1)
    axes.set_title(title, fontsize=10)
    axes.set_axis_off()
