"""Networks on the levels of a lattice pyramid: classes of points, and classes of clouds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.filters.steps import slice, splat
from permutohedral.lattice import Lattice
from permutohedral.models.point_cloud import summarize
from permutohedral.nn.group_norm import LatticeGroupNorm, LatticeItems, Normalized, count_items
from permutohedral.nn.levels import Coarsen, CoarsenLinear, LatticeConvolution, Refine, RefineLinear
from permutohedral.ops.primitives import accumulation_dtype
from permutohedral.pyramid import LatticePyramid, build_pyramid

# how values go from level to level: interpolated, with mixed channels, or by learned convolutions
Between = Literal["linear", "convolution"]

# channels of a group that are normalized together
_GROUP = 8


def _norm(channels: int) -> LatticeGroupNorm:
    return LatticeGroupNorm(max(channels // _GROUP, 1) if channels % _GROUP == 0 else 1, channels)


class ResidualBlock(nn.Module):
    """Twice a normalized convolution on one level, added to what came in.

    >>> import permutohedral as ph
    >>> lattice = ph.build_lattice(torch.rand(100, 3) * 9)
    >>> ResidualBlock(8, dimension=3)(ph.splat(torch.rand(100, 8), lattice), lattice).shape[1]
    8
    """

    def __init__(self, channels: int, dimension: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(LatticeConvolution(channels, channels, dimension) for _ in range(2))
        self.norms = nn.ModuleList(_norm(channels) for _ in range(2))

    def forward(self, lattice_values: Tensor, lattice: Lattice, items: LatticeItems | None = None) -> Tensor:
        """`[lattice_points, channels]`, in and out; blocks on one lattice may share the items."""
        items = LatticeItems(lattice) if items is None else items
        first, second = self.convolutions
        before, between = (Normalized(cast(LatticeGroupNorm, norm), items) for norm in self.norms)
        change = first(lattice_values, lattice, before)
        result: Tensor = second(change, lattice, between, added=lattice_values)
        return result


def mean_and_density(values: Tensor, lattice: Lattice) -> Tensor:
    """At each lattice point the mean of the values around it, and a logarithm of how many points there are.

    >>> import permutohedral as ph
    >>> mean_and_density(torch.full((9, 1), 5.0), ph.build_lattice(torch.zeros(9, 2)))[0].tolist()
    [5.0, 2.3025851249694824]
    """
    # sums of many points are out of the range of float16
    wide = values.to(accumulation_dtype(values.dtype))
    sums = splat(torch.cat([wide, wide.new_ones(wide.shape[0], 1)], dim=1), lattice)
    density = sums[:, -1:]
    return torch.cat([sums[:, :-1] / density.clamp_min(1e-6), density.log1p()], dim=1).to(values.dtype)


class _Encoder(nn.Module):
    """From points to the lattice values of every level."""

    def __init__(self, in_channels: int, dimension: int, channels: Sequence[int], between: Between) -> None:
        super().__init__()
        down = Coarsen if between == "convolution" else CoarsenLinear
        self.enter = LatticeConvolution(in_channels + 1, channels[0], dimension)
        self.blocks = nn.ModuleList(ResidualBlock(width, dimension) for width in channels)
        self.downs = nn.ModuleList(down(fine, coarse, dimension) for fine, coarse in pairwise(channels))

    def forward(self, values: Tensor, pyramid: LatticePyramid, items: Sequence[LatticeItems]) -> list[Tensor]:
        finest = pyramid.levels[0]
        found = [self.blocks[0](self.enter(mean_and_density(values, finest), finest), finest, items[0])]
        for level, (down, block) in enumerate(zip(self.downs, self.blocks[1:], strict=True), start=1):
            found.append(block(down(found[-1], pyramid, level - 1), pyramid.levels[level], items[level]))
        return found


class _OnPyramid(nn.Module):
    """A network that takes points with a pyramid, or builds it."""

    encoder: _Encoder

    @property
    def levels(self) -> int:
        """Of the pyramid it needs."""
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
            raise InputError("give either features or a pyramid built from them")
        if features is not None:
            pyramid = build_pyramid(features, self.levels, batch=batch)
        assert pyramid is not None
        if len(pyramid.levels) != self.levels:
            raise InputError(f"this network needs a pyramid of {self.levels} levels, got {len(pyramid.levels)}")
        return self.classify(values, pyramid)

    def classify(self, values: Tensor, pyramid: LatticePyramid) -> Tensor:
        raise NotImplementedError


class LatticeUNet(_OnPyramid):
    """Points in, a number for each class at each point out; sees far through coarse levels, sharply through fine ones.

    Args:
        in_channels: of the values at the points.
        classes: how many.
        dimension: d of the features.
        channels: of each level, the finest first.
        between: how values go from level to level: "linear" interpolates them and mixes their channels;
            "convolution" learns filters for it, a third more weights in all.

    Shape:
        values `[points, in_channels]`, features `[points, d]`, one unit is one step of the finest lattice; ragged
        batches by `batch [points]`. The result is `[points, classes]`.

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
        self.in_channels, self.classes = in_channels, classes
        self.encoder = _Encoder(in_channels, dimension, channels, between)
        self.ups = nn.ModuleList(
            Refine(coarse, fine, dimension) if between == "convolution" else RefineLinear(coarse, fine)
            for fine, coarse in pairwise(channels)
        )
        self.joins = nn.ModuleList(LatticeConvolution(2 * width, width, dimension) for width in channels[:-1])
        self.blocks = nn.ModuleList(ResidualBlock(width, dimension) for width in channels[:-1])
        self.head = nn.Sequential(nn.Linear(channels[0] + in_channels, 32), nn.ReLU(), nn.Linear(32, classes))

    def classify(self, values: Tensor, pyramid: LatticePyramid) -> Tensor:
        """`[points, in_channels]` to `[points, classes]`."""
        items = _items(pyramid)
        skips = self.encoder(values, pyramid, items)
        lattice_values = skips.pop()
        for level in reversed(range(len(skips))):
            lattice = pyramid.levels[level]
            refined = self.ups[level](lattice_values, pyramid, level)
            joined = self.joins[level](torch.cat([refined, skips[level]], dim=1), lattice)
            lattice_values = self.blocks[level](joined, lattice, items[level])
        result: Tensor = self.head(torch.cat([slice(lattice_values, pyramid.levels[0]), values], dim=1))
        return result


