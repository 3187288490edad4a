"""The simplex around each point, and the derivative of the barycentric weights.

Symbols: d is the dimension of the features; y = E f, the point in R^{d+1} (`reference.py`). Tiles are
`[ROWS, BLOCK]`: ROWS >= d+1 coordinates or corners, a power of two, all in the registers of the thread that owns the
point. The arithmetic of `find_simplex` is spelled out as fused multiply-adds, so every kernel that calls it finds the
same simplex.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops import reference
from permutohedral.ops.triton.kernel import cdiv, kernel, on_device, power_of_two, rows_contiguous

# Above it a tile of all pairs of coordinates does not fit the registers, and plain torch embeds the points: in the
# lattice and in the derivatives alike, so that they agree.
LARGEST_TILE_DIMENSION = 16


@triton.jit
def elevate(vectors, point, STRIDE: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    """Return E f, `[ROWS, BLOCK]`, for the rows `point` of `vectors [points, d]`; zero below row d."""
    row = tl.arange(0, ROWS)[:, None]
    base = vectors + point.to(tl.int64) * STRIDE
    elevated = tl.zeros([ROWS, point.shape[0]], vectors.dtype.element_ty)
    for j in tl.static_range(D):
        scale = tl.full([1, 1], (2.0 / 3.0) ** 0.5 * (D + 1) / ((j + 1) * (j + 2)) ** 0.5, elevated.dtype)
        factor = tl.where(row == j + 1, -(j + 1) * scale, scale)
        component = tl.load(base + j)[None, :]
        elevated = tl.where(row <= j + 1, tl.fma(factor, component, elevated), elevated)
    return elevated


@triton.jit
def lowest_cell(features, reach: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the coordinates of the first point divided by d+1, less `reach`: int32 `[ROWS, BLOCK]`, equal columns."""
    elevated = elevate(features, tl.zeros([BLOCK], tl.int32), 0, D, ROWS)
    quotient = elevated * tl.full([1, 1], 1.0 / (D + 1), elevated.dtype)
    # a first point without a key is reported later
    quotient = tl.where(tl.abs(quotient) < 2**30, quotient, 0.0)
    return quotient.to(tl.int32) - reach


@triton.jit
def find_simplex(features, point, STRIDE: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    """Find the simplex around the rows `point` of `features`.

    Returns three tiles: the origin's coordinates divided by d+1 (int32), the rank of each coordinate (int32), and
    delta = (y - origin) / (d+1); then int1 `[BLOCK]`, whether y is finite and inside the range of the keys.
    """
    row = tl.arange(0, ROWS)[:, None]
    elevated = elevate(features, point, STRIDE, D, ROWS)
    dtype: tl.constexpr = elevated.dtype
    # `key_limit` of contract.py
    limit: tl.constexpr = 2**30 if dtype == tl.float64 else 2**24
    valid = tl.min((tl.abs(elevated) < limit).to(tl.int32), axis=0) > 0

    inverse = tl.full([1, 1], 1.0 / (D + 1), dtype)
    quotient = elevated * inverse
    rounded = tl.floor(quotient)
    fraction = quotient - rounded
    odd = rounded - 2.0 * tl.floor(rounded * 0.5)
    # half to even
    rounded += ((fraction > 0.5) | ((fraction == 0.5) & (odd == 1.0))).to(dtype)
    rounded = tl.where(valid[None, :], rounded, 0.0)
    side = tl.full([1, 1], D + 1.0, dtype)
    difference = tl.where(row <= D, tl.fma(rounded, -side, elevated), float("-inf"))

    cell = rounded.to(tl.int32)
    excess = tl.sum(cell, axis=0)[None, :]
    # count the larger ones, and the equal ones before: each pair is compared once
    later = tl.arange(0, ROWS)[None, :, None] > tl.arange(0, ROWS)[:, None, None]
    larger = (later & (difference[None, :, :] > difference[:, None, :])).to(tl.int32)
    rank = row + tl.sum(larger, axis=1) - tl.sum(larger, axis=0) + excess
    # rounding may leave the plane: move the coordinates of extreme rank back by one cell
    moved = (rank < 0).to(tl.int32) - (rank > D).to(tl.int32)
    rank += moved * (D + 1)
    rank = tl.where(row <= D, rank, -1)
    cell += moved
    delta = tl.where(row <= D, tl.fma(cell.to(dtype), -side, elevated) * inverse, 0.0)
    return cell, rank, delta, valid


@triton.jit
def weights_from(delta, rank, D: tl.constexpr, ROWS: tl.constexpr):
    """Return b_j = delta_(d-j) - delta_(d-j+1), without the 1 of b_0; delta_(r) has rank r modulo d+1."""
    corner = tl.arange(0, ROWS)[:, None, None]
    gained = tl.sum(tl.where(rank[None, :, :] == D - corner, delta[None, :, :], 0.0), axis=1)
    after = tl.where(corner == 0, 0, D + 1 - corner)
    lost = tl.sum(tl.where(rank[None, :, :] == after, delta[None, :, :], 0.0), axis=1)
    return gained - lost


@kernel(sizes=["num_points", "gradient_stride", "gradient_column_stride"], options=["num_warps"])
def embed_gradient_kernel(
    features, gradient, output, num_points, gradient_stride, gradient_column_stride, STRIDE: tl.constexpr,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)[:, None]
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < num_points
    point = tl.minimum(point, num_points - 1)
    _, rank, _, _ = find_simplex(features, point, STRIDE, D, ROWS)
    # the coordinate of rank r adds to b_{d-r} and takes from b_{d+1-r}, indices modulo d+1
    rank = rank.to(tl.int64)
    base = gradient + point[None, :] * gradient_stride
    real = (row <= D) & inside[None, :]
    gained = tl.load(base + (D - rank) * gradient_column_stride, mask=real, other=0.0)
    lost = tl.load(base + tl.where(rank == 0, 0, D + 1 - rank) * gradient_column_stride, mask=real, other=0.0)
    difference = gained - lost
    for j in tl.static_range(D):
        # sqrt(2/3) / sqrt((j+1)(j+2)): the d+1 of E and of delta cancel
        scale = tl.full([1], (2.0 / 3.0) ** 0.5 / ((j + 1) * (j + 2)) ** 0.5, difference.dtype)
        share = tl.where(row <= j, difference, tl.where(row == j + 1, -(j + 1.0) * difference, 0.0))
        tl.store(output + point * D + j, scale * tl.sum(share, axis=0), mask=inside)


def tile_rows(dimension: int) -> int:
    return power_of_two(dimension + 1, 2)


@on_device
def embed_gradient(features: Tensor, barycentric_gradient: Tensor) -> Tensor:
    points, d = features.shape
    if d > LARGEST_TILE_DIMENSION:
        return reference.embed_gradient(features, barycentric_gradient)
    features = rows_contiguous(features)
    output = features.new_empty(points, d)
    if points:
        variant = embed_gradient_kernel[features.stride(0), d, tile_rows(d), 64, 2]
        sizes = points, *barycentric_gradient.stride()
        variant((cdiv(points, 64), 1, 1), (features, barycentric_gradient, output), sizes)
    return output
