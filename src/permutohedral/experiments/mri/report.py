"""The reconstruction tables: PSNR, SSIM and time as tables, curves and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from permutohedral.data.measurements import field_of_view
from permutohedral.data.trajectories import TRAJECTORIES, Trajectory, make_trajectory
from permutohedral.experiments.experiment import Experiment
from permutohedral.experiments.mri.run import SHOWN_FACTOR, MriConfig, run
from permutohedral.experiments.result import Result, average_seeds, write_text
from permutohedral.experiments.training import RunOptions
from permutohedral.reporting.figure import new_figure, save_figure
from permutohedral.reporting.markdown import markdown_table
from permutohedral.reporting.provenance import name_machine
from permutohedral.reporting.quality import mean_psnr

SOURCES = {"phantom": "Shepp-Logan", "photographs": "photographs"}
DOMAINS = {"image": "Samples of the image", "spectrum": "Samples of the spectrum"}

# what is sampled first, then the spectrum; fixed methods before learned ones
ROWS = (
    *("image_nearest", "image_linear", "image_kaiser_bessel", "image_lattices", "image_network"),
    *("image_permutohedral", "spectrum_nearest", "spectrum_linear", "spectrum_kaiser_bessel"),
    *("spectrum_conjugate_gradients", "spectrum_gridding", "spectrum_network", "spectrum_permutohedral"),
)


def mri_table(results: Sequence[Result], factor: float) -> str:
    """A Markdown table of one domain and factor: PSNR in dB / SSIM for every source and trajectory, and time.

    >>> scores = {"phantom, radial, 4x": {"psnr": 30.0, "ssim": 0.9}}
    >>> metrics = {"scores": scores, "weights": 7, "milliseconds": {"radial, 4x": 2.5}}
    >>> config = {"title": "ours", "domain": "image", "factors": [4.0]}
    >>> print(mri_table([Result("mri", "ours", config, metrics, 0)], factor=4.0))
    | 4x | Weights | Shepp-Logan, radial | ms |
    | --- | ---: | ---: | ---: |
    | ours | 7 | 30.00 / 0.900 | 2.5 |
    """
    columns = [column for column in _columns(results) if column[2] == factor]
    titles = [f"{SOURCES[source]}, {kind}" for source, kind, _ in columns]
    lines = []
    for result in results:
        scores = [result.metrics["scores"][_key(*column)] for column in columns]
        times = [value for name, value in result.metrics["milliseconds"].items() if name.endswith(f" {factor:g}x")]
        weights = f"{result.metrics['weights']:,}" if result.metrics["weights"] else ""
        cells = [result.config["title"], weights, *(f"{score['psnr']:.2f} / {score['ssim']:.3f}" for score in scores)]
        lines.append([*cells, f"{np.mean(times):.1f}"])
    return markdown_table([f"{factor:g}x", "Weights", *titles, "ms"], lines)


def print_tables(results: Sequence[Result]) -> str:
    """The tables of all domains, each below its title."""
    parts = by_domain(results).items()
    return "\n\n".join(f"{DOMAINS[domain]}: PSNR in dB / SSIM\n\n{mri_tables(rows)}" for domain, rows in parts) + "\n"


def mri_tables(results: Sequence[Result]) -> str:
    """The tables of one domain, one for each factor; first that of which the pictures are drawn."""
    factors = sorted({column[2] for column in _columns(results)}, key=lambda factor: (factor != SHOWN_FACTOR, factor))
    return "\n\n".join(mri_table(results, factor) for factor in factors)


def by_domain(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The results of each domain that has any; a result for each row, the mean over its seeds."""
    means = average_seeds(results)
    parts = {domain: [result for result in means if result.config["domain"] == domain] for domain in DOMAINS}
    return {domain: part for domain, part in parts.items() if part}


def _key(source: str, kind: str, factor: float) -> str:
    return f"{source}, {kind}, {factor:g}x"


def _columns(results: Sequence[Result]) -> list[tuple[str, str, float]]:
    """Sources, trajectories and factors that all results have."""
    factors = results[0].config["factors"]
    every = [(source, kind, factor) for source in SOURCES for kind in TRAJECTORIES for factor in factors]
    return [column for column in every if all(_key(*column) in result.metrics["scores"] for result in results)]


def write_mri_report(results: Sequence[Result], options: RunOptions, command: str) -> list[Path]:
    """Write a page for each domain, `image.md` and `spectrum.md`, and its figures into the output folder.

    Args:
        results: of at least one row.
        options: of the run that made them, and left examples in the output folder.
        command: that makes them again.
    """
    paths, folder = [], options.output
    for domain, rows in by_domain(results).items():
        draw_curves(rows, folder / f"{domain}_psnr.png")
        figures = [f"![PSNR over the factor]({domain}_psnr.png)"]
        if draw_examples(rows, folder, folder / f"{domain}_pictures.png"):
            figures.append(f"![Reconstructions at {SHOWN_FACTOR:g}x]({domain}_pictures.png)")
        paths.append(folder / f"{domain}.md")
        write_text(paths[-1], _page(rows, command, figures))
    return paths


