"""Image files as tensors, and back without a loss that the format does not impose."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from permutohedral.apps.io import sixteen_bit, tiff
from permutohedral.apps.io.atomic import write_bytes
from permutohedral.apps.io.limits import check_size
from permutohedral.apps.io.metadata import Metadata, read_metadata, save_options
from permutohedral.apps.io.settings import STREAM
from permutohedral.errors import DataError, InputError, PermutohedralError, StorageError

# formats that are read, in Pillow's names. Decoders of others run programs (EPS), read a header only (HDF5), or decode
# images whose size they do not state (ICO). TGA is the last, since any file may begin like one
_FORMATS = (
    *("JPEG", "PNG", "TIFF", "WEBP", "AVIF", "HEIF", "GIF", "BMP", "PPM", "JPEG2000", "QOI", "DDS", "PSD", "SGI"),
    *("PCX", "TGA"),
)
# Pillow's modes, and the mode that holds the same pixels without loss, or nearly
_CONVERSIONS = {"1": "L", "P": "RGB", "PA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB", "HSV": "RGB", "LAB": "RGB"}
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_UNSIGNED = "8 or 16 bits per channel without a sign, or to a map of floats"
# phones store a second image, such as the depth, after the photo
_FIRST_FRAME = ("MPO",)
# tags of TIFF
_TILE_WIDTH, _TILE_LENGTH = 322, 323
# where Pillow's defaults lose or wait more than necessary
_SAVE_OPTIONS: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 95, "subsampling": 0},
    "MPO": {"quality": 95, "subsampling": 0},
    "AVIF": {"quality": 95, "subsampling": "4:4:4"},
    "WEBP": {"lossless": True},
    # 1.2 s instead of 3.1 s for a denoised photo of 12 megapixels, in 2 % more bytes
    "PNG": {"compress_level": 4},
}
# other formats clip 16 bits to 8
_WIDE_GRAY = ("PNG", "TIFF", "JPEG2000", "PPM")
# these store gray as RGB, to which a profile of gray does not apply
_RGB_ONLY = ("WEBP", "AVIF")
_MODES_WITH_ALPHA = ("LA", "PA", "RGBA", "La", "RGBa")
# photos of phones, which Pillow reads with an extension
_HEIF_SUFFIXES = (".heic", ".heif", ".hif")
if find_spec("pillow_heif") is not None:
    import_module("pillow_heif").register_heif_opener()


@dataclass(frozen=True)
class ImageData:
    """An image as tensors.

    Attributes:
        pixels: float32 `[channels, height, width]` in 0 to 1, with one channel (gray) or three (RGB).
        alpha: float32 `[1, height, width]`, None if the image is opaque.
        levels: integer of the file that 1.0 stands for, 255 or 65535.
        metadata: EXIF, color profile and more.
        format: Pillow's name of the format.
        palette: colors of an indexed file, 3 bytes each; empty for other files.
    """

    pixels: Tensor
    alpha: Tensor | None = None
    levels: int = 255
    metadata: Metadata = field(default_factory=Metadata)
    format: str | None = None
    palette: bytes = b""

    def with_pixels(self, pixels: Tensor) -> ImageData:
        """Return the same image with other pixels of the same size."""
        return replace(self, pixels=pixels)


def read_image(path: Path, max_pixels: int | None = None) -> ImageData:
    """Read an image, turned upright; "-" is stdin.

    Raises `DataError` if the file is missing, damaged or not an image of a known format. Raises `InputError` if it has
    several frames, numbers that do not fit, or too many pixels (see `check_size`).
    """
    name = "stdin" if path == STREAM else path
    with _errors_of_decoders(name):
        source = _read_stdin() if path == STREAM else path
        try:
            with _open(source, name, max_pixels) as image:
                return _read(image, source, name, max_pixels)
        except UnidentifiedImageError:
            if not tiff.is_tiff(source):
                raise
            # gray of 16 bits with alpha, which Pillow does not know
            numbers, metadata = tiff.read_wide_colors(source, name, max_pixels)
            return replace(_from_integers(numbers, 65535, None), metadata=metadata, format="TIFF")


def read_texts(path: Path) -> dict[str, Any]:
    """Return what a PNG file holds besides its pixels, which are not decoded; raise like `read_image`."""
    with _errors_of_decoders(path), Image.open(path, formats=["PNG"]) as image:
        return {str(key): value for key, value in image.info.items()}


def _read_stdin() -> io.BytesIO:
    stream = getattr(sys.stdin, "buffer", None)
    content = b"" if stream is None else stream.read()
    if not content:
        raise DataError("stdin is empty; pipe an image into the command")
    return io.BytesIO(content)


@contextmanager
def _errors_of_decoders(name: object) -> Iterator[None]:
    """Raise `DataError` or `InputError` for any error in the block; decoders raise errors of many types."""
    try:
        yield
    except UnidentifiedImageError as error:
        hint = "; install pillow-heif" if Path(str(name)).suffix.lower() in _HEIF_SUFFIXES else ""
        raise DataError(f"{name} is not an image of a known format{hint}") from error
    except (PermutohedralError, ModuleNotFoundError):
        raise
    except Image.DecompressionBombError as error:
        raise InputError(f"{name} has too many pixels; crop or scale it") from error
    except Exception as error:
        raise DataError(f"cannot read {name}: {getattr(error, 'strerror', None) or error or type(error)}") from error


@contextmanager
def _open(source: tiff.Source, name: object, max_pixels: int | None) -> Iterator[Image.Image]:
    """Open an image without decoding it, and raise if it is too large."""
    Image.init()
    # libraries of some formats may be missing
    with Image.open(source, formats=[kind for kind in _FORMATS if kind in Image.OPEN]) as image:
        check_size(name, *image.size, max_pixels=max_pixels)
        tags: Any = getattr(image, "tag_v2", {})
        # a tile may be larger than the image, and is decoded as a whole
        check_size(name, tags.get(_TILE_WIDTH, 0), tags.get(_TILE_LENGTH, 0), max_pixels=max_pixels)
        yield image


def _read(image: Image.Image, source: tiff.Source, name: object, max_pixels: int | None) -> ImageData:
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format not in _FIRST_FRAME:
        raise InputError(
            f"{name} has {frames} frames; extract one, or filter a TIFF stack by `permutohedral array filter`, "
            "and name OUTPUT .zarr"
        )
    if sixteen_bit.has_signed_bytes(image):
        raise InputError(f"{name} holds signed integers; convert it to {_UNSIGNED}")
    transparent = _transparent_color(image)
    wide = sixteen_bit.read_wide(image, source, name, max_pixels)
    if wide is not None:
        found = _from_integers(wide, 65535, transparent)
    else:
        found = _convert(ImageOps.exif_transpose(image), name, transparent)
    height, width = found.pixels.shape[1:]
    metadata = read_metadata(image, (width, height))
    if image.mode == "CMYK":
        warnings.warn(f"{name} has CMYK colors, converted to RGB without their profile", stacklevel=3)
    palette = bytes(image.getpalette("RGB") or ()) if image.mode == "P" else b""
    return replace(found, metadata=metadata, format=image.format, palette=palette)


def _transparent_color(image: Image.Image) -> NDArray[Any] | None:
    """Return the color that PNG's tRNS marks as transparent, in the integers of the pixels."""
    color = image.info.get("transparency")
    if image.mode not in ("1", "L", "RGB", "I;16") or isinstance(color, bytes) or color is None:
        return None
    raw_mode = str(next((tile[3] for tile in getattr(image, "tile", [])), ""))
    # Pillow scales gray of 2 or 4 bits to 8, but not this color
    scale = {"L;2": 85, "L;4": 17}.get(raw_mode, 1)
    return np.atleast_1d(np.asarray(color)) * scale


