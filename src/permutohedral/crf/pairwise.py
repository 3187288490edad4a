"""The pairwise term: expected costs of labels, from the marginals of all points."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from permutohedral.crf.kernels import Kernel, KernelNormalization
from permutohedral.crf.layout import FieldLayout
from permutohedral.filters.normalization import check_separable
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.memory import check_rows
from permutohedral.ops.backend import Backend
from permutohedral.ops.contract import PairwiseTables, blur_gain
from permutohedral.ops.mean_field import PairwiseFilter
from permutohedral.ops.tracing import is_traced, requires_gradient

# powers of the mass that a kernel is divided by, at its source and at its target
_POWERS: dict[KernelNormalization, tuple[float, float]] = {
    "symmetric": (0.5, 0.5),
    "homogeneous": (0.0, 1.0),
    "transposed": (1.0, 0.0),
    "none": (0.0, 0.0),
}


@dataclass(frozen=True, eq=False)
class Pairwise:
    """A kernel on the rows of all items: K = T S, the filter scaled at either end.

    Attributes:
        lattice: of flat points, `[items * points]`.
        axis_neighbors: of the lattice.
        compatibility: see `Kernel`; a matrix is symmetric.
        normalization: see `Kernel`.
        sample_weight: `[rows, 1]`, or None for ones.
    """

    lattice: Lattice
    axis_neighbors: Tensor
    compatibility: float | Tensor
    normalization: KernelNormalization
    sample_weight: Tensor | None = None

    def tables(self, both_ways: bool) -> PairwiseTables:
        """Return the tables with which a backend adds -K Q mu to logits, up to a constant for each point."""
        source = self.lattice.source
        parameters = _parameters(self.compatibility, self.normalization, self.lattice.dimension)
        return PairwiseTables(source.vertices, source.barycentric, self.axis_neighbors, *parameters, both_ways)

    def filter_on(self, ops: Backend) -> CheckedFilter:
        """Return the kernel as a filter that is composed of primitives."""
        return CheckedFilter(ops, self.tables(False), self.compatibility, self.sample_weight)


class CheckedFilter(PairwiseFilter):
    """A kernel as a filter of rows, which checks the free memory.

    Args:
        ops: runs the primitives.
        tables: of the kernel.
        compatibility: see `Kernel`; a matrix is symmetric.
        sample_weight: how much each point counts, `[rows, 1]`; None for ones.
    """

    def __init__(
        self, ops: Backend, tables: PairwiseTables, compatibility: float | Tensor, sample_weight: Tensor | None = None
    ) -> None:
        super().__init__(ops, tables, sample_weight)
        self.compatibility = compatibility

    def cost(self, marginals: Tensor) -> Tensor:
        """Return K Q mu, the expected cost of each label: `[rows, labels]`."""
        return self.slice(_apply(self.compatibility, self.splat_and_blur(marginals, False)))

    def bound(self) -> Tensor:
        """Return a diagonal `[rows, 1]` that bounds K filtered in both directions: its row sums."""
        sums = self.filter(self.sample_weight, both_ways=True)
        for scale in (self.source_scale, self.target_scale):
            sums = sums if scale is None else sums * scale
        return sums

    def message(self, marginals: Tensor, both_ways: bool | Tensor) -> Tensor:
        blurred, compatibility = self.splat_and_blur(marginals, both_ways), self.compatibility
        # w (1 - I) is -w I up to a constant for each point
        potts = not isinstance(compatibility, Tensor) or compatibility.dim() == 0
        return self.slice(compatibility * blurred if potts else _apply(-compatibility, blurred))

    def splat_and_blur(self, marginals: Tensor, both_ways: bool | Tensor) -> Tensor:
        check_rows(3 * self.tables.axis_neighbors.shape[1] + marginals.shape[0], marginals.shape[1], marginals)
        return super().splat_and_blur(marginals, both_ways)


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
    if isinstance(compatibility, Tensor) and not is_traced() and not requires_gradient(compatibility):
        compatibility = float(compatibility)
    # w (1 - I) is -w I up to a constant
    return *powers, None, compatibility / gain


def prepare(kernel: Kernel, layout: FieldLayout, sample_weight: Tensor | None) -> Pairwise:
    """Return the kernel on the rows of `layout`, whose points count `sample_weight [rows, 1]`."""
    lattice, axis_neighbors = _flatten(kernel.build_lattice(), layout)
    if sample_weight is not None:
        sample_weight = sample_weight.to(lattice.dtype)
    return Pairwise(lattice, axis_neighbors, compatibility_of(kernel), kernel.normalization, sample_weight)


def compatibility_of(kernel: Kernel) -> float | Tensor:
    """Return the costs in dtype and on device of the features; a matrix is made symmetric."""
    compatibility = kernel.compatibility
    if isinstance(compatibility, Tensor):
        compatibility = compatibility.to(kernel.features.device, kernel.features.dtype)
        if compatibility.dim() == 2:
            compatibility = (compatibility + compatibility.T) / 2
    return compatibility


def _apply(compatibility: float | Tensor, filtered: Tensor) -> Tensor:
    """Multiply `filtered [lattice_points, labels]` by the matrix of costs."""
    if not isinstance(compatibility, Tensor) or compatibility.dim() == 0:
        return compatibility * (filtered.sum(dim=1, keepdim=True) - filtered)
    return filtered * compatibility if compatibility.dim() == 1 else filtered @ compatibility


def _flatten(lattice: Lattice, layout: FieldLayout) -> tuple[Lattice, Tensor]:
    """Return the lattice of the points of all items, repeated where items share it, and its axis neighbors."""
    axis_neighbors = check_separable(lattice)
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
