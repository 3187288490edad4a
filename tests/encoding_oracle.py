"""The permutohedral encoding by its published definition, in NumPy: keys, hash, weights. Nothing of the package."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.longdouble]


def find_simplices(places: Array) -> tuple[NDArray[np.int64], Array]:
    """Return the first d coordinates of all corners, `[points, d + 1, d]`, and the barycentric weights.

    Adams et al. (2010): round to the nearest point whose coordinates are multiples of d+1, rank the rest, and repair
    the sum.
    """
    points, d = places.shape
    elevated = np.zeros((points, d + 1), np.longdouble)
    for i in range(d):
        scaled = places[:, i] / np.sqrt(np.longdouble((i + 1) * (i + 2)))
        elevated[:, : i + 1] += scaled[:, None]
        elevated[:, i + 1] -= (i + 1) * scaled
    nearest = np.rint(elevated / (d + 1)).astype(np.int64)
    rest = elevated - nearest * (d + 1)
    rank = np.argsort(np.argsort(-rest, axis=1, kind="stable"), axis=1) + nearest.sum(axis=1)[:, None]
    moved = (rank < 0).astype(np.int64) - (rank > d)
    nearest, rank = nearest + moved, rank + moved * (d + 1)
    rest = (elevated - nearest * (d + 1)) / (d + 1)
    weights = np.zeros((points, d + 2), np.longdouble)
    for i in range(d + 1):
        row = np.arange(points)
        weights[row, d - rank[:, i]] += rest[:, i]
        weights[row, d + 1 - rank[:, i]] -= rest[:, i]
    weights[:, 0] += 1 + weights[:, d + 1]
    corner = np.arange(d + 1)[None, :, None]
    keys = (nearest * (d + 1))[:, None, :] + corner - (d + 1) * (rank[:, None, :] > d - corner)
    return keys[:, :, :d], weights[:, : d + 1]


def hash_keys(keys: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """h = (h + key_i) * 2531011 in 32 bits, then modulo the capacity."""
    hashed = np.zeros(keys.shape[:-1], np.uint32)
    for i in range(keys.shape[-1]):
        hashed = (hashed + keys[..., i].astype(np.uint32)) * np.uint32(2531011)
    return (hashed % np.uint32(capacity)).astype(np.int64)


def encode(positions: ArrayLike, table: ArrayLike, sigmas: ArrayLike, shifts: ArrayLike) -> Array:
    """Return `[points, levels * features]`; sigmas and shifts are `[levels, d]`."""
    levels = []
    for values, sigma, shift in zip(np.asarray(table), np.asarray(sigmas), np.asarray(shifts), strict=True):
        keys, weights = find_simplices((np.asarray(positions, np.longdouble) + shift) / sigma)
        levels.append((weights[:, :, None] * values[hash_keys(keys, len(values))]).sum(axis=1))
    return np.concatenate(levels, axis=1)


def table_gradient(
    positions: ArrayLike, gradient: ArrayLike, shape: tuple[int, ...], sigmas: ArrayLike, shifts: ArrayLike
) -> Array:
    """Return the gradient of <gradient, encode(...)> with respect to the table."""
    found = np.zeros(shape, np.longdouble)
    upper = np.split(np.asarray(gradient), shape[0], axis=1)
    for level, (sigma, shift) in enumerate(zip(np.asarray(sigmas), np.asarray(shifts), strict=True)):
        keys, weights = find_simplices((np.asarray(positions, np.longdouble) + shift) / sigma)
        np.add.at(found[level], hash_keys(keys, shape[1]), weights[:, :, None] * upper[level][:, None, :])
    return found
