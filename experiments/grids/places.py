"""Splat, convolve and slice in plain torch, on a lattice and on grids.

A place is a lattice point or a grid cell that can hold a value. Lattice and hashed grid keep only occupied places,
sorted by an integer code. Their code is the same except for the corners around a point. A dense grid keeps all places.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

import permutohedral as ph

Kind = Literal["lattice", "hashed", "dense"]


def count_weights(kind: Kind, dimension: int, size: int) -> int:
    """Return the number of taps of a filter of `size`: s of the lattice, taps a side of a grid.

    >>> count_weights("lattice", 3, 2), count_weights("hashed", 3, 5)
    (65, 125)
    """
    if kind == "lattice":
        return ph.lattice.Neighborhood(dimension, size).filter_size
    return int(size**dimension)


def gaussian_of(kind: Kind, dimension: int, size: int) -> Tensor:
    """Return the Gaussian whose filter of ones normalizes results, `[taps]`: the library's, or binomial on a grid.

    >>> gaussian_of("dense", 2, 3).tolist()
    [0.0625, 0.125, 0.0625, 0.125, 0.25, 0.125, 0.0625, 0.125, 0.0625]
    """
    if kind == "lattice":
        return ph.lattice.gaussian_weight(dimension, size, torch.float64)
    row = torch.tensor([math.comb(size - 1, tap) / 2 ** (size - 1) for tap in range(size)], dtype=torch.float64)
    weight = row
    for _ in range(dimension - 1):
        weight = (weight[:, None] * row).flatten()
    return weight


@dataclass(frozen=True)
class Places:
    """Places around points, and the taps of a filter.

    Attributes:
        num_places: number of places that can hold a value.
        vertices: places around each point, int64 `[points, corners]`.
        shares: weights of these places, which sum to 1, `[points, corners]`.
        codes: ascending codes of the occupied places, int64 `[places]`. None: a place of a dense grid is its code.
        shifts: difference of the codes of a place and its neighbor at each tap, int64 `[taps]`.
        gaussian: filter whose result for ones divides every result, `[taps]`.
    """

    num_places: int
    vertices: Tensor
    shares: Tensor
    codes: Tensor | None
    shifts: Tensor
    gaussian: Tensor

    def splat(self, values: Tensor) -> Tensor:
        """Return the sums of `values [points, channels]` and of ones at each place, and a row of zeros at the end."""
        widened = torch.cat([values, values.new_ones(len(values), 1)], dim=1)
        sums = values.new_zeros(self.num_places + 1, widened.shape[1])
        for vertices, shares in zip(self.vertices.T, self.shares.T, strict=True):
            sums.index_add_(0, vertices, shares[:, None] * widened)
        return sums

    def neighbors(self) -> Iterator[tuple[int, Tensor]]:
        """Yield each tap and the rows of its neighbors, int64 `[places]`; the row of zeros where one is missing."""
        assert self.codes is not None
        places = torch.arange(self.num_places)
        tap_of = {shift: tap for tap, shift in enumerate(self.shifts.tolist())}
        yield tap_of[0], places
        for shift in (shift for shift in tap_of if shift > 0):
            found = torch.searchsorted(self.codes, self.codes + shift)
            # behind the last code there is none
            is_neighbor = self.codes[found.clamp_max(self.num_places - 1)] == self.codes + shift
            ahead = torch.where(is_neighbor, found, self.num_places)
            behind = torch.full_like(ahead, self.num_places)
            behind[found[is_neighbor]] = places[is_neighbor]
            yield tap_of[shift], ahead
            yield tap_of[-shift], behind

    def slice(self, at_places: Tensor) -> Tensor:
        """Interpolate `[places, channels]` at the points: `[points, channels]`."""
        return functional.embedding_bag(self.vertices, at_places, mode="sum", per_sample_weights=self.shares)

    def filter(self, values: Tensor, weight: Tensor) -> Tensor:
        """Splat `values [points, channels]`, convolve with `weight [taps]`, slice, and divide by the filter of ones."""
        factors = torch.cat([weight[:, None].expand(-1, values.shape[1]), self.gaussian[:, None]], dim=1)
        result = self._filter_dense(values, factors) if self.codes is None else self._filter_occupied(values, factors)
        return result[:, :-1] / result[:, -1:]

    def _filter_occupied(self, values: Tensor, factors: Tensor) -> Tensor:
        sums = self.splat(values)
        convolved = torch.zeros_like(sums[:-1])
        for tap, rows in self.neighbors():
            convolved.addcmul_(sums.index_select(0, rows), factors[tap])
        return self.slice(convolved)

    def _filter_dense(self, values: Tensor, factors: Tensor) -> Tensor:
        # one long row for each channel, so that a tap is an addition of two slices
        sums = values.new_zeros(factors.shape[1], self.num_places)
        for row, channel in zip(sums, [*values.T, values.new_ones(len(values))], strict=True):
            for vertices, shares in zip(self.vertices.T, self.shares.T, strict=True):
                row.index_add_(0, vertices, shares * channel)
        convolved = torch.zeros_like(sums)
        # the border is wide enough for all taps of a corner
        first, last = int(self.shifts.max()), self.num_places - int(self.shifts.max())
        for shift, weights in zip(self.shifts.tolist(), factors.tolist(), strict=True):
            for to, row, weight in zip(convolved, sums, weights, strict=True):
                to[first:last].add_(row[first + shift : last + shift], alpha=weight)
        return torch.cat([self.slice(row[:, None]) for row in convolved], dim=1)

    def responses(self, values: Tensor, together: int = 32) -> Tensor:
        """Return the factor of each weight in the result: `[taps, points, channels]`."""
        sums = self.splat(values)
        responses = sums.new_empty(len(self.shifts), *values.shape)
        mass = torch.zeros_like(sums[:-1, -1:])
        neighbors = self.neighbors()
        while part := list(itertools.islice(neighbors, together)):
            for tap, rows in part:
                mass += self.gaussian[tap] * sums[rows, -1:]
            block = torch.stack([sums[rows, :-1] for _, rows in part], dim=1)
            sliced = self.slice(block.flatten(1)).unflatten(1, (len(part), -1))
            responses[[tap for tap, _ in part]] = sliced.transpose(0, 1)
        return responses.div_(self.slice(mass))


def build_places(kind: Kind, features: Tensor, size: int) -> Places:
    """Find the places around `features [points, d]`, for a filter of `size` (see `count_weights`)."""
    gaussian = gaussian_of(kind, features.shape[1], size).to(features.dtype)
    if kind == "lattice":
        return _build_lattice(features, size, gaussian)
    return _build_grid(features, size, gaussian, kind == "dense")


def _build_lattice(features: Tensor, size: int, gaussian: Tensor) -> Places:
    with ph.backends.use("reference"):
        simplices = ph.build_lattice(features, neighborhood_size=0).source
    offsets = ph.lattice.Neighborhood(features.shape[1], size).offsets().long()
    keys = simplices.keys[:, 1:].long()
    strides, low, _ = _count_codes(keys, int(offsets.abs().max()))
    codes, order = ((keys - low) @ strides).sort()
    row = torch.empty_like(order)
    row[order] = torch.arange(len(order))
    vertices = row[simplices.vertices.long()]
    return Places(len(codes), vertices, simplices.barycentric, codes, offsets @ strides, gaussian)


def _build_grid(features: Tensor, size: int, gaussian: Tensor, is_dense: bool) -> Places:
    dimension = features.shape[1]
    lowest = features.floor()
    cells, rest = lowest.long(), features - lowest
    corners = torch.cartesian_prod(*[torch.arange(2)] * dimension).view(-1, dimension)
    offsets = torch.cartesian_prod(*[torch.arange(size) - size // 2] * dimension).view(-1, dimension)
    # a corner lies up to 1 above its cell
    strides, low, num_cells = _count_codes(cells, size // 2, 1)
    shares = rest.new_ones(len(rest), 1)
    for axis in rest.T:
        shares = (shares[:, :, None] * torch.stack([1 - axis, axis], dim=1)[:, None]).flatten(1)
    codes, steps, shifts = (cells - low) @ strides, corners @ strides, offsets @ strides
    if is_dense:
        return Places(num_cells, codes[:, None] + steps, shares, None, shifts, gaussian)
    # points share cells: number those first, then their corners
    distinct, cell = codes.unique(return_inverse=True)
    occupied, vertex = (distinct[:, None] + steps).unique(return_inverse=True)
    return Places(len(occupied), vertex[cell], shares, occupied, shifts, gaussian)


def _count_codes(keys: Tensor, margin: int, above: int = 0) -> tuple[Tensor, Tensor, int]:
    """Return strides and origin of codes that are distinct within `margin` of integer `keys [n, d]`, and their number.

    The last coordinate changes fastest.
    """
    low, high = keys.amin(dim=0) - margin, keys.amax(dim=0) + margin + above
    extents = (high - low + 1).tolist()
    strides = [math.prod(extents[axis + 1 :]) for axis in range(len(extents))]
    return torch.tensor(strides, device=keys.device), low, math.prod(extents)
