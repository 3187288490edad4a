"""The primitives as torch operators: schemas, shapes for tracing, derivatives. Written once, above every backend.

Each operator runs the backend of its tensors (`dispatch.py`). The derivatives are made of the operators
themselves, so they can be differentiated again; `primitives.py` says why the set is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from permutohedral.ops.dispatch import primitives_for
from permutohedral.ops.eager import direct, is_plain, is_watched, requires_grad
from permutohedral.ops.fused import gradients_at_once
from permutohedral.ops.primitives import accumulation_dtype, transpose_weight

_NAMESPACE = "permutohedral"
# what computes each operator, and its derivative: where nothing is traced they are called without the dispatcher
_runs: dict[str, Callable[..., Any]] = {}
_derivatives: dict[str, tuple[Callable[..., None], Callable[..., Any]]] = {}


def _define(name: str, schema: str, shape: Callable[..., Any], run: Callable[..., Any] | None = None) -> None:
    """Register the operator `permutohedral::name`; `shape` traces it without data, `run` is the primitive `name`."""

    def run_backend(first: Tensor, *others: Any) -> Any:
        return getattr(primitives_for(first), name)(first, *others)

    qualified = f"{_NAMESPACE}::{name}"
    torch.library.define(qualified, schema, tags=(torch.Tag.pt2_compliant_tag,))
    _runs[name] = _without_autocast(run or run_backend)
    torch.library.impl(qualified, "default", _in_rows(_runs[name]))
    torch.library.register_fake(qualified, shape)


def _without_autocast(run: Callable[..., Any]) -> Callable[..., Any]:
    """`functional` decides what autocast means; inside a backend nothing may change its dtype."""

    def run_plainly(first: Tensor, *others: Any) -> Any:
        if not torch.is_autocast_enabled(first.device.type):
            return run(first, *others)
        with torch.autocast(first.device.type, enabled=False):
            return run(first, *others)

    return run_plainly


def _in_rows(run: Callable[..., Any]) -> Callable[..., Any]:
    """A backend may choose the strides of its results; compiled code has been promised contiguous ones."""

    def run_in_rows(*arguments: Any) -> Any:
        result = run(*arguments)
        return result.contiguous() if isinstance(result, Tensor) else tuple(each.contiguous() for each in result)

    return run_in_rows


def _differentiate(name: str, setup: Callable[..., None], backward: Callable[..., Any]) -> None:
    _derivatives[name] = (setup, backward)
    torch.library.register_autograd(f"{_NAMESPACE}::{name}", backward, setup_context=setup)


def _dynamic_size() -> Any:
    """A size that only the data tells, such as the number of lattice points."""
    return torch.library.get_ctx().new_dynamic_size()


# index_points: the only operator whose derivative is with respect to features


def _index_points_shape(features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    points, d = features.shape
    keys = features.new_empty((_dynamic_size(), d + 1), dtype=torch.int32)
    vertices = features.new_empty((points, d + 1), dtype=torch.int32)
    barycentric = features.new_empty((points, d + 1))
    table = features.new_empty((_dynamic_size(),), dtype=torch.int64)
    return keys, vertices, barycentric, table


def _index_points_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def _index_points_backward(
    ctx: Any, keys: None, vertices: None, barycentric_gradient: Tensor, table: None
) -> tuple[Tensor, None]:
    (features,) = ctx.saved_tensors
    return embed_gradient(features, barycentric_gradient), None


_define(
    "index_points",
    "(Tensor features, Tensor? batch) -> (Tensor, Tensor, Tensor, Tensor)",
    _index_points_shape,
)
_differentiate("index_points", _index_points_setup, _index_points_backward)


# embed_gradient and embed_differential: linear in their second argument, constant inside a simplex


def _embed_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def _embed_gradient_backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
    return None, embed_differential(ctx.saved_tensors[0], gradient)


def _embed_differential_backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
    return None, embed_gradient(ctx.saved_tensors[0], gradient)


_define(
    "embed_gradient",
    "(Tensor features, Tensor barycentric_gradient) -> Tensor",
    lambda features, gradient: features.new_empty(features.shape),
)
_differentiate("embed_gradient", _embed_setup, _embed_gradient_backward)
_define(
    "embed_differential",
    "(Tensor features, Tensor differential) -> Tensor",
    lambda features, differential: features.new_empty((features.shape[0], features.shape[1] + 1)),
)
_differentiate("embed_differential", _embed_setup, _embed_differential_backward)


# keys and neighbors: integers, no derivatives


def _index_keys_shape(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    unique_keys = keys.new_empty((_dynamic_size(), keys.shape[1]))
    return unique_keys, keys.new_empty((keys.shape[0],)), keys.new_empty((_dynamic_size(),), dtype=torch.int64)


_define(
    "index_keys",
    "(Tensor keys) -> (Tensor, Tensor, Tensor)",
    _index_keys_shape,
)
_define(
    "find_neighbors",
    "(Tensor source_keys, Tensor table, Tensor target_keys, Tensor offsets) -> Tensor",
    lambda source, table, target, offsets: source.new_empty((offsets.shape[0], target.shape[0])),
)
_define(
    "transpose_neighbors",
    "(Tensor neighbors, Tensor opposite, SymInt num_source) -> Tensor",
    lambda neighbors, opposite, num: neighbors.new_empty((neighbors.shape[0], num)),
)


# splat, slice, barycentric_gradient: the partial gradients of one trilinear form


def _splat_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    values, vertices, barycentric, _ = inputs
    ctx.save_for_backward(values, vertices, barycentric)


def _splat_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
    values, vertices, barycentric = ctx.saved_tensors
    to_values = slice(gradient, vertices, barycentric) if ctx.needs_input_grad[0] else None
    to_barycentric = barycentric_gradient(values, gradient, vertices) if ctx.needs_input_grad[2] else None
    return to_values, None, to_barycentric, None


def _slice_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _slice_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
    lattice_values, vertices, barycentric = ctx.saved_tensors
    to_lattice = splat(gradient, vertices, barycentric, lattice_values.shape[0]) if ctx.needs_input_grad[0] else None
    to_barycentric = barycentric_gradient(gradient, lattice_values, vertices) if ctx.needs_input_grad[2] else None
    return to_lattice, None, to_barycentric


def _barycentric_gradient_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    values, lattice_values, vertices = ctx.saved_tensors
    to_values = slice(lattice_values, vertices, gradient) if ctx.needs_input_grad[0] else None
    to_lattice = splat(values, vertices, gradient, lattice_values.shape[0]) if ctx.needs_input_grad[1] else None
    return to_values, to_lattice, None


_define(
    "splat",
    "(Tensor values, Tensor vertices, Tensor barycentric, SymInt num_lattice_points) -> Tensor",
    lambda values, vertices, barycentric, num: values.new_empty((num, values.shape[1])),
)
_differentiate("splat", _splat_setup, _splat_backward)
_define(
    "slice",
    "(Tensor lattice_values, Tensor vertices, Tensor barycentric) -> Tensor",
    lambda values, vertices, barycentric: values.new_empty((vertices.shape[0], values.shape[1])),
)
_differentiate("slice", _slice_setup, _slice_backward)
_define(
    "barycentric_gradient",
    "(Tensor values, Tensor lattice_values, Tensor vertices) -> Tensor",
    lambda values, lattice, vertices: values.new_empty(vertices.shape, dtype=accumulation_dtype(values.dtype)),
)
_differentiate("barycentric_gradient", _slice_setup, _barycentric_gradient_backward)


# convolve and its weight gradient: the partial gradients of sum_{k,v} <out[v], w_k in[neighbors[k,v]]>.
# The taps are closed under negation, so the gradient with respect to the input is again a convolution, over
# the reverse table: a gather, no scatter. reverse_neighbors is None where nobody has needed it yet.


def _reverse(neighbors: Tensor, reverse_neighbors: Tensor | None, opposite: Tensor, num_source: int) -> Tensor:
    if reverse_neighbors is not None:
        return reverse_neighbors
    return transpose_neighbors(neighbors, opposite, num_source)


def _convolve_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.groups = inputs
    ctx.save_for_backward(*tensors)


def _convolve_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
    lattice_values, weight, neighbors, reverse_neighbors, opposite = ctx.saved_tensors
    to_values = to_weight = None
    if ctx.needs_input_grad[0]:
        reverse = _reverse(neighbors, reverse_neighbors, opposite, lattice_values.shape[0])
        if ctx.needs_input_grad[1] and ctx.groups == 1:
            found = gradients_at_once(lattice_values, weight, gradient, neighbors, reverse, opposite)
            if found is not None:
                return *found, None, None, None, None
        adjoint = transpose_weight(weight, opposite, ctx.groups)
        to_values = convolve(gradient, adjoint, reverse, neighbors, opposite, ctx.groups)
    if ctx.needs_input_grad[1]:
        to_weight = convolve_weight_gradient(
            lattice_values, gradient, neighbors, reverse_neighbors, opposite, ctx.groups
        )
    return to_values, to_weight, None, None, None, None


def _convolve_weight_gradient_backward(
    ctx: Any, gradient: Tensor
) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
    lattice_values, output_gradient, neighbors, reverse_neighbors, opposite = ctx.saved_tensors
    to_values = to_output_gradient = None
    if ctx.needs_input_grad[0]:
        reverse = _reverse(neighbors, reverse_neighbors, opposite, lattice_values.shape[0])
        adjoint = transpose_weight(gradient, opposite, ctx.groups)
        to_values = convolve(output_gradient, adjoint, reverse, neighbors, opposite, ctx.groups)
    if ctx.needs_input_grad[1]:
        to_output_gradient = convolve(lattice_values, gradient, neighbors, reverse_neighbors, opposite, ctx.groups)
    return to_values, to_output_gradient, None, None, None, None


def _convolve_weight_gradient_shape(
    lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, reverse: Any, opposite: Tensor, groups: int
) -> Tensor:
    size = (neighbors.shape[0], lattice_values.shape[1] // groups, output_gradient.shape[1])
    return lattice_values.new_empty(size)


_define(
    "convolve",
    "(Tensor lattice_values, Tensor weight, Tensor neighbors, Tensor? reverse_neighbors, Tensor opposite, "
    "int groups) -> Tensor",
    lambda values, weight, neighbors, reverse, opposite, groups: values.new_empty(
        (neighbors.shape[1], weight.shape[2])
    ),
    lambda values, weight, neighbors, reverse, opposite, groups: primitives_for(values).convolve(
        values, weight, neighbors, groups
    ),
)
_differentiate("convolve", _convolve_setup, _convolve_backward)
_define(
    "convolve_weight_gradient",
    "(Tensor lattice_values, Tensor output_gradient, Tensor neighbors, Tensor? reverse_neighbors, Tensor opposite, "
    "int groups) -> Tensor",
    _convolve_weight_gradient_shape,
    lambda values, gradient, neighbors, reverse, opposite, groups: primitives_for(values).convolve_weight_gradient(
        values, gradient, neighbors, groups
    ),
)
_differentiate("convolve_weight_gradient", _convolve_setup, _convolve_weight_gradient_backward)


# blur: its adjoint takes the axes in reverse


def _blur_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, axis_neighbors, ctx.reverse = inputs
    ctx.save_for_backward(axis_neighbors)


def _blur_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return blur(gradient, ctx.saved_tensors[0], not ctx.reverse), None, None


_define(
    "blur",
    "(Tensor lattice_values, Tensor axis_neighbors, bool reverse) -> Tensor",
    lambda values, axis_neighbors, reverse: values.new_empty(values.shape),
)
_differentiate("blur", _blur_setup, _blur_backward)


# filter_gaussian: for when no derivative is wanted


def _filter_gaussian_shape(values: Tensor, *tables: Any) -> Tensor:
    *_, target_vertices, _, _ = tables
    return values.new_empty((target_vertices.shape[0], values.shape[1]))


_define(
    "filter_gaussian",
    "(Tensor values, Tensor vertices, Tensor barycentric, Tensor axis_neighbors, Tensor target_vertices, "
    "Tensor target_barycentric, float smallest_mass) -> Tensor",
    _filter_gaussian_shape,
)


def _operator(name: str) -> Callable[..., Any]:
    registered = getattr(torch.ops.permutohedral, name).default
    return direct(registered, _runs[name], *_derivatives.get(name, (None, None)))


index_points: Callable[..., tuple[Tensor, ...]] = _operator("index_points")
index_keys: Callable[..., tuple[Tensor, ...]] = _operator("index_keys")
find_neighbors: Callable[..., Tensor] = _operator("find_neighbors")
transpose_neighbors: Callable[..., Tensor] = _operator("transpose_neighbors")
splat: Callable[..., Tensor] = _operator("splat")
slice: Callable[..., Tensor] = _operator("slice")
barycentric_gradient: Callable[..., Tensor] = _operator("barycentric_gradient")
convolve: Callable[..., Tensor] = _operator("convolve")
convolve_weight_gradient: Callable[..., Tensor] = _operator("convolve_weight_gradient")
blur: Callable[..., Tensor] = _operator("blur")
embed_gradient: Callable[..., Tensor] = _operator("embed_gradient")
embed_differential: Callable[..., Tensor] = _operator("embed_differential")
filter_gaussian: Callable[..., Tensor] = _operator("filter_gaussian")


def index_both(
    features: Tensor, batch: Tensor | None, target_features: Tensor, target_batch: Tensor | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """`index_points` of sources and of targets, in one go where the backend can and no derivative is wanted."""
    arguments = (features, batch, target_features, target_batch)
    together = None
    if not is_watched() and is_plain(*arguments) and not (torch.is_grad_enabled() and requires_grad(*arguments)):
        together = getattr(primitives_for(features), "index_both", None)
    if together is None:
        return index_points(features, batch), index_points(target_features, target_batch)
    both: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] = _without_autocast(together)(*arguments)
    return both
