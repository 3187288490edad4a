"""Zarr arrays, OME-Zarr images and TIFF files: describe them, read regions, write Zarr stores like them."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from permutohedral.apps.io.partial import NOTES
from permutohedral.apps.io.settings import reading
from permutohedral.errors import InputError
from permutohedral.filters.tiling import CHANNELS, SPATIAL, Region, cast_rounded, choices_of_axes, working_dtype

# letter of the time axis; times are filtered one by one
TIMES = "T"
# samples of a TIFF pixel are channels; pages may have an unknown meaning
_UNKNOWN = "?"
_TIFF_AXES = {"S": "C", "I": _UNKNOWN, "Q": _UNKNOWN}
# attribute of a result with the settings of its filter
_SETTINGS = "permutohedral"
_TIFF_SUFFIXES = (".tif", ".tiff", ".btf")
# files that describe a store of Zarr 3 or 2
_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


@dataclass(frozen=True)
class ArraySource:
    """Description of an array in a file, small enough to send to workers.

    Attributes:
        path: absolute path of the file or store, since workers may run in other folders.
        kind: Format.
        member: name of the array within a group, "" for the store itself.
        shape: Extents.
        dtype: name of the NumPy dtype.
        chunks: extents of what is written in one piece: the chunks, or the shards of several chunks.
        axes: a letter per axis: T for times, C for channels, others for space.
        coarser: shapes of the coarser levels of an OME-Zarr.
        attributes: attributes of a store; empty for a TIFF.
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

    @property
    def space(self) -> list[int]:
        """Numbers of the spatial axes."""
        return [axis for axis, name in enumerate(self.axes) if name not in (CHANNELS, TIMES)]

    def result_member(self, level: int) -> str:
        """Return the name of a level in the store of a result, "" for the store itself."""
        return str(level) if self.kind == "ome" else ""

    def read(self, region: Region) -> NDArray[Any]:
        """Read a region; raise `DataError` if it cannot be read or decompressed."""
        with reading(f"the array {self.path}"), self.opened() as array, _all_chunks_done():
            found: NDArray[Any] = np.asarray(array[region])
        return found

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Open as a Zarr array."""
        if self.kind == "tiff":
            with _opened_tiff(Path(self.path)) as array:
                yield array
            return
        import zarr

        yield zarr.open_array(str(Path(self.path) / self.member), mode="r")

    def last_change(self) -> int:
        """Return the time of the latest change of the file, or of any chunk of a store, in nanoseconds."""
        top = Path(self.path) / self.member
        return max(each.lstat().st_mtime_ns for each in (top, *top.rglob("*")))

    def spacing(self) -> tuple[float, ...]:
        """Return the distance between samples along each axis, in the physical units of an OME-Zarr."""
        with reading(f"the distances between samples in {self.path}"):
            scales = self.attributes.get("ome", self.attributes).get("multiscales", [{}])[0]
            levels = [level for level in scales.get("datasets", []) if level["path"] == self.member]
            # None if the numbers are in another file
            found = [
                transformation.get("scale")
                for described in (*levels, scales)
                for transformation in described.get("coordinateTransformations") or []
                if transformation.get("type") == "scale"
            ]
            if found and all(scale is not None and len(scale) == len(self.shape) for scale in found):
                return tuple(math.prod(map(float, numbers)) for numbers in zip(*found, strict=True))
        raise InputError(f"physical needs distances between samples as numbers, which {self.path} does not state")


def is_store(path: Path) -> bool:
    """Return whether a folder is a Zarr array or group."""
    return any((path / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))


def is_array(path: Path) -> bool:
    """Return whether a path is one input: a store, a file, or missing."""
    return not path.is_dir() or is_store(path)


def list_arrays(folder: Path, recursive: bool = False) -> list[Path]:
    """Return the Zarr stores and TIFF files of a folder by name."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not is_store(path):
            found += list_arrays(path, True) if recursive else []
        elif path.is_dir() or path.suffix.lower() in _TIFF_SUFFIXES:
            found.append(path)
    return found


def is_replaceable(path: Path) -> bool:
    """Return whether `create_store` wrote a store, and nothing was added to its group, such as labels."""
    if read_settings(path) is None:
        return False
    import zarr

    found: Any = zarr.open(str(path), mode="r")
    if isinstance(found, zarr.Array):
        return True
    levels = dict(found.attrs).get("ome", found.attrs).get("multiscales", [{}])[0].get("datasets", [])
    return {each.name for each in path.iterdir()} <= {*_METADATA, NOTES, *(level["path"] for level in levels)}


