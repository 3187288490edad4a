"""Networks that lattices and voxels are compared with: point by point, and in the manner of PointNet++.

C. R. Qi, L. Yi, H. Su, L. J. Guibas: PointNet++: deep hierarchical feature learning on point sets in a metric space.
NIPS 2017.
Here the centers are one point of each cell of a grid instead of farthest points, which is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Head = Literal["points", "clouds"]

# distances that are sorted together
_CHUNK = 1 << 26


class _Level(NamedTuple):
    """Points of a level, and the cloud of each."""

    positions: Tensor
    item: Tensor


def mean_of_items(rows: Tensor, item: Tensor) -> Tensor:
    """Average the rows of each item, `[rows, channels]` to `[items, channels]`."""
    counts = torch.bincount(item)
    return rows.new_zeros(len(counts), rows.shape[1]).index_add(0, item.long(), rows) / counts[:, None].to(rows.dtype)


class PointwiseSegmenter(nn.Module):
    """Apply the same network to the values of every point.

    Args:
        in_channels: of the values.
        classes: number of classes.
        channels: of the hidden layers.
        head: score "points", or the means over "clouds".
        unit: of positions as further values. Default: none.
        dimension: d of the positions.

    >>> network = PointwiseSegmenter(2, 3, channels=(8, 8))
    >>> network(torch.rand(50, 2), torch.rand(50, 3) * 9, torch.zeros(50, dtype=torch.int64)).shape
    torch.Size([50, 3])
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        channels: Sequence[int] = (360, 360, 360, 360),
        head: Head = "points",
        unit: float | None = None,
        dimension: int = 3,
    ) -> None:
        super().__init__()
        self.classifies, self.unit = head, unit
        in_channels += dimension if unit else 0
        self.linears = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise([in_channels, *channels]))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in channels)
        self.head = nn.Linear(channels[-1], classes)

    def forward(self, values: Tensor, positions: Tensor, item: Tensor) -> Tensor:
        """Return scores `[points, classes]`."""
        values = torch.cat([values, positions / self.unit], dim=1) if self.unit else values
        for linear, norm in zip(self.linears, self.norms, strict=True):
            values = F.relu(norm(linear(values)))
        scores: Tensor = self.head(values if self.classifies == "points" else mean_of_items(values, item))
        return scores


class PointNetSegmenter(nn.Module):
    """Classify points by sets of nearest points on several levels.

    Args:
        in_channels: of the values.
        classes: number of classes.
        channels: of the points, then of the centers of each level.
        cells: width in meters of the cells, one center each, for each level.
        neighbors: number of nearest points that a center sums up.
        dimension: d of the positions.
        head: score "points", or the means over "clouds".

    >>> network = PointNetSegmenter(2, 3, channels=(8, 8, 8), cells=(1.0, 2.0))
    >>> network(torch.rand(50, 2), torch.rand(50, 3) * 9, torch.zeros(50, dtype=torch.int64)).shape
    torch.Size([50, 3])
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        channels: Sequence[int] = (32, 64, 128, 192),
        cells: Sequence[float] = (1.4, 2.8, 5.6),
        neighbors: int = 16,
        dimension: int = 3,
        head: Head = "points",
    ) -> None:
        super().__init__()
        self.cells, self.neighbors, self.classifies = tuple(cells), neighbors, head
        self.enter = _Layers(in_channels, channels[0], channels[0])
        self.down = nn.ModuleList(_Layers(fine + dimension, coarse, coarse) for fine, coarse in pairwise(channels))
        back = pairwise(channels) if head == "points" else ()
        self.up = nn.ModuleList(_Layers(coarse + fine, fine, fine) for fine, coarse in back)
        seen, hidden = (channels[0] + in_channels, 32) if head == "points" else (sum(channels), channels[-1])
        self.head = nn.Sequential(nn.Linear(seen, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, values: Tensor, positions: Tensor, item: Tensor) -> Tensor:
        """Return scores `[points, classes]`."""
        levels, found = [_Level(positions, item.long())], [self.enter(values)]
        for cell, layers in zip(self.cells, self.down, strict=True):
            fine = levels[-1]
            coarse = _centers(fine, cell)
            near = nearest(coarse, fine, self.neighbors)
            relative = (fine.positions[near] - coarse.positions[:, None]) / cell
            found.append(layers(torch.cat([found[-1][near], relative], dim=2)).amax(dim=1))
            levels.append(coarse)
        if self.classifies == "clouds":
            means = [mean_of_items(each, level.item) for each, level in zip(found, levels, strict=True)]
            of_clouds: Tensor = self.head(torch.cat(means, dim=1))
            return of_clouds
        result = found.pop()
        for level in reversed(range(len(self.up))):
            fine, coarse = levels[level], levels[level + 1]
            near = nearest(fine, coarse, 3)
            distance = (coarse.positions[near] - fine.positions[:, None]).square().sum(dim=2)
            share = 1 / distance.clamp_min(1e-6)
            share = share / share.sum(dim=1, keepdim=True)
            joined = torch.cat([(result[near] * share[:, :, None]).sum(dim=1), found.pop()], dim=1)
            result = self.up[level](joined)
        scores: Tensor = self.head(torch.cat([result, values], dim=1))
        return scores


class _Layers(nn.Module):
    """Two linear layers on the last axis, normalized."""

    def __init__(self, in_channels: int, hidden: int, out_channels: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(in_channels, hidden), nn.Linear(hidden, out_channels)
        self.norms = nn.ModuleList([nn.LayerNorm(hidden), nn.LayerNorm(out_channels)])

    def forward(self, values: Tensor) -> Tensor:
        hidden = F.relu(self.norms[0](self.first(values)))
        result: Tensor = F.relu(self.norms[1](self.second(hidden)))
        return result


def _centers(level: _Level, cell: float) -> _Level:
    """Return the first point in each cell of a grid, of each item."""
    places = (level.positions / cell).floor().long()
    places = torch.cat([level.item[:, None], places - places.amin(dim=0)], dim=1)
    sizes = places.amax(dim=0) + 1
    number = places[:, 0]
    for axis in range(1, places.shape[1]):
        number = number * sizes[axis] + places[:, axis]
    order = number.argsort(stable=True)
    starts = torch.ones_like(order, dtype=torch.bool)
    starts[1:] = number[order[1:]] != number[order[:-1]]
    chosen = order[starts].sort().values
    return _Level(level.positions[chosen], level.item[chosen])


def nearest(queries: _Level, points: _Level, number: int) -> Tensor:
    """Return the `number` points of the same item nearest to each query, int64 `[queries, number]`.

    Points repeat where an item has fewer. Items are in ascending order.
    """
    items = torch.arange(int(queries.item[-1]) + 2, device=queries.item.device) if len(queries.item) else queries.item
    ends = [torch.searchsorted(level.item.contiguous(), items).tolist() for level in (queries, points)]
    found = [queries.item.new_zeros(0, number)]
    places = torch.arange(number, device=queries.item.device)
    with torch.no_grad():
        for (low, high), (first, last) in zip(pairwise(ends[0]), pairwise(ends[1]), strict=True):
            candidates = points.positions[first:last]
            chunk = max(_CHUNK // max(last - first, 1), 1)
            for start in range(low, high, chunk):
                distances = torch.cdist(queries.positions[start : min(start + chunk, high)], candidates)
                near = distances.topk(min(number, last - first), dim=1, largest=False).indices + first
                found.append(near[:, places.clamp_max(near.shape[1] - 1)])
    return torch.cat(found)
