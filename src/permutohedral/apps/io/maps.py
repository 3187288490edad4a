"""Maps of any numbers (depth, flow, heights): .npy, TIFF of floats, and images of 8 or 16 bits."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.apps.io.atomic import write_bytes
from permutohedral.apps.io.image import ImageData, check_output, list_images, read_image, write_image
from permutohedral.apps.io.limits import check_size
from permutohedral.apps.io.tiff import read_floats
from permutohedral.errors import DataError, InputError
from permutohedral.filters.tiling import cast_rounded

_ARRAY, _TIFF = ".npy", (".tif", ".tiff")
# an array of three axes whose first is longer has its channels last
_MAX_CHANNELS = 4096
# and so has one whose last is this short, while the others are longer
_MAX_LAST = 4


@dataclass(frozen=True)
class Map:
    """Numbers of pixels in the range of the file.

    Attributes:
        values: float32 `[channels, height, width]`.
        image: the image they come from, None if the file is no image.
        dtype: of the integers of a .npy file; None if the file holds floats, or is an image.
    """

    values: Tensor
    image: ImageData | None = None
    dtype: np.dtype[Any] | None = None


def read_map(path: Path, unknown: float | None = None, max_pixels: int | None = None) -> Map:
    """Read a map; transparent pixels, and those equal to `unknown`, become NaN. For `max_pixels` see `check_size`."""
    if path.suffix.lower() == _ARRAY:
        array = load_array(path, max_pixels)
        found = Map(_from_array(array, path), dtype=array.dtype if array.dtype.kind in "iu" else None)
    elif path.suffix.lower() in _TIFF and (floats := read_floats(path, max_pixels)) is not None:
        found = Map(_from_array(floats, path))
    else:
        image = read_image(path, max_pixels)
        values = (image.pixels * image.levels).round()
        if image.alpha is not None:
            values = torch.where(image.alpha > 0, values, torch.nan)
        found = Map(values, image)
    if unknown is None:
        return found
    return replace(found, values=torch.where(found.values == unknown, torch.nan, found.values))


def load_array(path: Path, max_pixels: int | None = None) -> NDArray[Any]:
    """Map the array of a .npy file into memory, read-only; for `max_pixels` see `check_size`.

    Raises `DataError` if it cannot be read or is shorter than its header says, `InputError` if it holds several arrays.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    # damaged headers raise any exception
    except Exception as error:
        # NumPy takes any other file for a pickle, and asks for an option that would run its code
        if isinstance(error, ValueError) and not _is_npy(path):
            raise DataError(f"{path} is not a .npy file; write one with np.save") from error
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} holds several arrays; save one array as .npy")
    if array.ndim > 1:
        check_size(path, array.shape[-1], array.shape[-2], max_pixels=max_pixels)
    return array


def _is_npy(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX


def _from_array(array: NDArray[Any], path: Path) -> Tensor:
    channels = len(array) if array.ndim == 3 else 1
    if array.dtype.kind not in "fiu" or array.ndim not in (2, 3) or array.size == 0 or channels > _MAX_CHANNELS:
        raise InputError(
            f"{path} must hold numbers [height, width] or [channels, height, width], got {array.dtype} of shape "
            f"{list(array.shape)}"
        )
    if array.ndim == 3 and array.shape[2] <= _MAX_LAST < min(array.shape[:2]):
        raise InputError(
            f"{path} has the shape {list(array.shape)}, and its channels seem to be last; save it as "
            "[channels, height, width], with np.moveaxis(array, -1, 0)"
        )
    values = torch.from_numpy(array.astype(np.float32))
    return values[None] if array.ndim == 2 else values


def list_maps(folder: Path, recursive: bool = False) -> list[Path]:
    """Return the maps of a folder by name: image files and .npy files; hidden files are skipped."""
    return list_images(folder, recursive, (_ARRAY,))


def check_map_output(path: Path, source: Path) -> None:
    """Raise `InputError` before any work if the map of `source` cannot be written to `path`."""
    if path.suffix.lower() == _ARRAY:
        if not path.parent.is_dir():
            raise InputError(f"cannot write {path}: there is no folder {path.parent}; create it")
        return
    check_output(path)
    if source.suffix.lower() == _ARRAY and path.suffix.lower() not in _TIFF:
        raise InputError(f"cannot write {path}: the numbers of {source} need a file of floats, .npy or .tif")


def write_map(values: Tensor, like: Map, path: Path) -> None:
    """Write a map with the range and the bits of `like`."""
    array = values.detach().cpu().numpy()
    array = array[0] if len(array) == 1 else array
    if like.dtype is not None:
        array = cast_rounded(array, like.dtype)
    content = io.BytesIO()
    if path.suffix.lower() == _ARRAY:
        np.save(content, array)
    elif like.image is not None:
        write_image(replace(like.image, pixels=values / like.image.levels, alpha=None), path)
        return
    elif path.suffix.lower() not in _TIFF:
        raise InputError(f"cannot write {path}: floats need .npy or .tif")
    else:
        import tifffile

        planes: dict[str, Any] = {"planarconfig": "separate", "photometric": "minisblack"} if array.ndim == 3 else {}
        tifffile.imwrite(content, array, **planes)
    write_bytes(path, content.getvalue())
