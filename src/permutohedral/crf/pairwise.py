"""The pairwise term: expected costs of labels, from the marginals of all points."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from permutohedral.crf.kernels import Kernel, KernelNormalization
from permutohedral.crf.layout import Layout
from permutohedral.errors import InputError
from permutohedral.filters.steps import slice, splat
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.memory import check_rows
from permutohedral.ops import operators
from permutohedral.ops.contract import SMALLEST_MASS, PairwiseTables, blur_gain
from permutohedral.ops.tracing import requires_gradient

# powers of the mass that a kernel is divided by, at its source and at its target
_POWERS: dict[KernelNormalization, tuple[float, float]] = {
    "symmetric": (0.5, 0.5),
    "before": (1.0, 0.0),
    "after": (0.0, 1.0),
    "none": (0.0, 0.0),
}


@dataclass(frozen=True, eq=False)
class Pairwise:
    """A kernel on the rows of all items: K = T S, the filter scaled at either end.

    A backend takes its `tables`, and `compose` makes it of operators.

    Attributes:
        lattice: of flat points, `[items * points]`.
        axis_neighbors: of the lattice.
        compatibility: see `Kernel`; a matrix is symmetric.
        normalization: see `Kernel`.
    """

    lattice: Lattice
    axis_neighbors: Tensor
    compatibility: float | Tensor
    normalization: KernelNormalization

    def tables(self, both_ways: bool) -> PairwiseTables:
        """Return the tables with which a backend adds -K Q mu to logits, up to a constant for each point."""
        source = self.lattice.source
        parameters = _parameters(self.compatibility, self.normalization, self.lattice.dimension)
        return PairwiseTables(source.vertices, source.barycentric, self.axis_neighbors, *parameters, both_ways)

    @property
    def parameter(self) -> float | Tensor:
        """The costs in `tables` or, without costs, the factor."""
        _, _, costs, factor = _parameters(self.compatibility, self.normalization, self.lattice.dimension)
        return factor if costs is None else costs

    def with_costs(self, parameter: float | Tensor) -> Pairwise:
        """Return the kernel with other costs, or another factor, of its `tables`."""
        if isinstance(parameter, Tensor) and parameter.dim() > 0:
            return replace(self, compatibility=parameter)
        return replace(self, compatibility=parameter * _gain(self.normalization, self.lattice.dimension))

    def compose(self) -> ComposedPairwise:
        """Return the kernel as a filter made of operators."""
        before, after = _scales_of(self)
        source = self.lattice.source.barycentric
        target = source / blur_gain(self.lattice.dimension)
        # scales are part of the weights of splat and slice
        source, target = source if before is None else source * before, target if after is None else target * after
        return ComposedPairwise(self, (before, after), source, target)


@dataclass(frozen=True, eq=False)
class ComposedPairwise:
    """A kernel as a filter made of operators.

    Attributes:
        kernel: the kernel.
        scales: factors of values before the filter and of results, `[rows, 1]`; None for ones.
        source_weights: barycentric weights of the splat, scaled.
        target_weights: barycentric weights of the slice, scaled.
    """

    kernel: Pairwise
    scales: tuple[Tensor | None, Tensor | None]
    source_weights: Tensor
    target_weights: Tensor

    def cost(self, marginals: Tensor) -> Tensor:
        """Return K Q mu, the expected cost of each label: `[rows, labels]`."""
        return self._slice(_apply(self.kernel.compatibility, self._blur(marginals, False)))

    def gain(self, marginals: Tensor, both_ways: bool | Tensor) -> Tensor:
        """Return -K Q mu for logits, `[rows, labels]`, up to a constant for each point."""
        blurred, compatibility = self._blur(marginals, both_ways), self.kernel.compatibility
        # w (1 - I) is -w I up to such a constant
        potts = not isinstance(compatibility, Tensor) or compatibility.dim() == 0
        return self._slice(compatibility * blurred if potts else _apply(-compatibility, blurred))

    def bound(self) -> Tensor:
        """Return a diagonal `[rows, 1]` that bounds K filtered in both directions: its row sums."""
        lattice = self.kernel.lattice
        ones = lattice.source.barycentric.new_ones(lattice.source.num_points, 1)
        sums = _filter(ones, lattice, self.kernel.axis_neighbors, both_ways=True)
        for scale in self.scales:
            sums = sums if scale is None else sums * scale
        return sums

    def _blur(self, marginals: Tensor, both_ways: bool | Tensor) -> Tensor:
        lattice = self.kernel.lattice
        rows = lattice.num_lattice_points
        check_rows(3 * rows + marginals.shape[0], marginals.shape[1], marginals)
        splatted = operators.splat(marginals, lattice.source.vertices, self.source_weights, rows)
        return _blur(splatted, self.kernel.axis_neighbors, both_ways)

    def _slice(self, lattice_values: Tensor) -> Tensor:
        return operators.slice(lattice_values, self.kernel.lattice.source.vertices, self.target_weights)


def _scales_of(kernel: Pairwise) -> tuple[Tensor | None, Tensor | None]:
    """Return the factors of values before the filter and of results, `[rows, 1]`; None for ones."""
    source, target = _POWERS[kernel.normalization]
    if source == target == 0:
        return None, None
    lattice = kernel.lattice
    ones = lattice.source.barycentric.new_ones(lattice.source.num_points, 1)
    mass = _filter(ones, lattice, kernel.axis_neighbors) + SMALLEST_MASS
    scale = mass.rsqrt() if source == target else mass.reciprocal()
    return scale if source > 0 else None, scale if target > 0 else None


def _gain(normalization: KernelNormalization, dimension: int) -> float:
    """Return the gain to divide by; a division by the mass includes it."""
    return blur_gain(dimension) if _POWERS[normalization] == (0, 0) else 1.0


def _parameters(
    compatibility: float | Tensor, normalization: KernelNormalization, dimension: int
) -> tuple[float, float, Tensor | None, float | Tensor]:
    """Return powers, costs and factor of `PairwiseTables`."""
    powers, gain = _POWERS[normalization], _gain(normalization, dimension)
    if isinstance(compatibility, Tensor) and compatibility.dim() > 0:
        return *powers, torch.diag(compatibility) if compatibility.dim() == 1 else compatibility, -1 / gain
    if isinstance(compatibility, Tensor) and not requires_gradient(compatibility):
        compatibility = float(compatibility)
    # w (1 - I) is -w I up to a constant
    return *powers, None, compatibility / gain


def prepare(kernel: Kernel, lattice: Lattice, layout: Layout) -> Pairwise:
    """Return the kernel on the rows of `layout`."""
    if lattice.source.num_points not in (layout.points, layout.num_items * layout.points):
        raise InputError(f"a lattice of {lattice.source.num_points} points does not fit a kernel of {layout.points}")
    if lattice.axis_neighbors is None or lattice.target is not lattice.source:
        raise InputError("the lattice of a kernel is that of Kernel.build_lattice, with separable=True and no targets")
    lattice, axis_neighbors = _flatten(lattice, lattice.axis_neighbors, layout)
    return Pairwise(lattice, axis_neighbors, compatibility_of(kernel), kernel.normalization)


def compatibility_of(kernel: Kernel) -> float | Tensor:
    """Return the costs in dtype and on device of the features; a matrix is made symmetric."""
    compatibility = kernel.compatibility
    if isinstance(compatibility, Tensor):
        compatibility = compatibility.to(kernel.features.device, kernel.features.dtype)
        if compatibility.dim() == 2:
            compatibility = (compatibility + compatibility.T) / 2
    return compatibility


def _filter(rows: Tensor, lattice: Lattice, axis_neighbors: Tensor, both_ways: bool = False) -> Tensor:
    """Apply the Gaussian without normalization."""
    blurred = _blur(splat(rows, lattice), axis_neighbors, both_ways)
    return slice(blurred / blur_gain(lattice.dimension), lattice)


def _blur(lattice_values: Tensor, axis_neighbors: Tensor, both_ways: bool | Tensor) -> Tensor:
    """Blur forward, or return the mean of forward and reverse blurs, which is symmetric."""
    blurred = operators.blur(lattice_values, axis_neighbors, False)
    if both_ways is False:
        return blurred
    symmetric = (blurred + operators.blur(lattice_values, axis_neighbors, True)) / 2
    return torch.where(both_ways, symmetric, blurred) if isinstance(both_ways, Tensor) else symmetric


def _apply(compatibility: float | Tensor, filtered: Tensor) -> Tensor:
    """Multiply `filtered [lattice_points, labels]` by the matrix of costs."""
    if not isinstance(compatibility, Tensor) or compatibility.dim() == 0:
        return compatibility * (filtered.sum(dim=1, keepdim=True) - filtered)
    return filtered * compatibility if compatibility.dim() == 1 else filtered @ compatibility


def _flatten(lattice: Lattice, axis_neighbors: Tensor, layout: Layout) -> tuple[Lattice, Tensor]:
    """Return the lattice of the points of all items, repeated where items share it."""
    if lattice.batch_size is not None:
        return replace(lattice, batch_size=None), axis_neighbors
    items, source = layout.num_items, lattice.source
    if items == 1:
        return lattice, axis_neighbors
    rows = source.num_lattice_points
    first = torch.arange(items, dtype=torch.int32, device=lattice.device)
    vertices = (source.vertices + rows * first[:, None, None]).flatten(0, 1)
    neighbors = axis_neighbors[:, None] + rows * first[:, None]
    neighbors = torch.where(axis_neighbors[:, None] < 0, -1, neighbors).flatten(1)
    keys = torch.cat([first.repeat_interleave(rows)[:, None], source.keys[:, 1:].repeat(items, 1)], dim=1)
    repeated = replace(
        source, keys=keys, vertices=vertices, barycentric=source.barycentric.repeat(items, 1), table=source.table[:0]
    )
    return replace(lattice, source=repeated, target=repeated, axis_neighbors=neighbors), neighbors
