"""Upsample coarse maps along the edges of a guide."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.features import Sigma, ValueRange
from permutohedral.filters.images import Data, ImageFormat, as_given, is_integer, optional_tensor, to_tensor
from permutohedral.filters.units import warn_of_four_channels
from permutohedral.guided.grids import Grids, Sampling, fill_unknown
from permutohedral.guided.joint import affine_model, default_sigma, joint_lattice, ones_for
from permutohedral.guided.maps import (
    MapLayout,
    check_space,
    default_guide,
    in_wider_dtype,
    is_channels_last,
    known_values,
    map_layout,
)
from permutohedral.guided.solver import GuideSolver
from permutohedral.lattice.tensors import check_count
from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.tracing import is_recorded

UpsamplingMode = Literal["gaussian", "affine", "solver"]

# by mode: bandwidth over positions as a share of the distance between coarse samples, and steps
_DEFAULTS: dict[UpsamplingMode, tuple[float, int]] = {"gaussian": (0.5, 2), "affine": (1.0, 2), "solver": (0.75, 16)}

# limits of `Joint.mixture`: the most coarse samples of a window, and the fewest channels
_MOST_SLOTS = 64
_FEWEST_CHANNELS = 8
# ratio of the scales along y and x at which maps with the channels last are suspected
_MOST_DISTORTION = 4.0
# from here on "solver" takes about 5 s or more on two cores; for 384 channels 66 s, "gaussian" uncorrected 0.3 s
_MANY_CHANNELS, _MANY_VALUES = 32, 10_000_000


class Upsampler:
    """Upsampling along one guide for any number of maps of one size, on a lattice that is built once.

    Args:
        guide: float `[guide channels, *space]`, or `[..., guide channels, *space]` with one guide per item.
        size: extents of the coarse maps.
        sigma_space: see `upsample`.
        sigma_color: see `upsample`.
        mode: see `upsample`.
        sampling: see `upsample`.
        spatial_dims: see `upsample`.
        origin: position of the first sample of the guide, for a part of a larger one. Results of "gaussian" and
            "affine" agree where parts overlap far enough. "solver" is global and has no parts.

    >>> import torch, permutohedral as ph
    >>> upsampler = ph.guided.Upsampler(torch.rand(3, 48, 64), size=(6, 8))
    >>> upsampler(torch.rand(1, 6, 8)).shape, upsampler(torch.rand(2, 5, 6, 8)).shape
    (torch.Size([1, 48, 64]), torch.Size([2, 5, 48, 64]))
    """

    def __init__(
        self,
        guide: Data,
        size: tuple[int, ...],
        *,
        mode: UpsamplingMode = "solver",
        sigma_space: Sigma | None = None,
        sigma_color: Sigma | None = None,
        sampling: Sampling = "area",
        spatial_dims: int = 2,
        origin: Sequence[int] | None = None,
    ) -> None:
        if mode == "solver" and origin is not None:
            raise InputError("origin: the solver has no parts; leave it out, or pass another mode")
        if mode not in _DEFAULTS:
            raise InputError(f"mode must be one of {', '.join(map(repr, _DEFAULTS))}, got {mode!r}")
        self.mode: UpsamplingMode = mode
        self._guide = to_tensor(guide)
        self.grids = Grids(tuple(size), check_space(self._guide, spatial_dims), sampling)
        if sigma_color is None:
            self._guide, sigma_color = default_guide(self._guide, spatial_dims)
        self._options: dict[str, Any] = {
            "size": size, "sigma_space": sigma_space, "sigma_color": sigma_color, "mode": mode, "sampling": sampling,
            "spatial_dims": spatial_dims, "origin": origin,
        }  # fmt: skip
        share, self._steps = _DEFAULTS[mode]
        sigma = default_sigma(self.grids, share) if sigma_space is None else sigma_space
        if mode == "solver":
            self._solver = GuideSolver(self._guide, sigma, sigma_color, spatial_dims=spatial_dims)
        else:
            self._joint = joint_lattice(self._guide, self.grids, sigma, sigma_color, origin)

    @cached_property
    def _in_float64(self) -> Upsampler:
        return Upsampler(self._guide.double(), **self._options)

    def __call__(
        self,
        coarse: Data,
        sample_weight: Data | None = None,
        *,
        num_iterations: int | None = None,
        smoothness: float | Tensor = 0.3,
        ridge: float = 1e-3,
    ) -> Data:
        """Upsample one map or a batch; see `upsample`."""
        if not 0 < ridge < math.inf:
            raise InputError(f"ridge must be positive and finite, got {ridge}")
        result = self._upsample(to_tensor(coarse), optional_tensor(sample_weight), num_iterations, smoothness, ridge)
        return as_given(result, coarse)

    def _upsample(
        self, coarse: Tensor, sample_weight: Tensor | None, steps: int | None, smoothness: float | Tensor, ridge: float
    ) -> Tensor:
        axes = len(self.grids.coarse)
        layout = map_layout("coarse", coarse, tuple(self._guide.shape[: -axes - 1]), self._guide.device, axes)
        if tuple(coarse.shape[-axes:]) != self.grids.coarse:
            raise InputError(f"this upsampler is for maps of {self.grids.coarse}, got {tuple(coarse.shape[-axes:])}")
        steps = self._steps if steps is None else steps
        check_count("num_iterations", steps)
        if self.mode == "solver":
            return self._solve(coarse, sample_weight, steps, smoothness)
        if in_wider_dtype(self._guide, coarse).dtype == torch.float64 != self._joint.lattice.dtype:
            return self._in_float64._upsample(coarse, sample_weight, steps, smoothness, ridge)
        maps, weights = known_values(coarse.to(self._joint.lattice.dtype), sample_weight, axes)
        # an empty batch has no mean
        weights = _in_units_of_mean(weights, axes) if weights is not None and maps.numel() else None
        channels_last = is_channels_last(coarse, axes)
        options = steps, ridge, channels_last
        if self.mode == "affine" and weights is not None:
            upsampled = self._filter_apart(maps, weights, layout, options)
        else:
            upsampled = self._filter(maps, weights, layout, options)
        return upsampled.to(coarse.dtype)

    def _filter_apart(
        self, maps: Tensor, weights: Tensor, layout: MapLayout, options: tuple[int, float, bool]
    ) -> Tensor:
        """Upsample maps one by one where they differ in what is known."""
        axes = len(self.grids.coarse)
        if layout.shared and layout.leading:
            items = zip(maps.flatten(0, -axes - 2), weights.flatten(0, -axes - 2), strict=True)
            one = MapLayout((), layout.channels, True)
            results = [self._filter_apart(each, weight, one, options) for each, weight in items]
            return torch.stack(results).view(*layout.leading, *results[0].shape)
        if weights.shape[-axes - 1] == 1:
            return self._filter(maps, weights, layout, options)
        each_channel = zip(maps.split(1, -axes - 1), weights.split(1, -axes - 1), strict=True)
        single = MapLayout(layout.leading, 1, layout.shared)
        return torch.cat([self._filter(*one, single, options) for one in each_channel], dim=-axes - 1)

    def _solve(self, coarse: Tensor, sample_weight: Tensor | None, steps: int, smoothness: float | Tensor) -> Tensor:
        if self.grids.sampling == "area":
            return self._solver(
                coarse, sample_weight, smoothness=smoothness, observe="cells", num_iterations=steps, tolerance=0.0
            )
        if len(self._guide.shape) > len(self.grids.fine) + 1:
            raise InputError("guide: the solver takes samples at points for one guide; pass it without batch axes")
        axes = len(self.grids.coarse)
        # whole numbers
        places = self.grids.positions(accumulation_dtype(self._guide.dtype), coarse.device)
        flat = None if sample_weight is None else sample_weight.flatten(-axes)
        # a sample has the weight of the pixels of a cell
        weight = smoothness / math.prod(self.grids.ratios)
        return self._solver(
            coarse.flatten(-axes), flat, smoothness=weight, observe=places, num_iterations=steps, tolerance=0.0
        )

    def _filter(
        self, maps: Tensor, weights: Tensor | None, layout: MapLayout, options: tuple[int, float, bool]
    ) -> Tensor:
        """Upsample maps, and correct the result by upsampled residuals on the coarse grid, `steps` times."""
        axes, joint = len(self.grids.coarse), self._joint
        steps, ridge, channels_last = options
        # whether all channels of a row have the same weights
        shared = weights is None or layout.row_channels == 1
        if weights is not None and not (layout.shared and layout.leading):
            shared = shared or weights.shape[-axes - 1] == 1
        # a mixture is faster where a window has fewer coarse samples than there are channels
        many = (
            shared
            and layout.row_channels >= _FEWEST_CHANNELS
            and not is_recorded()
            and joint.windows.slots <= min(layout.row_channels // 2, _MOST_SLOTS)
        )
        complete = maps
        if weights is None:
            rows = ones_for(layout, joint)
        else:
            flat = maps.reshape(-1, *maps.shape[-axes - 1 :]), weights.reshape(-1, *weights.shape[-axes - 1 :])
            complete = fill_unknown(*flat, axes).view(maps.shape)
            own = MapLayout(layout.leading, 1, layout.shared) if shared else layout
            rows = own.to_rows(weights if shared else weights.expand_as(maps))
        # residuals of the affine model hardly follow the edges of the guide
        correct: Callable[[Tensor], Tensor] = self.grids.enlarge
        if self.mode == "gaussian" or self.grids.sampling == "point":
            reach = joint.mixture(rows) if many else joint.reach(rows)
            correct = partial(reach.average, layout=layout, channels_last=channels_last)
        if self.mode == "affine":
            own = MapLayout(tuple(self._guide.shape[: -axes - 1]), self._guide.shape[-axes - 1], layout.shared)
            guide = self._guide.to(joint.lattice.dtype)
            guides = own.to_rows(self.grids.observe(guide)), own.to_rows(guide)
            means, interpolation = affine_model(joint, layout.to_rows(maps), rows, guides, ridge)
            upsampled = layout.from_rows(interpolation.add_to(means, complete, layout), self.grids.fine)
            upsampled = upsampled if channels_last else upsampled.contiguous()
        else:
            upsampled = correct(complete)
        for _ in range(steps):
            missing = maps - self.grids.observe(upsampled)
            if weights is not None:
                missing = torch.where(weights > 0, missing, 0.0)
            upsampled = upsampled + correct(missing)
        return upsampled


def _in_units_of_mean(weights: Tensor, axes: int) -> Tensor:
    """Scale weights `[..., 1, *coarse]` so that the positive ones of each item have mean one.

    The mass at a target is compared with that of one sample, so that only ratios of weights matter.
    """
    space = tuple(range(-axes, 0))
    # divide first: the sum of tiny weights may underflow
    relative = weights / weights.detach().amax(dim=space, keepdim=True)
    return relative * ((weights > 0).sum(dim=space, keepdim=True) / relative.sum(dim=space, keepdim=True))


def _warn_of_last_channels(maps: Tensor, guide: Tensor) -> None:
    """Warn about maps whose first axes, not the last, have the aspect ratio of the guide."""
    if is_recorded() or maps.dim() < 3 or guide.dim() < 3 or 0 in (*maps.shape, *guide.shape):
        return
    (first, second, third), (height, width) = maps.shape[-3:], guide.shape[-2:]
    distortion = second / third * width / height
    if abs(first / second * width / height - 1) < 0.1 and not 1 / _MOST_DISTORTION < distortion < _MOST_DISTORTION:
        warnings.warn(
            f"coarse {tuple(maps.shape)} is taken as {first} channels of {second} x {third}; if the channels are last, "
            "pass channels_last=True, for the guide, too",
            stacklevel=3,
        )


def _warn_of_many_channels(maps: Tensor, space: Sequence[int]) -> None:
    """Warn before "solver" upsamples features of a network on a CPU, which takes a minute."""
    channels = math.prod(maps.shape[-len(space) - 1 : -len(space)])
    num_values = math.prod(maps.shape[: -len(space)]) * math.prod(space)
    if maps.device.type == "cpu" and channels >= _MANY_CHANNELS and num_values > _MANY_VALUES and not is_recorded():
        warnings.warn(
            f"coarse has {channels} channels, for which mode='solver' is slow; mode='gaussian' with num_iterations=0 "
            "is much faster, and made for features of networks",
            stacklevel=3,
        )


def upsample(
    coarse: Data,
    guide: Data,
    *,
    mode: UpsamplingMode = "solver",
    sigma_space: Sigma | None = None,
    sigma_color: Sigma | None = None,
    sample_weight: Data | None = None,
    num_iterations: int | None = None,
    sampling: Sampling = "area",
    smoothness: float | Tensor = 0.3,
    ridge: float = 1e-3,
    spatial_dims: int = 2,
    channels_last: bool = False,
    value_range: ValueRange | None = None,
) -> Data:
    """Upsample a coarse map to the size of a guide, along its edges.

    Maps are for instance depth, flow, labels, color, or features of a network.

    Args:
        coarse: tensor or NumPy array `[..., channels, *small]`, floats or integers in any range. NaN is unknown,
            and filled.
        guide: tensor or array `[guide channels, *space]`, or with the batch axes of `coarse`; of any size at least that
            of `coarse`.
        mode: "solver" finds the smoothest map with these means (`bilateral_solver`): the most accurate, and the
            slowest, above all for many channels. "gaussian" averages coarse samples of similar color (joint bilateral
            upsampling). "affine" fits values as local affine functions of the guide.
        sigma_space: bandwidth over positions, in pixels of the guide; default: half the distance between coarse
            samples, for "affine" all and for "solver" three quarters of it.
        sigma_color: bandwidth over the guide, in units of its values, for integers as in `bilateral_filter`; one, or
            one for each channel. By default a photo with values in [0, 1] is compared in opponent colors: 0.12 over
            brightness, 0.05 over color.
        sample_weight: weight of each coarse sample, `[..., *small]`, not negative; zero is unknown. "solver" also
            compares it with the smoothness.
        num_iterations: iterations of "solver", default 16; else corrections by the residual on the coarse grid,
            default 2.
        sampling: "area" if coarse samples are means of cells, with centers at (i + 1/2) N / n - 1/2; "point" if they
            are the pixels at floor(i N / n). With "area", such samples overshoot at edges.
        smoothness: for "solver", see `bilateral_solver`.
        ridge: for "affine", regularization of the fit, in units of the variance of the guide.
        spatial_dims: number of spatial axes: 1 for signals, 2 for images, 3 for volumes and videos.
        channels_last: coarse and guide are `[..., *space, channels]`.
        value_range: the values of the guide that count as 0 and 1, see `bilateral_filter`.

    Returns:
        `[..., channels, *space]`, of the kind, dtype and memory format of `coarse`; the channels of "solver" are first.
        Constants stay constants. Where no coarse sample is near in position and color, the result is interpolated.

    >>> import torch, permutohedral as ph
    >>> ph.upsample(torch.rand(1, 6, 8), torch.rand(3, 48, 64)).shape
    torch.Size([1, 48, 64])
    >>> ph.upsample(torch.rand(2, 384, 5, 7), torch.rand(2, 3, 40, 50), mode="gaussian", num_iterations=0).shape
    torch.Size([2, 384, 40, 50])
    """
    layout = ImageFormat(spatial_dims, channels_last, value_range)
    maps, guide_image = layout.read("coarse", coarse), layout.read("guide", guide, is_guide=True)
    if not channels_last:
        _warn_of_last_channels(maps, guide_image)
    upsampler = Upsampler(
        in_wider_dtype(guide_image, maps),
        tuple(maps.shape[-spatial_dims:]),
        sigma_space=sigma_space,
        sigma_color=sigma_color,
        mode=mode,
        sampling=sampling,
        spatial_dims=spatial_dims,
    )
    warn_of_four_channels("guide", guide_image.shape[-spatial_dims - 1], is_integer(guide))
    if mode == "solver":
        _warn_of_many_channels(maps, upsampler.grids.fine)
    weight = optional_tensor(sample_weight)
    return layout.write(
        upsampler(maps, weight, num_iterations=num_iterations, smoothness=smoothness, ridge=ridge), coarse
    )
