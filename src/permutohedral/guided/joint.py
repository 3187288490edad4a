"""From coarse samples to all samples of a guide, by the Gaussian over position and guide (Kopf and others 2007)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from permutohedral.features import Sigma, in_units_of
from permutohedral.features import join_features as join
from permutohedral.filters.normalization import check_separable
from permutohedral.guided.grids import Grids
from permutohedral.guided.layout import Layout, features_of
from permutohedral.lattice import Lattice, build_lattice
from permutohedral.memory import check_rows
from permutohedral.neighborhood import blur_gain
from permutohedral.ops import operators
from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.tracing import wants_gradient

# targets that less than this share of one sample reaches are interpolated, the more the less reaches them
LEAST_MASS = 0.1
# target points whose results are brought from rows to channels while they are in the cache
_TILE = 512


@dataclass(frozen=True, eq=False)
class Joint:
    """The lattice under coarse samples, as sources, and those of the guide, as targets.

    Attributes:
        grids: coarse and fine.
        lattice: from `build_lattice` with `separable=True`.
        coarse_guide: `[rows of coarse samples, guide channels]`.
    """

    grids: Grids
    lattice: Lattice
    coarse_guide: Tensor

    def gather(self, rows: Tensor) -> Tensor:
        """Rows of coarse samples to blurred lattice values; one sample alone has the weight `gain` at its place."""
        source = self.lattice.source
        check_rows(3 * source.num_lattice_points, rows.shape[1], rows)
        splatted = operators.splat(rows, source.vertices, source.barycentric, source.num_lattice_points)
        return operators.blur(splatted, check_separable(self.lattice), False)

    @property
    def gain(self) -> float:
        """Of the blur, by which the mass is divided; means have it above and below."""
        return blur_gain(self.lattice.dimension)

    def reach(self, weights: Tensor) -> Reach:
        """Who is reached by coarse samples that count as much as `weights [rows of coarse samples, 1]` say."""
        target = self.lattice.target
        mass = operators.slice(self.gather(weights), target.vertices, target.barycentric)
        return Reach(self, weights, mass / self.gain)


@dataclass(frozen=True, eq=False)
class Reach:
    """How much of the coarse samples comes to each target.

    Attributes:
        joint: the lattice.
        weights: of the coarse samples, `[rows, 1]`.
        mass: `[target rows, 1]`.
    """

    joint: Joint
    weights: Tensor
    mass: Tensor

    @cached_property
    def _normalized(self) -> Tensor:
        """Barycentric weights of the targets divided by their mass, so that a slice has the weighted mean."""
        return self.joint.lattice.target.barycentric / (self.joint.gain * self.mass.clamp_min(LEAST_MASS))

    @cached_property
    def _unreached(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of the targets to interpolate, the coarse samples around them, and the weights of these."""
        rows = (self.mass.detach()[:, 0] < LEAST_MASS).nonzero()[:, 0]
        corners, weights = self.joint.grids.corners(rows, self.mass.dtype)
        share = 1 - self.mass.index_select(0, rows) / LEAST_MASS
        return rows, corners, weights * share

    def average(self, rows: Tensor, complete: Tensor) -> Tensor:
        """Weighted means at all targets, `[target rows, channels]`.

        Args:
            rows: of coarse samples, `[rows, channels]`.
            complete: the same where every sample is known, to interpolate where nothing reaches.
        """
        lattice_values = self.joint.gather(rows * self.weights)
        means = operators.slice(lattice_values, self.joint.lattice.target.vertices, self._normalized)
        unreached, corners, weights = self._unreached
        if unreached.numel() == 0:
            return means
        return means.index_add_(0, unreached, operators.slice(complete, corners, weights))

    def average_to_maps(self, rows: Tensor, complete: Tensor, layout: Layout, channels_last: bool) -> Tensor:
        """`average` as `[..., channels, *space]`, with the channels last or first in memory."""
        vertices, space = self.joint.lattice.target.vertices, self.joint.grids.fine
        if channels_last:
            return layout.from_rows(self.average(rows, complete), space)
        if wants_gradient(rows, self._normalized) or not layout.shared or rows.shape[1] == 1 or rows.is_cuda:
            return layout.from_rows(self.average(rows, complete), space).contiguous()
        lattice_values = self.joint.gather(rows * self.weights)
        check_rows(len(vertices), rows.shape[1], rows)
        planes = rows.new_empty(rows.shape[1], len(vertices))
        for first in range(0, len(vertices), _TILE):
            part = slice(first, first + _TILE)
            # torch copies faster in two steps: within the cache, then along the planes
            planes[:, part] = operators.slice(lattice_values, vertices[part], self._normalized[part]).T.contiguous()
        unreached, corners, weights = self._unreached
        if unreached.numel():
            planes.index_add_(1, unreached, operators.slice(complete, corners, weights).T)
        return planes.view(*layout.leading, layout.channels, *space)


def joint_lattice(guide: Tensor, grids: Grids, sigma_space: Sigma, sigma_range: Sigma) -> Joint:
    """The lattice under `grids.coarse` samples of a guide `[..., channels, *grids.fine]` and under all of them."""
    sources, targets, seen = joint_features(guide, grids, sigma_space, sigma_range)
    lattice = build_lattice(sources, targets, 0, separable=True)
    return Joint(grids, lattice, seen.reshape(-1, seen.shape[-1]))


def joint_features(
    guide: Tensor, grids: Grids, sigma_space: Sigma, sigma_range: Sigma
) -> tuple[Tensor, Tensor, Tensor]:
    """Features of the coarse samples and of all, `[..., points, d]`, and the guide at the coarse ones."""
    axes = len(grids.fine)
    wide = guide.to(accumulation_dtype(guide.dtype))
    targets = features_of(guide, sigma_space, sigma_range, axes)
    seen = grids.observe(wide).flatten(-axes).mT
    positions = in_units_of(grids.positions(wide.dtype, wide.device), sigma_space)
    sources = join(positions, in_units_of(seen, sigma_range))
    if sources.dim() > 3:
        sources = sources.flatten(0, -3)
    return sources, targets, seen


def default_sigma(grids: Grids, share: float) -> list[float]:
    """A bandwidth for each axis: `share` of the distance between coarse samples, but not below half a pixel.

    >>> default_sigma(Grids((4, 4), (32, 16), "area"), 0.5)
    [4.0, 2.0]
    """
    return [max(share * ratio, 0.5) for ratio in grids.ratios]


def ones_for(layout: Layout, joint: Joint) -> Tensor:
    """Weights of coarse samples that all count the same, `[rows, 1]`."""
    items = 1 if layout.shared else math.prod(layout.leading)
    rows = items * math.prod(joint.grids.coarse)
    return torch.ones(rows, 1, dtype=joint.lattice.dtype, device=joint.lattice.device)
