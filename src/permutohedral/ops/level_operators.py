"""The operators between a lattice and that of twice the step; `permutohedral.pyramid` tells the law behind them.

Each is stated here in terms of the primitives. A backend may have one of the same name, which does it in fewer steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from permutohedral.ops.batching import Arguments, Axes, Run, as_channels, one_after_another, padded
from permutohedral.ops.dispatch import primitives_for
from permutohedral.ops.operator import Derivative, Operator, Tangents, direct_function, multilinear
from permutohedral.ops.operators import barycentric_gradient, dynamic_size
from permutohedral.ops.primitives import accumulation_dtype, parent_keys
from permutohedral.ops.tracing import requires_gradient, why_in_steps

Tables = tuple[Tensor, Tensor]


def _coarsen_keys(keys: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    """The keys of the lattice of twice the step, the rows of each key's parents `[lattice_points, 2]`, and a table."""
    coarse_keys, inverse, table = primitives_for(keys).index_keys(parent_keys(keys).flatten(0, 1))
    return coarse_keys, inverse.view(-1, 2), table


def _coarsen_keys_shape(keys: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    coarse_keys = keys.new_empty((dynamic_size(), keys.shape[1]))
    return coarse_keys, keys.new_empty((keys.shape[0], 2)), keys.new_empty((dynamic_size(),), dtype=torch.int64)


coarsen_keys: Operator[tuple[Tensor, ...]] = Operator(
    "coarsen_keys",
    "(Tensor keys, Tensor table) -> (Tensor, Tensor, Tensor)",
    _coarsen_keys_shape,
    composed=_coarsen_keys,
    batch=padded(keys=(0,), tables=(2,)),
)


def _connect_levels(
    keys: Tensor, table: Tensor, coarse_keys: Tensor, parents: Tensor, offsets: Tensor, opposite: Tensor
) -> Tables:
    """The taps around each coarse lattice point among the fine ones, and around each fine one among the coarse ones.

    `down [filter_size, coarse]` and `up [filter_size, fine]`, -1 where there is none.
    """
    primitives = primitives_for(keys)
    own = getattr(primitives, "connect_levels", None)
    # every lattice point is within one step of its parents, and within one step of a coarse one are its children only
    if own is not None and offsets.shape[0] == 2 ** keys.shape[1] - 1:
        connected: Tables = own(keys, coarse_keys, parents, offsets)
        return connected
    # where the coarse lattice points are among the fine ones
    places = torch.cat([coarse_keys[:, :1], 2 * coarse_keys[:, 1:]], dim=1)
    down = primitives.find_neighbors(keys, table, places, offsets)
    return down, primitives.transpose_neighbors(down, opposite, keys.shape[0])


connect_levels: Operator[Tables] = Operator(
    "connect_levels",
    "(Tensor keys, Tensor table, Tensor coarse_keys, Tensor parents, Tensor offsets, Tensor opposite) -> "
    "(Tensor, Tensor)",
    lambda keys, table, coarse_keys, parents, offsets, opposite: (
        keys.new_empty((offsets.shape[0], coarse_keys.shape[0])),
        keys.new_empty((offsets.shape[0], keys.shape[0])),
    ),
    _connect_levels,
)


def _coarse_corners(vertices: Tensor, coarse_keys: Tensor, parents: Tensor) -> Tensor:
    """The corner of the coarse simplices that each parent is, int64 `[lattice_points, 2]`."""
    # corner j is the vertex whose coordinates are congruent to j modulo d+1
    corner = coarse_keys[:, 1].remainder(vertices.shape[1])
    return corner.index_select(0, parents.flatten()).view(parents.shape).long()


def _share(corner: Tensor, corners: int, like: Tensor) -> Tensor:
    """How much of each fine vertex goes to which coarse corner, `[lattice_points, d + 1]`: a half for each parent."""
    shares = like.new_zeros(corner.shape[0], corners)
    return shares.scatter_add(1, corner, like.new_full((1, 1), 0.5).expand(corner.shape))


def _coarsen_simplices(vertices: Tensor, barycentric: Tensor, coarse_keys: Tensor, parents: Tensor) -> Tables:
    """The corners of the coarse simplices `[points, d + 1]`, and the weights of the points there."""
    points, corners = vertices.shape
    corner = _coarse_corners(vertices, coarse_keys, parents)
    # of each fine lattice point, the rows of the coarse corners that it has a part in, -1 for the others
    rows = torch.full((len(parents), corners), -1, dtype=parents.dtype, device=parents.device)
    rows = rows.scatter(1, corner, parents)
    coarse_vertices = rows.index_select(0, vertices.flatten()).view(points, corners, corners).amax(dim=1)
    shares = _share(corner, corners, barycentric)
    return coarse_vertices, primitives_for(vertices).slice(shares, vertices, barycentric)


def _keep_simplices(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    vertices, _, coarse_keys, parents = inputs
    ctx.save_for_backward(vertices, coarse_keys, parents)


def _coarsen_simplices_backward(ctx: Any, of_vertices: None, gradient: Tensor) -> tuple[None, Tensor, None, None]:
    vertices, coarse_keys, parents = ctx.saved_tensors
    shares = _share(_coarse_corners(vertices, coarse_keys, parents), vertices.shape[1], gradient)
    return None, barycentric_gradient(gradient, shares, vertices), None, None


def _push_simplices(operator: Any, arguments: Arguments, tangents: Tangents) -> tuple[None, Tensor | None]:
    vertices, _, *levels = arguments
    # linear in the weights
    return None, None if tangents[1] is None else operator(vertices, tangents[1], *levels)[1]


coarsen_simplices: Operator[Tables] = Operator(
    "coarsen_simplices",
    "(Tensor vertices, Tensor barycentric, Tensor coarse_keys, Tensor parents) -> (Tensor, Tensor)",
    lambda vertices, barycentric, coarse_keys, parents: (
        vertices.new_empty(vertices.shape),
        barycentric.new_empty(vertices.shape),
    ),
    composed=_coarsen_simplices,
    derivative=Derivative(_keep_simplices, _coarsen_simplices_backward, _push_simplices),
)


def _halves(values: Tensor, parents: Tensor) -> Tensor:
    """The weight of each parent."""
    return values.new_full((1, 1), 0.5, dtype=accumulation_dtype(values.dtype)).expand(parents.shape)


def _coarsen_values(values: Tensor, parents: Tensor, num_coarse: int) -> Tensor:
    """P^T: half of each fine row to both of its parents, `[lattice_points, channels]` to `[num_coarse, channels]`."""
    return primitives_for(values).splat(values, parents, _halves(values, parents), num_coarse)


def _refine_values(values: Tensor, parents: Tensor, added: Tensor | None) -> Tensor:
    """P: the mean of both parents, `[num_coarse, channels]` to `[lattice_points, channels]`; and what is added."""
    means = primitives_for(values).slice(values, parents, _halves(values, parents))
    return means if added is None else means.add_(added)


def _keep_parents(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.num_rows = inputs[0].shape[0]
    ctx.save_for_backward(inputs[1])


coarsen_values: Operator[Tensor] = Operator(
    "coarsen_values",
    "(Tensor values, Tensor parents, SymInt num_coarse) -> Tensor",
    lambda values, parents, num_coarse: values.new_empty((num_coarse, values.shape[1])),
    composed=_coarsen_values,
    derivative=multilinear({0: lambda gradient, _, parents, num: refine_values(gradient, parents, None)}),
    batch=as_channels(one_after_another),
)


def _refine_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
    needed, parents = ctx.needs_input_grad, ctx.saved_tensors[0]
    to_values = coarsen_values(gradient, parents, ctx.num_rows) if needed[0] else None
    return to_values, None, gradient if needed[2] else None


def _push_refine(operator: Any, arguments: Arguments, tangents: Tangents) -> Tensor:
    values = torch.zeros_like(arguments[0]) if tangents[0] is None else tangents[0]
    tangent: Tensor = operator(values, arguments[1], tangents[2])
    return tangent


def _batch_refine(run: Run, items: int, axes: Axes, arguments: Arguments) -> tuple[Any, Any]:
    # what is added has the channels of one item
    rule = as_channels(one_after_another) if arguments[2] is None else one_after_another
    return rule(run, items, axes, arguments)


refine_values: Operator[Tensor] = Operator(
    "refine_values",
    "(Tensor values, Tensor parents, Tensor? added) -> Tensor",
    lambda values, parents, added: values.new_empty((parents.shape[0], values.shape[1])),
    composed=_refine_values,
    derivative=Derivative(_keep_parents, _refine_backward, _push_refine),
    batch=_batch_refine,
)


def _both_backward(ctx: Any, of_coarse: Tensor | None, of_kept: Tensor | None) -> tuple[Tensor | None, None, None]:
    if of_coarse is None:
        return of_kept, None, None
    return refine_values(of_coarse, ctx.saved_tensors[0], of_kept), None, None


_coarsen_and_keep = direct_function(
    lambda values, parents, num_coarse: (coarsen_values.run(values, parents, num_coarse), values),
    _keep_parents,
    _both_backward,
)


def coarsen_and_keep(values: Tensor, parents: Tensor, num_coarse: int) -> Tables:
    """`coarsen_values` and the values themselves, so that one pass adds up the gradients of both."""
    if why_in_steps(values) is not None or not requires_gradient(values):
        return coarsen_values(values, parents, num_coarse), values
    both: Tables = _coarsen_and_keep.apply(values, parents, num_coarse)
    return both
