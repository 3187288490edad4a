"""`permutohedral array filter`: bilateral filter of array files larger than memory, tile by tile.

Each task reads tiles with their margins, filters them, and writes a block of whole chunks. Tasks are independent, so
any worker can repeat the task of a lost one.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from permutohedral.apps.io import arrays as stores
from permutohedral.apps.io.atomic import cannot_write
from permutohedral.apps.io.partial import PartialStore
from permutohedral.apps.io.settings import (
    PathLike,
    Progress,
    check_outputs,
    check_positive,
    choose_device,
    digest,
    warn_of_large_sigma,
)
from permutohedral.apps.jobs import batch
from permutohedral.apps.jobs.batch import Errors, Inputs
from permutohedral.apps.jobs.tasks import TaskPool, open_pool
from permutohedral.errors import InputError
from permutohedral.features import numbers_of, range_of
from permutohedral.filters import tiling


@dataclass(frozen=True)
class FilteredArray(batch.JobResult):
    """Result of `filter_array`.

    Attributes:
        shape: extents of the array.
        axes: a letter per axis.
        tile: extents that are filtered in one call, without margins.
        margins: samples that were read on either side of a tile.
        num_tiles: number of tiles, where the tiles of one chunk count as one. If the output was complete before a call
            with `resume`, it is 0, and `tile` and `margins` are empty.
    """

    shape: tuple[int, ...] = ()
    axes: str = ""
    tile: tuple[int, ...] = ()
    margins: tuple[int, ...] = ()
    num_tiles: int = 0

    def _details(self) -> str:
        extents = " x ".join(map(str, self.shape))
        return f": {extents} ({self.axes}), {self.num_tiles} tiles in {self.seconds:.1f} s"


def filter_array(
    inputs: Inputs,
    output: PathLike,
    *,
    sigma_space: float | Sequence[float] = 8.0,
    sigma_color: float = 0.1,
    value_range: tuple[float, float] | None = None,
    axes: str | None = None,
    physical: bool = False,
    device: str = "auto",
    workers: int = 0,
    memory: str | None = None,
    scheduler: str | None = None,
    resume: bool = False,
    recursive: bool = False,
    errors: Errors = "raise",
    progress: Progress | None = None,
) -> list[FilteredArray]:
    """Smooth arrays of any size and keep their edges; equals the filter of the whole array.

    An output appears under its name when it is complete. Until then it is `OUTPUT.unfinished`.

    Args:
        inputs: Zarr array, OME-Zarr or TIFF, a folder, or a list of these. The coarser levels of an OME-Zarr are
            rebuilt from the filtered finest.
        output: Zarr store to write, an OME-Zarr if the input is one, or a folder for several. An earlier result is
            replaced; other files and stores, and results with added members, raise `InputError`.
        sigma_space: standard deviation in samples; one number, or one per spatial axis.
        sigma_color: standard deviation in units of the values; for integers, the largest number counts as 1.
        value_range: numbers that count as 0 and 1, such as (0, 4095) for 12 bits. Integers other than uint8, uint16 and
            int16 need it.
        axes: a letter per axis, default: those that the file states. T for times, C for channels, others for space.
        physical: whether `sigma_space` is in the units of an OME-Zarr, such as micrometers, instead of samples.
        device: see `filter_image`; worker processes must have it.
        workers: worker processes to start; 0 computes in this process. A script that starts some needs
            `if __name__ == "__main__":` around the call, since each worker imports the script.
        memory: limit per worker, such as "2GiB"; default: an equal share.
        scheduler: address of an existing Dask scheduler to use instead.
        resume: whether to resume an interrupted call. Complete outputs are kept.
        recursive, errors, progress: see `filter_image`.

    Returns:
        One result per array.

    Raises:
        InputError: an argument does not fit.
        DataError: an input cannot be read.
        StorageError: an output cannot be written.
    """
    from permutohedral.dask.workers import check_main_guard

    if workers or memory is not None:
        check_main_guard()
    check_positive("sigma_color", sigma_color)
    where = str(choose_device(device))
    files = batch.plan_files(
        inputs,
        output,
        recursive,
        suffix=".zarr",
        list_folder=stores.list_arrays,
        is_input=stores.is_array,
        check=_check,
    )

    def process(source: Path, target: Path, report: Callable[[float], None]) -> FilteredArray:
        _check(target, source)
        # a symbolic link is kept, and its target replaced
        target, started = target.resolve(), time.perf_counter()
        check_outputs([source], [target])
        if target in source.resolve().parents or (stores.is_store(source) and source.resolve() in target.parents):
            raise InputError(f"output {target} contains the input, or lies in it; pass another output")
        array = stores.open_source(source, axes)
        scale = range_of(str(source), array.dtype, value_range)
        if scale is not None:
            warn_of_large_sigma(sigma_color)
        color = sigma_color * (1.0 if scale is None else scale[1] - scale[0])
        stores.check_levels([array.shape, *array.coarser])
        if target.exists() and not stores.is_replaceable(target):
            raise InputError(f"output {target} exists, and is not just a result of this job; pass another output")
        sigmas = _sigmas_in_samples(array, sigma_space, physical)
        with open_pool(workers, memory, scheduler) as pool:
            tiles = _filter(array, target, sigmas, color, where, pool, resume, report)
        seconds = round(time.perf_counter() - started, 4)
        return FilteredArray(source, target, seconds, None, array.shape, array.axes, *tiles)

    return batch.process_files(process, FilteredArray, files, errors, progress)


def _check(output: Path, source: Path) -> None:
    if output.suffix != ".zarr":
        raise InputError(f"output is {output}; pass a name that ends with .zarr, since it is a Zarr store")


def _filter(
    source: stores.ArraySource,
    target: Path,
    sigmas: tuple[float, ...],
    sigma_color: float,
    device: str,
    pool: TaskPool,
    resume: bool,
    report: Callable[[float], None],
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Filter one array; return the extents of its tiles, their margins, and their number."""
    from dask.delayed import delayed

    settings = {
        "input": digest(asdict(source)),
        "sigma_space": sigmas,
        "sigma_color": float(sigma_color),
        "last change of the input": source.last_change(),
    }
    store = PartialStore(target)
    with store.locked():
        if resume and store.is_complete(stores.read_settings, settings):
            return (), (), 0
        job = _begin(_plan(source, target, sigmas, sigma_color, device), store, settings, resume)
        write_block = delayed(job.write_block)
        levels = range(1 + len(source.coarser))
        left = [
            [index for index in job.blocks(level).indices() if not store.is_done((level, *index))] for level in levels
        ]
        total, done = sum(map(len, left)), itertools.count(1)
        for level, indices in enumerate(left):
            for _ in pool.run([write_block(level, index) for index in indices]):
                report(next(done) / total)
        store.finish()
    return job.tile, job.margins, len(job.blocks(0))


