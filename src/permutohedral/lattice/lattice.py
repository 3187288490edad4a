"""The lattice under a set of points: built once, reused by any number of layers, iterations and channels.

features -> simplices (which vertices enclose each point, and with which weights) -> neighbors (which vertex
lies where each tap of a filter points). `Lattice` holds these tables and nothing else; values live outside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.lattice.memory import MemoryLimit
from permutohedral.lattice.neighborhood import Neighborhood, check_halo, neighborhood_of
from permutohedral.lattice.tables import build_tables, find_neighbors
from permutohedral.lattice.tensors import check_features, check_tensor
from permutohedral.ops.binding import bind
from permutohedral.ops.constants import constant, items_of_points
from permutohedral.ops.contract import check_items
from permutohedral.ops.simplices import Simplices, compact_storage
from permutohedral.ops.tracing import breaks_graph, is_batched, with_storable_results


@dataclass(frozen=True)
class LatticeStatistics:
    """Counts that show how well the scale of the features fits the points.

    Attributes:
        num_points: source points.
        num_lattice_points: lattice points that hold values, a halo included.
        points_per_lattice_point: well below 1 the filter has little to average over; use a larger bandwidth.
        missing_tap_share: share of the taps, the center left out, that find no lattice point and read zero.
        num_bytes: memory of all tables.

    >>> import torch, permutohedral as ph
    >>> statistics = ph.build_lattice(torch.zeros(30, 2)).statistics()
    >>> statistics.num_lattice_points, statistics.points_per_lattice_point
    (3, 10.0)
    """

    num_points: int
    num_lattice_points: int
    points_per_lattice_point: float
    missing_tap_share: float
    num_bytes: int


@dataclass(frozen=True, eq=False)
class Lattice:
    """Lattice under source and target points, ready to splat, convolve and slice.

    Build it with `build_lattice`. It is frozen, can be pickled, and is tied to no values: reuse it.

    Attributes:
        dimension: d, the dimension of the features.
        neighborhood_size: s of the filters it serves.
        source: where values come from.
        target: where results are wanted; the same object as `source` if they are the same points.
        neighbors: int32 `[filter_size, target lattice points]`, rows of `source.keys`, -1 where missing.
        axis_neighbors: int32 `[2 (d + 1), lattice points]` for the separable Gaussian, or None.
        batch_size: number of items if the points came as `[batch, points, d]`, else None.
        points_per_item: source and target points of each of these items, which an empty batch knows, too.
        dilation: length of the steps of `neighborhood_size`.

    >>> import torch, permutohedral as ph
    >>> ph.build_lattice(torch.zeros(10, 2), neighborhood_size=1)
    Lattice(dimension=2, neighborhood_size=1, points=10, target_points=10, lattice_points=3, device='cpu')
    """

    dimension: int
    neighborhood_size: int
    source: Simplices
    target: Simplices
    neighbors: Tensor
    axis_neighbors: Tensor | None = None
    batch_size: int | None = None
    points_per_item: tuple[int, int] = (0, 0)
    dilation: int = 1

    @property
    def num_lattice_points(self) -> int:
        """Number of lattice points that hold the splatted values."""
        return self.source.num_lattice_points

    @property
    def neighborhood(self) -> Neighborhood:
        return neighborhood_of(self.dimension, self.neighborhood_size, self.dilation)

    @property
    def is_shared(self) -> bool:
        """Whether source and target points lie on one set of lattice points."""
        return self.source.keys is self.target.keys

    @property
    def reverse_neighbors(self) -> Tensor | None:
        """The table from source to target, which the gradient needs; None where it is not `neighbors` itself."""
        return self.neighbors if self.source.keys is self.target.keys else None

    @property
    def opposite(self) -> Tensor:
        """For every tap, the tap at the negative offset, int64 `[filter_size]`. Shared; do not write to it."""
        return constant("_opposite", torch.int64, self.neighbors.device, self.dimension, self.neighborhood_size)

    @property
    def device(self) -> torch.device:
        return self.neighbors.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the features the lattice was built from."""
        return self.source.barycentric.dtype

    def statistics(self) -> LatticeStatistics:
        """Count lattice points, missing taps and bytes."""
        tables = {self.neighbors} if self.axis_neighbors is None else {self.neighbors, self.axis_neighbors}
        for side in (self.source, self.target):
            tables |= {side.keys, side.vertices, side.barycentric, side.table}
        around = self.neighbors[1:] if self.axis_neighbors is None else self.axis_neighbors
        points, lattice_points = self.source.num_points, self.num_lattice_points
        return LatticeStatistics(
            num_points=points,
            num_lattice_points=lattice_points,
            points_per_lattice_point=points / max(lattice_points, 1),
            missing_tap_share=float((around < 0).float().mean()) if around.numel() else 0.0,
            num_bytes=sum(table.numel() * table.element_size() for table in tables),
        )

    def to(self, device: torch.device | str) -> Lattice:
        """Return the lattice on another device, for instance from the worker of a data loader to the GPU.

        >>> import torch, permutohedral as ph
        >>> ph.build_lattice(torch.rand(10, 2)).to("cpu").device
        device(type='cpu')
        """
        device = torch.device(device)

        def move(simplices: Simplices, keys: Tensor) -> Simplices:
            # a lookup table means something only to the backend that made it
            table = simplices.table if device.type == self.device.type else simplices.table[:0]
            vertices, barycentric = simplices.vertices.to(device), simplices.barycentric.to(device)
            return replace(simplices, keys=keys, vertices=vertices, barycentric=barycentric, table=table.to(device))

        source = move(self.source, self.source.keys.to(device))
        target = source
        if self.target is not self.source:
            target = move(self.target, source.keys if self.is_shared else self.target.keys.to(device))
        axis_neighbors = None if self.axis_neighbors is None else self.axis_neighbors.to(device)
        return replace(
            self, source=source, target=target, neighbors=self.neighbors.to(device), axis_neighbors=axis_neighbors
        )

    def __getstate__(self) -> dict[str, Any]:
        along, source = self.axis_neighbors, replace(self.source, keys=compact_storage(self.source.keys))
        target = source
        if self.target is not self.source:
            # shared keys stay shared
            target = replace(self.target, keys=source.keys if self.is_shared else compact_storage(self.target.keys))
        return self.__dict__ | {
            "source": source,
            "target": target,
            "neighbors": compact_storage(self.neighbors),
            "axis_neighbors": None if along is None else compact_storage(along),
        }

    def between_sources(self) -> Lattice:
        """Return the lattice whose targets are the source points."""
        return self._between(self.source, self.points_per_item[0])

    def between_targets(self) -> Lattice:
        """Return the lattice whose sources are the target points."""
        return self._between(self.target, self.points_per_item[1])

    def _between(self, simplices: Simplices, points: int) -> Lattice:
        between = replace(self, source=simplices, target=simplices, points_per_item=(points, points))
        if self.is_shared:
            return between
        return replace(between, neighbors=find_neighbors(bind(simplices.keys), simplices, simplices, self.neighborhood))

    def __repr__(self) -> str:
        return (
            f"Lattice(dimension={self.dimension}, neighborhood_size={self.neighborhood_size}, "
            f"points={self.source.num_points}, target_points={self.target.num_points}, "
            f"lattice_points={self.num_lattice_points}, device={str(self.device)!r})"
        )


