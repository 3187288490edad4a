"""The operators as torch knows them: schemas, shapes for tracing, derivatives. Written once, above every backend.

Each operator runs the backend of its tensors (`dispatch.py`). The derivatives are made of the operators
themselves, so they can be differentiated again; `primitives.py` says why the set is closed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from permutohedral.ops.batching import (
    Arguments,
    as_channels,
    as_groups,
    as_lattice_points,
    as_points,
    one_after_another,
    padded,
)
from permutohedral.ops.dispatch import primitives_for
from permutohedral.ops.fused_primitives import ConvolutionTables
from permutohedral.ops.operator import Derivative, Operator, Tangents, linear_in
from permutohedral.ops.primitives import accumulation_dtype, transpose_weight
from permutohedral.ops.tracing import is_plain, is_traced


def dynamic_size() -> Any:
    """A size that only the data tells, such as the number of lattice points."""
    return torch.library.get_ctx().new_dynamic_size()


# index_points: the only operator whose derivative is with respect to features


def _index_points_shape(features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    points, d = features.shape
    keys = features.new_empty((dynamic_size(), d + 1), dtype=torch.int32)
    vertices = features.new_empty((points, d + 1), dtype=torch.int32)
    barycentric = features.new_empty((points, d + 1))
    table = features.new_empty((dynamic_size(),), dtype=torch.int64)
    return keys, vertices, barycentric, table


def _keep_features(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def _index_points_backward(
    ctx: Any, keys: None, vertices: None, barycentric_gradient: Tensor, table: None
) -> tuple[Tensor, None]:
    (features,) = ctx.saved_tensors
    return embed_gradient(features, barycentric_gradient), None


def _push_index_points(operator: object, arguments: Arguments, tangents: Tangents) -> tuple[Tensor | None, ...]:
    tangent = None if tangents[0] is None else embed_differential(arguments[0], tangents[0])
    return None, None, tangent, None


index_points: Operator[tuple[Tensor, ...]] = Operator(
    "index_points",
    "(Tensor features, Tensor? batch) -> (Tensor, Tensor, Tensor, Tensor)",
    _index_points_shape,
    derivative=Derivative(_keep_features, _index_points_backward, _push_index_points),
    batch=padded(keys=(0,), tables=(3,)),
)


def _index_both(
    features: Tensor, batch: Tensor | None, target_features: Tensor, target_batch: Tensor | None
) -> tuple[Tensor, ...]:
    """`index_points` of sources, then of targets; together where the backend can, so that a GPU is waited for once."""
    backend = primitives_for(features)
    together = getattr(backend, "index_both", None)
    if together is None:
        return *backend.index_points(features, batch), *backend.index_points(target_features, target_batch)
    source, target = together(features, batch, target_features, target_batch)
    return *source, *target


def _index_both_shape(
    features: Tensor, batch: Tensor | None, target_features: Tensor, target_batch: Tensor | None
) -> tuple[Tensor, ...]:
    return *_index_points_shape(features, batch), *_index_points_shape(target_features, target_batch)


def _keep_both_features(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0], inputs[2])


def _index_both_backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, Tensor | None, None]:
    to_source, to_target = (
        None if gradient is None or not needed else embed_gradient(features, gradient)
        for features, gradient, needed in zip(
            ctx.saved_tensors, (gradients[2], gradients[6]), (ctx.needs_input_grad[0], ctx.needs_input_grad[2]),
            strict=True,
        )
    )  # fmt: skip
    return to_source, None, to_target, None


def _push_index_both(operator: object, arguments: Arguments, tangents: Tangents) -> tuple[Tensor | None, ...]:
    of_source = _push_index_points(operator, arguments[:2], tangents[:2])
    return *of_source, *_push_index_points(operator, arguments[2:], tangents[2:])


index_both: Operator[tuple[Tensor, ...]] = Operator(
    "index_both",
    "(Tensor features, Tensor? batch, Tensor target_features, Tensor? target_batch) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _index_both_shape,
    _index_both,
    derivative=Derivative(_keep_both_features, _index_both_backward, _push_index_both),
    batch=padded(keys=(0, 4), tables=(3, 7)),
)


# embed_gradient and embed_differential: linear in their second argument, constant inside a simplex


def _embed_gradient_backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
    return None, embed_differential(ctx.saved_tensors[0], gradient)


def _embed_differential_backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
    return None, embed_gradient(ctx.saved_tensors[0], gradient)


embed_gradient: Operator[Tensor] = Operator(
    "embed_gradient",
    "(Tensor features, Tensor barycentric_gradient) -> Tensor",
    lambda features, gradient: features.new_empty(features.shape),
    derivative=Derivative(_keep_features, _embed_gradient_backward, linear_in(1)),
    batch=as_points,
)
embed_differential: Operator[Tensor] = Operator(
    "embed_differential",
    "(Tensor features, Tensor differential) -> Tensor",
    lambda features, differential: features.new_empty((features.shape[0], features.shape[1] + 1)),
    derivative=Derivative(_keep_features, _embed_differential_backward, linear_in(1)),
    batch=as_points,
)


# keys and neighbors: integers, no derivatives


def _index_keys_shape(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    unique_keys = keys.new_empty((dynamic_size(), keys.shape[1]))
    return unique_keys, keys.new_empty((keys.shape[0],)), keys.new_empty((dynamic_size(),), dtype=torch.int64)


index_keys: Operator[tuple[Tensor, ...]] = Operator(
    "index_keys",
    "(Tensor keys) -> (Tensor, Tensor, Tensor)",
    _index_keys_shape,
    batch=padded(keys=(0,), tables=(2,)),
)


find_neighbors: Operator[Tensor] = Operator(
    "find_neighbors",
    "(Tensor source_keys, Tensor table, Tensor target_keys, Tensor offsets) -> Tensor",
    lambda source, table, target, offsets: source.new_empty((offsets.shape[0], target.shape[0])),
)
transpose_neighbors: Operator[Tensor] = Operator(
    "transpose_neighbors",
    "(Tensor neighbors, Tensor opposite, SymInt num_source) -> Tensor",
    lambda neighbors, opposite, num: neighbors.new_empty((neighbors.shape[0], num)),
)


# splat, slice, barycentric_gradient: the partial gradients of one trilinear form


def _keep_splat(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    values, vertices, barycentric, _ = inputs
    ctx.save_for_backward(values, vertices, barycentric)


def _splat_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
    values, vertices, barycentric = ctx.saved_tensors
    to_values = slice(gradient, vertices, barycentric) if ctx.needs_input_grad[0] else None
    to_barycentric = barycentric_gradient(values, gradient, vertices) if ctx.needs_input_grad[2] else None
    return to_values, None, to_barycentric, None


def _keep_all(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
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


splat: Operator[Tensor] = Operator(
    "splat",
    "(Tensor values, Tensor vertices, Tensor barycentric, SymInt num_lattice_points) -> Tensor",
    lambda values, vertices, barycentric, num: values.new_empty((num, values.shape[1])),
    derivative=Derivative(_keep_splat, _splat_backward, linear_in(0, 2)),
    batch=as_channels(as_lattice_points(lattice_values=None, vertices=1)),
)
slice: Operator[Tensor] = Operator(
    "slice",
    "(Tensor lattice_values, Tensor vertices, Tensor barycentric) -> Tensor",
    lambda values, vertices, barycentric: values.new_empty((vertices.shape[0], values.shape[1])),
    derivative=Derivative(_keep_all, _slice_backward, linear_in(0, 2)),
    batch=as_channels(as_lattice_points(lattice_values=0, vertices=1)),
)
barycentric_gradient: Operator[Tensor] = Operator(
    "barycentric_gradient",
    "(Tensor values, Tensor lattice_values, Tensor vertices) -> Tensor",
    lambda values, lattice, vertices: values.new_empty(vertices.shape, dtype=accumulation_dtype(values.dtype)),
    derivative=Derivative(_keep_all, _barycentric_gradient_backward, linear_in(0, 1)),
    batch=as_lattice_points(lattice_values=1, vertices=2),
)


# convolve and its weight gradient: the partial gradients of sum_{k,v} <out[v], w_k in[neighbors[k,v]]>.
# The taps are closed under negation, so the gradient with respect to the input is again a convolution, over
# the reverse table: a gather, no scatter. reverse_neighbors is None where nobody has needed it yet.


def _reverse(neighbors: Tensor, reverse_neighbors: Tensor | None, opposite: Tensor, num_source: int) -> Tensor:
    if reverse_neighbors is not None:
        return reverse_neighbors
    return transpose_neighbors(neighbors, opposite, num_source)


def _keep_convolve(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.groups = inputs
    ctx.save_for_backward(*tensors)


def differentiate_convolution(
    gradient: Tensor,
    inputs: tuple[Tensor, Tensor],
    tables: tuple[Tensor, Tensor | None, Tensor],
    groups: int,
    wanted: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of `convolve` with respect to lattice values and weight.

    Args:
        gradient: of the result.
        inputs: lattice values and weight.
        tables: neighbors, reverse neighbors if they are known, opposite taps.
        groups: of the channels.
        wanted: which of the two gradients; None stands for the other.
    """
    (lattice_values, weight), (neighbors, reverse_neighbors, opposite) = inputs, tables
    to_values = to_weight = None
    if wanted[0]:
        reverse = _reverse(neighbors, reverse_neighbors, opposite, lattice_values.shape[0])
        if wanted[1] and groups == 1:
            of_convolution = ConvolutionTables(neighbors, reverse, opposite)
            to_values, to_weight = _both_gradients(lattice_values, weight, gradient, of_convolution)
        if to_values is None:
            adjoint = transpose_weight(weight, opposite, groups)
            to_values = convolve(gradient, adjoint, reverse, neighbors, opposite, groups)
    if wanted[1] and to_weight is None:
        to_weight = convolve_weight_gradient(lattice_values, gradient, neighbors, reverse_neighbors, opposite, groups)
    return to_values, to_weight


