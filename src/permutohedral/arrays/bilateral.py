"""The bilateral filter of an array in a file into a new store, tile by tile: no more in memory than a tile for a task.

Each task reads its tile and the margins, filters, and writes what is its own. Tasks share nothing, so workers need not
talk to each other, and what one did not finish another does again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from permutohedral.arrays.levels import check_levels, levels_of
from permutohedral.arrays.sources import Region, Source, is_store, open_source
from permutohedral.arrays.stores import make_store, member_of, write_part
from permutohedral.arrays.unfinished import Unfinished
from permutohedral.arrays.workers import Workers
from permutohedral.dask.tiles import filter_tile, floats_of, margins_of, run_on_block
from permutohedral.dask.workers import points_that_fit
from permutohedral.errors import InputError
from permutohedral.reporting.atomic import cannot_write

_CHANNELS, _TIMES = "C", "T"


@dataclass(frozen=True)
class Tiling:
    """A filter of a source, and the tiles it is done in.

    Attributes:
        source: what is filtered.
        target: the store it goes to.
        sigmas: for each axis of space, in samples.
        sigma_range: in units of the values.
        tile: extents of a tile, without margins, for each axis.
        margins: on either side, for each axis.
    """

    source: Source
    target: str
    sigmas: tuple[float, ...]
    sigma_range: float
    tile: tuple[int, ...]
    margins: tuple[int, ...]

    def indices(self) -> Iterator[tuple[int, ...]]:
        """Of all tiles, in the order of the array."""
        counts = (math.ceil(extent / tile) for extent, tile in zip(self.source.shape, self.tile, strict=True))
        return itertools.product(*map(range, counts))

    def filter_tile(self, index: tuple[int, ...]) -> None:
        """Read, filter and write one tile, unless that was done: a worker that was lost may have done it."""
        unfinished = Unfinished(Path(self.target))
        if unfinished.is_done(index):
            return
        inner, outer = self._regions(index)
        block = self._space_first(self.source.read(outer))
        origin = tuple(outer[axis].start for axis in self._space)
        run = partial(filter_tile, sigmas=list(self.sigmas), sigma_range=self.sigma_range)
        kept = tuple(slice(inner[a].start - outer[a].start, inner[a].stop - outer[a].start) for a in self._space)
        filtered = self._as_before(run_on_block(run, [block], origin, kept, block.dtype))
        with unfinished.writing(index):
            write_part(unfinished.folder / member_of(self.source), inner, filtered)

    @property
    def _space(self) -> list[int]:
        return [axis for axis, name in enumerate(self.source.axes) if name not in (_CHANNELS, _TIMES)]

    def _regions(self, index: tuple[int, ...]) -> tuple[Region, Region]:
        """What a tile is to write, and what it reads."""
        inner, outer = [], []
        for number, tile, margin, extent in zip(index, self.tile, self.margins, self.source.shape, strict=True):
            start, stop = number * tile, min((number + 1) * tile, extent)
            inner.append(slice(start, stop))
            outer.append(slice(max(start - margin, 0), min(stop + margin, extent)))
        return tuple(inner), tuple(outer)

    def _space_first(self, block: NDArray[Any]) -> NDArray[Any]:
        """`[*space, channels]` of a block, which has one time."""
        names = self.source.axes
        channels = [names.index(_CHANNELS)] if _CHANNELS in names else []
        times = [names.index(_TIMES)] if _TIMES in names else []
        moved = block.transpose(*times, *self._space, *channels)
        moved = moved[0] if times else moved
        return moved if channels else moved[..., None]

    def _as_before(self, block: NDArray[Any]) -> NDArray[Any]:
        names = self.source.axes
        channels = [names.index(_CHANNELS)] if _CHANNELS in names else []
        times = [names.index(_TIMES)] if _TIMES in names else []
        block = block if channels else block[..., 0]
        order = [*times, *self._space, *channels]
        return (block[None] if times else block).transpose(np.argsort(order))


def filter_array(  # noqa: PLR0913 (what is filtered and how, where it runs, and two options)
    path: Path,
    target: Path,
    sigma_space: float | Sequence[float],
    sigma_range: float,
    axes: str | None = None,
    workers: Workers | None = None,
    resume: bool = False,
    physical: bool = False,
) -> Tiling:
    """Filter a Zarr array, OME-Zarr or TIFF of any size into a Zarr store, which appears when it is whole.

    Args:
        path: what is filtered; of an OME-Zarr the finest level, and the others are made of the result.
        target: the store; an OME-Zarr if `path` is one.
        sigma_space: in samples; one number, or one for each axis of space.
        sigma_range: in units of the values; of whole numbers, of the largest.
        axes: a letter for each axis, if the file does not say; T for times, C for channels, others for space.
        workers: where to run; None for this process.
        resume: take up what an interrupted call left.
        physical: `sigma_space` is in the units of an OME-Zarr, such as micrometers, instead of samples.

    Returns:
        What was done.

    Raises:
        InputError: the request makes no sense.
        DataError: the array cannot be read.
        StorageError: the store cannot be written.
    """
    if target.suffix != ".zarr":
        raise InputError(f"arrays are written as Zarr stores: give OUTPUT a name that ends with .zarr, not {target}")
    source = open_source(path, axes)
    if physical:
        sigma_space = _in_samples(source, sigma_space)
    check_levels([source.shape, *source.coarser])
    # a link stays, and what it points to is replaced
    target = target.resolve()
    if target == path.resolve() or target in path.resolve().parents:
        raise InputError(f"{target} would replace what is read; name another OUTPUT")
    if target.exists() and not is_store(target):
        raise InputError(f"{target} exists and is no Zarr store; name another OUTPUT")
    unfinished = Unfinished(target)
    with unfinished.claimed():
        with Workers() if workers is None else workers as running:
            tiling = plan_tiles(source, target, sigma_space, sigma_range)
            tiling = _begin(tiling, unfinished, resume)
            left = [index for index in tiling.indices() if not unfinished.is_done(index)]
            running.run(tiling.filter_tile, left, f"filtering {path.name}")
            for level in levels_of(str(target), [source.shape, *source.coarser], tiling.tile):
                running.run(level.make_tile, list(level.indices()), f"level {level.number}")
        unfinished.finish()
    return tiling


def _begin(tiling: Tiling, unfinished: Unfinished, resume: bool) -> Tiling:
    """Make the store, or take up what an interrupted call left, in its tiles."""
    settings = {**asdict(tiling), "last change of the array": tiling.source.last_change()}
    # more or less memory does not change the result
    del settings["tile"]
    division = unfinished.begin(settings, resume)
    if division is not None:
        return replace(tiling, tile=tuple(division))
    try:
        make_store(unfinished.folder, tiling.source, tiling.tile)
    except OSError as error:
        raise cannot_write(unfinished.target, error) from error
    unfinished.note(settings, tiling.tile)
    return tiling


def _in_samples(source: Source, sigma_space: float | Sequence[float]) -> list[float]:
    """Bandwidths for each axis of space, from those in the units of the source."""
    from permutohedral.features import numbers_of

    pairs = zip(source.axes, source.spacing(), strict=True)
    steps = [step for name, step in pairs if name not in (_CHANNELS, _TIMES)]
    if not min(steps) > 0:
        raise InputError(f"{source.path} tells distances of {steps} between its samples: give bandwidths in samples")
    return [sigma / step for sigma, step in zip(numbers_of(sigma_space, len(steps)), steps, strict=True)]


def plan_tiles(source: Source, target: Path, sigma_space: float | Sequence[float], sigma_range: float) -> Tiling:
    """Tiles as large as a worker can filter, in whole chunks of the source where these are smaller."""
    from permutohedral.features import numbers_of

    space = [axis for axis, name in enumerate(source.axes) if name not in (_CHANNELS, _TIMES)]
    sigmas = numbers_of(sigma_space, len(space))
    margins = [0] * len(source.shape)
    for axis, margin in zip(space, margins_of(sigmas), strict=True):
        margins[axis] = margin
    channels = source.shape[source.axes.index(_CHANNELS)] if _CHANNELS in source.axes else 1
    most = points_that_fit(len(space) + channels, channels, floats_of(source.dtype))
    tile = [1 if name == _TIMES else extent for name, extent in zip(source.axes, source.shape, strict=True)]
    side = _largest_side([source.shape[axis] for axis in space], [margins[axis] for axis in space], most)
    for axis in space:
        extent = min(side, source.shape[axis])
        chunk = source.chunks[axis]
        tile[axis] = extent - extent % chunk if extent < source.shape[axis] and chunk <= extent else extent
    if np.dtype(source.dtype).kind in "ui":
        sigma_range = sigma_range * float(np.iinfo(source.dtype).max)
    return Tiling(source, str(target), tuple(sigmas), sigma_range, tuple(tile), tuple(margins))


def _largest_side(space: Sequence[int], margins: Sequence[int], most: int) -> int:
    """Of tiles that have at most so many points with their margins, and are no larger than the array.

    >>> _largest_side((100, 100, 100), (4, 4, 4), 10**6), _largest_side((100, 100), (10, 10), 40**2)
    (100, 20)
    """
    low, high = 0, max(space)
    while low < high:
        side = (low + high + 1) // 2
        points = math.prod(min(side + 2 * margin, extent) for margin, extent in zip(margins, space, strict=True))
        low, high = (side, high) if points <= most else (low, side - 1)
    # where the margins are most of a tile the time goes to them
    if low < min(max(margins), max(space)):
        raise InputError(
            f"tiles with margins of {max(margins)} samples need more than the {most:,} points that fit a worker: give "
            "workers more memory with --memory, or take a smaller --sigma-space"
        )
    return low
