"""N(j): the taps of a filter on the lattice, and the Gaussian's weights on them.

Symbols: d is the dimension of the features, s the size of the neighborhood. A tap is a k of
{0..s}^{d+1} with min k = 0; it reaches the vertex at the offset sum_j k_j e_j, where e_j = (d+1) u_j - 1 and
u_j the j-th unit vector. There are (s+1)^{d+1} - s^{d+1} taps. They are ordered lexicographically, so tap 0
is the center, and they are closed under negation: the opposite of k is max(k) - k.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from permutohedral.errors import InputError, NeighborhoodError
from permutohedral.ops.constants import constant, shared_constant
from permutohedral.ops.contract import blur_gain

# A filter beyond this is a mistake rather than a model: d = 9, s = 2 has 58,025 taps.
MAX_TAPS = 1 << 20
# far beyond what a filter can use, and near enough that no offset overflows
MAX_DILATION = 1024
# every step of a halo takes a pass over all lattice points
MAX_HALO = 1024
# beyond this even the number of taps takes long to compute
_MOST_BITS = 1 << 14


def count_taps(dimension: int, size: int) -> int:
    """(s+1)^{d+1} - s^{d+1}.

    >>> [count_taps(2, s) for s in range(4)]
    [1, 7, 19, 37]
    """
    if size > 0 and dimension * size.bit_length() > _MOST_BITS:
        raise NeighborhoodError(
            f"a neighborhood of size {size} in {dimension} dimensions has more than 2^{_MOST_BITS} taps; use a smaller "
            "neighborhood_size or fewer feature dimensions"
        )
    return int((size + 1) ** (dimension + 1) - size ** (dimension + 1))


def _in_words(number: int) -> str:
    """Return all digits of a number, or about which power of two a very large one is.

    >>> _in_words(1234567), _in_words(3**100)
    ('1,234,567', 'about 2^159')
    """
    return f"{number:,}" if number < 1 << 64 else f"about 2^{number.bit_length()}"


@lru_cache(maxsize=32)
def _taps(dimension: int, size: int) -> Tensor:
    """Return all k, int64 `[taps, d + 1]`, in lexicographic order."""
    taps = np.zeros((1, 0), dtype=np.int64)
    for column in range(dimension + 1):
        # the last coordinate is free only if one before it is already zero
        free = (taps == 0).any(axis=1) | (column < dimension)
        repeats = np.where(free, size + 1, 1)
        first = np.repeat(np.cumsum(repeats) - repeats, repeats)
        digit = np.arange(repeats.sum()) - first
        taps = np.column_stack([np.repeat(taps, repeats, axis=0), digit])
    return torch.from_numpy(taps)


@shared_constant
def _offsets(dimension: int, size: int) -> Tensor:
    taps = _taps(dimension, size)
    offsets = (dimension + 1) * taps - taps.sum(dim=1, keepdim=True)
    return offsets[:, :dimension].to(torch.int32).contiguous()


@shared_constant
def _opposite(dimension: int, size: int) -> Tensor:
    taps = _taps(dimension, size)
    opposite = taps.amax(dim=1, keepdim=True) - taps
    # lexicographic order is the order of the digits read as one number in base s+1
    powers = (size + 1) ** torch.arange(dimension, -1, -1, device=taps.device)
    return torch.searchsorted((taps * powers).sum(dim=1), (opposite * powers).sum(dim=1))


@shared_constant
def _gaussian(dimension: int, size: int) -> Tensor:
    taps = _taps(dimension, size)
    n_0, n_1, n_2 = (taps.eq(i).sum(dim=1).double() for i in range(3))
    highest = taps.amax(dim=1)
    one = (torch.exp2(-n_1) + torch.exp2(-n_0)) / blur_gain(dimension)
    two = torch.exp2(-(n_0 + n_2)) / blur_gain(dimension)
    weight = torch.where(highest == 1, one, torch.where(highest == 2, two, 0.0))
    return torch.where(highest == 0, 1.0, weight)


@dataclass(frozen=True)
class Neighborhood:
    """The taps of a filter of size s on the lattice of dimension d.

    Attributes:
        dimension: d >= 1.
        neighborhood_size: s >= 0, the steps the filter reaches in every direction; 0 is the center alone.
        dilation: length of a step, r >= 1: with 2 the filter reads every other vertex, and reaches twice as far.
        filter_size: number of taps, (s+1)^{d+1} - s^{d+1}.

    >>> import permutohedral as ph
    >>> ph.lattice.Neighborhood(dimension=2, neighborhood_size=1)
    Neighborhood(dimension=2, neighborhood_size=1, dilation=1, filter_size=7)
    >>> wide = ph.lattice.Neighborhood(2, 1, dilation=3)
    >>> bool((wide.offsets() == 3 * ph.lattice.Neighborhood(2, 1).offsets()).all())
    True
    >>> ph.lattice.Neighborhood(2, 1).taps[:3].tolist()
    [[0, 0, 0], [0, 0, 1], [0, 1, 0]]
    """

    dimension: int
    neighborhood_size: int
    dilation: int = 1
    filter_size: int = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.dimension, int) or self.dimension < 1:
            raise NeighborhoodError(f"dimension must be a whole number of at least 1, got {self.dimension!r}")
        if not isinstance(self.neighborhood_size, int) or self.neighborhood_size < 0:
            raise NeighborhoodError(
                "neighborhood_size must be a whole number of at least 0 (0 keeps the center tap alone), got "
                f"{self.neighborhood_size!r}"
            )
        if type(self.dilation) is not int or not 1 <= self.dilation <= MAX_DILATION:
            raise NeighborhoodError(f"dilation must be a whole number from 1 to {MAX_DILATION}, got {self.dilation!r}")
        filter_size = count_taps(self.dimension, self.neighborhood_size)
        if filter_size > MAX_TAPS:
            raise NeighborhoodError(
                f"a neighborhood of size {self.neighborhood_size} in {self.dimension} dimensions has "
                f"{_in_words(filter_size)} taps, which is {_in_words(4 * filter_size)} bytes per lattice point; the "
                f"limit is {MAX_TAPS:,} taps. Use a smaller neighborhood_size, fewer feature dimensions (features are "
                "[points, dimension]), or the "
                "separable Gaussian (gaussian_filter)"
            )
        object.__setattr__(self, "filter_size", filter_size)

    @property
    def taps(self) -> Tensor:
        """Coordinates k of every tap, int64 `[filter_size, d + 1]`, lexicographic."""
        return _taps(self.dimension, self.neighborhood_size).clone()

    def offsets(self, device: torch.device | str = "cpu") -> Tensor:
        """First d coordinates of every tap's offset, int32 `[filter_size, d]`. Shared; do not write to it."""
        offsets = constant("_offsets", torch.int32, device, self.dimension, self.neighborhood_size)
        return offsets if self.dilation == 1 else offsets * self.dilation

    def opposite(self, device: torch.device | str = "cpu") -> Tensor:
        """For every tap, the tap at the negative offset, int64 `[filter_size]`. Shared; do not write to it.

        >>> import permutohedral as ph
        >>> ph.lattice.Neighborhood(1, 1).opposite().tolist()
        [0, 2, 1]
        """
        return constant("_opposite", torch.int64, device, self.dimension, self.neighborhood_size)

    def distances(self) -> Tensor:
        """Distance of every tap from the center in units of the features, float64 `[filter_size]`.

        ||k||^2 = 3/2 (sum k_i^2 - (sum k_i)^2 / (d+1)), times the dilation.
        """
        k = _taps(self.dimension, self.neighborhood_size).double()
        step = (1.5 * (k.square().sum(dim=1) - k.sum(dim=1).square() / (self.dimension + 1))).sqrt()
        return step * self.dilation