def _convert(image: Image.Image, name: object, transparent: NDArray[Any] | None) -> ImageData:
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode in _CONVERSIONS:
        # Pillow would turn it into alpha
        image.info.pop("transparency", None)
        image = image.convert(_CONVERSIONS[image.mode])
    if image.mode in _SIXTEEN_BITS:
        integers = np.asarray(image).astype(np.int64)
        if integers.min(initial=0) < 0:
            raise InputError(f"{name} holds negative integers; convert it to {_UNSIGNED}")
        if integers.max(initial=0) > 65535:
            raise InputError(f"{name} holds integers of more than 16 bits; convert it to 8 or 16 bits per channel")
        return _from_integers(integers[..., None], 65535, transparent)
    if image.mode not in ("L", "LA", "RGB", "RGBA"):
        raise InputError(f"{name} stores pixels as {image.mode!r}; convert it to gray or RGB, 8 or 16 bits per channel")
    return _from_integers(np.asarray(image).reshape(image.height, image.width, -1), 255, transparent)


def _from_integers(integers: NDArray[Any], levels: int, transparent: NDArray[Any] | None) -> ImageData:
    """Convert `[height, width, channels]`; 2 or 4 channels include alpha."""
    # in place, since a large image is a large part of the memory
    pixels = torch.from_numpy(integers.astype(np.float32)).div_(levels).permute(2, 0, 1)
    if integers.shape[2] in (2, 4):
        return ImageData(pixels[:-1], alpha=pixels[-1:], levels=levels)
    if transparent is None:
        return ImageData(pixels, levels=levels)
    visible = torch.from_numpy((integers != transparent).any(axis=2))
    return ImageData(pixels, alpha=visible[None].float(), levels=levels)


