"""Workloads of Gaussian filters and lattices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import permutohedral as ph
from benchmarks import inputs as data
from benchmarks import peers, probes
from benchmarks.exact import ExactGaussian
from benchmarks.inputs import FilterProblem, Inputs
from benchmarks.registry import OURS, Contender, Prepared, Workload, yardstick


def _synthetic(inputs: Inputs, side: int) -> FilterProblem:
    return data.bilateral_problem(data.synthetic_image(side, side), (16.0, 0.1), "sums of sinusoids with noise")


def _scattered(inputs: Inputs) -> FilterProblem:
    """Random integers in six dimensions: too sparse for the lattice to be accurate, hard on its table."""
    generator = torch.Generator().manual_seed(0)
    num_points = 196_608
    columns = [torch.randint(high, (num_points,), generator=generator) for high in (512, 512, 256, 256, 256, 1)]
    features = torch.stack(columns, dim=1) / torch.tensor([16.0, 16.0, 12.0, 12.0, 12.0, 1.0])
    values = torch.rand(num_points, 3, generator=generator)
    return FilterProblem(features, values, "seeded random integers")


def _points(inputs: Inputs) -> FilterProblem:
    features = data.sphere_points()
    return FilterProblem(features, torch.ones(features.shape[0], 1), "seeded points near a sphere")


def _cube(inputs: Inputs) -> FilterProblem:
    """Points in a cube with about four points for each lattice point."""
    features = 11 * torch.rand(1_000_000, 5, generator=torch.Generator().manual_seed(0))
    return FilterProblem(features, torch.ones(features.shape[0], 1), "seeded uniform points")


def _random_order(inputs: Inputs) -> FilterProblem:
    """64 million points in random order, on 4.4 million lattice points."""
    generator = torch.Generator().manual_seed(0)
    features = 150 * torch.rand(64_000_000, 3, generator=generator)
    return FilterProblem(features, torch.rand(len(features), 3, generator=generator), "seeded uniform points")


PROBLEMS: dict[str, Callable[[Inputs], FilterProblem]] = {
    "photo-1024": partial(data.large_photo, sigmas=(16.0, 0.1)),
    "photo-1024-narrow": partial(data.large_photo, sigmas=(4.0, 0.05)),
    "photo-gray": data.gray_photo,
    "labels-21": data.labeled_photo,
    "sphere-1m": data.sphere,
    "waves-1024": partial(_synthetic, side=1024),
    "waves-4096": partial(_synthetic, side=4096),
    "scattered-6d": _scattered,
    "build-sphere": _points,
    "build-cube": _cube,
}


def problems_of(name: str, inputs: Inputs) -> list[FilterProblem]:
    """Return the variants of a problem, made once for all workloads that use it."""
    return inputs.keep(name, PROBLEMS[name])


def _prepare_filter(inputs: Inputs, problem: str, halo: int = 0) -> Prepared:
    """Filter end to end: features and values in memory to normalized result in memory."""
    given = problems_of(problem, inputs)
    error = ExactGaussian(given[0], num_pairs=2e9 if inputs.device.type == "cuda" else 1e8).error

    def run(number: int) -> Tensor:
        each = given[number % len(given)]
        return ph.gaussian_filter(each.values, each.features, halo=halo)

    others = [peers.densecrf(given, "filter", error), peers.opencv_bilateral(given, error)]
    others.append(peers.bilateral_grid(given, error))
    others = others if inputs.device.type == "cpu" else []
    return Prepared(Contender(OURS, run, error=error), others, given[0].origin, num_inputs=len(given))


def _prepare_reused(inputs: Inputs, problem: str) -> Prepared:
    """Filter on lattices built before: splat, blur, slice, normalize."""
    given = problems_of(problem, inputs)
    error = ExactGaussian(given[0]).error
    lattices = [ph.build_lattice(each.features, neighborhood_size=0, separable=True) for each in given]

    def run(number: int) -> Tensor:
        which = number % len(given)
        return ph.gaussian_filter(given[which].values, lattices[which])

    others = [peers.densecrf(given, "reused", error)]
    return Prepared(Contender(OURS, run, error=error), others, given[0].origin, num_inputs=len(given))


def _prepare_build(inputs: Inputs, problem: str) -> Prepared:
    """Build a lattice: simplices and lattice points."""
    given = problems_of(problem, inputs)

    def run(number: int) -> Any:
        return ph.build_lattice(given[number % len(given)].features, neighborhood_size=0)

    return Prepared(Contender(OURS, run), origin=given[0].origin, num_inputs=len(given))


def _prepare_random_order(inputs: Inputs) -> Prepared:
    """Filter many points in random order, next to four times a quarter of them."""
    given = _random_order(inputs).to(inputs.device)
    quarter = len(given.features) // 4

    def run_quarters(number: int) -> None:
        for _ in range(4):
            ph.gaussian_filter(given.values[:quarter], given.features[:quarter])

    ours = Contender(OURS, lambda number: ph.gaussian_filter(given.values, given.features))
    others = [yardstick("16 million points", run_quarters, "four times")]
    return Prepared(ours, others, given.origin, per_second=1e9 / len(given.features))


_PHOTOGRAPHS = 40
_SIDE = 1024


def _prepare_photographs(inputs: Inputs, sizes: str = "one", step: str = "bilateral") -> Prepared:
    """Filter unrelated photographs of one size, or of sizes from 200 to 1024."""
    draw = torch.Generator().manual_seed(0)
    extents = [(_SIDE, _SIDE)] * _PHOTOGRAPHS
    if sizes == "many":
        extents = [tuple(torch.randint(200, _SIDE + 1, (2,), generator=draw).tolist()) for _ in extents]
    photographs = [photo.to(inputs.device) for photo in inputs.photographs(extents)]
    features = (
        [ph.features.bilateral(photo, sigma_space=16.0, sigma_color=0.1) for photo in photographs]
        if step == "build"
        else []
    )

    def run(number: int) -> Any:
        which = number % _PHOTOGRAPHS
        if step == "build":
            return ph.build_lattice(features[which], neighborhood_size=0, separable=True)
        return ph.bilateral_filter(photographs[which], sigma_space=16.0, sigma_color=0.1)

    return Prepared(Contender(OURS, run), origin="photographs of BSDS500", num_inputs=_PHOTOGRAPHS)


_filter_with_halo = partial(_prepare_filter, halo=1)

# device, function, name of the problem, end of the name, summary
_ROWS: tuple[tuple[str, Callable[..., Prepared], str, str, str], ...] = (
    ("cpu", _prepare_filter, "photo-1024", "", "bilateral filter, 1024 x 1024 photo, 16 pixels / 0.1, end to end"),
    ("cpu", _prepare_filter, "photo-1024-narrow", "", "the same with 4 pixels / 0.05: ten times the lattice points"),
    ("cpu", _prepare_filter, "photo-gray", "", "bilateral filter, 481 x 321 gray photo, 4 pixels / 0.1, end to end"),
    ("cpu", _filter_with_halo, "photo-gray", "-halo", "the same with the untouched points one step away (halo=1)"),
    ("cpu", _prepare_filter, "labels-21", "", "21 channels over a 500 x 375 photo, 80 pixels / 13/255, end to end"),
    ("cpu", _prepare_reused, "labels-21", "-reused", "the same on a lattice built before"),
    ("cpu", _prepare_filter, "sphere-1m", "", "32 channels on a million points near a sphere, d = 3, end to end"),
    ("cuda", _prepare_filter, "waves-1024", "", "bilateral filter, 1024 x 1024 colors, 16 pixels / 0.1, end to end"),
    ("cuda", _prepare_filter, "waves-4096", "", "the same, 4096 x 4096"),
    ("cuda", _prepare_filter, "scattered-6d", "", "Gaussian filter of 196,608 scattered points, d = 6, end to end"),
    ("cuda", _prepare_build, "build-sphere", "", "lattice of a million points near a sphere, d = 3, build only"),
    ("cuda", _prepare_build, "build-cube", "", "lattice of a million points in a cube, d = 5, build only"),
)  # fmt: skip

WORKLOADS = (
    *(
        Workload(f"{problem}{end}", summary, device, "filters", partial(prepare, problem=problem))
        for device, prepare, problem, end, summary in _ROWS
    ),
    Workload(
        "memory-photo-1024",
        "peak memory of the first row, beyond inputs and outputs",
        "cpu",
        "filters",
        measure=partial(probes.measure_memory, workload="photo-1024"),
        unit="MB",
    ),
    *(
        Workload(f"photographs{end}", summary, "cuda", "filters", prepare)
        for end, summary, prepare in (
            ("", "bilateral filter of unrelated photographs of 1024 x 1024, 16 pixels / 0.1", _prepare_photographs),
            ("-sizes", "the same with sizes from 200 to 1024", partial(_prepare_photographs, sizes="many")),
            ("-build", "the lattices of the former, separable", partial(_prepare_photographs, step="build")),
        )
    ),
    Workload(
        "random-order-64m",
        "Gaussian filter of 64 million points in random order, d = 3, 3 channels; per point",
        "cuda",
        "filters",
        _prepare_random_order,
        unit="ns",
    ),
    Workload(
        "first-call", "import and first call in a new process", "cuda", "filters", measure=probes.measure_first_call
    ),
)
