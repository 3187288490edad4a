"""Images of several channels with 16 bits each, which Pillow reads as 8 bits and does not write."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

# formats that `encode_wide` writes
WIDE_FORMATS = ("PNG", "TIFF")
# enough for everything before the pixels
_HEADER = 1 << 16
# TIFF tags and their values
_WIDTH, _BITS, _SAMPLE_FORMAT = 256, 258, 339
_SHORT, _LONG, _SIGNED, _PLANAR = 3, 4, 2, 2
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB = 0, 1, 2
_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA = 1, 2
_BITS_IN_JPEG2000_STREAM = 42
# marks an image whose file was opened with other bits
_PATCHED = "permutohedral: patched bits"

Source = Path | io.BytesIO


def open_image(source: Source) -> Image.Image:
    """Open an image without decoding it, including TIFF files of gray and alpha with 16 bits."""
    try:
        return Image.open(source)
    except UnidentifiedImageError:
        # Pillow opens the same file with 8 bits: enough for the metadata
        patched = _patch_tiff(_content(source), bits=8)
        if patched is None:
            raise
        image = Image.open(io.BytesIO(patched))
        image.info[_PATCHED] = True
        return image


def _content(source: Source, length: int = -1) -> bytes:
    if isinstance(source, io.BytesIO):
        return source.getvalue() if length < 0 else source.getvalue()[:length]
    with open(source, "rb") as file:
        return file.read(length)


def read_wide(image: Image.Image, source: Source) -> NDArray[np.uint16] | None:
    """Return `[height, width, 1 to 4 channels]` upright, or None if `image` has 8 bits or one channel.

    Raises `ValueError` if the file is damaged, or has other colors than gray and RGB.
    """
    if image.format == "PNG":
        header = _content(source, 26)
        if header[24] != 16 or len(image.getbands()) < 2:
            return None
        import imagecodecs

        numbers: NDArray[np.uint16] = imagecodecs.png_decode(_content(source))
    elif image.format == "TIFF":
        bits = image.tag_v2.get(_BITS, ())  # type: ignore[attr-defined]
        if _PATCHED not in image.info and (len(bits) < 2 or set(bits) != {16}):
            return None
        numbers = _read_tiff(source)
    elif image.format == "PPM" and image.mode == "RGB" and getattr(image, "tile", None):
        codec, _, _, arguments = image.tile[0]  # type: ignore[attr-defined]
        if codec.startswith("ppm") and arguments[1] > 255:
            raise ValueError("it has PPM colors of 16 bits; convert it to .png or .tif")
        return None
    else:
        return None
    return _upright(numbers, image.getexif().get(ExifTags.Base.Orientation, 1))


def _upright(numbers: NDArray[np.uint16], orientation: int) -> NDArray[np.uint16]:
    if orientation in (2, 3):
        numbers = numbers[:, ::-1]
    elif orientation in (5, 6, 7, 8):
        numbers = numbers.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        numbers = numbers[::-1]
    if orientation in (6, 7):
        numbers = numbers[:, ::-1]
    return np.ascontiguousarray(numbers)


def _read_tiff(source: Source) -> NDArray[np.uint16]:
    import tifffile

    with tifffile.TiffFile(io.BytesIO(source.getvalue()) if isinstance(source, io.BytesIO) else source) as file:
        page: Any = file.pages[0]
        colors = {_WHITE_IS_ZERO: 1, _BLACK_IS_ZERO: 1, _RGB: 3}.get(int(page.photometric))
        if colors is None or page.dtype != np.uint16:
            raise ValueError(
                f"it holds {page.dtype} numbers in {page.photometric.name} colors; "
                "convert it to gray or RGB, 8 or 16 bits per channel"
            )
        numbers: NDArray[np.uint16] = page.asarray()
        if int(page.planarconfig) == _PLANAR and page.samplesperpixel > 1:
            numbers = np.moveaxis(numbers, 0, -1)
        extra = [int(kind) for kind in page.extrasamples]
        inverted = int(page.photometric) == _WHITE_IS_ZERO
    numbers = numbers.reshape(*numbers.shape[:2], -1)
    has_alpha = numbers.shape[2] > colors and (not extra or extra[0] in (_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA))
    numbers = numbers[..., : colors + has_alpha].copy()
    if inverted:
        numbers[..., 0] = 65535 - numbers[..., 0]
    if has_alpha and extra and extra[0] == _ASSOCIATED_ALPHA:
        alpha = np.maximum(numbers[..., -1:], 1).astype(np.float64)
        numbers[..., :-1] = np.minimum(numbers[..., :-1] / alpha * 65535, 65535).round()
    return numbers


def has_signed_bytes(image: Image.Image) -> bool:
    """Return whether a TIFF file has signed 8-bit samples, which Pillow reads as unsigned."""
    tags: Any = getattr(image, "tag_v2", {})
    return image.format == "TIFF" and 8 in tags.get(_BITS, ()) and _SIGNED in tags.get(_SAMPLE_FORMAT, ())


def dropped_bits(image: Image.Image, source: Source) -> str | None:
    """Describe the bits that Pillow drops from AVIF and JPEG 2000 files, or return None."""
    header, bits = _content(source, _HEADER), 8
    if image.format == "AVIF" and (place := header.find(b"av1C")) >= 0 and len(header) > place + 6:
        # the third byte of the box has a flag for more than 8 bits, and one for 12
        flags = header[place + 6]
        bits = (12 if flags & 0x20 else 10) if flags & 0x40 else 8
    elif image.format == "JPEG2000" and len(image.getbands()) > 1:
        # in the box ihdr after height, width and channels, or in the code stream if there are no boxes
        is_stream, box = header.startswith(b"\xff\x4f"), header.find(b"ihdr")
        place = _BITS_IN_JPEG2000_STREAM if is_stream else box + 14
        if (is_stream or box >= 0) and len(header) > place:
            # the number minus 1; the highest bit is the sign
            bits = (header[place] & 0x7F) + 1
    return None if bits <= 8 else f"{bits} bits per channel, read as 8"


def encode_wide(numbers: NDArray[np.uint16], kind: str, options: Mapping[str, Any]) -> bytes:
    """Encode `[height, width, 2 to 4 channels]` as one of `WIDE_FORMATS`, with Pillow's options for metadata."""
    height, width, channels = numbers.shape
    content = io.BytesIO()
    if kind == "PNG":
        import imagecodecs

        header, *pixels = _png_chunks(bytes(imagecodecs.png_encode(np.ascontiguousarray(numbers))))
        Image.new("RGB", (1, 1)).save(content, format="PNG", **options)
        metadata = [chunk for chunk in _png_chunks(content.getvalue()) if chunk[4:8] not in (b"IHDR", b"IDAT", b"IEND")]
        return b"\x89PNG\r\n\x1a\n" + header + b"".join([*metadata, *pixels])
    # an image of 8 bits that is twice as wide has the same bytes; the header is corrected afterwards
    halves = np.ascontiguousarray(numbers, dtype="<u2").view(np.uint8).reshape(height, 2 * width, channels)
    Image.fromarray(halves).save(content, format="TIFF", **options)
    patched = _patch_tiff(content.getvalue(), bits=16, width=width)
    assert patched is not None
    return patched


