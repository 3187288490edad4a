"""U-Net on the levels of a lattice pyramid, for point clouds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.filters.steps import slice, splat
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.pyramid import LatticePyramid, build_pyramid
from permutohedral.lattice.tensors import check_count, check_tensor, reject_scripting
from permutohedral.nn.group_norm import LatticeGroupNorm, LatticeItems, count_items
from permutohedral.nn.levels import LatticeConv, LatticeConvDown, LatticeConvUp, LatticeLinearDown, LatticeLinearUp
from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.tracing import breaks_graph, is_recorded

# how values go from level to level: interpolated, with mixed channels, or by learned convolutions
Between = Literal["linear", "convolution"]
# what is classified: every point, or every cloud of a batch
Head = Literal["points", "clouds"]

# channels of a group that are normalized together
_GROUP = 8
# hidden channels of the head for points
_HIDDEN = 32
# fewer points than these share little or much in a lattice of any step
_FEW, _MANY = 100, 1000
# of the d + 1 lattice points that a point has to itself on a lattice without sharing
_ALONE = 0.9


class ResidualBlocks(nn.Module):
    """Residual blocks of two normalized convolutions each, on one level.

    >>> import permutohedral as ph
    >>> lattice = ph.build_lattice(torch.rand(100, 3) * 9)
    >>> ResidualBlocks(8, dimension=3)(ph.splat(torch.rand(100, 8), lattice), lattice).shape[1]
    8
    """

    def __init__(
        self, channels: int, dimension: int, neighborhood_size: int = 1, blocks: int = 1, **options: Any
    ) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            LatticeConv(channels, channels, dimension, neighborhood_size, **options) for _ in range(2 * blocks)
        )
        groups = channels // _GROUP if channels % _GROUP == 0 else 1
        self.norms = nn.ModuleList(LatticeGroupNorm(groups, channels, **options) for _ in range(2 * blocks))

    def forward(self, lattice_values: Tensor, lattice: Lattice, items: LatticeItems | None = None) -> Tensor:
        """Map `[lattice_points, channels]` to the same shape; blocks on one lattice may share `items`."""
        items = LatticeItems(lattice) if items is None else items
        change = lattice_values
        for number, (norm, convolution) in enumerate(zip(self.norms, self.convolutions, strict=True)):
            change = convolution(norm(change, lattice, items, relu=True), lattice)
            if number % 2:
                change = lattice_values = change + lattice_values
        return lattice_values


def mean_and_density(values: Tensor, lattice: Lattice, density: bool = True) -> Tensor:
    """Return the mean of the values around each lattice point, and the logarithm of their number.

    Without `density` the last channel is 1.

    >>> import permutohedral as ph
    >>> mean_and_density(torch.full((9, 1), 5.0), ph.build_lattice(torch.zeros(9, 2)))[0].tolist()
    [5.0, 2.3025851249694824]
    """
    # sums of many points are out of the range of float16
    wide = values.to(accumulation_dtype(values.dtype))
    sums = splat(torch.cat([wide, wide.new_ones(*wide.shape[:-1], 1)], dim=-1), lattice)
    number = sums[:, -1:]
    last = number.log1p() if density else torch.ones_like(number)
    return torch.cat([sums[:, :-1] / number.clamp_min(1e-6), last], dim=1).to(values.dtype)


class _Encoder(nn.Module):
    """Map points to the lattice values of every level."""

    def __init__(
        self,
        in_channels: int,
        dimension: int,
        widths: Sequence[int],
        blocks: Sequence[int],
        between: Between,
        neighborhood_size: int,
        **options: Any,
    ) -> None:
        super().__init__()
        self.enter = LatticeConv(in_channels + 1, widths[0], dimension, neighborhood_size, **options)
        self.blocks = nn.ModuleList(
            ResidualBlocks(width, dimension, neighborhood_size, number, **options)
            for width, number in zip(widths, blocks, strict=True)
        )
        self.downs = nn.ModuleList(
            LatticeConvDown(fine, coarse, dimension, neighborhood_size, **options)
            if between == "convolution"
            else LatticeLinearDown(fine, coarse, dimension, **options)
            for fine, coarse in pairwise(widths)
        )

    def forward(self, entering: Tensor, pyramid: LatticePyramid, items: Sequence[LatticeItems]) -> list[Tensor]:
        finest = pyramid.levels[0]
        found = [self.blocks[0](self.enter(entering, finest), finest, items[0])]
        for level, (down, block) in enumerate(zip(self.downs, self.blocks[1:], strict=True), start=1):
            found.append(block(down(found[-1], pyramid, level - 1), pyramid.levels[level], items[level]))
        return found


class LatticeUNet(nn.Module):
    """U-Net on a lattice pyramid that scores the classes of points or of whole clouds.

    Each point carries `in_channels` values. Feed what separates the classes and is known for every point: colors or
    intensities in 0..1, normals, the height above the ground in tens of meters. The network always sees how points lie
    to each other, so `in_channels=0` is a network of the positions alone. It does not see absolute positions: pass
    a coordinate as a value if it matters, such as the height.

    Args:
        in_channels: of the values at the points; 0: the positions alone, with `values=None`.
        num_classes: number of classes.
        dimension: d of the positions.
        step: size of a cell of the finest lattice, in the units of the positions, such as 0.5 for half a meter.
            Neighboring lattice points are about one step apart. A good step has several points in a cell: start with
            three times the distance between neighboring points.
        widths: channels of each level, the finest first. Each level has twice the step of the one before.
        blocks: residual blocks of two convolutions, one number or one for each level.
        between: how values go from level to level: "linear" interpolates them and mixes their channels;
            "convolution" learns filters for it, a third more weights in all.
        neighborhood_size: s, the reach of the convolutions in lattice steps.
        head: "points" scores every point, "clouds" the mean over each cloud, without the way back to the points.
        dropout: share of the channels that training sets to zero before the last layers.
        density_input: also feed the logarithm of the number of points around each lattice point. Without it, results
            depend less on how densely a cloud was sampled.
        device, dtype: of the weights.

    Shape:
        values `[points, in_channels]` and positions `[points, d]`; the result is `[points, num_classes]`, or `[clouds,
        num_classes]` with `head="clouds"`. Batches are ragged with `batch [points]`, the cloud of each point as in
        PyTorch Geometric; dense, with a batch axis before all; or lists of tensors, whose scores of points are a list.

    A training step:

    >>> import torch, permutohedral as ph
    >>> network = ph.nn.LatticeUNet(in_channels=1, num_classes=3, step=0.5, widths=(8, 16, 24))
    >>> optimizer = torch.optim.AdamW(network.parameters(), lr=0.003)
    >>> positions, labels = 5 * torch.rand(2000, 3), torch.randint(0, 3, (2000,))  # of two clouds, in meters
    >>> batch = torch.arange(2000) // 1000
    >>> scores = network(positions[:, 2:], positions, batch)
    >>> loss = torch.nn.functional.cross_entropy(scores, labels)
    >>> optimizer.zero_grad()
    >>> loss.backward()
    >>> optimizer.step()
    >>> scores.shape, network.reach() * network.step > 5  # each point sees its whole cloud
    (torch.Size([2000, 3]), True)
    """

    __prepare_scriptable__ = reject_scripting

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        dimension: int = 3,
        *,
        step: float,
        widths: Sequence[int] = (16, 32, 48, 64),
        blocks: int | Sequence[int] = 1,
        between: Between = "linear",
        neighborhood_size: int = 1,
        head: Head = "points",
        dropout: float = 0.0,
        density_input: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        check_count("num_classes", num_classes, least=1)
        if isinstance(step, bool) or not isinstance(step, (int, float)) or not 0 < step < math.inf:
            raise InputError(f"step must be a positive number in the units of the positions, got {step!r}")
        if not widths or any(type(width) is not int or width < 1 for width in widths):
            raise InputError(f"widths must have the channels of each level, such as (16, 32, 64), got {widths!r}")
        each = [blocks] * len(widths) if isinstance(blocks, int) else list(blocks)
        if len(each) != len(widths) or any(type(number) is not int or number < 1 for number in each):
            raise InputError(
                f"blocks must be a whole number of at least 1, or one for each of {len(widths)} levels, got {blocks!r}"
            )
        for name, value, kind in (("between", between, Between), ("head", head, Head)):
            if value not in get_args(kind):
                raise InputError(f"{name} must be one of {', '.join(map(repr, get_args(kind)))}, got {value!r}")
        self.in_channels, self.num_classes, self.dimension, self.step = in_channels, num_classes, dimension, step
        self.between, self.neighborhood_size, self.density_input = between, neighborhood_size, density_input
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.encoder = _Encoder(in_channels, dimension, widths, each, between, neighborhood_size, **options)
        self.dropout = nn.Dropout(dropout)
        # the way back to the points
        steps = list(pairwise(widths)) if head == "points" else []
        self.ups = nn.ModuleList(
            LatticeConvUp(coarse, fine, dimension, neighborhood_size, **options)
            if between == "convolution"
            else LatticeLinearUp(coarse, fine, **options)
            for fine, coarse in steps
        )
        self.joins = nn.ModuleList(
            LatticeConv(2 * fine, fine, dimension, neighborhood_size, **options) for fine, _ in steps
        )
        self.blocks = nn.ModuleList(
            ResidualBlocks(fine, dimension, neighborhood_size, number, **options)
            for (fine, _), number in zip(steps, each, strict=False)
        )
        seen, hidden = (widths[0] + in_channels, _HIDDEN) if head == "points" else (sum(widths), widths[-1])
        self.head = nn.Sequential(
            nn.Linear(seen, hidden, **options), nn.ReLU(), nn.Linear(hidden, num_classes, **options)
        )
        self.classifies: Head = head
        self._has_warned = False

    @property
    def num_levels(self) -> int:
        """Return the number of levels of the pyramid."""
        return len(self.encoder.blocks)

    def reach(self) -> float:
        """Return how far a point sees, in units of `step`; points farther away do not change its scores.

        It does not count the normalizations, whose means and variances are those of the whole cloud.
        With `head="clouds"` it is infinite.

        >>> import permutohedral as ph
        >>> network = ph.nn.LatticeUNet(1, 3, step=0.5, widths=(16, 32, 48, 64))
        >>> round(network.reach())  # steps of 0.5, so 42 units of the positions
        83
        """
        if self.classifies == "clouds":
            return math.inf
        s, down = self.neighborhood_size, 1 if self.between == "linear" else self.neighborhood_size
        # lattice steps: splat, slice and the first convolution
        hops = 2.0 + s
        for level in range(self.num_levels):
            per_block = 2 * s * 2**level
            hops += per_block * len(cast(ResidualBlocks, self.encoder.blocks[level]).convolutions) / 2
            if level < self.num_levels - 1:
                hops += per_block * len(cast(ResidualBlocks, self.blocks[level]).convolutions) / 2
                # down, up, and the convolution that joins both ways
                hops += (2 * down + s) * 2**level
        # the longest tap of a neighborhood of size 1: half of the axes of the lattice go up
        half = (self.dimension + 1) // 2
        return hops * math.sqrt(1.5 * half * (self.dimension + 1 - half) / (self.dimension + 1))

    @breaks_graph
    def build_pyramid(self, positions: Tensor, batch: Tensor | None = None) -> LatticePyramid:
        """Build the pyramid of `positions / step`, for several calls of `forward` on the same points.

        Warns once if the step does not fit the units of the positions.
        """
        check_tensor("positions", positions)
        if positions.dim() not in (2, 3) or positions.shape[-1] != self.dimension:
            raise InputError(
                f"positions must be [points, {self.dimension}] or [batch, points, {self.dimension}] for this network, "
                f"got shape {tuple(positions.shape)}"
            )
        if positions.dtype not in (torch.float32, torch.float64):
            raise InputError(f"positions must be float32 or float64, got {positions.dtype}; convert with .float()")
        pyramid = build_pyramid(
            positions / self.step, self.num_levels, neighborhood_size=self.neighborhood_size, batch=batch
        )
        if not self._has_warned and not is_recorded():
            self._warn_about_units(pyramid.levels[0])
        return pyramid

    def _warn_about_units(self, finest: Lattice) -> None:
        points, rows = finest.source.num_points, finest.num_lattice_points
        # of a lattice point and all around it: a small cloud at the origin has them
        star = 2 ** (self.dimension + 1) - 1
        if points > _FEW and rows > _ALONE * (self.dimension + 1) * points:
            problem, remedy = "hardly any point shares a lattice point with another one", "a larger step"
        elif rows * _MANY < star * points:
            # counting the clouds of a ragged batch may wait for a GPU, so the mean over clouds comes first
            clouds = count_items(finest)
            if points <= _MANY * clouds or rows > star * clouds:
                return
            problem, remedy = "the points of a cloud share a few lattice points", "a smaller step"
        else:
            return
        self._has_warned = True
        warnings.warn(
            f"step={self.step:g} does not fit the units of the positions: {points:,} points have {rows:,} lattice "
            f"points on the finest level, so {problem}; pass {remedy}",
            # the caller of the network
            stacklevel=7,
        )

    def forward(
        self,
        values: Tensor | Sequence[Tensor] | None,
        positions: Tensor | Sequence[Tensor] | None = None,
        batch: Tensor | None = None,
        pyramid: LatticePyramid | None = None,
    ) -> Any:
        """Score the points or clouds at `positions`, or of a `pyramid` that `build_pyramid` returned.

        Args:
            values: `[points, in_channels]`; None for a network with `in_channels=0`.
            positions: float32 or float64 `[points, d]`.
            batch: int `[points]`, the cloud of each point.
            pyramid: instead of positions and batch.
        """
        if (positions is None) == (pyramid is None):
            raise InputError("positions and pyramid: pass exactly one of them")
        if isinstance(positions, (list, tuple)):
            return self._score_list(values, positions, batch)
        if pyramid is None:
            pyramid = self.build_pyramid(cast(Tensor, positions), batch)
        finest = pyramid.levels[0]
        if len(pyramid.levels) != self.num_levels:
            raise InputError(f"pyramid must have {self.num_levels} levels, got {len(pyramid.levels)}")
        if pyramid.dimension != self.dimension:
            raise InputError(f"pyramid must have {self.dimension} dimensions, got {pyramid.dimension}")
        if values is None and self.in_channels == 0:
            source = finest.source.barycentric
            shape = (finest.batch_size, finest.points_per_item[0]) if finest.batch_size else (finest.source.num_points,)
            values = source.new_zeros(*shape, 0, dtype=cast(nn.Linear, self.head[0]).weight.dtype)
        if not isinstance(values, Tensor) or values.shape[-1] != self.in_channels:
            got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else repr(type(values).__name__)
            raise InputError(
                f"values must be [..., points, {self.in_channels}] for this network, which takes {self.in_channels} "
                f"channels, got {got}"
            )
        return self._score(values, pyramid)

    def _score_list(self, values: Any, positions: Sequence[Tensor], batch: Tensor | None) -> Any:
        """Score clouds of several sizes as one ragged batch."""
        if batch is not None:
            raise InputError("batch must be None for lists, whose tensors are the clouds")
        if not positions or (values is not None and list(map(len, values)) != list(map(len, positions))):
            raise InputError("values and positions must be lists with a tensor of each cloud, of as many points")
        sizes = [len(cloud) for cloud in positions]
        clouds = torch.arange(len(sizes), device=positions[0].device)
        item = torch.repeat_interleave(clouds, torch.tensor(sizes, device=clouds.device))
        scores: Tensor = self(None if values is None else torch.cat(list(values)), torch.cat(list(positions)), item)
        return scores if self.classifies == "clouds" else list(scores.split(sizes))

    def _score(self, values: Tensor, pyramid: LatticePyramid) -> Tensor:
        items = _items(pyramid)
        found = self.encoder(mean_and_density(values, pyramid.levels[0], self.density_input), pyramid, items)
        if self.classifies == "clouds":
            means = torch.cat([item.mean(rows) for item, rows in zip(items, found, strict=True)], dim=1)
            # the last item of a bounded lattice is its unused rows
            seen = means[: items[0].items - int(pyramid.levels[0].source.bounded)]
        else:
            seen = torch.cat([slice(self._decode(found, pyramid, items), pyramid.levels[0]), values], dim=-1)
        result: Tensor = self.head(self.dropout(seen))
        return result

    def _decode(self, skips: list[Tensor], pyramid: LatticePyramid, items: Sequence[LatticeItems]) -> Tensor:
        """Return the lattice values of the finest level."""
        lattice_values = skips.pop()
        for level in reversed(range(len(skips))):
            lattice = pyramid.levels[level]
            refined = self.ups[level](lattice_values, pyramid, level)
            joined = self.joins[level](torch.cat([refined, skips[level]], dim=1), lattice)
            lattice_values = self.blocks[level](joined, lattice, items[level])
        return lattice_values


@breaks_graph
def _items(pyramid: LatticePyramid) -> list[LatticeItems]:
    """Return the items on every level; counting them once synchronizes a GPU once."""
    number = count_items(pyramid.levels[0])
    return [LatticeItems(level, number) for level in pyramid.levels]
