"""Points in any order, in chunks: every chunk is splatted, lattices are added by key in a tree, chunks are sliced.

The lattice is computed before the first result is asked for. One graph for both would load the features of many chunks
for slicing, and keep them, before the lattice is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

import dask
import dask.array as da
import numpy as np
from dask.base import optimize, persist
from dask.delayed import delayed

from permutohedral.dask.chunks import (
    blur_rows,
    merge_parts,
    order_part,
    place_chunk,
    rows_of_part,
    slice_chunk,
    splat_chunk,
)
from permutohedral.dask.workers import check_fits
from permutohedral.errors import InputError

# how many lattices are added at once: each lattice point is looked up once on every level of the tree
_TOGETHER = 16
_delayed: Callable[..., Any] = delayed


def gaussian_filter(values: da.Array, features: da.Array, target_features: da.Array | None = None) -> da.Array:
    """`ph.gaussian_filter` of chunked points. The lattice is computed at once, the results lazily.

    Chunks should hold many points of each lattice point, or points that are near each other: each makes a lattice of
    its own, which is then added to the others.

    Args:
        values: float32 or float64 `[points, channels]`.
        features: `[points, d]`; its chunks of points are used, and never read as a whole.
        target_features: `[targets, d]`; default: `features`.

    Returns:
        `[targets, channels]`, in the chunks of the targets.

    >>> import permutohedral.dask as phd
    >>> features = da.random.random((1000, 3), chunks=(250, 3)) * 5
    >>> phd.gaussian_filter(da.ones((1000, 2), chunks=(250, 2)), features).mean().compute().round(6)
    np.float64(1.0)
    """
    features, values = _chunks_of_points(features, values)
    targets = features if target_features is None else _targets_like(features, target_features)
    parts = _splat(features, values, mass=True)
    if target_features is not None:
        parts += _place(targets, values.shape[1] + 1)
    ordered = _delayed(order_part)(_merge(parts))
    look_up, sums = _computed_here(_delayed(_blurred)(ordered))
    return _slice(look_up, sums, targets, values.shape[1], values.dtype, divide=True)


@dataclass(frozen=True, eq=False)
class ChunkedLattice:
    """The lattice of chunked points, for several signals, other targets, or filters of one's own.

    Build it with `build_lattice`. Lattice values are Dask's delayed arrays `[lattice_points, channels]`.

    Attributes:
        features: `[points, d]`, where values come from.
        target_features: where results are wanted.
        look_up: the lattice points, where the scheduler keeps them.
    """

    features: da.Array
    target_features: da.Array
    look_up: Any

    def splat(self, values: da.Array) -> Any:
        """Add `values [points, channels]` to the lattice points."""
        features, values = _chunks_of_points(self.features, values)
        part = _merge(_splat(features, values, mass=False))
        return _delayed(rows_of_part)(self.look_up, part)

    def blur(self, lattice_values: Any) -> Any:
        """The Gaussian blur of lattice values."""
        return _delayed(blur_rows)(self.look_up, lattice_values)

    def slice(self, lattice_values: Any, channels: int) -> da.Array:
        """Interpolate at the targets: `[targets, channels]`, lazily."""
        targets = self.target_features
        return _slice(self.look_up, lattice_values, targets, channels, targets.dtype, divide=False)


def build_lattice(features: da.Array, target_features: da.Array | None = None) -> ChunkedLattice:
    """The lattice points under all chunks of `features [points, d]` and of the targets, computed at once.

    Args:
        features: `[points, d]`.
        target_features: `[targets, d]`; default: `features`.

    >>> import permutohedral.dask as phd
    >>> features, ones = da.random.random((100, 2), chunks=(25, 2)), da.ones((100, 1), chunks=(25, 1))
    >>> lattice = phd.build_lattice(features)
    >>> mass = lattice.slice(lattice.blur(lattice.splat(ones)), channels=1)
    >>> mass.shape
    (100, 1)
    """
    features, _ = _chunks_of_points(features, None)
    targets = features if target_features is None else _targets_like(features, target_features)
    parts = _splat(features, None, mass=False)
    if target_features is not None:
        parts += _place(targets, 0)
    look_up, _ = _computed_here(_delayed(order_part)(_merge(parts)))
    return ChunkedLattice(features, targets, look_up)


def _chunks_of_points(features: da.Array, values: da.Array | None) -> tuple[da.Array, Any]:
    """Both in chunks of whole points, the values in those of the features."""
    for name, array in (("features", features), ("values", values)):
        if array is not None and (not isinstance(array, da.Array) or array.ndim != 2):
            raise InputError(f"{name} must be a Dask array [points, n], got {array!r}; see dask.array.from_zarr")
    if any(np.isnan(extent) for extent in features.chunks[0]):
        raise InputError("the chunks of the features have unknown sizes; call features.compute_chunk_sizes() first")
    features = features.rechunk({1: -1})
    if values is None:
        return features, None
    if values.shape[0] != features.shape[0]:
        raise InputError(f"there are {values.shape[0]} values and {features.shape[0]} features")
    if values.dtype != features.dtype:
        raise InputError(f"values are {values.dtype} but the features {features.dtype}; convert one with astype")
    check_fits(max(features.chunks[0], default=0), features.shape[1], values.shape[1], features.dtype)
    return features, values.rechunk({0: features.chunks[0], 1: -1})


def _targets_like(features: da.Array, target_features: da.Array) -> da.Array:
    """In chunks of whole points, once it is known that they lie on the lattice of the features."""
    targets, _ = _chunks_of_points(target_features, None)
    if targets.dtype != features.dtype or targets.shape[1] != features.shape[1]:
        raise InputError(
            "features and target_features must share dtype and dimension, got "
            f"{features.dtype} {features.shape} and {targets.dtype} {targets.shape}"
        )
    return targets


def _splat(features: da.Array, values: da.Array | None, mass: bool) -> list[Any]:
    # what both are made of is computed once, unless it is fused into the tasks of either
    with dask.config.set({"optimization.fuse.active": False}):
        arrays = optimize(*([features] if values is None else [features, values]))
    places, *others = (array.to_delayed(optimize_graph=False).ravel() for array in arrays)
    given = others[0] if others else [None] * len(places)
    return [
        _delayed(splat_chunk)(place, each, number, mass)
        for number, (place, each) in enumerate(zip(places, given, strict=True))
    ]


def _place(targets: da.Array, channels: int) -> list[Any]:
    places = targets.to_delayed().ravel()
    return [_delayed(place_chunk)(place, channels, number) for number, place in enumerate(places)]


def _merge(parts: list[Any]) -> Any:
    """One part of all, in a tree of fixed shape: the same bits however many workers there are."""
    while len(parts) > 1:
        parts = [_delayed(merge_parts)(parts[first : first + _TOGETHER]) for first in range(0, len(parts), _TOGETHER)]
    return parts[0]


def _blurred(ordered: Any) -> Any:
    look_up, sums = ordered
    return look_up, blur_rows(look_up, sums)


def _computed_here(pair: Any) -> tuple[Any, Any]:
    """Both of a pair as delayed objects, computed where the scheduler keeps results; raises what went wrong."""
    (kept,) = persist(pair)
    if find_spec("distributed") is not None:
        from distributed import futures_of

        # features would be loaded for slices meanwhile
        for future in futures_of(kept):
            if future.exception() is not None:
                future.result()
    return kept[0], kept[1]


def _slice(look_up: Any, sums: Any, targets: da.Array, channels: int, dtype: Any, divide: bool) -> da.Array:
    places = zip(targets.to_delayed().ravel(), targets.chunks[0], strict=True)
    found = [
        da.from_delayed(_delayed(slice_chunk)(look_up, sums, place, number, divide), (extent, channels), dtype=dtype)
        for number, (place, extent) in enumerate(places)
    ]
    return cast(da.Array, da.concatenate(found))
