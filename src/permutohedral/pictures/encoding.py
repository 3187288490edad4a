"""Pictures as the bytes of a file, in memory: Pillow's encoders take a short write to a full disk for success."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from permutohedral.errors import InputError
from permutohedral.pictures.metadata import Metadata, find_lost, save_options
from permutohedral.pictures.sixteen_bit import can_write_wide, open_any, write_wide

# for formats whose defaults lose more than they must
_SAVE_OPTIONS: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 95, "subsampling": 0},
    "MPO": {"quality": 95, "subsampling": 0},
    "WEBP": {"lossless": True},
}
# others take 16 bits for 8, and all is white or black
_WIDE_GRAY = ("PNG", "TIFF", "JPEG2000", "PPM")
_MODES_WITH_ALPHA = ("LA", "PA", "RGBA", "La", "RGBa")


def format_of(path: Path) -> str | None:
    """Pillow's name for the format that the ending of `path` names; None if it names none."""
    return Image.registered_extensions().get(path.suffix.lower())


def check_format(kind: str, path: Path, channels: int, wide: bool) -> None:
    """Find out early whether a format holds so many channels, alpha included, of 16 bits if `wide`.

    Raises:
        InputError: it does not.
    """
    if wide and channels == 1 and kind not in _WIDE_GRAY:
        raise InputError(
            f"cannot write {path}: gray of 16 bits per channel fits into .png, .tif, .jp2 and .pgm alone; "
            "write one of these"
        )
    if wide and channels in (2, 4) and kind not in ("PNG", "TIFF"):
        raise InputError(
            f"cannot write {path}: transparency of 16 bits fits into .png and .tif alone; write one of these"
        )
    if wide and channels > 1 and not can_write_wide(kind):
        raise InputError(
            f"cannot write {path}: colors of 16 bits per channel fit into .png, .tif and .ppm alone; write one of these"
        )


def encode(numbers: NDArray[Any], kind: str, path: Path, metadata: Metadata) -> tuple[bytes, list[str]]:
    """The bytes of a file, and the names of the metadata that its format cannot hold.

    Args:
        numbers: uint8 or uint16 `[height, width, 1 to 4 channels]`, with alpha where there are 2 or 4.
        kind: Pillow's name of the format.
        path: for messages.
        metadata: what the file shall say about the picture.

    Raises:
        InputError: the format cannot hold the picture.
    """
    check_format(kind, path, numbers.shape[2], numbers.dtype == np.uint16)
    # a format may limit the length of what it holds; then the picture counts more
    attempts = [metadata, Metadata(metadata.color_profile, dpi=metadata.dpi), Metadata()]
    for number, attempt in enumerate(attempts):
        try:
            content = _save(numbers, kind, attempt)
            break
        # encoders raise any kind of exception for a picture they cannot hold
        except Exception as error:
            if number == len(attempts) - 1:
                reason = str(error) or type(error).__name__
                raise InputError(f"cannot write {path}: {reason}; a format such as .png may hold it") from error
    written = _open_encoded(content)
    if written is not None:
        _check_written(written, numbers, path)
    return content, find_lost(metadata, written)


def _save(numbers: NDArray[Any], kind: str, metadata: Metadata) -> bytes:
    options, file = save_options(metadata, kind), io.BytesIO()
    if numbers.dtype == np.uint16 and numbers.shape[2] > 1:
        write_wide(numbers, file, kind, options)
        return file.getvalue()
    image = Image.fromarray(numbers.squeeze(2) if numbers.shape[2] == 1 else numbers)
    image.save(file, format=kind, **_SAVE_OPTIONS.get(kind, {}), **options)
    return file.getvalue()


def _open_encoded(content: bytes) -> Image.Image | None:
    """What was encoded, not decoded; None if Pillow writes the format only."""
    # a picture that was in memory is not too large
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        return open_any(io.BytesIO(content))
    except UnidentifiedImageError:
        return None
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _check_written(written: Image.Image, numbers: NDArray[Any], path: Path) -> None:
    """Some encoders change the size or leave out a channel without an error."""
    height, width, channels = numbers.shape
    lost = None
    if written.size != (width, height):
        lost = f"{width} x {height} pixels"
    elif channels in (2, 4) and written.mode not in _MODES_WITH_ALPHA:
        alpha, most = numbers[..., -1], np.iinfo(numbers.dtype).max
        if "transparency" not in written.info:
            lost = None if int(alpha.min()) == most else "transparency"
        # one color that stands for transparent leaves nothing between
        elif ((alpha > 0) & (alpha < most)).any():
            lost = "half-transparent pixels"
    elif channels >= 3 and written.mode in ("1", "L", "LA", "I", "F"):
        lost = "colors"
    if lost is not None:
        raise InputError(f"cannot write {path}: the format {written.format} does not hold its {lost}; try .png")