@dataclass(frozen=True)
class _Job:
    """A filter of a source, its tiles and its blocks; sent to workers.

    Bandwidths are in samples and in units of the values. A task filters a block of the extents `block`, which are whole
    chunks of the output, in tiles of the extents `tile`, without margins.
    """

    source: stores.ArraySource
    target: Path
    sigma_space: tuple[float, ...]
    sigma_color: float
    device: str
    tile: tuple[int, ...]
    block: tuple[int, ...]
    margins: tuple[int, ...]

    def blocks(self, level: int) -> tiling.Tiling:
        """Return the blocks of the filtered array, level 0, or of a coarser level."""
        shape = (self.source.shape, *self.source.coarser)[level]
        return tiling.Tiling.regular(shape, self.block, (0,) * len(shape))

    def write_block(self, level: int, index: tuple[int, ...]) -> None:
        """Compute and write one block, unless a lost worker has done it."""
        from permutohedral.dask.workers import interrupt_later

        store, part = PartialStore(self.target), (level, *index)
        if not store.is_done(part):
            region = self.blocks(level).tile(index).write
            result = self._average(level, region) if level else self._filter(region)
            with interrupt_later(), store.writing(part):
                stores.write_region(store.folder / self.source.result_member(level), region, result)

    def _average(self, level: int, region: tiling.Region) -> np.ndarray:
        from permutohedral.dask.workers import interrupt_later

        finer, coarser = (self.source.shape, *self.source.coarser)[level - 1 : level + 1]
        before = PartialStore(self.target).folder / self.source.result_member(level - 1)
        with interrupt_later():
            return stores.average_region(before, region, stores.downsampling_factors(finer, coarser))

    def _filter(self, region: tiling.Region) -> np.ndarray:
        # the space before the region, its tiles, and the space after it
        chunks = tuple(
            (
                place.start,
                *(min(size, place.stop - at) for at in range(place.start, place.stop, size)),
                extent - place.stop,
            )
            for place, size, extent in zip(region, self.tile, self.source.shape, strict=True)
        )
        tiles = tiling.Tiling(chunks, self.margins)
        result = np.empty([place.stop - place.start for place in region], self.source.dtype)
        for index in itertools.product(*(range(1, len(sizes) - 1) for sizes in chunks)):
            tile = tiles.tile(index)
            within = zip(tile.write, region, strict=True)
            inside = tuple(slice(part.start - place.start, part.stop - place.start) for part, place in within)
            result[inside] = self._filter_tile(tile)
        return result

    def _filter_tile(self, tile: tiling.Tile) -> np.ndarray:
        from permutohedral.dask.workers import interrupt_later, limit_worker_cache

        limit_worker_cache()
        source, space = self.source, self.source.space
        order = [*_axis(source, stores.TIMES), *space, *_axis(source, tiling.CHANNELS)]
        # zarr prints errors of its event loop if it is interrupted
        with interrupt_later():
            block = source.read(tile.read).transpose(order)
        # a tile has one time; an array without channels gets one
        block = block.reshape(*(tile.read[axis].stop - tile.read[axis].start for axis in space), -1)
        filtered = tiling.filter_block(self._filter_values, [block], tile.along(space), block.dtype)
        extents = [tile.write[axis].stop - tile.write[axis].start for axis in order]
        return filtered.reshape(extents).transpose(np.argsort(order))

    def _filter_values(self, values: Tensor, origin: tuple[int, ...]) -> Tensor:
        options: dict[str, Any] = {"sigma_space": self.sigma_space, "sigma_color": self.sigma_color}
        return tiling.filter_bilateral_tile(values.to(self.device), origin, **options).cpu()


