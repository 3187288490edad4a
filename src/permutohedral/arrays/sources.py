"""Arrays in files, of which a part can be read: Zarr arrays, the finest level of an OME-Zarr, TIFF."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from permutohedral.dask.tiles import may_have_channels
from permutohedral.errors import DataError, InputError

Region = tuple[slice, ...]

# samples of a pixel of a TIFF are its channels; pages of unknown meaning are slices
_TIFF_AXES = {"S": "C", "I": "Z", "Q": "Z"}
_TIFF_ENDINGS = (".tif", ".tiff", ".btf")


@dataclass(frozen=True)
class Source:
    """An array in a file; small, and opened anew wherever a part is read.

    Attributes:
        path: the file, or the folder of a store; from the root, since workers may be in other folders.
        kind: what it is.
        member: the array in a group of a store, "" for the store itself.
        shape: its extents.
        dtype: its numbers, as NumPy names them.
        chunks: extents of what is read at once.
        axes: a letter for each axis: T for times, which are filtered one by one, C for channels, others for space.
        coarser: of an OME-Zarr, extents of the other levels.
        attributes: of a store, what describes it; of a TIFF empty.
        zarr_format: of a store.
    """

    path: str
    kind: Literal["zarr", "ome", "tiff"]
    member: str
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...]
    axes: str
    coarser: tuple[tuple[int, ...], ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    zarr_format: Literal[2, 3] = 3

    def read(self, region: Region) -> NDArray[Any]:
        """A part of the array.

        Raises:
            DataError: it cannot be read, or not decompressed.
        """
        try:
            with self.opened() as array:
                found: NDArray[Any] = np.asarray(array[region])
        # the libraries have errors of their own
        except Exception as error:
            raise _cannot_read(self.path, error) from error
        return found

    def last_change(self) -> int:
        """When any of what is read was written, in nanoseconds; of a store, all its chunks are looked at."""
        top = str(Path(self.path) / self.member)
        inside = (os.path.join(folder, name) for folder, _, names in os.walk(top) for name in ("", *names))
        return max(map(_last_change, (top, *inside)))

    def spacing(self) -> tuple[float, ...]:
        """Distances between samples along each axis, in the units of an OME-Zarr.

        Raises:
            InputError: the file does not tell.
        """
        scales = self.attributes.get("ome", self.attributes).get("multiscales", [{}])[0]
        steps = [level for level in scales.get("datasets", []) if level["path"] == self.member]
        found = [
            transformation["scale"]
            for described in (*steps, scales)
            for transformation in described.get("coordinateTransformations", [])
            if transformation["type"] == "scale"
        ]
        if not found or any(len(scale) != len(self.shape) for scale in found):
            raise InputError(f"{self.path} does not tell the distances between its samples: give bandwidths in samples")
        return tuple(math.prod(numbers) for numbers in zip(*found, strict=True))

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """The array, as zarr gives it."""
        if self.kind == "tiff":
            with _opened_tiff(Path(self.path)) as array:
                yield array
            return
        import zarr

        yield zarr.open_array(str(Path(self.path) / self.member), mode="r")


def is_store(path: Path) -> bool:
    """Whether a Zarr array or group lies there."""
    return any((path / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))


def open_source(path: Path, axes: str | None = None) -> Source:
    """The array in a file; of an OME-Zarr its finest level.

    Args:
        path: a Zarr array, an OME-Zarr, or a TIFF.
        axes: a letter for each axis, as in `Source`; default: what the file says.

    Raises:
        InputError: the axes are unknown, or not of a kind that can be filtered.
        DataError: the file cannot be read.
    """
    if not path.exists():
        raise InputError(f"there is no {path}")
    try:
        source = _describe_tiff(path) if path.suffix.lower() in _TIFF_ENDINGS else _describe_store(path)
    except (InputError, ModuleNotFoundError):
        raise
    # the libraries have errors of their own
    except Exception as error:
        raise _cannot_read(path, error) from error
    names = _check_axes(path, source.shape, (axes or source.axes).upper())
    if np.dtype(source.dtype).kind not in "uif":
        raise InputError(f"{path} holds {source.dtype}, and only real numbers can be filtered")
    if 0 in source.shape:
        raise InputError(f"{path} has the shape {source.shape}: there is nothing to filter")
    return replace(source, path=str(path.resolve()), axes=names)


def _cannot_read(path: Path | str, error: Exception) -> DataError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return DataError(f"cannot read the array {path}: {reason}")


def _describe_store(path: Path) -> Source:
    import zarr

    found: Any = zarr.open(str(path), mode="r")
    if isinstance(found, zarr.Array):
        return _describe_array(path, "zarr", "", found, _dimension_names(found), dict(found.attrs))
    attributes: dict[str, Any] = dict(found.attrs)
    scales = attributes.get("ome", attributes).get("multiscales")
    if not scales:
        members = ", ".join(sorted(name for name, _ in found.arrays())) or "none"
        raise InputError(f"{path} is a group and no OME-Zarr: name one of its arrays, as in {path}/NAME ({members})")
    member, *others = [level["path"] for level in scales[0]["datasets"]]
    axes = _letters_of_axes(scales[0].get("axes", "tczyx"))
    source = _describe_array(path, "ome", member, found[member], axes, attributes)
    return replace(source, coarser=tuple(tuple(found[other].shape) for other in others))


def _describe_array(
    path: Path, kind: Literal["zarr", "ome"], member: str, array: Any, axes: str, attributes: Mapping[str, Any]
) -> Source:
    # NumPy's scalars are no JSON
    plain = json.loads(json.dumps(attributes))
    shape, chunks = tuple(array.shape), tuple(array.chunks)
    return Source(str(path), kind, member, shape, str(array.dtype), chunks, axes, (), plain, array.metadata.zarr_format)


def _letter_of_axis(axis: Any) -> str:
    """T for times, C for channels, for space another letter, the first of the name; "" if that is one of these two."""
    name = str(axis["name"] if isinstance(axis, Mapping) else axis).upper()
    if name in ("C", "CHANNEL", "CHANNELS", "BAND"):
        return "C"
    if name in ("T", "TIME"):
        return "T"
    return "" if name[:1] in ("C", "T") else name[:1]


def _letters_of_axes(axes: Sequence[Any]) -> str:
    """A letter for each axis, "" if one of them has none."""
    letters = [_letter_of_axis(axis) for axis in axes]
    return "".join(letters) if all(letters) else ""


def _dimension_names(array: Any) -> str:
    """The letters of names that xarray or the store gave, "" if there are none."""
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    return "" if not names or None in names else _letters_of_axes(names)


def _describe_tiff(path: Path) -> Source:
    import tifffile

    with tifffile.TiffFile(path) as file:
        axes = "".join(_TIFF_AXES.get(letter, letter) for letter in file.series[0].axes)
    with _opened_tiff(path) as array:
        shape, chunks, dtype = tuple(array.shape), tuple(array.chunks), str(array.dtype)
    return Source(str(path), "tiff", "", shape, dtype, chunks, axes)


def _last_change(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        # a link to nothing, or what somebody has just removed
        return 0


@contextmanager
def _opened_tiff(path: Path) -> Iterator[Any]:
    import tifffile
    import zarr

    store = tifffile.imread(path, aszarr=True, level=0)
    try:
        yield zarr.open_array(store, mode="r")
    finally:
        # which the array does not do
        store.close()


def _check_axes(path: Path, shape: Sequence[int], axes: str) -> str:
    if not axes:
        if may_have_channels(shape):
            raise InputError(f"{path} has the shape {tuple(shape)} and no names of its axes; say --axes YXC, ZYX, ...")
        axes = "TZYX"[-len(shape) :] if len(shape) <= 3 else ""
    space = axes.replace("C", "").replace("T", "")
    if len(axes) != len(shape) or len(set(axes)) != len(axes) or not 1 <= len(space) <= 3:
        raise InputError(
            f"{path} has the shape {tuple(shape)}: its axes need a letter each, one to three of space, at most one C "
            f"for channels and one T for times, got {axes!r}; say them with --axes"
        )
    return axes
