"""The learned filter as one operator where nothing is traced: its steps without torch's bookkeeping between them.

A backend that has `filter_learned` is used through this; with the others, and wherever something is traced, batched or
differentiated with respect to features, the filter is composed of the operators of `autograd.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from permutohedral.ops.dispatch import primitives_for
from permutohedral.ops.eager import is_plain, is_watched, requires_grad
from permutohedral.ops.primitives import FilterTables, FusedPrimitives, accumulation_dtype, transpose_weight
from permutohedral.ops.tables import items_of_points

# the same filter made of operators, which can be differentiated again: of values, weight and bias
Composed = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def can_fuse(values: Tensor, weight: Tensor, bias: Tensor | None, *weights: Tensor) -> bool:
    """Whether nothing is traced or converted, and no derivative with respect to barycentric `weights` is wanted."""
    if is_watched() or not is_plain(values, weight, bias, *weights):
        return False
    if not isinstance(values, Tensor) or not isinstance(weight, Tensor):
        return False
    if torch.is_grad_enabled() and requires_grad(*weights):
        return False
    # tensors that do not fit each other are refused later, with a reason
    if any(tensor.device != values.device for tensor in (weight, *weights)):
        return False
    if weight.dim() != 3 or (bias is not None and bias.dtype != values.dtype):
        return False
    if torch.is_autocast_enabled(values.device.type):
        return False
    return hasattr(primitives_for(values), "filter_learned")


def gradients_at_once(
    lattice_values: Tensor,
    weight: Tensor,
    gradient: Tensor,
    neighbors: Tensor,
    reverse: Tensor | None,
    opposite: Tensor,
) -> tuple[Tensor, Tensor] | None:
    """The gradients of the convolution in one group with respect to lattice values and weight, None where they are
    computed one after the other; they cannot be differentiated again.
    """
    if torch.is_grad_enabled() or is_watched() or reverse is None or not is_plain(lattice_values, weight, gradient):
        return None
    together = getattr(primitives_for(gradient), "convolve_gradients", None)
    if together is None:
        return None
    with torch.autocast(gradient.device.type, enabled=False):
        found: tuple[Tensor, Tensor] | None = together(lattice_values, weight, gradient, neighbors, reverse, opposite)
    return found


def filter_points(values: Tensor, features: Tensor | None, smallest_mass: float) -> Tensor | None:
    """The normalized Gaussian between points in one go, None where it has to be done step by step.

    Args:
        values: `[points, channels]` or `[batch, points, channels]`.
        features: `[points, d]` or `[batch, points, d]`; what does not fit the values is left to the steps to refuse.
        smallest_mass: keeps a target that no source reaches at zero, if the dtype of the values has so small a number.
    """
    if is_watched() or not is_plain(values, features):
        return None
    if not isinstance(values, Tensor) or not isinstance(features, Tensor) or features.dim() not in (2, 3):
        return None
    if values.shape[:-1] != features.shape[:-1] or values.device != features.device or features.numel() == 0:
        return None
    if features.dtype not in (torch.float32, torch.float64) or accumulation_dtype(values.dtype) != features.dtype:
        return None
    if torch.is_grad_enabled() and requires_grad(values, features):
        return None
    primitives = primitives_for(features)
    if not hasattr(primitives, "filter_points") or torch.is_autocast_enabled(features.device.type):
        return None
    batch = None if features.dim() == 2 else items_of_points(features.shape[0], features.shape[1], features.device)
    rows, smallest = values.reshape(-1, values.shape[-1]), max(smallest_mass, torch.finfo(values.dtype).tiny)
    flat = features.reshape(-1, features.shape[-1])
    filtered = cast(FusedPrimitives, primitives).filter_points(rows, flat, batch, smallest)
    return None if filtered is None else filtered.view(values.shape)


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
    if torch.is_grad_enabled() and requires_grad(values, weight, bias):
        output: Tensor = _LearnedFilter.apply(values, weight, bias, tables, composed)  # type: ignore[no-untyped-call]
        return output
    return _run(values, weight, bias, tables)[0]


def _run(
    values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables
) -> tuple[Tensor, Tensor, Tensor | None]:
    rows = values.reshape(tables.vertices.shape[0], values.shape[-1])
    backend = cast(FusedPrimitives, primitives_for(values))
    output, lattice_values, density = backend.filter_learned(rows, weight, bias, tables)
    if values.dim() == 3:
        output = output.view(values.shape[0], -1, weight.shape[2])
    return output, lattice_values, density


class _LearnedFilter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables, composed: Composed
    ) -> Tensor:
        output, lattice_values, density = _run(values, weight, bias, tables)
        ctx.tables, ctx.composed = tables, composed
        ctx.save_for_backward(values, weight, bias, lattice_values, density)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if torch.is_grad_enabled():
            return (*_differentiate_composed(ctx, gradient), None, None)
        values, weight, _, *lattice_values = ctx.saved_tensors
        return (*_differentiate(ctx, gradient, values, weight, ctx.tables, *lattice_values), None, None)


def filter_features(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    features: Tensor,
    target_features: Tensor | None,
    kind: tuple[int, bool],
    composed: Composed,
) -> Tensor | None:
    """The learned filter from features alone, None where it has to be done step by step.

    Args:
        values: `[points, in_channels]` or `[batch, points, in_channels]`.
        weight: `[filter_size, in_channels / groups, out_channels]`.
        bias: `[out_channels]`, or None.
        features: `[points, d]` or `[batch, points, d]`; what does not fit is left to the steps to refuse.
        target_features: where results are wanted, None for at the features.
        kind: the size of the neighborhood, and whether to divide each lattice point by its density.
        composed: the same filter of operators, for derivatives of derivatives.
    """
    if is_watched() or not is_plain(values, weight, bias, features, target_features):
        return None
    if not isinstance(values, Tensor) or not isinstance(features, Tensor):
        return None
    backend = getattr(primitives_for(values), "filter_features", None)
    if backend is None or torch.is_autocast_enabled(values.device.type):
        return None
    if torch.is_grad_enabled() and requires_grad(features, target_features):
        return None
    with_gradient = torch.is_grad_enabled() and requires_grad(values, weight, bias)
    filtered = backend(values, weight, bias, features, target_features, (*kind, with_gradient))
    if filtered is None or not with_gradient:
        return None if filtered is None else cast(Tensor, filtered[0])
    output: Tensor = _FeatureFilter.apply(values, weight, bias, filtered, composed)  # type: ignore[no-untyped-call]
    return output


class _FeatureFilter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, bias: Tensor | None, filtered: tuple[Any, ...], composed: Composed
    ) -> Tensor:
        output, kept, ctx.pass_back = filtered
        ctx.composed = composed
        ctx.save_for_backward(values, weight, bias, *kept)
        return cast(Tensor, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if torch.is_grad_enabled():
            return (*_differentiate_composed(ctx, gradient), None, None)
        values, weight, _, *kept = ctx.saved_tensors
        if not ctx.needs_input_grad[0]:
            found = ctx.pass_back.weight_gradients(kept, gradient)
            if found is not None:
                return None, *found, None, None
        tables, lattice_values, density = ctx.pass_back.tables(kept)
        return (*_differentiate(ctx, gradient, values, weight, tables, lattice_values, density), None, None)


def _differentiate_composed(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients with respect to values, weight and bias, which can be differentiated again."""
    inputs = ctx.saved_tensors[:3]
    output = ctx.composed(*inputs)
    wanted = [each for each, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
    found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=True))
    return tuple(next(found) if needed else None for needed in ctx.needs_input_grad[:3])


