"""Classes of the points of a cloud of any size and density, tile by tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

# points per square meter: denser clouds are split, since the shipped network was trained up to this density
DENSEST = 12.0

# meters: tiles as wide as training crops, and margins as wide as the network needs
_TILE_SIDE, _TILE_MARGIN = 40.0, 10.0
# meters: side of the squares by which areas are measured
_DENSITY_CELL = 2.0


@torch.no_grad()
def classify_points(
    network: nn.Module,
    positions: Tensor,
    values: Tensor,
    device: torch.device,
    side: float = _TILE_SIDE,
    margin: float = _TILE_MARGIN,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """Classify all points of a cloud on `device`, tile by tile; dense tiles are split into several sparse clouds.

    Args:
        network: called with values, positions and items, such as a `PointSegmenter`.
        positions: `[points, 3]`, meters, float32 near the origin.
        values: `[points, channels]`.
        device: where the network is.
        side: of a tile, in meters.
        margin: of a tile, in meters.
        progress: called after each tile with the number of classified points.

    Returns:
        int64 `[points]`, on the device of the positions.
    """
    classes = torch.zeros(len(positions), dtype=torch.int64, device=positions.device)
    done = 0
    for points, own in cut_tiles(positions, side, margin):
        for part in _split_dense(positions[points]):
            chosen, kept = points[part], own[part]
            # features near zero have the smallest rounding errors
            near = positions[chosen].to(device)
            item = torch.zeros(len(part), dtype=torch.int32, device=device)
            found = network(values[chosen].to(device), near - near.mean(dim=0), item).argmax(dim=1).to(classes.device)
            classes[chosen[kept]] = found[kept]
        done += int(own.sum())
        if progress is not None:
            progress(done)
    return classes


def measure_density(positions: Tensor) -> float:
    """Return the points per square meter of occupied area.

    >>> round(measure_density(torch.rand(1000, 3) * 10), 1)
    10.0
    """
    if not len(positions):
        return 0.0
    places = ((positions[:, :2] - positions[:, :2].amin(dim=0)) / _DENSITY_CELL).floor().long()
    occupied = torch.unique(places[:, 0] * (places[:, 1].amax() + 1) + places[:, 1])
    return len(positions) / (len(occupied) * _DENSITY_CELL**2)


def cut_tiles(positions: Tensor, side: float, margin: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Cover a cloud with squares and yield the points of each, with its margin; lengths are in meters.

    Yields indices of the points of a square with its margin, int64, and which of them lie in the square itself, bool.
    Every point lies in exactly one square.

    >>> cloud = torch.rand(1000, 3) * 100
    >>> sorted(torch.cat([points[own] for points, own in cut_tiles(cloud, 40.0, 10.0)]).tolist()) == list(range(1000))
    True
    """
    if not len(positions):
        return
    flat = positions[:, :2] - positions[:, :2].amin(dim=0)
    place = (flat / side).floor()
    for row in place[:, 0].unique().tolist():
        low, high = row * side - margin, (row + 1) * side + margin
        strip = ((flat[:, 0] >= low) & (flat[:, 0] < high)).nonzero()[:, 0]
        within, of_strip = flat[strip], place[strip]
        for column in of_strip[of_strip[:, 0] == row][:, 1].unique().tolist():
            low, high = column * side - margin, (column + 1) * side + margin
            near = ((within[:, 1] >= low) & (within[:, 1] < high)).nonzero()[:, 0]
            own = (of_strip[near] == of_strip.new_tensor([row, column])).all(dim=1)
            yield strip[near], own


def _split_dense(positions: Tensor) -> list[Tensor]:
    """Split a cloud at random into parts no denser than `DENSEST`: the indices of each."""
    parts = max(math.ceil(measure_density(positions) / DENSEST), 1)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(positions), generator=generator).to(positions.device)
    return [order[part::parts] for part in range(parts)]
