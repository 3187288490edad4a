"""Workloads of Gaussian filters and lattices, on the CPU (W) and on a GPU (G, H)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import permutohedral as ph
from benchmarks import inputs as data
from benchmarks import peers, probes, verify
from benchmarks.inputs import FilterProblem, Inputs
from benchmarks.registry import OURS, Contender, Prepared, Workload, recorded
from benchmarks.verify import ExactGaussian, relative_error


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


def facts_of(problem: FilterProblem, **more: float) -> dict[str, float]:
    """Return the sizes of a problem."""
    points, dimension = problem.features.shape
    facts = {"points": points, "dimension": dimension, "channels": problem.values.shape[1]}
    lattice = ph.build_lattice(problem.features, neighborhood_size=0)
    return {**facts, "lattice_points": lattice.num_lattice_points, **more}


def _prepare_filter(inputs: Inputs, name: str, halo: int = 0) -> Prepared:
    """Filter end to end: features and values in memory to normalized result in memory."""
    problems = problems_of(name, inputs)
    first = problems[0]
    error = ExactGaussian(first, num_pairs=2e9 if inputs.device.type == "cuda" else 1e8).error

    def run(number: int) -> Tensor:
        problem = problems[number % len(problems)]
        return ph.gaussian_filter(problem.values, problem.features, halo=halo)

    def check() -> dict[str, float]:
        errors = verify.check_gaussian(first, halo)
        if inputs.device.type == "cuda":
            exact = ph.gaussian_filter(first.values.double(), first.features.double())
            errors["float32 and float64, all points"] = relative_error(run(0), exact)
        return errors

    others = [peers.densecrf_filter(problems, error), peers.opencv_bilateral(problems, error)]
    others.append(peers.bilateral_grid(problems, error))
    small = first.small()
    return Prepared(
        Contender(OURS, run, error=error),
        others if inputs.device.type == "cpu" else [],
        check,
        first.origin,
        facts_of(first, halo=halo),
        warm_up=lambda: ph.gaussian_filter(small.values, small.features),
        num_inputs=len(problems),
    )


def _prepare_reused(inputs: Inputs, name: str) -> Prepared:
    """Filter on lattices built before: splat, blur, slice, normalize."""
    problems = problems_of(name, inputs)
    error = ExactGaussian(problems[0]).error
    lattices = [ph.build_lattice(problem.features, neighborhood_size=0, separable=True) for problem in problems]

    def run(number: int) -> Tensor:
        which = number % len(problems)
        return ph.gaussian_filter(problems[which].values, None, lattice=lattices[which])

    return Prepared(
        Contender(OURS, run, error=error),
        [peers.densecrf_reused(problems, error)],
        partial(verify.check_gaussian, problems[0]),
        problems[0].origin,
        facts_of(problems[0]),
        num_inputs=len(problems),
    )


def _prepare_build(inputs: Inputs, name: str) -> Prepared:
    """Build the lattice of the separable Gaussian: simplices, lattice points, neighbors along the axes."""
    problems = problems_of(name, inputs)
    separable = inputs.device.type == "cpu"

    def run(number: int) -> Any:
        features = problems[number % len(problems)].features
        return ph.build_lattice(features, neighborhood_size=0, separable=separable)

    def check() -> dict[str, float]:
        if separable:
            return verify.check_build(problems[0].small().features, 0, True)
        errors = verify.check_build(problems[0].small().features, 1, False)
        errors["float64, all points"] = verify.check_build(problems[0].features, 0, False)["float64"]
        exact = ph.build_lattice(problems[0].features.double(), neighborhood_size=0)
        return errors | {"float32, share of points in another simplex": verify.moved_share(run(0), exact)}

    others = [peers.densecrf_build(problems)] if inputs.device.type == "cpu" else []
    facts = facts_of(problems[0])
    return Prepared(Contender(OURS, run), others, check, problems[0].origin, facts, num_inputs=len(problems))


_PHOTOGRAPHS = 40
_SIDE = 1024


def _prepare_photographs(inputs: Inputs, sizes: str = "one", step: str = "bilateral") -> Prepared:
    """Filter unrelated photographs of one size, or of sizes from 200 to 1024."""
    draw = torch.Generator().manual_seed(0)
    extents = [(_SIDE, _SIDE)] * _PHOTOGRAPHS
    if sizes == "many":
        extents = [tuple(torch.randint(200, _SIDE + 1, (2,), generator=draw).tolist()) for _ in extents]
    photographs = [photo.to(inputs.device) for photo in inputs.photographs(extents)]
    features = [ph.bilateral_features(photo, 16.0, 0.1) for photo in photographs] if step == "build" else []

    def run(number: int) -> Any:
        which = number % _PHOTOGRAPHS
        if step == "build":
            return ph.build_lattice(features[which], neighborhood_size=0, separable=True)
        return ph.bilateral_filter(photographs[which], 16.0, 0.1)

    facts: dict[str, float] = {"photographs": _PHOTOGRAPHS}
    return Prepared(Contender(OURS, run), origin="photographs of BSDS500", facts=facts, num_inputs=_PHOTOGRAPHS)


WORKLOADS = (
    Workload(
        "W1",
        "bilateral filter, 1024 x 1024 photo, d = 5, 16 pixels / 0.1, end to end",
        "cpu",
        partial(_prepare_filter, name="W1"),
        recorded=recorded(crfasrnn=254, pydensecrf=289, Adams=358, MONAI=360, simplex_gp=526, bilateralNN=696),
    ),
    Workload(
        "W1b",
        "the same with 4 pixels / 0.05: ten times the lattice points",
        "cpu",
        partial(_prepare_filter, name="W1b"),
        recorded=recorded(crfasrnn=711, pydensecrf=860, Adams=1275, MONAI=1134, simplex_gp=1840, bilateralNN=1617),
    ),
    Workload(
        "W2",
        "bilateral filter, 481 x 321 gray photo, d = 3, 4 pixels / 0.1, end to end",
        "cpu",
        partial(_prepare_filter, name="W2"),
        recorded=recorded(crfasrnn=24.5, pydensecrf=28.4, Adams=33.8, MONAI=35.5, simplex_gp=43.1, bilateralNN=66.7),
    ),
    Workload(
        "W2-halo",
        "the same with the untouched lattice points one step away (halo=1): more accurate",
        "cpu",
        partial(_prepare_filter, name="W2", halo=1),
    ),
    Workload(
        "W3",
        "21 channels over a 500 x 375 photo, d = 5, 80 pixels / 13/255, end to end",
        "cpu",
        partial(_prepare_filter, name="W3"),
        recorded=recorded(crfasrnn=52.6, pydensecrf=57.5, Adams=60.5, MONAI=67.7, simplex_gp=213, bilateralNN=136),
    ),
    Workload(
        "W3-reused",
        "the same on a lattice built before",
        "cpu",
        partial(_prepare_reused, name="W3"),
        recorded=recorded(pydensecrf=20.2, bilateralNN=29.0),
    ),
    Workload(
        "W4",
        "32 channels on a million points near a sphere, d = 3, end to end",
        "cpu",
        partial(_prepare_filter, name="W4"),
        recorded=recorded(crfasrnn=634, pydensecrf=647, Adams=922, MONAI=1182, simplex_gp=2298, bilateralNN=1600),
    ),
    Workload(
        "W5-W1",
        "the lattice of W1, build only",
        "cpu",
        partial(_prepare_build, name="W1"),
        recorded=recorded(pydensecrf=223, bilateralNN=640),
    ),
    Workload(
        "W5-W1b",
        "the lattice of W1b, build only",
        "cpu",
        partial(_prepare_build, name="W1b"),
        recorded=recorded(pydensecrf=643, bilateralNN=1514),
    ),
    Workload(
        "W5-W4",
        "the lattice of W4, build only",
        "cpu",
        partial(_prepare_build, name="W4"),
        recorded=recorded(pydensecrf=199, bilateralNN=810),
    ),
    Workload(
        "memory-W1",
        "peak memory of W1 beyond inputs and outputs",
        "cpu",
        measure=partial(probes.measure_memory, workload="W1"),
        unit="MB",
        recorded=recorded(crfasrnn=94, pydensecrf=133, Adams=55, MONAI=100, simplex_gp=109, bilateralNN=265),
    ),
    Workload("import", "importing the package, beyond torch and NumPy", "cpu", measure=probes.measure_import),
    Workload(
        "G1",
        "bilateral filter, 1024 x 1024 colors, d = 5, 16 pixels / 0.1, end to end",
        "cuda",
        partial(_prepare_filter, name="G1"),
        recorded=recorded(LatticeNet=1.06, MiguelMonteiro=1.73, MONAI=3.39, simplex_gp=3.65, WarpConvNet=10.1),
    ),
    Workload(
        "G1L",
        "the same, 4096 x 4096",
        "cuda",
        partial(_prepare_filter, name="G1L"),
        recorded=recorded(LatticeNet=13.1, MiguelMonteiro=24.7, MONAI=43.1, simplex_gp=38.6, WarpConvNet=133),
    ),
    Workload(
        "H1",
        "Gaussian filter of 196,608 scattered points, d = 6, 1.3 M lattice points, end to end",
        "cuda",
        partial(_prepare_filter, name="H1"),
        recorded=recorded(WarpConvNet=5.8),
    ),
    Workload(
        "G3-d3",
        "lattice of a million points near a sphere, d = 3, build only",
        "cuda",
        partial(_prepare_build, name="G3-d3"),
        recorded=recorded(LatticeNet=0.39, WarpConvNet=6.6),
    ),
    Workload(
        "G3-d5",
        "lattice of a million points in a cube, d = 5, build only",
        "cuda",
        partial(_prepare_build, name="G3-d5"),
        recorded=recorded(LatticeNet=0.67, WarpConvNet=13.0),
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
