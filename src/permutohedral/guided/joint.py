"""From coarse samples to all samples of a guide, on a lattice over positions and guide.

`Reach` and `Mixture` are Gaussian means (joint bilateral upsampling, Kopf et al. 2007). `affine_model` fits values as
affine functions of the guide (the guided filter of He et al. 2010, with Gaussian windows).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from permutohedral.features import FEATURE_SHIFT, Sigma, in_units_of
from permutohedral.features import join as join_features
from permutohedral.filters.normalization import check_separable
from permutohedral.guided.grids import Grids, Windows, find_windows
from permutohedral.guided.maps import MapLayout, features_of
from permutohedral.lattice.lattice import Lattice, build_lattice
from permutohedral.lattice.memory import check_rows
from permutohedral.ops.binding import bind
from permutohedral.ops.contract import accumulation_dtype, blur_gain
from permutohedral.ops.tracing import is_batched, is_recorded

# targets of a smaller mass, in units of one sample, are blended with linear interpolation
LEAST_MASS = 0.1
# the affine model of lattice points of a smaller mass gives way to linear interpolation
_LEAST_MODEL_MASS = 1e-3


@dataclass(frozen=True, eq=False)
class Joint:
    """A lattice whose sources are the coarse samples and whose targets are the samples of the guide.

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
        """The coarse samples that can have weight at each target."""
        return find_windows(self.grids, self.sigma_space, self.lattice.device)

    def gather(self, rows: Tensor) -> Tensor:
        """Splat and blur rows of coarse samples; a single sample has the weight `gain` at its place."""
        source = self.lattice.source
        check_rows(3 * source.num_lattice_points, rows.shape[1], rows)
        ops = bind(rows, source.barycentric)
        splatted = ops.splat(rows, source.vertices, source.barycentric, source.num_lattice_points)
        return ops.blur(splatted, check_separable(self.lattice), False)

    @property
    def gain(self) -> float:
        """Gain of the blur."""
        return blur_gain(self.lattice.dimension)

    def reach(self, weights: Tensor) -> Reach:
        """Return the mass of coarse samples with these weights, `[rows, 1 or channels]`, at each target."""
        target = self.lattice.target
        mass = _slice(self.gather(weights), target.vertices, target.barycentric) / self.gain
        return Reach(self, weights, mass, Interpolation(self.grids, (1 - mass / LEAST_MASS).clamp_min(0)))

    def mixture(self, weights: Tensor) -> Mixture:
        """Return the means of `reach` as weights of the coarse samples at each target, for many channels."""
        target, windows = self.lattice.target, self.windows
        items = len(weights) // math.prod(self.grids.coarse)
        gathered = self.gather(windows.indicators(items, weights.dtype) * weights)
        shares = _slice(gathered, target.vertices, target.barycentric)
        mass = shares.sum(dim=1, keepdim=True) / self.gain
        # in place: new pages take longer than the sums
        shares = shares.div_(mass.clamp_min(LEAST_MASS) * self.gain)
        rows, corners, between = Interpolation(self.grids, (1 - mass / LEAST_MASS).clamp_min(0)).terms
        if rows.numel():
            places = rows[:, None] * windows.slots + windows.slots_of(corners)
            shares.view(-1).index_add_(0, places.view(-1), between.view(-1))
        return Mixture(self.grids, windows.samples(items), shares)


@dataclass(frozen=True, eq=False)
class Interpolation:
    """Linear interpolation of coarse samples at the targets that too few samples reach.

    Attributes:
        grids: coarse and fine.
        share: of the interpolation in the result, `[target rows, 1]` or `[target rows, channels]`.
    """

    grids: Grids
    share: Tensor

    @cached_property
    def terms(self) -> tuple[Tensor, Tensor, Tensor]:
        """The rows of the targets with a positive share, the coarse samples around them, and their weights."""
        rows = (self.share.detach()[:, 0] > 0).nonzero()[:, 0]
        corners, weights = self.grids.corners(rows, self.share.dtype)
        return rows, corners, weights * self.share.index_select(0, rows)

    def add_to(self, means: Tensor, complete: Tensor, layout: MapLayout) -> Tensor:
        """Add the interpolation of maps `[..., channels, *coarse]` to `means [target rows, channels]`."""
        if self.share.shape[1] > 1 or is_recorded() or is_batched(self.share):
            # everywhere: the targets differ by channel or cannot be read
            return means + self.share * layout.to_rows(self.grids.interpolate(complete))
        rows, corners, weights = self.terms
        if rows.numel():
            means = means.index_add_(0, rows, _slice(layout.to_rows(complete), corners, weights))
        return means


