"""Heights above the ground around a point, of a cloud in which nobody has marked the ground.

The lowest points of square cells are a rough terrain with houses and trees on it. A morphological opening, the largest
of the smallest in a window, takes off what is narrower than the window, and leaves slopes as they are.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from permutohedral.errors import InputError

# of the points of a cell, these are left out
_LOWEST_SHARE = 0.05
# a cell is noise as well if it lies by so many meters below all but so many others around it
_DEEP, _OTHERS = 1.0, 6
_REACH = 4
# entries of the windows that are sorted at once
_CHUNK = 1 << 24
_MOST_CELLS = 1 << 28


def heights_above_ground(positions: Tensor, window: float, cell: float = 2.0) -> Tensor:
    """How far each point is above the ground around it.

    Args:
        positions: `[points, 3]`, meters, the last is up.
        window: width in meters of what may stand on the ground: wider things are taken for ground.
        cell: width in meters of the squares whose lowest points are looked at.

    Returns:
        `[points]`, of the dtype of the positions.

    Raises:
        InputError: the cloud is so wide that it has too many cells.

    >>> flat = torch.cat([torch.rand(4000, 2) * 40, torch.zeros(4000, 1)], dim=1)
    >>> roof = torch.cat([torch.rand(500, 2) * 9 + 10, torch.full((500, 1), 6.0)], dim=1)
    >>> heights = heights_above_ground(torch.cat([flat, roof]), window=16.0)
    >>> float(heights[:4000].abs().max()), float(heights[4000:].min())
    (0.0, 6.0)
    """
    if not len(positions):
        return positions.new_zeros(0)
    with torch.no_grad():
        low, corner = _lowest(positions, cell)
        low = _without_noise(low)
        radius = max(round(window / 2 / cell), 1)
        eroded = -_largest(-low, radius)
        # where there are no points in the whole window, there is no ground either
        opened = _largest(torch.where(eroded.isinf(), -math.inf, eroded), radius)
        return positions[:, 2] - _read(_smooth(opened), (positions[:, :2] - corner) / cell)


def _lowest(positions: Tensor, cell: float) -> tuple[Tensor, Tensor]:
    """The height of the lowest points of each cell `[rows, columns]`, infinite without any; the corner of the grid."""
    corner = positions[:, :2].amin(dim=0)
    place = ((positions[:, :2] - corner) / cell).floor().long()
    rows, columns = (int(number) + 1 for number in place.amax(dim=0))
    if rows * columns > _MOST_CELLS:
        raise InputError(
            f"the cloud spans {rows * cell:.0f} by {columns * cell:.0f} meters; remove points that are far from all "
            "others, or cut it into parts"
        )
    number = place[:, 0] * columns + place[:, 1]
    order = positions[:, 2].argsort()
    order = order[number[order].argsort(stable=True)]
    members = torch.bincount(number, minlength=rows * columns)
    # laser light that went through glass or was reflected twice seems to come from below the ground
    first = members.cumsum(0) - members + (members * _LOWEST_SHARE).long()
    low = positions.new_full((rows * columns,), math.inf)
    occupied = members > 0
    low[occupied] = positions[order[first[occupied]], 2]
    return low.view(rows, columns), corner


def _without_noise(low: Tensor) -> Tensor:
    """The same, infinite where a cell is deep below the others."""
    size = 2 * _REACH + 1
    padded = F.pad(low, (_REACH,) * 4, value=math.inf)
    chunk = max(_CHUNK // (size * size * low.shape[1]), 1)
    kept = []
    for first in range(0, low.shape[0], chunk):
        rows = low[first : first + chunk]
        around = padded[first : first + len(rows) + size - 1].unfold(0, size, 1).unfold(1, size, 1)
        others = around.flatten(2).kthvalue(_OTHERS + 1, dim=2).values
        kept.append(torch.where(others.isfinite() & (rows < others - _DEEP), math.inf, rows))
    return torch.cat(kept)


def _largest(grid: Tensor, radius: int) -> Tensor:
    """The largest in a square window around each cell."""
    grid = grid[None]
    for kernel, padding in (((2 * radius + 1, 1), (radius, 0)), ((1, 2 * radius + 1), (0, radius))):
        # torch allows no more padding than half of the window; both are limited by the grid
        grid = F.max_pool2d(grid, kernel, stride=1, padding=padding)
    return grid[0]


def _smooth(grid: Tensor) -> Tensor:
    """The mean of each cell and those around it that are known."""
    known = grid.isfinite()
    both = torch.stack([torch.where(known, grid, 0.0), known.to(grid.dtype)])
    total, number = F.avg_pool2d(both, 3, stride=1, padding=1, divisor_override=1)
    return torch.where(known, total / number.clamp_min(1), grid)


def _read(grid: Tensor, places: Tensor) -> Tensor:
    """The grid at places in units of cells, linear between the middles of cells."""
    rows, columns = grid.shape
    limit = torch.tensor([rows - 1, columns - 1], device=grid.device, dtype=places.dtype)
    places = torch.minimum((places - 0.5).clamp_min(0), limit)
    base = places.floor()
    share = places - base
    result = torch.zeros_like(places[:, 0])
    known = torch.zeros_like(result)
    for row in (0, 1):
        for column in (0, 1):
            at = torch.minimum(base + base.new_tensor([row, column]), limit).long()
            weight = (share[:, 0] if row else 1 - share[:, 0]) * (share[:, 1] if column else 1 - share[:, 1])
            value = grid[at[:, 0], at[:, 1]]
            weight = torch.where(value.isfinite(), weight, 0.0)
            result += weight * torch.where(value.isfinite(), value, 0.0)
            known += weight
    return result / known.clamp_min(torch.finfo(known.dtype).tiny)
