"""The operators that torch knows: their schemas, shapes for tracing, derivatives, and rules of `torch.vmap`.

They are the primitives of `Backend`, and two functions made of them. Derivatives are made of functions of the backend
that they are given as `ops`, so they can be differentiated again; `backend.py` says why the set is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from permutohedral.ops.backend import Backend
from permutohedral.ops.batching import (
    Arguments,
    Rule,
    as_groups,
    loop,
    padded,
    stack_channels,
    stack_rows,
)
from permutohedral.ops.contract import accumulation_dtype, transpose_weight
from permutohedral.ops.reference import coarse_shares

# values at the sources to their Gaussian sums at the targets
Sums = Callable[[Tensor], Tensor]
Tangents = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Derivative:
    """The derivative of an operator in both modes.

    Attributes:
        save: of a context, the arguments and the result; saves in the context what `backward` needs.
        backward: of the backend, the context, which arguments need a gradient, and the gradients of the results;
            returns the gradients of the arguments.
        jvp: of the backend, the arguments and their tangents; returns the tangents of the results. At least one of the
            tangents is not None.
    """

    save: Callable[..., None]
    backward: Callable[..., Any]
    jvp: Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator `permutohedral::name` of torch.

    Attributes:
        name: of the function of `Backend`.
        schema: arguments and results, in the notation of torch.
        shape: returns empty results of the right shapes, for tracing without data.
        derivative: None for an operator without derivatives.
        batch: how `torch.vmap` runs it, by default in a loop (`batching.py`).
    """

    name: str
    schema: str
    shape: Callable[..., Any]
    derivative: Derivative | None = None
    batch: Rule = loop


# by name
OPERATORS: dict[str, Operator] = {}


def _define(*arguments: Any, **options: Any) -> None:
    operator = Operator(*arguments, **options)
    OPERATORS[operator.name] = operator


def _save_inputs(ctx: Any, inputs: Arguments, output: Any) -> None:
    """Save the tensors, None in the places of others, and the numbers with their places."""
    tensors, ctx.numbers = list(inputs), []
    for place, each in enumerate(inputs):
        if each is not None and not isinstance(each, Tensor):
            tensors[place] = None
            ctx.numbers.append((place, each))
    ctx.save_for_backward(*tensors)


def _saved_inputs(ctx: Any) -> list[Any]:
    arguments = list(ctx.saved_tensors)
    for place, number in ctx.numbers:
        arguments[place] = number
    return arguments


def multilinear(name: str, adjoints: dict[int, Callable[..., Tensor]]) -> Derivative:
    """Return the derivative of an operator that is linear in one argument, or in each of two.

    Args:
        name: of the operator.
        adjoints: from the places of these arguments to functions that return the gradient with respect to each, of the
            backend, the gradient of the result and all arguments. A single linear argument is not saved, and passed as
            None.
    """
    alone = next(iter(adjoints)) if len(adjoints) == 1 else None

    def save(ctx: Any, inputs: Arguments, output: Tensor) -> None:
        _save_inputs(ctx, inputs if alone is None else (*inputs[:alone], None, *inputs[alone + 1 :]), output)

    def backward(ops: Backend, ctx: Any, needed: tuple[bool, ...], gradient: Tensor) -> Tangents:
        arguments = _saved_inputs(ctx)
        found: list[Tensor | None] = [None] * len(needed)
        for place, adjoint in adjoints.items():
            if needed[place]:
                found[place] = adjoint(ops, gradient, *arguments)
        return tuple(found)

    def jvp(ops: Backend, arguments: Arguments, tangents: Tangents) -> Tensor:
        def with_tangent(place: int, tangent: Tensor | None) -> Tensor:
            result: Tensor = getattr(ops, name)(*arguments[:place], tangent, *arguments[place + 1 :])
            return result

        parts = [with_tangent(place, tangents[place]) for place in adjoints if tangents[place] is not None]
        if not parts:
            # torch takes no None as the tangent of a floating result
            place = next(iter(adjoints))
            return with_tangent(place, torch.zeros_like(arguments[place]))
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    return Derivative(save, backward, jvp)


def dynamic_size() -> Any:
    """Return a size that depends on the data, such as the number of lattice points."""
    return torch.library.get_ctx().new_dynamic_size()


