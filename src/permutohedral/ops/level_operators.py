"""The operators between a lattice and that of twice the step; `permutohedral.pyramid` tells the law behind them.

Each is stated here in terms of the primitives. A backend may have a function of the same name, which does it in fewer
steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from permutohedral.ops.batching import padded
from permutohedral.ops.dispatch import primitives_for
from permutohedral.ops.operator import Operator
from permutohedral.ops.operators import dynamic_size
from permutohedral.ops.primitives import parent_keys

Tables = tuple[Tensor, Tensor]


def _own(name: str, tensor: Tensor) -> Any:
    """What the backend of a tensor has for it, or None."""
    return getattr(primitives_for(tensor), name, None)


def _coarsen_keys(keys: Tensor) -> tuple[Tensor, ...]:
    """The keys of the lattice of twice the step, the rows of each key's parents `[lattice_points, 2]`, and a table."""
    own = _own("coarsen_keys", keys)
    if own is not None:
        coarsened: tuple[Tensor, ...] = own(keys)
        return coarsened
    coarse_keys, inverse, table = primitives_for(keys).index_keys(parent_keys(keys).flatten(0, 1))
    return coarse_keys, inverse.view(-1, 2), table


def _coarsen_keys_shape(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    coarse_keys = keys.new_empty((dynamic_size(), keys.shape[1]))
    return coarse_keys, keys.new_empty((keys.shape[0], 2)), keys.new_empty((dynamic_size(),), dtype=torch.int64)


coarsen_keys: Operator[tuple[Tensor, ...]] = Operator(
    "coarsen_keys",
    "(Tensor keys) -> (Tensor, Tensor, Tensor)",
    _coarsen_keys_shape,
    _coarsen_keys,
    batch=padded(keys=(0,), tables=(2,)),
)


def _connect_levels(
    keys: Tensor, table: Tensor, coarse_keys: Tensor, parents: Tensor, offsets: Tensor, opposite: Tensor
) -> Tables:
    """The taps around each coarse lattice point among the fine ones, and around each fine one among the coarse ones.

    `down [filter_size, coarse]` and `up [filter_size, fine]`, -1 where there is none.
    """
    own = _own("connect_levels", keys)
    # every lattice point is within one step of its parents, and within one step of a coarse one are its children only
    if own is not None and offsets.shape[0] == 2 ** keys.shape[1] - 1:
        connected: Tables = own(keys, coarse_keys, parents, offsets)
        return connected
    primitives = primitives_for(keys)
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


def _coarsen_vertices(vertices: Tensor, coarse_keys: Tensor, parents: Tensor, like: Tensor) -> Tables:
    """The corners of the coarse simplices `[points, d + 1]`, and how much of each fine vertex goes to which corner.

    That is `[lattice_points, d + 1]` of the dtype of `like`: one half for each parent, by the corner that it is.
    """
    own = _own("coarsen_vertices", vertices)
    if own is not None:
        coarsened: Tables = own(vertices, coarse_keys, parents, like)
        return coarsened
    points, corners = vertices.shape
    # corner j is the vertex whose coordinates are congruent to j modulo d+1
    place = coarse_keys[:, 1].remainder(corners).index_select(0, parents.flatten()).view(parents.shape).long()
    # of each fine lattice point, the rows of the coarse corners that it has a part in, -1 for the others
    rows = torch.full((len(parents), corners), -1, dtype=parents.dtype, device=parents.device)
    rows = rows.scatter(1, place, parents)
    shares = like.new_zeros(rows.shape).scatter_add(1, place, like.new_full(place.shape, 0.5))
    return rows.index_select(0, vertices.flatten()).view(points, corners, corners).amax(dim=1), shares


coarsen_vertices: Operator[Tables] = Operator(
    "coarsen_vertices",
    "(Tensor vertices, Tensor coarse_keys, Tensor parents, Tensor like) -> (Tensor, Tensor)",
    lambda vertices, coarse_keys, parents, like: (
        vertices.new_empty(vertices.shape),
        like.new_empty((parents.shape[0], vertices.shape[1])),
    ),
    _coarsen_vertices,
)
