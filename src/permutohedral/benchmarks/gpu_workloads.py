"""The workloads of a GPU: what is run on which data, and what peers were once measured to reach on an H200."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from permutohedral.benchmarks import inputs as data
from permutohedral.benchmarks import verify
from permutohedral.benchmarks.exact import ExactGaussian
from permutohedral.benchmarks.inputs import FilterProblem, Inputs
from permutohedral.benchmarks.layers import precision, prepare_image_layer, prepare_small_step
from permutohedral.benchmarks.registry import OURS, Prepared, Recorded, Workload
from permutohedral.benchmarks.timing import Contender
from permutohedral.benchmarks.workloads import facts_of, prepare_mnist_build
from permutohedral.filters.steps import convolve
from permutohedral.functional import gaussian_filter
from permutohedral.lattice import build_lattice
from permutohedral.ops.dispatch import use_backend
from permutohedral.reporting.quality import relative_error


def _picture(inputs: Inputs, side: int) -> FilterProblem:
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
    """Points in a cube whose side leaves about a quarter as many lattice points."""
    features = 11 * torch.rand(1_000_000, 5, generator=torch.Generator().manual_seed(0))
    return FilterProblem(features, torch.ones(features.shape[0], 1), "seeded uniform points")


_RUNS_IN_A_GRAPH = 10

PROBLEMS: dict[str, Callable[[Inputs], FilterProblem]] = {
    "G1": partial(_picture, side=1024),
    "G1L": partial(_picture, side=4096),
    "H1": _scattered,
    "G3-d3": _points,
    "G3-d5": _cube,
}


def _prepare_filter(inputs: Inputs, name: str) -> Prepared:
    problem = inputs.keep(name, PROBLEMS[name])
    error = ExactGaussian(problem, num_pairs=2e9).error

    def ours() -> Tensor:
        return gaussian_filter(problem.values, problem.features)

    def check() -> dict[str, float]:
        errors = verify.check_gaussian(problem)
        exact = gaussian_filter(problem.values.double(), problem.features.double())
        return errors | {"float32 beside float64, all points": relative_error(ours(), exact)}

    return Prepared(Contender(OURS, ours, error=error), [], check, problem.origin, facts_of(problem))


def _prepare_build(inputs: Inputs, name: str) -> Prepared:
    problem = inputs.keep(name, PROBLEMS[name])

    def ours() -> Any:
        return build_lattice(problem.features, neighborhood_size=0)

    def check() -> dict[str, float]:
        errors = verify.check_build(problem.small().features, 1, False)
        errors["float64, all points"] = verify.check_build(problem.features, 0, False)["float64"]
        exact = build_lattice(problem.features.double(), neighborhood_size=0)
        return errors | {"float32, share of points in another simplex": verify.moved_share(ours(), exact)}

    return Prepared(Contender(OURS, ours), [], check, problem.origin, facts_of(problem))


def _recorded_run(run: Callable[[], Any]) -> Callable[[], Any]:
    """Several runs as one CUDA graph: starting them costs the host less than they take."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_RUNS_IN_A_GRAPH):
            output = run()

    def replay() -> Any:
        graph.replay()
        return output

    return replay


def _prepare_convolution(inputs: Inputs, channels: int, precision_name: str, training: bool) -> Prepared:
    """The convolution over the lattice of a sphere alone, 15 taps, in nanoseconds per lattice point and tap."""
    problem = inputs.keep("G3-d3", PROBLEMS["G3-d3"])
    lattice = build_lattice(problem.features, neighborhood_size=1)
    rows, filter_size = lattice.num_lattice_points, lattice.neighborhood.filter_size
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, channels), (filter_size, channels, channels), (rows, channels))
    with precision(precision_name) as dtype:
        values, weight, gradient = (torch.randn(s, generator=generator).to(inputs.device, dtype) for s in shapes)
    weight /= (filter_size * channels) ** 0.5
    leaves = (values.requires_grad_(training), weight.requires_grad_(training))

    def run() -> Any:
        with precision(precision_name):
            output = convolve(*leaves, lattice)
            return torch.autograd.grad(output, leaves, gradient) if training else output

    def error(output: Any) -> float:
        on = verify.in_precision(lattice, torch.float64)
        exact = [leaf.detach().double().requires_grad_(training) for leaf in leaves]
        with use_backend("reference"):
            truth: Any = convolve(exact[0], exact[1], on)
            if not training:
                return relative_error(output, truth)
            truth = torch.autograd.grad(truth, exact, gradient.double())
        return max(map(relative_error, output, truth))

    def check() -> dict[str, float]:
        with precision(precision_name):
            return verify.check_convolution(problem.small().features, channels, 1, dtype)

    facts = facts_of(problem, channels=channels, filter_size=filter_size)
    ours = Contender(OURS, _recorded_run(run), error=error, note="through autograd, replayed from a CUDA graph")
    return Prepared(
        ours, [], check, problem.origin, facts, "the same operation in float64",
        per_second=1e9 / (rows * filter_size * _RUNS_IN_A_GRAPH),
    )  # fmt: skip


