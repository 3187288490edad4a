"""A coarse map brought to the size of a picture, along its edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.features import Sigma
from permutohedral.guided.affine import affine_model
from permutohedral.guided.arrays import Data, as_given, optional_tensor, to_tensor
from permutohedral.guided.grids import Grids, Sampling, fill_unknown
from permutohedral.guided.joint import LEAST_MASS, default_sigma, joint_lattice, ones_for
from permutohedral.guided.layout import Layout, check_space, is_channels_last, known_values, layout_of
from permutohedral.guided.solver import BilateralSolver
from permutohedral.ops import fused_guided
from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.tensors import check_count

UpsamplingMode = Literal["gaussian", "affine", "solver"]

# by mode: bandwidth over positions as a share of the distance between coarse samples, and steps
_DEFAULTS: dict[UpsamplingMode, tuple[float, int]] = {"gaussian": (0.5, 2), "affine": (1.0, 2), "solver": (0.75, 16)}

# sums of more coarse samples are not computed term by term
_MOST_SLOTS = 64
# no window is so small that fewer are worth it
_FEWEST_CHANNELS = 8


class Upsampler:
    """Upsampling along the edges of one guide, for any number of maps of one size: it holds the lattice.

    Args:
        guide: float `[guide channels, *space]`, or `[..., guide channels, *space]` with a guide for each item; a NumPy
            array, too.
        size: extents of the coarse maps.
        sigma_space: see `upsample`.
        sigma_range: see `upsample`.
        mode: see `upsample`.
        sampling: see `upsample`.
        spatial_axes: see `upsample`.
        origin: position of the first sample of the guide, for a part of a larger one: of two parts that overlap by
            `reach`, the results agree. The solver, in which all samples matter to all, has none.

    >>> import permutohedral as ph
    >>> upsampler = ph.Upsampler(torch.rand(3, 48, 64), size=(6, 8))
    >>> upsampler(torch.rand(1, 6, 8)).shape, upsampler(torch.rand(2, 5, 6, 8)).shape
    (torch.Size([1, 48, 64]), torch.Size([2, 5, 48, 64]))
    """

    def __init__(  # noqa: PLR0913 (the guide, its bandwidths, and where things lie)
        self,
        guide: Data,
        size: tuple[int, ...],
        sigma_space: Sigma | None = None,
        sigma_range: Sigma = 0.1,
        mode: UpsamplingMode = "gaussian",
        *,
        sampling: Sampling = "area",
        spatial_axes: int = 2,
        origin: Sequence[int] | None = None,
    ) -> None:
        if mode == "solver" and origin is not None:
            raise InputError("the solver has no parts: leave out the origin, or take another mode")
        if mode not in _DEFAULTS:
            raise InputError(f"mode must be one of {', '.join(map(repr, _DEFAULTS))}, got {mode!r}")
        self.mode: UpsamplingMode = mode
        self._guide = to_tensor(guide)
        self.grids = Grids(tuple(size), check_space(self._guide, spatial_axes), sampling)
        share, self._steps = _DEFAULTS[mode]
        sigma = default_sigma(self.grids, share) if sigma_space is None else sigma_space
        if mode == "solver":
            self._solver = BilateralSolver(self._guide, sigma, sigma_range, spatial_axes=spatial_axes)
        else:
            self._joint = joint_lattice(self._guide, self.grids, sigma, sigma_range, origin)

    def __call__(
        self,
        coarse: Data,
        confidence: Data | None = None,
        steps: int | None = None,
        *,
        smoothness: float | Tensor = 0.3,
        ridge: float = 1e-3,
    ) -> Data:
        """See `upsample`."""
        if not 0 < ridge < math.inf:
            raise InputError(f"ridge must be positive and finite, got {ridge}")
        found = self._upsample(to_tensor(coarse), optional_tensor(confidence), steps, smoothness, ridge)
        return as_given(found, coarse)

    def _upsample(
        self, coarse: Tensor, confidence: Tensor | None, steps: int | None, smoothness: float | Tensor, ridge: float
    ) -> Tensor:
        axes = len(self.grids.coarse)
        layout = layout_of("coarse", coarse, tuple(self._guide.shape[: -axes - 1]), self._guide.device, axes)
        if tuple(coarse.shape[-axes:]) != self.grids.coarse:
            raise InputError(f"this upsampler is for maps of {self.grids.coarse}, got {tuple(coarse.shape[-axes:])}")
        steps = self._steps if steps is None else steps
        check_count("steps", steps)
        if self.mode == "solver":
            return self._solve(coarse, confidence, steps, smoothness)
        maps, weights = known_values(coarse.to(self._joint.lattice.dtype), confidence, axes)
        # of no items none counts less than another
        weights = _in_units_of_mean(weights, axes) if weights is not None and maps.numel() else None
        channels_last = is_channels_last(coarse, axes)
        if layout.shared and layout.leading and weights is not None:
            # each item knows something else
            items = zip(maps.flatten(0, -axes - 2), weights.flatten(0, -axes - 2), strict=True)
            one = Layout((), layout.channels, True)
            results = [self._filter(each, weight, one, (steps, ridge, channels_last)) for each, weight in items]
            upsampled = torch.stack(results).view(*layout.leading, *results[0].shape)
        else:
            upsampled = self._filter(maps, weights, layout, (steps, ridge, channels_last))
        return upsampled.to(coarse.dtype)

    def _solve(self, coarse: Tensor, confidence: Tensor | None, steps: int, smoothness: float | Tensor) -> Tensor:
        if self.grids.sampling == "area":
            return self._solver(coarse, confidence, smoothness, observe="cells", iterations=steps, tolerance=0.0)
        if len(self._guide.shape) > len(self.grids.fine) + 1:
            raise InputError("the solver takes samples at points for one guide: give it without batch axes")
        axes = len(self.grids.coarse)
        places = self.grids.positions(torch.float64, coarse.device)
        flat = None if confidence is None else confidence.flatten(-axes)
        # a sample stands for as many pixels as a cell has
        weight = smoothness / math.prod(self.grids.ratios)
        return self._solver(coarse.flatten(-axes), flat, weight, observe=places, iterations=steps, tolerance=0.0)

    def _filter(self, maps: Tensor, weights: Tensor | None, layout: Layout, options: tuple[int, float, bool]) -> Tensor:
        """Upsample maps that share a mass, and bring what is seen of the result nearer to them, `steps` times."""
        axes, joint = len(self.grids.coarse), self._joint
        steps, ridge, channels_last = options
        # by the weights of coarse samples where these are fewer than the channels
        few = layout.row_channels < _FEWEST_CHANNELS
        many = not few and joint.windows.slots <= min(layout.row_channels // 2, _MOST_SLOTS)
        if self.mode == "gaussian" and weights is None and not many:
            at_once = joint.upsample(maps, layout, steps, channels_last)
            if at_once is not None:
                return at_once
        complete = maps
        if weights is None:
            rows = ones_for(layout, joint)
        else:
            flat = maps.reshape(-1, *maps.shape[-axes - 1 :]), weights.reshape(-1, *weights.shape[-axes - 1 :])
            complete = fill_unknown(*flat, axes).view(maps.shape)
            rows = Layout(layout.leading, 1, layout.shared).to_rows(weights)
        reach = joint.mixture(rows) if many else joint.reach(rows)
        if self.mode == "affine":
            own = Layout(tuple(self._guide.shape[: -axes - 1]), self._guide.shape[-axes - 1], layout.shared)
            guide = self._guide.to(joint.lattice.dtype)
            guides = own.to_rows(self.grids.observe(guide)), own.to_rows(guide)
            upsampled = layout.from_rows(
                affine_model(joint, layout.to_rows(maps), rows, guides, ridge), self.grids.fine
            )
            upsampled = upsampled if channels_last else upsampled.contiguous()
        else:
            upsampled = reach.average(complete, layout, channels_last)
        for _ in range(steps):
            missing = maps - self.grids.observe(upsampled)
            if weights is not None:
                missing = torch.where(weights > 0, missing, 0.0)
            if self.mode == "affine" and self.grids.sampling == "area":
                # what the model leaves over has little to do with the edges of the guide
                upsampled = upsampled + self.grids.enlarge(missing)
                continue
            upsampled = upsampled + reach.average(missing, layout, channels_last)
        return upsampled


def _in_units_of_mean(weights: Tensor, axes: int) -> Tensor:
    """Weights `[..., 1, *coarse]` of which those of each item that are positive are one in the mean.

    What reaches a target is compared with one sample, so that only ratios of weights matter.
    """
    space = tuple(range(-axes, 0))
    # in this order, since their sum may be too small for a float
    relative = weights / weights.detach().amax(dim=space, keepdim=True)
    return relative * ((weights > 0).sum(dim=space, keepdim=True) / relative.sum(dim=space, keepdim=True))


def upsample(  # noqa: PLR0913 (map and guide, their bandwidths, and what each mode adds)
    coarse: Data,
    guide: Data,
    sigma_space: Sigma | None = None,
    sigma_range: Sigma = 0.1,
    mode: UpsamplingMode = "gaussian",
    *,
    confidence: Data | None = None,
    steps: int | None = None,
    sampling: Sampling = "area",
    smoothness: float | Tensor = 0.3,
    ridge: float = 1e-3,
    spatial_axes: int = 2,
) -> Data:
    """Bring a coarse map to the size of a guide, along its edges: depth, flow, labels, color, features of a network.

    Takes and gives tensors, or NumPy arrays.

    Args:
        coarse: float `[..., channels, *small]`, in any range and of any number of channels. NaN is unknown, and filled.
        guide: float `[guide channels, *space]`, or with the batch axes of `coarse`; of any ratio of sizes.
        sigma_space: bandwidth over positions, in pixels of the guide; default: half the distance between coarse
            samples, for "affine" all and for "solver" three quarters of it.
        sigma_range: bandwidth over the guide, in units of its values; one, or one for each channel.
        mode: "gaussian" averages coarse samples of like color (joint bilateral upsampling), "affine" lets values be an
            affine function of the guide near each place, "solver" finds what has the coarse samples as means and is
            smooth along the guide (`bilateral_solver`): the best and the slowest. docs/upsampling.md compares them.
        confidence: how much each coarse sample counts beside the others, and to "solver" also beside the smoothness,
            `[..., *small]`, not negative; zero is unknown.
        steps: how often the result is corrected by what it lacks on the coarse grid, 2 unless given; of "solver" its
            iterations, 16 unless given.
        sampling: "area" if coarse samples are means of cells, with centers at (i + 1/2) N / n - 1/2; "point" if they
            are the pixels at floor(i N / n).
        smoothness: for "solver", see `bilateral_solver`.
        ridge: for "affine", the variance of the guide below which values do not follow it.
        spatial_axes: 2 for pictures, 3 for volumes and videos, 1 for signals.

    Returns:
        `[..., channels, *space]`, in the dtype of `coarse` and, like it, with the channels first or last in memory; of
        "solver" always first.
        Constants stay constants. Where no coarse sample is near in position and color, it is interpolated.

    >>> import permutohedral as ph
    >>> ph.upsample(torch.rand(1, 6, 8), torch.rand(3, 48, 64)).shape
    torch.Size([1, 48, 64])
    >>> ph.upsample(torch.rand(2, 384, 5, 7), torch.rand(2, 3, 40, 50), mode="gaussian", steps=0).shape
    torch.Size([2, 384, 40, 50])
    """
    given, picture = to_tensor(coarse), to_tensor(guide)
    check_space(picture, spatial_axes)
    layout = layout_of("coarse", given, tuple(picture.shape[: -spatial_axes - 1]), picture.device, spatial_axes)
    if mode == "gaussian" and confidence is None:
        sigmas, count = (sigma_space, sigma_range), _DEFAULTS[mode][1] if steps is None else steps
        at_once = _upsample_at_once(given, picture, layout, sigmas, sampling, count)
        if at_once is not None:
            return as_given(at_once, coarse)
    size = tuple(given.shape[-spatial_axes:])
    upsampler = Upsampler(picture, size, sigma_space, sigma_range, mode, sampling=sampling, spatial_axes=spatial_axes)
    return upsampler(coarse, confidence, steps, smoothness=smoothness, ridge=ridge)


def _upsample_at_once(
    coarse: Tensor,
    guide: Tensor,
    layout: Layout,
    sigmas: tuple[Sigma | None, Sigma],
    sampling: Sampling,
    steps: int,
) -> Tensor | None:
    """By the Gaussian, lattice included, where a backend can: see `fused_guided.upsample_map`."""
    check_count("steps", steps)
    if layout.guides != 1 or layout.row_channels >= _FEWEST_CHANNELS:
        return None
    axes = coarse.dim() - len(layout.leading) - 1
    grids = Grids(tuple(coarse.shape[-axes:]), tuple(guide.shape[-axes:]), sampling)
    sigma_space, sigma_range = sigmas
    if sigma_space is None:
        sigma_space = default_sigma(grids, _DEFAULTS["gaussian"][0])
    channels_last = is_channels_last(coarse, axes)
    rows = layout.to_rows(coarse.to(accumulation_dtype(guide.dtype)))
    how = LEAST_MASS, steps, not channels_last
    found = fused_guided.upsample_map(rows, guide, grids.table, (sigma_space, sigma_range), how)
    return None if found is None else layout.from_found(found, grids.fine, channels_last).to(coarse.dtype)