@dataclass(frozen=True, eq=False)
class Reach:
    """The mass of coarse samples at each target.

    Attributes:
        joint: the lattice.
        weights: of the coarse samples, `[rows, 1]` or `[rows, channels]`.
        mass: `[target rows, 1]` or `[target rows, channels]`.
        interpolation: at targets of little mass.
    """

    joint: Joint
    weights: Tensor
    mass: Tensor
    interpolation: Interpolation

    @cached_property
    def _normalized(self) -> Tensor:
        """Barycentric weights of the targets divided by their mass: a slice yields the weighted mean."""
        return self.joint.lattice.target.barycentric / (self.joint.gain * self.mass.clamp_min(LEAST_MASS))

    def average(self, complete: Tensor, layout: MapLayout, channels_last: bool) -> Tensor:
        """Return weighted means at all targets, `[..., channels, *space]`.

        Args:
            complete: values of all coarse samples, `[..., channels, *coarse]`, filled where the weight is zero.
            layout: of the maps.
            channels_last: whether the channels of the result are last in memory.
        """
        target = self.joint.lattice.target
        lattice_values = self.joint.gather(layout.to_rows(complete) * self.weights)
        if self.weights.shape[1] > 1:
            sums = _slice(lattice_values, target.vertices, target.barycentric)
            means = sums / (self.joint.gain * self.mass.clamp_min(LEAST_MASS))
        else:
            means = _slice(lattice_values, target.vertices, self._normalized)
        maps = layout.from_rows(self.interpolation.add_to(means, complete, layout), self.joint.grids.fine)
        return maps if channels_last else maps.contiguous()


@dataclass(frozen=True, eq=False)
class Mixture:
    """Each target as a sum of coarse samples.

    Attributes:
        grids: coarse and fine.
        samples: rows of coarse samples, int32 `[target rows, terms]`.
        shares: their weights, `[target rows, terms]`, many of which are zero.
    """

    grids: Grids
    samples: Tensor
    shares: Tensor

    def average(self, complete: Tensor, layout: MapLayout, channels_last: bool) -> Tensor:
        """Return weighted means at all targets, as `Reach.average`."""
        rows = layout.to_rows(complete)
        check_rows(len(self.samples), rows.shape[1], rows)
        if channels_last:
            return layout.from_rows(_slice(rows, self.samples, self.shares), self.grids.fine)
        parts = zip(self.samples.chunk(layout.guides), self.shares.chunk(layout.guides), strict=True)
        planes = [bind(rows, self.shares).slice_planes(rows, *part) for part in parts]
        maps = planes[0] if len(planes) == 1 else torch.stack(planes)
        return maps.view(*layout.leading, layout.channels, *self.grids.fine)


def _slice(rows: Tensor, vertices: Tensor, weights: Tensor) -> Tensor:
    return bind(rows, weights).slice(rows, vertices, weights)


def joint_lattice(
    guide: Tensor, grids: Grids, sigma_space: Sigma, sigma_color: Sigma, origin: Sequence[int] | None = None
) -> Joint:
    """Build the lattice of a guide `[..., channels, *grids.fine]`, from `grids.coarse` samples to all samples."""
    sources, targets = joint_features(guide, grids, sigma_space, sigma_color, origin)
    if sources.dim() == 3 and len(sources) == 1:
        # keys of a single item need no batch index
        sources, targets = sources[0], targets[0]
    return Joint(grids, build_lattice(sources, targets, neighborhood_size=0, separable=True), sigma_space)


