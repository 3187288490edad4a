"""Smooths laser scans of any size: every point, or a field of it, becomes the Gaussian mean of the points around.

The file is read in chunks, twice: for the sums on the lattice of all points, then for what each point gets. Results of
chunks lie beside the target until all are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from permutohedral.arrays.unfinished import Unfinished
from permutohedral.arrays.workers import Workers
from permutohedral.data.cloud_files import check_point_count
from permutohedral.data.cloud_labels import las_file
from permutohedral.errors import DataError, InputError
from permutohedral.reporting.atomic import replacing

# what --field takes for the coordinates themselves
POSITION = "position"
# points of a chunk at most: more take more memory and are no faster
_MOST_POINTS = 2_000_000


@dataclass(frozen=True)
class Scan:
    """A `.las` or `.laz` file, opened anew wherever a part of it is read.

    Attributes:
        path: the file.
        num_points: in it.
        origin: what is subtracted from its coordinates.
        dtype: the numbers that are computed with: fine enough for the steps of the file, and for the field.
        field: what is smoothed.
    """

    path: str
    num_points: int
    origin: tuple[float, float, float]
    dtype: str
    field: str

    def read(self, chunk: tuple[int, int]) -> Any:
        """The points from one number to another, as laspy gives them.

        Raises:
            DataError: they cannot be read, or the file ends before them.
        """
        import laspy

        first, last = chunk
        try:
            with laspy.open(self.path) as reader:
                reader.seek(first)
                points = reader.read_points(last - first)
        # laspy and what it decompresses with have errors of their own
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(f"cannot read the laser scan {self.path}: {reason}") from error
        # laspy takes the end of a file for that of its points
        check_point_count(Path(self.path), len(points), last - first)
        return points

    def features_and_values(self, chunk: tuple[int, int], sigma: float) -> tuple[NDArray[Any], NDArray[Any]]:
        """`[points, 3]`, positions from the origin in standard deviations, and `[points, channels]`, the field."""
        points = self.read(chunk)
        axes = [np.asarray(points[axis]) - start for axis, start in zip("xyz", self.origin, strict=True)]
        exact = np.stack(axes, axis=1)
        # the header may be wrong about where the points are, and then float32 has not the digits
        if self.dtype == "float32" and not _is_fine(np.abs(exact).max(axis=0, initial=0), points.scales):
            raise DataError(
                f"points of {self.path} lie far outside of the box that its header states: repair the header, as "
                "lasinfo -repair_bb does"
            )
        positions = exact.astype(self.dtype)
        features = positions / np.dtype(self.dtype).type(sigma)
        if self.field == POSITION:
            return features, positions
        return features, np.asarray(points[self.field]).astype(self.dtype)[:, None]


def smooth_file(
    source: Path,
    target: Path,
    sigma: float,
    field: str = POSITION,
    workers: Workers | None = None,
    resume: bool = False,
    most_points: int = _MOST_POINTS,
) -> int:
    """Write a copy of a laser scan in which positions, or another field, are smooth.

    Args:
        source: a `.laz` or `.las` file.
        target: the same; replaced whole, or not at all.
        sigma: standard deviation of the Gaussian, in units of the coordinates.
        field: "position", or a field of the points that holds numbers, such as "intensity".
        workers: where to run; None for this process.
        resume: take up what an interrupted call left.
        most_points: of a chunk.

    Returns:
        The number of points.

    Raises:
        InputError: the request makes no sense.
        DataError: the file cannot be read.
        StorageError: the file cannot be written.
    """
    for path in (source, target):
        if path.suffix.lower() not in (".las", ".laz"):
            raise InputError(f"{path} is no laser scan: its name ends with .las or .laz")
    scan = _open_scan(source, field)
    # from the root: workers may be in other folders
    unfinished = Unfinished(target.resolve())
    with unfinished.claimed():
        with Workers() if workers is None else workers as running:
            chunks = _divide(scan, most_points)
            settings = {"scan": scan.__dict__, "sigma": sigma, "last change of the scan": source.stat().st_mtime_ns}
            division = unfinished.begin(settings, resume)
            if division is None:
                unfinished.note(settings, chunks)
            else:
                chunks = [(first, last) for first, last in division]
            left = [number for number in range(len(chunks)) if not unfinished.is_done((number,))]
            if left and scan.num_points:
                _smooth_chunks(scan, chunks, left, sigma, unfinished, running)
        with replacing(target) as partial_file:
            _assemble(scan, chunks, unfinished, partial_file)
        unfinished.remove()
    return scan.num_points


def _open_scan(path: Path, field: str) -> Scan:
    """What is known before any point is read."""
    import laspy

    from permutohedral.dask.tiles import floats_of

    try:
        with laspy.open(path) as reader:
            header = reader.header
    except ModuleNotFoundError:
        raise
    # laspy and what it decompresses with have errors of their own
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"cannot read the laser scan {path}: {reason}") from error
    # those of several numbers for a point are no fields to smooth
    fields = {each.name: each for each in header.point_format.dimensions if each.num_elements == 1}
    names = [name for name in fields if name not in ("X", "Y", "Z")]
    if field != POSITION and field not in names:
        raise InputError(f"{path} has no field {field!r} to smooth; it has {POSITION}, {', '.join(names)}")
    steps, extents = np.asarray(header.scales), np.asarray(header.maxs) - np.asarray(header.mins)
    fine = _is_fine(extents, steps)
    if field != POSITION:
        # times have more digits than float32
        kind = fields[field]
        fine = fine and not kind.is_scaled and floats_of(kind.dtype or np.uint8) is np.float32
    origin = tuple(float(each) for each in header.mins)
    return Scan(str(path.resolve()), header.point_count, origin, "float32" if fine else "float64", field)  # type: ignore[arg-type]


def _is_fine(extents: NDArray[Any], steps: NDArray[Any]) -> bool:
    """Whether float32 has the digits for such extents: a quarter of a step of the file must not be lost to rounding."""
    return bool((extents * np.finfo(np.float32).eps / 2 <= steps / 4).all())


def _divide(scan: Scan, most_points: int) -> list[tuple[int, int]]:
    """First and last number of each chunk, as large as a worker can take."""
    from permutohedral.dask.workers import points_that_fit

    channels = 3 if scan.field == POSITION else 1
    # scattered points may have a lattice point for each of their corners
    most = max(min(most_points, points_that_fit(3, channels, scan.dtype) // 4), 1)
    return [(first, min(first + most, scan.num_points)) for first in range(0, scan.num_points, most)]


def _smooth_chunks(
    scan: Scan,
    chunks: list[tuple[int, int]],
    left: list[int],
    sigma: float,
    unfinished: Unfinished,
    running: Workers,
) -> None:
    import dask
    import dask.array as da
    from dask.delayed import delayed

    from permutohedral.dask.points import gaussian_filter

    channels = 3 if scan.field == POSITION else 1
    call: Any = delayed
    # a chunk is decompressed once for both
    read = [call(scan.features_and_values, nout=2)(chunk, sigma) for chunk in chunks]

    def array_of(which: int, columns: int) -> Any:
        pairs = zip(read, chunks, strict=True)
        parts = [da.from_delayed(both[which], (last - first, columns), scan.dtype) for both, (first, last) in pairs]
        return da.concatenate(parts)

    # outside of workers one chunk after another, with all threads of the core
    with dask.config.set({} if running.has_client else {"scheduler": "synchronous"}):
        smooth = gaussian_filter(array_of(1, channels), array_of(0, 3))
        blocks = smooth.to_delayed().ravel()
        tasks = [call(_keep)(blocks[number], str(unfinished.target), number) for number in left]
        running.compute(tasks, f"smoothing {Path(scan.path).name}")


def _keep(smooth: NDArray[Any], target: str, number: int) -> None:
    """Write the result of a chunk beside the target."""
    unfinished = Unfinished(Path(target))
    with unfinished.writing((number,)), open(unfinished.folder / f"{number}.npy", "wb") as file:
        # not np.save, whose error for a full disk does not say that it is full
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(smooth))
        file.write(np.ascontiguousarray(smooth).data)


def _assemble(scan: Scan, chunks: list[tuple[int, int]], unfinished: Unfinished, target: Path) -> None:
    """The points of the scan with the results of all chunks."""
    import laspy

    from permutohedral.dask.tiles import as_dtype

    with (
        laspy.open(scan.path) as reader,
        las_file(target) as file,
        laspy.open(file, mode="w", header=reader.header, do_compress=target.suffix.lower() == ".laz") as writer,
    ):
        for number, (first, last) in enumerate(chunks):
            points = reader.read_points(last - first)
            smooth = np.load(unfinished.folder / f"{number}.npy")
            if scan.field == POSITION:
                for axis, (name, start) in enumerate(zip("xyz", scan.origin, strict=True)):
                    points[name] = smooth[:, axis].astype(np.float64) + start
            else:
                points[scan.field] = as_dtype(smooth[:, 0], np.asarray(points[scan.field]).dtype)
            writer.write_points(points)
        if reader.evlrs:
            # records behind the points, which the header does not bring
            writer.write_evlrs(reader.evlrs)
