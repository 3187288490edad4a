"""Layers whose values live on lattice points: convolutions on a level and between levels, pooling."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from permutohedral.checks import lattice_to_rows
from permutohedral.errors import InputError
from permutohedral.filters.steps import convolve
from permutohedral.lattice import Lattice
from permutohedral.levels import coarsen, convolve_down, convolve_up, pool, refine, tables_between
from permutohedral.memory import check_rows
from permutohedral.neighborhood import Neighborhood
from permutohedral.nn.group_norm import Normalized
from permutohedral.ops.fused_layers import ConvolutionStep, convolve_rows
from permutohedral.ops.fused_primitives import ConvolutionTables
from permutohedral.pyramid import LatticePyramid
from permutohedral.tensors import check_tensor, refuse_scripting


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
        check_tensor("lattice values", lattice_values)
        # a multiple of them would be as many groups
        if lattice_values.dim() < 2 or lattice_values.shape[-1] != self.in_channels:
            raise InputError(
                f"this layer takes {self.in_channels} channels, got lattice values of shape "
                f"{tuple(lattice_values.shape)}"
            )

        def composed(
            values: Tensor,
            weight: Tensor,
            bias: Tensor | None,
            norm_weight: Tensor | None,
            norm_bias: Tensor | None,
            added: Tensor | None,
        ) -> Tensor:
            if before is not None and norm_weight is not None and norm_bias is not None:
                values = before.norm.normalize(values, (norm_weight, norm_bias), before.items, relu=True)
            convolved = convolve(values, weight)
            convolved = convolved if bias is None else convolved + bias.to(convolved.dtype)
            return convolved if added is None else convolved + added

        affine: tuple[Tensor | None, Tensor | None] = (None, None)
        if before is not None:
            affine = before.norm.weight, before.norm.bias
        if reverse is not None:
            rows, _ = lattice_to_rows(lattice_values, source, source.source)
            check_rows(neighbors.shape[1], self.out_channels, rows)
            norm = None if before is None else before.norm.describe(before.items, relu=True)
            tables = ConvolutionTables(neighbors, reverse, source.neighborhood.opposite(source.device))
            step = ConvolutionStep(tables, norm, composed)
            fused = convolve_rows(lattice_values, self.weight, self.bias, affine, added, step)
            if fused is not None:
                return fused
        return composed(lattice_values, self.weight, self.bias, *affine, added)

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


class CoarsenLinear(nn.Module):
    """Channels that are mixed on the next level, of the mean around each lattice point there: a cheap `Coarsen`.

    What is fixed is `coarsen`, P^T, over the 2^d fine lattice points that a coarse one stands for.

    Args:
        in_channels: of the values.
        out_channels: of the result.
        dimension: d of the features.

    >>> import permutohedral as ph
    >>> pyramid = ph.build_pyramid(torch.rand(100, 3) * 9, levels=2)
    >>> fine = ph.splat(torch.rand(100, 4), pyramid.levels[0])
    >>> len(CoarsenLinear(4, 8, dimension=3)(fine, pyramid, level=0)) == pyramid.levels[1].num_lattice_points
    True
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(self, in_channels: int, out_channels: int, dimension: int) -> None:
        super().__init__()
        self.share = 0.5**dimension
        self.mix = nn.Linear(in_channels, out_channels)

    def forward(self, lattice_values: Tensor, pyramid: LatticePyramid, level: int) -> Tensor:
        """`[lattice_points, in_channels]` of `level` to `[lattice_points, out_channels]` of `level + 1`."""
        mixed: Tensor = self.mix(coarsen(self.share * lattice_values, pyramid, level))
        return mixed


class RefineLinear(nn.Module):
    """Channels that are mixed, then interpolated on the finer level by `refine`, which is fixed: a cheap `Refine`.

    Args:
        in_channels: of the values.
        out_channels: of the result.

    >>> import permutohedral as ph
    >>> pyramid = ph.build_pyramid(torch.rand(100, 3) * 9, levels=2)
    >>> coarse = ph.splat(torch.rand(100, 8), pyramid.levels[1])
    >>> len(RefineLinear(8, 4)(coarse, pyramid, level=0)) == pyramid.levels[0].num_lattice_points
    True
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.mix = nn.Linear(in_channels, out_channels)

    def forward(self, lattice_values: Tensor, pyramid: LatticePyramid, level: int) -> Tensor:
        """`[lattice_points, in_channels]` of `level + 1` to `[lattice_points, out_channels]` of `level`."""
        return refine(self.mix(lattice_values), pyramid, level)


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
