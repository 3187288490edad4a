"""What is done with one chunk of points, or with the lattices of some: NumPy in, NumPy out, nothing kept between calls.

A part of a lattice is a pair of arrays: keys `[lattice_points, 1 + d]`, and sums `[lattice_points, channels]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.dask.workers import check_merged, keep_little
from permutohedral.errors import InputError
from permutohedral.memory import new_tensor
from permutohedral.neighborhood import axis_offsets, blur_gain
from permutohedral.ops import operators
from permutohedral.ops.primitives import SMALLEST_MASS

Array = NDArray[np.floating]
Part = tuple[NDArray[np.int32], Array]


class LookUp(NamedTuple):
    """The lattice points of all chunks, and the table in which the backend finds their keys."""

    keys: NDArray[np.int32]
    table: NDArray[np.generic]


def splat_chunk(features: Array, values: Array | None, chunk: int, mass: bool = True) -> Part:
    """The sums of a chunk on its own lattice points; with `mass`, those of ones as the last channel.

    Args:
        features: `[points, d]`.
        values: `[points, channels]`; None for no channels.
        chunk: its number, for errors.
        mass: whether there is such a channel.
    """
    keep_little()
    places = _checked("features", features, chunk)
    keys, vertices, barycentric, _ = operators.index_points(places, None)
    given = places[:, :0] if values is None else _checked("values", values, chunk)
    if len(given) != len(places):
        raise InputError(f"chunk {chunk} has {len(given)} values and {len(places)} features")
    channels = given.shape[1]
    rows = new_tensor((len(places), channels + mass), places.dtype)
    rows[:, :channels] = given
    rows[:, channels:] = 1
    sums = operators.splat(rows, vertices, barycentric, len(keys))
    return keys.numpy(), sums.numpy()


def place_chunk(features: Array, channels: int, chunk: int) -> Part:
    """The lattice points under the targets of a chunk, over which the blur leads, too; their sums are zero."""
    places = _checked("target features", features, chunk)
    keys, *_ = operators.index_points(places, None)
    return keys.numpy(), _numpy(places.new_zeros(len(keys), channels))


def merge_parts(parts: Sequence[Part]) -> Part:
    """Add parts by key."""
    if len(parts) == 1:
        return parts[0]
    first_keys, first_sums = parts[0]
    row_bytes = first_keys.itemsize * first_keys.shape[1] + first_sums.itemsize * first_sums.shape[1]
    check_merged(sum(len(part[0]) for part in parts), row_bytes)
    keys = torch.cat([torch.from_numpy(part[0]) for part in parts])
    sums = torch.cat([torch.from_numpy(part[1]) for part in parts])
    found, rows, _ = operators.index_keys(keys)
    ones = sums.new_ones(len(keys), 1)
    return found.numpy(), operators.splat(sums, rows[:, None], ones, len(found)).numpy()


def order_part(part: Part) -> tuple[LookUp, Array]:
    """A part with the table to look its keys up, and its sums in their order."""
    keys, rows, table = operators.index_keys(torch.from_numpy(part[0]))
    sums = torch.from_numpy(part[1])
    ordered = torch.empty_like(sums)
    ordered[rows.long()] = sums
    return LookUp(keys.numpy(), table.numpy()), ordered.numpy()


def blur_rows(look_up: LookUp, sums: Array) -> Array:
    """The Gaussian blur of all sums."""
    keys = torch.from_numpy(look_up.keys)
    dimension = keys.shape[1] - 1
    neighbors = operators.find_neighbors(keys, torch.from_numpy(look_up.table), keys, axis_offsets(dimension))
    blurred = operators.blur(torch.from_numpy(sums), neighbors, False) / blur_gain(dimension)
    return _numpy(blurred)


def slice_chunk(look_up: LookUp, sums: Array, features: Array, chunk: int, divide: bool = True) -> Array:
    """Interpolate the sums at the points of a chunk; `divide` by the last channel."""
    places = _checked("features", features, chunk)
    keys, vertices, barycentric, _ = operators.index_points(places, None)
    nowhere = torch.zeros(1, keys.shape[1] - 1, dtype=torch.int32)
    rows = operators.find_neighbors(torch.from_numpy(look_up.keys), torch.from_numpy(look_up.table), keys, nowhere)[0]
    found = torch.from_numpy(sums).index_select(0, rows.clamp_min(0).long())
    found = torch.where((rows < 0)[:, None], 0.0, found)
    sliced = operators.slice(found, vertices, barycentric)
    if divide:
        sliced[:, -1:] += SMALLEST_MASS
        sliced = sliced[:, :-1] / sliced[:, -1:]
    return _numpy(sliced)


def rows_of_part(look_up: LookUp, part: Part) -> Array:
    """The sums of a part in the rows of all lattice points, zero elsewhere."""
    keys = torch.from_numpy(part[0])
    nowhere = torch.zeros(1, keys.shape[1] - 1, dtype=torch.int32)
    rows = operators.find_neighbors(torch.from_numpy(look_up.keys), torch.from_numpy(look_up.table), keys, nowhere)[0]
    if bool((rows < 0).any()):
        raise InputError("values were given at points that the lattice was not built from")
    sums = np.zeros((len(look_up.keys), part[1].shape[1]), part[1].dtype)
    sums[rows.numpy()] = part[1]
    return sums


def _checked(name: str, array: Array, chunk: int) -> Tensor:
    """The array as a tensor, once it is known to be a matrix of finite numbers."""
    if array.ndim != 2 or array.dtype not in (np.float32, np.float64):
        raise InputError(f"{name} must be float32 or float64 [points, n], chunk {chunk} is {array.dtype} {array.shape}")
    # the sum tells at a fraction of the cost, unless it overflows
    with np.errstate(all="ignore"):
        finite = math.isfinite(np.add.reduce(array, axis=None))
    if not finite and len(bad := np.flatnonzero(~np.isfinite(array).all(axis=1))):
        row = int(bad[0])
        raise InputError(f"{name} are not finite in row {row} of chunk {chunk}: {array[row].tolist()}")
    return torch.from_numpy(np.ascontiguousarray(array))


def _numpy(tensor: Tensor) -> Array:
    array: Array = tensor.numpy()
    return array
