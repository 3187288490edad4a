"""Mean fields as one call of the backend, where nothing is traced.

A backend that has `mean_field` and its kin is used through this; the others, and what `why_in_steps` gives a reason
for, compose them of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from permutohedral.ops.dispatch import primitives_for
from permutohedral.ops.fused_primitives import FusedPrimitives, PairwisePoints, PairwiseTables
from permutohedral.ops.one_call import Inputs, apply, in_one_call
from permutohedral.ops.tracing import wants_gradient, why_in_steps


def mean_field(energies: Tensor, start: Tensor | None, kernels: Sequence[PairwiseTables], steps: int) -> Tensor | None:
    """The mean field in one call, None where it is composed of operators: see `FusedPrimitives.mean_field`."""
    run = in_one_call("mean_field", energies, start, *_tensors_of(kernels)) if kernels else None
    return None if run is None else run(energies, start, kernels, steps)


def has_mean_field_points(energies: Tensor, *others: Any) -> bool:
    """Whether a backend has it, and no derivatives with respect to these are wanted."""
    return (
        in_one_call("mean_field_points", energies, *(each for each in others if isinstance(each, Tensor))) is not None
    )


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
    if why_in_steps(energies, start, *_tensors_of(kernels)) is not None:
        return None
    if not hasattr(primitives_for(energies), "mean_field_logits"):
        return None
    parameters = [kernel.factor if kernel.costs is None else kernel.costs for kernel in kernels]
    step = _Logits([*map(_numbers_of, kernels)], steps, parameters, composed)
    logits: Tensor | None = apply(step, energies, start, *map(_if_tensor, parameters))
    return logits


def _tensors_of(kernels: Sequence[PairwiseTables]) -> list[Tensor | None]:
    return [tensor for kernel in kernels for tensor in (kernel.barycentric, kernel.costs)]


def _numbers_of(kernel: PairwiseTables) -> PairwiseTables:
    """The kernel without what autograd knows of it."""
    factor = kernel.factor.detach() if isinstance(kernel.factor, Tensor) else kernel.factor
    costs = None if kernel.costs is None else kernel.costs.detach()
    return kernel._replace(factor=float(factor), costs=costs)


def _if_tensor(parameter: float | Tensor) -> Tensor | None:
    return parameter if isinstance(parameter, Tensor) else None


@dataclass
class _Logits:
    """One call of the backend, of energies, start, and the parameters that are tensors: see `one_call.Step`."""

    kernels: list[PairwiseTables]
    steps: int
    parameters: list[float | Tensor]
    of_operators: Callable[..., Tensor]
    kept: Any = None

    def composed(self, energies: Tensor, start: Tensor | None, *tensors: Tensor | None) -> Tensor:
        given = (number if each is None else each for number, each in zip(self.parameters, tensors, strict=True))
        return self.of_operators(energies, start, *given)

    def run(self, energies: Tensor, start: Tensor | None, *tensors: Tensor | None) -> tuple[Tensor | None, Inputs]:
        backend = cast(FusedPrimitives, primitives_for(energies))
        found = backend.mean_field_logits(energies, start, self.kernels, self.steps)
        if found is None:
            return None, ()
        logits, self.kept = found
        return logits, ()

    def differentiate(
        self, gradient: Tensor, inputs: Inputs, kept: Inputs, wanted: tuple[bool, ...]
    ) -> tuple[Tensor | None, ...]:
        backend, (energies, start) = cast(FusedPrimitives, primitives_for(gradient)), inputs[:2]
        *found, of_kernels = backend.differentiate_mean_field(
            gradient, energies, start, self.kernels, self.steps, self.kept
        )
        return tuple(
            each.reshape(like.shape).to(like.dtype) if is_wanted and each is not None else None
            for each, like, is_wanted in zip([*found, *of_kernels], inputs, wanted, strict=True)
        )
