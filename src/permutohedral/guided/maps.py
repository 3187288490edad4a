"""Maps along a guide: NumPy arrays and tensors, shapes, unknown values, and features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.features import Sigma, check_channels_first, opponent_colors
from permutohedral.features import bilateral as bilateral_features
from permutohedral.filters.weighting import check_weights
from permutohedral.lattice.tensors import check_tensor, has_finite_sum
from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.tracing import is_batched, is_recorded, plain_numbers, surely_all

# default bandwidths over brightness and over color, for a guide with values in [0, 1]
SIGMA_LUMA, SIGMA_CHROMA = 0.12, 0.05
# default bandwidth over a guide of other channels
_SIGMA_OTHER = 0.1
# a guide with larger values is not one with values in [0, 1]
_LARGEST_GUIDE = 4.0


@dataclass(frozen=True)
class MapLayout:
    """How maps `[..., channels, *space]` become rows.

    Attributes:
        leading: batch axes.
        channels: of each item.
        shared: whether all items follow one guide. They are then further channels of its rows, else further rows.
    """

    leading: tuple[int, ...]
    channels: int
    shared: bool

    @property
    def guides(self) -> int:
        """Number of guides."""
        return 1 if self.shared else math.prod(self.leading)

    @property
    def row_channels(self) -> int:
        """Number of channels of a row."""
        return self.channels * (math.prod(self.leading) if self.shared else 1)

    def to_rows(self, maps: Tensor) -> Tensor:
        """Reshape `[..., channels, *space]` to `[rows, row_channels]`."""
        items, samples = math.prod(self.leading), math.prod(maps.shape[len(self.leading) + 1 :])
        if self.shared:
            return maps.reshape(items * self.channels, samples).T
        return maps.reshape(items, self.channels, samples).transpose(1, 2).reshape(items * samples, self.channels)

    def from_rows(self, rows: Tensor, space: tuple[int, ...]) -> Tensor:
        """Undo `to_rows` without a copy: the channels are the fastest axis in memory."""
        if self.shared:
            return rows.T.reshape(*self.leading, self.channels, *space)
        maps = rows.reshape(math.prod(self.leading), math.prod(space), self.channels).transpose(1, 2)
        return maps.reshape(*self.leading, self.channels, *space)


def is_channels_last(maps: Tensor, axes: int) -> bool:
    """Return whether the channels are the fastest axis in memory."""
    return maps.stride(-axes - 1) == 1 and not maps.is_contiguous()


def check_space(guide: Tensor, spatial_dims: int) -> tuple[int, ...]:
    """Return the extents of a guide, which must be floating, `[..., channels, *space]`."""
    if spatial_dims not in (1, 2, 3):
        raise InputError(f"spatial_dims must be 1, 2 (images) or 3 (volumes), got {spatial_dims!r}")
    check_tensor("guide", guide)
    if not guide.is_floating_point():
        raise InputError(
            f"guide must be floating, got {guide.dtype}; convert it, for instance with guide.float() / 255"
        )
    if guide.dim() <= spatial_dims:
        raise InputError(
            f"guide must have channels before {spatial_dims} axes of space, got {tuple(guide.shape)}; pass one without "
            "channels as guide[None]"
        )
    check_channels_first(guide, spatial_dims, "guide")
    return tuple(guide.shape[-spatial_dims:])


def map_layout(name: str, maps: Tensor, items: tuple[int, ...], device: torch.device, spatial_dims: int) -> MapLayout:
    """Return the layout of maps along a guide with the batch axes `items`, or raise if they do not match."""
    check_tensor(name, maps)
    if maps.dim() <= spatial_dims or not maps.is_floating_point():
        raise InputError(
            f"{name} must be floating, with channels before {spatial_dims} axes of space, got {maps.dtype} of shape "
            f"{tuple(maps.shape)}; pass one without channels as {name}[None]"
        )
    if maps.device != device:
        raise InputError(f"{name} is on {maps.device} but the guide on {device}; move one")
    leading = tuple(maps.shape[: -spatial_dims - 1])
    if items and items != leading:
        raise InputError(f"a guide with batch axes {items} needs {name} with the same, got {leading}")
    return MapLayout(leading, maps.shape[-spatial_dims - 1], not items)


def guide_and_sigma(
    guide: Tensor, spatial_dims: int, sigma_luma: float = SIGMA_LUMA, sigma_chroma: float = SIGMA_CHROMA
) -> tuple[Tensor, list[float]]:
    """Return a guide in opponent colors, if it has colors, and the bandwidth of each channel.

    >>> guide, sigma = guide_and_sigma(torch.rand(3, 4, 5), 2)
    >>> [round(number, 3) for number in sigma]
    [0.208, 0.05, 0.05]
    """
    channels = guide.shape[-spatial_dims - 1]
    if channels == 1:
        return guide, [sigma_luma]
    if channels != 3 or spatial_dims != 2:
        return guide, [_SIGMA_OTHER] * channels
    # in opponent colors white is at the square root of 3
    wide = guide.to(accumulation_dtype(guide.dtype))
    return opponent_colors(wide), [3**0.5 * sigma_luma, sigma_chroma, sigma_chroma]


def default_guide(guide: Tensor, spatial_dims: int) -> tuple[Tensor, list[float]]:
    """Return guide and bandwidths for a call without `sigma_color`; raise unless the guide is about in [0, 1]."""
    check_space(guide, spatial_dims)
    if guide.numel() and not is_recorded():
        with plain_numbers(guide.detach().abs().amax()) as largest:
            if float(largest.max()) > _LARGEST_GUIDE:
                raise InputError(
                    f"guide reaches {float(largest.max()):.4g}, but the default sigma_color is for values in [0, 1]; "
                    "divide the guide by its white, such as 255, or pass sigma_color in units of the guide"
                )
    return guide_and_sigma(guide, spatial_dims)


def features_of(
    guide: Tensor, sigma_space: Sigma, sigma_color: Sigma, spatial_dims: int, origin: Sequence[int] | None = None
) -> Tensor:
    """Return position and guide of every sample as features.

    The result is `[points, d]`, or `[items, points, d]` of a batch. `origin` is the position of the first sample, for a
    part of a larger guide.

    Raises:
        InputError: `torch.vmap` maps over guides, whose numbers of lattice points differ.
    """
    if is_batched(guide):
        raise InputError("guide: torch.vmap cannot map over guides; pass batch axes, [..., channels, *space], instead")

    features = bilateral_features(
        guide, sigma_space=sigma_space, sigma_color=sigma_color, spatial_dims=spatial_dims, origin=origin
    )
    return features.flatten(0, -3) if features.dim() > 3 else features


def weights_like(sample_weight: Tensor, maps: Tensor, spatial_dims: int) -> Tensor:
    """Return weights `[..., *space]` for maps `[..., channels, *space]`."""
    check_tensor("sample_weight", sample_weight)
    leading, space = maps.shape[: -spatial_dims - 1], maps.shape[-spatial_dims:]
    if sample_weight.dim() < spatial_dims or sample_weight.shape[-spatial_dims:] != space:
        raise InputError(
            f"sample_weight must be {list(space)}, one number for each sample, with or without the batch axes of the "
            f"maps, got {list(sample_weight.shape)}"
        )
    return check_weights(sample_weight, (*leading, *space), maps)


def known_values(maps: Tensor, sample_weight: Tensor | None, spatial_dims: int) -> tuple[Tensor, Tensor | None]:
    """Return maps with zero in place of NaN, and the weight of each sample, or None if all weights are one.

    The weights are `[..., 1, *space]`, or `[..., channels, *space]` where channels may differ in unknown samples.

    Raises:
        InputError: a channel of an item has no sample of positive weight, or the sample_weight does not match.
    """
    if 0 in maps.shape[-spatial_dims:]:
        raise InputError("nothing is known: there are no samples")
    channels = -spatial_dims - 1
    finite, weights = _all_finite(maps), None
    if sample_weight is not None:
        weights = weights_like(sample_weight, maps, spatial_dims).unsqueeze(channels)
    if finite and (weights is None or surely_all(weights > 0)):
        return maps, weights
    unknown = maps.isnan()
    if weights is not None and not finite:
        unknown = unknown | (maps.isinf() & (weights == 0))
    if finite or surely_all(unknown.any(dim=channels) == unknown.all(dim=channels)):
        unknown = unknown.any(dim=channels, keepdim=True)
    ones = (~unknown).to(accumulation_dtype(maps.dtype))
    weights = ones if weights is None else ones * weights
    if not is_recorded() and not surely_all((weights > 0).flatten(-spatial_dims).any(dim=-1)):
        raise InputError("nothing is known: every sample of a channel of an item is NaN, or of sample_weight zero")
    maps = torch.where(unknown, 0.0, maps)
    if not is_recorded() and not _all_finite(maps):
        raise InputError("maps must be finite, or NaN where they are unknown, got infinity")
    return maps, weights


def in_wider_dtype(guide: Tensor, maps: Tensor) -> Tensor:
    """Convert the guide to the wider of both dtypes, in which everything is computed."""
    floating = all(isinstance(each, Tensor) and each.is_floating_point() for each in (guide, maps))
    return guide.to(torch.promote_types(guide.dtype, maps.dtype)) if floating else guide


def _all_finite(maps: Tensor) -> bool:
    """Return whether all numbers are finite, or False where they cannot be read."""
    if is_recorded():
        return False
    with plain_numbers(maps.detach()) as numbers:
        # the sum is faster, and is finite except for numbers near the largest
        return has_finite_sum(numbers) or bool(numbers.isfinite().all())
