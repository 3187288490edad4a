"""The operators as torch knows them: schemas, shapes for tracing, derivatives. Written once, above every backend.

Each operator runs the backend of its tensors (`dispatch.py`). The derivatives are made of the operators
themselves, so they can be differentiated again; `primitives.py` says why the set is closed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
from permutohedral.ops.operator import Derivative, Operator, Tangents, multilinear
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


# embed_gradient and embed_differential: linear in their second argument, constant inside a simplex


embed_gradient: Operator[Tensor] = Operator(
    "embed_gradient",
    "(Tensor features, Tensor barycentric_gradient) -> Tensor",
    lambda features, gradient: features.new_empty(features.shape),
    derivative=multilinear({1: lambda gradient, features, _: embed_differential(features, gradient)}),
    batch=as_points,
)
embed_differential: Operator[Tensor] = Operator(
    "embed_differential",
    "(Tensor features, Tensor differential) -> Tensor",
    lambda features, differential: features.new_empty((features.shape[0], features.shape[1] + 1)),
    derivative=multilinear({1: lambda gradient, features, _: embed_gradient(features, gradient)}),
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


splat: Operator[Tensor] = Operator(
    "splat",
    "(Tensor values, Tensor vertices, Tensor barycentric, SymInt num_lattice_points) -> Tensor",
    lambda values, vertices, barycentric, num: values.new_empty((num, values.shape[1])),
    derivative=multilinear(
        {
            0: lambda gradient, values, vertices, barycentric, num: slice(gradient, vertices, barycentric),
            2: lambda gradient, values, vertices, barycentric, num: barycentric_gradient(values, gradient, vertices),
        }
    ),
    batch=as_channels(as_lattice_points(lattice_values=None, vertices=1)),
)
slice: Operator[Tensor] = Operator(
    "slice",
    "(Tensor lattice_values, Tensor vertices, Tensor barycentric) -> Tensor",
    lambda values, vertices, barycentric: values.new_empty((vertices.shape[0], values.shape[1])),
    derivative=multilinear(
        {
            0: lambda gradient, values, vertices, barycentric: splat(gradient, vertices, barycentric, values.shape[0]),
            2: lambda gradient, values, vertices, barycentric: barycentric_gradient(gradient, values, vertices),
        }
    ),
    batch=as_channels(as_lattice_points(lattice_values=0, vertices=1)),
)
barycentric_gradient: Operator[Tensor] = Operator(
    "barycentric_gradient",
    "(Tensor values, Tensor lattice_values, Tensor vertices) -> Tensor",
    lambda values, lattice, vertices: values.new_empty(vertices.shape, dtype=accumulation_dtype(values.dtype)),
    derivative=multilinear(
        {
            0: lambda gradient, values, lattice, vertices: slice(lattice, vertices, gradient),
            1: lambda gradient, values, lattice, vertices: splat(values, vertices, gradient, lattice.shape[0]),
        }
    ),
    batch=as_lattice_points(lattice_values=1, vertices=2),
)


# convolve and its weight gradient: the partial gradients of sum_{k,v} <out[v], w_k in[neighbors[k,v]]>.
# The taps are closed under negation, so the gradient with respect to the input is again a convolution, over
# the reverse table: a gather, no scatter. reverse_neighbors is None where nobody has needed it yet.


def _to_convolved(
    gradient: Tensor,
    lattice_values: Tensor,
    weight: Tensor,
    neighbors: Tensor,
    reverse_neighbors: Tensor | None,
    opposite: Tensor,
    groups: int,
) -> Tensor:
    reverse = reverse_neighbors
    if reverse is None:
        reverse = transpose_neighbors(neighbors, opposite, lattice_values.shape[0])
    return convolve(gradient, transpose_weight(weight, opposite, groups), reverse, neighbors, opposite, groups)


_of_convolution = multilinear(
    {
        0: _to_convolved,
        1: lambda gradient, values, weight, *tables: convolve_weight_gradient(values, gradient, *tables),
    }
)


class _Kept(NamedTuple):
    """What a context holds, read once: gradient checkpointing makes it anew for a single look."""

    saved_tensors: tuple[Any, ...]
    number: tuple[Any, ...]
    needs_input_grad: tuple[bool, ...]


def _convolve_backward(ctx: Any, gradient: Tensor) -> Any:
    """Both gradients at once where the backend can, and nobody will differentiate them again."""
    ctx = _Kept(ctx.saved_tensors, ctx.number, ctx.needs_input_grad)
    values, weight, neighbors, reverse, opposite = ctx.saved_tensors
    together = None
    if all(ctx.needs_input_grad[:2]) and ctx.number == (1,) and not torch.is_grad_enabled() and not is_traced():
        together = getattr(primitives_for(gradient), "convolve_gradients", None)
    if together is None or 0 in (values.numel(), gradient.numel(), neighbors.numel()):
        return _of_convolution.pull_back(ctx, gradient)
    if not is_plain(gradient, *ctx.saved_tensors):
        return _of_convolution.pull_back(ctx, gradient)
    if reverse is None:
        reverse = transpose_neighbors(neighbors, opposite, values.shape[0])
    with torch.autocast(gradient.device.type, enabled=False):
        found = together(values, weight, gradient, ConvolutionTables(neighbors, reverse, opposite), (True, False))
    return *found[:2], None, None, None, None


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
    derivative=Derivative(_of_convolution.keep, _convolve_backward, _of_convolution.push_forward),
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
    derivative=multilinear(
        {
            0: lambda gradient, values, output, *tables: _to_convolved(output, values, gradient, *tables),
            1: lambda gradient, values, output, *tables: convolve(values, gradient, *tables),
        }
    ),
    batch=as_groups,
)


blur: Operator[Tensor] = Operator(
    "blur",
    "(Tensor lattice_values, Tensor axis_neighbors, bool reverse) -> Tensor",
    lambda values, axis_neighbors, reverse: values.new_empty(values.shape),
    # the adjoint takes the axes in reverse
    derivative=multilinear({0: lambda gradient, _, neighbors, reverse: blur(gradient, neighbors, not reverse)}),
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
