"""Gaussian filter of chunked points: splat each chunk, merge the lattices by key in a tree, slice each chunk.

The lattice is computed before any result. One graph for both would load the features of many chunks for slicing, and
keep them, while the lattice is still being built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

import dask
import dask.array as da
import numpy as np
import torch
from dask.base import optimize, persist
from dask.delayed import delayed
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.dask.workers import check_chunk_fits, check_merge_fits, limit_worker_cache
from permutohedral.errors import InputError
from permutohedral.lattice.memory import new_tensor
from permutohedral.ops.binding import bind
from permutohedral.ops.constants import axis_offsets, axis_opposite
from permutohedral.ops.contract import SMALLEST_MASS, blur_gain

# lattices merged per task; each lattice point is looked up once on every level of the tree
_MERGED_PER_TASK = 16
_delayed: Callable[..., Any] = delayed

Array = NDArray[np.floating]
# lattice of some chunks: keys `[lattice_points, 1 + d]`, and sums `[lattice_points, channels]`
Part = tuple[NDArray[np.int32], Array]


def gaussian_filter(values: da.Array, features: da.Array) -> da.Array:
    """Filter chunked points like `ph.gaussian_filter`; the lattice is computed immediately, results lazily.

    Each chunk makes a lattice that is merged into the others. So chunks should hold many points per lattice point, or
    points that are near each other.

    Args:
        values: float32 or float64 `[points, channels]`.
        features: `[points, d]`; its chunks are used, one at a time.

    Returns:
        `[points, channels]`, in the chunks of the features.

    >>> import permutohedral.dask as phd
    >>> features = da.random.random((1000, 3), chunks=(250, 3)) * 5
    >>> phd.gaussian_filter(da.ones((1000, 2), chunks=(250, 2)), features).mean().compute().round(6)
    np.float64(1.0)
    """
    features, values = _align_chunks(features, values)
    merged = _merge(_splat(features, values))
    index, sums = _persist_pair(_delayed(blur_part)(merged))
    return _slice(index, sums, features, values.shape[1], values.dtype)


def _align_chunks(features: da.Array, values: da.Array) -> tuple[da.Array, da.Array]:
    """Return both in chunks of whole points, the values in those of the features."""
    for name, array in (("features", features), ("values", values)):
        if not isinstance(array, da.Array) or array.ndim != 2:
            raise InputError(f"{name} must be a Dask array [points, n], got {array!r}; see dask.array.from_zarr")
    if any(np.isnan(extent) for extent in features.chunks[0]):
        raise InputError("features have chunks of unknown sizes; call features.compute_chunk_sizes() first")
    features = features.rechunk({1: -1})
    if values.shape[0] != features.shape[0]:
        raise InputError(f"values have {values.shape[0]} points, but features have {features.shape[0]}")
    if values.dtype != features.dtype:
        raise InputError(f"values are {values.dtype}, but features are {features.dtype}; convert one with astype")
    check_chunk_fits("features", max(features.chunks[0], default=0), features.shape[1], values.shape[1], features.dtype)
    return features, values.rechunk({0: features.chunks[0], 1: -1})


def _splat(features: da.Array, values: da.Array) -> list[Any]:
    # without fusion, a task that both depend on is computed once
    with dask.config.set({"optimization.fuse.active": False}):
        arrays = optimize(features, values)
    pairs = zip(*(array.to_delayed(optimize_graph=False).ravel() for array in arrays), strict=True)
    return [_delayed(splat_chunk)(place, each, number) for number, (place, each) in enumerate(pairs)]


def _merge(parts: list[Any]) -> Any:
    """Merge all parts in a tree of fixed shape, so that bits do not depend on the number of workers."""
    while len(parts) > 1:
        starts = range(0, len(parts), _MERGED_PER_TASK)
        parts = [_delayed(merge_parts)(parts[start : start + _MERGED_PER_TASK]) for start in starts]
    return parts[0]


def _persist_pair(pair: Any) -> tuple[Any, Any]:
    """Compute a pair where the scheduler keeps results, and return both as delayed objects."""
    (kept,) = persist(pair)
    if find_spec("distributed") is not None:
        from distributed import futures_of

        # wait here, else features would be loaded for slicing meanwhile
        for future in futures_of(kept):
            if future.exception() is not None:
                future.result()
    return kept[0], kept[1]


def _slice(index: Any, sums: Any, features: da.Array, channels: int, dtype: Any) -> da.Array:
    places = zip(features.to_delayed().ravel(), features.chunks[0], strict=True)
    found = [
        da.from_delayed(_delayed(slice_chunk)(index, sums, place, number), (extent, channels), dtype=dtype)
        for number, (place, extent) in enumerate(places)
    ]
    return cast(da.Array, da.concatenate(found))


# Tasks: NumPy in, NumPy out, no state between calls.


class LatticeIndex(NamedTuple):
    """Lattice points of all chunks, and the hash table of the backend that finds their keys."""

    keys: NDArray[np.int32]
    table: NDArray[np.generic]

    def find(self, keys: Tensor, offsets: Tensor, opposite: Tensor | None = None) -> Tensor:
        """Return the rows of `keys` plus each offset, -1 where there are none: `[offsets, keys]`."""
        tables = torch.from_numpy(self.keys), torch.from_numpy(self.table)
        return bind(keys).find_neighbors(*tables, keys, offsets, opposite)


def splat_chunk(features: Array, values: Array, chunk: int) -> Part:
    """Splat a chunk, and a channel of ones, onto its own lattice points; errors contain the number of the chunk."""
    limit_worker_cache()
    places, given = _to_tensor("features", features, chunk), _to_tensor("values", values, chunk)
    if len(given) != len(places):
        raise InputError(f"values have {len(given)} points in chunk {chunk}, but features have {len(places)}")
    ops = bind(places)
    keys, vertices, barycentric, _ = ops.index_points(places, None)
    rows = new_tensor((len(places), given.shape[1] + 1), places.dtype)
    rows[:, :-1], rows[:, -1] = given, 1
    sums = ops.splat(rows, vertices, barycentric, len(keys))
    return keys.numpy(), sums.numpy()


def merge_parts(parts: Sequence[Part]) -> Part:
    """Add parts by key."""
    if len(parts) == 1:
        return parts[0]
    first_keys, first_sums = parts[0]
    row_bytes = first_keys.itemsize * first_keys.shape[1] + first_sums.itemsize * first_sums.shape[1]
    check_merge_fits(sum(len(part[0]) for part in parts), row_bytes)
    keys = torch.cat([torch.from_numpy(part[0]) for part in parts])
    sums = torch.cat([torch.from_numpy(part[1]) for part in parts])
    ops = bind(keys)
    found, rows, _ = ops.index_keys(keys)
    ones = sums.new_ones(len(keys), 1)
    return found.numpy(), ops.splat(sums, rows[:, None], ones, len(found)).numpy()


def blur_part(part: Part) -> tuple[LatticeIndex, Array]:
    """Return the index of a part's keys, and its sums blurred with the Gaussian, in the order of the index."""
    keys = torch.from_numpy(part[0])
    ops = bind(keys)
    keys, rows, table = ops.index_keys(keys)
    index, sums = LatticeIndex(keys.numpy(), table.numpy()), torch.from_numpy(part[1])
    ordered = torch.empty_like(sums)
    ordered[rows.long()] = sums
    dimension = keys.shape[1] - 1
    neighbors = index.find(keys, axis_offsets(dimension), axis_opposite(dimension))
    return index, _to_numpy(ops.blur(ordered, neighbors, False) / blur_gain(dimension))


