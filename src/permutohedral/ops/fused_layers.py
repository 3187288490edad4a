"""Steps of layers on lattice points as one call of the backend, where nothing is traced: normalization, and a
convolution with what comes before and after it.

A backend that has `normalize_items` or `convolve_and_add` is used through this; the others, and what `why_in_steps`
gives a reason for, compose them of operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from permutohedral.ops.dispatch import primitives_for
from permutohedral.ops.fused_primitives import ConvolutionTables, FusedPrimitives, ItemsNorm
from permutohedral.ops.one_call import Inputs, apply
from permutohedral.ops.tracing import is_autocast, requires_gradient, why_in_steps

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
    if is_autocast(values.device):
        # which leaves normalization as it is
        with torch.autocast(values.device.type, enabled=False):
            return normalize_items(values, affine, norm, composed)
    if why_in_steps(values, *affine) is not None or values.numel() == 0:
        return None
    if not hasattr(primitives_for(values), "normalize_items"):
        return None
    step = _ItemsNorm(norm(), composed)
    return apply(step, values, *affine) if requires_gradient(values, *affine) else step.run(values, *affine)[0]


class ConvolutionStep(NamedTuple):
    """A convolution on lattice points, with what comes before and after it.

    Attributes:
        tables: what it reads; None for the reverse where it is not known.
        norm: tells how the values are normalized before, None for not at all.
        composed: the same of operators, of values, weight, bias, what the norm learns, and what is added.
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
    norm = None if step.norm is None else step.norm()
    call = _Convolution(step.tables, norm, step.composed)
    return apply(call, *tensors) if requires_gradient(*tensors) else call.run(*tensors)[0]


def _fit(values: Tensor, weight: Tensor, bias: Tensor | None, added: Tensor | None, tables: ConvolutionTables) -> bool:
    """Whether it is a convolution in one group of something to something; what fits nothing is refused elsewhere."""
    if values.dim() != 2 or weight.dim() != 3 or weight.shape[:2] != (len(tables.neighbors), values.shape[1]):
        return False
    dtypes = {each.dtype for each in (values, weight, bias, added) if each is not None}
    fitting = added is None or added.shape == (tables.neighbors.shape[1], weight.shape[2])
    known = tables.reverse is not None and tables.neighbors.numel() > 0
    return known and fitting and len(dtypes) == 1 and values.numel() > 0 and weight.numel() > 0


class _ItemsNorm(NamedTuple):
    norm: ItemsNorm
    composed: Composed

    def run(self, values: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor | None, Inputs]:
        found = cast(FusedPrimitives, primitives_for(values)).normalize_items(values, weight, bias, self.norm)
        return (None, ()) if found is None else (found[0], found[1:])

    def differentiate(
        self, gradient: Tensor, inputs: Inputs, kept: Inputs, wanted: tuple[bool, ...]
    ) -> tuple[Tensor | None, ...]:
        backend = cast(FusedPrimitives, primitives_for(gradient))
        return backend.differentiate_items_norm(gradient, inputs[0], (inputs[1], inputs[2]), kept[0], self.norm)


class _Convolution(NamedTuple):
    tables: ConvolutionTables
    norm: ItemsNorm | None
    composed: Composed

    def run(
        self,
        values: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        added: Tensor | None,
    ) -> tuple[Tensor | None, Inputs]:
        backend = cast(FusedPrimitives, primitives_for(values))
        rows, statistics = values, None
        if self.norm is not None:
            assert norm_weight is not None
            assert norm_bias is not None
            found = backend.normalize_items(values, norm_weight, norm_bias, self.norm)
            if found is None:
                return None, ()
            rows, statistics = found
        return backend.convolve_and_add(rows, weight, self.tables.neighbors, bias, added), (rows, statistics)

    def differentiate(
        self, gradient: Tensor, inputs: Inputs, kept: Inputs, wanted: tuple[bool, ...]
    ) -> tuple[Tensor | None, ...]:
        values, weight, _, norm_weight, norm_bias, _ = inputs
        (rows, statistics), backend = kept, cast(FusedPrimitives, primitives_for(gradient))
        before = wanted[0] or wanted[3] or wanted[4]
        to_rows, *learned = backend.convolve_gradients(rows, weight, gradient, self.tables, (before, wanted[2]))
        # what is added has the gradient of the result
        to_added = gradient if wanted[5] else None
        if self.norm is None or to_rows is None:
            return to_rows, *learned, None, None, to_added
        affine = norm_weight, norm_bias
        to_values, *of_norm = backend.differentiate_items_norm(to_rows, values, affine, statistics, self.norm)
        return to_values, *learned, *of_norm, to_added
