"""Point-cloud files, `.laz`, `.las`, `.ply` and `.npz`: read points and classes, write copies with other classes."""

from __future__ import annotations

import copy
import io
import json
import re
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.apps.io.settings import reading
from permutohedral.errors import DataError, InputError

# names of the class property in .ply files, the standard one first
_LABEL_NAMES = ("classification", "class", "label", "scalar_Classification")
# suffixes, and the format behind each
_FORMATS = {".laz": "las", ".las": "las", ".ply": "ply", ".npz": "npz"}

# errors of laspy and lazrs if a file ends before its last point
_EARLY_ENDS = ("failed to fill whole buffer", "buffer size must be a multiple", "'LasZipVlr' could not be found")
# owner of the record of a .las file that holds the settings of its smoothing
_SETTINGS = "permutohedral"
# owner of the records that describe the octree of a COPC file, in which copies are not arranged
_OCTREE = "copc"
# bytes of the points that are read from a scan in one step
_CHUNK_BYTES = 1 << 26


@dataclass(frozen=True)
class Cloud:
    """Points of a file.

    Attributes:
        positions: float64 `[points, 3]`, in the units of the file.
        labels: uint8 `[points]`, class numbers of the LAS standard; None if the file has none, or other numbers.
    """

    positions: Tensor
    labels: Tensor | None


def read_cloud(path: str | Path) -> Cloud:
    """Read a point cloud in the format of its suffix.

    A `.npz` file holds `positions [points, 3]`, and optionally `classification [points]`, `scale` and `offset`,
    numbers or `[3]`. Positions are multiplied by the scale, then the offset is added.

    Raises:
        InputError: the suffix is unknown.
        DataError: the file cannot be read, or its points do not have three finite coordinates.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/cloud.npz", positions=np.array([[100, 200, 300]]), scale=0.01)
    ...     read_cloud(f"{folder}/cloud.npz").positions.tolist()
    [[1.0, 2.0, 3.0]]
    """
    path = Path(path)
    read = {"las": _read_las, "ply": _read_ply, "npz": _read_npz}[check_format(path)]
    with reading(f"the point cloud {path}"):
        positions, labels = read(path)
    if positions.ndim != 2 or positions.shape[1] != 3:
        raise DataError(f"{path} must hold positions [points, 3], got {list(positions.shape)}")
    if not np.isfinite(positions).all():
        bad = int((~np.isfinite(positions)).any(axis=1).sum())
        raise DataError(f"{path} holds NaN or infinity in {bad} of {len(positions)} points; remove these points")
    if labels is not None and labels.shape != positions.shape[:1]:
        raise DataError(f"{path} holds {len(positions)} points and classes of shape {labels.shape}")
    return Cloud(torch.from_numpy(positions), None if labels is None else _class_numbers(labels))


def list_clouds(folder: Path, recursive: bool = False, suffixes: tuple[str, ...] = tuple(_FORMATS)) -> list[Path]:
    """Return the point clouds of a folder by name."""
    paths = folder.rglob("*") if recursive else folder.iterdir()
    return sorted(path for path in paths if path.suffix.lower() in suffixes and path.is_file())


def list_scans(folder: Path, recursive: bool = False) -> list[Path]:
    """Return the `.las` and `.laz` files of a folder by name."""
    return list_clouds(folder, recursive, (".las", ".laz"))


def check_format(path: Path) -> str:
    """Return the format of a file by its suffix; raise `InputError` if it is unknown."""
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        raise InputError(f"{path} has an unknown format; pass a file that ends with {', '.join(_FORMATS)}")
    return _FORMATS[suffix]


def check_point_count(path: str | Path, found: int, promised: int) -> None:
    """Raise `DataError` if a file has fewer points than its header states; laspy returns those that are left."""
    if found < promised:
        raise DataError(f"{path} is truncated: {promised - found} of {promised} points are missing; copy it again")


@contextmanager
def reading_las(path: str | Path) -> Iterator[None]:
    """Raise `DataError` for any error of laspy in the block, also if a file is truncated."""
    try:
        with reading(f"the point cloud {path}"):
            yield
    except DataError as error:
        if any(end in error.message for end in _EARLY_ENDS):
            raise DataError(f"{path} is truncated: points are missing; copy it again") from error
        raise


def _class_numbers(labels: NDArray[Any]) -> Tensor | None:
    """Return classes as uint8, or None if a number is not one of the LAS standard."""
    if labels.dtype.kind not in "buif":
        return None
    # NaN is none of them
    with np.errstate(invalid="ignore"):
        numbers = labels.astype(np.uint8)
    return torch.from_numpy(numbers) if (numbers == labels).all() else None


