"""Maps of any numbers: depth, flow, heights. Files of NumPy, TIFF of floats, and pictures of 8 or 16 bits."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.pictures.batch import make_folder
from permutohedral.pictures.files import Picture, check_output, list_pictures, read_picture, write_picture
from permutohedral.reporting.atomic import write_bytes

_TIFF = (".tif", ".tiff")
# an array of three axes whose first is longer than this has its channels last
_MOST_CHANNELS = 4096


@dataclass(frozen=True)
class Map:
    """Numbers of pixels, as the file has them.

    Attributes:
        values: float32 `[channels, height, width]`.
        picture: the picture they come from, None if the file holds floats.
    """

    values: Tensor
    picture: Picture | None = None


def read_map(path: Path, unknown: float | None = None) -> Map:
    """Read a map in the range of its file; what equals `unknown` becomes NaN, and so does what is transparent.

    Raises:
        InputError: the file is missing, or holds something else.
    """
    if path.suffix == ".npy":
        found = Map(_from_array(_load(path), path))
    elif path.suffix.lower() in _TIFF and (floats := _read_floats(path)) is not None:
        found = Map(_from_array(floats, path))
    else:
        picture = read_picture(path)
        values = (picture.pixels * picture.levels).round()
        if picture.alpha is not None:
            values = torch.where(picture.alpha > 0, values, torch.nan)
        found = Map(values, picture)
    if unknown is None:
        return found
    return Map(torch.where(found.values == unknown, torch.nan, found.values), found.picture)


def _load(path: Path) -> NDArray[Any]:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} holds several arrays; one is needed")
    return array


def _read_floats(path: Path) -> NDArray[Any] | None:
    """The pixels of a TIFF file of floats, None if they are whole numbers."""
    import tifffile

    try:
        with tifffile.TiffFile(path) as file:
            page: Any = file.pages[0]
            if page.dtype is None or page.dtype.kind != "f":
                return None
            numbers: NDArray[Any] = page.asarray()
            # smaller copies and masks belong to the first
            images = sum(not (other.is_reduced or other.is_mask) for other in cast(Any, file.pages))
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    # decoders raise any kind of exception for a damaged file; the reader of pictures says what is wrong with it
    except Exception:
        return None
    if images > 1:
        raise InputError(
            f"{path} holds {images} pictures; put channels into one, with planarconfig='separate', or into .npy"
        )
    return numbers if numbers.ndim == 2 or page.planarconfig == 2 else np.moveaxis(numbers, -1, 0)


def _from_array(array: NDArray[Any], path: Path) -> Tensor:
    channels = len(array) if array.ndim == 3 else 1
    if array.dtype.kind not in "fiu" or array.ndim not in (2, 3) or array.size == 0 or channels > _MOST_CHANNELS:
        raise InputError(
            f"{path} must hold numbers [height, width] or [channels, height, width], got {array.dtype} of shape "
            f"{list(array.shape)}"
        )
    values = torch.from_numpy(array.astype(np.float32))
    return values[None] if array.ndim == 2 else values


def check_map_output(path: Path, source: Path) -> None:
    """Find out before any work whether the map of `source` can be written to `path`.

    Raises:
        InputError: there is no such folder, or the ending names no format that holds such numbers.
    """
    if path.suffix == ".npy":
        if not path.parent.is_dir():
            raise InputError(f"cannot write {path}: there is no folder {path.parent}")
        return
    check_output(path)
    if source.suffix == ".npy" and path.suffix.lower() not in _TIFF:
        raise InputError(f"cannot write {path}: the numbers of {source} need a file of floats, .npy or .tif")


def write_map(values: Tensor, like: Map, path: Path) -> list[str]:
    """Write numbers in the range, and with the bits, of the file that `like` was read from.

    Returns:
        the names of the metadata that the format cannot hold.
    """
    array = values.detach().cpu().numpy()
    if path.suffix == ".npy":
        content = io.BytesIO()
        np.save(content, array[0] if len(array) == 1 else array)
        write_bytes(path, content.getvalue())
        return []
    if like.picture is not None:
        levels = like.picture.levels
        return write_picture(Picture(values / levels, None, levels, like.picture.metadata, like.picture.format), path)
    if path.suffix.lower() not in _TIFF:
        raise InputError(f"cannot write {path}: floats need .npy or .tif")
    import tifffile

    content = io.BytesIO()
    planes = {} if len(array) == 1 else {"planarconfig": "separate", "photometric": "minisblack"}
    tifffile.imwrite(content, array[0] if len(array) == 1 else array, **planes)  # type: ignore[arg-type]
    write_bytes(path, content.getvalue())
    return []


def plan_maps(source: Path, output: Path, recursive: bool) -> list[tuple[Path, Path]]:
    """Pairs of a map and where its result goes; those of a folder into a folder, under the same names.

    Raises:
        InputError: there is no such file or folder, or the output cannot be written.
    """
    if not source.exists():
        raise InputError(f"there is no file or folder {source}")
    if not source.is_dir():
        result = output / source.name if output.is_dir() else output
        if result.resolve() == source.resolve():
            raise InputError(f"the result would replace {source}; name another file")
        check_map_output(result, source)
        return [(source, result)]
    if output.resolve() == source.resolve() or (output.exists() and not output.is_dir()):
        raise InputError(f"the maps in {source} need another folder for their results, got {output}")
    arrays = source.rglob("*.npy") if recursive else source.glob("*.npy")
    paths = sorted([*list_pictures(source, recursive), *arrays])
    paths = [path for path in paths if not path.resolve().is_relative_to(output.resolve())]
    if not paths:
        raise InputError(f"there are no maps in {source}{'' if recursive else '; --recursive also takes its folders'}")
    pairs = [(path, output / path.relative_to(source)) for path in paths]
    for folder in {result.parent for _, result in pairs}:
        make_folder(folder)
    return pairs


def find_beside(place: Path, source: Path, output: Path) -> Path:
    """The file that belongs to `source`: `place` itself, or that of the same name, with any ending, in that folder.

    Raises:
        InputError: there is none, or several, or `output` would replace it.
    """
    path = _find_beside(place, source)
    if path.resolve() == output.resolve():
        raise InputError(f"the result of {source} would replace {path}; name another file or folder")
    return path


def _find_beside(place: Path, source: Path) -> Path:
    if not place.is_dir():
        if not place.exists():
            raise InputError(f"there is no file or folder {place}")
        return place
    found = [path for path in sorted(place.iterdir()) if path.stem == source.stem]
    if len(found) != 1:
        raise InputError(f"{place} has {len(found) or 'no'} files of the name {source.stem}, as {source} needs")
    return found[0]
