"""Files of point clouds: `.laz`, `.las`, `.ply` and `.npz`, with the classes of their points if they are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.errors import DataError, InputError

# names of the class of a point in .ply files, the standard's first
LABEL_NAMES = ("classification", "class", "label", "scalar_Classification")


@dataclass(frozen=True)
class Cloud:
    """Points and what is known of them.

    Attributes:
        positions: float64 `[points, 3]`, in the units of the file.
        labels: uint8 `[points]`, classes as the LAS standard numbers them, from 0 to 255; None if the file has none, or
            any other number.
    """

    positions: Tensor
    labels: Tensor | None


def read_cloud(path: str | Path) -> Cloud:
    """Read a point cloud; the ending of the name says how.

    A `.npz` file holds `positions`, `[points, 3]`, and may hold `classification`, `[points]`, as well as `scale` and
    `offset`, numbers or `[3]`: positions are multiplied by the one, then the other is added.

    Raises:
        InputError: the ending is unknown.
        DataError: the file cannot be read, or holds no points with three finite coordinates.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/cloud.npz", positions=np.array([[100, 200, 300]]), scale=0.01)
    ...     read_cloud(f"{folder}/cloud.npz").positions.tolist()
    [[1.0, 2.0, 3.0]]
    """
    path = Path(path)
    read = reader_of(path)
    try:
        positions, labels = read(path)
    except (ModuleNotFoundError, DataError):
        raise
    # each of the libraries has errors of its own
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"cannot read the point cloud {path}: {reason}") from error
    if positions.ndim != 2 or positions.shape[1] != 3 or not np.isfinite(positions).all():
        raise DataError(f"{path} holds no points with three finite coordinates")
    if labels is not None and labels.shape != positions.shape[:1]:
        raise DataError(f"{path} holds {len(positions)} points and classes of shape {labels.shape}")
    return Cloud(torch.from_numpy(positions), None if labels is None else _standard_numbers(labels))


def _standard_numbers(labels: NDArray[Any]) -> Tensor | None:
    """Classes as uint8, None if one of them is no number of the LAS standard: it would become another."""
    if labels.dtype.kind not in "buif":
        return None
    # not a number is none of them, which is no reason to warn
    with np.errstate(invalid="ignore"):
        numbers = labels.astype(np.uint8)
    return torch.from_numpy(numbers) if (numbers == labels).all() else None


def reader_of(path: Path) -> Callable[[Path], tuple[NDArray[Any], NDArray[Any] | None]]:
    """What reads files of this name.

    Raises:
        InputError: the ending is unknown.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path} is of no known format: the name of a point cloud ends with {', '.join(_READERS)}")
    return reader


def check_point_count(path: Path, found: int, promised: int) -> None:
    """Find out whether a file was cut off: what reads it takes the points that are left for all.

    Raises:
        DataError: there are fewer points than its header says.
    """
    if found < promised:
        raise DataError(f"{path} was cut off: of {promised} points {promised - found} are missing; copy it again")


def _read_las(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    import laspy

    content = laspy.read(path)
    with laspy.open(path) as reader:
        check_point_count(path, len(content.points), reader.header.point_count)
    labels = np.asarray(content.classification)
    # 0 is "created, never classified"
    return np.array(content.xyz, dtype=np.float64), labels if labels.any() else None


def _read_ply(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    from plyfile import PlyData

    vertices = PlyData.read(str(path))["vertex"].data
    positions = np.stack([vertices[axis].astype(np.float64) for axis in "xyz"], axis=1)
    found = [name for name in LABEL_NAMES if name in (vertices.dtype.names or ())]
    return positions, vertices[found[0]] if found else None


def _read_npz(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    with np.load(path, allow_pickle=False) as content:
        if "positions" not in content:
            raise ValueError(f"there is no array positions among {', '.join(content.files) or 'none'}")
        positions = content["positions"].astype(np.float64)
        if "scale" in content:
            positions = positions * content["scale"]
        if "offset" in content:
            positions = positions + content["offset"]
        labels = content.get("classification")
    return positions, labels


_READERS = {".laz": _read_las, ".las": _read_las, ".ply": _read_ply, ".npz": _read_npz}
