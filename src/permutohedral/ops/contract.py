"""The contract of the backends: plain functions of tensors, without state.

`reference.py` is the readable definition, `native/` runs on the CPU and `triton/` on GPUs. Each is a module with
functions of exactly these names and signatures, which return the same results to rounding. They may assume arguments
that the public functions have validated (shapes, dtypes, devices). The tensors need not be contiguous.

Every backend has all of `Primitives`. It may have functions of `FusedFunctions`, each of which computes several
primitives in one call. A fused function returns `Declined` with a reason for a call that it does not support;
`composite.py` then composes the result of operators.

Words and axes
    points            samples, `features [points, dimension]`, `values [points, channels]`
    lattice_points    occupied vertices of the lattice, `[lattice_points, channels]`
    d                 the dimension of the features; a simplex of the lattice has d+1 vertices

Keys
    A vertex of the permutohedral lattice is an integer point of R^{d+1} whose coordinates sum to zero and are
    congruent modulo d+1. Its *key* is int32 `[1 + d]`: the batch item it belongs to (0 without a batch), then its first
    d coordinates; the last one follows from the zero sum. Two lattice points are equal if and only if their keys are
    equal, so items never mix.

Dtypes
    Features and barycentric weights are float32 or float64. Values may also be float16 or bfloat16: they are
    accumulated in float32 and rounded once, to their own dtype.

Three of the functions are the partial gradients of one trilinear form over all points i and corners j,
    T(values, lattice_values, barycentric) = sum_{i,j} barycentric[i,j] <values[i], lattice_values[vertices[i,j]]>:
`slice` with respect to values, `splat` to lattice_values, `barycentric_gradient` to barycentric. Likewise `convolve`
and `convolve_weight_gradient` for the form behind the convolution. The encoding is linear in its table and inside a
simplex, so `encode` and `encode_backward` also are each other's derivatives. Every derivative of any order is therefore
made of these same functions (`operators.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from permutohedral.errors import FeatureRangeError, InputError
from permutohedral.ops.simplices import Simplices

# added to a mass before a division: results stay zero where no point contributes, instead of 0 / 0
SMALLEST_MASS = 1e-20


@dataclass(frozen=True)
class Declined:
    """The answer of a fused function that does not support a call.

    Attributes:
        reason: a clause that completes "composed of operators, because ...", with the limit and the value passed.
    """

    reason: str


class Primitives(Protocol):
    """Functions that every backend has."""

    def index_points(self, features: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Find the simplex around each point, and number the vertices that occur.

        Args:
            features: float `[points, d]`, in standard deviations.
            batch: int32 `[points]`, the item of each point, not negative; None for one item.

        Returns:
            keys: int32 `[lattice_points, 1 + d]`, each occupied vertex once, in any order.
            vertices: int32 `[points, d + 1]`, the row of `keys` of corner j, whose coordinates are j modulo d+1.
            barycentric: like features `[points, d + 1]`, not negative; each row sums to one.
            table: int64 `[any]`, a lookup table of `keys` for this backend's `find_neighbors`; may be empty.

        Raises:
            FeatureRangeError: a feature is not finite, or a lattice coordinate exceeds `key_limit(features.dtype)`.
            InputError: an item is negative; only on GPUs, since items on the CPU are checked before.
        """
        ...

    def index_keys(self, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Assign numbers to the distinct rows of int32 `keys [rows, 1 + d]`.

        Returns:
            unique_keys: int32 `[lattice_points, 1 + d]`.
            inverse: int32 `[rows]`, the row of `unique_keys` that equals each row of `keys`.
            table: see `index_points`.
        """
        ...

    def find_neighbors(self, source_keys: Tensor, table: Tensor, target_keys: Tensor, offsets: Tensor) -> Tensor:
        """Look up the source lattice point at each tap of every target lattice point.

        Args:
            source_keys: int32 `[source_lattice_points, 1 + d]`, distinct rows.
            table: of `source_keys`, from the same backend; or an empty tensor.
            target_keys: int32 `[target_lattice_points, 1 + d]`; may be the very tensor `source_keys`.
            offsets: int32 `[filter_size, d]`, the first d coordinates of each tap's offset.

        Returns:
            int32 `[filter_size, target_lattice_points]`: the row of `source_keys` equal to
            `target_keys[v] + offsets[k]` within the same item, -1 where there is none.
        """
        ...

    def transpose_neighbors(self, neighbors: Tensor, opposite: Tensor, num_source: int) -> Tensor:
        """Transpose a table of `find_neighbors`: int32 `[filter_size, num_source]`.

        `result[opposite[k], neighbors[k, v]] = v`, -1 elsewhere: `find_neighbors(target_keys, ..., source_keys,
        offsets)`. The offset of the tap `opposite[k]` is the negative of that of tap k.
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

    def coarsen_lattice(
        self, keys: Tensor, table: Tensor, vertices: Tensor, barycentric: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the lattice of twice the step.

        Returns:
            coarse_keys: of the lattice points there.
            parents: int32 `[lattice_points, 2]`, the rows of `coarse_keys` of the parents of each lattice point.
            table: of `coarse_keys`.
            vertices, barycentric: the simplices of the points there.
        """
        ...

    def splat_largest(self, values: Tensor, vertices: Tensor, num_lattice_points: int) -> tuple[Tensor, Tensor]:
        """l_j = max_{i in C(j)} v_i, for each channel by itself; NaN is larger than any number.

        There may be any number of corners, and two of a point may be the same.

        Returns:
            largest: `[num_lattice_points, channels]`, zero where there are no points.
            winners: int32, of the same shape: the first point that has the largest value, -1 where there is none.
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
        """Blur with the separable Gaussian: l <- l + (l(. + e_j) + l(. - e_j)) / 2, for each of d+1 axes j.

        Intermediate results are of the accumulation dtype, and nothing is divided by the gain.

        Args:
            lattice_values: `[lattice_points, channels]`.
            axis_neighbors: int32 `[2 (d + 1), lattice_points]`; rows 2j and 2j+1 are the neighbors at +e_j and
                -e_j, -1 where missing.
            reverse: take the axes from d down to 0: the adjoint, since each pass is symmetric.
        """
        ...

    def embed_gradient(self, features: Tensor, barycentric_gradient: Tensor) -> Tensor:
        """J^T g, with J the Jacobian of the barycentric weights: `[points, d + 1]` to `[points, d]`.

        The weights are linear inside a simplex, so J depends on the simplex only; it must be the one that
        `index_points` of the same backend finds.
        """
        ...

    def filter_gaussian(
        self,
        values: Tensor,
        vertices: Tensor,
        barycentric: Tensor,
        axis_neighbors: Tensor,
        target_vertices: Tensor,
        target_barycentric: Tensor,
    ) -> Tensor:
        """Apply the normalized Gaussian: slice(blur(splat(values))) over slice(blur(splat(1))) + SMALLEST_MASS.

        It has no derivative. Numerator and denominator are divided by the gain of the blur. A target without sources
        becomes zero. `[points, channels]` to `[target points, channels]`.
        """
        ...

    def sum_neighbors(self, values: Tensor, features: Tensor, target_features: Tensor, reach: float) -> Tensor:
        """v'_k = sum_i exp(-|t_k - f_i|^2 / 2) v_i, by this definition and without a lattice.

        `[points, channels]` to `[target points, channels]`, of the dtype of the features, float32 or float64. Sources
        farther away than `reach` are left out.
        """
        ...

    def sum_window(self, values: Tensor, guide: Tensor, sigma_y: float, sigma_x: float, reach: float) -> Tensor:
        """Apply it to the pixels of images: f is (y / sigma_y, x / sigma_x) and the channels of the guide.

        Values are `[items, channels, height, width]`. The guide is in standard deviations. Pixels whose positions are
        farther away than `reach` are left out.
        """
        ...

    def encode(
        self, positions: Tensor, directions: Tensor | None, table: Tensor, transforms: Tensor, strides: Tensor
    ) -> Tensor:
        """Interpolate each level of a table of features: `[points, d]` to `[points, levels * channels]`.

        Level l places a point at z = A_l x + o_l in R^d. The lattice points are the integer points there. The corners
        of the simplex around z are c_0 = floor(z) and, along the axes in the order of the fractions of z from the
        largest to the smallest, c_k = c_{k-1} + e_axis. Lattice point c has the row (<c, strides> + base) mod 2^32
        mod table_size. A position that is not finite becomes NaN. Beyond |z| = 2^31 the weights are arbitrary, and the
        rows still lie in the table.

        Args:
            positions: float32 or float64 `[points, d]`.
            directions: like positions: replace the barycentric weights by their derivatives along them; or None.
            table: `[levels, table_size, channels]`; of 16 bits only with float32 positions.
            transforms: float `[levels, d, d + 1]`: A_l, and o_l as the last column; used in the dtype of positions.
            strides: int32 `[levels, d + 1]`: the strides, then the base.

        Returns:
            Of the dtype of the table; level by level.
        """
        ...

    def encode_backward(
        self,
        positions: Tensor,
        directions: Tensor | None,
        table: Tensor,
        gradient: Tensor,
        transforms: Tensor,
        strides: Tensor,
        for_positions: bool,
        for_table: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of <gradient, encode(...)>: with respect to positions, and to the table.

        That with respect to positions is the same with and without directions; given directions, it is also the
        gradient with respect to them. A gradient that is not wanted is a tensor of shape `[0]`.

        Args:
            gradient: `[points, levels * channels]`, of the dtype of the table.
            for_positions, for_table: which gradients are wanted.
        """
        ...


def key_limit(dtype: torch.dtype) -> int:
    """Return the largest magnitude of a lattice coordinate for features of `dtype`.

    float32 holds every integer up to 2^24 and not beyond; float64 is limited by the int32 keys, with
    room left for the offsets of any neighborhood.
    """
    return 2**30 if dtype == torch.float64 else 2**24


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of `dtype` are summed."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def blur_gain(dimension: int) -> float:
    """Return the value of d+1 blur passes of a unit impulse at its center: a = 1 + 2^{-d}.

    The impulse either stays, or returns after a step ahead, or back, along all d+1 axes, since sum_j e_j = 0.
    """
    return 1.0 + 2.0**-dimension


def transpose_weight(weight: Tensor, opposite: Tensor, groups: int) -> Tensor:
    """Return the filter of the adjoint: `[filter_size, in / groups, out]` to `[filter_size, out / groups, in]`."""
    filter_size, inputs, out_channels = weight.shape
    grouped = weight[opposite].reshape(filter_size, inputs, groups, out_channels // groups)
    return grouped.permute(0, 3, 2, 1).flatten(2)


def check_items(batch: Tensor, name: str = "batch") -> None:
    """Raise unless every item of `batch [points]` has a key; on a GPU the host waits for that."""
    if batch.numel() == 0:
        return
    low, high = torch.stack(torch.aminmax(batch)).tolist()
    if low < 0 or high >= 2**31:
        raise InputError(f"{name} must hold items from 0 to 2**31 - 1, got {low} to {high}")


def energies_error() -> InputError:
    """Return the error for energies whose sum is NaN."""
    return InputError("energies hold NaN, or infinities of both signs; repair them: every point would be NaN")


def range_error(features: Tensor, limit: int) -> FeatureRangeError:
    """Return the error for features without a key, which says what is wrong with them."""
    bad = ~torch.isfinite(features)
    if bool(bad.any()):
        row = int(bad.any(dim=1).nonzero()[0])
        return FeatureRangeError(
            f"features must be finite, but {int(bad.any(dim=1).sum())} of {features.shape[0]} points hold NaN or "
            f"infinity, the first at row {row}; remove or repair them (those of images are made of the guide and sigma)"
        )
    return FeatureRangeError(
        f"features reach {float(features.abs().max()):.3g}, whose lattice coordinates exceed {limit} and do not fit "
        f"a key in {features.dtype}; subtract the mean of the features, divide them by a larger bandwidth, or use "
        "float64"
    )


# plans of the fused functions


class FilterTables(NamedTuple):
    """The plan of a learned filter.

    Attributes:
        source, target: the simplices of the points that are splatted, and sliced.
        neighbors: see `find_neighbors`.
        reverse_neighbors: the table from source to target; None to transpose `neighbors`.
        opposite: int64 `[filter_size]`, the tap at the negative offset of each tap.
        groups: number of groups of channels.
        by_density: divide each lattice point by its splatted weight before the convolution.
    """

    source: Simplices
    target: Simplices
    neighbors: Tensor
    reverse_neighbors: Tensor | None
    opposite: Tensor
    groups: int
    by_density: bool


class PairwiseTables(NamedTuple):
    """A kernel of a mean field over `points`.

    It adds to the logits of the marginals Q

        factor * m^-target_power * slice(blur(splat(m^-source_power * Q)) @ costs),

    where m is the mass of each point, slice(blur(splat(1))) + SMALLEST_MASS.

    Attributes:
        vertices, barycentric: the corners of the points, `[points, d + 1]`.
        axis_neighbors: see `blur`.
        source_power, target_power: both 0, both 1/2, or one of them 1 and the other 0.
        costs: `[labels, labels]`; None for the identity.
        factor: a number, or a tensor of one element that is differentiated.
        both_ways: use the mean of `blur` and its reverse, which is symmetric.
    """

    vertices: Tensor
    barycentric: Tensor
    axis_neighbors: Tensor
    source_power: float
    target_power: float
    costs: Tensor | None
    factor: float | Tensor
    both_ways: bool


class ItemRows(NamedTuple):
    """The rows of each item of a ragged batch.

    Attributes:
        order: int32 `[rows]`, rows sorted by item; None if they are sorted already.
        starts: int32 `[items + 1]`, the place in `order` where each item starts, then the number of rows.
        items: number of items, at least one.
    """

    order: Tensor | None
    starts: Tensor
    items: int


class ItemsNorm(NamedTuple):
    """The plan of a group normalization of the rows of each item.

    Attributes:
        rows: of the items.
        groups: number of groups of channels; those of one group are normalized together.
        eps: added to the variance.
        relu: apply a ReLU to the result.
    """

    rows: ItemRows
    groups: int
    eps: float
    relu: bool


class ColorGridTables(NamedTuple):
    """The plan of the Gaussian over position and color on a grid (`filters/color_grid.py`).

    Attributes:
        sigma: standard deviations over y and x, in pixels.
        cells: pixels between the nodes over positions, along y and x.
        blur_reach: reach of the blur between these nodes, in its standard deviations.
        directions: `[axes, guide channels]`, from a color to its place along each axis of colors, in nodes.
        origin: `[axes]`, subtracted from that place.
        color_blur: weights of a node itself and of a neighbor along each axis in the blur over colors.
    """

    sigma: tuple[float, float]
    cells: tuple[int, int]
    blur_reach: float
    directions: list[list[float]]
    origin: list[float]
    color_blur: tuple[float, float]


class FusedFunctions(Primitives, Protocol):
    """Functions that a backend may have: several primitives in one call.

    Each returns `Declined` for a call that it does not support. The function `f_backward` is the derivative of `f`,
    which then returns its result and the tensors to save. Its arguments are the gradient of the result, the tensors
    that `f` was called with, the saved tensors, which gradients are needed, and the plan of `f`. It returns the
    gradients with respect to the tensors, None where they are not needed.
    """

    def picture_features(
        self,
        guide: Tensor,
        sigma_space: Sequence[float],
        sigma_color: Sequence[float],
        origin: Sequence[int],
        shift: float,
    ) -> Tensor | Declined:
        """Return position and color of every pixel or voxel in standard deviations, plus `shift`.

        Args:
            guide: float `[..., channels, *space]`.
            sigma_space, sigma_color: one for each axis of space, and one for each channel.
            origin: the position of the first sample.
            shift: added to all features.

        Returns:
            `[..., samples, axes + channels]` in the accumulation dtype: positions, then channels.
        """
        ...

    def index_with_neighbors(
        self, features: Tensor, batch: Tensor | None, offsets: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | Declined:
        """`index_points`, followed by `find_neighbors` of its lattice points at these `offsets`."""
        ...

    def index_points_bounded(
        self, features: Tensor, batch: Tensor | None, rows: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """`index_points` with a fixed number of rows of keys, without waiting for the device.

        Returns:
            The results of `index_points`, with -1 in rows without a lattice point and the last row in place of any
            vertex beyond it; and int64 `[1]`, the number of lattice points, above 2^40 for features without a key.
        """
        ...

    def coarsen_keys_bounded(self, keys: Tensor, table: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the first three results of `coarsen_lattice` with a fixed number of rows, without waiting.

        Args:
            keys, table: of `index_points_bounded` or of this function.
            rows: number of rows of the coarse keys.

        Returns:
            As `index_points_bounded`; parents beyond the last row, and those of rows without a lattice point, are at
            least `rows`.
        """
        ...

    def filter_points(self, values: Tensor, features: Tensor, batch: Tensor | None) -> Tensor | Declined:
        """`filter_gaussian` from the features of the points, at least one, which are sources and targets.

        Declines features that `index_points` rejects.
        """
        ...

    def sum_color_grid(self, values: Tensor, guide: Tensor, tables: ColorGridTables) -> Tensor | Declined:
        """Sum over all pixels around each pixel, weighted by the Gaussian over position and color.

        Values are `[items, channels, height, width]`, not empty. The result has one more channel, the mass.
        """
        ...

    def filter_learned(
        self, values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables
    ) -> tuple[Tensor, Saved] | Declined:
        """Splat, divide by the density, convolve, slice, add the bias.

        Args:
            values: `[points, in_channels]`, at least one point and one channel.
            weight: `[filter_size, in_channels / groups, out_channels]`, of the dtype of values.
            bias: `[out_channels]`, of the same dtype, or None.
            tables: of the lattice.
        """
        ...

    def filter_learned_backward(
        self, gradient: Tensor, inputs: Saved, saved: Saved, needed: Needed, tables: FilterTables
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients with respect to values, weight and bias; at least one is needed."""
        ...

    def mean_field(
        self,
        energies: Tensor,
        start: Tensor | None,
        kernels: Sequence[PairwiseTables],
        steps: int,
        as_logits: bool,
    ) -> tuple[Tensor, Saved] | Declined:
        """Return the marginals softmax(-energies + the sum of all kernels), replaced `steps` times.

        Args:
            energies: `[items, labels, points]`, of any floating dtype; the result has that of the barycentric weights.
            start: the first marginals, like energies; None for softmax(-energies), and always None without a step.
            kernels: over `items * points` points, those of the first item first.
            steps: number of iterations.
            as_logits: return logits of the marginals, which have a derivative; then there is a step and a point.
                They may differ by a constant for all labels of a point.

        Raises:
            InputError: the sum of the energies is NaN; only on the CPU.
        """
        ...

    def mean_field_backward(
        self,
        gradient: Tensor,
        inputs: Saved,
        saved: Saved,
        needed: Needed,
        kernels: Sequence[PairwiseTables],
        steps: int,
        as_logits: bool,
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients with respect to energies, start (None without one), and one tensor of each kernel.

        That is its costs or, for a kernel without costs, its factor, `[1, 1]`. The gradient of the logits of a point
        sums to zero.
        """
        ...

    def normalize_items(
        self, values: Tensor, weight: Tensor, bias: Tensor, norm: ItemsNorm
    ) -> tuple[Tensor, Saved] | Declined:
        """Normalize groups of channels of `values [rows, channels]` in each item; then apply weight and bias."""
        ...

    def normalize_items_backward(
        self, gradient: Tensor, inputs: Saved, saved: Saved, needed: Needed, norm: ItemsNorm
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients with respect to values, weight and bias."""
        ...

    def slice_planes(self, lattice_values: Tensor, vertices: Tensor, barycentric: Tensor) -> Tensor | Declined:
        """Slice to `[channels, points]`, for few rows of many channels and any number of corners."""
        ...


# tensors, or None, that a fused function was called with or has saved for its derivative
Saved = tuple[Any, ...]
# for each tensor, whether its gradient is needed
Needed = tuple[bool, ...]
