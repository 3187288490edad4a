"""The gate between filters and the fused functions of a backend (`FusedFunctions` in `contract.py`).

A filter calls a `Composite`. It runs the backend's function of that name in one call, or it declines with a reason, and
the filter is composed of operators instead:

    traced, transformed, or a tensor subclass    composed
    autocast                                     the caller has cast the inputs; autocast is off in the backend
    the backend has no such function             composed
    the function returns `Declined`              composed
    a gradient is wanted                         one autograd function of `f` and `f_backward`, if there is the latter
    a gradient of a gradient is wanted           the derivative of the composed filter

`explain_call` reports these decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from permutohedral.ops.contract import Declined
from permutohedral.ops.dispatch import BackendReport, backend_for, call_on, forced_backend
from permutohedral.ops.dispatch import explain as explain_backend
from permutohedral.ops.tracing import fusion_blocker, requires_gradient, without_autocast

Result = TypeVar("Result")
Tensors = Sequence[Any]
# the arguments of a fused function after its tensors, or the reason there are none
Plan = Callable[[], tuple[Any, ...] | Declined]

# the decisions of the call that `explain_call` runs
_decisions: ContextVar[list[str] | None] = ContextVar("permutohedral_decisions", default=None)


class Composite(Generic[Result]):
    """A filter that a backend may compute in one call.

    Args:
        name: of the backend's function.
        has_backward: whether the function has a derivative; it then returns its result and the tensors to save.
        folds: whether the first tensor may be `[batch, rows, channels]`, while the function takes `[rows, channels]`.
    """

    def __init__(self, name: str, *, has_backward: bool = False, folds: bool = False) -> None:
        self.name, self.has_backward, self.folds = name, has_backward, folds

    def __call__(
        self,
        tensors: Tensors,
        plan: Plan,
        composed: Callable[..., Result],
        *,
        constants: Tensors = (),
        parameters: Tensors = (),
    ) -> Result:
        """Run the fused function, or compose its result of operators; see `fuse` for the arguments."""
        found = self.fuse(tensors, plan, composed, constants=constants, parameters=parameters)
        return composed(*tensors, *parameters) if isinstance(found, Declined) else found

    def fuse(
        self,
        tensors: Tensors,
        plan: Plan,
        composed: Callable[..., Result] | None = None,
        *,
        constants: Tensors = (),
        parameters: Tensors = (),
    ) -> Result | Declined:
        """Run the fused function, or return `Declined`.

        Args:
            tensors: the first arguments of the function, Nones included. Gradients flow to them.
            plan: returns its other arguments; called only if the call may be fused.
            composed: the same filter made of operators, of tensors and parameters; for a function with a derivative.
            constants: tensors in the plan that have no derivative here.
            parameters: tensors in the plan that gradients flow to, and numbers in their places.
        """
        found = self._fuse(tensors, plan, composed, constants, parameters)
        self._report(found)
        # Dynamo of torch 2.11 cannot trace a union of types that is not a string
        return cast("Result | Declined", found)

    def _report(self, found: object) -> None:
        # torch.compile cannot trace a context variable
        if not torch.compiler.is_compiling() and (decisions := _decisions.get()) is not None:
            path = "one call of the backend"
            if isinstance(found, Declined):
                path = f"composed of operators, because {found.reason}"
            decisions.append(f"{self.name}: {path}")

    def _fuse(
        self,
        tensors: Tensors,
        plan: Plan,
        composed: Callable[..., Any] | None,
        constants: Tensors,
        parameters: Tensors,
    ) -> Any:
        blocker = fusion_blocker(*tensors, *constants, *parameters)
        if blocker is not None:
            return Declined(blocker)
        if requires_gradient(*constants):
            return Declined("gradients with respect to the features are wanted")
        needs_gradient = requires_gradient(*tensors, *parameters)
        if needs_gradient and not self.has_backward:
            return Declined("gradients are wanted")
        backend = backend_for(tensors[0])
        function = getattr(backend.load(), self.name, None)
        if function is None:
            return Declined(f"the backend {backend.name!r} has no fused function for it")
        arguments = plan()
        if isinstance(arguments, Declined):
            return arguments
        if needs_gradient:
            return _apply(self, function, arguments, composed, len(tensors), *tensors, *parameters)
        found = self.run(function, tensors, arguments)
        return found if isinstance(found, Declined) or not self.has_backward else found[0]

    def run(self, function: Callable[..., Any], tensors: Tensors, plan: tuple[Any, ...]) -> Any:
        """Call the backend's function."""
        first, *others = tensors
        is_folded = self.folds and first.dim() == 3
        rows = first.flatten(0, 1) if is_folded else first
        found = without_autocast(first.device, function, rows, *others, *plan)
        if not is_folded or isinstance(found, Declined):
            return found
        result, saved = found
        return result.view(first.shape[0], -1, result.shape[1]), saved

    def run_backward(
        self, gradient: Tensor, inputs: Tensors, saved: Tensors, needed: tuple[bool, ...], plan: tuple[Any, ...]
    ) -> list[Tensor | None]:
        """Call the backend's derivative."""
        if self.folds and gradient.dim() == 3:
            gradient = gradient.flatten(0, 1)
        function = getattr(backend_for(gradient).load(), f"{self.name}_backward")
        found = without_autocast(gradient.device, function, gradient, inputs, saved, needed, *plan)
        return [_like(each, like, flag) for each, like, flag in zip(found, inputs, needed, strict=True)]


