"""How a public function gets its backend: `bind`, once in each call.

    no gradient is wanted                             the backend of the device, or the one forced by `use`
    a tensor requires a gradient                      `Differentiable` of that backend
    torch.compile, export, tensor subclasses, meta    `TRACED`: the operators that are registered with torch
    torch.func, forward-mode tangents                 `Transformed`: autograd functions with rules for both
    autocast is enabled                               one of these, with autocast switched off in every call
    `explain_call` runs                               one of these, with a report of every fused function

Each is a `Backend`, so that what is composed of primitives is written once.
"""

from __future__ import annotations

import sys
from abc import update_abstractmethods
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import forward_ad

from permutohedral.ops.backend import Backend, decisions, report_declined
from permutohedral.ops.batching import Arguments, Axes
from permutohedral.ops.contract import FieldPlan, FilterTables
from permutohedral.ops.dispatch import BackendReport, backend_on, call_on, forced_backend
from permutohedral.ops.dispatch import explain as explain_backend
from permutohedral.ops.items import ItemsNorm
from permutohedral.ops.operators import BOUNDED, OPERATORS, Operator
from permutohedral.ops.tracing import has_no_subclass, is_autocast, is_transformed, requires_gradient, uncompiled

# fused functions `f` with a derivative `f_backward` of their own; the last argument is a plan
_WITH_DERIVATIVE = "filter_learned", "mean_field", "normalize_items"
_BACKWARD = tuple(f"{name}_backward" for name in _WITH_DERIVATIVE)
_BOUNDED = "index_points_bounded", "coarsen_keys_bounded"
# functions that `Backend` defines
FUSED = tuple(
    name
    for name, function in vars(Backend).items()
    if callable(function)
    and name not in ("decline", *_BACKWARD, *_BOUNDED, *Backend.__abstractmethods__)
    and not name.startswith("_")
)


def bind(*tensors: Tensor | None) -> Backend:
    """Return the backend of a call.

    Args:
        tensors: all that the call computes with and that may require a gradient, the first one no None. They are on
            one device.
    """
    # first: Dynamo cannot read a context variable
    if torch.compiler.is_compiling():
        return TRANSFORMED if is_transformed() else TRACED
    # `is_transformed` and `is_recorded`
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return _transformed(_backend_on(tensors[0]).name)
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None:
        return TRACED
    device_type, wanted = tensors[0].device.type, False  # type: ignore[union-attr]
    for tensor in tensors:
        if type(tensor) in _PLAIN:
            wanted = wanted or tensor.requires_grad  # type: ignore[union-attr]
        elif isinstance(tensor, Tensor):
            return TRACED
    if device_type == "meta":
        return TRACED
    ops = backend_on(device_type)
    if wanted and torch.is_grad_enabled():
        ops = _differentiable(ops)
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(device_type):
        ops = _without_autocast(ops, device_type)
    return ops if decisions.get() is None else Wrapped(ops, _run_explained)  # type: ignore[abstract]


_PLAIN = (Tensor, torch.nn.Parameter)


def _backend_on(tensor: Tensor | None) -> Backend:
    assert tensor is not None
    return backend_on(tensor.device.type)


def _define_each(kind: Any, names: Sequence[str], method: Callable[[str], Callable[..., Any]]) -> None:
    """Define functions of a class by their names."""
    for name in names:
        setattr(kind, name, method(name))
    update_abstractmethods(kind)


# gradients in eager mode


