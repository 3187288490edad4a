"""The demonstration behind `make demo`: an edge-aware filter, a learned filter, and all shipped denoisers."""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
from matplotlib.axes import Axes
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from skimage import data
from torch import Tensor

import permutohedral as ph
from permutohedral.cli.shared import progress_bar
from permutohedral.files.batch import make_folder
from permutohedral.files.figure import new_figure, save_figure
from permutohedral.models.image_denoiser import ImageDenoiser
from permutohedral.models.pretrained import shipped_models

NOISE = 25 / 255
# bandwidths in pixels and in color of the edge-aware filter, and of the features of the learned one
SMOOTH = (16.0, 0.15)
DENOISE = (2.0, 0.3)
BATCH_SIZE, PATCH = 2, 64

# images with their titles
Panels = list[tuple[Tensor, str]]


def run(folder: Path, steps: int) -> None:
    """Filter, train and denoise; write `demo.png` and `denoised.png` to `folder`."""
    console = Console(highlight=False)
    make_folder(folder)
    image = load_image("astronaut")
    started = time.perf_counter()
    smooth = ph.bilateral_filter(image, *SMOOTH)
    _, height, width = image.shape
    console.print(
        f"Filtered a {width} x {height} photo in {time.perf_counter() - started:.1f} s "
        f"(backend {ph.explain_backend(image).partition(':')[0]}): a Gaussian of {SMOOTH[0]:g} pixels and "
        f"{SMOOTH[1]:g} in color, in 5 dimensions."
    )
    layer = ph.nn.PermutohedralConvolution(
        3, 3, dimension=5, init="gaussian", normalization="homogeneous", learn_scale=True
    )
    generator = torch.Generator().manual_seed(0)
    clean = image[:, :256, 96:352]
    noisy = clean + NOISE * torch.randn(clean.shape, generator=generator)
    with torch.no_grad():
        untrained = apply(layer, noisy)
    started = time.perf_counter()
    train(layer, [load_image(name) for name in ("chelsea", "coffee", "rocket")], steps, generator)
    with torch.no_grad():
        trained = apply(layer, noisy)
    console.print(
        f"Trained a lattice filter of {layer.weight.shape[0]} taps, 3 to 3 channels, on three other photos: "
        f"{steps} steps in {time.perf_counter() - started:.1f} s."
    )
    learned = [
        (noisy, f"noisy, {psnr(noisy, clean):.2f} dB"),
        (untrained, f"before training (Gaussian), {psnr(untrained, clean):.2f} dB"),
        (trained, f"after training, {psnr(trained, clean):.2f} dB"),
        (clean, "without noise"),
    ]
    console.print(f"On a photo outside of the training set: {'; '.join(title for _, title in learned[:3])}.")
    camera = torch.from_numpy(data.camera()[64:320, 128:384]).float()[None] / 255
    table, compared = compare_denoisers(camera, generator)
    console.print(table)
    draw(folder / "demo.png", image, smooth, learned)
    draw_denoisers(folder / "denoised.png", compared)
    console.print(f"Wrote {folder / 'demo.png'} and {folder / 'denoised.png'}")


def load_image(name: str) -> Tensor:
    """Return a color image of scikit-image, `[3, height, width]` in 0 to 1."""
    return torch.from_numpy(getattr(data, name)()).permute(2, 0, 1).float() / 255


def psnr(image: Tensor, clean: Tensor) -> float:
    """Return the peak signal-to-noise ratio in dB; white is 1."""
    return -10 * math.log10(float((image.detach() - clean).double().square().mean()))


def apply(layer: ph.nn.PermutohedralConvolution, images: Tensor) -> Tensor:
    """Apply the layer to `[..., 3, height, width]`, over the positions and colors of the pixels."""
    features = ph.bilateral_features(images, *DENOISE)
    output: Tensor = layer(images.flatten(-2).mT, features)
    return output.mT.reshape(images.shape)


def train(layer: ph.nn.PermutohedralConvolution, images: list[Tensor], steps: int, generator: torch.Generator) -> None:
    """Minimize the squared error on noisy patches."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    with progress_bar() as progress:
        for step in range(steps):
            clean = torch.stack([random_patch(images, generator) for _ in range(BATCH_SIZE)])
            denoised = apply(layer, clean + NOISE * torch.randn(clean.shape, generator=generator))
            loss = (denoised - clean).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            progress(step + 1, steps, f"training: {psnr(denoised, clean):.1f} dB")


def random_patch(images: list[Tensor], generator: torch.Generator) -> Tensor:
    """Return `[3, PATCH, PATCH]` of one of the images."""

    def below(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

    image = images[below(len(images))]
    y, x = (below(extent - PATCH + 1) for extent in image.shape[1:])
    return image[:, y : y + PATCH, x : x + PATCH]


def compare_denoisers(clean: Tensor, generator: torch.Generator) -> tuple[Table, Panels]:
    """Remove noise from a gray image `[1, height, width]` with all shipped denoisers, the best last."""
    noisy = clean + NOISE * torch.randn(clean.shape, generator=generator)
    found = [(psnr(noisy, clean), "noisy", noisy, "")]
    for name in shipped_models():
        started = time.perf_counter()
        pixels = ImageDenoiser(name)(noisy, NOISE)
        found.append((psnr(pixels, clean), name, pixels, f"{time.perf_counter() - started:.2f}"))
    found.sort(key=lambda each: each[0])
    table = Table("denoiser", box=SIMPLE, title="A photo with noise of 25/255", title_justify="left")
    table.add_column("PSNR, dB", justify="right")
    table.add_column("seconds", justify="right")
    for ratio, name, _, seconds in found:
        table.add_row(name, f"{ratio:.2f}", seconds)
    panels = [(pixels, f"{name}, {ratio:.2f} dB") for ratio, name, pixels, _ in found]
    return table, [*panels, (clean, "without noise")]


def draw(path: Path, image: Tensor, smooth: Tensor, learned: Panels) -> None:
    """Draw the edge-aware filter above the learned filter."""
    figure = new_figure(12, 8.9)
    grid = figure.add_gridspec(2, 1, height_ratios=(1.47, 1))
    above, below = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    above.suptitle("Edge-aware filter: one Gaussian over position and color", fontsize=13)
    detail = torch.cat([each[:, 20:200, 130:310] for each in (image, smooth)], dim=1)
    filtered = (smooth, f"filtered: {SMOOTH[0]:g} pixels, {SMOOTH[1]:g} in color")
    panels = [(image, "photo"), filtered, (detail, "detail, before and after")]
    for axes, panel in zip(above.subplots(1, 3, width_ratios=(2, 2, 1)), panels, strict=True):
        show(axes, *panel)
    below.suptitle("Learned filter: trained on other photos to remove noise", fontsize=13)
    for axes, panel in zip(below.subplots(1, 4), learned, strict=True):
        show(axes, *panel)
    save_figure(figure, path, dpi=110)


def draw_denoisers(path: Path, compared: Panels) -> None:
    """Draw the results of all denoisers."""
    columns = 4
    rows = -(-len(compared) // columns)
    figure = new_figure(3 * columns, 3.2 * rows)
    for number, panel in enumerate(compared):
        show(figure.add_subplot(rows, columns, number + 1), *panel)
    save_figure(figure, path, dpi=110)


def show(axes: Axes, image: Tensor, title: str) -> None:
    """Show an image with a title."""
    axes.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy().squeeze(), cmap="gray", vmin=0, vmax=1)
    axes.set_title(title, fontsize=10)
    axes.set_axis_off()