class LatticeClassifier(_OnPyramid):
    """Clouds in, a number for each class of each cloud out.

    Args:
        in_channels: of the values at the points.
        classes: how many.
        dimension: d of the features.
        channels: of each level, the finest first.

    >>> network = LatticeClassifier(in_channels=2, classes=5, dimension=3, channels=(8, 16))
    >>> network(torch.rand(90, 2), torch.rand(90, 3) * 9, torch.arange(90) // 30).shape
    torch.Size([3, 5])
    """

    def __init__(
        self, in_channels: int, classes: int, dimension: int = 3, channels: Sequence[int] = (16, 32, 48, 64)
    ) -> None:
        super().__init__()
        _check_widths(channels)
        self.encoder = _Encoder(in_channels, dimension, channels, "convolution")
        self.head = nn.Sequential(nn.Linear(2 * channels[-1], 64), nn.ReLU(), nn.Linear(64, classes))

    def classify(self, values: Tensor, pyramid: LatticePyramid) -> Tensor:
        """`[points, in_channels]` to `[items, classes]`; without a batch all points are one item."""
        items = _items(pyramid)
        coarsest: Tensor = self.encoder(values, pyramid, items)[-1]
        result: Tensor = self.head(summarize(coarsest, items[-1].item.long(), items[-1].items))
        return result


def _items(pyramid: LatticePyramid) -> list[LatticeItems]:
    """The items on every level, counted once: a GPU is waited for."""
    number = count_items(pyramid.levels[0])
    return [LatticeItems(level, number) for level in pyramid.levels]


def _check_widths(channels: Sequence[int]) -> None:
    if not channels or any(type(width) is not int or width < 1 for width in channels):
        raise InputError(f"channels must name the width of each level, such as (16, 32, 64), got {channels!r}")
