"""From coarse samples to all samples of a guide, by the Gaussian over position and guide (Kopf and others 2007)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.features import Sigma, in_units_of
from permutohedral.features import join_features as join
from permutohedral.filters.normalization import check_separable
from permutohedral.guided.grids import Grids
from permutohedral.guided.layout import Layout, features_of
from permutohedral.guided.windows import Windows, find_windows
from permutohedral.lattice import Lattice, build_lattice
from permutohedral.memory import check_rows
from permutohedral.neighborhood import blur_gain
from permutohedral.ops import fused_guided, operators
from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.tracing import is_batched, wants_gradient

# targets that less than this share of one sample reaches are interpolated, the more the less reaches them
LEAST_MASS = 0.1
# target points whose results are brought from rows to planes at a time, where the backend does not write planes
_TILE = 1 << 16


@dataclass(frozen=True, eq=False)
class Joint:
    """The lattice under coarse samples, as sources, and those of the guide, as targets.

    Attributes:
        grids: coarse and fine.
        lattice: from `build_lattice` with `separable=True`.
        sigma_space: bandwidth over positions.
    """

    grids: Grids
    lattice: Lattice
    sigma_space: Sigma

    @cached_property
    def windows(self) -> Windows:
        """The coarse samples that may reach each target."""
        return find_windows(self.grids, self.sigma_space, self.lattice.device)

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

    def upsample(self, maps: Tensor, layout: Layout, steps: int, channels_last: bool) -> Tensor | None:
        """Maps `[..., channels, *coarse]` whose samples all count the same, averaged and corrected `steps` times.

        None where it is composed of `reach` and what is missing: see `fused_guided.upsample_rows`.
        """
        source, target, grids = self.lattice.source, self.lattice.target, self.grids
        tables = source.vertices, source.barycentric, check_separable(self.lattice), target.vertices, target.barycentric
        found = fused_guided.upsample_rows(
            layout.to_rows(maps), tables, grids.table, LEAST_MASS, steps, not channels_last
        )
        return None if found is None else layout.from_found(found, grids.fine, channels_last)

    def reach(self, weights: Tensor) -> Reach:
        """Who is reached by coarse samples that count as much as `weights [rows of coarse samples, 1]` say."""
        target = self.lattice.target
        mass = operators.slice(self.gather(weights), target.vertices, target.barycentric)
        return Reach(self, weights, mass / self.gain)

    def mixture(self, weights: Tensor) -> Mixture:
        """What `reach` averages, as weights of the coarse samples at each target: for many channels."""
        target, windows = self.lattice.target, self.windows
        items = len(weights) // math.prod(self.grids.coarse)
        gathered = self.gather(windows.indicators(items, weights.dtype) * weights)
        shares = operators.slice(gathered, target.vertices, target.barycentric)
        mass = shares.sum(dim=1, keepdim=True) / self.gain
        # in place: new pages take longer than the sums
        shares = shares.div_(mass.clamp_min(LEAST_MASS) * self.gain)
        rows, corners, between = _unreached(self.grids, mass)
        if rows.numel():
            places = rows[:, None] * windows.slots + windows.slots_of(corners)
            shares.view(-1).index_add_(0, places.view(-1), between.view(-1))
        return Mixture(self.grids, windows.samples(items), shares)


def _unreached(grids: Grids, mass: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the targets to interpolate, the coarse samples around them, and how much of these is to be added."""
    if is_batched(mass):
        raise InputError(
            "torch.vmap goes over maps in which all is known: give these batch axes, [..., channels, *space], instead"
        )
    rows = (mass.detach()[:, 0] < LEAST_MASS).nonzero()[:, 0]
    corners, weights = grids.corners(rows, mass.dtype)
    return rows, corners, weights * (1 - mass.index_select(0, rows) / LEAST_MASS)


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
        return _unreached(self.joint.grids, self.mass)

    def average(self, complete: Tensor, layout: Layout, channels_last: bool) -> Tensor:
        """Weighted means at all targets, `[..., channels, *space]`, with the channels last or first in memory.

        Args:
            complete: values of all coarse samples, `[..., channels, *coarse]`, of weight zero those to interpolate.
            layout: of the maps.
            channels_last: in memory.
        """
        rows = layout.to_rows(complete)
        lattice_values = self.joint.gather(rows * self.weights)
        means = operators.slice(lattice_values, self.joint.lattice.target.vertices, self._normalized)
        unreached, corners, weights = self._unreached
        if unreached.numel():
            means = means.index_add_(0, unreached, operators.slice(rows, corners, weights))
        maps = layout.from_rows(means, self.joint.grids.fine)
        return maps if channels_last else maps.contiguous()


