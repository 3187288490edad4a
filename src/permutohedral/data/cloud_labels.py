"""Writes classes of points: a copy of a file of a point cloud in which nothing but the classes is new."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from torch import Tensor

from permutohedral.data.cloud_files import LABEL_NAMES, reader_of
from permutohedral.errors import InputError

# formats that hold the same, by ending
_FAMILIES = {".laz": "las", ".las": "las", ".ply": "ply", ".npz": "npz"}


def check_target(source: Path, target: Path) -> None:
    """Find out before any work whether the classes of `source` can be written to `target`.

    Raises:
        InputError: the endings name different formats, or unknown ones.
    """
    for path in (source, target):
        reader_of(path)
    if _FAMILIES[source.suffix.lower()] != _FAMILIES[target.suffix.lower()]:
        raise InputError(
            f"{target} must be of the format of {source}, so that all it holds besides the classes can be kept; .las "
            "and .laz are the same format"
        )


def copy_with_labels(source: Path, target: Path, partial: Path, labels: Tensor) -> None:
    """Write the points of `source` with new classes.

    Args:
        source: a file that `read_cloud` reads.
        target: what it will be called; its ending says whether it is compressed.
        partial: where to write.
        labels: uint8 `[points]`, numbers of the LAS standard.

    Raises:
        InputError: a number does not fit the file.
    """
    check_target(source, target)
    numbers = labels.cpu().numpy().astype(np.uint8)
    {"las": _copy_las, "ply": _copy_ply, "npz": _copy_npz}[_FAMILIES[target.suffix.lower()]](source, partial, numbers)


def _copy_las(source: Path, partial: Path, numbers: np.ndarray) -> None:
    import laspy

    content = laspy.read(source)
    # older point formats have five bits for it
    most = 31 if content.header.point_format.id < 6 else 255
    if numbers.max(initial=0) > most:
        raise InputError(f"{source} has room for classes up to {most}, got {numbers.max()}")
    content.classification = numbers
    with las_file(partial) as file:
        content.write(file, do_compress=partial.suffix.lower() == ".laz")


@contextmanager
def las_file(path: Path) -> Iterator[BinaryIO]:
    """A file for laspy to write, whose errors are those of the disk: what compresses only tells that there was one."""
    raw = _Remembering(path, "wb")
    try:
        with io.BufferedWriter(raw) as file:
            yield file
    except Exception:
        if raw.failure is not None:
            raise raw.failure from None
        raise


class _Remembering(io.FileIO):
    """A file that keeps the error it failed with."""

    failure: OSError | None = None

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            self.failure = error
            raise


def _copy_ply(source: Path, partial: Path, numbers: np.ndarray) -> None:
    from plyfile import PlyData, PlyElement

    content = PlyData.read(str(source))
    vertices = content["vertex"].data
    names = list(vertices.dtype.names or ())
    name = next((name for name in LABEL_NAMES if name in names), LABEL_NAMES[0])
    kinds = [entry for entry in vertices.dtype.descr if entry[0] != name]
    labelled = np.empty(len(vertices), dtype=[*kinds, (name, "u1")])
    for each in (each for each in names if each != name):
        labelled[each] = vertices[each]
    labelled[name] = numbers
    described = PlyElement.describe(labelled, "vertex", comments=content["vertex"].comments)
    content.elements = [described if each.name == "vertex" else each for each in content.elements]
    content.write(str(partial))


def _copy_npz(source: Path, partial: Path, numbers: np.ndarray) -> None:
    with np.load(source, allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files}
    # by its name NumPy would add an ending to what ends with .NPZ
    with open(partial, "wb") as file:
        np.savez_compressed(file, **{**arrays, "classification": numbers})
