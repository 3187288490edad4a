"""The demonstration behind `make demo`: an edge-aware filter, a learned filter, and a shipped network."""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
from matplotlib.axes import Axes
from rich.console import Console
from skimage import data
from torch import Tensor

import permutohedral as ph
from permutohedral.apps.cli.shared import progress_bar
from permutohedral.apps.io.figure import new_figure, save_figure
from permutohedral.apps.jobs.batch import make_folder
from permutohedral.apps.models.denoiser import Denoiser

NOISE = 25 / 255
# bandwidths in pixels and in color of the edge-aware filter, and of the features of the learned one
SMOOTH = (16.0, 0.15)
DENOISE = (2.0, 0.3)
BATCH_SIZE, PATCH = 2, 64

# images with their titles
Panels = list[tuple[Tensor, str]]


def run(folder: Path, steps: int) -> None:
    """Filter, train and denoise; write `demo.png` to `folder`."""
    console = Console(highlight=False)
    make_folder(folder)
    image = load_image("astronaut")
    started = time.perf_counter()
    smooth = ph.bilateral_filter(image, sigma_space=SMOOTH[0], sigma_color=SMOOTH[1])
    _, height, width = image.shape
    console.print(
        f"Filtered a {width} x {height} photo in {time.perf_counter() - started:.1f} s "
        f"(backend {ph.backends.explain(image).name}): a Gaussian of {SMOOTH[0]:g} pixels and "
        f"{SMOOTH[1]:g} in color, in 5 dimensions."
    )
    layer = ph.nn.PermutohedralConv(3, 3, dimension=5, init="gaussian", normalization="homogeneous", learn_sigma=True)
    generator = torch.Generator().manual_seed(0)
    clean = image[:, :256, 96:352]
    noisy = clean + NOISE * torch.randn(clean.shape, generator=generator)
    with torch.no_grad():
        untrained = apply(layer, noisy)
    started = time.perf_counter()
    train(layer, [load_image(name) for name in ("chelsea", "coffee", "rocket")], steps, generator)
    with torch.no_grad():
        trained = apply(layer, noisy)
    seconds = time.perf_counter() - started
    denoised = Denoiser.from_pretrained()(noisy, NOISE)
    console.print(
        f"Trained a lattice filter of {layer.weight.shape[0]} taps, 3 to 3 channels, on three other photos: "
        f"{steps} steps in {seconds:.1f} s."
    )
    learned = [
        (noisy, f"noisy, {psnr(noisy, clean):.2f} dB"),
        (untrained, f"before training (Gaussian), {psnr(untrained, clean):.2f} dB"),
        (trained, f"after training, {psnr(trained, clean):.2f} dB"),
        (denoised, f"shipped network, {psnr(denoised, clean):.2f} dB"),
        (clean, "without noise"),
    ]
    console.print(f"On a photo outside of the training set: {'; '.join(title for _, title in learned[:-1])}.")
    draw(folder / "demo.png", image, smooth, learned)
    console.print(f"Wrote {folder / 'demo.png'}")


def load_image(name: str) -> Tensor:
    """Return a color image of scikit-image, `[3, height, width]` in 0 to 1."""
    return torch.from_numpy(getattr(data, name)()).permute(2, 0, 1).float() / 255


def psnr(image: Tensor, clean: Tensor) -> float:
    """Return the peak signal-to-noise ratio in dB; white is 1."""
    return -10 * math.log10(float((image.detach() - clean).double().square().mean()))


def apply(layer: ph.nn.PermutohedralConv, images: Tensor) -> Tensor:
    """Apply the layer to `[..., 3, height, width]`, over the positions and colors of the pixels."""
    features = ph.features.bilateral(images, sigma_space=DENOISE[0], sigma_color=DENOISE[1])
    output: Tensor = layer(images.flatten(-2).mT, features)
    return output.mT.reshape(images.shape)


def train(layer: ph.nn.PermutohedralConv, images: list[Tensor], steps: int, generator: torch.Generator) -> None:
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


def draw(path: Path, image: Tensor, smooth: Tensor, learned: Panels) -> None:
    """Draw the edge-aware filter above the learned filter."""
    figure = new_figure(12, 8.4)
    grid = figure.add_gridspec(2, 1, height_ratios=(1.7, 1))
    above, below = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    above.suptitle("Edge-aware filter: one Gaussian over position and color", fontsize=13)
    detail = torch.cat([each[:, 20:200, 130:310] for each in (image, smooth)], dim=1)
    filtered = (smooth, f"filtered: {SMOOTH[0]:g} pixels, {SMOOTH[1]:g} in color")
    panels = [(image, "photo"), filtered, (detail, "detail, before and after")]
    for axes, panel in zip(above.subplots(1, 3, width_ratios=(2, 2, 1)), panels, strict=True):
        show(axes, *panel)
    below.suptitle("Learned filter, and a shipped network: trained on other photos to remove noise", fontsize=13)
    for axes, panel in zip(below.subplots(1, len(learned)), learned, strict=True):
        show(axes, *panel)
    save_figure(figure, path, dpi=110)


def show(axes: Axes, image: Tensor, title: str) -> None:
    """Show an image with a title."""
    axes.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy().squeeze(), cmap="gray", vmin=0, vmax=1)
    axes.set_title(title, fontsize=10)
    axes.set_axis_off()
