"""Denoise with filters of the same features on the lattice and on grids."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from experiments.denoising.quadratic import QuadraticErrors
from experiments.experiment import Experiment
from experiments.grids.cost import measure_library, measure_plain
from experiments.grids.images import NoisyImage, Space, Split, add_guides, read_colors
from experiments.grids.places import Kind, build_places, count_weights
from experiments.quality import mean_psnr
from experiments.report import Lines, Page
from experiments.results import FORBID_EXTRA, Result
from experiments.training import RunOptions
from permutohedral.errors import InputError

# of the search: each step multiplies or divides one scale
_FACTOR = 1.3
SPACES = {
    "gray": "Gray, d = 3",
    "gray_blurred": "Gray and blurred gray, d = 4",
    "color": "Color, d = 5",
    "color_gradient": "Color and gradient, d = 6",
}
# ways to run a filter, by geometry
WAYS = {
    "lattice": {
        "lattice": "Hashed",
        "reference": "Library, reference backend",
        "native": "Library, native backend",
    },
    "grid": {"hashed": "Hashed", "dense": "Dense"},
}


@dataclass(frozen=True, config=FORBID_EXTRA)
class GridsConfig:
    """One row of the tables.

    Attributes:
        name: of the row.
        title: of the filter in the tables.
        space: what the features are, besides the position.
        geometry: of the places that values are splatted to.
        size: s of the lattice, or taps a side of a grid.
        sigma_space: pixels per feature unit.
        sigma_color: gray or color values per feature unit; white is 1.
        sigma_guide: values of the additional guide per feature unit.
        fitted: False to count places only.
        memory_limit: bytes above which a dense grid, or a table of neighbors, is counted only.
        search: look for better scales, from those of the row on, instead of measuring them.
        split: of the images on which the row is evaluated.
        training: None, filters have a closed form.
        noise: standard deviation of the noise, of 255.
        train_images: number of training images.
        test_images: number of images of `split`.
        crop: extent in pixels of the central square of each image, from which quality is measured.
        timed_images: number of whole images whose cost is measured.
        seed: of the noise.
    """

    name: str
    title: str
    space: Space
    geometry: Literal["lattice", "grid"]
    size: int
    sigma_space: float
    sigma_color: float
    sigma_guide: float | None = None
    fitted: bool = True
    memory_limit: float = 2e9
    search: bool = False
    split: Split = "test"
    training: None = None
    noise: float = 25.0
    train_images: int = 20
    test_images: int = 40
    crop: int = 128
    timed_images: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.sigma_guide is None) != (self.space in ("gray", "color")):
            raise InputError(f"sigma_guide must be given for a space with an additional guide only, got {self.space}")
        if self.search and self.split != "validation":
            raise InputError(f"split must be validation for a search, got {self.split}")

    @property
    def kind(self) -> Kind:
        """Return the structure that quality is measured with; hashed and dense grids give the same results."""
        return "lattice" if self.geometry == "lattice" else "hashed"

    @property
    def scales(self) -> tuple[float, ...]:
        """Return the scales of the features."""
        return self.sigma_space, self.sigma_color, *(() if self.sigma_guide is None else (self.sigma_guide,))


def read_images(config: GridsConfig, options: RunOptions, split: Split, size: int | None) -> list[NoisyImage]:
    """Read images of a split and add noise."""
    limit = config.train_images if split == "train" else config.test_images
    pixels = read_colors(split, options.data, limit)
    return [
        add_guides(name, each, config.space, size, config.noise / 255, config.seed) for name, each in pixels.items()
    ]


def run(config: GridsConfig, options: RunOptions) -> tuple[dict[str, Any], dict[str, float]]:
    """Search for scales, or fit a row and measure its quality and cost."""
    started = time.perf_counter()
    if config.search:
        training = read_images(config, options, "train", config.crop)
        validation = read_images(config, options, config.split, config.crop)

        def score(scales: tuple[float, ...]) -> float:
            weight = fit_weight(config, training, scales)
            return statistics.mean(measure_psnr(config, validation, scales, weight).values())

        found = search_scales(config.scales, score)
        scores = {describe_scales(scales): psnr for scales, psnr in found.items()}
        return {"psnr": scores}, {"selection": time.perf_counter() - started}
    dimension = 2 + read_images(config, options, config.split, config.crop)[0].guide.shape[1]
    metrics: dict[str, Any] = {"dimension": dimension, "weights": count_weights(config.kind, dimension, config.size)}
    seconds, weight = {}, None
    if config.fitted:
        weight = fit_weight(config, read_images(config, options, "train", config.crop), config.scales)
        images = read_images(config, options, config.split, config.crop)
        metrics["psnr"] = measure_psnr(config, images, config.scales, weight)
        seconds["quality"] = time.perf_counter() - started
    started = time.perf_counter()
    whole = read_images(config, options, config.split, None)[: config.timed_images]
    metrics["cost"] = measure_costs(config, whole, weight)
    return metrics, seconds | {"cost": time.perf_counter() - started}


def fit_weight(config: GridsConfig, images: Sequence[NoisyImage], scales: tuple[float, ...]) -> Tensor:
    """Return the weights of least squared error over all pixels and channels, `[taps]`."""
    # the matrices of all images together may not fit
    matrix, vector = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for image in images:
        responses = build_places(config.kind, image.features(*scales), config.size).responses(image.noisy)
        factors, clean = responses.flatten(1).double(), image.clean.flatten().double()
        matrix = matrix + factors @ factors.T / clean.numel()
        vector = vector + factors @ clean / clean.numel()
    return QuadraticErrors(matrix[None], vector[None], vector.new_zeros(1)).least_squares().float()


def measure_psnr(
    config: GridsConfig, images: Sequence[NoisyImage], scales: tuple[float, ...], weight: Tensor
) -> dict[str, float]:
    """Return the PSNR of each image in dB, by the number in its name."""
    scores = {}
    for image in images:
        filtered = build_places(config.kind, image.features(*scales), config.size).filter(image.noisy, weight)
        scores[image.name.partition("/")[2]] = mean_psnr((filtered - image.clean).double().square().mean())
    return scores


def search_scales(
    start: tuple[float, ...], score: Callable[[tuple[float, ...]], float]
) -> dict[tuple[float, ...], float]:
    """Change one scale at a time while the score grows, until no step helps; return the scores of all scales tried.

    >>> found = search_scales((1.0, 1.0), lambda scales: -abs(scales[0] - 1.7) - abs(scales[1] - 0.7))
    >>> max(found, key=found.__getitem__)
    (1.69, 0.769)
    """
    best, found = start, {start: score(start)}
    finished = False
    while not finished:
        finished = True
        for axis in range(len(start)):
            for factor in (_FACTOR, 1 / _FACTOR):
                while True:
                    changed = float(f"{best[axis] * factor:.3g}")
                    tried = (*best[:axis], changed, *best[axis + 1 :])
                    if tried not in found:
                        found[tried] = score(tried)
                    if found[tried] <= found[best]:
                        break
                    best, finished = tried, False
    return found


def describe_scales(scales: tuple[float, ...]) -> str:
    """Return scales as a text.

    >>> describe_scales((2.0, 0.25))
    '2 px, 0.25'
    """
    return f"{scales[0]:g} px, " + ", ".join(f"{scale:g}" for scale in scales[1:])


def measure_costs(config: GridsConfig, images: Sequence[NoisyImage], weight: Tensor | None) -> dict[str, Any]:
    """Return medians over images of places, bytes and seconds of every way to run the filter."""
    kinds: tuple[Kind, ...] = ("lattice",) if config.geometry == "lattice" else ("hashed", "dense")
    found: dict[str, list[dict[str, float]]] = {}
    for image in images:
        features, values = image.features(*config.scales), image.noisy
        for kind in kinds:
            cost = measure_plain(kind, features, values, weight, config.size, config.memory_limit)
            found.setdefault(kind, []).append(cost)
        if config.geometry == "lattice" and weight is not None:
            for backend in ("reference", "native"):
                cost = measure_library(backend, features, values, weight, config.size, config.memory_limit)
                found.setdefault(backend, []).append(cost)
    return {
        name: {
            key: statistics.median(each[key] for each in measured)
            for key in measured[0]
            if all(key in each for each in measured)
        }
        for name, measured in found.items()
    }


def report(results: Sequence[Result], options: RunOptions) -> list[Page]:
    """Report quality and cost of all filters, and the chosen scales."""
    quality, costs, chosen = dict[str, list[str]](), dict[str, list[str]](), dict[str, list[str]]()
    first: dict[str, dict[str, float]] = {}
    for result in results:
        config, metrics = result.config, result.metrics
        label, psnr = [SPACES[config["space"]], config["title"]], metrics.get("psnr", {})
        if config["search"]:
            best = max(psnr, key=psnr.__getitem__)
            chosen[result.name] = [*label, best, f"{psnr[best]:.2f}", f"{len(psnr)}"]
            continue
        quality[result.name] = [*label, f"{metrics['weights']:,}", "", "", "", ""]
        if psnr:
            scales = (config[f"sigma_{name}"] for name in ("space", "color", "guide"))
            base = first.setdefault(config["space"], psnr)
            text = describe_scales(tuple(scale for scale in scales if scale is not None))
            gain, error = mean_and_error([psnr[image] - base[image] for image in psnr])
            compared = "" if base is psnr else f"{gain:+.3f} ± {error:.3f}"
            scores = list(psnr.values())
            spread = f"{statistics.stdev(scores):.2f}"
            quality[result.name][3:] = [text, f"{statistics.mean(scores):.2f}", spread, compared]
        for way, storage in WAYS[config["geometry"]].items():
            cost = metrics["cost"].get(way, {})
            # the native core keeps memory for its next call, so that its peak is not that of the call
            size = f"{cost['bytes'] / 1e6:,.0f}" if "bytes" in cost and way != "native" else ""
            if "seconds" not in cost:
                size = f"needs {cost['needed'] / 1e6:,.0f}" if "needed" in cost else ""
            if not cost:
                size = f"over {config['memory_limit'] / 1e6:,.0f}"
            places = f"{cost['places']:,}" if "places" in cost else ""
            seconds = f"{cost['seconds']:.2f}" if "seconds" in cost else ""
            costs[f"{result.name}_{way}"] = [*label, storage, places, size, seconds]
    titles = {
        "Quality": (["Weights", "Scales", "dB", "± over images", "Against s = 1, dB"], quality, (0, 1, 3)),
        "Cost": (["Storage", "Places", "MB", "s"], costs, (0, 1, 2)),
        "Chosen on validation images": (["Scales", "Validation, dB", "Tried"], chosen, (0, 1, 2)),
    }
    tables = [
        Lines(["Features", "Filter", *columns], lines, heading=heading, text_columns=text_columns, results=results)
        for heading, (columns, lines, text_columns) in titles.items()
        if lines
    ]
    text = (
        "Least-squares filters of noisy images of BSDS500, 25/255. PSNR: mean over the central squares of the images, "
        "its standard deviation over images, and the difference from the lattice of s = 1 on the same features ± its "
        "standard error over images. Places are occupied lattice points or cells, all cells where storage is dense. "
        "Memory is the peak of one call, seconds are processor time of one thread: medians over whole images."
    )
    return [Page("Lattice and grids", text, tables, name="grids")]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error.

    >>> mean_and_error([1.0, 2.0, 3.0, 2.0])
    (2.0, 0.408248290463863)
    """
    return statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5


EXPERIMENTS = {"grids": Experiment("grids", GridsConfig, run, report)}
