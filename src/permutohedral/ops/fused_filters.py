"""Whole filters as one call of the backend, where nothing is traced: their steps without torch's bookkeeping between.

A backend that has `filter_learned` or `filter_points` is used through this. With the others, and wherever
`why_in_steps` gives a reason, the filter is composed of the operators of `operators.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor

from permutohedral.ops.color_tables import LandmarkTables
from permutohedral.ops.dispatch import primitives_for
from permutohedral.ops.fused_primitives import FilteredLattice, FilterTables, FusedPrimitives, KeptOfFilter
from permutohedral.ops.one_call import apply, fused, in_one_call
from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.shared_tensors import items_of_points
from permutohedral.ops.tracing import requires_gradient, why_in_steps

# of at most 32 bits
_NARROW = (torch.float32, torch.float16, torch.bfloat16)
# the same filter made of operators, which can be differentiated again: of values, weight and bias
Composed = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def count_groups(values: Tensor, weight: Tensor, bias: Tensor | None, lattice: FilteredLattice) -> int:
    """The groups of channels if `filter_learned` can be used, else 0.

    What does not fit is left to the operators to refuse, so it is looked for here in one go, which small calls feel.
    """
    barycentric, at_targets = lattice.source.barycentric, lattice.target.barycentric
    if why_in_steps(values, weight, bias, barycentric) is not None:
        return 0
    if (barycentric.requires_grad or at_targets.requires_grad) and torch.is_grad_enabled():
        return 0
    shape, dtype, items = values.shape, values.dtype, lattice.batch_size
    # items that share a lattice are folded into channels
    points = (barycentric.shape[0],) if items is None else (items, lattice.points_per_item[0])
    if shape[:-1] != points or weight.dim() != 3:
        return 0
    filter_size, in_channels, out_channels = weight.shape
    if weight.dtype is not dtype or accumulation_dtype(dtype) is not barycentric.dtype:
        return 0
    if filter_size != lattice.neighbors.shape[0] or (bias is not None and bias.dtype is not dtype):
        return 0
    if not (values.numel() and in_channels and out_channels and at_targets.shape[0]):
        return 0
    groups, rest = divmod(shape[-1], in_channels)
    if rest or out_channels % groups or not hasattr(primitives_for(values), "filter_learned"):
        return 0
    return groups


picture_features = fused(FusedPrimitives.picture_features)
sum_color_grid = fused(FusedPrimitives.sum_color_grid)


def filter_points(values: Tensor, features: Tensor | None, smallest_mass: float) -> Tensor | None:
    """The normalized Gaussian between points in one call, None where the lattice is built first.

    Args:
        values: `[points, channels]` or `[batch, points, channels]`.
        features: `[points, d]` or `[batch, points, d]`; what does not fit the values is left to the steps to refuse.
        smallest_mass: keeps a target that no source reaches at zero.
    """
    if not isinstance(features, Tensor) or not isinstance(values, Tensor) or values.shape[:-1] != features.shape[:-1]:
        return None
    if features.dim() not in (2, 3) or features.numel() == 0 or values.shape[-1] == 0:
        return None
    if features.dtype not in (torch.float32, torch.float64) or accumulation_dtype(values.dtype) != features.dtype:
        return None
    run = in_one_call("filter_points", values, features)
    if run is None:
        return None
    filtered: Tensor | None
    if features.dim() == 2:
        filtered = run(values, features, None, smallest_mass)
        return filtered
    batch = items_of_points(features.shape[0], features.shape[1], features.device)
    rows, flat = values.reshape(-1, values.shape[-1]), features.reshape(-1, features.shape[-1])
    filtered = run(rows, flat, batch, smallest_mass)
    return None if filtered is None else filtered.view(values.shape)


def picture_filter(
    image: Tensor, guide: Tensor | None, sigma_space: object, sigma_range: object, smallest_mass: float
) -> Callable[[], Tensor | None] | None:
    """The bilateral filter of one picture as one call, None where its features are made first; its result may be, too.

    Args:
        image: `[channels, height, width]`.
        guide: `[guide channels, height, width]`, None for the image; what does not fit it is left to others to refuse.
        sigma_space: in pixels, a plain number; anything else is left to others.
        sigma_range: in units of the guide, likewise.
        smallest_mass: see `filter_points`.
    """
    if not (isinstance(sigma_space, (int, float)) and isinstance(sigma_range, (int, float))):
        return None
    if not (0 < sigma_space < torch.inf and 0 < sigma_range < torch.inf):
        return None
    if image.dim() != 3 or image.dtype not in _NARROW or image.numel() == 0:
        return None
    if guide is None:
        run, guide = in_one_call("filter_picture", image), image
    elif isinstance(guide, Tensor) and guide.dtype in _NARROW and guide.shape[1:] == image.shape[1:]:
        run = in_one_call("filter_picture", image, guide)
    else:
        return None
    if run is None:
        return None
    return partial(run, image, guide, sigma_space, sigma_range, smallest_mass)


def sum_landmarks(values: Tensor, guide: Tensor, tables: LandmarkTables) -> Tensor | None:
    """In one call, None where torch computes it: see `FusedPrimitives.sum_landmarks`."""
    run = in_one_call("sum_landmarks", values, guide) if values.numel() else None
    return None if run is None else run(values, guide, tables)


def filter_learned(
    values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables, composed: Composed
) -> Tensor:
    """The learned filter of values `[..., points, in_channels]`, their leading axes those of the points.

    Args:
        values: at the source points.
        weight: `[filter_size, in_channels / groups, out_channels]`.
        bias: `[out_channels]`, or None.
        tables: of the lattice.
        composed: the same filter of operators, for derivatives of derivatives.
    """
    step = _LearnedFilter(tables, composed)
    if requires_gradient(values, weight, bias):
        output: Tensor = apply(step, values, weight, bias)
        return output
    return step.run(values, weight, bias)[0]


class _LearnedFilter(NamedTuple):
    tables: FilterTables
    composed: Composed

    def run(self, values: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, KeptOfFilter]:
        rows = values if values.dim() == 2 else values.flatten(0, -2)
        output, kept = cast(FusedPrimitives, primitives_for(values)).filter_learned(rows, weight, bias, self.tables)
        return output.view(values.shape[0], -1, weight.shape[2]) if values.dim() == 3 else output, kept

    def differentiate(
        self, gradient: Tensor, inputs: tuple[Tensor, ...], kept: KeptOfFilter, wanted: tuple[bool, ...]
    ) -> tuple[Tensor | None, ...]:
        values, weight, _ = inputs
        rows = gradient if gradient.dim() == 2 else gradient.flatten(0, 1)
        backend = cast(FusedPrimitives, primitives_for(rows))
        to_values, *others = backend.differentiate_learned(rows, weight, kept, self.tables, wanted)
        return (to_values if to_values is None or values.dim() == 2 else to_values.view(values.shape), *others)
