"""Maps as rows: the shapes of guides and of what follows them, and which items share a lattice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.features import Sigma, bilateral_features, check_channels_first
from permutohedral.filters.weighting import check_weights
from permutohedral.ops import fused_guided
from permutohedral.ops.guided_primitives import CoarseGrid
from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.tracing import is_batched, is_unreadable, plain_numbers, surely_all
from permutohedral.tensors import check_tensor


@dataclass(frozen=True)
class Layout:
    """Maps `[..., channels, *space]` as rows.

    Attributes:
        leading: axes of items.
        channels: of each item.
        shared: whether all items follow one guide, and are further channels of its rows; else they are further rows.
    """

    leading: tuple[int, ...]
    channels: int
    shared: bool

    @property
    def guides(self) -> int:
        """How many guides there are."""
        return 1 if self.shared else math.prod(self.leading)

    @property
    def row_channels(self) -> int:
        """Of a row: those of all items that follow one guide."""
        return self.channels * (math.prod(self.leading) if self.shared else 1)

    def to_rows(self, maps: Tensor) -> Tensor:
        """`[..., channels, *space]` to `[rows, channels of a row]`."""
        items, samples = math.prod(self.leading), math.prod(maps.shape[len(self.leading) + 1 :])
        if self.shared:
            return maps.reshape(items * self.channels, samples).T
        return maps.reshape(items, self.channels, samples).transpose(1, 2).reshape(items * samples, self.channels)

    def by_guide(self, rows: Tensor) -> Tensor:
        """Rows `[rows, channels]` as `[guides, rows of each, channels]`."""
        return rows.reshape(self.guides, len(rows) // max(self.guides, 1), rows.shape[1])

    def from_rows(self, rows: Tensor, space: tuple[int, ...]) -> Tensor:
        """The opposite, without a copy: the channels are the fastest axis in memory."""
        if self.shared:
            return rows.T.reshape(*self.leading, self.channels, *space)
        maps = rows.reshape(math.prod(self.leading), math.prod(space), self.channels).transpose(1, 2)
        return maps.reshape(*self.leading, self.channels, *space)

    def from_found(self, found: Tensor, space: tuple[int, ...], channels_last: bool) -> Tensor:
        """What `fused_guided.upsample_rows` found as `[..., channels, *space]`."""
        if channels_last:
            return self.from_rows(found, space)
        return found.view(*self.leading, self.channels, *space)


def is_channels_last(maps: Tensor, axes: int) -> bool:
    """Whether the channels are the fastest axis in memory."""
    return maps.stride(-axes - 1) == 1 and not maps.is_contiguous()


def check_space(guide: Tensor, spatial_axes: int) -> tuple[int, ...]:
    """The extents of the guide; raises unless it is floating, with channels and so many axes after them."""
    if spatial_axes not in (1, 2, 3):
        raise InputError(f"spatial_axes must be 1, 2 (pictures) or 3 (volumes), got {spatial_axes!r}")
    check_tensor("guide", guide)
    if guide.dim() <= spatial_axes or not guide.is_floating_point():
        raise InputError(
            f"guide must be floating, with channels before {spatial_axes} axes of space, got {guide.dtype} of shape "
            f"{tuple(guide.shape)}; give one without channels guide.unsqueeze({-spatial_axes - 1})"
        )
    check_channels_first(guide, spatial_axes)
    return tuple(guide.shape[-spatial_axes:])


def layout_of(name: str, maps: Tensor, items: tuple[int, ...], device: torch.device, spatial_axes: int) -> Layout:
    """How maps lie beside a guide with `items` as batch axes; raises unless they have the same, or it has none."""
    check_tensor(name, maps)
    if maps.dim() <= spatial_axes or not maps.is_floating_point():
        raise InputError(
            f"{name} must be floating, with channels before {spatial_axes} axes of space, got {maps.dtype} of shape "
            f"{tuple(maps.shape)}"
        )
    if maps.device != device:
        raise InputError(f"{name} is on {maps.device} but the guide on {device}; move one")
    leading = tuple(maps.shape[: -spatial_axes - 1])
    if items and items != leading:
        raise InputError(f"a guide with batch axes {items} needs {name} with the same, got {leading}")
    return Layout(leading, maps.shape[-spatial_axes - 1], not items)


def features_of(
    guide: Tensor, sigma_space: Sigma, sigma_range: Sigma, spatial_axes: int, origin: Sequence[int] | None = None
) -> Tensor:
    """Position and guide of every sample in standard deviations, `[points, d]`, or `[items, points, d]` of a batch.

    `origin` is the position of the first sample, for a part of a larger guide.

    Raises:
        InputError: `torch.vmap` goes over guides, of which each has as many unreached samples as it has.
    """
    if is_batched(guide):
        raise InputError(
            "torch.vmap does not go over guides: give the guide and what follows it batch axes, "
            "[..., channels, *space], instead"
        )
    features = None
    if origin is None:
        space = tuple(guide.shape[-spatial_axes:])
        features = fused_guided.cell_features(guide, CoarseGrid(space, space, True), sigma_space, sigma_range)
    if features is None:
        features = bilateral_features(guide, sigma_space, sigma_range, spatial_axes=spatial_axes, origin=origin)
    return features.flatten(0, -3) if features.dim() > 3 else features


def known_values(maps: Tensor, confidence: Tensor | None, spatial_axes: int) -> tuple[Tensor, Tensor | None]:
    """Maps in which NaN is zero, and how much each sample counts, `[..., 1, *space]`; None if all count the same.

    Raises:
        InputError: an item has no sample that counts, or the confidence does not fit.
    """
    if 0 in maps.shape[-spatial_axes:]:
        raise InputError("nothing is known: there are no samples")
    finite, weights = _all_finite(maps), None
    if confidence is not None:
        shape = (*maps.shape[: -spatial_axes - 1], *maps.shape[-spatial_axes:])
        weights = check_weights(confidence, shape, maps).unsqueeze(-spatial_axes - 1)
    # nothing is unknown
    if finite and (weights is None or surely_all(weights > 0)):
        return maps, weights
    unknown = maps.isnan().any(dim=-spatial_axes - 1, keepdim=True)
    ones = (~unknown).to(accumulation_dtype(maps.dtype))
    weights = ones if weights is None else ones * weights
    if not is_unreadable() and not surely_all((weights > 0).flatten(-spatial_axes).any(dim=-1)):
        raise InputError("nothing is known: every sample of an item is NaN, or of confidence zero")
    maps = torch.where(unknown | (weights == 0), 0.0, maps)
    if not is_unreadable() and not _all_finite(maps):
        raise InputError("values must be finite or NaN, which is unknown; got infinity")
    return maps, weights


def _all_finite(maps: Tensor) -> bool:
    """Whether no number is NaN or infinite; no where they cannot be read."""
    if is_unreadable():
        return False
    with plain_numbers(maps.detach()) as numbers:
        # the sum is found faster, and is finite but for numbers near the largest
        return math.isfinite(float(numbers.sum())) or bool(numbers.isfinite().all())
