"""Mean fields as one call of the backend, where nothing is traced.

A backend that has `mean_field` and its kin is used through this; the others, and what `why_in_steps` gives a reason
for, compose them of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from permutohedral.ops.dispatch import forced_backend, on_backend, primitives_for
from permutohedral.ops.fused_primitives import FusedPrimitives, PairwisePoints, PairwiseTables
from permutohedral.ops.one_call import gradients_of
from permutohedral.ops.tracing import wants_gradient, why_in_steps


def mean_field(energies: Tensor, start: Tensor | None, kernels: Sequence[PairwiseTables], steps: int) -> Tensor | None:
    """The mean field in one call, None where it is composed of operators: see `FusedPrimitives.mean_field`."""
    others = start, *_tensors_of(kernels)
    run = _of_field("mean_field", energies, *others)
    if run is None or not kernels or wants_gradient(energies, *others):
        return None
    marginals: Tensor | None = run(energies, start, kernels, steps)
    return marginals


def has_mean_field_points(energies: Tensor, *others: Any) -> bool:
    """Whether a backend has it, and no derivatives with respect to these are wanted."""
    tensors = [each for each in others if isinstance(each, Tensor)]
    return _of_field("mean_field_points", energies, *tensors) is not None and not wants_gradient(energies, *tensors)


def mean_field_points(
    energies: Tensor, start: Tensor | None, kernels: Sequence[PairwisePoints], steps: int
) -> Tensor | None:
    """The mean field with the building of the lattices, None where these are built first: see
    `FusedPrimitives.mean_field_points`. There is a backend that `has_mean_field_points`.
    """
    features = [kernel.features for kernel in kernels]
    if not kernels or why_in_steps(energies, *features) is not None or wants_gradient(*features):
        return None
    return cast(FusedPrimitives, primitives_for(energies)).mean_field_points(energies, start, kernels, steps)


def mean_field_logits(
    energies: Tensor,
    start: Tensor | None,
    kernels: Sequence[PairwiseTables],
    steps: int,
    composed: Callable[..., Tensor],
) -> Tensor | None:
    """The logits of the mean field, with derivatives with respect to energies, start, costs, and factors that are
    tensors; None where it is composed of operators: see `FusedPrimitives.mean_field_logits`.

    Args:
        energies, start, kernels, steps: see there.
        composed: the same of operators, for derivatives of derivatives: of energies, start, and for each kernel its
            costs, or its factor.
    """
    if steps == 0 or energies.numel() == 0 or not kernels:
        return None
    if wants_gradient(*(kernel.barycentric for kernel in kernels)):
        return None
    run = _of_field("mean_field_logits", energies, start, *_tensors_of(kernels))
    if run is None:
        return None
    numbers = [_numbers_of(kernel) for kernel in kernels]
    with torch.no_grad():
        found = run(energies, start, numbers, steps)
    if found is None:
        return None
    parameters = [kernel.factor if kernel.costs is None else kernel.costs for kernel in kernels]
    logits: Tensor = _MeanField.apply(found, numbers, steps, composed, energies, start, *parameters)  # type: ignore[no-untyped-call]
    return logits


def _tensors_of(kernels: Sequence[PairwiseTables]) -> list[Tensor | None]:
    return [tensor for kernel in kernels for tensor in (kernel.barycentric, kernel.costs)]


def _of_field(name: str, energies: Tensor, *tensors: Tensor | None) -> Callable[..., Any] | None:
    """What computes a field of these tensors in one call, if it may be one and the backend has it."""
    if why_in_steps(energies, *tensors) is not None:
        return None
    run: Callable[..., Any] | None = getattr(primitives_for(energies), name, None)
    return run


def _numbers_of(kernel: PairwiseTables) -> PairwiseTables:
    """The kernel without what autograd knows of it."""
    factor = kernel.factor.detach() if isinstance(kernel.factor, Tensor) else kernel.factor
    costs = None if kernel.costs is None else kernel.costs.detach()
    return kernel._replace(factor=float(factor), costs=costs)


class _MeanField(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        found: tuple[Tensor, Any],
        kernels: Sequence[PairwiseTables],
        steps: int,
        composed: Callable[..., Tensor],
        energies: Tensor,
        start: Tensor | None,
        *parameters: float | Tensor | None,
    ) -> Tensor:
        logits, ctx.kept = found
        ctx.kernels, ctx.steps, ctx.composed, ctx.backend = kernels, steps, composed, forced_backend()
        ctx.numbers = [None if isinstance(each, Tensor) else each for each in parameters]
        ctx.save_for_backward(energies, start, *(each if isinstance(each, Tensor) else None for each in parameters))
        return logits

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        energies, start, *tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[4:]
        with on_backend(ctx.backend), torch.autocast(gradient.device.type, enabled=False):
            if torch.is_grad_enabled():
                given = [number if each is None else each for number, each in zip(ctx.numbers, tensors, strict=True)]
                return None, None, None, None, *gradients_of(ctx.composed, [energies, start, *given], needed, gradient)
            backend = cast(FusedPrimitives, primitives_for(gradient))
            found = backend.differentiate_mean_field(gradient, energies, start, ctx.kernels, ctx.steps, ctx.kept)
        to_inputs = [*found[:2], *found[2]]
        like = [energies, start, *tensors]
        return (
            None,
            None,
            None,
            None,
            *(
                each.reshape(other.shape).to(other.dtype) if is_needed and each is not None else None
                for each, other, is_needed in zip(to_inputs, like, needed, strict=True)
            ),
        )