def _like(gradient: Tensor | None, tensor: Any, is_needed: bool) -> Tensor | None:
    """Give a gradient the shape and dtype of its tensor."""
    if gradient is None or not is_needed:
        return None
    if gradient.shape != tensor.shape:
        gradient = gradient.reshape(tensor.shape)
    return gradient.to(tensor.dtype)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        composite: Composite[Any],
        function: Callable[..., Any],
        plan: tuple[Any, ...],
        composed: Any,
        num_tensors: int,
        *inputs: Any,
    ) -> Any:
        found = composite.run(function, inputs[:num_tensors], plan)
        if isinstance(found, Declined):
            return found
        output, saved = found
        ctx.call, ctx.backend, ctx.num_inputs = (composite, plan, composed), forced_backend(), len(inputs)
        kept = *inputs, *saved
        ctx.save_for_backward(*(each if isinstance(each, Tensor) else None for each in kept))
        ctx.others = [None if isinstance(each, Tensor) else each for each in kept]
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        # read once: gradient checkpointing allows a single look
        tensors = ctx.saved_tensors
        kept = [other if each is None else each for each, other in zip(tensors, ctx.others, strict=True)]
        inputs, saved, needed = kept[: ctx.num_inputs], kept[ctx.num_inputs :], ctx.needs_input_grad[5:]
        composite, plan, composed = ctx.call
        # with a graph of the gradients the operators compute them, since they have derivatives of any order
        if torch.is_grad_enabled():
            found = call_on(ctx.backend, _differentiate_composed, composed, gradient, inputs, needed)
        else:
            found = call_on(ctx.backend, composite.run_backward, gradient, inputs, saved, needed, plan)
        return None, None, None, None, None, *found


# `Function.apply` without its search for wrappers of ended transformations, which the gate has excluded
_apply: Callable[..., Any] = super(torch.autograd.Function, _Fused).apply


def _differentiate_composed(
    composed: Callable[..., Tensor], gradient: Tensor, inputs: Tensors, needed: tuple[bool, ...]
) -> list[Tensor | None]:
    leaves = [each for each, is_needed in zip(inputs, needed, strict=True) if is_needed]
    found = iter(torch.autograd.grad(composed(*inputs), leaves, gradient, create_graph=True))
    return [next(found) if is_needed else None for is_needed in needed]


def to_autocast_dtype(device: torch.device, *tensors: Any) -> tuple[Any, ...]:
    """Cast tensors as `torch.autocast` casts the inputs of a convolution; float64 and other objects are kept."""
    dtype = torch.get_autocast_dtype(device.type)
    return tuple(
        each.to(dtype)
        if isinstance(each, Tensor) and each.is_floating_point() and each.dtype != torch.float64
        else each
        for each in tensors
    )


@dataclass(frozen=True)
class CallReport:
    """The path of a call.

    Attributes:
        backend: of its first tensor.
        decisions: a line for each filter, in the order of the call.
    """

    backend: BackendReport
    decisions: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([str(self.backend), *self.decisions])


def explain_call(function: Callable[..., Any], *arguments: Any, **options: Any) -> CallReport:
    """Run a call, and report on which backend, and whether each of its filters was one call of the backend.

    A filter is otherwise composed of operators, which is slower; the report has the reason.

    Args:
        function: a function or a layer of this package.
        arguments, options: passed to it.

    Returns:
        The backend, and whether each filter was fused, or why not.

    >>> import torch, permutohedral as ph
    >>> values, features = torch.rand(9, 2), torch.rand(9, 3)
    >>> with ph.backends.use("reference"):
    ...     print(ph.backends.explain_call(ph.gaussian_filter, values, features).decisions[-1])
    index_with_neighbors: composed of operators, because the backend 'reference' has no fused function for it
    """
    decisions: list[str] = []
    token = _decisions.set(decisions)
    try:
        function(*arguments, **options)
    finally:
        _decisions.reset(token)
    tensors = (each for each in (*arguments, *options.values()) if isinstance(each, Tensor))
    return CallReport(explain_backend(next(tensors, None)), tuple(dict.fromkeys(decisions)))


picture_features: Composite[Tensor] = Composite("picture_features")
index_with_neighbors: Composite[tuple[Tensor, ...]] = Composite("index_with_neighbors")
filter_points: Composite[Tensor] = Composite("filter_points")
sum_color_grid: Composite[Tensor] = Composite("sum_color_grid")
filter_learned: Composite[Tensor] = Composite("filter_learned", has_backward=True, folds=True)
mean_field: Composite[Tensor] = Composite("mean_field", has_backward=True)
normalize_items: Composite[Tensor] = Composite("normalize_items", has_backward=True)
slice_planes: Composite[Tensor] = Composite("slice_planes")
