"""The permutohedral encoding in plain torch: the definition of `encode` and `encode_backward` (`backend.py`).

Symbols: d is the dimension of the positions. A level maps a position x to z = A x + o in R^d, coordinates in which the
lattice points are the integer points, and the simplices those between them: the simplex around z is given by the cell,
floor(z), and by the order of the fractions z - floor(z).
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from permutohedral.ops.contract import accumulation_dtype


def _find_simplex(
    positions: Tensor, transform: Tensor, strides: Tensor, table_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the simplices of one level.

    Returns:
        rows: int64 `[points, d + 1]`, the rows of the corners in the table of this level.
        fractions: `[points, d]`, those of z in descending order.
        order: int64 `[points, d]`, the axis of each fraction. Corner k lies one step along axis `order[k - 1]` from
            corner k-1.
    """
    # not a matrix product, which GPUs may round to fewer bits
    places = (positions[:, None, :] * transform[:, :-1]).sum(dim=2) + transform[:, -1]
    cells = places.floor()
    fractions, order = (places - cells).sort(dim=1, descending=True, stable=True)
    wide = strides.long()
    first = (cells.long() * wide[:-1]).sum(dim=1, keepdim=True) + wide[-1]
    rows = pad(wide[:-1][order].cumsum(dim=1), (1, 0)) + first
    return (rows & 0xFFFFFFFF) % table_size, fractions, order


def _weigh_corners(fractions: Tensor, order: Tensor, directions: Tensor | None, transform: Tensor) -> Tensor:
    """Return the barycentric weights `[points, d + 1]`, or their derivatives along `directions`."""
    if directions is None:
        return pad(fractions, (1, 0), value=1.0) - pad(fractions, (0, 1))
    slopes = (directions[:, None, :] * transform[:, :-1]).sum(dim=2).gather(1, order)
    return pad(slopes, (1, 0)) - pad(slopes, (0, 1))


def encode(positions: Tensor, directions: Tensor | None, table: Tensor, transforms: Tensor, strides: Tensor) -> Tensor:
    """Interpolate the table of each level."""
    (points, _), (levels, table_size, channels) = positions.shape, table.shape
    output = positions.new_zeros(points, levels, channels)
    for level, transform in enumerate(transforms.to(positions.dtype)):
        rows, fractions, order = _find_simplex(positions, transform, strides[level], table_size)
        weights = _weigh_corners(fractions, order, directions, transform)
        for row, weight in zip(rows.T, weights.T, strict=True):
            output[:, level] += weight[:, None] * table[level][row]
    return output.flatten(1).to(table.dtype)


def encode_backward(
    positions: Tensor,
    directions: Tensor | None,
    table: Tensor,
    gradient: Tensor,
    transforms: Tensor,
    strides: Tensor,
    for_positions: bool,
    for_table: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradients with respect to positions and table."""
    levels, table_size, channels = table.shape
    gradient = gradient.to(positions.dtype).unflatten(1, (levels, channels))
    to_positions = positions.new_zeros(positions.shape if for_positions else 0)
    to_table = table.new_zeros(table.shape if for_table else 0, dtype=accumulation_dtype(table.dtype))
    for level, transform in enumerate(transforms.to(positions.dtype)):
        rows, fractions, order = _find_simplex(positions, transform, strides[level], table_size)
        upper = gradient[:, level]
        if for_table:
            weights = _weigh_corners(fractions, order, directions, transform)
            for row, weight in zip(rows.T, weights.T, strict=True):
                to_table[level].index_add_(0, row, weight[:, None] * upper)
        if for_positions:
            # a larger fraction moves weight along its axis, from one corner to the next
            corners = (table[level][rows] * upper[:, None, :]).sum(dim=2)
            steps = corners.diff(dim=1)
            slopes = steps.new_empty(steps.shape).scatter(1, order, steps)
            to_positions += (slopes[:, :, None] * transform[:, :-1]).sum(dim=1)
    return to_positions, to_table.to(table.dtype)
