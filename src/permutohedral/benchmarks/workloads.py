"""The workloads of the CPU: what is run on which data, and what peers were once measured to reach on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from permutohedral.benchmarks import inputs as data
from permutohedral.benchmarks import peers, probes, verify
from permutohedral.benchmarks.exact import ExactGaussian
from permutohedral.benchmarks.inputs import FilterProblem, Inputs
from permutohedral.benchmarks.layers import prepare_image_layer
from permutohedral.benchmarks.registry import OURS, Prepared, Recorded, Workload
from permutohedral.benchmarks.timing import Contender
from permutohedral.features import position_features
from permutohedral.functional import gaussian_filter, permutohedral_filter
from permutohedral.lattice import build_lattice
from permutohedral.ops.dispatch import use_backend
from permutohedral.reporting.quality import relative_error

PLAIN_TORCH = "plain torch"

PROBLEMS: dict[str, Callable[[Inputs], FilterProblem]] = {
    "W1": partial(data.large_photo, sigmas=(16.0, 0.1)),
    "W1b": partial(data.large_photo, sigmas=(4.0, 0.05)),
    "W2": data.gray_photo,
    "W3": data.labeled_photo,
    "W4": data.sphere,
}


def problem_of(name: str, inputs: Inputs) -> FilterProblem:
    """The problem `name`, made once for all workloads that use it."""
    return inputs.keep(name, PROBLEMS[name])


def facts_of(problem: FilterProblem, **more: float) -> dict[str, float]:
    """The sizes of a problem."""
    points, dimension = problem.features.shape
    facts = {"points": points, "dimension": dimension, "channels": problem.values.shape[1]}
    lattice = build_lattice(problem.features, neighborhood_size=0)
    return {**facts, "lattice_points": lattice.num_lattice_points, **more}


def prepare_filter(inputs: Inputs, name: str, halo: int = 0) -> Prepared:
    """The Gaussian filter end to end: features and values in memory to normalized result in memory."""
    problem = problem_of(name, inputs)
    error = ExactGaussian(problem).error

    def ours() -> Tensor:
        return gaussian_filter(problem.values, problem.features, halo=halo)

    others = [
        peers.densecrf_filter(problem, error),
        peers.opencv_bilateral(problem, error),
        peers.bilateral_grid(problem, error),
    ]
    check = partial(verify.check_gaussian, problem, halo)
    return Prepared(Contender(OURS, ours, error=error), others, check, problem.origin, facts_of(problem, halo=halo))


def prepare_reused(inputs: Inputs, name: str) -> Prepared:
    """The Gaussian filter on a lattice built before: splat, blur, slice, normalize."""
    problem = problem_of(name, inputs)
    error = ExactGaussian(problem).error
    lattice = build_lattice(problem.features, neighborhood_size=0, separable=True)

    def ours() -> Tensor:
        return gaussian_filter(problem.values, None, lattice=lattice)

    others = [peers.densecrf_reused(problem, error)]
    check = partial(verify.check_gaussian, problem)
    return Prepared(Contender(OURS, ours, error=error), others, check, problem.origin, facts_of(problem))


def prepare_build(inputs: Inputs, name: str) -> Prepared:
    """The lattice of the separable Gaussian only: simplices, lattice points, neighbors along the axes."""
    problem = problem_of(name, inputs)

    def ours() -> Any:
        return build_lattice(problem.features, neighborhood_size=0, separable=True)

    check = partial(verify.check_build, problem.small().features, 0, True)
    others = [peers.densecrf_build(problem)]
    return Prepared(Contender(OURS, ours), others, check, problem.origin, facts_of(problem))


def prepare_learned(inputs: Inputs, backward: bool) -> Prepared:
    """32 to 32 channels, 15 taps, on the points of W4, lattice reused: splat, convolve, slice; or the backward pass."""
    problem = problem_of("W4", inputs)
    lattice = build_lattice(problem.features, neighborhood_size=1)
    weight = torch.randn(15, 32, 32, generator=torch.Generator().manual_seed(0)) / (15 * 32) ** 0.5
    leaves = (problem.values.detach().requires_grad_(backward), weight.requires_grad_(backward))
    gradient = torch.ones_like(problem.values)
    kept: dict[str, Tensor] = {}

    def forward() -> Tensor:
        return permutohedral_filter(leaves[0], None, leaves[1], lattice=lattice)

    def error(output: Tensor) -> float:
        exact = build_lattice(problem.features.double(), neighborhood_size=1)
        truth = permutohedral_filter(leaves[0].double(), None, leaves[1].double(), lattice=exact)
        return relative_error(output, truth)

    def contender(name: str, backend: str | None, note: str = "") -> Contender:
        def run() -> Any:
            with use_backend(backend):
                if backward:
                    return torch.autograd.grad(kept["output"], leaves, gradient)
                return forward()

        def before() -> None:
            with use_backend(backend):
                kept["output"] = forward()

        return Contender(name, run, before if backward else None, error=None if backward else error, note=note)

    plain = contender(PLAIN_TORCH, "reference", "the reference backend of this package: gather and matrix product")
    check = partial(verify.check_convolution, problem.small().features, 32, 1)
    facts = facts_of(problem, filter_size=15)
    truth = "the same operation in float64"
    return Prepared(contender(OURS, None), [plain], check, problem.origin, facts, truth)


def prepare_mnist_build(inputs: Inputs) -> Prepared:
    """The lattices of 64 images of 784 random positions each, wanted at a grid of 576, d = 2, s = 2."""
    generator = torch.Generator().manual_seed(0)
    sources = (28 * torch.rand(64, 784, 2, generator=generator)).to(inputs.device)
    targets = (position_features(24, 24, device=inputs.device) + 2).expand(64, -1, -1).contiguous()

    def ours() -> Any:
        return build_lattice(sources, targets, neighborhood_size=2)

    check = partial(verify.check_build, sources[0], 2, False)
    facts: dict[str, float] = {"points": 64 * 784, "target_points": 64 * 576, "dimension": 2, "filter_size": 19}
    return Prepared(Contender(OURS, ours), [], check, "seeded positions", facts)


def _recorded(**figures: float | tuple[float, float]) -> tuple[Recorded, ...]:
    """What each peer reached: one number where it uses one thread only, else with one thread and with two."""
    return tuple(
        Recorded(peer, {1: figure[0], 2: figure[1]} if isinstance(figure, tuple) else {0: figure})
        for peer, figure in figures.items()
    )


WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "W1",
        "bilateral filter, 1024 x 1024 photo, d = 5, 16 pixels / 0.1, end to end",
        "cpu",
        partial(prepare_filter, name="W1"),
        recorded=_recorded(crfasrnn=254, pydensecrf=289, Adams=358, MONAI=360, simplex_gp=526, bilateralNN=696),
    ),
    Workload(
        "W1b",
        "the same with 4 pixels / 0.05: ten times the lattice points",
        "cpu",
        partial(prepare_filter, name="W1b"),
        recorded=_recorded(crfasrnn=711, pydensecrf=860, Adams=1275, MONAI=1134, simplex_gp=1840, bilateralNN=1617),
    ),
    Workload(
        "W2",
        "bilateral filter, 481 x 321 gray photo, d = 3, 4 pixels / 0.1, end to end",
        "cpu",
        partial(prepare_filter, name="W2"),
        recorded=_recorded(crfasrnn=24.5, pydensecrf=28.4, Adams=33.8, MONAI=35.5, simplex_gp=43.1, bilateralNN=66.7),
    ),
    Workload(
        "W2-halo",
        "the same with the untouched lattice points one step away (halo=1): more accurate",
        "cpu",
        partial(prepare_filter, name="W2", halo=1),
    ),
    Workload(
        "W3",
        "21 channels over a 500 x 375 photo, d = 5, 80 pixels / 13/255, end to end",
        "cpu",
        partial(prepare_filter, name="W3"),
        recorded=_recorded(crfasrnn=52.6, pydensecrf=57.5, Adams=60.5, MONAI=67.7, simplex_gp=213, bilateralNN=136),
    ),
    Workload(
        "W3-reused",
        "the same on a lattice built before",
        "cpu",
        partial(prepare_reused, name="W3"),
        recorded=_recorded(pydensecrf=20.2, bilateralNN=29.0),
    ),
    Workload(
        "W4",
        "32 channels on a million points near a sphere, d = 3, end to end",
        "cpu",
        partial(prepare_filter, name="W4"),
        recorded=_recorded(crfasrnn=634, pydensecrf=647, Adams=922, MONAI=1182, simplex_gp=2298, bilateralNN=1600),
    ),
    Workload(
        "W5-W1",
        "the lattice of W1, build only",
        "cpu",
        partial(prepare_build, name="W1"),
        recorded=_recorded(pydensecrf=223, bilateralNN=640),
    ),
    Workload(
        "W5-W1b",
        "the lattice of W1b, build only",
        "cpu",
        partial(prepare_build, name="W1b"),
        recorded=_recorded(pydensecrf=643, bilateralNN=1514),
    ),
    Workload(
        "W5-W4",
        "the lattice of W4, build only",
        "cpu",
        partial(prepare_build, name="W4"),
        recorded=_recorded(pydensecrf=199, bilateralNN=810),
    ),
    Workload(
        "W7-forward",
        "learned 32 to 32 channels, 15 taps, on the lattice of W4, forward",
        "cpu",
        partial(prepare_learned, backward=False),
        recorded=_recorded(bilateralNN=(2600, 2498), HPLFlowNet=(8214, 5153)),
    ),
    Workload(
        "W7-backward",
        "the same, backward: gradients of values and filter",
        "cpu",
        partial(prepare_learned, backward=True),
        recorded=_recorded(bilateralNN=(4019, 3930)),
    ),
    Workload(
        "layer-forward",
        "layer 32 to 32 channels, 19 taps, 481 x 321 image, lattice reused, forward",
        "cpu",
        partial(prepare_image_layer, training=False),
    ),
    Workload(
        "layer-training",
        "the same, forward and backward",
        "cpu",
        partial(prepare_image_layer, training=True),
    ),
    Workload("mnist-build", "the lattices of a batch of 64 MNIST images, d = 2, s = 2", "cpu", prepare_mnist_build),
    Workload(
        "memory-W1",
        "peak memory of W1 beyond inputs and outputs",
        "cpu",
        measure=probes.measure_memory,
        unit="MB",
        recorded=_recorded(crfasrnn=94, pydensecrf=133, Adams=55, MONAI=100, simplex_gp=109, bilateralNN=265),
    ),
    Workload("import", "importing the package, beyond torch and NumPy", "cpu", measure=probes.measure_import),
)