def _png_chunks(content: bytes) -> Iterator[bytes]:
    place = 8
    while place < len(content):
        (length,) = struct.unpack_from(">I", content, place)
        yield content[place : place + length + 12]
        place += length + 12


def _patch_tiff(content: bytes, bits: int, width: int | None = None) -> bytes | None:
    """Change the bits per sample, and the width, in the header of a TIFF file; the pixels stay.

    Returns None if it is no TIFF file, a BigTIFF, or has one sample per pixel.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(content[:4])
    if order is None:
        return None
    patched, found = bytearray(content), False
    try:
        (start,) = struct.unpack_from(order + "I", content, 4)
        (entries,) = struct.unpack_from(order + "H", content, start)
        for place in range(start + 2, start + 2 + 12 * entries, 12):
            tag, kind, count = struct.unpack_from(order + "HHI", content, place)
            if tag == _BITS and kind == _SHORT and count > 1:
                values = place + 8 if count == 2 else struct.unpack_from(order + "I", content, place + 8)[0]
                struct.pack_into(f"{order}{count}H", patched, values, *[bits] * count)
                found = True
            elif tag == _WIDTH and width is not None:
                struct.pack_into(order + {_SHORT: "H", _LONG: "I"}[kind], patched, place + 8, width)
    except (struct.error, KeyError):
        return None
    return bytes(patched) if found else None
