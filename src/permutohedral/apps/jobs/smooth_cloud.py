"""`permutohedral cloud smooth`: smooth laser scans of any size."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from permutohedral.apps.io import clouds as cloud_formats
from permutohedral.apps.io.atomic import replacing
from permutohedral.apps.io.partial import PartialStore
from permutohedral.apps.io.settings import PathLike, Progress, check_positive, digest
from permutohedral.apps.jobs import batch
from permutohedral.apps.jobs.batch import Errors, Inputs
from permutohedral.apps.jobs.tasks import TaskPool, open_pool
from permutohedral.errors import DataError, InputError
from permutohedral.filters.tiling import cast_rounded, working_dtype

# value of `field` for the coordinates
_POSITION = "position"
# fields of the LAS standard that are measured; the others are categories, counts and flags
_MEASURED = ("intensity", "scan_angle", "scan_angle_rank", "gps_time", "red", "green", "blue", "nir")
# larger chunks take more memory and are not faster
_MAX_CHUNK_POINTS = 2_000_000


@dataclass(frozen=True)
class SmoothedCloud(batch.JobResult):
    """Result of `smooth_cloud`.

    Attributes:
        num_points: number of points.
    """

    num_points: int | None = None

    def _details(self) -> str:
        return f": {self.num_points:,} points in {self.seconds:.1f} s"


def smooth_cloud(
    inputs: Inputs,
    output: PathLike,
    *,
    sigma_space: float = 1.0,
    field: str = _POSITION,
    device: str = "auto",
    workers: int = 0,
    memory: str | None = None,
    scheduler: str | None = None,
    resume: bool = False,
    recursive: bool = False,
    errors: Errors = "raise",
    progress: Progress | None = None,
) -> list[SmoothedCloud]:
    """Replace every point of laser scans, or one field of it, by a Gaussian mean over the points around.

    Files are read in chunks, so they may be larger than memory. An output appears under its name when it is complete.

    Args:
        inputs: `.las` or `.laz` file, a folder, or a list of these.
        output: `.las` or `.laz` file to write, a copy but for the smoothed field, or a folder for several. An existing
            file is replaced, except an input.
        sigma_space: standard deviation of the Gaussian, in units of the coordinates.
        field: "position", or a measured field such as "intensity". Classes, counts and flags raise `InputError`.
        device: "auto" or "cpu"; lattices of chunks are merged on the CPU.
        workers, memory, scheduler, resume: see `filter_array`.
        recursive, errors, progress: see `filter_image`.

    Returns:
        One result per scan.

    Raises:
        InputError: an argument does not fit.
        DataError: an input cannot be read.
        StorageError: an output cannot be written.
    """
    from permutohedral.dask.workers import check_main_guard

    if workers or memory is not None:
        check_main_guard()
    if device not in ("auto", "cpu"):
        raise InputError(f"device is {device!r}, but scans are smoothed on the CPU; pass cpu or auto")
    check_positive("sigma_space", sigma_space)
    files = batch.plan_files(inputs, output, recursive, list_folder=cloud_formats.list_scans, check=_check)

    def process(source: Path, output: Path, report: Callable[[float], None]) -> SmoothedCloud:
        _check(output, source)
        started = time.perf_counter()
        scan = _open_scan(source, field)
        settings = {
            "input": digest(asdict(scan)),
            "sigma_space": float(sigma_space),
            "field": field,
            "last change of the input": source.stat().st_mtime_ns,
        }
        with open_pool(workers, memory, scheduler) as pool:
            _smooth(scan, output, sigma_space, settings, pool, resume, report)
        return SmoothedCloud(source, output, round(time.perf_counter() - started, 4), None, scan.num_points)

    return batch.process_files(process, SmoothedCloud, files, errors, progress)


def _check(output: Path, source: Path) -> None:
    for name, path in (("input", source), ("output", output)):
        if path.suffix.lower() not in (".las", ".laz"):
            raise InputError(f"{name} is {path}; pass a file that ends with .las or .laz")
    cloud_formats.check_no_octree(output)


def _smooth(
    scan: _Scan,
    output: Path,
    sigma_space: float,
    settings: Mapping[str, Any],
    pool: TaskPool,
    resume: bool,
    report: Callable[[float], None],
) -> None:
    # absolute, since workers may run in other folders
    store = PartialStore(output.resolve())
    with store.locked():
        if resume and store.is_complete(cloud_formats.read_settings, settings):
            return
        chunks = _divide(scan)
        division = store.begin(settings, resume)
        if division is None:
            store.record(settings, chunks)
        else:
            chunks = [(first, last) for first, last in division]
        left = [number for number in range(len(chunks)) if not store.is_done((number,))]
        if left and scan.num_points:
            tasks = _smoothing_tasks(scan, chunks, left, sigma_space, store, pool)
            for done, _ in enumerate(pool.run(tasks), start=1):
                report(done / len(tasks))
        with replacing(output) as partial:
            _assemble(scan, chunks, store, partial, settings)
        store.remove()


@dataclass(frozen=True)
class _Scan:
    """Description of a `.las` or `.laz` file, small enough to send to workers.

    `origin` is subtracted from coordinates; `dtype` is precise enough for them and for the field.
    """

    path: str
    num_points: int
    origin: tuple[float, ...]
    dtype: str
    field: str

    @property
    def channels(self) -> int:
        return 3 if self.field == _POSITION else 1

    def read(self, chunk: tuple[int, int]) -> Any:
        """Read the points from one index to another with laspy."""
        first, last = chunk
        with cloud_formats.open_scan(self.path) as reader:
            reader.seek(first)
            points = reader.read_points(last - first)
        cloud_formats.check_point_count(self.path, len(points), last - first)
        return points

    def features_and_values(self, chunk: tuple[int, int], sigma: float) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return positions in standard deviations `[points, 3]`, and the field `[points, channels]`."""
        points = self.read(chunk)
        axes = [np.asarray(points[axis]) - start for axis, start in zip("xyz", self.origin, strict=True)]
        exact = np.stack(axes, axis=1)
        if self.dtype == "float32" and not _fits_float32(np.abs(exact).max(axis=0, initial=0), points.scales):
            raise DataError(
                f"points of {self.path} lie far outside of the box in its header; repair the header, for example with "
                "lasinfo -repair_bb"
            )
        positions = exact.astype(self.dtype)
        features = positions / np.dtype(self.dtype).type(sigma)
        if self.field == _POSITION:
            return features, positions
        return features, np.asarray(points[self.field]).astype(self.dtype)[:, None]