def _recorded(**figures: float) -> tuple[Recorded, ...]:
    return tuple(Recorded(peer, {0: figure}) for peer, figure in figures.items())


# nanoseconds per lattice point and tap; forward, then forward and backward
_CONVOLUTION_PEERS: dict[tuple[int, str], tuple[dict[str, float], dict[str, float]]] = {
    (32, "bf16"): ({"spconv": 0.020, "TorchSparse": 0.031}, {"spconv": 0.121, "TorchSparse": 0.163}),
    (32, "TF32"): (
        {"spconv": 0.041, "TorchSparse": 0.072, "LatticeNet": 0.91},
        {"spconv": 0.180, "TorchSparse": 0.305},
    ),
    (32, "fp32"): (
        {"spconv": 0.102, "TorchSparse": 0.112, "LatticeNet": 0.92},
        {"spconv": 0.385, "TorchSparse": 0.390},
    ),
    (64, "bf16"): ({"spconv": 0.032, "TorchSparse": 0.050}, {"spconv": 0.157, "TorchSparse": 0.204}),
    (64, "TF32"): (
        {"spconv": 0.095, "TorchSparse": 0.110, "LatticeNet": 1.99},
        {"spconv": 0.299, "TorchSparse": 0.385},
    ),
    (64, "fp32"): (
        {"spconv": 0.225, "TorchSparse": 0.212, "LatticeNet": 2.12},
        {"spconv": 0.987, "TorchSparse": 0.727},
    ),
}


def _convolutions() -> list[Workload]:
    return [
        Workload(
            f"{name}-{channels}-{precision_name}",
            f"convolution of 250,000 lattice points, {channels} channels, 15 taps, {precision_name}, {passes}",
            "cuda",
            partial(_prepare_convolution, channels=channels, precision_name=precision_name, training=name == "G2b"),
            unit="ns",
            recorded=_recorded(**figures[name == "G2b"]),
        )
        for name, passes in (("G2", "forward"), ("G2b", "forward and backward"))
        for (channels, precision_name), figures in _CONVOLUTION_PEERS.items()
    ]


def _layers() -> list[Workload]:
    return [
        Workload(
            f"C-{kind}-{precision_name}",
            f"layer 32 to 32 channels, 19 taps, 8 images of 481 x 321, {precision_name}, {what}",
            "cuda",
            partial(prepare_image_layer, training=kind == "training", batch=8, precision_name=precision_name,
                    reused=kind != "built"),
        )
        for precision_name in ("fp32", "TF32", "bf16")
        for kind, what in (
            ("forward", "lattice reused, forward"),
            ("training", "lattice reused, forward and backward"),
            ("built", "lattice built anew, forward"),
        )
    ]  # fmt: skip


GPU_WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "G1",
        "bilateral filter, 1024 x 1024 colors, d = 5, 16 pixels / 0.1, end to end",
        "cuda",
        partial(_prepare_filter, name="G1"),
        recorded=_recorded(LatticeNet=1.06, MiguelMonteiro=1.73, MONAI=3.39, simplex_gp=3.65, WarpConvNet=10.1),
    ),
    Workload(
        "G1L",
        "the same, 4096 x 4096",
        "cuda",
        partial(_prepare_filter, name="G1L"),
        recorded=_recorded(LatticeNet=13.1, MiguelMonteiro=24.7, MONAI=43.1, simplex_gp=38.6, WarpConvNet=133),
    ),
    Workload(
        "H1",
        "Gaussian filter of 196,608 scattered points, d = 6, 1.3 M lattice points, end to end",
        "cuda",
        partial(_prepare_filter, name="H1"),
        recorded=_recorded(WarpConvNet=5.8),
    ),
    Workload(
        "G3-d3",
        "lattice of a million points near a sphere, d = 3, build only",
        "cuda",
        partial(_prepare_build, name="G3-d3"),
        recorded=_recorded(LatticeNet=0.39, WarpConvNet=6.6),
    ),
    Workload(
        "G3-d5",
        "lattice of a million points in a cube, d = 5, build only",
        "cuda",
        partial(_prepare_build, name="G3-d5"),
        recorded=_recorded(LatticeNet=0.67, WarpConvNet=13.0),
    ),
    Workload(
        "mnist-build-gpu", "the lattices of a batch of 64 MNIST images, d = 2, s = 2", "cuda", prepare_mnist_build
    ),
    Workload(
        "mnist-step",
        "forward and backward through a layer on 64 MNIST images, lattice included",
        "cuda",
        prepare_small_step,
    ),
    Workload(
        "mnist-step-one-thread",
        "the same, the backward pass in the calling thread (torch.autograd.set_multithreading_enabled(False))",
        "cuda",
        partial(prepare_small_step, own_thread=False),
    ),
    *_layers(),
    *_convolutions(),
)