class Differentiable(Backend):
    """A backend whose results have derivatives.

    A primitive is an autograd function of the backend's primitive and its derivative, which runs on the same backend.
    A fused function is one of the backend's function and its `f_backward` if there are both, else composed of these
    primitives. Derivatives of derivatives are composed.

    Args:
        backend: runs forward and backward passes.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend, self.name = backend, backend.name
        self.has_bounded = backend.has_bounded
        # what it declines is composed of differentiable primitives
        self._fused = copy(backend)
        self._fused.decline = self._decline  # type: ignore[method-assign]

    def coarsen_keys_bounded(self, keys: Tensor, table: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.backend.coarsen_keys_bounded(keys, table, rows)

    def compose(self, reason: str, name: str, *arguments: Any) -> Any:
        """Run the definition of a fused function, and report why."""
        report_declined(name, reason)
        return getattr(Backend, name)(self, *arguments)

    def _decline(self, reason: str, definition: Callable[..., Any], *arguments: Any) -> Any:
        with torch.enable_grad():
            return self.compose(reason, definition.__name__, *arguments)


# bounded: a program may make backends of its own
@lru_cache(maxsize=16)
def _differentiable(backend: Backend) -> Backend:
    return Differentiable(backend)  # type: ignore[abstract]


class _Primitive(torch.autograd.Function):
    # without setup_context, whose arguments torch binds by name in every call
    @staticmethod
    def forward(ctx: Any, operator: Operator, ops: Differentiable, *arguments: Any) -> Any:
        # the gradient of an integer output would otherwise be a tensor of zeros as large as the output
        ctx.set_materialize_grads(False)
        output = getattr(ops.backend, operator.name)(*arguments)
        ctx.operator, ctx.ops = operator, ops
        assert operator.derivative is not None
        operator.derivative.save(ctx, arguments, output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return (
            None,
            None,
            *_differentiate(ctx.operator, ctx, _of_backward(ctx.ops), ctx.needs_input_grad[2:], gradients),
        )


def _differentiate(
    operator: Operator, ctx: Any, ops: Backend, needed: tuple[bool, ...], gradients: Sequence[Tensor | None]
) -> Sequence[Tensor | None]:
    if operator.derivative is None:
        raise NotImplementedError(f"{operator.name} has no derivative")
    for gradient in gradients:
        if gradient is not None:
            found: Sequence[Tensor | None] = operator.derivative.backward(ops, ctx, needed, *gradients)
            return found
    return (None,) * len(needed)


def _of_backward(ops: Differentiable) -> Backend:
    """Return what a backward pass runs on: the backend of the forward pass, differentiable if a graph is wanted."""
    chosen: Backend = ops if torch.is_grad_enabled() else ops.backend
    if torch._C._is_any_autocast_enabled():
        for device_type in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device_type):
                chosen = _without_autocast(chosen, device_type)
    return chosen


# `Function.apply` without its search for wrappers of ended transformations, which `bind` has excluded
_apply_primitive: Callable[..., Any] = super(torch.autograd.Function, _Primitive).apply


def _differentiable_primitive(name: str) -> Callable[..., Any]:
    operator = BOUNDED if name == BOUNDED.name else OPERATORS[name]

    def run(self: Differentiable, *arguments: Any) -> Any:
        if operator.derivative is not None and requires_gradient(*arguments):
            return _apply_primitive(operator, self, *arguments)
        return getattr(self.backend, name)(*arguments)

    return run


def _differentiable_definition(name: str) -> Callable[..., Any]:
    def run(self: Differentiable, *arguments: Any) -> Any:
        if not requires_gradient(*arguments):
            return getattr(self.backend, name)(*arguments)
        return self.compose("gradients are wanted", name, *arguments)

    return run


def _derivative_blocker(plan: FilterTables | FieldPlan | ItemsNorm) -> str | None:
    """Return the reason that a fused function of this plan has no derivative of its own, or None."""
    fixed: list[Tensor] = []
    if isinstance(plan, FilterTables):
        fixed = [plan.source.barycentric, plan.target.barycentric]
    elif isinstance(plan, FieldPlan):
        fixed = [each.barycentric for each in plan.kernels]
    if requires_gradient(*fixed):
        return "gradients with respect to the features are wanted"
    return "there is no step" if isinstance(plan, FieldPlan) and plan.steps == 0 else None


def _differentiable_function(name: str) -> Callable[..., Any]:
    definition = getattr(Backend, name)

    def run(self: Differentiable, *arguments: Any) -> Any:
        *inputs, plan = arguments
        blocker, finish = _derivative_blocker(plan), None
        if blocker is not None:
            return self.compose(blocker, name, *arguments)
        if getattr(type(self.backend), name) is definition:
            return definition(self, *arguments)
        parameters = plan.parameters() if isinstance(plan, FieldPlan) else ()
        if not requires_gradient(*inputs, *parameters):
            return getattr(self.backend, name)(*arguments)
        if isinstance(plan, FieldPlan) and not plan.as_logits:
            # backends differentiate logits
            plan, finish = plan._replace(as_logits=True), partial(torch.softmax, dim=1)
        # torch.no_grad() takes longer
        torch._C._set_grad_enabled(False)
        try:
            output, saved = getattr(self._fused, name)(*inputs, plan)
        finally:
            torch._C._set_grad_enabled(True)
        if saved is not None:
            output = _apply_fused(name, self, [output], saved, plan, *inputs, *parameters)
        return output if finish is None else finish(output), None

    return run


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        name: str,
        ops: Differentiable,
        output: list[Tensor],
        saved: tuple[Any, ...],
        plan: Any,
        *inputs: Any,
    ) -> Any:
        ctx.name, ctx.ops, ctx.plan, ctx.num_inputs = name, ops, plan, len(inputs)
        tensors: list[Any] = [*inputs, *saved]
        ctx.others = others_of = {}
        for place, each in enumerate(tensors):
            if not isinstance(each, Tensor):
                tensors[place], others_of[place] = None, each
        ctx.save_for_backward(*tensors)
        # in a list, since torch returns a view of an argument
        return output.pop()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        # read once: gradient checkpointing allows a single look
        kept, plan, ops = list(ctx.saved_tensors), ctx.plan, _of_backward(ctx.ops)
        for place, each in ctx.others.items():
            kept[place] = each
        inputs, saved, needed = kept[: ctx.num_inputs], kept[ctx.num_inputs :], ctx.needs_input_grad[5:]
        given = inputs
        if isinstance(plan, FieldPlan):
            given, plan = inputs[:2], plan.with_parameters(inputs[2:])
        if torch.is_grad_enabled():
            output, _ = getattr(Backend, ctx.name)(ops, *given, plan)
            leaves = [each for each, is_needed in zip(inputs, needed, strict=True) if is_needed]
            gradients = iter(torch.autograd.grad(output, leaves, gradient, create_graph=True))
            found = [next(gradients) if is_needed else None for is_needed in needed]
        else:
            found = list(getattr(ops, f"{ctx.name}_backward")(gradient, inputs, saved, needed, plan))
            for place, each in enumerate(found):
                # of the shape and dtype of its tensor, such as a parameter of one element
                if not needed[place] or each is None:
                    found[place] = None
                elif each.shape != inputs[place].shape or each.dtype != inputs[place].dtype:
                    found[place] = each.reshape(inputs[place].shape).to(inputs[place].dtype)
        return None, None, None, None, None, *found


_apply_fused: Callable[..., Any] = super(torch.autograd.Function, _Fused).apply


_define_each(Differentiable, FUSED, _differentiable_definition)
_define_each(Differentiable, [name for name in OPERATORS if name != "filter_gaussian"], _differentiable_primitive)
_define_each(Differentiable, [BOUNDED.name], _differentiable_primitive)
_define_each(Differentiable, _WITH_DERIVATIVE, _differentiable_function)


# operators that are registered with torch


class Traced(Backend):
    """The registered operators `torch.ops.permutohedral.f`; fused functions are composed of them."""


def _register(operator: Operator) -> Callable[..., Any]:
    qualified, derivative = f"permutohedral::{operator.name}", operator.derivative
    torch.library.define(qualified, operator.schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(qualified, "default", partial(_run_contiguous, operator.name))
    torch.library.register_fake(qualified, operator.shape)
    if derivative is not None:
        backward, save = partial(_backward_traced, operator), partial(_save, operator)
        torch.library.register_autograd(qualified, backward, setup_context=save)
    registered: Callable[..., Any] = getattr(torch.ops.permutohedral, operator.name).default
    return lambda self, *arguments: registered(*arguments)


def _run(name: str, first: Tensor, *others: Any) -> Any:
    """Run a primitive on the backend of its first tensor."""
    ops, device_type = backend_on(first.device.type), first.device.type
    if is_autocast(first.device):
        ops = _without_autocast(ops, device_type)
    return getattr(ops, name)(first, *others)


def _run_contiguous(name: str, *arguments: Any) -> Any:
    """Return contiguous results, which compiled code expects; a backend may choose other strides."""
    return _of_tensors(Tensor.contiguous, _run(name, *arguments))


def _of_tensors(change: Callable[[Tensor], Tensor], result: Any) -> Any:
    return change(result) if isinstance(result, Tensor) else tuple(change(each) for each in result)


def _save(operator: Operator, ctx: Any, inputs: Arguments, output: Any) -> None:
    ctx.backend = forced_backend()
    assert operator.derivative is not None
    operator.derivative.save(ctx, inputs, output)


def _backward_traced(operator: Operator, ctx: Any, *gradients: Tensor | None) -> Any:
    """Run on the backend of the forward pass: autograd may be in another thread, or after the end of a block."""
    return call_on(ctx.backend, _differentiate, operator, ctx, TRACED, ctx.needs_input_grad, gradients)


_define_each(Traced, tuple(OPERATORS), lambda name: _register(OPERATORS[name]))
_filter_gaussian = Traced.filter_gaussian


def _filter_gaussian_traced(self: Traced, *arguments: Any) -> Tensor:
    """Run the registered operator, which has no derivative, where none is wanted."""
    run = Backend.filter_gaussian if requires_gradient(*arguments) else _filter_gaussian
    return run(self, *arguments)


Traced.filter_gaussian = _filter_gaussian_traced  # type: ignore[assignment]
TRACED: Backend = Traced()  # type: ignore[abstract]


# transformations of torch.func, and tangents


class Transformed(Backend):
    """Autograd functions with all rules of `torch.func`; fused functions are composed of them.

    Args:
        name: of the backend that runs them.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name