def joint_features(
    guide: Tensor, grids: Grids, sigma_space: Sigma, sigma_color: Sigma, origin: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the features of coarse samples and of all samples, `[points, d]`, or `[items, points, d]` of a batch."""
    targets = features_of(guide, sigma_space, sigma_color, len(grids.fine), origin)
    wide = guide.to(accumulation_dtype(guide.dtype))
    seen = grids.observe(wide).flatten(-len(grids.fine)).mT
    positions = grids.positions(wide.dtype, wide.device)
    if origin is not None:
        positions = positions + positions.new_tensor(origin)
    sources = join_features(in_units_of(positions, sigma_space), in_units_of(seen, sigma_color)) + FEATURE_SHIFT
    return sources.flatten(0, -3) if sources.dim() > 3 else sources, targets


def default_sigma(grids: Grids, share: float) -> float | list[float]:
    """Return a bandwidth per axis: `share` of the distance between coarse samples, at least half a pixel.

    >>> default_sigma(Grids((4, 4), (32, 16), "area"), 0.5), default_sigma(Grids((4, 4), (32, 32), "area"), 0.5)
    ([4.0, 2.0], 4.0)
    """
    sigmas = [max(share * ratio, 0.5) for ratio in grids.ratios]
    return sigmas[0] if len(set(sigmas)) == 1 else sigmas


def ones_for(layout: MapLayout, joint: Joint) -> Tensor:
    """Return equal weights of all coarse samples, `[rows, 1]`."""
    rows = layout.guides * math.prod(joint.grids.coarse)
    return torch.ones(rows, 1, dtype=joint.lattice.dtype, device=joint.lattice.device)


def affine_model(
    joint: Joint, rows: Tensor, weights: Tensor, guides: tuple[Tensor, Tensor], ridge: float
) -> tuple[Tensor, Interpolation]:
    """Fit values as affine functions of the guide on the lattice, and evaluate them at all targets.

    Moments of guide and values are gathered on the lattice. Ridge regressions there give coefficients, which are
    interpolated at the targets. A result depends on samples near it only, so that parts of an image are computed alike.

    Args:
        joint: the lattice under coarse samples and targets.
        rows: values of the coarse samples, `[rows, channels]`.
        weights: of the coarse samples, `[rows, 1]`.
        guides: at the coarse samples and at the targets, `[rows or target rows, guide channels]`.
        ridge: added to the variances of the guide; larger values make the function flatter.

    Returns:
        `[target rows, channels]`, and the interpolation to add where lattice points have no samples.
    """
    coarse_guide, guide = guides
    number, channels = guide.shape[1], rows.shape[1]
    # moments are taken about the means of all samples, for precision
    center, offset = (_mean_of_items(joint, each, weights) for each in (coarse_guide, rows))
    samples, pixels = math.prod(joint.grids.coarse), math.prod(joint.grids.fine)
    about, values = coarse_guide - _repeat(center, samples), rows - _repeat(offset, samples)
    squares, products = about[:, :, None] * about[:, None, :], about[:, :, None] * values[:, None, :]
    moments = torch.cat([torch.ones_like(weights), about, values, squares.flatten(1), products.flatten(1)], dim=1)
    gathered = joint.gather(moments * weights)
    mass = gathered[:, :1]
    known = (mass / (joint.gain * _LEAST_MODEL_MASS)).clamp_max(1)
    sizes = [1, number, channels, number * number, number * channels]
    means = gathered / mass.clamp_min(torch.finfo(mass.dtype).tiny)
    _, about, values, squares, products = means.split(sizes, dim=1)
    variance = squares.unflatten(1, (number, number)) - about[:, :, None] * about[:, None, :]
    covariance = products.unflatten(1, (number, channels)) - about[:, :, None] * values[:, None, :]
    variance = variance + ridge * torch.eye(number, dtype=rows.dtype, device=rows.device)
    slope = covariance / variance if number == 1 else torch.linalg.solve(variance, covariance)
    intercept = values - (slope * about[:, :, None]).sum(dim=1)
    target = joint.lattice.target
    model = torch.cat([known * slope.flatten(1), known * intercept, 1 - known], dim=1)
    model = _slice(model, target.vertices, target.barycentric)
    slopes, intercepts, unknown = model.split([number * channels, channels, 1], dim=1)
    about = guide - _repeat(center, pixels)
    result = (slopes.unflatten(1, (number, channels)) * about[:, :, None]).sum(dim=1) + intercepts
    return result + (1 - unknown) * _repeat(offset, pixels), Interpolation(joint.grids, unknown)


def _mean_of_items(joint: Joint, rows: Tensor, weights: Tensor) -> Tensor:
    """Return the mean of all samples of each item, `[items, channels]`, without derivatives."""
    samples = math.prod(joint.grids.coarse)
    items = len(rows) // samples
    rows, weights = rows.detach().view(items, samples, rows.shape[1]), weights.detach().view(items, samples, 1)
    return (rows * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(torch.finfo(weights.dtype).tiny)


def _repeat(numbers: Tensor, times: int) -> Tensor:
    """Repeat the numbers of each item for its rows."""
    return numbers if len(numbers) == 1 else numbers.repeat_interleave(times, dim=0)