@dataclass(frozen=True, eq=False)
class Mixture:
    """Each target as a sum of coarse samples.

    Attributes:
        grids: coarse and fine.
        samples: rows of coarse samples, int32 `[target rows, terms]`.
        shares: how much of each, `[target rows, terms]`, of which many are zero.
    """

    grids: Grids
    samples: Tensor
    shares: Tensor

    def average(self, complete: Tensor, layout: Layout, channels_last: bool) -> Tensor:
        """As `Reach.average`."""
        rows = layout.to_rows(complete)
        check_rows(len(self.samples), rows.shape[1], rows)
        if channels_last:
            means = fused_guided.mix_rows(rows, self.samples, self.shares, False)
            if means is None:
                means = operators.slice(rows, self.samples, self.shares)
            return layout.from_rows(means, self.grids.fine)
        parts = zip(self.samples.chunk(layout.guides), self.shares.chunk(layout.guides), strict=True)
        planes = [mix_planes(rows, samples, shares) for samples, shares in parts]
        maps = planes[0] if len(planes) == 1 else torch.stack(planes)
        return maps.view(*layout.leading, layout.channels, *self.grids.fine)


def mix_planes(rows: Tensor, samples: Tensor, shares: Tensor) -> Tensor:
    """Sums of rows with the channels first, `[channels, targets]`, without a second copy of all of them."""
    planes = fused_guided.mix_rows(rows, samples, shares, True)
    if planes is not None:
        return planes
    if len(samples) <= _TILE or wants_gradient(rows, shares):
        return operators.slice(rows, samples, shares).T.contiguous()
    planes = rows.new_empty(rows.shape[1], len(samples))
    for first in range(0, len(samples), _TILE):
        part = slice(first, first + _TILE)
        planes[:, part] = operators.slice(rows, samples[part], shares[part]).T
    return planes


def joint_lattice(
    guide: Tensor, grids: Grids, sigma_space: Sigma, sigma_range: Sigma, origin: Sequence[int] | None = None
) -> Joint:
    """The lattice under `grids.coarse` samples of a guide `[..., channels, *grids.fine]` and under all of them."""
    sources, targets = joint_features(guide, grids, sigma_space, sigma_range, origin)
    if sources.dim() == 3 and len(sources) == 1:
        # points of one item need not be told apart
        sources, targets = sources[0], targets[0]
    return Joint(grids, build_lattice(sources, targets, 0, separable=True), sigma_space)


def joint_features(
    guide: Tensor, grids: Grids, sigma_space: Sigma, sigma_range: Sigma, origin: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Features of the coarse samples and of all, `[points, d]`, or `[items, points, d]` of a batch."""
    sources = None
    if origin is None:
        sources = fused_guided.cell_features(guide, grids.table, sigma_space, sigma_range)
    if sources is None:
        sources = _coarse_features(guide, grids, sigma_space, sigma_range, origin)
    sources = sources.flatten(0, -3) if sources.dim() > 3 else sources
    return sources, features_of(guide, sigma_space, sigma_range, len(grids.fine), origin)


def _coarse_features(
    guide: Tensor, grids: Grids, sigma_space: Sigma, sigma_range: Sigma, origin: Sequence[int] | None
) -> Tensor:
    wide = guide.to(accumulation_dtype(guide.dtype))
    seen = grids.observe(wide).flatten(-len(grids.fine)).mT
    positions = grids.positions(wide.dtype, wide.device)
    if origin is not None:
        positions = positions + positions.new_tensor(origin)
    return join(in_units_of(positions, sigma_space), in_units_of(seen, sigma_range))


def default_sigma(grids: Grids, share: float) -> float | list[float]:
    """A bandwidth for each axis: `share` of the distance between coarse samples, but not below half a pixel.

    >>> default_sigma(Grids((4, 4), (32, 16), "area"), 0.5), default_sigma(Grids((4, 4), (32, 32), "area"), 0.5)
    ([4.0, 2.0], 4.0)
    """
    sigmas = [max(share * ratio, 0.5) for ratio in grids.ratios]
    return sigmas[0] if len(set(sigmas)) == 1 else sigmas


def ones_for(layout: Layout, joint: Joint) -> Tensor:
    """Weights of coarse samples that all count the same, `[rows, 1]`."""
    rows = layout.guides * math.prod(joint.grids.coarse)
    return torch.ones(rows, 1, dtype=joint.lattice.dtype, device=joint.lattice.device)
