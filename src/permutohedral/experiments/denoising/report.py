"""The denoising table: PSNR beside the paper's, crops and filters as figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from permutohedral.data.bsds500 import add_noise
from permutohedral.experiments.config import parse_config
from permutohedral.experiments.denoising.run import DenoisingConfig, load, load_weights, run
from permutohedral.experiments.denoising.scales import choose_scales
from permutohedral.experiments.experiment import Experiment
from permutohedral.experiments.result import Result, average_seeds, write_text
from permutohedral.experiments.training import RunOptions
from permutohedral.figures import draw_filter
from permutohedral.figures.canvas import DPI, MARGIN
from permutohedral.models.denoising import CombinedDenoiser, PermutohedralDenoiser
from permutohedral.reporting.figure import new_figure, save_figure
from permutohedral.reporting.markdown import markdown_table
from permutohedral.reporting.provenance import short_commit
from permutohedral.reporting.quality import psnr

# the rows of the paper's table, in its order, and those that run when they are named
PAPER_ROWS = ("noisy", "cnn", "pcnn_gauss", "pcnn_trained", "pcnn_cnn_trained")
OUR_ROWS = ("learned_scale", "bm3d", "deep_small_spatial", "deep_small", "deep_large_spatial", "deep_large")

# more crops than these are drawn in several rows
_CROPS_PER_ROW = 6


def denoising_table(results: Sequence[Result]) -> str:
    """A Markdown table: mean PSNR of each row over images and seeds, the paper's beside ours.

    >>> config = {"title": "CNN", "paper": 26.27, "training": None}
    >>> print(denoising_table([Result("denoising", "cnn", config, {"weights": 25, "psnr": 26.28}, 0)]))
    | Method | Weights | Paper, dB | Ours, dB | Difference |
    | --- | ---: | ---: | ---: | ---: |
    | CNN | 25 | 26.27 | 26.28 | +0.01 |
    """
    rows = []
    for result in average_seeds(results):
        paper, ours = result.config["paper"], result.metrics["psnr"]
        # rounded as shown, so that the columns add up
        beside = ("", "") if paper is None else (f"{paper:.2f}", f"{round(ours, 2) - paper:+.2f}")
        weights = f"{result.metrics['weights']:,}" if result.metrics["weights"] else ""
        rows.append([result.config["title"], weights, beside[0], f"{ours:.2f}", beside[1]])
    return markdown_table(["Method", "Weights", "Paper, dB", "Ours, dB", "Difference"], rows)


def write_denoising_report(results: Sequence[Result], options: RunOptions, command: str) -> list[Path]:
    """Write `report.md` and its figures into the output folder, from results and the weights beside them.

    Args:
        results: of at least one row. What is drawn is of the first seed.
        options: of the run that made them.
        command: that makes them again.
    """
    means = average_seeds(results)
    configs = [parse_config(DenoisingConfig, result.config) for result in means]
    models = {config.title: load_weights(config, options.output) for config in configs}
    draw_psnr(means, options.output / "psnr.png")
    _draw_denoised(configs, models, options)
    filters = {title: _lattice_filter(model) for title, model in models.items()}
    drawn = {title: weight for title, weight in filters.items() if weight is not None and weight.numel() == 65}
    if drawn:
        figure = draw_filter(drawn, third="gray value")
        save_figure(figure, options.output / "filters.png", DPI, MARGIN)
    path = options.output / "report.md"
    write_text(path, denoising_report(results, command, draws_filters=bool(drawn)))
    return [path]


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
            f"{config['noise']:g}/255, not clipped{_seeds_words(results)}.",
            "",
            denoising_table(results),
            "",
            *_view_lines(average_seeds(results)),
            *_least_squares_lines(average_seeds(results)),
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
    titles = ["Method", "Training steps", "Training, s", "Evaluation, s", "Machine", "Commit"]
    rows = []
    for result in results:
        steps = (result.config["training"] or {}).get("steps")
        cells = [
            result.config["title"] + (f", seed {result.seed}" if result.seed else ""),
            "" if steps is None else f"{result.metrics.get('steps', steps):,}",
            *(f"{result.seconds[part]:.0f}" if part in result.seconds else "" for part in ("training", "evaluation")),
            _machine(result.environment),
            short_commit(result.environment["commit"]),
        ]
        rows.append(cells)
    return markdown_table(titles, rows, text_columns=(0, 4, 5))


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
    figure = new_figure(9.0, 1.0 + 0.45 * len(results))
    axis, heights = figure.subplots(), np.random.default_rng(0)
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
    figure = new_figure(2.6 * columns, 3.1 * rows)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(crops) :]:
        axis.set_axis_off()
    for axis, (title, pixels) in zip(axes.flat, crops.items(), strict=False):
        axis.imshow(pixels.detach().cpu().clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(captions.get(title, ""), fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    save_figure(figure, path)


def _seeds_words(results: Sequence[Result]) -> str:
    seeds = len({result.seed for result in results})
    return f"; mean over {seeds} seeds" if seeds > 1 else ""


EXPERIMENTS = {
    "denoising": Experiment(
        name="denoising",
        config=DenoisingConfig,
        rows=PAPER_ROWS,
        run=run,
        headline=lambda result: f"{result.metrics['psnr']:.2f} dB",
        tables=denoising_table,
        write_report=write_denoising_report,
        more_rows=OUR_ROWS,
        seeds=1,
        flat=True,
        flags={"cross_validate": choose_scales},
    )
}
