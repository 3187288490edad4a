"""Layers whose values live on lattice points: convolutions on a level and between levels, pooling, normalization."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from permutohedral.checks import lattice_to_rows
from permutohedral.errors import InputError
from permutohedral.filters.steps import convolve
from permutohedral.lattice import Lattice
from permutohedral.levels import convolve_down, convolve_up, pool, tables_between
from permutohedral.memory import check_rows
from permutohedral.neighborhood import Neighborhood
from permutohedral.ops.fused_layers import ConvolutionStep, convolve_rows, normalize_items
from permutohedral.ops.fused_primitives import ConvolutionTables, ItemRows, ItemsNorm
from permutohedral.pyramid import LatticePyramid
from permutohedral.tensors import refuse_scripting


class _LatticeFilter(nn.Module):
    """A learned filter over the taps of a neighborhood, and a bias."""

    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        dimension: int,
        neighborhood_size: int = 1,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, number in (("in_channels", in_channels), ("out_channels", out_channels)):
            if type(number) is not int or number < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {number!r}")
        self.neighborhood = Neighborhood(dimension, neighborhood_size)
        self.in_channels, self.out_channels = in_channels, out_channels
        size = (self.neighborhood.filter_size, in_channels, out_channels)
        self.weight = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    # how many of the taps find a lattice point on average: all but what is missing at the border of the points
    def _taps_read(self) -> float:
        return self.neighborhood.filter_size

    def reset_parameters(self) -> None:
        """Draw the weights anew, of mean zero, so that the variance is preserved over the taps that are read."""
        bound = 1 / math.sqrt(self._taps_read() * self.in_channels)
        with torch.no_grad():
            self.weight.normal_(std=bound)
            if self.bias is not None:
                self.bias.uniform_(-bound, bound)

    def _filter(
        self,
        lattice_values: Tensor,
        lattices: tuple[Lattice, Tensor, Tensor | None],
        convolve: Callable[[Tensor, Tensor], Tensor],
        before: Normalized | None = None,
        added: Tensor | None = None,
    ) -> Tensor:
        """In one call of the backend where it can; the lattice of the values, and tables from there and back."""
        source, neighbors, reverse = lattices

        def composed(values: Tensor, weight: Tensor, bias: Tensor | None, *affine: Tensor) -> Tensor:
            if before is not None:
                values = before.norm.normalize(values, (affine[0], affine[1]), before.items, relu=True)
            convolved = convolve(values, weight)
            return convolved if bias is None else convolved + bias.to(convolved.dtype)

        affine = (None, None) if before is None else (before.norm.weight, before.norm.bias)
        norm = None if before is None else before.norm.describe(before.items, relu=True)
        if reverse is not None:
            rows, _ = lattice_to_rows(lattice_values, source, source.source)
            check_rows(neighbors.shape[1], self.out_channels, rows)
            tables = ConvolutionTables(neighbors, reverse, source.neighborhood.opposite(source.device))
            step = ConvolutionStep(tables, norm, composed)
            fused = convolve_rows(lattice_values, self.weight, self.bias, affine, added, step)
            if fused is not None:
                return fused
        filtered = composed(lattice_values, self.weight, self.bias, *affine)
        return filtered if added is None else filtered + added

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, dimension={self.neighborhood.dimension}, "
            f"neighborhood_size={self.neighborhood.size}"
        )


class LatticeConvolution(_LatticeFilter):
    """Convolves values on lattice points: no splat, no slice.

    Args:
        in_channels: of the values.
        out_channels: of the result.
        dimension: d of the features.
        neighborhood_size: s, the reach of the filter in lattice steps.
        bias: add a learned number to every output channel.

    >>> import permutohedral as ph
    >>> lattice = ph.build_lattice(torch.rand(100, 3) * 9)
    >>> LatticeConvolution(4, 8, dimension=3)(ph.splat(torch.rand(100, 4), lattice), lattice).shape[1]
    8
    """

    def forward(
        self, lattice_values: Tensor, lattice: Lattice, before: Normalized | None = None, added: Tensor | None = None
    ) -> Tensor:
        """Convolve.

        Args:
            lattice_values: `[lattice_points, in_channels]`.
            lattice: of the lattice points.
            before: normalizes the values first, and makes zero what is negative then; on a GPU in the same step.
            added: `[lattice_points, out_channels]`, to the result, likewise.

        Returns:
            `[lattice_points, out_channels]`.
        """
        lattices = lattice, lattice.neighbors, lattice.reverse_neighbors
        return self._filter(
            lattice_values, lattices, lambda rows, weight: convolve(rows, weight, lattice), before, added
        )


class Coarsen(_LatticeFilter):
    """Convolves with a stride of 2: from the lattice points of one level of a pyramid to those of the next.

    >>> import permutohedral as ph
    >>> pyramid = ph.build_pyramid(torch.rand(100, 3) * 9, levels=2)
    >>> fine = ph.splat(torch.rand(100, 4), pyramid.levels[0])
    >>> len(Coarsen(4, 8, dimension=3)(fine, pyramid, level=0)) == pyramid.levels[1].num_lattice_points
    True
    """

    def forward(self, lattice_values: Tensor, pyramid: LatticePyramid, level: int) -> Tensor:
        """`[lattice_points, in_channels]` of `level` to `[lattice_points, out_channels]` of `level + 1`."""
        tables = tables_between(pyramid, level)
        lattices = pyramid.levels[level], tables.down, tables.up
        return self._filter(lattice_values, lattices, lambda rows, weight: convolve_down(rows, weight, pyramid, level))


class Refine(_LatticeFilter):
    """The transposed convolution of stride 2: from the lattice points of one level to those of the finer one.

    >>> import permutohedral as ph
    >>> pyramid = ph.build_pyramid(torch.rand(100, 3) * 9, levels=2)
    >>> coarse = ph.splat(torch.rand(100, 8), pyramid.levels[1])
    >>> len(Refine(8, 4, dimension=3)(coarse, pyramid, level=0)) == pyramid.levels[0].num_lattice_points
    True
    """

    def _taps_read(self) -> float:
        # one of 2^d lattice points lies on the coarse lattice
        return max(self.neighborhood.filter_size / float(2**self.neighborhood.dimension), 1.0)

    def forward(self, lattice_values: Tensor, pyramid: LatticePyramid, level: int) -> Tensor:
        """`[lattice_points, in_channels]` of `level + 1` to `[lattice_points, out_channels]` of `level`."""
        tables = tables_between(pyramid, level)
        lattices = pyramid.levels[level + 1], tables.up, tables.down
        return self._filter(lattice_values, lattices, lambda rows, weight: convolve_up(rows, weight, pyramid, level))


class LatticePool(nn.Module):
    """The largest value of each channel around every lattice point of the next level: `pool` as a layer.

    >>> import permutohedral as ph
    >>> pyramid = ph.build_pyramid(torch.rand(100, 3) * 9, levels=2)
    >>> LatticePool()(ph.splat(torch.rand(100, 4), pyramid.levels[0]), pyramid, level=0).shape[1]
    4
    """

    __prepare_scriptable__ = refuse_scripting

    def forward(self, lattice_values: Tensor, pyramid: LatticePyramid, level: int) -> Tensor:
        """`[lattice_points, channels]` of `level` to `[lattice_points, channels]` of `level + 1`."""
        return pool(lattice_values, pyramid, level)


class LatticeItems:
    """Which lattice points belong to which item of a ragged batch: made once, for all that is normalized on a lattice.

    Args:
        lattice: whose lattice points.
        items: how many there are, if that is known; else a GPU is waited for.

    >>> import permutohedral as ph
    >>> lattice = ph.build_lattice(torch.zeros(4, 2), batch=torch.tensor([0, 0, 2, 2]))
    >>> LatticeItems(lattice).mean(torch.ones(lattice.num_lattice_points, 1)).flatten().tolist()
    [1.0, 0.0, 1.0]
    """

    def __init__(self, lattice: Lattice, items: int | None = None) -> None:
        self.item = lattice.source.keys[:, 0]
        self.items = count_items(lattice) if items is None else items

    @cached_property
    def _members(self) -> Tensor:
        """How many lattice points each item has, at least one, `[items, 1]`."""
        # counted without waiting, which bincount does not
        one = torch.ones((), dtype=torch.int32, device=self.item.device).expand(self.item.shape)
        return self.item.new_zeros(self.items).index_add(0, self.item, one).clamp_min(1)[:, None]

    def mean(self, rows: Tensor) -> Tensor:
        """The mean over the lattice points of each item, `[lattice_points, channels]` to `[items, channels]`."""
        return rows.new_zeros(self.items, rows.shape[1]).index_add(0, self.item, rows) / self._members

    @cached_property
    def rows(self) -> ItemRows:
        """The lattice points of each item, listed when it is first asked for."""
        ordered, order = torch.sort(self.item, stable=True)
        each = torch.arange(self.items + 1, dtype=torch.int32, device=self.item.device)
        starts = torch.searchsorted(ordered, each, out_int32=True)
        return ItemRows(None if self.items == 1 else order.to(torch.int32), starts, self.items)

    def spread(self, of_items: Tensor) -> Tensor:
        """What belongs to the items at each lattice point, `[items, channels]` to `[lattice_points, channels]`."""
        return of_items.index_select(0, self.item)


def count_items(lattice: Lattice) -> int:
    """How many items a ragged batch has; those behind the last that has lattice points are not seen."""
    return int(lattice.source.keys[:, 0].max()) + 1 if lattice.num_lattice_points else 0


class LatticeGroupNorm(nn.Module):
    """Group normalization over the lattice points of each item: `torch.nn.GroupNorm` for ragged batches.

    Args:
        num_groups: blocks of channels that are normalized apart; divides num_channels.
        num_channels: of the values.
        eps: added to the variance.

    >>> import permutohedral as ph
    >>> lattice = ph.build_lattice(torch.rand(90, 3) * 9, batch=torch.arange(90) // 30)
    >>> normalized = LatticeGroupNorm(2, 4)(ph.splat(torch.rand(90, 4), lattice), lattice)
    >>> float(normalized.detach().mean().abs()) < 1e-6
    True
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if type(num_groups) is not int or num_groups < 1 or num_channels % num_groups:
            raise InputError(f"num_groups must divide num_channels, got {num_groups!r} and {num_channels!r}")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = nn.Parameter(torch.ones(num_channels, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(num_channels, device=device, dtype=dtype))

    def forward(
        self, lattice_values: Tensor, lattice: Lattice, items: LatticeItems | None = None, relu: bool = False
    ) -> Tensor:
        """Normalize.

        Args:
            lattice_values: `[lattice_points, num_channels]`.
            lattice: of the lattice points.
            items: of the lattice, if several layers share them.
            relu: then make zero what is negative, in the same step on a GPU.

        Returns:
            `[lattice_points, num_channels]`.
        """
        items = LatticeItems(lattice) if items is None else items
        return self.normalize(lattice_values, (self.weight, self.bias), items, relu)

    def normalize(self, values: Tensor, affine: tuple[Tensor, Tensor], items: LatticeItems, relu: bool) -> Tensor:
        """The same with other weights than those of the layer: `affine`, what is multiplied and what is added."""

        def composed(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            normalized = _normalize(values, weight, bias, items, self.num_groups, self.eps)
            return normalized.relu() if relu else normalized

        fused = normalize_items(values, affine, self.describe(items, relu), composed)
        return composed(values, *affine) if fused is None else fused

    def describe(self, items: LatticeItems, relu: bool) -> Callable[[], ItemsNorm]:
        """What tells a backend how to normalize; the rows of the items are not listed before it is asked."""
        return lambda: ItemsNorm(items.rows, self.num_groups, self.eps, relu)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"


def _normalize(values: Tensor, weight: Tensor, bias: Tensor, items: LatticeItems, groups: int, eps: float) -> Tensor:
    """Group normalization of each item, step by step."""
    wide = values.float() if values.dtype.itemsize < 4 else values
    grouped = wide.reshape(len(wide), groups, wide.shape[1] // groups)
    centered = grouped - items.spread(items.mean(grouped.mean(dim=2)))[:, :, None]
    variance = items.mean(centered.square().mean(dim=2))
    scale = items.spread((variance + eps).rsqrt())[:, :, None]
    normalized = (centered * scale).reshape(wide.shape)
    return torch.addcmul(bias, normalized, weight).to(values.dtype)


class Normalized(NamedTuple):
    """That values are normalized, and made zero where they are negative then, before they are convolved.

    Attributes:
        norm: how.
        items: of the lattice.

    >>> import permutohedral as ph
    >>> lattice = ph.build_lattice(torch.rand(90, 3) * 9, batch=torch.arange(90) // 30)
    >>> before = Normalized(LatticeGroupNorm(2, 4), LatticeItems(lattice))
    >>> lattice_values = ph.splat(torch.rand(90, 4), lattice)
    >>> LatticeConvolution(4, 4, dimension=3)(lattice_values, lattice, before, added=lattice_values).shape[1]
    4
    """

    norm: LatticeGroupNorm
    items: LatticeItems
