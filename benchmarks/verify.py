"""Checks before timing: an operator that disagrees with the reference on a small instance is not timed.

The judge is the reference backend in float64. The backend under test is compared in float64, where it must
agree to rounding, and in the precision of the workload. `ExactGaussian` measures the error of approximation.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

import permutohedral as ph
from benchmarks.inputs import FilterProblem
from permutohedral.errors import PermutohedralError

# relative L2: some rounding errors of the sums involved
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
# products of float32 whose factors are rounded to 10 bits
TF32_LIMIT = 2e-3
# from features in float32, a point close to the face of a simplex may be put on its other side, where a lattice
# point of almost no weight comes or goes
EMBEDDING_LIMIT = 1e-3


# a source farther away than this, in standard deviations, weighs less than 2e-8 of one at the point itself
_REACH = 6.0
_ROWS_PER_BLOCK = 16


class OperatorDisagrees(PermutohedralError, RuntimeError):
    """An operator's results differ from the reference; its speed is not reported."""

    section = "benchmark"


def check_gaussian(problem: FilterProblem, halo: int = 0) -> dict[str, float]:
    """Check the separable Gaussian filter; the errors found, by dtype."""
    small = problem.small()
    with ph.use_backend("reference"):
        truth = ph.gaussian_filter(small.values.double(), small.features.double(), halo=halo)
    errors = {}
    for dtype in (torch.float64, torch.float32):
        result = ph.gaussian_filter(small.values.to(dtype), small.features.to(dtype), halo=halo)
        limit = LIMITS[dtype] if dtype is torch.float64 else EMBEDDING_LIMIT
        errors[_name(dtype)] = _judge("the Gaussian filter", dtype, relative_error(result, truth), limit)
    return errors


def check_build(features: Tensor, neighborhood_size: int, separable: bool) -> dict[str, float]:
    """Check that a lattice of `features [points, d]` has the reference's lattice points, corners and neighbors."""
    features = features.double()
    with ph.use_backend("reference"):
        truth = ph.build_lattice(features, neighborhood_size=neighborhood_size, separable=separable)
    lattice = ph.build_lattice(features, neighborhood_size=neighborhood_size, separable=separable)
    if not same_lattice(lattice, truth):
        raise OperatorDisagrees(
            "the lattice built in torch.float64 does not have the lattice points and neighbors of the reference; its "
            "speed is not reported"
        )
    weights = relative_error(lattice.source.barycentric, truth.source.barycentric)
    return {"float64": _judge("the barycentric weights", torch.float64, weights, LIMITS[torch.float64])}


def check_convolution(
    features: Tensor, channels: int, neighborhood_size: int, dtype: torch.dtype = torch.float32
) -> dict[str, float]:
    """Check the learned convolution of `channels` to as many, its result and its gradients."""
    generator = torch.Generator().manual_seed(0)
    filter_size = ph.Neighborhood(features.shape[1], neighborhood_size).filter_size
    sizes = ((features.shape[0], channels), (filter_size, channels, channels), (features.shape[0], channels))
    values, weight, gradient = (torch.randn(size, generator=generator).to(features.device) for size in sizes)
    # the precisions share one input, so rounding it does not count
    values, weight, gradient = values.to(dtype), weight.to(dtype) / (filter_size * channels) ** 0.5, gradient.to(dtype)
    features = features.double()
    with ph.use_backend("reference"):
        lattice = ph.build_lattice(features, neighborhood_size=neighborhood_size)
        truth = _with_gradients(values.double(), weight.double(), gradient.double(), lattice)
    lattice = ph.build_lattice(features, neighborhood_size=neighborhood_size)
    errors = {}
    for tested in dict.fromkeys((torch.float64, dtype)):
        on = lattice if tested is torch.float64 else in_precision(lattice, torch.float32)
        results = _with_gradients(values.to(tested), weight.to(tested), gradient.to(tested), on)
        worst = max(map(relative_error, results, truth))
        limit = TF32_LIMIT if tested is torch.float32 and _rounds_products(features.device) else LIMITS[tested]
        errors[_name(tested)] = _judge("the learned convolution or its gradients", tested, worst, limit)
    return errors


def same_lattice(lattice: ph.Lattice, truth: ph.Lattice) -> bool:
    """Whether two lattices are the same but for the order of their lattice points."""
    if lattice.num_lattice_points != truth.num_lattice_points:
        return False
    both, found = torch.unique(torch.cat([truth.source.keys, lattice.source.keys]), dim=0, return_inverse=True)
    if both.shape[0] != truth.num_lattice_points:
        return False
    rows = truth.num_lattice_points
    # where each lattice point of either stands in the common order
    of_truth, of_lattice = found[:rows], found[rows:]
    if not torch.equal(of_truth[truth.source.vertices.long()], of_lattice[lattice.source.vertices.long()]):
        return False
    tables = [(lattice.neighbors, truth.neighbors)]
    if lattice.axis_neighbors is not None and truth.axis_neighbors is not None:
        tables.append((lattice.axis_neighbors, truth.axis_neighbors))
    return all(torch.equal(_in_order(ours, of_lattice), _in_order(theirs, of_truth)) for ours, theirs in tables)