@contextmanager
def open_scan(path: str | Path) -> Iterator[Any]:
    """Open a `.las` or `.laz` file with laspy, and check that it has what its header states, which laspy allocates.

    Raises `DataError` for any error in the block.
    """
    import laspy

    _check_records(path)
    with reading_las(path), laspy.open(path) as reader:
        header = reader.header
        if not header.are_points_compressed:
            size = Path(path).stat().st_size - header.offset_to_point_data
            check_point_count(path, size // header.point_format.size, header.point_count)
        elif header.point_count:
            reader.seek(header.point_count - 1)
            reader.read_points(1)
            reader.seek(0)
        yield reader


def _check_records(path: str | Path) -> None:
    """Raise `DataError` if a scan is too small for the records that its header states."""
    with reading(f"the point cloud {path}"), open(path, "rb") as file:
        start = file.read(247).ljust(247, b"\0")
    (before,), (behind,) = struct.unpack_from("<I", start, 100), struct.unpack_from("<I", start, 243)
    # records have a header of 54 bytes, those behind the points, since version 1.4, one of 60
    needed = 54 * before + (60 * behind if start[25] >= 4 else 0)
    if start[:4] == b"LASF" and needed > Path(path).stat().st_size:
        raise DataError(f"{path} is truncated: records are missing; copy it again")


def _divide(header: Any) -> list[tuple[int, int]]:
    """Return the first and last index of each chunk of a scan."""
    count, size = header.point_count, max(_CHUNK_BYTES // header.point_format.size, 1)
    return [(first, min(first + size, count)) for first in range(0, count, size)]


def _read_las(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    positions, labels = [np.empty((0, 3))], [np.empty(0, np.uint8)]
    with open_scan(path) as reader:
        for first, last in _divide(reader.header):
            points = reader.read_points(last - first)
            check_point_count(path, len(points), last - first)
            positions.append(np.stack([points[axis] for axis in "xyz"], axis=1))
            labels.append(np.asarray(points.classification))
    classes = np.concatenate(labels)
    # 0 is "created, never classified"
    return np.concatenate(positions), classes if classes.any() else None


def _read_ply(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    from plyfile import PlyData

    _check_ply_rows(path)
    vertices = PlyData.read(str(path))["vertex"].data
    positions = np.stack([vertices[axis].astype(np.float64) for axis in "xyz"], axis=1)
    name = _label_name(vertices)
    return positions, None if name is None else vertices[name]


def _check_ply_rows(path: Path) -> None:
    """Raise `DataError` if a file is smaller than its header states; plyfile allocates all rows with lists."""
    rows = bytes_needed = 0
    with open(path, encoding="latin-1") as file:
        while (line := file.readline(1000)) and line.strip() != "end_header":
            if element := re.match(r"element\s+\S+\s+(\d+)", line):
                rows = int(element[1])
            elif line.startswith("property"):
                bytes_needed += rows
    if bytes_needed > path.stat().st_size:
        raise DataError(f"{path} is truncated: it is smaller than its header states; copy it again")


def _label_name(vertices: NDArray[Any]) -> str | None:
    """Return the property that holds classes; others of such a name may number objects."""
    names = [name for name in _LABEL_NAMES if name in (vertices.dtype.names or ())]
    return next((name for name in names if _class_numbers(vertices[name]) is not None), None)


def _read_npz(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    with np.load(path, allow_pickle=False) as content:
        if "positions" not in content:
            raise ValueError(f"it has no array 'positions', but {', '.join(content.files) or 'none'}")
        positions = content["positions"].astype(np.float64)
        if "scale" in content:
            positions = positions * content["scale"]
        if "offset" in content:
            positions = positions + content["offset"]
        labels = content.get("classification")
    return positions, labels


def check_same_format(source: Path, target: Path) -> None:
    """Raise `InputError` unless `target` can hold a copy of `source` with other classes."""
    if check_format(source) != check_format(target):
        raise InputError(
            f"output {target} must have the format of {source}, so that everything but the classes is kept; .las and "
            ".laz count as one format"
        )
    check_no_octree(target)


def check_no_octree(target: Path) -> None:
    """Raise `InputError` if the name of an output promises a COPC file, which laspy cannot write."""
    if target.name.lower().endswith(".copc.laz"):
        plain = f"{target.name[: -len('.copc.laz')]}.laz"
        raise InputError(f"output {target} would not be the COPC file that its name says; pass a name such as {plain}")


def copy_with_labels(source: Path, target: Path, labels: Tensor) -> None:
    """Write a copy of a point cloud with other classes, uint8 `[points]`, not atomically.

    The suffix of `target` selects compression. Raises `InputError` if a number does not fit the file.
    """
    check_same_format(source, target)
    numbers = labels.cpu().numpy().astype(np.uint8)
    {"las": _copy_las, "ply": _copy_ply, "npz": _copy_npz}[check_format(target)](source, target, numbers)


def _copy_las(source: Path, target: Path, numbers: NDArray[np.uint8]) -> None:
    import laspy

    with laspy.open(source) as reader:
        header = reader.header
    # point formats before 6 have five bits for the class
    largest = 31 if header.point_format.id < 6 else 255
    if numbers.max(initial=0) > largest:
        raise InputError(f"{source} stores classes up to {largest}, got {numbers.max()}")

    def classify(points: Any, chunk: tuple[int, int]) -> None:
        points.classification = numbers[slice(*chunk)]

    rewrite_scan(source, target, _divide(header), classify)


def rewrite_scan(
    source: str | Path,
    target: Path,
    chunks: Iterable[tuple[int, int]],
    change: Callable[[Any, tuple[int, int]], None],
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write a copy of a `.las` or `.laz` file whose points `change` modifies chunk by chunk, not atomically.

    Args:
        source: scan to read.
        target: scan to write; the suffix selects compression.
        chunks: first and last index of the points of each chunk.
        change: called with the points of a chunk, as laspy has them, and its indices.
        settings: what the record for `read_settings` holds; default: the record of the source, if it has one.
    """
    import laspy

    with laspy.open(source) as reader:
        header = copy.deepcopy(reader.header)
        dropped = (_OCTREE,) if settings is None else (_OCTREE, _SETTINGS)
        for record in [record for record in header.vlrs if record.user_id in dropped]:
            header.vlrs.remove(record)
        if settings is not None:
            header.vlrs.append(laspy.VLR(_SETTINGS, 1, "settings", json.dumps(settings).encode()))
        compress = target.suffix.lower() == ".laz"
        with las_file(target) as file, laspy.open(file, mode="w", header=header, do_compress=compress) as writer:
            for first, last in chunks:
                points = reader.read_points(last - first)
                change(points, (first, last))
                writer.write_points(points)
            # the header does not contain the records after the points
            if records := [record for record in reader.evlrs or () if record.user_id != _OCTREE]:
                writer.write_evlrs(laspy.vlrs.vlrlist.VLRList(records))


def read_settings(path: Path) -> dict[str, Any] | None:
    """Return the settings that `rewrite_scan` stored, None if there is no such file or it has none."""
    import laspy

    try:
        with laspy.open(path) as reader:
            records = reader.header.vlrs.get_by_id(_SETTINGS)
    except (FileNotFoundError, laspy.LaspyException):
        return None
    settings: dict[str, Any] | None = json.loads(records[0].record_data) if records else None
    return settings


@contextmanager
def las_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for laspy to write, and raise the error of the disk that its compressor hides."""
    raw = _RecordingFile(path, "wb")
    try:
        with io.BufferedWriter(raw) as file:
            yield file
    except Exception:
        if raw.failure is not None:
            raise raw.failure from None
        raise


class _RecordingFile(io.FileIO):
    """File that keeps the error of a failed write."""

    failure: OSError | None = None

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            self.failure = error
            raise


def _copy_ply(source: Path, target: Path, numbers: NDArray[np.uint8]) -> None:
    from plyfile import PlyData, PlyElement, PlyListProperty

    content = PlyData.read(str(source))
    lists = [each for each in content["vertex"].properties if isinstance(each, PlyListProperty)]
    vertices = content["vertex"].data.copy()
    name, labelled = _label_name(vertices), vertices
    if name is None:
        name = _LABEL_NAMES[0]
        kept = [entry for entry in vertices.dtype.descr if entry[0] != name]
        labelled = np.empty(len(vertices), dtype=[*kept, (name, "u1")])
        for each, *_ in kept:
            labelled[each] = vertices[each]
    labelled[name] = numbers
    described = PlyElement.describe(
        labelled,
        "vertex",
        len_types={each.name: each.len_dtype for each in lists},
        val_types={each.name: each.val_dtype for each in lists},
        comments=content["vertex"].comments,
    )
    content.elements = [described if each.name == "vertex" else each for each in content.elements]
    if content.text:
        _write_text(content, target)
    else:
        content.write(str(target))


def _write_text(content: Any, target: Path) -> None:
    """Write an ASCII `.ply` with the shortest numbers that are read back exactly; plyfile writes 18 digits."""
    with open(target, "w", encoding="ascii", newline="\n") as file:
        file.write(f"{content.header}\n")
        for element in content.elements:
            for row in element.data:
                words: list[Any] = []
                for value in row:
                    words += [len(value), *value] if isinstance(value, np.ndarray) else [value]
                file.write(" ".join(map(str, words)) + "\n")


def _copy_npz(source: Path, target: Path, numbers: NDArray[np.uint8]) -> None:
    # arrays are copied as they are stored: one of Python objects cannot be read without running code
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in [name for name in old.namelist() if name != "classification.npy"]:
            with old.open(name) as array, new.open(name, "w", force_zip64=True) as copied:
                shutil.copyfileobj(array, copied)
        with new.open("classification.npy", "w", force_zip64=True) as written:
            np.lib.format.write_array(written, numbers)
