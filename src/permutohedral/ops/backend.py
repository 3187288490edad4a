"""The backends: one class of functions of tensors.

`reference.py` is the readable definition of the primitives, `native/` runs on the CPU and `triton/` on GPUs. All return
the same results to rounding. Functions may assume arguments that the public functions have validated (shapes, dtypes,
devices). The tensors need not be contiguous. A function of a backend is called without autocast; it does not ask
whether it is traced or whether a gradient is wanted (`binding.py`).

A backend defines all primitives. A fused function computes several primitives in one call; its body here is its
definition. A backend overrides it, and calls `decline` for what its kernels do not support.

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

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor

from permutohedral.errors import BackendUnavailable
from permutohedral.ops.constants import axis_offsets, axis_opposite
from permutohedral.ops.contract import (
    SMALLEST_MASS,
    ColorGridTables,
    FieldPlan,
    FilterTables,
    Needed,
    Saved,
    accumulation_dtype,
    blur_gain,
)
from permutohedral.ops.items import ItemsNorm, normalize_items
from permutohedral.ops.mean_field import mean_field
from permutohedral.ops.pictures import divide_channels, place_samples
from permutohedral.ops.smoothness import AxisNeighbors, SmoothEquations, solve_smooth

Result = TypeVar("Result")

# lines of the report of `explain_call`, while it runs
decisions: ContextVar[list[str] | None] = ContextVar("permutohedral_decisions", default=None)


class Backend(ABC):
    """Functions of tensors, without state.

    Attributes:
        name: the argument of `permutohedral.backends.use`; empty in traced calls, whose backend is not known.
        has_color_grid: whether there is `sum_color_grid`.
        has_bounded: whether there are `index_points_bounded` and `coarsen_keys_bounded`.
    """

    name: str = ""
    has_color_grid: bool = False
    has_bounded: bool = False

    def decline(self, reason: str, definition: Callable[..., Result], *arguments: Any) -> Result:
        """Run the definition of a fused function, and report why to `explain_call`.

        Args:
            reason: a clause that completes "composed of primitives, because ...", with the limit and the value passed.
            definition: the function of the base class.
            arguments: of the function.
        """
        report_declined(definition.__name__, reason)
        return definition(*arguments)

    # primitives

    @abstractmethod
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

    @abstractmethod
    def index_keys(self, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Assign numbers to the distinct rows of int32 `keys [rows, 1 + d]`.

        Returns:
            unique_keys: int32 `[lattice_points, 1 + d]`.
            inverse: int32 `[rows]`, the row of `unique_keys` that equals each row of `keys`.
            table: see `index_points`.
        """

    @abstractmethod
    def find_neighbors(
        self,
        source_keys: Tensor,
        table: Tensor,
        target_keys: Tensor,
        offsets: Tensor,
        opposite: Tensor | None = None,
    ) -> Tensor:
        """Look up the source lattice point at each tap of every target lattice point.

        Args:
            source_keys: int32 `[source_lattice_points, 1 + d]`, distinct rows.
            table: of `source_keys`, from the same backend; or an empty tensor.
            target_keys: int32 `[target_lattice_points, 1 + d]`.
            offsets: int32 `[filter_size, d]`, the first d coordinates of each tap's offset.
            opposite: int64 `[filter_size]`, the tap at the negative offset of each tap; only where the targets are the
                sources. Then two opposite taps may be looked up as one. None to look up each tap.

        Returns:
            int32 `[filter_size, target_lattice_points]`: the row of `source_keys` equal to
            `target_keys[v] + offsets[k]` within the same item, -1 where there is none.
        """

    @abstractmethod
    def transpose_neighbors(self, neighbors: Tensor, opposite: Tensor, num_source: int) -> Tensor:
        """Transpose a table of `find_neighbors`: int32 `[filter_size, num_source]`.

        `result[opposite[k], neighbors[k, v]] = v`, -1 elsewhere: `find_neighbors(target_keys, ..., source_keys,
        offsets)`. The offset of the tap `opposite[k]` is the negative of that of tap k.
        """

    @abstractmethod
    def splat(self, values: Tensor, vertices: Tensor, barycentric: Tensor, num_lattice_points: int) -> Tensor:
        """l_j = sum_{i in C(j)} b_{i,j} v_i: `[points, channels]` to `[num_lattice_points, channels]`."""

    @abstractmethod
    def slice(self, lattice_values: Tensor, vertices: Tensor, barycentric: Tensor) -> Tensor:
        """v'_k = sum_{j in C(k)} b_{k,j} l'_j: `[lattice_points, channels]` to `[points, channels]`."""

    @abstractmethod
    def barycentric_gradient(self, values: Tensor, lattice_values: Tensor, vertices: Tensor) -> Tensor:
        """g_{i,j} = <v_i, l_{vertices[i,j]}>: float `[points, d + 1]`, float32 where values are of 16 bits."""

    @abstractmethod
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

    @abstractmethod
    def find_largest(self, values: Tensor, vertices: Tensor, num_lattice_points: int) -> Tensor:
        """Find the points with the largest values, for each channel by itself; NaN is larger than any number.

        There may be any number of corners, and two of a point may be the same.

        Returns:
            int32 `[num_lattice_points, channels]`, the first point of C(j) that has the largest value, -1 where there
            are no points.
        """

    @abstractmethod
    def convolve(
        self, lattice_values: Tensor, weight: Tensor, neighbors: Tensor, groups: int, *reverse: Tensor | None
    ) -> Tensor:
        """l'_v = sum_k w_k l_{neighbors[k, v]}, a missing neighbor reading as zero.

        Args:
            lattice_values: `[source_lattice_points, in_channels]`.
            weight: `[filter_size, in_channels / groups, out_channels]`, of the dtype of lattice_values; group g
                maps the g-th block of input channels to the g-th block of output channels.
            neighbors: int32 `[filter_size, target_lattice_points]`, -1 where missing.
            groups: divides in_channels and out_channels.
            reverse: for the derivative alone: the table from source to target, None to transpose `neighbors`; and int64
                `[filter_size]`, the tap at the negative offset of each tap.

        Returns:
            `[target_lattice_points, out_channels]`, of the dtype of lattice_values.
        """

    @abstractmethod
    def convolve_weight_gradient(
        self, lattice_values: Tensor, output_gradient: Tensor, neighbors: Tensor, groups: int, *reverse: Tensor | None
    ) -> Tensor:
        """sum_v l_{neighbors[k, v]} (x) output_gradient[v]: `[filter_size, in_channels / groups, out_channels]`.

        The tables are those of `convolve`.
        """

    @abstractmethod
    def blur(self, lattice_values: Tensor, axis_neighbors: Tensor, reverse: bool) -> Tensor:
        """Blur with the separable Gaussian: l <- l + (l(. + e_j) + l(. - e_j)) / 2, for each of d+1 axes j.

        Intermediate results are of the accumulation dtype, and nothing is divided by the gain.

        Args:
            lattice_values: `[lattice_points, channels]`.
            axis_neighbors: int32 `[2 (d + 1), lattice_points]`; rows 2j and 2j+1 are the neighbors at +e_j and
                -e_j, -1 where missing.
            reverse: take the axes from d down to 0: the adjoint, since each pass is symmetric.
        """

    @abstractmethod
    def embed_gradient(self, features: Tensor, barycentric_gradient: Tensor) -> Tensor:
        """J^T g, with J the Jacobian of the barycentric weights: `[points, d + 1]` to `[points, d]`.

        The weights are linear inside a simplex, so J depends on the simplex only; it must be the one that
        `index_points` of the same backend finds.
        """

    @abstractmethod
    def sum_neighbors(self, values: Tensor, features: Tensor, target_features: Tensor, reach: float) -> Tensor:
        """v'_k = sum_i exp(-|t_k - f_i|^2 / 2) v_i, by this definition and without a lattice.

        `[points, channels]` to `[target points, channels]`, of the dtype of the features, float32 or float64. Sources
        farther away than `reach` are left out.
        """

    @abstractmethod
    def sum_window(self, values: Tensor, guide: Tensor, sigma_y: float, sigma_x: float, reach: float) -> Tensor:
        """Apply it to the pixels of images: f is (y / sigma_y, x / sigma_x) and the channels of the guide.

        Values are `[items, channels, height, width]`. The guide is in standard deviations. Pixels whose positions are
        farther away than `reach` are left out.
        """

    @abstractmethod
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

    @abstractmethod
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

    # fused functions

    def picture_features(
        self,
        guide: Tensor,
        sigma_space: Sequence[float | Tensor],
        sigma_color: Sequence[float] | Tensor,
        origin: Sequence[int],
        shift: float,
    ) -> Tensor:
        """Return position and color of every pixel or voxel in standard deviations, plus `shift`.

        Args:
            guide: float `[..., channels, *space]`.
            sigma_space, sigma_color: one for each axis of space, and one for each channel.
            origin: the position of the first sample.
            shift: added to all features.

        Returns:
            `[..., samples, axes + channels]` in the accumulation dtype: positions, then channels.
        """
        wide, axes = guide.to(accumulation_dtype(guide.dtype)), len(origin)
        items, space = wide.shape[: -axes - 1], wide.shape[-axes:]
        places = place_samples(space, sigma_space, origin, wide.device, wide.dtype)
        colors = divide_channels(wide.movedim(-axes - 1, -1), sigma_color)
        features = torch.cat([*(place.expand(*items, *space, 1) for place in places), colors], dim=-1)
        return (features + shift).flatten(-axes - 1, -2)

    def splat_largest(self, values: Tensor, vertices: Tensor, num_lattice_points: int) -> Tensor:
        """l_j = max_{i in C(j)} v_i for each channel, zero where there are no points; see `find_largest`.

        The gradient goes to the first point that has the largest value.
        """
        winners = self.find_largest(values, vertices, num_lattice_points)
        if values.shape[0] == 0:
            return values.new_zeros(winners.shape)
        # gradients of 16 bits are summed in 32
        wide = values.to(accumulation_dtype(values.dtype))
        return torch.where(winners >= 0, wide.gather(0, winners.clamp_min(0).long()), 0).to(values.dtype)

    def index_with_neighbors(
        self,
        features: Tensor,
        batch: Tensor | None,
        offsets: Tensor,
        opposite: Tensor,
        check: Callable[[int], None],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """`index_points`, followed by `find_neighbors` of its lattice points at these `offsets`.

        Args:
            features, batch: see `index_points`.
            offsets, opposite: see `find_neighbors`.
            check: raises if the neighbors of this number of lattice points do not fit the memory; called where the
                number is known before they are found.
        """
        keys, vertices, barycentric, table = self.index_points(features, batch)
        check(keys.shape[0])
        return keys, vertices, barycentric, table, self.find_neighbors(keys, table, keys, offsets, opposite)

    def filter_points(
        self, values: Tensor, features: Tensor, batch: Tensor | None, check: Callable[[int], None]
    ) -> Tensor:
        """`filter_gaussian` from the features of the points, at least one, which are sources and targets.

        For `check` see `index_with_neighbors`; it is called before the values are filtered.
        """
        along = features.shape[1], features.device
        taps = axis_offsets(*along), axis_opposite(*along)
        _, vertices, barycentric, _, neighbors = self.index_with_neighbors(features, batch, *taps, check)
        return self.filter_gaussian(values, vertices, barycentric, neighbors, vertices, barycentric)

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

        Numerator and denominator are divided by the gain of the blur. A target without sources becomes zero.
        `[points, channels]` to `[target points, channels]`.
        """
        # the mass is one more channel
        widened = torch.cat([values.to(barycentric.dtype), barycentric.new_ones(values.shape[0], 1)], dim=1)
        splatted = self.splat(widened, vertices, barycentric, axis_neighbors.shape[1])
        blurred = self.blur(splatted, axis_neighbors, False) / blur_gain(vertices.shape[1] - 1)
        filtered = self.slice(blurred, target_vertices, target_barycentric)
        return (filtered[:, :-1] / (filtered[:, -1:] + SMALLEST_MASS)).to(values.dtype)

    def filter_learned(
        self, values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables
    ) -> tuple[Tensor, Saved | None]:
        """Splat, divide by the density, convolve, slice, add the bias.

        Args:
            values: `[points, in_channels]`, at least one point and one channel.
            weight: `[filter_size, in_channels / groups, out_channels]`, of the dtype of values.
            bias: `[out_channels]`, of the same dtype, or None.
            tables: of the lattice.
        """
        source, target, neighbors, groups, reverse, opposite, by_density = tables
        corners = source.vertices, source.barycentric, source.num_lattice_points
        if by_density:
            density = self.splat(source.barycentric.new_ones(source.num_points, 1), *corners)
            # values of 16 bits are rounded once they are means
            sums = self.splat(values.to(accumulation_dtype(values.dtype)), *corners)
            # the density is zero at halo points, and at vertices that points touch with weight zero
            lattice_values = (sums / torch.where(density > 0, density, 1.0)).to(values.dtype)
        else:
            lattice_values = self.splat(values, *corners)
        convolved = self.convolve(lattice_values, weight, neighbors, groups, reverse, opposite)
        output = self.slice(convolved, target.vertices, target.barycentric)
        return output if bias is None else output + bias.to(output.dtype), None

    def filter_learned_backward(
        self, gradient: Tensor, inputs: Saved, saved: Saved, needed: Needed, tables: FilterTables
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients with respect to values, weight and bias; at least one is needed."""
        raise NotImplementedError

    def mean_field(self, energies: Tensor, start: Tensor | None, plan: FieldPlan) -> tuple[Tensor, Saved | None]:
        """Return the marginals softmax(-energies + the sum of all kernels), replaced `plan.steps` times.

        Args:
            energies: `[items, labels, points]`, of any floating dtype; the result has that of the barycentric weights.
            start: the first marginals, like energies; None for softmax(-energies), and always None without a step.
            plan: the kernels, and how often they are applied.

        Raises:
            InputError: the sum of the energies is NaN; only on the CPU.
        """
        return mean_field(self, energies, start, plan), None

    def mean_field_backward(
        self, gradient: Tensor, inputs: Saved, saved: Saved, needed: Needed, plan: FieldPlan
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients with respect to energies, start (None without one), and one tensor of each kernel.

        That is its costs or, for a kernel without costs, its factor, `[1, 1]`. The gradient of the logits of a point
        sums to zero.
        """
        raise NotImplementedError

    def normalize_items(
        self, values: Tensor, weight: Tensor, bias: Tensor, norm: ItemsNorm
    ) -> tuple[Tensor, Saved | None]:
        """Normalize groups of channels of `values [rows, channels]` in each item; then apply weight and bias."""
        return normalize_items(values, weight, bias, norm), None

    def normalize_items_backward(
        self, gradient: Tensor, inputs: Saved, saved: Saved, needed: Needed, norm: ItemsNorm
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients with respect to values, weight and bias."""
        raise NotImplementedError

    def slice_planes(self, lattice_values: Tensor, vertices: Tensor, barycentric: Tensor) -> Tensor:
        """Slice to `[channels, points]`, for few rows of many channels and any number of corners."""
        return self.slice(lattice_values, vertices, barycentric).T.contiguous()

    def sum_axis_neighbors(self, lattice_values: Tensor, neighbors: AxisNeighbors) -> Tensor:
        """l'_v = 2 (d + 1) l_v + the sum over the axis neighbors of v."""
        return self.slice(lattice_values, *neighbors.table)

    def solve_smooth(
        self, equations: SmoothEquations, right: Tensor, start: Tensor, iterations: int, tolerance: float
    ) -> Tensor:
        """Solve the equations of the bilateral solver by conjugate gradients, each channel by itself.

        Args:
            equations: the matrix; without derivatives.
            right: `[lattice points, channels]`.
            start: the first solution.
            iterations: the maximum number of iterations.
            tolerance: see `conjugate_gradients`.
        """
        return solve_smooth(self, equations, right, start, iterations, tolerance)

    def embed_differential(self, features: Tensor, differential: Tensor) -> Tensor:
        """J f', the adjoint of `embed_gradient`: `[points, d]` to `[points, d + 1]`."""
        points, d = features.shape
        corners = torch.eye(d + 1, dtype=features.dtype, device=features.device)
        # a row of J, the gradient of the weight of one corner, at a time
        rows = (self.embed_gradient(features, corner.expand(points, d + 1)) for corner in corners)
        return torch.stack([(row * differential).sum(dim=1) for row in rows], dim=1)

    def sum_color_grid(self, values: Tensor, guide: Tensor, tables: ColorGridTables) -> Tensor:
        """Sum over all pixels around each pixel, weighted by the Gaussian over position and color.

        Values are `[items, channels, height, width]`, not empty. The result has one more channel, the mass.
        """
        name = self.name or "a traced call"
        raise BackendUnavailable(f"the color grid cannot be used: {name} has none, or gradients are wanted")

    def index_points_bounded(
        self, features: Tensor, batch: Tensor | None, rows: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """`index_points` with a fixed number of rows of keys, without waiting for the device.

        Returns:
            The results of `index_points`, with -1 in rows without a lattice point and the last row in place of any
            vertex beyond it; and int64 `[1]`, the number of lattice points, above 2^40 for features without a key.
        """
        raise BackendUnavailable(f"{self.name} waits for the number of lattice points")

    def coarsen_keys_bounded(self, keys: Tensor, table: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the first three results of `coarsen_lattice` with a fixed number of rows, without waiting.

        Args:
            keys, table: of `index_points_bounded` or of this function.
            rows: number of rows of the coarse keys.

        Returns:
            As `index_points_bounded`; parents beyond the last row, and those of rows without a lattice point, are at
            least `rows`.
        """
        raise BackendUnavailable(f"{self.name} waits for the number of lattice points")


def report_declined(name: str, reason: str) -> None:
    """Add to the report of `explain_call` why a fused function is composed."""
    # torch.compile cannot trace a context variable
    if not torch.compiler.is_compiling() and (lines := decisions.get()) is not None:
        lines.append(f"{name}: composed of primitives, because {reason}")
