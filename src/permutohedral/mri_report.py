"""The reconstruction tables: PSNR, SSIM and time as tables, curves and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from permutohedral.data.measurements import field_of_view
from permutohedral.data.trajectories import TRAJECTORIES
from permutohedral.experiments.mri import SHOWN_FACTOR
from permutohedral.experiments.result import Result, write_text
from permutohedral.report import new_figure, save_figure

SOURCES = {"phantom": "Shepp-Logan", "photographs": "photographs"}
DOMAINS = {"image": "Samples of the image", "spectrum": "Samples of the spectrum"}


def mri_table(results: Sequence[Result]) -> str:
    """A Markdown table of one domain: PSNR in dB for every source, trajectory and factor, with SSIM and time.

    >>> scores = {"phantom, radial, 4x": {"psnr": 30.0, "ssim": 0.9}}
    >>> metrics = {"scores": scores, "weights": 7, "milliseconds": {"radial, 4x": 2.5}}
    >>> config = {"title": "ours", "domain": "image", "factors": [4.0]}
    >>> print(mri_table([Result("mri", "ours", config, metrics, 0)]))
    | Method | Weights | Shepp-Logan, radial, 4x | SSIM | ms |
    | --- | ---: | ---: | ---: | ---: |
    | ours | 7 | 30.00 | 0.900 | 2.5 |
    """
    columns = _columns(results)
    shown = _shown(results)
    titles = [
        f"{SOURCES[source]}, {kind}, {factor:g}x" if kind == TRAJECTORIES[0] else f"{kind}, {factor:g}x"
        for source, kind, factor in columns
    ]
    heads = ["Method", "Weights", *titles, "SSIM", "ms"]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for result in results:
        scores = result.metrics["scores"]
        similarity = [scores[_key(*column)]["ssim"] for column in columns if column[2] == shown]
        times = [value for name, value in result.metrics["milliseconds"].items() if name.endswith(f" {shown:g}x")]
        weights = f"{result.metrics['weights']:,}" if result.metrics["weights"] else ""
        cells = [result.config["title"], weights, *(f"{scores[_key(*column)]['psnr']:.2f}" for column in columns)]
        cells += [f"{np.mean(similarity):.3f}", f"{np.mean(times):.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _key(source: str, kind: str, factor: float) -> str:
    return f"{source}, {kind}, {factor:g}x"


def _columns(results: Sequence[Result]) -> list[tuple[str, str, float]]:
    """Sources, trajectories and factors that all results have."""
    every = [
        (source, kind, factor) for source in SOURCES for kind in TRAJECTORIES for factor in results[0].config["factors"]
    ]
    return [column for column in every if all(_key(*column) in result.metrics["scores"] for result in results)]


def _shown(results: Sequence[Result]) -> float:
    """The factor that SSIM and time are given of."""
    factors = results[0].config["factors"]
    return SHOWN_FACTOR if SHOWN_FACTOR in factors else float(factors[0])


def write_mri_report(results: Sequence[Result], folder: Path, command: str) -> Path:
    """Write `report.md` and its figures into `folder`, from results and the examples beside them.

    Args:
        results: of at least one row.
        folder: that `reproduce_mri` wrote them to.
        command: that makes them again.
    """
    environment = results[0].environment
    hardware = environment["hardware"]
    machine = hardware.get("gpu") or f"{hardware['processor']}, {hardware['cores']} cores"
    config = results[0].config
    lines = [
        "# Images from samples along trajectories",
        "",
        f"Mean PSNR in dB of images of {config['size']} x {config['size']} pixels: the phantom of Shepp and Logan, and "
        f"the centers of {config['test_images'] or 200} test photographs of BSDS500; neither is in the training. A "
        f"factor is pixels over samples. SSIM and milliseconds for one image are means over the columns at "
        f"{_shown(results):g}x. Learned rows have one set of weights for both sources, both trajectories, all factors.",
        "",
    ]
    for domain, title in DOMAINS.items():
        rows = [result for result in results if result.config["domain"] == domain]
        if not rows:
            continue
        draw_curves(rows, folder / f"{domain}_psnr.png")
        lines += [f"## {title}", "", mri_table(rows), "", f"![PSNR over the factor]({domain}_psnr.png)", ""]
        if draw_examples(rows, folder, folder / f"{domain}_pictures.png"):
            lines += [f"![Reconstructions at {SHOWN_FACTOR:g}x]({domain}_pictures.png)", ""]
    training = sum(result.seconds.get("training", 0.0) for result in results)
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(str(r.environment["commit"]) for r in results))
    lines += [
        f"Made with `{command}` at commit {commits} on {machine}, {environment['threads']} thread(s), shared with "
        f"other work; {training:.0f} s of training. All figures with their settings are in `rows/`.",
        "",
    ]
    path = folder / "report.md"
    write_text(path, "\n".join(lines))
    return path


def draw_curves(results: Sequence[Result], path: Path) -> None:
    """Draw PSNR over the factor of undersampling: a panel for each source and trajectory."""
    panels = list(dict.fromkeys(column[:2] for column in _columns(results)))
    figure, axes = new_figure(1, len(panels), width=3.1 * len(panels) + 1.6, height=3.6)
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
    """Draw what every row made of the first image of each source: a line for each source and trajectory.

    Returns:
        Whether there is anything to draw.
    """
    examples = {result.config["title"]: _read_examples(folder, result.name) for result in results}
    examples = {title: images for title, images in examples.items() if images}
    lines = [(source, kind) for source in SOURCES for kind in TRAJECTORIES]
    lines = [line for line in lines if all(", ".join(line) in images for images in examples.values())]
    if not examples or not lines:
        return False
    in_field = results[0].config["domain"] == "spectrum"
    figure, axes = new_figure(len(lines), 1 + len(examples), width=1.55 * (1 + len(examples)), height=1.85 * len(lines))
    for row, (source, kind) in zip(axes, lines, strict=True):
        truth = next(iter(examples.values()))[f"{source}, truth"]
        inside = field_of_view(len(truth)).numpy() > 0 if in_field else np.ones_like(truth, dtype=bool)
        _show(row[0], truth, "truth" if row is axes[0] else "", "")
        row[0].set_ylabel(f"{SOURCES[source]}, {kind}", fontsize=7)
        for axis, (title, images) in zip(row[1:], examples.items(), strict=True):
            made = images[f"{source}, {kind}"]
            psnr = -10 * np.log10(np.mean((made - truth)[inside] ** 2))
            _show(axis, made, title if row is axes[0] else "", f"{psnr:.2f} dB")
    save_figure(figure, path)
    return True


def _read_examples(folder: Path, name: str) -> dict[str, Any]:
    path = folder / "examples" / f"{name}.npz"
    if not path.is_file():
        return {}
    with np.load(path) as content:
        return dict(content)


def _show(axis: Any, image: Any, title: str, caption: str) -> None:
    axis.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axis.set_title(title.replace(" + ", "\n+ "), fontsize=7)
    axis.set_xlabel(caption, fontsize=7)
    axis.set_xticks([])
    axis.set_yticks([])
