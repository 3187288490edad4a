"""The Gaussian sums by their definition as torch knows them, between points and in windows of pictures.

    v'_k = sum_i w_ki v_i,   w_ki = exp(-|t_k - f_i|^2 / 2)

w is symmetric, and its derivative is w_ki (f_i - t_k): the derivatives are sums of the same kind, over the products of
values and features. So they are made of the operators themselves, and can be differentiated again. That a source comes
within reach changes nothing: its weight is nil there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from permutohedral.ops.batching import Arguments
from permutohedral.ops.operator import Derivative, Operator, Tangents

# values at the sources to their sums at the targets
_Sum = Callable[[Tensor], Tensor]


def _products(values: Tensor, features: Tensor, axis: int) -> Tensor:
    """Each channel times each feature, `channels * d` channels along `axis`, which is negative."""
    products = values.unsqueeze(axis) * features.unsqueeze(axis - 1)
    return products.flatten(axis - 1, axis)


def _pair(sums: Tensor, features: Tensor, axis: int) -> Tensor:
    """Undo `_products`, each with the feature of the same number: `channels * d` to `channels`."""
    products: Tensor = sums.unflatten(axis, (-1, features.shape[axis]))
    return (products * features.unsqueeze(axis - 1)).sum(axis)


def _pull(total: _Sum, others: Tensor, other_features: Tensor, own: Tensor, own_features: Tensor, axis: int) -> Tensor:
    """sum_i w_ki <own_k, others_i> (other_features_i - own_features_k): the gradient with respect to own_features."""
    channels = others.shape[axis]
    wide = torch.cat([_products(others, other_features, axis), others], dim=axis)
    moments, sums = total(wide).split([channels * other_features.shape[axis], channels], dim=axis)
    drawn = (moments.unflatten(axis, (channels, -1)) * own.unsqueeze(axis)).sum(axis - 1)
    pulled: Tensor = drawn - own_features * (own * sums).sum(axis, keepdim=True)
    return pulled


def _push(
    total: _Sum, values: Tensor, features: tuple[Tensor, Tensor], tangents: tuple[Tensor, Tensor], axis: int
) -> Tensor:
    """sum_i w_ki v_i <f_i - t_k, t'_k - f'_i>: the tangent, of those of source and target features."""
    (source, target), (source_tangent, target_tangent) = features, tangents
    at_target = (target * target_tangent).sum(axis, keepdim=True)
    at_source = (source * source_tangent).sum(axis, keepdim=True)
    mixed = _pair(total(_products(values, source, axis)), target_tangent, axis)
    mixed = mixed + _pair(total(_products(values, source_tangent, axis)), target, axis)
    return mixed - at_target * total(values) - total(at_source * values)


# sum_neighbors: values, features, target_features, reach


def _keep_neighbors(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.reach = inputs
    ctx.save_for_backward(*tensors)


def _neighbors_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    values, features, targets = ctx.saved_tensors
    to_values = to_features = to_targets = None
    if ctx.needs_input_grad[0]:
        to_values = sum_neighbors(gradient, targets, features, ctx.reach)
    # differences of features are what counts: those of small numbers are more accurate
    middle = features.detach().mean(dim=0) if features.shape[0] else 0.0
    near, near_targets = features - middle, targets - middle
    if ctx.needs_input_grad[1]:
        to_features = _pull(
            lambda wide: sum_neighbors(wide, near_targets, near, ctx.reach), gradient, near_targets, values, near, -1
        )
    if ctx.needs_input_grad[2]:
        to_targets = _pull(
            lambda wide: sum_neighbors(wide, near, near_targets, ctx.reach), values, near, gradient, near_targets, -1
        )
    return to_values, to_features, to_targets, None


def _push_neighbors(operator: Any, arguments: Arguments, tangents: Tangents) -> Tensor:
    values, features, targets, reach = arguments
    of_values = torch.zeros_like(values) if tangents[0] is None else tangents[0]
    tangent: Tensor = operator(of_values, features, targets, reach)
    if tangents[1] is None and tangents[2] is None:
        return tangent
    of_features = torch.zeros_like(features) if tangents[1] is None else tangents[1]
    of_targets = torch.zeros_like(targets) if tangents[2] is None else tangents[2]
    return tangent + _push(
        lambda wide: operator(wide, features, targets, reach),
        values,
        (features, targets),
        (of_features, of_targets),
        -1,
    )


sum_neighbors: Operator[Tensor] = Operator(
    "sum_neighbors",
    "(Tensor values, Tensor features, Tensor target_features, float reach) -> Tensor",
    lambda values, features, targets, reach: values.new_empty((targets.shape[0], values.shape[1])),
    derivative=Derivative(_keep_neighbors, _neighbors_backward, _push_neighbors),
)


# sum_window: values, guide, sigma_y, sigma_x, reach. The targets are the sources; positions have no derivative.


def _keep_window(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    values, guide, *ctx.window = inputs
    ctx.save_for_backward(values, guide)


def _window_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    values, guide = ctx.saved_tensors

    def total(wide: Tensor) -> Tensor:
        return sum_window(wide, guide, *ctx.window)

    to_values = total(gradient) if ctx.needs_input_grad[0] else None
    to_guide = None
    if ctx.needs_input_grad[1]:
        to_guide = _pull(total, gradient, guide, values, guide, -3) + _pull(total, values, guide, gradient, guide, -3)
    return to_values, to_guide, None, None, None


def _push_window(operator: Any, arguments: Arguments, tangents: Tangents) -> Tensor:
    values, guide, *window = arguments
    of_values = torch.zeros_like(values) if tangents[0] is None else tangents[0]
    tangent: Tensor = operator(of_values, guide, *window)
    if tangents[1] is None:
        return tangent
    both = tangents[1], tangents[1]
    return tangent + _push(lambda wide: operator(wide, guide, *window), values, (guide, guide), both, -3)


sum_window: Operator[Tensor] = Operator(
    "sum_window",
    "(Tensor values, Tensor guide, float sigma_y, float sigma_x, float reach) -> Tensor",
    lambda values, guide, sigma_y, sigma_x, reach: values.new_empty(values.shape),
    derivative=Derivative(_keep_window, _window_backward, _push_window),
)
