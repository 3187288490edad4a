"""Whole filters as one call of the backend, where nothing is traced: their steps without torch's bookkeeping between.

A backend that has `filter_learned` or `filter_points` is used through this. With the others, and wherever
`why_in_steps` gives a reason, the filter is composed of the operators of `operators.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from permutohedral.ops.dispatch import forced_backend, on_backend, primitives_for
from permutohedral.ops.fused_primitives import (
    FilterTables,
    FusedPrimitives,
    ItemsNorm,
    KeptOfFilter,
    LandmarkTables,
    PairwiseTables,
)
from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.ops.shared_tensors import items_of_points
from permutohedral.ops.tracing import wants_gradient, why_in_steps

# the same filter made of operators, which can be differentiated again: of values, weight and bias
Composed = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def can_fuse(values: Tensor, weight: Tensor, bias: Tensor | None, *barycentric: Tensor) -> bool:
    """Whether `filter_learned` can be used; tensors that do not fit each other are left to the operators to refuse."""
    if why_in_steps(values, weight, bias, *barycentric) is not None or wants_gradient(*barycentric):
        return False
    if not isinstance(weight, Tensor) or weight.dim() != 3 or weight.shape[2] == 0:
        return False
    if bias is not None and bias.dtype != values.dtype:
        return False
    return hasattr(primitives_for(values), "filter_learned")


def picture_features(
    guide: Tensor, sigma_space: Sequence[float], sigma_range: Sequence[float], origin: Sequence[int]
) -> Tensor | None:
    """In one call, None where torch computes them: see `FusedPrimitives.picture_features`."""
    if why_in_steps(guide) is not None or wants_gradient(guide):
        return None
    run = getattr(primitives_for(guide), "picture_features", None)
    features: Tensor | None = None if run is None else run(guide, sigma_space, sigma_range, origin)
    return features


def filter_points(values: Tensor, features: Tensor | None, smallest_mass: float) -> Tensor | None:
    """The normalized Gaussian between points in one call, None where the lattice is built first.

    Args:
        values: `[points, channels]` or `[batch, points, channels]`.
        features: `[points, d]` or `[batch, points, d]`; what does not fit the values is left to the steps to refuse.
        smallest_mass: keeps a target that no source reaches at zero, if the dtype of the values has so small a number.
    """
    if not isinstance(features, Tensor) or features.dim() not in (2, 3) or features.numel() == 0:
        return None
    if why_in_steps(values, features) is not None or values.shape[:-1] != features.shape[:-1]:
        return None
    if values.shape[-1] == 0:
        return None
    if features.dtype not in (torch.float32, torch.float64) or accumulation_dtype(values.dtype) != features.dtype:
        return None
    if wants_gradient(values, features):
        return None
    primitives = primitives_for(features)
    if not hasattr(primitives, "filter_points"):
        return None
    smallest = max(smallest_mass, torch.finfo(values.dtype).tiny)
    if features.dim() == 2:
        return cast(FusedPrimitives, primitives).filter_points(values, features, None, smallest)
    batch = items_of_points(features.shape[0], features.shape[1], features.device)
    rows, flat = values.reshape(-1, values.shape[-1]), features.reshape(-1, features.shape[-1])
    filtered = cast(FusedPrimitives, primitives).filter_points(rows, flat, batch, smallest)
    return None if filtered is None else filtered.view(values.shape)


def mix_rows(rows: Tensor, vertices: Tensor, weights: Tensor, planes: bool) -> Tensor | None:
    """In one call, None where it is a slice: see `FusedPrimitives.mix_rows`."""
    if why_in_steps(rows, weights) is not None or wants_gradient(rows, weights):
        return None
    run = getattr(primitives_for(rows), "mix_rows", None)
    mixed: Tensor | None = None if run is None else run(rows, vertices, weights, planes)
    return mixed


def sum_cells(
    vertices: Tensor, barycentric: Tensor, coarse: tuple[int, ...], fine: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor] | None:
    """In one call, None where points are sliced and averaged: see `FusedPrimitives.sum_cells`."""
    if why_in_steps(vertices, barycentric) is not None or wants_gradient(barycentric):
        return None
    run = getattr(primitives_for(barycentric), "sum_cells", None)
    tables: tuple[Tensor, Tensor, Tensor] | None = None if run is None else run(vertices, barycentric, coarse, fine)
    return tables


def sum_landmarks(values: Tensor, guide: Tensor, tables: LandmarkTables) -> Tensor | None:
    """In one call, None where torch computes it: see `FusedPrimitives.sum_landmarks`."""
    if why_in_steps(values, guide) is not None or wants_gradient(values, guide) or values.numel() == 0:
        return None
    run = getattr(primitives_for(values), "sum_landmarks", None)
    sums: Tensor | None = None if run is None else run(values, guide, tables)
    return sums


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
    if wants_gradient(values, weight, bias):
        output: Tensor = _LearnedFilter.apply(values, weight, bias, tables, composed)  # type: ignore[no-untyped-call]
        return output
    return _run(values, weight, bias, tables)[0]


def normalize_items(
    values: Tensor, affine: tuple[Tensor, Tensor], norm: Callable[[], ItemsNorm], composed: Composed
) -> Tensor | None:
    """Group normalization of each item in one call, None where it is composed: see `FusedPrimitives.normalize_items`.

    Args:
        values: `[rows, channels]`.
        affine: weight and bias, `[channels]`.
        norm: tells how, and lists the rows of each item, where it is needed.
        composed: the same of torch's operators, for derivatives of derivatives.
    """
    if torch.is_autocast_enabled(values.device.type):
        # which leaves normalization as it is
        with torch.autocast(values.device.type, enabled=False):
            return normalize_items(values, affine, norm, composed)
    if why_in_steps(values, *affine) is not None or values.numel() == 0:
        return None
    run = getattr(primitives_for(values), "normalize_items", None)
    if run is None:
        return None
    if wants_gradient(values, *affine):
        output: Tensor | None = _ItemsNorm.apply(values, *affine, norm(), composed)  # type: ignore[no-untyped-call]
        return output
    found = run(values, *affine, norm())
    return None if found is None else found[0]


def mean_field(energies: Tensor, start: Tensor | None, kernels: Sequence[PairwiseTables], steps: int) -> Tensor | None:
    """The mean field in one call, None where it is composed of operators: see `FusedPrimitives.mean_field`."""
    if not kernels:
        return None
    tensors = [energies, start]
    for kernel in kernels:
        tensors += [kernel.barycentric, kernel.costs]
    if why_in_steps(*tensors) is not None or wants_gradient(*tensors):
        return None
    run = getattr(primitives_for(energies), "mean_field", None)
    marginals: Tensor | None = None if run is None else run(energies, start, kernels, steps)
    return marginals


def _run(values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables) -> tuple[Tensor, KeptOfFilter]:
    rows = values.view(-1, values.shape[-1]) if values.is_contiguous() else values.flatten(0, -2)
    output, kept = cast(FusedPrimitives, primitives_for(values)).filter_learned(rows, weight, bias, tables)
    return output.view(values.shape[0], -1, weight.shape[2]) if values.dim() == 3 else output, kept


class _LearnedFilter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables, composed: Composed
    ) -> Tensor:
        output, kept = _run(values, weight, bias, tables)
        ctx.tables, ctx.composed, ctx.backend = tables, composed, forced_backend()
        ctx.save_for_backward(values, weight, bias, *kept)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        # with a graph of the gradients the operators make it, who know their own derivatives
        differentiate = _differentiate_composed if torch.is_grad_enabled() else _differentiate
        if ctx.backend is forced_backend():
            return *differentiate(ctx, gradient), None, None
        with on_backend(ctx.backend):
            return *differentiate(ctx, gradient), None, None


def _differentiate_composed(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients with respect to values, weight and bias, which can be differentiated again."""
    inputs = ctx.saved_tensors[:3]
    output = ctx.composed(*inputs)
    wanted = [each for each, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
    found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=True))
    return tuple(next(found) if needed else None for needed in ctx.needs_input_grad[:3])


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The same, not to be differentiated again: back through slice, convolution, density and splat."""
    values, weight, _, *kept = ctx.saved_tensors
    if gradient.dim() == 3:
        gradient = gradient.flatten(0, 1)
    backend = cast(FusedPrimitives, primitives_for(gradient))
    wanted = ctx.needs_input_grad[:3]
    if torch.is_autocast_enabled(gradient.device.type):
        with torch.autocast(gradient.device.type, enabled=False):
            found = backend.differentiate_learned(gradient, weight, tuple(kept), ctx.tables, wanted)
    else:
        found = backend.differentiate_learned(gradient, weight, tuple(kept), ctx.tables, wanted)
    to_values, *others = found
    return (to_values if to_values is None or values.dim() == 2 else to_values.view(values.shape), *others)


class _ItemsNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, bias: Tensor, norm: ItemsNorm, composed: Composed
    ) -> Tensor | None:
        found = cast(FusedPrimitives, primitives_for(values)).normalize_items(values, weight, bias, norm)
        if found is None:
            return None
        ctx.norm, ctx.composed, ctx.backend = norm, composed, forced_backend()
        ctx.save_for_backward(values, weight, bias, found[1])
        return found[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        with on_backend(ctx.backend):
            if torch.is_grad_enabled():
                return *_differentiate_composed(ctx, gradient), None, None
            values, weight, bias, statistics = ctx.saved_tensors
            backend = cast(FusedPrimitives, primitives_for(gradient))
            found = backend.differentiate_items_norm(gradient, values, (weight, bias), statistics, ctx.norm)
            return *found, None, None