def open_source(path: Path, axes: str | None = None) -> ArraySource:
    """Describe the array in a file, for an OME-Zarr its finest level; `axes` default to those of the file."""
    if not path.exists():
        raise InputError(f"input {path} does not exist")
    with reading(f"the array {path}"):
        source = _describe_tiff(path) if path.suffix.lower() in _TIFF_SUFFIXES else _describe_store(path)
    if axes is not None and not set(axes.upper()) <= set(TIMES + CHANNELS + SPATIAL):
        raise InputError(f"axes are {axes!r}; pass Z, Y and X for space, C for channels, T for times")
    if not source.shape:
        raise InputError(f"input {path} is a single number; pass an array with axes")
    names = _check_axes(path, source.shape, (axes or source.axes).upper())
    if np.dtype(source.dtype).kind not in "uif":
        raise InputError(f"input {path} has dtype {source.dtype}; pass an array of integers or floats")
    if 0 in source.shape:
        raise InputError(f"input {path} has shape {source.shape}; pass an array that is not empty")
    return replace(source, path=str(path.resolve()), axes=names)


def _describe_store(path: Path) -> ArraySource:
    import zarr

    try:
        found: Any = zarr.open(str(path), mode="r")
    except FileNotFoundError as error:
        raise InputError(
            f"input {path} is neither Zarr nor TIFF; save the array as Zarr, such as with zarr.save('a.zarr', array)"
        ) from error
    attributes: dict[str, Any] = json.loads(json.dumps(dict(found.attrs)))
    if isinstance(found, zarr.Array):
        names = getattr(found.metadata, "dimension_names", None) or attributes.get("_ARRAY_DIMENSIONS")
        return _describe_array(path, "zarr", "", found, _axis_letters(names or [None]), attributes)
    scales = attributes.get("ome", attributes).get("multiscales")
    if not scales:
        members = ", ".join(sorted(name for name, _ in found.arrays())) or "none"
        raise InputError(f"input {path} is a group but no OME-Zarr; pass one of its arrays, {path}/NAME ({members})")
    member, *others = [level["path"] for level in scales[0]["datasets"]]
    axes = _axis_letters(scales[0].get("axes", "tczyx"))
    source = _describe_array(path, "ome", member, found[member], axes, attributes)
    return replace(source, coarser=tuple(tuple(found[other].shape) for other in others))


def _describe_array(
    path: Path, kind: Literal["zarr", "ome"], member: str, array: Any, axes: str, attributes: Mapping[str, Any]
) -> ArraySource:
    shape, zarr_format = tuple(array.shape), array.metadata.zarr_format
    chunks = tuple(array.shards or array.chunks)
    return ArraySource(str(path), kind, member, shape, str(array.dtype), chunks, axes, (), attributes, zarr_format)


def _axis_letters(axes: Sequence[Any]) -> str:
    """Return a letter per axis from their names, "" if one of them has none.

    >>> _axis_letters(["time", "band", "lat", "x"]), _axis_letters(["track", "x"])
    ('TCLX', '')
    """
    letters = []
    for axis in axes:
        name = "" if axis is None else str(axis["name"] if isinstance(axis, Mapping) else axis).upper()
        if name in ("C", "CHANNEL", "CHANNELS", "BAND"):
            letters.append(CHANNELS)
        elif name in ("T", "TIME"):
            letters.append(TIMES)
        else:
            # another name with C or T, such as "column", is neither channels nor times
            letters.append("" if name[:1] in (CHANNELS, TIMES) else name[:1])
    return "".join(letters) if all(letters) else ""


def _describe_tiff(path: Path) -> ArraySource:
    import tifffile

    with tifffile.TiffFile(path) as file:
        axes = "".join(_TIFF_AXES.get(letter, letter) for letter in file.series[0].axes)
    with _opened_tiff(path) as array:
        shape, chunks, dtype = tuple(array.shape), tuple(array.chunks), str(array.dtype)
    return ArraySource(str(path), "tiff", "", shape, dtype, chunks, axes)


@contextmanager
def _opened_tiff(path: Path) -> Iterator[Any]:
    import tifffile
    import zarr

    store = tifffile.imread(path, aszarr=True, level=0)
    try:
        yield zarr.open_array(store, mode="r")
    finally:
        store.close()


def _check_axes(path: Path, shape: Sequence[int], stated: str) -> str:
    axes = stated.replace(_UNKNOWN, "Z")
    if not axes:
        choices = choices_of_axes(shape, TIMES + CHANNELS + SPATIAL)
        if choices:
            raise InputError(
                f"axes are not stated by {path}, which has shape {tuple(shape)}; pass {', '.join(choices)}, ..."
            )
        axes = SPATIAL[-len(shape) :] if len(shape) <= 3 else ""
    space = axes.replace(CHANNELS, "").replace(TIMES, "")
    if len(axes) != len(shape) or len(set(axes)) != len(axes) or not 1 <= len(space) <= 3:
        raise InputError(
            f"axes are {axes!r}, but {path} has shape {tuple(shape)}; pass a letter per axis: one to three for space, "
            "at most one C for channels, at most one T for times"
        )
    # slices may be times, which are not filtered
    if "Z" in axes and axes != stated:
        warnings.warn(f"{path} does not state its axes, taken as {axes}; pass others as axes", stacklevel=3)
    return axes


def read_settings(path: Path) -> dict[str, Any] | None:
    """Return the settings that `create_store` stored, None if there is no such store or it has none."""
    if not is_store(path):
        return None
    import zarr

    with reading(f"the array {path}"):
        found: Any = zarr.open(str(path), mode="r")
        settings: dict[str, Any] | None = found.attrs.get(_SETTINGS)
    return settings


