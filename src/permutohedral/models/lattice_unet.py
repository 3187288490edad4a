"""U-Net on the levels of a lattice pyramid."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.filters.steps import slice, splat
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.pyramid import LatticePyramid, build_pyramid
from permutohedral.nn.group_norm import LatticeGroupNorm, LatticeItems, count_items
from permutohedral.nn.levels import LatticeConv, LatticeConvDown, LatticeConvUp, LatticeLinearDown, LatticeLinearUp
from permutohedral.ops.contract import accumulation_dtype
from permutohedral.ops.tracing import breaks_graph

# how values go from level to level: interpolated, with mixed channels, or by learned convolutions
Between = Literal["linear", "convolution"]

# channels of a group that are normalized together
_GROUP = 8


def _norm(channels: int) -> LatticeGroupNorm:
    return LatticeGroupNorm(max(channels // _GROUP, 1) if channels % _GROUP == 0 else 1, channels)


class ResidualBlock(nn.Module):
    """Residual block of two normalized convolutions on one level.

    >>> import permutohedral as ph
    >>> lattice = ph.build_lattice(torch.rand(100, 3) * 9)
    >>> ResidualBlock(8, dimension=3)(ph.splat(torch.rand(100, 8), lattice), lattice).shape[1]
    8
    """

    def __init__(self, channels: int, dimension: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(LatticeConv(channels, channels, dimension) for _ in range(2))
        self.norms = nn.ModuleList(_norm(channels) for _ in range(2))

    def forward(self, lattice_values: Tensor, lattice: Lattice, items: LatticeItems | None = None) -> Tensor:
        """Map `[lattice_points, channels]` to the same shape; blocks on one lattice may share `items`."""
        items = LatticeItems(lattice) if items is None else items
        change = lattice_values
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            change = convolution(norm(change, lattice, items, relu=True), lattice)
        return change + lattice_values


def mean_and_density(values: Tensor, lattice: Lattice) -> Tensor:
    """Return the mean of the values around each lattice point, and the logarithm of their number.

    >>> import permutohedral as ph
    >>> mean_and_density(torch.full((9, 1), 5.0), ph.build_lattice(torch.zeros(9, 2)))[0].tolist()
    [5.0, 2.3025851249694824]
    """
    # sums of many points are out of the range of float16
    wide = values.to(accumulation_dtype(values.dtype))
    sums = splat(torch.cat([wide, wide.new_ones(*wide.shape[:-1], 1)], dim=-1), lattice)
    density = sums[:, -1:]
    return torch.cat([sums[:, :-1] / density.clamp_min(1e-6), density.log1p()], dim=1).to(values.dtype)


class _Encoder(nn.Module):
    """Map points to the lattice values of every level."""

    def __init__(self, in_channels: int, dimension: int, channels: Sequence[int], between: Between) -> None:
        super().__init__()
        down = LatticeConvDown if between == "convolution" else LatticeLinearDown
        self.enter = LatticeConv(in_channels + 1, channels[0], dimension)
        self.blocks = nn.ModuleList(ResidualBlock(width, dimension) for width in channels)
        self.downs = nn.ModuleList(down(fine, coarse, dimension) for fine, coarse in pairwise(channels))

    def forward(self, values: Tensor, pyramid: LatticePyramid, items: Sequence[LatticeItems]) -> list[Tensor]:
        finest = pyramid.levels[0]
        found = [self.blocks[0](self.enter(mean_and_density(values, finest), finest), finest, items[0])]
        for level, (down, block) in enumerate(zip(self.downs, self.blocks[1:], strict=True), start=1):
            found.append(block(down(found[-1], pyramid, level - 1), pyramid.levels[level], items[level]))
        return found


class LatticeUNet(nn.Module):
    """U-Net on a lattice pyramid that scores the classes of points.

    Args:
        in_channels: of the values at the points.
        classes: number of classes.
        dimension: d of the features.
        channels: of each level, the finest first.
        between: how values go from level to level: "linear" interpolates them and mixes their channels;
            "convolution" learns filters for it, a third more weights in all.

    Shape:
        values `[points, in_channels]`, features `[points, d]`, one unit is one step of the finest lattice; ragged
        batches by `batch [points]`. The result is `[points, classes]`. All three may begin with a batch axis.

    >>> network = LatticeUNet(in_channels=2, classes=3, dimension=3, channels=(8, 16))
    >>> network(torch.rand(100, 2), torch.rand(100, 3) * 9).shape
    torch.Size([100, 3])
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        dimension: int = 3,
        channels: Sequence[int] = (16, 32, 48, 64),
        between: Between = "linear",
    ) -> None:
        super().__init__()
        _check_widths(channels)
        if between not in get_args(Between):
            raise InputError(f"between must be one of {', '.join(map(repr, get_args(Between)))}, got {between!r}")
        self.in_channels, self.classes, self.dimension = in_channels, classes, dimension
        self.encoder = _Encoder(in_channels, dimension, channels, between)
        self.ups = nn.ModuleList(
            LatticeConvUp(coarse, fine, dimension) if between == "convolution" else LatticeLinearUp(coarse, fine)
            for fine, coarse in pairwise(channels)
        )
        self.joins = nn.ModuleList(LatticeConv(2 * width, width, dimension) for width in channels[:-1])
        self.blocks = nn.ModuleList(ResidualBlock(width, dimension) for width in channels[:-1])
        self.head = nn.Sequential(nn.Linear(channels[0] + in_channels, 32), nn.ReLU(), nn.Linear(32, classes))

    @property
    def levels(self) -> int:
        """Return the number of levels of the pyramid."""
        return len(self.encoder.blocks)

    def forward(
        self,
        values: Tensor,
        features: Tensor | None = None,
        batch: Tensor | None = None,
        pyramid: LatticePyramid | None = None,
    ) -> Tensor:
        """Classify the points of `features`, or of a `pyramid` of as many levels that was built from them."""
        if (features is None) == (pyramid is None):
            raise InputError("features and pyramid: pass exactly one of them")
        if features is not None:
            pyramid = build_pyramid(features, self.levels, batch=batch)
        assert pyramid is not None
        if len(pyramid.levels) != self.levels:
            raise InputError(f"pyramid must have {self.levels} levels, got {len(pyramid.levels)}")
        if values.shape[-1] != self.in_channels or pyramid.dimension != self.dimension:
            raise InputError(
                f"this network takes {self.in_channels} channels at points of {self.dimension} dimensions, got values "
                f"of shape {tuple(values.shape)} in {pyramid.dimension} dimensions"
            )
        return self._classify(values, pyramid)

    def _classify(self, values: Tensor, pyramid: LatticePyramid) -> Tensor:
        """Map `[..., points, in_channels]` to `[..., points, classes]`."""
        items = _items(pyramid)
        skips = self.encoder(values, pyramid, items)
        lattice_values = skips.pop()
        for level in reversed(range(len(skips))):
            lattice = pyramid.levels[level]
            refined = self.ups[level](lattice_values, pyramid, level)
            joined = self.joins[level](torch.cat([refined, skips[level]], dim=1), lattice)
            lattice_values = self.blocks[level](joined, lattice, items[level])
        result: Tensor = self.head(torch.cat([slice(lattice_values, pyramid.levels[0]), values], dim=-1))
        return result


@breaks_graph
def _items(pyramid: LatticePyramid) -> list[LatticeItems]:
    """Return the items on every level; counting them once synchronizes a GPU once."""
    number = count_items(pyramid.levels[0])
    return [LatticeItems(level, number) for level in pyramid.levels]


def _check_widths(channels: Sequence[int]) -> None:
    if not channels or any(type(width) is not int or width < 1 for width in channels):
        raise InputError(f"channels must have the width of each level, such as (16, 32, 64), got {channels!r}")
