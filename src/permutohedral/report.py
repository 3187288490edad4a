"""Results as tables and figures, the paper's beside ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from permutohedral.data.bsds500 import add_noise
from permutohedral.experiments.config import parse_config
from permutohedral.experiments.denoising import DenoisingConfig, load, load_weights, psnr
from permutohedral.experiments.mnist import COLUMNS
from permutohedral.experiments.result import Result, write_text
from permutohedral.experiments.training import RunOptions
from permutohedral.files import replacing
from permutohedral.models.denoising import CombinedDenoiser, PermutohedralDenoiser
from permutohedral.neighborhood import Neighborhood
from permutohedral.ops.reference import elevation_matrix


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
        draw_filters(drawn, Neighborhood(3, 2), options.output / "filters.png")
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
    """The Markdown page of a run: table, how it was made, where, how long it took."""
    environment, config = results[0].environment, results[0].config
    seconds = sum(sum(result.seconds.values()) for result in results)
    images = len(results[0].metrics["psnr_per_image"])
    hardware = environment["hardware"]
    machine = hardware.get("gpu") or f"{hardware['processor']}, {hardware['cores']} cores"
    threads = f"{environment['threads']} thread{'s' * (environment['threads'] != 1)}"
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
            *_least_squares_lines(results),
            f"Made with `{command}` at commit `{environment['commit']}` on {machine} ({threads}, "
            f"backend {environment['backend']}) in {seconds:.0f} s.",
            "",
            "![PSNR of every image](psnr.png)",
            "![Crops](crops.png)",
            *(["![Filters on the lattice](filters.png)"] if draws_filters else []),
            "",
        ]
    )


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
    """Draw the PSNR of every image and row, sorted by the first row that trains or filters."""
    figure, axes = _figure(1, 1, width=8.0, height=4.5)
    scores = {result.config["title"]: result.metrics["psnr_per_image"] for result in results}
    reference = list(scores.values())[min(1, len(scores) - 1)]
    order = sorted(reference, key=lambda name: float(reference[name]))
    for title, by_name in scores.items():
        axes[0, 0].plot([by_name[name] for name in order], label=title, linewidth=1)
    axes[0, 0].set_xlabel("test images, sorted")
    axes[0, 0].set_ylabel("PSNR, dB")
    axes[0, 0].legend(frameon=False)
    _save(figure, path)


def draw_crops(crops: Mapping[str, Tensor], captions: Mapping[str, str], path: Path) -> None:
    """Draw gray crops `[height, width]` side by side, each with its title and a caption below it."""
    figure, axes = _figure(1, len(crops), width=2.6 * len(crops), height=3.1)
    for axis, (title, pixels) in zip(axes[0], crops.items(), strict=True):
        axis.imshow(pixels.detach().cpu().clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(captions.get(title, ""), fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    _save(figure, path)


def tap_positions(neighborhood: Neighborhood) -> Tensor:
    """Where the taps of a filter lie, in units of the features: float64 `[filter_size, d]`.

    >>> tap_positions(Neighborhood(2, 1)).norm(dim=1).round(decimals=6).tolist()
    [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    taps = neighborhood.taps
    offsets = (neighborhood.dimension + 1) * taps - taps.sum(dim=1, keepdim=True)
    elevation = elevation_matrix(neighborhood.dimension, torch.float64, torch.device("cpu"))
    # the columns of the elevation are orthogonal and of one length
    return offsets.double() @ elevation / elevation[:, 0].square().sum()


def draw_filters(filters: Mapping[str, Tensor], neighborhood: Neighborhood, path: Path) -> None:
    """Draw filters over (y, x, gray) on the lattice: a row for each, a panel for each layer of equal gray offset.

    Args:
        filters: `[filter_size]` by title.
        neighborhood: of dimension 3.
        path: of the picture.
    """
    positions = tap_positions(neighborhood)
    layers = sorted(set(positions[:, 2].round(decimals=4).tolist()))
    figure, axes = _figure(len(filters), len(layers), width=1.1 * len(layers), height=1.5 * len(filters) + 0.4)
    limit = float(positions[:, :2].abs().max()) + 0.6
    for row, (title, weight) in zip(axes, filters.items(), strict=True):
        bound = float(weight.abs().max())
        for axis, layer in zip(row, layers, strict=True):
            inside = (positions[:, 2] - layer).abs() < 1e-3
            y, x = positions[inside, 0].numpy(), positions[inside, 1].numpy()
            color = weight.detach().cpu()[inside].numpy()
            axis.scatter(
                x, y, c=color, s=60, marker="h", cmap="RdBu", vmin=-bound, vmax=bound, edgecolors="gray", lw=0.4
            )
            axis.set(xlim=(-limit, limit), ylim=(limit, -limit), aspect="equal", xticks=[], yticks=[])
        row[0].set_ylabel(title, fontsize=8)
    for axis, layer in zip(axes[-1], layers, strict=True):
        axis.set_xlabel(f"{layer:+.2f}", fontsize=8)
    figure.supxlabel("offset in gray value, in standard deviations", fontsize=8)
    _save(figure, path)


def _figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, np.ndarray[Any, Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=120)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _save(figure: Any, path: Path) -> None:
    """Write a figure: whole, or not at all."""
    with replacing(path) as partial:
        figure.savefig(partial)


def mnist_summary(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row for each name: mean accuracy of each column over the seeds, and their sample standard deviation."""
    rows = []
    for name in dict.fromkeys(result.name for result in results):
        runs = sorted((result for result in results if result.name == name), key=lambda result: result.seed)
        # a result that was read has its columns in another order
        columns = [column for column in COLUMNS if column in runs[0].metrics["accuracy"]]
        accuracy = np.array([[run.metrics["accuracy"][column] for column in columns] for run in runs])
        spread = accuracy.std(axis=0, ddof=1) if len(runs) > 1 else np.full(len(columns), np.nan)
        paper = runs[0].config["paper"]
        rows.append(
            {
                "name": name,
                "title": runs[0].config["title"],
                "seeds": [run.seed for run in runs],
                "paper": None if paper is None else dict(zip(columns, paper, strict=True)),
                "mean": dict(zip(columns, accuracy.mean(axis=0).round(6).tolist(), strict=True)),
                "spread": dict(zip(columns, spread.round(6).tolist(), strict=True)) if len(runs) > 1 else None,
                "training_seconds": round(float(np.mean([run.seconds["training"] for run in runs])), 1),
            }
        )
    return rows


def mnist_table(results: Sequence[Result]) -> str:
    """A Markdown table: mean accuracy over the seeds ± their spread, the paper's in parentheses.

    >>> config = {"title": "PCNN", "paper": [0.9903]}
    >>> metrics = [{"accuracy": {"original": share}} for share in (0.99, 0.992)]
    >>> print(mnist_table([Result("mnist", "pcnn", config, m, s, {"training": 1.0}) for s, m in enumerate(metrics)]))
    | Network | Seeds | original |
    | --- | ---: | ---: |
    | PCNN | 2 | 0.9910 ± 0.0014 (0.9903) |
    """
    rows = mnist_summary(results)
    columns = list(rows[0]["mean"])
    lines = ["| " + " | ".join(["Network", "Seeds", *columns]) + " |", "| --- |" + " ---: |" * (1 + len(columns))]
    for row in rows:
        cells = [row["title"], str(len(row["seeds"]))]
        for column in columns:
            spread = "" if row["spread"] is None else f" ± {row['spread'][column]:.4f}"
            paper = "" if row["paper"] is None else f" ({row['paper'][column]:.4f})"
            cells.append(f"{row['mean'][column]:.4f}{spread}{paper}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_mnist_report(results: Sequence[Result], folder: Path, command: str) -> Path:
    """Write `report.md`, `mnist.json` (summary and all results) and `accuracy.png` into `folder`.

    Args:
        results: of at least one row and seed.
        folder: is made if there is none.
        command: that makes them again.
    """
    environment = results[0].environment
    hardware = environment["hardware"]
    machine = hardware.get("gpu") or f"{hardware['processor']}, {hardware['cores']} cores"
    content = {"summary": mnist_summary(results), "results": [asdict(result) for result in results]}
    write_text(folder / "mnist.json", json.dumps(content, indent=1, sort_keys=True) + "\n")
    draw_accuracy(results, folder / "accuracy.png")
    test_images = results[0].config["test_images"] or 10_000
    lines = [
        "# MNIST from scattered samples",
        "",
        f"Share of {test_images:,} test digits recognized at their pixels (original) or at random positions, as many "
        "as the given share of the pixels: mean over the seeds ± sample standard deviation (the paper's).",
        "",
        mnist_table(results),
        "",
        f"Made with `{command}` at commit `{environment['commit']}` on {machine} (backend {environment['backend']}); "
        "the time of each training is in `mnist.json`.",
        "",
        "![Accuracy over the share of samples](accuracy.png)",
        "",
    ]
    path = folder / "report.md"
    write_text(path, "\n".join(lines))
    return path


def draw_accuracy(results: Sequence[Result], path: Path) -> None:
    """Draw the accuracy of every row over the share of samples: ours as lines, the paper's dashed."""
    figure, axes = _figure(1, 2, width=10.0, height=4.5)
    rows = mnist_summary(results)
    for axis, (title, ours) in zip(axes[0], (("Rows of the paper", False), ("Beyond the paper", True)), strict=True):
        shown = [row for row in rows if (row["paper"] is None) == ours]
        for number, row in enumerate(shown):
            columns = list(row["mean"])
            spread = None if row["spread"] is None else list(row["spread"].values())
            color = f"C{number}"
            axis.errorbar(
                columns, list(row["mean"].values()), yerr=spread, label=row["title"], color=color, marker="o", ms=3
            )
            if row["paper"] is not None:
                axis.plot(columns, list(row["paper"].values()), color=color, linestyle="--", linewidth=1)
        if ours:
            papers = [row["paper"] for row in rows if row["paper"] is not None]
            if papers:
                best = {column: max(paper[column] for paper in papers) for column in papers[0]}
                axis.plot(list(best), list(best.values()), "k--", linewidth=1, label="best of the paper")
        axis.set(title=title, xlabel="test digits known at", ylabel="accuracy")
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=8, loc="lower left")
    _save(figure, path)
