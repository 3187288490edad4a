"""Results as tables and figures, the paper's beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from permutohedral.data.bsds500 import add_noise
from permutohedral.experiments.config import parse_config
from permutohedral.experiments.denoising import DenoisingConfig, load, load_weights, psnr
from permutohedral.experiments.result import Result, write_text
from permutohedral.experiments.training import RunOptions
from permutohedral.figures import draw_filter
from permutohedral.figures.canvas import save
from permutohedral.files import replacing
from permutohedral.models.denoising import CombinedDenoiser, PermutohedralDenoiser

# more crops than these are drawn in several rows
_CROPS_PER_ROW = 6


def denoising_table(results: Sequence[Result]) -> str:
    """A Markdown table: mean PSNR of each row, the paper's beside ours.

    >>> config = {"title": "CNN", "paper": 26.27, "training": None}
    >>> print(denoising_table([Result("denoising", "cnn", config, {"weights": 25, "psnr": 26.28}, 0)]))
    | Method | Weights | Paper, dB | Ours, dB | Difference |
    | --- | ---: | ---: | ---: | ---: |
    | CNN | 25 | 26.27 | 26.28 | +0.01 |
    """
    lines = ["| Method | Weights | Paper, dB | Ours, dB | Difference |", "| --- | ---: | ---: | ---: | ---: |"]
    for result in results:
        paper, ours = result.config["paper"], result.metrics["psnr"]
        # rounded as shown, so that the columns add up
        beside = ("", "") if paper is None else (f"{paper:.2f}", f"{round(ours, 2) - paper:+.2f}")
        weights = f"{result.metrics['weights']:,}" if result.metrics["weights"] else ""
        lines.append(f"| {result.config['title']} | {weights} | {beside[0]} | {ours:.2f} | {beside[1]} |")
    return "\n".join(lines)


def write_denoising_report(results: Sequence[Result], options: RunOptions, command: str) -> Path:
    """Write `report.md` and its figures into the output folder, from results and the weights beside them.

    Args:
        results: of at least one row.
        options: of the run that made them.
        command: that makes them again.
    """
    configs = [parse_config(DenoisingConfig, result.config) for result in results]
    models = {config.title: load_weights(config, options.output) for config in configs}
    draw_psnr(results, options.output / "psnr.png")
    _draw_denoised(configs, models, options)
    filters = {title: _lattice_filter(model) for title, model in models.items()}
    drawn = {title: weight for title, weight in filters.items() if weight is not None and weight.numel() == 65}
    if drawn:
        save(draw_filter(drawn, third="gray value"), [options.output / "filters.png"])
    path = options.output / "report.md"
    write_text(path, denoising_report(results, command, draws_filters=bool(drawn)))
    return path


@torch.no_grad()
def _draw_denoised(configs: Sequence[DenoisingConfig], models: Mapping[str, nn.Module], options: RunOptions) -> None:
    """The central crop of the first test image: what every row makes of it."""
    config = configs[0]
    image = load(config, "test", 1, options)[0]
    noisy = add_noise(image, config.noise / 255, config.seed)
    whole = {title: model(noisy[None, None])[0, 0] for title, model in models.items()}
    captions = {title: f"{psnr(output, image.pixels):.2f} dB" for title, output in whole.items()}
    crops = {title: _middle(output) for title, output in (whole | {"Clean": image.pixels}).items()}
    draw_crops(crops, captions, options.output / "crops.png")


def _middle(pixels: Tensor, size: int = 120) -> Tensor:
    top, left = (max(0, (extent - size) // 2) for extent in pixels.shape)
    return pixels[top : top + size, left : left + size]


def _lattice_filter(model: nn.Module) -> Tensor | None:
    """The trained filter on the lattice `[filter_size]`, None if the model has none."""
    on_lattice = model.permutohedral if isinstance(model, CombinedDenoiser) else model
    return on_lattice.weights().detach() if isinstance(on_lattice, PermutohedralDenoiser) else None


def denoising_report(results: Sequence[Result], command: str, draws_filters: bool = False) -> str:
    """The Markdown page of some rows: table, how they were made, where, how long it took."""
    config = results[0].config
    images = len(results[0].metrics["psnr_per_image"])
    square = "" if config["center"] is None else f", the central {config['center']} x {config['center']} pixels of each"
    return "\n".join(
        [
            "# Denoising",
            "",
            f"Mean PSNR over {images} test images of BSDS500{square}; noise of standard deviation "
            f"{config['noise']:g}/255, not clipped.",
            "",
            denoising_table(results),
            "",
            *_view_lines(results),
            *_least_squares_lines(results),
            f"Written by `{command}` from these rows:",
            "",
            provenance_table(results),
            "",
            "![PSNR of every image](psnr.png)",
            "![Crops](crops.png)",
            *(["![Filters on the lattice](filters.png)"] if draws_filters else []),
            "",
        ]
    )


def provenance_table(results: Sequence[Result]) -> str:
    """A Markdown table: where each row was made, from which commit, in which time."""
    lines = [
        "| Method | Training steps | Training, s | Evaluation, s | Machine | Commit |",
        "| --- | ---: | ---: | ---: | --- | --- |",
    ]
    for result in results:
        steps = (result.config["training"] or {}).get("steps")
        cells = [
            result.config["title"],
            "" if steps is None else f"{result.metrics.get('steps', steps):,}",
            *(f"{result.seconds[part]:.0f}" if part in result.seconds else "" for part in ("training", "evaluation")),
            _machine(result.environment),
            _commit(result.environment["commit"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _commit(commit: str | None) -> str:
    """A commit in short, with "+" if files differed from it."""
    return "" if commit is None else f"`{commit[:9]}{'+' * commit.endswith('+')}`"


def _machine(environment: Mapping[str, Any]) -> str:
    hardware = environment["hardware"]
    beside = f", beside {environment['beside']}" if "beside" in environment else ""
    if "gpu" in hardware:
        return f"{hardware['gpu']}{beside}"
    threads = environment["threads"]
    return f"{hardware['processor']}, {threads} thread{'s' * (threads != 1)}, backend {environment['backend']}{beside}"


def _view_lines(results: Sequence[Result]) -> list[str]:
    """What the mean over flipped and turned images gives, where it was evaluated."""
    name = "psnr_of_eight_views"
    found = [f"{r.config['title']} {r.metrics[name]:.2f} dB" for r in results if name in r.metrics]
    return [f"With the mean over the eight ways to flip and turn an image: {', '.join(found)}.", ""] if found else []


def _least_squares_lines(results: Sequence[Result]) -> list[str]:
    """What training reached beside the closed form, where a model is linear in its weights."""
    lines = [
        f"- {result.config['title']}: {result.metrics['train_psnr']:.3f} dB on the training images; the least-squares "
        f"solution in closed form has {result.metrics['train_psnr_of_least_squares']:.3f} dB"
        for result in results
        if "train_psnr" in result.metrics
    ]
    return [*lines, ""] if lines else []


def draw_psnr(results: Sequence[Result], path: Path) -> None:
    """Draw the PSNR of every image as a dot, a row of them for each method, and their mean."""
    figure, axes = new_figure(1, 1, width=9.0, height=1.0 + 0.45 * len(results))
    axis, heights = axes[0, 0], np.random.default_rng(0)
    for place, result in enumerate(results):
        scores = np.array(list(result.metrics["psnr_per_image"].values()))
        axis.plot(scores, place + heights.uniform(-0.28, 0.28, len(scores)), ".", markersize=3, alpha=0.6)
        axis.plot([scores.mean()] * 2, [place - 0.4, place + 0.4], color="black", linewidth=1.5)
        where = axis.get_yaxis_transform()
        axis.text(1.01, place, f"{scores.mean():.2f} dB", transform=where, verticalalignment="center", fontsize=9)
    axis.set_yticks(range(len(results)), [result.config["title"] for result in results], fontsize=9)
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)
    axis.set_xlabel("PSNR of every test image, and the mean, in dB")
    save_figure(figure, path)


def draw_crops(crops: Mapping[str, Tensor], captions: Mapping[str, str], path: Path) -> None:
    """Draw gray crops `[height, width]` side by side, each with its title and a caption below it."""
    rows = -(-len(crops) // _CROPS_PER_ROW)
    columns = -(-len(crops) // rows)
    figure, axes = new_figure(rows, columns, width=2.6 * columns, height=3.1 * rows)
    for axis in axes.flat[len(crops) :]:
        axis.set_axis_off()
    for axis, (title, pixels) in zip(axes.flat, crops.items(), strict=False):
        axis.imshow(pixels.detach().cpu().clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(captions.get(title, ""), fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    save_figure(figure, path)


def new_figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, np.ndarray[Any, Any]]:
    """A figure of `rows` by `columns` axes, `width` by `height` inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=120)
    return figure, figure.subplots(rows, columns, squeeze=False)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure: whole, or not at all."""
    with replacing(path) as partial:
        figure.savefig(partial)
