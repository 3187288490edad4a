"""What a backend may have besides the primitives: whole filters in one call, for when nothing is traced.

`fused_filters.py` calls them, where `why_in_steps` (`tracing.py`) has nothing against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from permutohedral.ops.color_tables import ColorGridTables, LandmarkTables
from permutohedral.ops.guided_primitives import GuidedPrimitives
from permutohedral.ops.primitives import Primitives
from permutohedral.simplices import Simplices


class FilteredLattice(Protocol):
    """What a learned filter reads of a `Lattice`."""

    @property
    def source(self) -> Simplices: ...

    @property
    def target(self) -> Simplices: ...

    @property
    def neighbors(self) -> Tensor: ...

    @property
    def reverse_neighbors(self) -> Tensor | None: ...

    @property
    def opposite(self) -> Tensor: ...

    @property
    def batch_size(self) -> int | None: ...

    @property
    def points_per_item(self) -> tuple[int, int]: ...


class FilterTables(NamedTuple):
    """The lattice of a learned filter, and how it is read.

    Attributes:
        lattice: between the points.
        groups: of the channels.
        by_density: divide each lattice point by its splatted weight before convolving.
    """

    lattice: FilteredLattice
    groups: int
    by_density: bool


class PairwiseTables(NamedTuple):
    """A kernel of a mean field over `points`: what it adds to the logits of marginals Q.

    That is factor * m^-target_power * slice(blur(splat(m^-source_power * Q)) @ costs), with the mass m of each point,
    slice(blur(splat(1))) + SMALLEST_MASS.

    Attributes:
        vertices, barycentric: the corners of the points, `[points, d + 1]`.
        axis_neighbors: see `blur`.
        source_power, target_power: both 0, both 1/2, or one of them 1 and the other 0.
        costs: `[labels, labels]`, None for the identity.
        factor: a number; a tensor of one where derivatives with respect to it are wanted.
        both_ways: take the mean of `blur` and its reverse, which is symmetric.
    """

    vertices: Tensor
    barycentric: Tensor
    axis_neighbors: Tensor
    source_power: float
    target_power: float
    costs: Tensor | None
    factor: float | Tensor
    both_ways: bool


class PairwisePoints(NamedTuple):
    """A kernel of a mean field whose lattice is not built yet.

    Attributes:
        features: `[points, d]`.
        batch: int32 `[points]`, the item of each point; None for one item.
        source_power, target_power, costs, factor, both_ways: see `PairwiseTables`.
    """

    features: Tensor
    batch: Tensor | None
    source_power: float
    target_power: float
    costs: Tensor | None
    factor: float | Tensor
    both_ways: bool


class ConvolutionTables(NamedTuple):
    """What a convolution and its derivatives read.

    Attributes:
        neighbors: int32 `[filter_size, targets]`, the sources under the taps.
        reverse: int32 `[filter_size, sources]`, the table from source to target.
        opposite: int64 `[filter_size]`, the tap opposite to each.
    """

    neighbors: Tensor
    reverse: Tensor
    opposite: Tensor


class ItemRows(NamedTuple):
    """Which rows belong to which item of a ragged batch.

    Attributes:
        order: int32 `[rows]`, the rows, those of the first item first; None where they lie in this order.
        starts: int32 `[items + 1]`, where those of each item begin in it, and the number of all.
        items: how many there are, at least one.
    """

    order: Tensor | None
    starts: Tensor
    items: int


class ItemsNorm(NamedTuple):
    """Group normalization of the rows of each item.

    Attributes:
        rows: of the items.
        groups: of channels that are normalized together.
        eps: added to the variance.
        relu: whether what is negative then becomes zero.
    """

    rows: ItemRows
    groups: int
    eps: float
    relu: bool


# what the derivative of a learned filter needs: the lattice values `[lattice_points, in_channels]` that were convolved,
# and the density `[lattice_points]` they were divided by, in the accumulation dtype, None unless `by_density`; then
# tables that a backend made on the way
KeptOfFilter = tuple[Any, ...]


class FusedPrimitives(Primitives, GuidedPrimitives, Protocol):
    """What a backend may have besides the primitives, for when nothing is traced (`fused_filters.py`)."""

    def index_both(
        self, features: Tensor, batch: Tensor | None, target_features: Tensor, target_batch: Tensor | None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """`index_points` of sources and of targets, which wait for the device together."""
        ...

    def index_with_neighbors(
        self, features: Tensor, batch: Tensor | None, offsets: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None:
        """`index_points`, and `find_neighbors` of what it numbers at these `offsets`; None where it takes two steps."""
        ...

    def index_points_bounded(
        self, features: Tensor, batch: Tensor | None, rows: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """`index_points` with this many rows of keys, without waiting for the device.

        Returns:
            What `index_points` does, rows without a lattice point holding -1 and vertices beyond the last row taken for
            it; and int64 `[1]`, the number of lattice points there are, more than 2^40 for features without a key.
        """
        ...

    def picture_features(
        self, guide: Tensor, sigma_space: Sequence[float], sigma_range: Sequence[float], origin: Sequence[int]
    ) -> Tensor | None:
        """Position and color of every pixel or voxel in standard deviations.

        Args:
            guide: float `[..., channels, *space]`.
            sigma_space: standard deviation over positions along each axis of space, in samples.
            sigma_range: standard deviation over each channel.
            origin: the position of the first sample, a number for each axis of space.

        Returns:
            `[..., samples, axes + channels]` in the accumulation dtype: positions in the order of the axes, then the
            channels; None where torch computes them.
        """
        ...

    def filter_points(
        self, values: Tensor, features: Tensor, batch: Tensor | None, smallest_mass: float
    ) -> Tensor | None:
        """`filter_gaussian` from the features of the points, which are source and target; no lattice is left behind.

        Args:
            values: `[points, channels]`, at least one point.
            features, batch: see `index_points`.
            smallest_mass: see `filter_gaussian`.

        Returns:
            `[points, channels]`, None where the backend would rather build the lattice first: also for features that
            `index_points` refuses.
        """
        ...

    def filter_picture(
        self, image: Tensor, guide: Tensor, sigma_space: float, sigma_range: float, smallest_mass: float
    ) -> Tensor | None:
        """`filter_points` of the pixels of one picture, over position and color.

        Args:
            image: `[channels, height, width]`, of at most 32 bits, not empty.
            guide: `[guide channels, height, width]`, of at most 32 bits.
            sigma_space: standard deviation over positions, in pixels.
            sigma_range: standard deviation over colors.
            smallest_mass: see `filter_gaussian`.

        Returns:
            Like the image, None where the backend would rather have features and values.
        """
        ...

    def sum_landmarks(self, values: Tensor, guide: Tensor, tables: LandmarkTables) -> Tensor:
        """The sums over all pixels around each, weighted by the Gaussian over position and color.

        Args:
            values: `[items, channels, height, width]`, not empty.
            guide: `[items, guide channels, height, width]`, in standard deviations.
            tables: of the guide.

        Returns:
            `[items, channels + 1, height, width]`: the sums of ones, the mass, are the last.
        """
        ...

    def sum_color_grid(self, values: Tensor, guide: Tensor, tables: ColorGridTables) -> Tensor:
        """Likewise, on a grid over colors."""
        ...

    def filter_learned(
        self, values: Tensor, weight: Tensor, bias: Tensor | None, tables: FilterTables
    ) -> tuple[Tensor, KeptOfFilter]:
        """Splat, divide by the density, convolve, slice, add the bias.

        Args:
            values: `[points, in_channels]`, at least one point and one channel.
            weight: `[filter_size, in_channels / groups, out_channels]`, of the dtype of values.
            bias: `[out_channels]`, of the same dtype, or None.
            tables: of the lattice.

        Returns:
            The result `[target points, out_channels]`, and what its derivative needs.
        """
        ...

    def differentiate_learned(
        self, gradient: Tensor, weight: Tensor, kept: KeptOfFilter, tables: FilterTables, wanted: tuple[bool, ...]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The gradients of `filter_learned` with respect to values, weight and bias, None where they are not wanted.

        Args:
            gradient: with respect to the result.
            weight, tables: of `filter_learned`.
            kept: what it returned.
            wanted: which of the three gradients; at least one.
        """
        ...

    def mean_field(
        self, energies: Tensor, start: Tensor | None, kernels: Sequence[PairwiseTables], steps: int
    ) -> Tensor | None:
        """Marginals: softmax(-energies + what all kernels add), `steps` times.

        Args:
            energies: `[items, labels, points]`, of any floating dtype.
            start: the first marginals, like energies; None for softmax(-energies), and where there is no step.
            kernels: over `items * points` points, those of the items one after another.
            steps: how often the marginals are replaced.

        Raises:
            InputError: the sum of the energies is NaN, where that is known without waiting for a device.

        Returns:
            `[items, labels, points]`, computed in the dtype of the barycentric weights and returned in it; None where
            the backend would rather have it composed.
        """
        ...

    def mean_field_points(
        self, energies: Tensor, start: Tensor | None, kernels: Sequence[PairwisePoints], steps: int
    ) -> Tensor | None:
        """`mean_field` with the building of the lattices; None where they must be built first.

        Raises:
            InputError: a feature, or an item, has no key.
        """
        ...

    def mean_field_logits(
        self, energies: Tensor, start: Tensor | None, kernels: Sequence[PairwiseTables], steps: int
    ) -> tuple[Tensor, Any] | None:
        """The logits of `mean_field`'s marginals, but for a constant for all labels of a point, and what their
        derivative needs; None where they are composed of operators. There is at least one step, and energies are not
        empty.
        """
        ...

    def differentiate_mean_field(
        self,
        gradient: Tensor,
        energies: Tensor,
        start: Tensor | None,
        kernels: Sequence[PairwiseTables],
        steps: int,
        kept: Any,
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """The gradients of `mean_field_logits` with respect to energies, start, and each kernel.

        Args:
            gradient: with respect to the logits; that of a point sums to zero.
            energies, start, kernels, steps: of `mean_field_logits`.
            kept: what it returned.

        Returns:
            Like energies; like start, None without it; for each kernel that of its costs, or, where it has none, of its
            factor, `[1, 1]`.
        """
        ...

    def convolve_and_add(
        self, lattice_values: Tensor, weight: Tensor, neighbors: Tensor, bias: Tensor | None, added: Tensor | None
    ) -> Tensor:
        """`convolve` in one group, of something to something, plus `bias [out_channels]` and
        `added [targets, out_channels]`.
        """
        ...

    def convolve_gradients(
        self,
        lattice_values: Tensor,
        weight: Tensor,
        output_gradient: Tensor,
        tables: ConvolutionTables,
        wanted: tuple[bool, bool],
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """The gradients of `convolve_and_add` with respect to lattice_values, weight and bias; of the first and the
        last only what is wanted.
        """
        ...

    def normalize_items(
        self, values: Tensor, weight: Tensor, bias: Tensor, norm: ItemsNorm
    ) -> tuple[Tensor, Tensor] | None:
        """Group normalization of the rows of each item.

        Args:
            values: `[rows, channels]`.
            weight, bias: `[channels]`, applied to what is normalized.
            norm: how.

        Returns:
            The result, like values, and `[items, 2, channels]`: mean and scale; None where it is to be composed.
        """
        ...

    def differentiate_items_norm(
        self, gradient: Tensor, values: Tensor, affine: tuple[Tensor, Tensor], statistics: Tensor, norm: ItemsNorm
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of `normalize_items` with respect to values, weight and bias (`affine`)."""
        ...
