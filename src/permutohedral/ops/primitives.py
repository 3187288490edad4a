"""The contract every backend fulfills: pure functions on tensors, no state.

`reference.py` is the readable definition, `native/` runs on the CPU and `triton/` on GPUs. They hold
functions with exactly these names and signatures, give the same results to rounding, and may
assume inputs that `functional` or `lattice` has validated (shapes, dtypes, devices; the tensors need
not be contiguous).

Words and axes
    points            samples, `features [points, dimension]`, `values [points, channels]`
    lattice_points    occupied vertices of the lattice, `[lattice_points, channels]`
    d                 the dimension of the features; a simplex of the lattice has d+1 vertices

Keys
    A vertex of the permutohedral lattice is an integer point of R^{d+1} whose coordinates sum to
    zero and are congruent modulo d+1. Its *key* is int32 `[1 + d]`: the batch item it belongs to (0
    where there is no batch), then its first d coordinates; the last follows from the zero sum. Two
    lattice points are the same if and only if their keys are equal, so items never mix.

Dtypes
    Features and barycentric weights are float32 or float64. Values may also be float16 or bfloat16:
    they are then accumulated in float32 and rounded once, into their own dtype.

Three of the functions are the partial gradients of one trilinear form over all points i and corners j,
    T(values, lattice_values, barycentric) = sum_{i,j} barycentric[i,j] <values[i], lattice_values[vertices[i,j]]>:
`slice` with respect to values, `splat` to lattice_values, `barycentric_gradient` to barycentric. Likewise
`convolve` and `convolve_weight_gradient` for the form behind the convolution. Every derivative of any
order is therefore made of these same functions (`operators.py`).
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from permutohedral.errors import FeatureRangeError, InputError

# added to a mass that is divided by: what no point reaches stays zero instead of 0 / 0
SMALLEST_MASS = 1e-20


class Primitives(Protocol):
    """What a backend module provides."""

    def index_points(self, features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Find the simplex that encloses each point, and number the vertices that occur.

        Args:
            features: float `[points, d]`, one unit is one standard deviation of the Gaussian.
            batch: int32 `[points]`, the item each point belongs to, not negative; None for one item.

        Returns:
            keys: int32 `[lattice_points, 1 + d]`, each occupied vertex once. The order is the backend's,
                the same from run to run where the backend is deterministic.
            vertices: int32 `[points, d + 1]`, the row of `keys` of corner j (the vertex whose coordinates
                are congruent to j modulo d+1).
            barycentric: like features `[points, d + 1]`, b_{i,j}: not negative, sums to one.
            table: int64 `[any]`, what this backend's `find_neighbors` wants to keep about `keys` (may be empty).

        Raises:
            FeatureRangeError: a feature is NaN or infinite, or a lattice coordinate exceeds
                `key_limit(features.dtype)` in magnitude. Never wraps.
            InputError: an item is negative; asked of what runs on GPUs alone, since others are checked before.
        """
        ...

    def index_keys(self, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Number the distinct rows of `keys`.

        Args:
            keys: int32 `[rows, 1 + d]`, with repetitions.

        Returns:
            unique_keys: int32 `[lattice_points, 1 + d]`.
            inverse: int32 `[rows]`, the row of `unique_keys` that equals each row of `keys`.
            table: see `index_points`.
        """
        ...

    def find_neighbors(self, source_keys: Tensor, table: Tensor, target_keys: Tensor, offsets: Tensor) -> Tensor:
        """Look up, for every target lattice point and tap, the source lattice point there: exactly.

        Args:
            source_keys: int32 `[source_lattice_points, 1 + d]`, distinct rows.
            table: what `index_points` or `index_keys` of the same backend returned with `source_keys`, or an
                empty tensor.
            target_keys: int32 `[target_lattice_points, 1 + d]`; may be the very tensor `source_keys`.
            offsets: int32 `[filter_size, d]`, the first d coordinates of each tap's offset.

        Returns:
            int32 `[filter_size, target_lattice_points]`: the row of `source_keys` equal to
            `target_keys[v] + offsets[k]` within the same item, -1 where there is none.
        """
        ...

    def transpose_neighbors(self, neighbors: Tensor, opposite: Tensor, num_source: int) -> Tensor:
        """Turn the table source <- target around: for every source lattice point and tap, the target there.

        Args:
            neighbors: int32 `[filter_size, target_lattice_points]` of `find_neighbors`.
            opposite: int64 `[filter_size]`, the tap whose offset is the negative of each tap's.
            num_source: number of source lattice points.

        Returns:
            int32 `[filter_size, num_source]`: `result[opposite[k], neighbors[k, v]] = v`, -1 elsewhere; what
            `find_neighbors(target_keys, ..., source_keys, offsets)` would return.
        """
        ...

    def splat(self, values: Tensor, vertices: Tensor, barycentric: Tensor, num_lattice_points: int) -> Tensor:
        """l_j = sum_{i in C(j)} b_{i,j} v_i: `[points, channels]` to `[num_lattice_points, channels]`."""
        ...

    def slice(self, lattice_values: Tensor, vertices: Tensor, barycentric: Tensor) -> Tensor:
        """v'_k = sum_{j in C(k)} b_{k,j} l'_j: `[lattice_points, channels]` to `[points, channels]`."""
        ...

    def barycentric_gradient(self, values: Tensor, lattice_values: Tensor, vertices: Tensor) -> Tensor:
        """g_{i,j} = <v_i, l_{vertices[i,j]}>: float `[points, d + 1]`, float32 where values are of 16 bits."""
        ...

    def splat_largest(self, values: Tensor, vertices: Tensor, num_lattice_points: int) -> tuple[Tensor, Tensor]:
        """l_j = max_{i in C(j)} v_i, for each channel by itself; NaN is larger than any number.

        Args:
            values: `[points, channels]`.
            vertices: int32 `[points, corners]`, any number of corners, of which two may be the same.
            num_lattice_points: how many rows the result has.

        Returns:
            largest: `[num_lattice_points, channels]`, zero where there are no points.
            winners: int32, of the same shape: the first point that has the largest value, -1 where there is none.
        """
        ...

    def largest_gradient(self, gradient: Tensor, winners: Tensor, vertices: Tensor) -> Tensor:
        """g_{i,c} = sum of gradient_{j,c} over the j in `vertices[i]`, each once, with winners_{j,c} = i.

        `[lattice_points, channels]` to `[points, channels]`.
        """
        ...

    def convolve(self, lattice_values: Tensor, weight: Tensor, neighbors: Tensor, groups: int) -> Tensor:
        """l'_v = sum_k w_k l_{neighbors[k, v]}, a missing neighbor reading as zero.

        Args:
            lattice_values: `[source_lattice_points, in_channels]`.
            weight: `[filter_size, in_channels / groups, out_channels]`, of the dtype of lattice_values; group g
                maps the g-th block of input channels to the g-th block of output channels.
            neighbors: int32 `[filter_size, target_lattice_points]`, -1 where missing.
            groups: divides in_channels and out_channels.

        Returns:
            `[target_lattice_points, out_channels]`, of the dtype of lattice_values.
        """
        ...

    def convolve_weight_gradient(
        self, lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int
    ) -> Tensor:
        """sum_v l_{neighbors[k, v]} (x) output_gradient[v]: `[filter_size, in_channels / groups, out_channels]`."""
        ...

    def blur(self, lattice_values: Tensor, axis_neighbors: Tensor, reverse: bool) -> Tensor:
        """The separable Gaussian: l <- l + (l(. + e_j) + l(. - e_j)) / 2, for the d+1 axes j one after another.

        Args:
            lattice_values: `[lattice_points, channels]`.
            axis_neighbors: int32 `[2 (d + 1), lattice_points]`; rows 2j and 2j+1 are the neighbors at +e_j and
                -e_j, -1 where missing.
            reverse: take the axes from d down to 0: the adjoint, since each pass is symmetric.

        Returns:
            `[lattice_points, channels]`, not divided by anything; intermediate results are of the accumulation
            dtype (float32 for values of 16 bits).
        """
        ...

    def embed_gradient(self, features: Tensor, barycentric_gradient: Tensor) -> Tensor:
        """J^T g, with J the Jacobian of the barycentric weights: `[points, d + 1]` to `[points, d]`.

        The weights are linear inside a simplex, so J depends on the simplex only; it must be the one that
        `index_points` of the same backend finds.
        """
        ...

    def embed_differential(self, features: Tensor, differential: Tensor) -> Tensor:
        """J f', the transpose of `embed_gradient`: `[points, d]` to `[points, d + 1]`."""
        ...

    def filter_gaussian(
        self,
        values: Tensor,
        vertices: Tensor,
        barycentric: Tensor,
        axis_neighbors: Tensor,
        target_vertices: Tensor,
        target_barycentric: Tensor,
        smallest_mass: float,
    ) -> Tensor:
        """The normalized Gaussian: slice(blur(splat(values))) over slice(blur(splat(1))) + smallest_mass.

        Several primitives in one, for when no derivative is wanted. Numerator and denominator are divided by the
        gain of the blur. Values of 16 bits are rounded once, at the end.

        Args:
            values: `[points, channels]`.
            vertices, barycentric: the corners of the points, `[points, d + 1]`.
            axis_neighbors: see `blur`.
            target_vertices, target_barycentric: the corners of the target points, `[target points, d + 1]`.
            smallest_mass: keeps a target that no source reaches at zero.

        Returns:
            `[target points, channels]`.
        """
        ...

    def sum_neighbors(self, values: Tensor, features: Tensor, target_features: Tensor, reach: float) -> Tensor:
        """v'_k = sum_i exp(-|t_k - f_i|^2 / 2) v_i, by this definition and without a lattice.

        Args:
            values: float32 or float64 `[points, channels]`, of the dtype of the features.
            features: `[points, d]`, f.
            target_features: `[target points, d]`, t.
            reach: sources farther away than this are left out.

        Returns:
            `[target points, channels]`.
        """
        ...

    def sum_window(self, values: Tensor, guide: Tensor, sigma_y: float, sigma_x: float, reach: float) -> Tensor:
        """The same over the pixels of pictures: f is (y / sigma_y, x / sigma_x) and the channels of the guide.

        Args:
            values: float32 or float64 `[items, channels, height, width]`, of the dtype of the guide.
            guide: `[items, guide channels, height, width]`, in standard deviations.
            sigma_y, sigma_x: standard deviations over positions, in pixels.
            reach: pixels whose positions are farther away than this, in standard deviations, are left out; those
                of any color within it are not.

        Returns:
            Like values.
        """
        ...


def key_limit(dtype: torch.dtype) -> int:
    """Largest magnitude of a lattice coordinate for features of `dtype`.

    float32 holds every integer up to 2^24 and not beyond; float64 is limited by the int32 keys, with
    room left for the offsets of any neighborhood.
    """
    return 2**30 if dtype == torch.float64 else 2**24


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of `dtype` are summed."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def parent_keys(keys: Tensor) -> Tensor:
    """The keys of both parents of every vertex: `[lattice_points, 1 + d]` to `[lattice_points, 2, 1 + d]`.

    With x = sum_j n_j e_j, n_j - n_0 = (x_j - x_0) / (d+1); where that is odd, j belongs to S, and the parents are
    (x + e_S) / 2 and (x - e_S) / 2.

    >>> parent_keys(torch.tensor([[0, 2, -4], [0, 1, 1]], dtype=torch.int32)).tolist()
    [[[0, 1, -2], [0, 1, -2]], [[0, 1, 1], [0, 0, 0]]]
    """
    first, corners = keys[:, 1:], keys.shape[1]
    last = -first.sum(dim=1, keepdim=True, dtype=keys.dtype)
    # x_j - x_0 is a multiple of d+1, so that the quotient is exact
    odd = (torch.cat([first, last], dim=1) - first[:, :1]).div(corners, rounding_mode="trunc") & 1
    step = corners * odd[:, :-1] - odd.sum(dim=1, keepdim=True, dtype=keys.dtype)
    items = keys[:, :1]
    ends = [torch.cat([items, (first + sign * step) >> 1], dim=1) for sign in (-1, 1)]
    return torch.stack(ends, dim=1)


def window_extents(sigma_y: float, sigma_x: float, reach: float, height: int, width: int) -> list[int]:
    """How far the window of `sum_window` extends along x at each distance in y, from 0 on; never beyond the picture.

    >>> window_extents(1.0, 1.0, 2.5, height=10, width=10)
    [2, 2, 1]
    """
    # infinity is no integer
    rows = range(int(min(reach * sigma_y, height - 1)) + 1)
    left = (math.sqrt(max(0.0, reach * reach - (y / sigma_y) * (y / sigma_y))) for y in rows)
    return [int(min(extent * sigma_x, width - 1)) for extent in left]


def transpose_weight(weight: Tensor, opposite: Tensor, groups: int) -> Tensor:
    """The filter of the adjoint: `[filter_size, in / groups, out]` to `[filter_size, out / groups, in]`."""
    filter_size, inputs, out_channels = weight.shape
    grouped = weight[opposite].reshape(filter_size, inputs, groups, out_channels // groups)
    return grouped.permute(0, 3, 2, 1).flatten(2)


def check_items(batch: Tensor, name: str = "batch") -> None:
    """Raise unless every item of `batch [points]` has a key; on a GPU the host waits for that.

    >>> check_items(torch.tensor([0, 2, 2]))
    """
    if batch.numel() == 0:
        return
    low, high = torch.stack(torch.aminmax(batch)).tolist()
    if low < 0 or high >= 2**31:
        raise InputError(f"{name} must hold items from 0 to 2**31 - 1, got {low} to {high}")


def energies_error() -> InputError:
    """The error for energies whose sum is NaN."""
    return InputError("energies hold NaN, or infinities of both signs; repair them: every point would be NaN")


def range_error(features: Tensor, limit: int) -> FeatureRangeError:
    """The error for features that have no key, told apart by what is wrong with them."""
    bad = ~torch.isfinite(features)
    if bool(bad.any()):
        row = int(bad.any(dim=1).nonzero()[0])
        return FeatureRangeError(
            f"features must be finite, but {int(bad.any(dim=1).sum())} of {features.shape[0]} points hold NaN or "
            f"infinity, the first at row {row}; remove or repair them before building the lattice"
        )
    return FeatureRangeError(
        f"features reach {float(features.abs().max()):.3g}, whose lattice coordinates exceed {limit} and do not fit "
        f"a key in {features.dtype}; subtract the mean of the features, divide them by a larger bandwidth, or use "
        "float64"
    )
