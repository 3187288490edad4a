"""Workloads of Gaussian filters and lattices, on the CPU (W) and on a GPU (G, H)."""

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
from benchmarks.registry import OURS, Contender, Prepared, Workload


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


PROBLEMS: dict[str, Callable[[Inputs], FilterProblem]] = {
    "W1": partial(data.large_photo, sigmas=(16.0, 0.1)),
    "W1b": partial(data.large_photo, sigmas=(4.0, 0.05)),
    "W2": data.gray_photo,
    "W3": data.labeled_photo,
    "W4": data.sphere,
    "G1": partial(_synthetic, side=1024),
    "G1L": partial(_synthetic, side=4096),
    "H1": _scattered,
    "G3-d3": _points,
    "G3-d5": _cube,
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
    """Build the lattice of the separable Gaussian: simplices, lattice points, neighbors along the axes."""
    given = problems_of(problem, inputs)
    on_cpu = inputs.device.type == "cpu"

    def run(number: int) -> Any:
        return ph.build_lattice(given[number % len(given)].features, neighborhood_size=0, separable=on_cpu)

    others = [peers.densecrf(given, "build")] if on_cpu else []
    return Prepared(Contender(OURS, run), others, given[0].origin, num_inputs=len(given))


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

# name, device, function, problem, summary
_ROWS: tuple[tuple[str, str, Callable[..., Prepared], str, str], ...] = (
    ("W1", "cpu", _prepare_filter, "W1", "bilateral filter, 1024 x 1024 photo, d = 5, 16 pixels / 0.1, end to end"),
    ("W1b", "cpu", _prepare_filter, "W1b", "the same with 4 pixels / 0.05: ten times the lattice points"),
    ("W2", "cpu", _prepare_filter, "W2", "bilateral filter, 481 x 321 gray photo, d = 3, 4 pixels / 0.1, end to end"),
    ("W2-halo", "cpu", _filter_with_halo, "W2", "the same with the untouched lattice points one step away (halo=1)"),
    ("W3", "cpu", _prepare_filter, "W3", "21 channels over a 500 x 375 photo, d = 5, 80 pixels / 13/255, end to end"),
    ("W3-reused", "cpu", _prepare_reused, "W3", "the same on a lattice built before"),
    ("W4", "cpu", _prepare_filter, "W4", "32 channels on a million points near a sphere, d = 3, end to end"),
    ("W5-W1", "cpu", _prepare_build, "W1", "the lattice of W1, build only"),
    ("W5-W1b", "cpu", _prepare_build, "W1b", "the lattice of W1b, build only"),
    ("W5-W4", "cpu", _prepare_build, "W4", "the lattice of W4, build only"),
    ("G1", "cuda", _prepare_filter, "G1", "bilateral filter, 1024 x 1024 colors, d = 5, 16 pixels / 0.1, end to end"),
    ("G1L", "cuda", _prepare_filter, "G1L", "the same, 4096 x 4096"),
    ("H1", "cuda", _prepare_filter, "H1", "Gaussian filter of 196,608 scattered points, d = 6, end to end"),
    ("G3-d3", "cuda", _prepare_build, "G3-d3", "lattice of a million points near a sphere, d = 3, build only"),
    ("G3-d5", "cuda", _prepare_build, "G3-d5", "lattice of a million points in a cube, d = 5, build only"),
)

WORKLOADS = (
    *(
        Workload(name, summary, device, partial(prepare, problem=problem))
        for name, device, prepare, problem, summary in _ROWS
    ),
    Workload(
        "memory-W1",
        "peak memory of W1 beyond inputs and outputs",
        "cpu",
        measure=partial(probes.measure_memory, workload="W1"),
        unit="MB",
    ),
    Workload(
        "photographs",
        "bilateral filter of unrelated photographs of 1024 x 1024, 16 pixels / 0.1",
        "cuda",
        _prepare_photographs,
    ),
    Workload(
        "photographs-sizes",
        "the same with sizes from 200 to 1024",
        "cuda",
        partial(_prepare_photographs, sizes="many"),
    ),
    Workload(
        "photographs-build",
        "the lattices of unrelated photographs of 1024 x 1024, separable",
        "cuda",
        partial(_prepare_photographs, step="build"),
    ),
    Workload("first-call", "import and first call in a new process", "cuda", measure=probes.measure_first_call),
)
