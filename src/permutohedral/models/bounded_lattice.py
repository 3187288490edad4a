"""A lattice for steps captured as a CUDA graph: its number of rows is fixed, so the host never waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from permutohedral.lattice import Lattice
from permutohedral.neighborhood import Neighborhood
from permutohedral.ops import operators
from permutohedral.simplices import Simplices


class _IndexPoints(torch.autograd.Function):
    """`index_points_bounded`, with the derivative of `index_points`."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, batch: Tensor, rows: int) -> tuple[Tensor, ...]:
        from permutohedral.ops.triton.build.fixed_rows import index_points_bounded

        keys, vertices, barycentric, table, count = index_points_bounded(features, batch, rows)
        ctx.save_for_backward(features)
        ctx.mark_non_differentiable(keys, vertices, table, count)
        ctx.set_materialize_grads(False)
        return keys, vertices, barycentric, table, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None]:
        gradient = gradients[2]
        return None if gradient is None else operators.embed_gradient(ctx.saved_tensors[0], gradient), None, None


_index_points: Callable[[Tensor, Tensor, int], tuple[Tensor, ...]] = _IndexPoints.apply


def build_bounded_lattice(features: Tensor, rows: int) -> tuple[Lattice, Tensor]:
    """Like `build_lattice` with a neighborhood size of 1, with room for `rows` lattice points, on a GPU.

    Args:
        features: float32 `[batch, points, d]`.
        rows: room for the lattice points of all items together; those beyond share the last row.

    Returns:
        The lattice, and int64 `[1]`, the true number of lattice points.
    """
    items, points, dimension = features.shape
    item = torch.arange(items, dtype=torch.int32, device=features.device)[:, None].expand(items, points).reshape(-1)
    *simplices, count = _index_points(features.reshape(items * points, dimension), item, rows)
    source = Simplices(*simplices)
    offsets = Neighborhood(dimension, 1).offsets(features.device)
    neighbors = operators.find_neighbors(source.keys, source.table, source.keys, offsets)
    # the table also holds the lattice points beyond the last row
    neighbors = neighbors.masked_fill_(neighbors >= rows, -1)
    lattice = Lattice(dimension, 1, source, source, neighbors, batch_size=items, points_per_item=(points, points))
    return lattice, count