def neighborhood_of(dimension: int, size: int, dilation: int = 1) -> Neighborhood:
    """`Neighborhood(dimension, size, dilation)`, made once."""
    # not an int: let the constructor raise
    if type(size) is not int or type(dilation) is not int or torch.compiler.is_compiling():
        return Neighborhood(dimension, size, dilation)
    return _known(dimension, size, dilation)


_known = lru_cache(maxsize=128)(Neighborhood)


def gaussian_weight(
    dimension: int, neighborhood_size: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Tensor:
    """Return the Gaussian of one feature unit on the taps, `[filter_size]`, 1 at the center.

    The response of the d+1 passes v <- v + (v(. + e_j) + v(. - e_j)) / 2 to an impulse, divided by its value at
    the center, in closed form. With n_i the number of k_j equal to i and a = 1 + 2^{-d}:

        max k = 0: 1      max k = 1: (2^{-n_1} + 2^{-n_0}) / a      max k = 2: 2^{-(n_0 + n_2)} / a      else 0

    Exact for s >= 2; s = 1 cuts it off.

    >>> import permutohedral as ph
    >>> ph.lattice.gaussian_weight(1, 1).tolist()
    [1.0, 0.6666666865348816, 0.6666666865348816]
    """
    Neighborhood(dimension, neighborhood_size)
    return constant("_gaussian", dtype, device, dimension, neighborhood_size).clone()


def check_halo(halo: int, dimension: int) -> None:
    """Raise unless `halo` is a number of steps that leaves a lattice of this dimension at a size one can build."""
    if type(halo) is int and halo == 0:
        return
    if not isinstance(halo, int) or halo < 0:
        raise InputError(f"halo must be a whole number of at least 0, got {halo!r}")
    if halo > MAX_HALO or count_taps(dimension, halo) > MAX_TAPS:
        raise InputError(
            f"a halo of {halo} steps inserts up to {count_taps(dimension, halo):,} lattice points around each in "
            f"{dimension} dimensions; at most {MAX_TAPS:,} and {MAX_HALO} steps are allowed, 1 or 2 are usually enough"
        )