def _differentiate(
    ctx: Any,
    gradient: Tensor,
    values: Tensor,
    weight: Tensor,
    tables: FilterTables,
    lattice_values: Tensor,
    density: Tensor | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients with respect to values, weight and bias."""
    primitives = primitives_for(values)
    gradient = gradient.reshape(-1, gradient.shape[-1])
    to_values = to_weight = None
    to_bias = gradient.sum(dim=0) if ctx.needs_input_grad[2] else None
    if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
        return None, None, to_bias
    corners = tables.target_vertices, tables.target_barycentric
    at_targets = primitives.splat(gradient, *corners, tables.neighbors.shape[1])
    reverse = tables.reverse_neighbors
    if ctx.needs_input_grad[0] and reverse is None:
        reverse = primitives.transpose_neighbors(tables.neighbors, tables.opposite, tables.num_lattice_points)
    at_sources = None
    if ctx.needs_input_grad[0] and ctx.needs_input_grad[1] and tables.groups == 1:
        found = gradients_at_once(lattice_values, weight, at_targets, tables.neighbors, reverse, tables.opposite)
        at_sources, to_weight = found or (None, None)
    if ctx.needs_input_grad[1] and to_weight is None:
        to_weight = primitives.convolve_weight_gradient(lattice_values, at_targets, tables.neighbors, tables.groups)
    if ctx.needs_input_grad[0] and reverse is not None:
        if at_sources is None:
            adjoint = transpose_weight(weight, tables.opposite, tables.groups)
            at_sources = primitives.convolve(at_targets, adjoint, reverse, tables.groups)
        if density is not None:
            at_sources = (at_sources / torch.where(density > 0, density, 1.0)[:, None]).to(at_sources.dtype)
        to_values = primitives.slice(at_sources, tables.vertices, tables.barycentric).view(values.shape)
    return to_values, to_weight, to_bias