def _page(results: Sequence[Result], command: str, figures: Sequence[str]) -> str:
    config, environment = results[0].config, results[0].environment
    machine = name_machine(environment["hardware"])
    lines = [
        f"# {DOMAINS[config['domain']]}",
        "",
        f"Mean PSNR in dB / SSIM of images of {config['size']} x {config['size']} pixels: the phantom of Shepp and "
        f"Logan, and the centers of {config['test_images'] or 200} test photographs of BSDS500; neither is in "
        "the training. A factor is pixels over samples; milliseconds are the processor's for one image. Learned rows "
        "have one set of weights for both sources, both trajectories and all factors.",
        "",
        mri_tables(results),
        "",
        *figures,
        "",
        f"Made with `{command}` on {machine}, {environment['threads']} thread(s), shared with other work. All figures "
        "with their settings and commits are in `runs/`.",
        "",
    ]
    return "\n".join(lines)


def draw_curves(results: Sequence[Result], path: Path) -> None:
    """Draw PSNR over the factor of undersampling: a panel for each source and trajectory."""
    panels = list(dict.fromkeys(column[:2] for column in _columns(results)))
    figure = new_figure(3.1 * len(panels) + 1.6, 3.6)
    axes = figure.subplots(1, len(panels), squeeze=False)
    for axis, (source, kind) in zip(axes[0], panels, strict=True):
        factors = [column[2] for column in _columns(results) if column[:2] == (source, kind)]
        for number, result in enumerate(results):
            scores = [result.metrics["scores"][_key(source, kind, factor)]["psnr"] for factor in factors]
            learned = result.config["training"] is not None
            style = {"linestyle": "-" if learned else "--", "marker": "o" if learned else "."}
            axis.plot(factors, scores, color=f"C{number}", ms=4, label=result.config["title"], **style)
        axis.set_xscale("log", base=2)
        axis.set_xticks(factors, [f"{factor:g}x" for factor in factors])
        axis.set(title=f"{SOURCES[source]}, {kind}", xlabel="pixels over samples")
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("PSNR, dB")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    save_figure(figure, path)


def draw_examples(results: Sequence[Result], folder: Path, path: Path) -> bool:
    """Draw what every row made of one image of each source: a line for each source and trajectory.

    Returns:
        Whether there is anything to draw.
    """
    examples = {result.config["title"]: _read_examples(folder, result.name) for result in results}
    examples = {title: images for title, images in examples.items() if images}
    lines = [(source, kind) for source in SOURCES for kind in TRAJECTORIES]
    lines = [line for line in lines if all(", ".join(line) in images for images in examples.values())]
    if not examples or not lines:
        return False
    config = results[0].config
    size, domain = config["size"], config["domain"]
    inside = field_of_view(size).numpy() > 0 if domain == "spectrum" else np.ones((size, size), dtype=bool)
    columns = 2 + len(examples)
    figure = new_figure(1.45 * columns, 1.8 * len(lines))
    axes = figure.subplots(len(lines), columns, squeeze=False)
    for number, (row, (source, kind)) in enumerate(zip(axes, lines, strict=True)):
        truth = next(iter(examples.values()))[f"{source}, truth"]
        _draw_samples(row[0], make_trajectory(kind, domain, size, SHOWN_FACTOR), size)
        row[0].set_ylabel(f"{SOURCES[source]}, {kind}", fontsize=7)
        _show(row[1], truth, "")
        for axis, images in zip(row[2:], examples.values(), strict=True):
            made = images[f"{source}, {kind}"]
            _show(axis, made, f"{mean_psnr(torch.from_numpy((made - truth)[inside]).square().mean()):.2f} dB")
        if number == 0:
            for axis, title in zip(row, ["samples", "truth", *examples], strict=True):
                axis.set_title(title.replace(" + ", "\n+ "), fontsize=7)
    save_figure(figure, path)
    return True


def _read_examples(folder: Path, name: str) -> dict[str, Any]:
    path = folder / "examples" / f"{name}.npz"
    if not path.is_file():
        return {}
    with np.load(path) as content:
        # stored with half the precision
        return {name: image.astype(np.float32) for name, image in content.items()}


def _draw_samples(axis: Any, trajectory: Trajectory, size: int) -> None:
    y, x = trajectory.positions.T
    axis.scatter(x, y, s=1, c="black", linewidths=0)
    axis.set(xlim=(-size / 2, size / 2), ylim=(size / 2, -size / 2), aspect="equal", xticks=[], yticks=[])


def _show(axis: Any, image: Any, caption: str) -> None:
    axis.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axis.set_xlabel(caption, fontsize=7)
    axis.set(xticks=[], yticks=[])


EXPERIMENTS = {
    "mri": Experiment(
        name="mri",
        config=MriConfig,
        rows=ROWS,
        run=run,
        headline=lambda result: "done",
        tables=print_tables,
        write_report=write_mri_report,
        seeds=1,
        report_on="folder",
    )
}