def _both_gradients(
    lattice_values: Tensor, weight: Tensor, gradient: Tensor, tables: ConvolutionTables
) -> tuple[Tensor | None, Tensor | None]:
    """At once where the backend can, and nobody will differentiate them again; else Nones."""
    tensors = lattice_values, weight, gradient
    if torch.is_grad_enabled() or is_traced() or not is_plain(*tensors, *tables):
        return None, None
    together = getattr(primitives_for(gradient), "convolve_gradients", None)
    if together is None or 0 in (lattice_values.numel(), gradient.numel(), tables.neighbors.numel()):
        return None, None
    with torch.autocast(gradient.device.type, enabled=False):
        to_values, to_weight, _ = together(*tensors, tables, (True, False))
    return to_values, to_weight


def _convolve_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    lattice_values, weight, *tables = ctx.saved_tensors
    inputs, wanted = (lattice_values, weight), ctx.needs_input_grad[:2]
    return *differentiate_convolution(gradient, inputs, tuple(tables), ctx.groups, wanted), None, None, None, None


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


convolve: Operator[Tensor] = Operator(
    "convolve",
    "(Tensor lattice_values, Tensor weight, Tensor neighbors, Tensor? reverse_neighbors, Tensor opposite, "
    "int groups) -> Tensor",
    lambda values, weight, neighbors, reverse, opposite, groups: values.new_empty(
        (neighbors.shape[1], weight.shape[2])
    ),
    lambda values, weight, neighbors, reverse, opposite, groups: primitives_for(values).convolve(
        values, weight, neighbors, groups
    ),
    derivative=Derivative(_keep_convolve, _convolve_backward, linear_in(0, 1)),
    batch=as_groups,
)
convolve_weight_gradient: Operator[Tensor] = Operator(
    "convolve_weight_gradient",
    "(Tensor lattice_values, Tensor output_gradient, Tensor neighbors, Tensor? reverse_neighbors, Tensor opposite, "
    "int groups) -> Tensor",
    _convolve_weight_gradient_shape,
    lambda values, gradient, neighbors, reverse, opposite, groups: primitives_for(values).convolve_weight_gradient(
        values, gradient, neighbors, groups
    ),
    derivative=Derivative(_keep_convolve, _convolve_weight_gradient_backward, linear_in(0, 1)),
    batch=as_groups,
)


# blur: its adjoint takes the axes in reverse


def _keep_blur(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, axis_neighbors, ctx.reverse = inputs
    ctx.save_for_backward(axis_neighbors)


def _blur_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return blur(gradient, ctx.saved_tensors[0], not ctx.reverse), None, None


blur: Operator[Tensor] = Operator(
    "blur",
    "(Tensor lattice_values, Tensor axis_neighbors, bool reverse) -> Tensor",
    lambda values, axis_neighbors, reverse: values.new_empty(values.shape),
    derivative=Derivative(_keep_blur, _blur_backward, linear_in(0)),
    batch=as_channels(one_after_another),
)


# filter_gaussian: for when no derivative is wanted


def _filter_gaussian_shape(values: Tensor, *tables: Any) -> Tensor:
    *_, target_vertices, _, _ = tables
    return values.new_empty((target_vertices.shape[0], values.shape[1]))


filter_gaussian: Operator[Tensor] = Operator(
    "filter_gaussian",
    "(Tensor values, Tensor vertices, Tensor barycentric, Tensor axis_neighbors, Tensor target_vertices, "
    "Tensor target_barycentric, float smallest_mass) -> Tensor",
    _filter_gaussian_shape,
)