def list_images(folder: Path, recursive: bool = False, more_endings: tuple[str, ...] = ()) -> list[Path]:
    """Return the image files of a folder by name, judged by their endings; hidden files are skipped."""
    known = {ending for ending, kind in Image.registered_extensions().items() if kind in _FORMATS}
    known.update(_HEIF_SUFFIXES, more_endings)
    paths = folder.rglob("*") if recursive else folder.iterdir()
    shown = (path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    return sorted(path for path in shown if path.suffix.lower() in known and path.is_file())


def format_of(path: Path) -> str | None:
    """Return Pillow's name of the format that the ending of `path` names, or None."""
    return Image.registered_extensions().get(path.suffix.lower())


def check_output(path: Path, image: ImageData | None = None) -> None:
    """Raise `InputError` before any work if `path` cannot be written, or its format cannot hold `image`."""
    if path != STREAM:
        if not path.parent.is_dir():
            raise InputError(f"cannot write {path}: there is no folder {path.parent}; create it")
        if path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder")
        if format_of(path) not in Image.SAVE:
            reason = f"{path.suffix} names no known format" if path.suffix else "its name has no ending"
            raise InputError(f"cannot write {path}: {reason}; try .png, or create a folder of that name")
    if image is not None:
        channels = image.pixels.shape[0] + (image.alpha is not None)
        _check_format(_output_format(image, path), path, channels, image.levels > 255)


def _output_format(image: ImageData, path: Path) -> str:
    """Return the format of the ending; on stdout that of the input, or PNG if Pillow cannot write it."""
    kind = image.format if path == STREAM else format_of(path)
    return kind if kind is not None and kind in Image.SAVE else "PNG"


def _check_format(kind: str, path: Path, channels: int, wide: bool) -> None:
    if not wide:
        return
    if channels == 1 and kind not in _WIDE_GRAY:
        raise InputError(f"cannot write {path}: 16-bit gray needs .png, .tif, .jp2 or .pgm")
    if channels > 1 and kind not in sixteen_bit.WIDE_FORMATS:
        raise InputError(f"cannot write {path}: 16-bit colors and transparency need .png or .tif")


def write_image(image: ImageData, path: Path) -> None:
    """Write an image atomically in the format of the ending; "-" is stdout.

    Metadata is kept as far as the format holds it. Raises `InputError` if it cannot hold the image.
    """
    check_output(path)
    # in memory first: Pillow's encoders ignore a short write to a full disk
    content = encode_image(image, path)
    if path != STREAM:
        write_bytes(path, content)
        return
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:
        raise StorageError("cannot write to stdout: it is closed, or takes text only")
    try:
        # with PYTHONUNBUFFERED the system may write a part only
        rest = memoryview(content)
        while rest:
            rest = rest[stream.write(rest) :]
        stream.flush()
    except OSError as error:
        raise StorageError(f"cannot write to stdout: {error.strerror or error}") from error


def encode_image(image: ImageData, path: Path) -> bytes:
    """Return the content that `write_image` writes."""
    integers, kind, metadata = _to_integers(image), _output_format(image, path), image.metadata
    _check_format(kind, path, integers.shape[2], integers.dtype == np.uint16)
    # a format may limit the length of metadata; the image is worth more
    attempts = [metadata, Metadata(metadata.color_profile, dpi=metadata.dpi), Metadata()]
    for number, attempt in enumerate(attempts):
        try:
            return _encode(integers, kind, attempt, path)
        except (InputError, ModuleNotFoundError):
            raise
        # encoders raise any exception for an image they cannot hold
        except Exception as error:
            if number == len(attempts) - 1:
                reason = str(error) or type(error).__name__
                raise InputError(f"cannot write {path}: {reason}; a format such as .png may hold it") from error
    raise AssertionError("the last attempt returns or raises")


def _encode(integers: NDArray[Any], kind: str, metadata: Metadata, path: Path) -> bytes:
    if integers.dtype == np.uint16 and integers.shape[2] > 1:
        return sixteen_bit.encode_wide(integers, kind, metadata)
    if integers.shape[2] < 3 and kind in _RGB_ONLY:
        metadata = replace(metadata, color_profile=None)
    image, file = Image.fromarray(integers.squeeze(2) if integers.shape[2] == 1 else integers), io.BytesIO()
    image.save(file, format=kind, **_SAVE_OPTIONS.get(kind, {}), **save_options(metadata, kind))
    # Pillow writes some formats that it does not read
    with suppress(UnidentifiedImageError):
        _check_written(Image.open(file), integers, path)
    return file.getvalue()


def _check_written(written: Image.Image, integers: NDArray[Any], path: Path) -> None:
    """Raise if the encoder silently changed the size or dropped a channel."""
    height, width, channels = integers.shape
    lost = None
    if written.size != (width, height):
        lost = f"{width} x {height} pixels"
    elif channels in (2, 4) and written.mode not in _MODES_WITH_ALPHA:
        alpha, most = integers[..., -1], np.iinfo(integers.dtype).max
        if "transparency" not in written.info:
            lost = None if int(alpha.min()) == most else "transparency"
        # a transparent color is either visible or not
        elif ((alpha > 0) & (alpha < most)).any():
            lost = "half-transparent pixels"
    elif channels >= 3 and written.mode in ("1", "L", "LA", "I", "F"):
        lost = "colors"
    if lost is not None:
        raise InputError(f"cannot write {path}: the format {written.format} does not hold its {lost}; try .png")


def _to_integers(image: ImageData) -> NDArray[Any]:
    """Return the integers of the file, `[height, width, channels]`."""
    layers = [image.pixels] if image.alpha is None else [image.pixels, image.alpha]
    # one copy, changed in place, since a large image is a large part of the memory
    scaled = torch.cat([layer.detach().cpu() for layer in layers]).clamp_(0, 1).mul_(image.levels)
    return scaled.round_().permute(1, 2, 0).numpy().astype(np.uint8 if image.levels == 255 else np.uint16)