def create_store(folder: Path, source: ArraySource, block: Sequence[int], settings: Mapping[str, Any]) -> None:
    """Create an empty store with the metadata, codecs and chunks of the source; of a TIFF chunks of at most `block`.

    `settings` are stored as an attribute, for `read_settings`.
    """
    import zarr

    chunks = source.chunks
    if source.kind == "tiff":
        chunks = tuple(min(pair) for pair in zip(block, source.chunks, strict=True))
    options: dict[str, Any] = {"zarr_format": source.zarr_format, "chunks": chunks, "dtype": source.dtype}
    if source.zarr_format == 2:
        options["chunk_key_encoding"] = {"name": "v2", "separator": "/"}
    elif source.axes:
        options["dimension_names"] = [letter.lower() for letter in source.axes]
    if source.kind != "tiff":
        with source.opened() as like:
            for name in ("chunks", "shards", "filters", "compressors", "fill_value"):
                options[name] = getattr(like, name)
            if source.zarr_format == 2:
                options["order"] = like.order
            else:
                options["serializer"] = like.serializer
                options["dimension_names"] = like.metadata.dimension_names or options["dimension_names"]
    if source.kind != "ome":
        attributes = {**source.attributes, _SETTINGS: settings}
        zarr.create_array(str(folder), shape=source.shape, attributes=attributes, **options)
        return
    attributes = {**_number_levels(source.attributes), _SETTINGS: settings}
    zarr.create_group(str(folder), zarr_format=source.zarr_format, attributes=attributes)
    for number, shape in enumerate((source.shape, *source.coarser)):
        zarr.create_array(str(folder), name=str(number), shape=shape, **options)


def _number_levels(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return OME-Zarr attributes of the first image only, with levels named 0, 1, ..."""
    described = dict(attributes)
    inner = described.get("ome", described)
    scales = dict(inner["multiscales"][0])
    scales["datasets"] = [{**level, "path": str(number)} for number, level in enumerate(scales["datasets"])]
    inner = {**inner, "multiscales": [scales]}
    return {**described, "ome": inner} if "ome" in described else inner


def write_region(path: Path, region: Region, part: NDArray[Any]) -> None:
    """Write a region of whole chunks; chunks of the fill value are not stored."""
    import zarr

    array: Any = zarr.open_array(str(path), mode="r+")
    with _all_chunks_done():
        array[region] = part


@contextmanager
def _all_chunks_done() -> Iterator[None]:
    """Wait for the other chunks after an error of one: at the end of the process, asyncio would print each of them."""
    try:
        yield
    except Exception:
        from zarr.core.sync import sync

        async def wait() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*others, return_exceptions=True)

        sync(wait())
        raise


def downsampling_factors(finer: Sequence[int], coarser: Sequence[int]) -> list[int]:
    """Return the number of samples of the finer level per sample of the coarser one, for each axis.

    >>> downsampling_factors((9, 101, 100), (9, 50, 51))
    [1, 2, 2]
    """
    return [max(round(before / max(after, 1)), 1) for before, after in zip(finer, coarser, strict=True)]


def check_levels(shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise unless each level averages a whole number of samples of the one before.

    >>> check_levels([(9, 101), (9, 51), (5, 25)])
    """
    for finer, coarser in itertools.pairwise(shapes):
        for before, after, factor in zip(finer, coarser, downsampling_factors(finer, coarser), strict=True):
            if after not in (before // factor, -(-before // factor)):
                raise InputError(
                    f"input has a level of shape {coarser} after one of {finer}: {after} samples are not means of a "
                    f"whole number of {before}; pass the path of the finest level to filter it alone"
                )


def average_region(finer: Path, region: Region, factors: Sequence[int]) -> NDArray[Any]:
    """Return a region of an OME-Zarr level: means over `factors` samples of the level before, `finer`."""
    import zarr

    array: Any = zarr.open_array(str(finer), mode="r")
    wide = tuple(slice(part.start * factor, part.stop * factor) for part, factor in zip(region, factors, strict=True))
    return average_blocks(np.asarray(array[wide]), [part.stop - part.start for part in region], factors)


def average_blocks(block: NDArray[Any], sizes: Sequence[int], factors: Sequence[int]) -> NDArray[Any]:
    """Average blocks of `factors` samples into `sizes` samples; repeat the last samples if some are missing.

    >>> average_blocks(np.array([1, 3, 5], np.uint8), [2], [2]).tolist()
    [2, 5]
    """
    missing = [(0, size * factor - extent) for size, factor, extent in zip(sizes, factors, block.shape, strict=True)]
    wide = np.pad(block, missing, mode="edge") if any(after for _, after in missing) else block
    parts = [number for pair in zip(sizes, factors, strict=True) for number in pair]
    mean = wide.reshape(parts).mean(axis=tuple(range(1, 2 * len(sizes), 2)), dtype=working_dtype(block.dtype))
    return cast_rounded(mean, block.dtype)