@breaks_graph
@with_storable_results
def build_lattice(
    features: Tensor,
    target_features: Tensor | None = None,
    *,
    neighborhood_size: int = 1,
    batch: Tensor | None = None,
    target_batch: Tensor | None = None,
    halo: int = 0,
    separable: bool = False,
    dilation: int = 1,
    memory_limit: int | None = None,
) -> Lattice:
    """Build the lattice under `features`, for filters of `neighborhood_size`.

    Gradients flow from results to `features` and `target_features` through the barycentric weights.

    Args:
        features: float32 or float64 `[points, d]`, or `[batch, points, d]` with a lattice for each item; one
            unit is one standard deviation of the Gaussian filter, about one lattice step.
        target_features: where results are wanted, of the same rank; default: at the source points.
        neighborhood_size: s, the reach of the filters in lattice steps.
        batch: int `[points]`, the item of each point, for ragged batches of flat `features`. Items never mix.
        target_batch: the same for `target_features`.
        halo: also insert the untouched lattice points up to this many steps away, so that what several
            convolutions or the separable Gaussian pass through them is kept.
        separable: prepare for `gaussian_filter`'s separable method.
        dilation: length of a step of the filter; see `Neighborhood`.
        memory_limit: bytes the tables may take; default: what the device has free.

    Raises:
        InputError: features of a wrong shape, dtype or device, NaN or infinite, or too large for a key.
        MemoryLimitError: the tables would exceed `memory_limit`.

    >>> import torch, permutohedral as ph
    >>> features = torch.rand(1000, 3) * 10
    >>> lattice = ph.build_lattice(features, neighborhood_size=2)
    >>> ph.slice(ph.splat(torch.ones(1000, 4), lattice), lattice).shape
    torch.Size([1000, 4])
    """
    neighborhood = neighborhood_of(check_features(features, target_features), neighborhood_size, dilation)
    check_halo(halo, neighborhood.dimension)
    batch_size = features.shape[0] if features.dim() == 3 else None
    check_batches(batch, target_batch, target_features is not None)
    sources = flatten_points(features, batch, "batch")
    targets = None if target_features is None else flatten_points(target_features, target_batch, "target_batch")
    if memory_limit is not None and not isinstance(memory_limit, (int, float)):
        raise InputError(f"memory_limit must be a number of bytes, such as 10**9, got {memory_limit!r}")
    limit = MemoryLimit(memory_limit, features.device)
    points = sources[0].shape[0] + (0 if targets is None else targets[0].shape[0])
    limit.check_simplices(points, neighborhood.dimension, features.element_size())
    ops = bind(features, target_features)
    source, target, neighbors, axis_neighbors = build_tables(
        ops, sources, targets, neighborhood, halo, separable, limit
    )
    return Lattice(
        dimension=neighborhood.dimension,
        neighborhood_size=neighborhood_size,
        source=source,
        target=target,
        neighbors=neighbors,
        axis_neighbors=axis_neighbors,
        batch_size=batch_size,
        points_per_item=(features.shape[-2], (features if target_features is None else target_features).shape[-2]),
        dilation=dilation,
    )