def slice_chunk(index: LatticeIndex, sums: Array, features: Array, chunk: int) -> Array:
    """Interpolate the sums at the points of a chunk, and divide by the last channel."""
    places = _to_tensor("features", features, chunk)
    ops = bind(places)
    keys, vertices, barycentric, _ = ops.index_points(places, None)
    rows = index.find(keys, torch.zeros(1, keys.shape[1] - 1, dtype=torch.int32))[0]
    found = torch.from_numpy(sums).index_select(0, rows.long())
    sliced = ops.slice(found, vertices, barycentric)
    return _to_numpy(sliced[:, :-1] / (sliced[:, -1:] + SMALLEST_MASS))


def _to_tensor(name: str, array: Array, chunk: int) -> Tensor:
    """Return the array as a tensor, after checking that it is a matrix of finite floats."""
    if array.ndim != 2 or array.dtype not in (np.float32, np.float64):
        raise InputError(f"{name} must be float32 or float64 [points, n], chunk {chunk} is {array.dtype} {array.shape}")
    # the sum is much cheaper than a test of each number, and finite unless it overflows
    with np.errstate(all="ignore"):
        finite = math.isfinite(np.add.reduce(array, axis=None))
    if not finite and len(bad := np.flatnonzero(~np.isfinite(array).all(axis=1))):
        row = int(bad[0])
        raise InputError(f"{name} are not finite in row {row} of chunk {chunk}: {array[row].tolist()}")
    return torch.from_numpy(np.ascontiguousarray(array))


def _to_numpy(tensor: Tensor) -> Array:
    array: Array = tensor.numpy()
    return array
