"""Pictures in files to tensors and back, without a loss the file format does not impose."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.pictures.sixteen_bit import can_write_wide, is_wide, read_wide, write_wide
from permutohedral.reporting.atomic import replacing

# Pillow's modes that hold what another mode holds without loss, or nearly
_CONVERSIONS = {"1": "L", "P": "RGB", "PA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB", "HSV": "RGB", "LAB": "RGB"}
# larger pictures are refused before they are decoded: 134 million pixels take 1.6 GB as colors of float32
MAX_PIXELS = 1 << 27
MAX_PIXELS_VARIABLE = "PERMUTOHEDRAL_MAX_PIXELS"
# for formats whose defaults lose more than they must
_SAVE_OPTIONS: dict[str | None, dict[str, Any]] = {
    "JPEG": {"quality": 95, "subsampling": 0},
    "WEBP": {"lossless": True},
}
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N", "I")


@dataclass(frozen=True)
class Picture:
    """A picture as tensors.

    Attributes:
        pixels: float32 `[channels, height, width]` between 0 and 1; one channel (gray) or three (RGB).
        alpha: float32 `[1, height, width]`, None if the picture is opaque.
        levels: the integer that 1.0 stands for in the file: 255 or 65535.
        color_profile: what the colors mean (ICC), None if the file does not say.
    """

    pixels: Tensor
    alpha: Tensor | None = None
    levels: int = 255
    color_profile: bytes | None = None

    def with_pixels(self, pixels: Tensor) -> Picture:
        """The same picture with other pixels, of the same shape."""
        return replace(self, pixels=pixels)


def read_picture(path: Path) -> Picture:
    """Read a picture of any format that Pillow knows, turned upright.

    Raises:
        InputError: the file is missing, is no picture, is damaged, holds several frames, or more than `MAX_PIXELS`
            pixels.
    """
    try:
        with _open(path) as image:
            frames = getattr(image, "n_frames", 1)
            if frames > 1:
                raise InputError(f"{path} holds {frames} frames; extract the one to filter first")
            if is_wide(image):
                return _to_wide_picture(read_wide(path))
            return _to_picture(ImageOps.exif_transpose(image), path)
    except UnidentifiedImageError as error:
        raise InputError(f"{path} is not a picture in a format that Pillow reads") from error
    except InputError:
        raise
    # decoders of some formats raise any kind of exception for a damaged file
    except Exception as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error or type(error)}") from error


@contextmanager
def _open(path: Path) -> Iterator[Image.Image]:
    """The picture, not decoded yet, unless it claims too many pixels."""
    # our limit replaces Pillow's, which only warns up to twice its own limit
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        image = Image.open(path)
    finally:
        Image.MAX_IMAGE_PIXELS = before
    with image:
        limit = _max_pixels()
        if image.width * image.height > limit:
            raise InputError(
                f"{path} claims {image.width:,} x {image.height:,} pixels, more than {limit:,}, and a small file may "
                f"claim any size. Cut or scale it, or set {MAX_PIXELS_VARIABLE} if you trust it"
            )
        yield image


def _max_pixels() -> int:
    given = os.environ.get(MAX_PIXELS_VARIABLE)
    if given is None:
        return MAX_PIXELS
    if not given.isdigit():
        raise InputError(f"{MAX_PIXELS_VARIABLE} must be a whole number of pixels, got {given!r}")
    return int(given)


def _to_picture(image: Image.Image, path: Path) -> Picture:
    # a profile of other inks or axes says nothing about RGB
    profile = image.info.get("icc_profile") if image.mode in ("L", "LA", "P", "PA", "RGB", "RGBA") else None
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    image = image.convert(_CONVERSIONS.get(image.mode, image.mode))
    if image.mode in _SIXTEEN_BITS:
        numbers = np.asarray(image).astype(np.int64)
        if numbers.min(initial=0) < 0 or numbers.max(initial=0) > 65535:
            raise InputError(f"{path} holds integers of more than 16 bits; convert it to 8 or 16 bits per channel")
        return Picture(torch.from_numpy(numbers / 65535).float()[None], levels=65535)
    if image.mode not in ("L", "LA", "RGB", "RGBA"):
        raise InputError(f"{path} stores pixels as {image.mode!r}; convert it to gray or RGB, 8 or 16 bits per channel")
    pixels = torch.from_numpy(np.asarray(image).astype(np.float32) / 255)
    pixels = pixels.reshape(image.height, image.width, -1).permute(2, 0, 1)
    if image.mode in ("LA", "RGBA"):
        return Picture(pixels[:-1], alpha=pixels[-1:], color_profile=profile)
    return Picture(pixels, color_profile=profile)


def _to_wide_picture(numbers: NDArray[np.uint16]) -> Picture:
    pixels = torch.from_numpy(numbers.astype(np.float32) / 65535).permute(2, 0, 1)
    if numbers.shape[2] in (2, 4):
        return Picture(pixels[:-1], alpha=pixels[-1:], levels=65535)
    return Picture(pixels, levels=65535)


def list_pictures(folder: Path) -> list[Path]:
    """The files of a folder whose ending is that of a picture, by name."""
    known = Image.registered_extensions()
    return [path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix.lower() in known]


def check_output(path: Path) -> None:
    """Find out early, before any work, whether a picture can be written to `path`.

    Raises:
        InputError: there is no such folder, or the ending names no format that Pillow writes.
    """
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder")
    if _format_of(path) not in Image.SAVE:
        raise InputError(f"cannot write {path}: {path.suffix or 'no ending'} names no known format; try .png")


def _format_of(path: Path) -> str | None:
    return Image.registered_extensions().get(path.suffix.lower())


def write_picture(picture: Picture, path: Path) -> None:
    """Write a picture in the format that the ending of `path` names: whole, or not at all.

    Raises:
        InputError: the format cannot hold the picture.
        StorageError: the file cannot be written.
    """
    check_output(path)
    with replacing(path) as partial, open(partial, "xb") as file:
        _save(_to_numbers(picture), file, path, picture.color_profile)


def _to_numbers(picture: Picture) -> NDArray[Any]:
    """The integers of the file, `[height, width, channels]`."""
    layers = [picture.pixels] if picture.alpha is None else [picture.pixels, picture.alpha]
    # one copy, changed in place: a large picture is a large part of the memory
    scaled = torch.cat([layer.detach().cpu() for layer in layers]).clamp_(0, 1).mul_(picture.levels)
    return scaled.round_().permute(1, 2, 0).numpy().astype(np.uint8 if picture.levels == 255 else np.uint16)


def _save(numbers: NDArray[Any], file: IO[bytes], path: Path, profile: bytes | None) -> None:
    kind = _format_of(path)
    if numbers.dtype == np.uint8 or numbers.shape[2] == 1:
        image = Image.fromarray(numbers.squeeze(2) if numbers.shape[2] == 1 else numbers)
        image.save(file, format=kind, **_SAVE_OPTIONS.get(kind, {}), icc_profile=profile)
        return
    if not can_write_wide(kind):
        raise InputError(f"cannot write {path}: colors of 16 bits per channel fit into .png and .tif alone")
    write_wide(numbers, file, kind)