def _open_scan(path: Path, field: str) -> _Scan:
    """Read the header of a scan and check the field."""
    with cloud_formats.open_scan(path) as reader:
        header = reader.header
    form = header.point_format
    measured = (*_MEASURED, *form.extra_dimension_names)
    # fields with several numbers per point are left out
    fields = {each.name: each for each in form.dimensions if each.name in measured and each.num_elements == 1}
    if field not in (_POSITION, *fields):
        reason = "which cannot be averaged" if field in form.dimension_names else f"which {path} lacks"
        raise InputError(f"field is {field!r}, {reason}; pass {', '.join((_POSITION, *fields))}")
    fits = _fits_float32(np.asarray(header.maxs) - np.asarray(header.mins), np.asarray(header.scales))
    if field != _POSITION:
        kind = fields[field]
        fits = fits and not kind.is_scaled and working_dtype(kind.dtype or np.uint8) is np.float32
    origin = tuple(float(each) for each in header.mins)
    return _Scan(str(path.resolve()), header.point_count, origin, "float32" if fits else "float64", field)


def _fits_float32(extents: NDArray[Any], steps: NDArray[Any]) -> bool:
    """Return whether float32 rounds coordinates of such extents by at most a quarter of a step of the file."""
    return bool((extents * np.finfo(np.float32).eps / 2 <= steps / 4).all())


def _divide(scan: _Scan) -> list[tuple[int, int]]:
    """Return the first and last index of each chunk, as large as a worker can process."""
    from permutohedral.dask.workers import count_fitting_points

    size = min(_MAX_CHUNK_POINTS, count_fitting_points(3, scan.channels, scan.dtype))
    return [(first, min(first + size, scan.num_points)) for first in range(0, scan.num_points, size)]


def _smoothing_tasks(
    scan: _Scan, chunks: list[tuple[int, int]], left: list[int], sigma: float, store: PartialStore, pool: TaskPool
) -> list[Any]:
    """Build the lattice of all chunks, and return delayed tasks that smooth and write those that are left."""
    import dask
    import dask.array as da
    from dask.delayed import delayed

    from permutohedral.dask import gaussian_filter

    call: Any = delayed
    # one task per chunk, so that it is decompressed once for features and values
    read = [call(scan.features_and_values, nout=2)(chunk, sigma) for chunk in chunks]

    def concatenate(which: int, columns: int) -> Any:
        pairs = zip(read, chunks, strict=True)
        parts = [da.from_delayed(both[which], (last - first, columns), scan.dtype) for both, (first, last) in pairs]
        return da.concatenate(parts)

    # without workers one chunk after another, with all threads of the core
    with dask.config.set({} if pool.client is not None else {"scheduler": "synchronous"}):
        smooth = gaussian_filter(concatenate(1, scan.channels), concatenate(0, 3))
        # an optimized graph would drop the reference to the lattice, which Dask then forgets
        blocks = smooth.to_delayed(optimize_graph=False).ravel()
    return [call(_write_chunk)(blocks[number], str(store.target), number) for number in left]


def _write_chunk(smooth: NDArray[Any], target: str, number: int) -> None:
    """Write the result of a chunk into the partial store."""
    store = PartialStore(Path(target))
    with store.writing((number,)), open(store.folder / f"{number}.npy", "wb") as file:
        # np.save hides the reason if the disk is full
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(smooth))
        file.write(np.ascontiguousarray(smooth).data)


def _assemble(
    scan: _Scan, chunks: list[tuple[int, int]], store: PartialStore, target: Path, settings: Mapping[str, Any]
) -> None:
    """Write the scan with the results of all chunks, and the settings."""
    numbers = {chunk: number for number, chunk in enumerate(chunks)}

    def change(points: Any, chunk: tuple[int, int]) -> None:
        smooth = np.load(store.folder / f"{numbers[chunk]}.npy")
        if scan.field == _POSITION:
            for axis, (name, start) in enumerate(zip("xyz", scan.origin, strict=True)):
                points[name] = smooth[:, axis].astype(np.float64) + start
        else:
            points[scan.field] = cast_rounded(smooth[:, 0], np.asarray(points[scan.field]).dtype)

    cloud_formats.rewrite_scan(scan.path, target, chunks, change, settings)