def _axis(source: stores.ArraySource, letter: str) -> list[int]:
    return [source.axes.index(letter)] if letter in source.axes else []


def _begin(job: _Job, store: PartialStore, settings: Mapping[str, Any], resume: bool) -> _Job:
    """Create the store, or resume what an interrupted call left, in its blocks."""
    block = store.begin(settings, resume)
    if block is not None:
        return replace(job, block=tuple(block))
    try:
        stores.create_store(store.folder, job.source, job.block, settings)
    except OSError as error:
        raise cannot_write(store.target, error) from error
    store.record(settings, job.block)
    return job


def _sigmas_in_samples(
    source: stores.ArraySource, sigma_space: float | Sequence[float], physical: bool
) -> tuple[float, ...]:
    """Return a bandwidth in samples for each spatial axis."""

    sigmas = numbers_of(sigma_space, len(source.space))
    if not physical:
        return tuple(sigmas)
    spacing = source.spacing()
    steps = [spacing[axis] for axis in source.space]
    if not min(steps) > 0:
        raise InputError(f"physical needs positive distances between samples, but {source.path} states {steps}")
    return tuple(sigma / step for sigma, step in zip(sigmas, steps, strict=True))


def _plan(source: stores.ArraySource, target: Path, sigmas: tuple[float, ...], sigma_color: float, device: str) -> _Job:
    """Choose tiles as large as a worker can filter, and blocks of whole chunks: one or more tiles."""
    from permutohedral.dask.workers import bytes_of_worker, count_fitting_points, worker_memory

    space, dtype = source.space, np.dtype(source.dtype)
    extents = [source.shape[axis] for axis in space]
    margins = tiling.bilateral_margins(sigmas)
    channels = source.shape[source.axes.index(tiling.CHANNELS)] if tiling.CHANNELS in source.axes else 1
    density = math.inf
    if dtype.kind in "ui":
        limits = np.iinfo(dtype)
        # noise fills the lattice; tiles with margins are at least three margins wide
        widths = (min(3 * margin, extent) for margin, extent in zip(margins, extents, strict=True))
        density = math.prod(1 / sigma + 2 / width for sigma, width in zip(sigmas, widths, strict=True))
        density *= ((float(limits.max) - float(limits.min)) / sigma_color + 2) ** channels
    request = len(space) + channels, channels, tiling.working_dtype(dtype), density
    side = tiling.largest_tile_side(extents, margins, count_fitting_points(*request))
    # smaller tiles would spend most of the time on their margins
    least = min(max(margins), max(extents))
    if side < least:
        side = tiling.largest_tile_side(extents, margins, count_fitting_points(*request, in_one_piece=False))
    if side < least:
        points = tiling.count_tile_points(extents, margins, least)
        needed = bytes_of_worker(points, *request)
        raise InputError(
            f"memory of a worker is {worker_memory() / 2**20:,.0f} MiB, but tiles with margins of {max(margins)} "
            f"samples have {points:,} points, which need up to {needed / 2**20:,.0f} MiB; pass more memory, or a "
            "smaller sigma_space"
        )
    tile, block, all_margins = list(source.shape), list(source.shape), [0] * len(source.shape)
    for axis, margin in zip(space, margins, strict=True):
        all_margins[axis] = margin
        tile[axis] = min(side, source.shape[axis])
    for axis in _axis(source, stores.TIMES):
        tile[axis] = 1
    for axis, (extent, chunk) in enumerate(zip(source.shape, source.chunks, strict=True)):
        # a TIFF may be a single chunk
        least = min(chunk, tile[axis]) if source.kind == "tiff" else chunk
        if tile[axis] < extent:
            block[axis] = min(max(tile[axis] - tile[axis] % chunk, least), extent)
            tile[axis] = min(tile[axis], block[axis])
    return _Job(source, target, sigmas, sigma_color, device, tuple(tile), tuple(block), tuple(all_margins))
