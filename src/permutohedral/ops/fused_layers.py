"""Steps of layers on lattice points as one call of the backend, where nothing is traced: normalization, and a
convolution with what comes before and after it.

A backend that has `normalize_items` or `convolve_and_add` is used through this; the others, and what `why_in_steps`
gives a reason for, compose them of operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from permutohedral.ops.dispatch import forced_backend, on_backend, primitives_for
from permutohedral.ops.fused_primitives import ConvolutionTables, FusedPrimitives, ItemsNorm
from permutohedral.ops.tracing import wants_gradient, why_in_steps

# the same made of operators, which can be differentiated again
Composed = Callable[..., Tensor]
Affine = tuple[Tensor, Tensor]


def normalize_items(values: Tensor, affine: Affine, norm: Callable[[], ItemsNorm], composed: Composed) -> Tensor | None:
    """Group normalization of each item in one call, None where it is composed: see `FusedPrimitives.normalize_items`.

    Args:
        values: `[rows, channels]`.
        affine: weight and bias, `[channels]`.
        norm: tells how, and lists the rows of each item, where it is needed.
        composed: the same of torch's operators, of values, weight and bias.
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


class ConvolutionStep(NamedTuple):
    """A convolution on lattice points, with what comes before and after it.

    Attributes:
        tables: what it reads; None for the reverse where it is not known.
        norm: tells how the values are normalized before, None for not at all.
        composed: the same of operators without what is added, of values, weight, bias and what the norm learns.
    """

    tables: ConvolutionTables
    norm: Callable[[], ItemsNorm] | None
    composed: Composed


def convolve_rows(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    affine: tuple[Tensor | None, Tensor | None],
    added: Tensor | None,
    step: ConvolutionStep,
) -> Tensor | None:
    """The convolution of values that are normalized first, and what is added to it; None where it is composed.

    Args:
        values: `[sources, in_channels]`, which fit the tables.
        weight: `[filter_size, in_channels, out_channels]`.
        bias: `[out_channels]`.
        affine: weight and bias of the norm, `[in_channels]`, Nones without one.
        added: `[targets, out_channels]`.
        step: how.
    """
    tensors = values, weight, bias, *affine, added
    if why_in_steps(*tensors) is not None or not _fit(values, weight, bias, added, step.tables):
        return None
    if not hasattr(primitives_for(values), "convolve_and_add"):
        return None
    if wants_gradient(*tensors):
        output: Tensor | None = _ConvolutionStep.apply(values, weight, bias, *affine, added, step)  # type: ignore[no-untyped-call]
        return output
    found = _run_step(values, weight, bias, affine, added, step)
    return None if found is None else found[0]


def _fit(values: Tensor, weight: Tensor, bias: Tensor | None, added: Tensor | None, tables: ConvolutionTables) -> bool:
    """Whether it is a convolution in one group of something to something; what fits nothing is refused elsewhere."""
    if values.dim() != 2 or weight.dim() != 3 or weight.shape[:2] != (len(tables.neighbors), values.shape[1]):
        return False
    dtypes = {each.dtype for each in (values, weight, bias, added) if each is not None}
    fitting = added is None or added.shape == (tables.neighbors.shape[1], weight.shape[2])
    known = tables.reverse is not None and tables.neighbors.numel() > 0
    return known and fitting and len(dtypes) == 1 and values.numel() > 0 and weight.numel() > 0


# the rows that were convolved, the norm that made them of the values, and its statistics
_Kept = tuple[Tensor, ItemsNorm | None, Tensor | None]


def _run_step(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    affine: tuple[Tensor | None, Tensor | None],
    added: Tensor | None,
    step: ConvolutionStep,
) -> tuple[Tensor, _Kept] | None:
    backend = cast(FusedPrimitives, primitives_for(values))
    rows, norm, statistics = values, None, None
    if step.norm is not None:
        norm = step.norm()
        found = backend.normalize_items(values, *cast(Affine, affine), norm)
        if found is None:
            return None
        rows, statistics = found
    output = backend.convolve_and_add(rows, weight, step.tables.neighbors, bias, added)
    return output, (rows, norm, statistics)


def differentiate_composed(ctx: Any, gradient: Tensor, inputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """The gradients with respect to the first inputs of a function, which can be differentiated again."""
    output = ctx.composed(*inputs)
    needed = ctx.needs_input_grad[: len(inputs)]
    wanted = [cast(Tensor, each) for each, is_needed in zip(inputs, needed, strict=True) if is_needed]
    found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=True))
    return tuple(next(found) if is_needed else None for is_needed in needed)


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
                return *differentiate_composed(ctx, gradient, ctx.saved_tensors[:3]), None, None
            values, weight, bias, statistics = ctx.saved_tensors
            backend = cast(FusedPrimitives, primitives_for(gradient))
            found = backend.differentiate_items_norm(gradient, values, (weight, bias), statistics, ctx.norm)
            return *found, None, None


class _ConvolutionStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor | None:
        values, weight, bias, norm_weight, norm_bias, added, step = arguments
        found = _run_step(values, weight, bias, (norm_weight, norm_bias), added, step)
        if found is None:
            return None
        output, (rows, ctx.norm, statistics) = found
        ctx.tables, ctx.composed, ctx.backend = step.tables, step.composed, forced_backend()
        ctx.save_for_backward(values, weight, bias, norm_weight, norm_bias, rows, statistics)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        # what is added has the gradient of the result
        to_added = gradient if ctx.needs_input_grad[5] else None
        if ctx.backend is forced_backend() and not torch.is_autocast_enabled(gradient.device.type):
            return *_differentiate_step(ctx, gradient), to_added, None
        with on_backend(ctx.backend), torch.autocast(gradient.device.type, enabled=False):
            return *_differentiate_step(ctx, gradient), to_added, None


def _differentiate_step(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """With respect to values, weight, bias, and what the norm learns."""
    values, weight, bias, norm_weight, norm_bias, rows, statistics = ctx.saved_tensors
    if torch.is_grad_enabled():
        return differentiate_composed(ctx, gradient, (values, weight, bias, norm_weight, norm_bias))
    backend, needed = cast(FusedPrimitives, primitives_for(gradient)), ctx.needs_input_grad
    wanted = needed[0] or needed[3] or needed[4], needed[2]
    to_rows, to_weight, to_bias = backend.convolve_gradients(rows, weight, gradient, ctx.tables, wanted)
    if ctx.norm is None or to_rows is None:
        return to_rows, to_weight, to_bias, None, None
    of_norm = backend.differentiate_items_norm(to_rows, values, (norm_weight, norm_bias), statistics, ctx.norm)
    return of_norm[0], to_weight, to_bias, *of_norm[1:]