def check_batches(batch: Tensor | None, target_batch: Tensor | None, has_targets: bool) -> None:
    """Raise unless both sides of a filter name the items of their points, or neither does."""
    if target_batch is not None and not has_targets:
        raise InputError("target_batch was given without target_features; pass both or neither")
    if has_targets and (batch is None) != (target_batch is None):
        raise InputError("give batch and target_batch both, or neither: each point needs its item")


def flatten_points(features: Tensor, batch: Tensor | None, batch_name: str) -> tuple[Tensor, Tensor | None]:
    """Return the points of all items in sequence, and the int32 item of each, None for a single set."""
    if features.dim() == 3:
        if batch is not None:
            raise InputError(f"features [batch, points, dimension] name their items already; drop {batch_name}")
        items, points, _ = features.shape
        return features.reshape(items * points, features.shape[2]), items_of_points(items, points, features.device)
    if batch is None:
        return features, None
    check_tensor(batch_name, batch)
    if batch.shape != features.shape[:1]:
        raise InputError(
            f"{batch_name} must name the item of each of the {features.shape[0]} points, got shape {tuple(batch.shape)}"
        )
    if batch.is_floating_point() or batch.is_complex() or batch.dtype == torch.bool:
        raise InputError(f"{batch_name} must be an integer vector, got {batch.dtype}")
    if batch.device != features.device:
        raise InputError(f"{batch_name} is on {batch.device} but its features on {features.device}; move one")
    # on a GPU the backend checks int32 items, since it has to wait anyway
    found_later = batch.is_cuda and batch.dtype == torch.int32
    if not found_later and not torch.compiler.is_compiling() and not is_batched(batch):
        check_items(batch, batch_name)
    return features, batch.to(torch.int32)