# index_points: the only operator whose derivative is with respect to features


def _index_points_shape(features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    points, d = features.shape
    keys = features.new_empty((dynamic_size(), d + 1), dtype=torch.int32)
    vertices = features.new_empty((points, d + 1), dtype=torch.int32)
    barycentric = features.new_empty((points, d + 1))
    table = features.new_empty((dynamic_size(),), dtype=torch.int64)
    return keys, vertices, barycentric, table


def _save_features(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def _index_points_backward(
    ops: Backend, ctx: Any, needed: tuple[bool, ...], *gradients: Tensor
) -> tuple[Tensor | None, ...]:
    return ops.embed_gradient(ctx.saved_tensors[0], gradients[2]), *[None] * (len(needed) - 1)


def _jvp_index_points(ops: Any, arguments: Arguments, tangents: Tangents) -> tuple[Tensor | None, ...]:
    tangent = None if tangents[0] is None else ops.embed_differential(arguments[0], tangents[0])
    return None, None, tangent, None


_define(
    "index_points",
    "(Tensor features, Tensor? batch) -> (Tensor, Tensor, Tensor, Tensor)",
    _index_points_shape,
    derivative=Derivative(_save_features, _index_points_backward, _jvp_index_points),
    batch=padded(table=3),
)


# not registered with torch: no graph of operators waits for a GPU
BOUNDED = Operator("index_points_bounded", "", _index_points_shape, OPERATORS["index_points"].derivative)


# embed_gradient and embed_differential: linear in their second argument, constant inside a simplex


_define(
    "embed_gradient",
    "(Tensor features, Tensor barycentric_gradient) -> Tensor",
    lambda features, gradient: features.new_empty(features.shape),
    derivative=multilinear(
        "embed_gradient", {1: lambda ops, gradient, features, _: ops.embed_differential(features, gradient)}
    ),
    batch=stack_rows((0, 1)),
)
_define(
    "embed_differential",
    "(Tensor features, Tensor differential) -> Tensor",
    lambda features, differential: features.new_empty((features.shape[0], features.shape[1] + 1)),
    derivative=multilinear(
        "embed_differential", {1: lambda ops, gradient, features, _: ops.embed_gradient(features, gradient)}
    ),
    batch=stack_rows((0, 1)),
)


# keys, neighbors, and where the largest values are: integers, no derivatives


def _index_keys_shape(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    unique_keys = keys.new_empty((dynamic_size(), keys.shape[1]))
    return unique_keys, keys.new_empty((keys.shape[0],)), keys.new_empty((dynamic_size(),), dtype=torch.int64)


_define(
    "index_keys",
    "(Tensor keys) -> (Tensor, Tensor, Tensor)",
    _index_keys_shape,
    batch=padded(table=2),
)


_define(
    "find_neighbors",
    "(Tensor source_keys, Tensor table, Tensor target_keys, Tensor offsets, Tensor? opposite=None) -> Tensor",
    lambda source, table, target, offsets, *_: source.new_empty((offsets.shape[0], target.shape[0])),
)
_define(
    "transpose_neighbors",
    "(Tensor neighbors, Tensor opposite, SymInt num_source) -> Tensor",
    lambda neighbors, opposite, num: neighbors.new_empty((neighbors.shape[0], num)),
)


_define(
    "find_largest",
    "(Tensor values, Tensor vertices, SymInt num_lattice_points) -> Tensor",
    lambda values, vertices, num: values.new_empty((num, values.shape[1]), dtype=torch.int32),
)


# splat, slice, barycentric_gradient: the partial gradients of one trilinear form


_define(
    "splat",
    "(Tensor values, Tensor vertices, Tensor barycentric, SymInt num_lattice_points) -> Tensor",
    lambda values, vertices, barycentric, num: values.new_empty((num, values.shape[1])),
    derivative=multilinear(
        "splat",
        {
            0: lambda ops, gradient, values, vertices, barycentric, num: ops.slice(gradient, vertices, barycentric),
            2: lambda ops, gradient, values, vertices, barycentric, num: ops.barycentric_gradient(
                values, gradient, vertices
            ),
        },
    ),
    batch=stack_channels,
)
_define(
    "slice",
    "(Tensor lattice_values, Tensor vertices, Tensor barycentric) -> Tensor",
    lambda values, vertices, barycentric: values.new_empty((vertices.shape[0], values.shape[1])),
    derivative=multilinear(
        "slice",
        {
            0: lambda ops, gradient, values, vertices, barycentric: ops.splat(
                gradient, vertices, barycentric, values.shape[0]
            ),
            2: lambda ops, gradient, values, vertices, barycentric: ops.barycentric_gradient(
                gradient, values, vertices
            ),
        },
    ),
    batch=stack_channels,
)
_define(
    "barycentric_gradient",
    "(Tensor values, Tensor lattice_values, Tensor vertices) -> Tensor",
    lambda values, lattice, vertices: values.new_empty(vertices.shape, dtype=accumulation_dtype(values.dtype)),
    derivative=multilinear(
        "barycentric_gradient",
        {
            0: lambda ops, gradient, values, lattice, vertices: ops.slice(lattice, vertices, gradient),
            1: lambda ops, gradient, values, lattice, vertices: ops.splat(values, vertices, gradient, lattice.shape[0]),
        },
    ),
)


# convolve and its weight gradient: the partial gradients of sum_{k,v} <out[v], w_k in[neighbors[k,v]]>.
# The taps are closed under negation, so the gradient with respect to the input is again a convolution, over
# the reverse table: a gather, no scatter. Where reverse_neighbors is None, it is computed.


def _to_convolved(
    ops: Backend,
    gradient: Tensor,
    lattice_values: Tensor,
    weight: Tensor,
    neighbors: Tensor,
    groups: int,
    reverse_neighbors: Tensor | None,
    opposite: Tensor,
) -> Tensor:
    reverse = reverse_neighbors
    if reverse is None:
        reverse = ops.transpose_neighbors(neighbors, opposite, lattice_values.shape[0])
    return ops.convolve(gradient, transpose_weight(weight, opposite, groups), reverse, groups, neighbors, opposite)


def _convolve_weight_gradient_shape(
    lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int, *tables: Tensor | None
) -> Tensor:
    size = (neighbors.shape[0], lattice_values.shape[1] // groups, output_gradient.shape[1])
    return lattice_values.new_empty(size)


_define(
    "convolve",
    "(Tensor lattice_values, Tensor weight, Tensor neighbors, int groups, Tensor? reverse_neighbors=None, "
    "Tensor? opposite=None) -> Tensor",
    lambda values, weight, neighbors, *others: values.new_empty((neighbors.shape[1], weight.shape[2])),
    derivative=multilinear(
        "convolve",
        {
            0: _to_convolved,
            1: lambda ops, gradient, values, weight, *tables: ops.convolve_weight_gradient(values, gradient, *tables),
        },
    ),
    batch=as_groups,
)
_define(
    "convolve_weight_gradient",
    "(Tensor lattice_values, Tensor output_gradient, Tensor neighbors, int groups, Tensor? reverse_neighbors=None, "
    "Tensor? opposite=None) -> Tensor",
    _convolve_weight_gradient_shape,
    derivative=multilinear(
        "convolve_weight_gradient",
        {
            0: lambda ops, gradient, values, output, *tables: _to_convolved(ops, output, values, gradient, *tables),
            1: lambda ops, gradient, values, output, *tables: ops.convolve(values, gradient, *tables),
        },
    ),
    batch=as_groups,
)


_define(
    "blur",
    "(Tensor lattice_values, Tensor axis_neighbors, bool reverse) -> Tensor",
    lambda values, axis_neighbors, reverse: values.new_empty(values.shape),
    # the adjoint takes the axes in reverse
    derivative=multilinear(
        "blur", {0: lambda ops, gradient, _, neighbors, reverse: ops.blur(gradient, neighbors, not reverse)}
    ),
    batch=stack_channels,
)


# filter_gaussian: for when no derivative is wanted


_define(
    "filter_gaussian",
    "(Tensor values, Tensor vertices, Tensor barycentric, Tensor axis_neighbors, Tensor target_vertices, "
    "Tensor target_barycentric) -> Tensor",
    lambda values, *tables: values.new_empty((tables[3].shape[0], values.shape[1])),
)


# coarsen_lattice: to the lattice of twice the step (`lattice/pyramid.py`); its derivative is that of the weights


def _coarsen_lattice_shape(keys: Tensor, table: Tensor, vertices: Tensor, barycentric: Tensor) -> tuple[Tensor, ...]:
    coarse_keys, parents = keys.new_empty((dynamic_size(), keys.shape[1])), keys.new_empty((keys.shape[0], 2))
    table = keys.new_empty((dynamic_size(),), dtype=torch.int64)
    return coarse_keys, parents, table, vertices.new_empty(vertices.shape), barycentric.new_empty(vertices.shape)


def _save_parents(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[2], output[0], output[1])


def _coarsen_lattice_backward(
    ops: Backend, ctx: Any, needed: tuple[bool, ...], *gradients: Tensor
) -> tuple[None, None, None, Tensor]:
    vertices, coarse_keys, parents = ctx.saved_tensors
    shares = coarse_shares(coarse_keys, parents, gradients[4])
    return None, None, None, ops.barycentric_gradient(gradients[4], shares, vertices)


def _jvp_coarsen_lattice(ops: Any, arguments: Arguments, tangents: Tangents) -> tuple[Tensor | None, ...]:
    if tangents[3] is None:
        return (None,) * 5
    # linear in the weights
    return None, None, None, None, ops.coarsen_lattice(*arguments[:3], tangents[3])[4]


_define(
    "coarsen_lattice",
    "(Tensor keys, Tensor table, Tensor vertices, Tensor barycentric) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _coarsen_lattice_shape,
    derivative=Derivative(_save_parents, _coarsen_lattice_backward, _jvp_coarsen_lattice),
    batch=padded(table=2),
)


# Gaussian sums by their definition, between points and in windows of images:
#
#     v'_k = sum_i w_ki v_i,   w_ki = exp(-|t_k - f_i|^2 / 2)
#
# w is symmetric, and its derivative is w_ki (f_i - t_k). So derivatives are sums of the same kind, over the products of
# values and features, made of the operators themselves. A source that comes within reach changes nothing: its weight is
# negligible there.


def _outer(values: Tensor, features: Tensor, axis: int) -> Tensor:
    """Each channel times each feature, `channels * d` channels along `axis`, which is negative."""
    products = values.unsqueeze(axis) * features.unsqueeze(axis - 1)
    return products.flatten(axis - 1, axis)


def _contract(sums: Tensor, features: Tensor, axis: int) -> Tensor:
    """Undo `_outer`, each with the feature of the same number: `channels * d` to `channels`."""
    products: Tensor = sums.unflatten(axis, (-1, features.shape[axis]))
    return (products * features.unsqueeze(axis - 1)).sum(axis)


def _feature_gradient(
    total: Sums,
    others: Tensor,
    other_features: Tensor,
    own: Tensor,
    own_features: Tensor,
    axis: int,
) -> Tensor:
    """sum_i w_ki <own_k, others_i> (other_features_i - own_features_k): the gradient with respect to own_features."""
    channels, dimension = others.shape[axis], other_features.shape[axis]
    wide = torch.cat([_outer(others, other_features, axis), others], dim=axis)
    moments, sums = total(wide).split([channels * dimension, channels], dim=axis)
    drawn = (moments.unflatten(axis, (channels, dimension)) * own.unsqueeze(axis)).sum(axis - 1)
    pulled: Tensor = drawn - own_features * (own * sums).sum(axis, keepdim=True)
    return pulled


def _feature_tangent(
    total: Sums,
    values: Tensor,
    features: tuple[Tensor, Tensor],
    tangents: tuple[Tensor, Tensor],
    axis: int,
) -> Tensor:
    """sum_i w_ki v_i <f_i - t_k, t'_k - f'_i>: the tangent, of those of source and target features."""
    (source, target), (source_tangent, target_tangent) = features, tangents
    at_target = (target * target_tangent).sum(axis, keepdim=True)
    at_source = (source * source_tangent).sum(axis, keepdim=True)
    mixed = _contract(total(_outer(values, source, axis)), target_tangent, axis)
    mixed = mixed + _contract(total(_outer(values, source_tangent, axis)), target, axis)
    return mixed - at_target * total(values) - total(at_source * values)


# sum_neighbors: values, features, target_features, reach


def _neighbors_backward(
    ops: Backend, ctx: Any, needed: tuple[bool, ...], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    values, features, targets, reach = _saved_inputs(ctx)
    to_values = to_features = to_targets = None
    if needed[0]:
        to_values = ops.sum_neighbors(gradient, targets, features, reach)
    # differences of features are what counts: those of small numbers are more accurate
    middle = features.detach().mean(dim=0) if features.shape[0] else 0.0
    near, near_targets = features - middle, targets - middle
    if needed[1]:
        to_features = _feature_gradient(
            lambda wide: ops.sum_neighbors(wide, near_targets, near, reach), gradient, near_targets, values, near, -1
        )
    if needed[2]:
        to_targets = _feature_gradient(
            lambda wide: ops.sum_neighbors(wide, near, near_targets, reach), values, near, gradient, near_targets, -1
        )
    return to_values, to_features, to_targets, None


def _jvp_neighbors(ops: Any, arguments: Arguments, tangents: Tangents) -> Tensor:
    values, features, targets, reach = arguments
    of_values = torch.zeros_like(values) if tangents[0] is None else tangents[0]
    tangent: Tensor = ops.sum_neighbors(of_values, features, targets, reach)
    if tangents[1] is None and tangents[2] is None:
        return tangent
    of_features = torch.zeros_like(features) if tangents[1] is None else tangents[1]
    of_targets = torch.zeros_like(targets) if tangents[2] is None else tangents[2]
    return tangent + _feature_tangent(
        lambda wide: ops.sum_neighbors(wide, features, targets, reach),
        values,
        (features, targets),
        (of_features, of_targets),
        -1,
    )


_define(
    "sum_neighbors",
    "(Tensor values, Tensor features, Tensor target_features, float reach) -> Tensor",
    lambda values, features, targets, reach: values.new_empty((targets.shape[0], values.shape[1])),
    derivative=Derivative(_save_inputs, _neighbors_backward, _jvp_neighbors),
)


# sum_window: values, guide, sigma_y, sigma_x, reach. The targets are the sources; positions have no derivative.


def _window_backward(ops: Backend, ctx: Any, needed: tuple[bool, ...], gradient: Tensor) -> tuple[Tensor | None, ...]:
    values, guide, *reach = _saved_inputs(ctx)

    def total(wide: Tensor) -> Tensor:
        return ops.sum_window(wide, guide, *reach)

    to_values = total(gradient) if needed[0] else None
    to_guide = None
    if needed[1]:
        to_guide = _feature_gradient(total, gradient, guide, values, guide, -3) + _feature_gradient(
            total, values, guide, gradient, guide, -3
        )
    return to_values, to_guide, None, None, None


def _jvp_window(ops: Any, arguments: Arguments, tangents: Tangents) -> Tensor:
    values, guide, *window = arguments
    of_values = torch.zeros_like(values) if tangents[0] is None else tangents[0]
    tangent: Tensor = ops.sum_window(of_values, guide, *window)
    if tangents[1] is None:
        return tangent
    both = tangents[1], tangents[1]
    return tangent + _feature_tangent(
        lambda wide: ops.sum_window(wide, guide, *window), values, (guide, guide), both, -3
    )


_define(
    "sum_window",
    "(Tensor values, Tensor guide, float sigma_y, float sigma_x, float reach) -> Tensor",
    lambda values, guide, sigma_y, sigma_x, reach: values.new_empty(values.shape),
    derivative=Derivative(_save_inputs, _window_backward, _jvp_window),
)


# encode and encode_backward: linear in table, gradient and directions, and in positions inside a simplex. A derivative
# along directions replaces the barycentric weights by their derivatives, which are constant there.


def _encode_backward(ops: Any, ctx: Any, needed: tuple[bool, ...], gradient: Tensor) -> tuple[Tensor | None, ...]:
    positions, directions, table, *plan = _saved_inputs(ctx)
    # given directions, the result depends on them, and not on the positions
    moving, for_table = 0 if directions is None else 1, needed[2]
    for_moving = needed[moving]
    found: list[Tensor | None] = [None] * 5
    if for_moving or for_table:
        to_moving, to_table = ops.encode_backward(positions, directions, table, gradient, *plan, for_moving, for_table)
        found[moving], found[2] = to_moving if for_moving else None, to_table if for_table else None
    return tuple(found)


def _jvp_encode(ops: Any, arguments: Arguments, tangents: Tangents) -> Tensor:
    positions, directions, table, *plan = arguments
    along = tangents[0] if directions is None else tangents[1]
    parts = [] if along is None else [ops.encode(positions, along, table, *plan)]
    if tangents[2] is not None or not parts:
        of_table = torch.zeros_like(table) if tangents[2] is None else tangents[2]
        parts.append(ops.encode(positions, directions, of_table, *plan))
    tangent: Tensor = sum(parts[1:], parts[0])
    return tangent


_define(
    "encode",
    "(Tensor positions, Tensor? directions, Tensor table, Tensor transforms, Tensor strides) -> Tensor",
    lambda positions, directions, table, *plan: table.new_empty((positions.shape[0], table.shape[0] * table.shape[2])),
    derivative=Derivative(_save_inputs, _encode_backward, _jvp_encode),
    batch=stack_rows((0, 1)),
)


def _encode_backward_backward(
    ops: Any, ctx: Any, needed: tuple[bool, ...], along: Tensor | None, of_table: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Differentiate <along, gradient of the positions> + <of_table, gradient of the table>."""
    positions, directions, table, gradient, *plan, _, _ = _saved_inputs(ctx)
    for_positions, for_directions, for_table, for_gradient, *_ = needed
    # an output that was not wanted
    along = None if along is None or along.dim() == 1 else along
    of_table = None if of_table is None or of_table.dim() == 1 else of_table
    to_table = to_gradient = moved = None
    if along is not None and for_table:
        to_table = ops.encode_backward(positions, along, table, gradient, *plan, False, True)[1]
    if for_gradient:
        parts = [] if along is None else [ops.encode(positions, along, table, *plan)]
        parts += [] if of_table is None else [ops.encode(positions, directions, of_table, *plan)]
        to_gradient = sum(parts[1:], parts[0]) if parts else None
    if of_table is not None and (for_positions if directions is None else for_directions):
        moved = ops.encode_backward(positions, None, of_table, gradient, *plan, True, False)[0]
    first, second = (moved, None) if directions is None else (None, moved)
    return first, second, to_table, to_gradient, None, None, None, None


def _jvp_encode_backward(ops: Any, arguments: Arguments, tangents: Tangents) -> tuple[Tensor, Tensor]:
    positions, directions, table, gradient, *plan, for_positions, for_table = arguments
    along = tangents[0] if directions is None else tangents[1]
    to_positions = positions.new_zeros(positions.shape if for_positions else 0)
    to_table = table.new_zeros(table.shape if for_table else 0)
    if for_positions and tangents[2] is not None:
        to_positions = to_positions + ops.encode_backward(positions, None, tangents[2], gradient, *plan, True, False)[0]
    if for_positions and tangents[3] is not None:
        to_positions = to_positions + ops.encode_backward(positions, None, table, tangents[3], *plan, True, False)[0]
    if for_table and tangents[3] is not None:
        to_table = to_table + ops.encode_backward(positions, directions, table, tangents[3], *plan, False, True)[1]
    if for_table and along is not None:
        to_table = to_table + ops.encode_backward(positions, along, table, gradient, *plan, False, True)[1]
    return to_positions, to_table


_define(
    "encode_backward",
    "(Tensor positions, Tensor? directions, Tensor table, Tensor gradient, Tensor transforms, Tensor strides, "
    "bool for_positions, bool for_table) -> (Tensor, Tensor)",
    lambda positions, directions, table, gradient, transforms, strides, for_positions, for_table: (
        positions.new_empty(positions.shape if for_positions else 0),
        table.new_empty(table.shape if for_table else 0),
    ),
    derivative=Derivative(_save_inputs, _encode_backward_backward, _jvp_encode_backward),
    batch=stack_rows((0, 1, 3)),
)