class _Unwrapped:
    """A context whose saved tensors are stripped of the wrappers of transformations that have ended."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ctx, name)
        return unwrap_dead_wrappers(found) if name == "saved_tensors" else found


def _run_below(name: str, *arguments: Any) -> Any:
    """Run a primitive below all transformations; torch may trace it there."""
    if torch._C._len_torch_dispatch_stack() or not has_no_subclass(*arguments):
        return getattr(TRACED, name)(*arguments)
    # a backend may return views of larger tensors, to which torch attaches no tangents
    return _of_tensors(lambda each: each.clone() if each._is_view() else each, _run(name, *arguments))


def _transformed_primitive(name: str) -> Callable[..., Any]:
    operator = OPERATORS[name]

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Any:
            return _run_below(name, *arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.set_materialize_grads(False)
            outputs = (output,) if isinstance(output, Tensor) else output
            ctx.num_outputs = len(outputs)
            ctx.mark_non_differentiable(*(each for each in outputs if not each.is_floating_point()))
            if operator.derivative is None:
                return
            _save(operator, ctx, inputs, output)
            ctx.save_for_forward(*(each for each in inputs if isinstance(each, Tensor)))
            ctx.others = [None if isinstance(each, Tensor) else (each,) for each in inputs]

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            given = _Unwrapped(ctx), TRANSFORMED, ctx.needs_input_grad, unwrap_dead_wrappers(gradients)
            return call_on(ctx.backend, _differentiate, operator, *given)

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
            if all(tangent is None for tangent in tangents):
                return None if ctx.num_outputs == 1 else (None,) * ctx.num_outputs
            if operator.derivative is None:
                raise NotImplementedError(f"{name} has no derivative")
            # torch calls this with tangents switched off, which would lose those of outer transformations
            with forward_ad._set_fwd_grad_enabled(True):
                tensors = iter([forward_ad.unpack_dual(each).primal for each in ctx.saved_tensors])
                arguments = tuple(next(tensors) if other is None else other[0] for other in ctx.others)
                return operator.derivative.jvp(TRANSFORMED, arguments, tangents)

        @staticmethod
        def vmap(info: Any, axes: Axes, *arguments: Any) -> tuple[Any, Any]:
            return operator.batch(getattr(TRANSFORMED, name), info.batch_size, axes, arguments)

    # of a lambda: torch marks the function, and a method cannot be marked
    apply: Callable[..., Any] = Function.apply
    outside = uncompiled(lambda *arguments: apply(*arguments))  # noqa: PLW0108

    def run(self: Transformed, *arguments: Any) -> Any:
        # the registered operator knows nothing of tangents, so torch.compile must not take it instead
        if torch.compiler.is_compiling() or "torch._dynamo" in sys.modules:
            return outside(*arguments)
        return apply(*arguments)

    return run


_define_each(Transformed, [name for name in OPERATORS if name != "filter_gaussian"], _transformed_primitive)
TRANSFORMED: Backend = Transformed()  # type: ignore[abstract]


@lru_cache(maxsize=16)
def _transformed(name: str) -> Backend:
    return Transformed(name)  # type: ignore[abstract]


# autocast and reports


class Wrapped(Backend):
    """A backend each of whose functions runs inside of another function.

    Args:
        ops: the backend.
        run: calls a function, given by its name, of a backend with arguments.
    """

    def __init__(self, ops: Backend, run: Callable[..., Any]) -> None:
        self.ops, self.run = ops, run
        self.name, self.has_color_grid, self.has_bounded = ops.name, ops.has_color_grid, ops.has_bounded


def _wrapped_function(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: self.run(self.ops, name, *arguments)


_define_each(Wrapped, (*OPERATORS, *FUSED, *_BACKWARD, *_BOUNDED), _wrapped_function)


def _without_autocast(ops: Backend, device_type: str) -> Backend:
    """Return a backend that runs with autocast switched off: the public functions have cast the values."""

    def run(ops: Backend, name: str, *arguments: Any) -> Any:
        with torch.autocast(device_type, enabled=False):
            return getattr(ops, name)(*arguments)

    return Wrapped(ops, run)  # type: ignore[abstract]


def _run_explained(ops: Backend, name: str, *arguments: Any) -> Any:
    """Run a function, and report to `explain_call` whether it was fused."""
    lines = decisions.get()
    known = 0 if lines is None else len(lines)
    found = getattr(ops, name)(*arguments)
    if lines is not None and name in FUSED and not any(line.startswith(f"{name}:") for line in lines[known:]):
        plain = getattr(ops, "backend", ops)
        is_fused = getattr(type(plain), name) is not getattr(Backend, name)
        composed = f"composed of primitives, because the backend {ops.name!r} has no function for it"
        lines.append(f"{name}: {'one call of the backend' if is_fused else composed}")
    return found


@dataclass(frozen=True)
class CallReport:
    """The path of a call.

    Attributes:
        backend: of its first tensor.
        decisions: a line for each fused function, in the order of the call.
    """

    backend: BackendReport
    decisions: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([str(self.backend), *self.decisions])


def explain_call(function: Callable[..., Any], *arguments: Any, **options: Any) -> CallReport:
    """Run a call, and report on which backend, and whether each of its filters was one call of the backend.

    A filter is otherwise composed of primitives, which is slower; the report has the reason.

    Args:
        function: a function or a layer of this package.
        arguments, options: passed to it.

    Returns:
        The backend, and whether each filter was fused, or why not.

    >>> import torch, permutohedral as ph
    >>> values, features = torch.rand(9, 2), torch.rand(9, 3)
    >>> with ph.backends.use("reference"):
    ...     print(ph.backends.explain_call(ph.gaussian_filter, values, features).decisions[-1])
    filter_points: composed of primitives, because the backend 'reference' has no function for it
    """
    lines: list[str] = []
    token = decisions.set(lines)
    try:
        function(*arguments, **options)
    finally:
        decisions.reset(token)
    tensors = (each for each in (*arguments, *options.values()) if isinstance(each, Tensor))
    return CallReport(explain_backend(next(tensors, None)), tuple(dict.fromkeys(lines)))