def moved_share(lattice: ph.Lattice, truth: ph.Lattice) -> float:
    """The share of points whose simplex has other corners than in `truth`."""
    corners, expected = (each.source.keys[each.source.vertices.long()] for each in (lattice, truth))
    return float((corners != expected).flatten(1).any(dim=1).double().mean())


def _in_order(neighbors: Tensor, order: Tensor) -> Tensor:
    """A neighbor table with rows and entries renumbered by `order`, -1 kept."""
    renumbered = torch.where(neighbors < 0, -1, order[neighbors.long().clamp_min(0)])
    table = torch.empty_like(renumbered)
    table[:, order] = renumbered
    return table


def in_precision(lattice: ph.Lattice, dtype: torch.dtype) -> ph.Lattice:
    """The same lattice with weights of `dtype`, so that points near a face stay on their side of it."""
    source = replace(lattice.source, barycentric=lattice.source.barycentric.to(dtype))
    return replace(lattice, source=source, target=source)


def _with_gradients(values: Tensor, weight: Tensor, gradient: Tensor, lattice: ph.Lattice) -> tuple[Tensor, ...]:
    values, weight = values.detach().requires_grad_(), weight.detach().requires_grad_()
    size = lattice.neighborhood_size
    output = ph.permutohedral_filter(values, None, weight, neighborhood_size=size, lattice=lattice)
    return (output.detach(), *torch.autograd.grad(output, (values, weight), gradient))


def _rounds_products(device: torch.device) -> bool:
    return device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32


def _judge(what: str, dtype: torch.dtype, error: float, limit: float) -> float:
    if not error <= limit:
        raise OperatorDisagrees(
            f"{what} in {dtype} differs from the reference by {error:.2g}, where {limit:g} is allowed; its speed is "
            "not reported"
        )
    return error


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def relative_error(result: Tensor, truth: Tensor) -> float:
    """Return the relative L2 error, computed in float64.

    >>> relative_error(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0]))
    0.5
    """
    return float((result.double() - truth.double()).norm() / truth.double().norm())


class ExactGaussian:
    """The normalized Gaussian filter of a problem at randomly drawn points, to measure errors against.

    Args:
        problem: the points and their values.
        num_pairs: about how many pairs of points to compute, which sets the number of points drawn.
        most_rows: upper bound of that number.
    """

    def __init__(self, problem: FilterProblem, num_pairs: float = 1e8, most_rows: int = 4096) -> None:
        features = problem.features.double()
        # only sources within reach along the first axis are looked at, so the points are taken along it
        order = features[:, 0].argsort()
        sources = features[order]
        ones = torch.ones_like(sources[:, :1])
        masses = torch.cat([problem.values.double()[order], ones], dim=1)
        extent = float(sources[-1, 0] - sources[0, 0])
        within_reach = min(1.0, 2 * _REACH / max(extent, 1e-9)) * features.shape[0]
        num_rows = max(_ROWS_PER_BLOCK, min(most_rows, features.shape[0], int(num_pairs / within_reach)))
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randperm(features.shape[0], generator=generator)[:num_rows].to(features.device)
        self.rows = drawn[features[drawn, 0].argsort()]
        filtered = [_filter_at(features[rows], sources, masses) for rows in self.rows.split(_ROWS_PER_BLOCK)]
        self.values = torch.cat(filtered)

    def error(self, result: Tensor) -> float:
        """Relative L2 error of a filter's `result [points, channels]`."""
        difference = result[self.rows.to(result.device)].double().to(self.values.device) - self.values
        return float(difference.norm() / self.values.norm())


def _filter_at(targets: Tensor, sources: Tensor, masses: Tensor) -> Tensor:
    """Exact result at `targets [rows, d]`; `sources` ascend along the first axis, the last column of `masses` is 1."""
    reach = torch.stack([targets[0, 0] - _REACH, targets[-1, 0] + _REACH])
    first, last = torch.searchsorted(sources[:, 0].contiguous(), reach).tolist()
    near = sources[first:last]
    products = torch.addmm(near.square().sum(dim=1), targets, near.t(), alpha=-2)
    squares = products.add_(targets.square().sum(dim=1, keepdim=True))
    sums = squares.mul_(-0.5).exp_() @ masses[first:last]
    return sums[:, :-1] / sums[:, -1:]
