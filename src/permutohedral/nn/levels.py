"""Layers whose values live on lattice points: convolutions on a level and between levels, pooling."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from permutohedral.errors import InputError
from permutohedral.filters.steps import convolve
from permutohedral.lattice.lattice import Lattice
from permutohedral.lattice.neighborhood import Neighborhood
from permutohedral.lattice.pyramid import LatticePyramid
from permutohedral.lattice.tensors import check_tensor, reject_scripting
from permutohedral.levels import coarsen, convolve_down, convolve_up, pool, refine


class _LatticeFilter(nn.Module):
    """A learned filter over the taps of a neighborhood, and a bias."""

    __prepare_scriptable__ = reject_scripting

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        dimension: int,
        neighborhood_size: int = 1,
        *,
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
        """Draw new weights of mean zero, which preserve the variance over the taps that are read."""
        bound = 1 / math.sqrt(self._taps_read() * self.in_channels)
        with torch.no_grad():
            self.weight.normal_(std=bound)
            if self.bias is not None:
                self.bias.uniform_(-bound, bound)

    def _filter(self, lattice_values: Tensor, convolve: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Convolve, and add the bias."""
        check_tensor("lattice values", lattice_values)
        # twice the channels would be convolved as two groups
        if lattice_values.dim() < 2 or lattice_values.shape[-1] != self.in_channels:
            raise InputError(
                f"lattice_values: this layer takes {self.in_channels} channels, got the shape "
                f"{tuple(lattice_values.shape)}"
            )
        convolved = convolve(lattice_values, self.weight)
        return convolved if self.bias is None else convolved + self.bias.to(convolved.dtype)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, dimension={self.neighborhood.dimension}, "
            f"neighborhood_size={self.neighborhood.neighborhood_size}"
        )


class LatticeConv(_LatticeFilter):
    """Convolve values on lattice points, without splat and slice.

    Args:
        in_channels: of the values.
        out_channels: of the result.
        dimension: d of the features.
        neighborhood_size: s, the reach of the filter in lattice steps.
        bias: add a learned number to every output channel.

    >>> import torch, permutohedral as ph
    >>> lattice = ph.build_lattice(torch.rand(100, 3) * 9)
    >>> ph.nn.LatticeConv(4, 8, dimension=3)(ph.splat(torch.rand(100, 4), lattice), lattice).shape[1]
    8
    """

    def forward(self, lattice_values: Tensor, lattice: Lattice) -> Tensor:
        """Convolve `[lattice_points, in_channels]` to `[lattice_points, out_channels]`."""
        return self._filter(lattice_values, lambda rows, weight: convolve(rows, weight, lattice))


class LatticeConvDown(_LatticeFilter):
    """Convolve with a stride of 2, from one level of a pyramid to the next coarser one.

    >>> import torch, permutohedral as ph
    >>> pyramid = ph.levels.build_pyramid(torch.rand(100, 3) * 9, num_levels=2)
    >>> fine = ph.splat(torch.rand(100, 4), pyramid.levels[0])
    >>> len(ph.nn.LatticeConvDown(4, 8, dimension=3)(fine, pyramid, level=0)) == pyramid.levels[1].num_lattice_points
    True
    """

    def forward(self, lattice_values: Tensor, pyramid: LatticePyramid, level: int) -> Tensor:
        """`[lattice_points, in_channels]` of `level` to `[lattice_points, out_channels]` of `level + 1`."""
        return self._filter(lattice_values, lambda rows, weight: convolve_down(rows, weight, pyramid, level))


class LatticeConvUp(_LatticeFilter):
    """Run the transposed convolution of stride 2, from one level of a pyramid to the next finer one.

    >>> import torch, permutohedral as ph
    >>> pyramid = ph.levels.build_pyramid(torch.rand(100, 3) * 9, num_levels=2)
    >>> coarse = ph.splat(torch.rand(100, 8), pyramid.levels[1])
    >>> len(ph.nn.LatticeConvUp(8, 4, dimension=3)(coarse, pyramid, level=0)) == pyramid.levels[0].num_lattice_points
    True
    """

    def _taps_read(self) -> float:
        # one of 2^d lattice points lies on the coarse lattice
        return max(self.neighborhood.filter_size / float(2**self.neighborhood.dimension), 1.0)

    def forward(self, lattice_values: Tensor, pyramid: LatticePyramid, level: int) -> Tensor:
        """`[lattice_points, in_channels]` of `level + 1` to `[lattice_points, out_channels]` of `level`."""
        return self._filter(lattice_values, lambda rows, weight: convolve_up(rows, weight, pyramid, level))


class LatticeLinearDown(nn.Module):
    """Average-pool to the next coarser level, then apply a linear layer: a cheap `LatticeConvDown`.

    Args:
        in_channels: of the values.
        out_channels: of the result.
        dimension: d of the features.

    >>> import torch, permutohedral as ph
    >>> pyramid = ph.levels.build_pyramid(torch.rand(100, 3) * 9, num_levels=2)
    >>> fine = ph.splat(torch.rand(100, 4), pyramid.levels[0])
    >>> len(ph.nn.LatticeLinearDown(4, 8, dimension=3)(fine, pyramid, level=0)) == pyramid.levels[1].num_lattice_points
    True
    """

    __prepare_scriptable__ = reject_scripting

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        dimension: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.share = 0.5**dimension
        self.mix = nn.Linear(in_channels, out_channels, device=device, dtype=dtype)

    def forward(self, lattice_values: Tensor, pyramid: LatticePyramid, level: int) -> Tensor:
        """`[lattice_points, in_channels]` of `level` to `[lattice_points, out_channels]` of `level + 1`."""
        mixed: Tensor = self.mix(coarsen(self.share * lattice_values, pyramid, level))
        return mixed


class LatticeLinearUp(nn.Module):
    """Apply a linear layer, then interpolate on the next finer level: a cheap `LatticeConvUp`.

    Args:
        in_channels: of the values.
        out_channels: of the result.

    >>> import torch, permutohedral as ph
    >>> pyramid = ph.levels.build_pyramid(torch.rand(100, 3) * 9, num_levels=2)
    >>> coarse = ph.splat(torch.rand(100, 8), pyramid.levels[1])
    >>> len(ph.nn.LatticeLinearUp(8, 4)(coarse, pyramid, level=0)) == pyramid.levels[0].num_lattice_points
    True
    """

    __prepare_scriptable__ = reject_scripting

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.mix = nn.Linear(in_channels, out_channels, device=device, dtype=dtype)

    def forward(self, lattice_values: Tensor, pyramid: LatticePyramid, level: int) -> Tensor:
        """`[lattice_points, in_channels]` of `level + 1` to `[lattice_points, out_channels]` of `level`."""
        return refine(self.mix(lattice_values), pyramid, level)


class LatticePool(nn.Module):
    """Max-pool to the next coarser level.

    >>> import torch, permutohedral as ph
    >>> pyramid = ph.levels.build_pyramid(torch.rand(100, 3) * 9, num_levels=2)
    >>> ph.nn.LatticePool()(ph.splat(torch.rand(100, 4), pyramid.levels[0]), pyramid, level=0).shape[1]
    4
    """

    __prepare_scriptable__ = reject_scripting

    def forward(self, lattice_values: Tensor, pyramid: LatticePyramid, level: int) -> Tensor:
        """`[lattice_points, channels]` of `level` to `[lattice_points, channels]` of `level + 1`."""
        return pool(lattice_values, pyramid, level)
