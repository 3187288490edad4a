"""Pictures of 16 bits per channel and several channels: Pillow reads the upper 8 bits only, and writes none."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from permutohedral.pictures.tiff import needs_tifffile, patch_tiff, read_with_tifffile

# how Pillow unpacks samples: the upper byte of big-endian, of little-endian, of the machine's own order
_OTHER_BYTE = {"16B": "16L", "16L": "16B", "16N": "16B" if sys.byteorder == "little" else "16L"}
# by number of channels
_PNG_COLOR_TYPES = {2: 4, 3: 2, 4: 6}
_PNG_START = 8
# marks a picture whose file was opened as one of 8 bits, for its metadata
_CLAIMS_EIGHT_BITS = "permutohedral: claims 8 bits"


def open_any(source: Path | io.BytesIO) -> Image.Image:
    """Open what Pillow opens, and TIFF of gray and alpha of 16 bits: its metadata; `read_wide` reads its pixels.

    Raises:
        UnidentifiedImageError: it is no picture in a known format.
    """
    try:
        return Image.open(source)
    except UnidentifiedImageError:
        patched = patch_tiff(_content(source), bits=8)
        if patched is None:
            raise
        image = Image.open(io.BytesIO(patched))
        image.info[_CLAIMS_EIGHT_BITS] = True
        return image


def _content(source: Path | io.BytesIO) -> bytes:
    return source.read_bytes() if isinstance(source, Path) else source.getvalue()


def is_wide(image: Image.Image) -> bool:
    """Whether the file behind a picture just opened holds 16 bits of each of several channels."""
    if needs_tifffile(image) or _CLAIMS_EIGHT_BITS in image.info:
        return True
    if _is_wide_ppm(image):
        return True
    modes = {_raw_mode(tile[3]) for tile in getattr(image, "tile", [])}
    return bool(modes) and all(mode.partition(";")[2] in _OTHER_BYTE for mode in modes) and len(image.getbands()) > 1


def read_wide(source: Path | io.BytesIO) -> NDArray[np.uint16]:
    """All 16 bits, `[height, width, channels]`, turned upright; with alpha if there are 2 or 4 channels."""
    with open_any(source) as image:
        if needs_tifffile(image) or _CLAIMS_EIGHT_BITS in image.info:
            return read_with_tifffile(source)
        if _is_wide_ppm(image):
            return _read_ppm(source, image)
        if any(_raw_mode(tile[3]) == "LA;16B" for tile in getattr(image, "tile", [])):
            return _read_png_with_alpha(source)
        # the file is decoded once for the upper and once for the lower bytes
        upper = np.asarray(ImageOps.exif_transpose(image)).astype(np.uint16)
    with Image.open(source) as image:
        tiled: Any = image
        tiled.tile = [_with_other_byte(tile) for tile in tiled.tile]
        lower = np.asarray(ImageOps.exif_transpose(image)).astype(np.uint16)
    return upper * np.uint16(256) + lower


def _read_png_with_alpha(source: Path | io.BytesIO) -> NDArray[np.uint16]:
    """Gray and alpha of 16 bits are the same four bytes per pixel as red, green, blue and alpha of 8 bits."""
    content = bytearray(_content(source))
    content[_PNG_START + 16 : _PNG_START + 18] = bytes([8, 6])
    struct.pack_into(">I", content, _PNG_START + 21, zlib.crc32(content[_PNG_START + 4 : _PNG_START + 21]))
    with Image.open(io.BytesIO(content)) as image:
        bytes_of_pixels = np.ascontiguousarray(ImageOps.exif_transpose(image))
    return bytes_of_pixels.view(">u2").astype(np.uint16)


def _is_wide_ppm(image: Image.Image) -> bool:
    """Whether it is a color picture of Netpbm whose white is beyond 255."""
    tile = next(iter(getattr(image, "tile", [])), None)
    return image.mode == "RGB" and tile is not None and tile[0] in ("ppm", "ppm_plain") and tile[3][1] > 255


def _read_ppm(source: Path | io.BytesIO, image: Any) -> NDArray[np.uint16]:
    """Binary or in digits, scaled to 65535."""
    codec, _, start, (_, white) = image.tile[0]
    content, count = _content(source)[start:], 3 * image.width * image.height
    if codec == "ppm":
        numbers = np.frombuffer(content, ">u2", count).astype(np.uint64)
    else:
        lines = (line.partition(b"#")[0] for line in content.splitlines())
        numbers = np.array(b" ".join(lines).split()[:count]).astype(np.uint64)
    if numbers.max(initial=0) > white:
        raise ValueError(f"a color exceeds the file's white of {white}")
    scaled: NDArray[np.uint16] = ((numbers * 65535 + white // 2) // white).astype(np.uint16)
    return scaled.reshape(image.height, image.width, 3)


def _raw_mode(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else str(arguments[0])


def _with_other_byte(tile: Any) -> Any:
    *place, arguments = tile
    bands, _, order = _raw_mode(arguments).partition(";")
    mode = f"{bands};{_OTHER_BYTE[order]}"
    changed = mode if isinstance(arguments, str) else (mode, *arguments[1:])
    # a named tuple since Pillow 11
    return tile._replace(args=changed) if hasattr(tile, "_replace") else (*place, changed)


def can_write_wide(image_format: str | None) -> bool:
    """Whether `write_wide` knows the format."""
    return image_format in ("PNG", "TIFF", "PPM")


def write_wide(
    numbers: NDArray[np.uint16],
    file: IO[bytes],
    image_format: str | None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Write `[height, width, 2 to 4 channels]` of 16 bits as PNG or TIFF, with Pillow's `options` for metadata, or PPM.

    Raises:
        ValueError: PPM holds no alpha.
    """
    if image_format == "TIFF":
        _write_tiff(numbers, file, options or {})
        return
    height, width, channels = numbers.shape
    if image_format == "PPM":
        if channels != 3:
            raise ValueError("PPM holds no alpha")
        file.write(b"P6 %d %d 65535\n" % (width, height) + numbers.astype(">u2").tobytes())
        return
    rows = np.ascontiguousarray(numbers, dtype=">u2").view(np.uint8).reshape(height, -1)
    # PNG's filter 2, the difference to the row above, compresses well and needs no loop over pixels
    differences = np.diff(rows, axis=0, prepend=np.zeros_like(rows[:1]))
    filtered = np.concatenate([np.full((height, 1), 2, np.uint8), differences], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 16, _PNG_COLOR_TYPES[channels], 0, 0, 0)
    file.write(b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _metadata_chunks(options or {}))
    file.write(_chunk(b"IDAT", zlib.compress(filtered.tobytes())) + _chunk(b"IEND", b""))


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _metadata_chunks(options: Mapping[str, Any]) -> bytes:
    """What Pillow writes around the pixels of a PNG file with these options."""
    file = io.BytesIO()
    Image.new("RGB", (1, 1)).save(file, format="PNG", **options)
    content, place, found = file.getvalue(), _PNG_START, b""
    while place < len(content):
        length, kind = struct.unpack_from(">I4s", content, place)
        chunk = content[place : place + length + 12]
        found += b"" if kind in (b"IHDR", b"IDAT", b"IEND") else chunk
        place += len(chunk)
    return found


def _write_tiff(numbers: NDArray[np.uint16], file: IO[bytes], options: Mapping[str, Any]) -> None:
    """Let Pillow write the bytes as a picture twice as wide, of 8 bits, and correct what it says about them."""
    height, width, channels = numbers.shape
    halves = np.ascontiguousarray(numbers, dtype="<u2").view(np.uint8).reshape(height, 2 * width, channels)
    content = io.BytesIO()
    Image.fromarray(halves).save(content, format="TIFF", **options)
    patched = patch_tiff(content.getvalue(), bits=16, width=width)
    assert patched is not None
    file.write(patched)
