"""Pictures in files to tensors and back, without a loss the file format does not impose."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from permutohedral.errors import InputError, StorageError
from permutohedral.pictures.bit_depth import describe_dropped_bits
from permutohedral.pictures.encoding import check_format, encode, format_of
from permutohedral.pictures.metadata import Metadata, read_metadata
from permutohedral.pictures.sixteen_bit import is_wide, open_any, read_wide
from permutohedral.pictures.tiff import has_signed_bytes
from permutohedral.reporting.atomic import write_bytes

# stdin as a source, stdout as an output
STREAM = Path("-")
# Pillow's modes that hold what another mode holds without loss, or nearly
_CONVERSIONS = {"1": "L", "P": "RGB", "PA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB", "HSV": "RGB", "LAB": "RGB"}
# larger pictures are refused before they are decoded: 134 million pixels take 1.6 GB as colors of float32
MAX_PIXELS = 1 << 27
MAX_PIXELS_VARIABLE = "PERMUTOHEDRAL_MAX_PIXELS"
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_WITHOUT_SIGN = "8 or 16 bits per channel without a sign, or a map to floats"
# files whose ending Pillow knows, but which hold films, data or drawings that it cannot read by itself
_NO_PICTURES = ("BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF")
# phones put a second picture into the file, such as the depth; the first is the photograph
_FIRST_FRAME = ("MPO",)


@dataclass(frozen=True)
class Picture:
    """A picture as tensors.

    Attributes:
        pixels: float32 `[channels, height, width]` between 0 and 1; one channel (gray) or three (RGB).
        alpha: float32 `[1, height, width]`, None if the picture is opaque.
        levels: the integer that 1.0 stands for in the file: 255 or 65535.
        metadata: what the file says about the picture.
        format: of the file, as Pillow names it.
    """

    pixels: Tensor
    alpha: Tensor | None = None
    levels: int = 255
    metadata: Metadata = field(default_factory=Metadata)
    format: str | None = None

    def with_pixels(self, pixels: Tensor) -> Picture:
        """The same picture with other pixels, of the same shape."""
        return replace(self, pixels=pixels)


def read_picture(path: Path, most_pixels: int | None = None) -> Picture:
    """Read a picture of any format that Pillow knows, turned upright; from stdin if `path` is "-".

    Raises:
        InputError: the file is missing, is no picture, is damaged, holds several frames, or more than `most_pixels`,
            or where that is None `MAX_PIXELS`, pixels.
    """
    source = io.BytesIO(sys.stdin.buffer.read()) if path == STREAM else path
    try:
        with _open(source, path, most_pixels) as image:
            frames = getattr(image, "n_frames", 1)
            if frames > 1 and image.format not in _FIRST_FRAME:
                raise InputError(f"{path} holds {frames} frames; extract the one to filter first")
            if has_signed_bytes(image):
                raise InputError(f"{path} holds integers with a sign; convert it to {_WITHOUT_SIGN}")
            transparent = _transparent_color(image)
            if is_wide(image):
                picture = _from_numbers(read_wide(source), 65535, transparent)
            else:
                picture = _to_picture(ImageOps.exif_transpose(image), path, transparent)
            height, width = picture.pixels.shape[1:]
            metadata = read_metadata(image, (width, height))
            dropped = describe_dropped_bits(image, source)
            if dropped is not None:
                metadata = replace(metadata, unreadable=(*metadata.unreadable, dropped))
            return replace(picture, metadata=metadata, format=image.format)
    except UnidentifiedImageError as error:
        raise InputError(f"{path} is not a picture in a format that Pillow reads") from error
    except InputError:
        raise
    # decoders of some formats raise any kind of exception for a damaged file
    except Exception as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error or type(error)}") from error


@contextmanager
def _open(source: Path | io.BytesIO, path: Path, most_pixels: int | None) -> Iterator[Image.Image]:
    """The picture, not decoded yet, unless it claims too many pixels."""
    # our limit replaces Pillow's, which only warns up to twice its own limit
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        image = open_any(source)
    finally:
        Image.MAX_IMAGE_PIXELS = before
    with image:
        if most_pixels is not None and image.width * image.height > most_pixels:
            raise InputError(
                f"{path} has {image.width:,} x {image.height:,} pixels, more than {most_pixels:,}; cut or scale it"
            )
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


def _transparent_color(image: Image.Image) -> NDArray[Any] | None:
    """The one color that stands for nothing (PNG's tRNS), in the numbers of the pixels; None if there is none."""
    color = image.info.get("transparency")
    if image.mode not in ("1", "L", "RGB", "I;16") or isinstance(color, bytes) or color is None:
        return None
    raw_mode = str(next((tile[3] for tile in getattr(image, "tile", [])), ""))
    # Pillow spreads gray of 2 or 4 bits over 8, but not this color
    spread = {"L;2": 85, "L;4": 17}.get(raw_mode, 1)
    return np.atleast_1d(np.asarray(color)) * spread


def _to_picture(image: Image.Image, path: Path, transparent: NDArray[Any] | None) -> Picture:
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode in _CONVERSIONS:
        # Pillow would make alpha of it, at other numbers than ours
        image.info.pop("transparency", None)
        image = image.convert(_CONVERSIONS[image.mode])
    if image.mode in _SIXTEEN_BITS:
        numbers = np.asarray(image).astype(np.int64)
        if numbers.min(initial=0) < 0:
            raise InputError(f"{path} holds negative integers; convert it to {_WITHOUT_SIGN}")
        if numbers.max(initial=0) > 65535:
            raise InputError(f"{path} holds integers of more than 16 bits; convert it to 8 or 16 bits per channel")
        return _from_numbers(numbers[..., None], 65535, transparent)
    if image.mode not in ("L", "LA", "RGB", "RGBA"):
        raise InputError(f"{path} stores pixels as {image.mode!r}; convert it to gray or RGB, 8 or 16 bits per channel")
    return _from_numbers(np.asarray(image).reshape(image.height, image.width, -1), 255, transparent)


def _from_numbers(numbers: NDArray[Any], levels: int, transparent: NDArray[Any] | None) -> Picture:
    """From `[height, width, channels]`, with alpha if there are 2 or 4 channels or a transparent color."""
    # in place: a large picture is a large part of the memory
    pixels = torch.from_numpy(numbers.astype(np.float32)).div_(levels).permute(2, 0, 1)
    if numbers.shape[2] in (2, 4):
        return Picture(pixels[:-1], alpha=pixels[-1:], levels=levels)
    if transparent is None:
        return Picture(pixels, levels=levels)
    visible = torch.from_numpy((numbers != transparent).any(axis=2))
    return Picture(pixels, alpha=visible[None].float(), levels=levels)


def list_pictures(folder: Path, recursive: bool = False) -> list[Path]:
    """The files of a folder, with its folders if `recursive`, whose ending is that of a picture, by name.

    Names that begin with a dot are hidden: what other programs note beside a picture, or are still writing.
    """
    endings = Image.registered_extensions()
    known = {ending for ending, kind in endings.items() if kind in Image.OPEN and kind not in _NO_PICTURES}
    paths = folder.rglob("*") if recursive else folder.iterdir()
    shown = (path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    return sorted(path for path in shown if path.suffix.lower() in known and path.is_file())


def check_output(path: Path, picture: Picture | None = None) -> None:
    """Find out early, before any work, whether a picture can be written to `path`.

    Raises:
        InputError: there is no such folder, the ending names no format that Pillow writes, or one that cannot hold
            the picture.
    """
    if path != STREAM:
        if not path.parent.is_dir():
            raise InputError(f"cannot write {path}: there is no folder {path.parent}")
        if path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder")
        if format_of(path) not in Image.SAVE:
            raise InputError(f"cannot write {path}: {path.suffix or 'no ending'} names no known format; try .png")
    if picture is not None:
        channels = picture.pixels.shape[0] + (picture.alpha is not None)
        check_format(_format_for(picture, path), path, channels, picture.levels > 255)


def _format_for(picture: Picture, path: Path) -> str:
    """By the ending; on stdout that of the input, or PNG where Pillow does not write that."""
    kind = picture.format if path == STREAM else format_of(path)
    return kind if kind is not None and kind in Image.SAVE else "PNG"


def write_picture(picture: Picture, path: Path) -> list[str]:
    """Write a picture in the format that the ending of `path` names: whole, or not at all; to stdout if it is "-".

    Returns:
        the names of the metadata that the format cannot hold.

    Raises:
        InputError: the format cannot hold the picture.
        StorageError: the file cannot be written.
    """
    check_output(path)
    content, lost = encode_picture(picture, path)
    if path == STREAM:
        _write_to_stdout(content)
    else:
        write_bytes(path, content)
    return lost


def encode_picture(picture: Picture, path: Path) -> tuple[bytes, list[str]]:
    """What `write_picture` writes to `path`, and the names of the metadata that the format cannot hold.

    Raises:
        InputError: the format cannot hold the picture.
    """
    return encode(_to_numbers(picture), _format_for(picture, path), path, picture.metadata)


def _write_to_stdout(content: bytes) -> None:
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except OSError as error:
        raise StorageError(f"cannot write to stdout: {error.strerror or error}") from error


def _to_numbers(picture: Picture) -> NDArray[Any]:
    """The integers of the file, `[height, width, channels]`."""
    layers = [picture.pixels] if picture.alpha is None else [picture.pixels, picture.alpha]
    # one copy, changed in place: a large picture is a large part of the memory
    scaled = torch.cat([layer.detach().cpu() for layer in layers]).clamp_(0, 1).mul_(picture.levels)
    return scaled.round_().permute(1, 2, 0).numpy().astype(np.uint8 if picture.levels == 255 else np.uint16)
