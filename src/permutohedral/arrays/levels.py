"""The coarser levels of an OME-Zarr: means of the finest, which viewers show first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from permutohedral.arrays.stores import write_part
from permutohedral.arrays.unfinished import Unfinished
from permutohedral.dask.tiles import as_dtype, floats_of
from permutohedral.errors import InputError


@dataclass(frozen=True)
class Level:
    """A level that is made of the one before it.

    Attributes:
        target: the store.
        number: from 1.
        before: extents of the level before.
        shape: its own.
        tile: extents of what is made at once.
    """

    target: str
    number: int
    before: tuple[int, ...]
    shape: tuple[int, ...]
    tile: tuple[int, ...]

    def indices(self) -> Iterator[tuple[int, ...]]:
        """Of all tiles, in the order of the array."""
        counts = (math.ceil(extent / tile) for extent, tile in zip(self.shape, self.tile, strict=True))
        return itertools.product(*map(range, counts))

    def make_tile(self, index: tuple[int, ...]) -> None:
        """Read, average and write one tile, unless that was done."""
        import zarr

        unfinished = Unfinished(Path(self.target))
        mark = (self.number, *index)
        if unfinished.is_done(mark):
            return
        factors = factors_between(self.before, self.shape)
        own, wide = [], []
        for place, tile, factor, extent in zip(index, self.tile, factors, self.shape, strict=True):
            first, last = place * tile, min((place + 1) * tile, extent)
            own.append(slice(first, last))
            wide.append(slice(first * factor, last * factor))
        finer: Any = zarr.open_array(str(unfinished.folder / str(self.number - 1)), mode="r")
        sizes = [part.stop - part.start for part in own]
        means = average(np.asarray(finer[tuple(wide)]), sizes, factors)
        with unfinished.writing(mark):
            write_part(unfinished.folder / str(self.number), tuple(own), means)


def levels_of(target: str, shapes: Sequence[tuple[int, ...]], tile: tuple[int, ...]) -> list[Level]:
    """All levels after the first of `shapes`."""
    numbered = enumerate(itertools.pairwise(shapes), start=1)
    return [Level(target, number, before, shape, tile) for number, (before, shape) in numbered]


def check_levels(shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise unless a sample of each level is the mean of a whole number of samples of the one before.

    >>> check_levels([(9, 101), (9, 51), (5, 25)])
    """
    for before, shape in itertools.pairwise(shapes):
        for finer, coarser, factor in zip(before, shape, factors_between(before, shape), strict=True):
            if coarser not in (finer // factor, -(-finer // factor)):
                raise InputError(
                    f"a level of the OME-Zarr has the extents {shape} and the one before {before}: {coarser} are not "
                    f"means of a whole number of {finer} samples; filter its finest level alone, by its own path"
                )


def factors_between(before: Sequence[int], shape: Sequence[int]) -> list[int]:
    """How many samples along each axis become one.

    >>> factors_between((9, 101, 100), (9, 50, 51))
    [1, 2, 2]
    """
    return [max(round(finer / max(coarser, 1)), 1) for finer, coarser in zip(before, shape, strict=True)]


def average(block: NDArray[Any], sizes: Sequence[int], factors: Sequence[int]) -> NDArray[Any]:
    """Means over so many samples along each axis; where these are too few at the end, the last ones are repeated.

    >>> average(np.array([1, 3, 5], np.uint8), [2], [2]).tolist()
    [2, 5]
    """
    missing = [(0, size * factor - extent) for size, factor, extent in zip(sizes, factors, block.shape, strict=True)]
    wide = np.pad(block, missing, mode="edge") if any(after for _, after in missing) else block
    parts = [number for pair in zip(sizes, factors, strict=True) for number in pair]
    axes = tuple(range(1, 2 * len(sizes), 2))
    mean = wide.reshape(parts).mean(axis=axes, dtype=floats_of(block.dtype))
    return as_dtype(mean, block.dtype)
