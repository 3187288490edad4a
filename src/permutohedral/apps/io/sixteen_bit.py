"""Images of several channels with 16 bits each, which Pillow reads as 8 bits and does not write."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from permutohedral.apps.io.metadata import Metadata
from permutohedral.apps.io.tiff import Source, encode_wide_colors, read_wide_colors, turn_upright

# formats that `encode_wide` writes
WIDE_FORMATS = ("PNG", "TIFF")
# enough for everything before the pixels
_HEADER = 1 << 16
# TIFF tags and their values
_BITS, _SAMPLE_FORMAT, _SIGNED = 258, 339, 2
_BITS_IN_JPEG2000_STREAM = 42


def _header(source: Source, length: int) -> bytes:
    if isinstance(source, io.BytesIO):
        return source.getvalue()[:length]
    with open(source, "rb") as file:
        return file.read(length)


def read_wide(image: Image.Image, source: Source, name: object, max_pixels: int | None) -> NDArray[np.uint16] | None:
    """Return `[height, width, 1 to 4 channels]` upright, or None if `image` has 8 bits or one channel.

    Raises `InputError` if it is too large, `ValueError` if it is damaged, or has other colors than gray and RGB.
    """
    if image.format == "PNG":
        if _header(source, 26)[24] != 16 or len(image.getbands()) < 2:
            return None
        import imagecodecs

        content: Any = source.getvalue() if isinstance(source, io.BytesIO) else np.memmap(source, mode="r")
        return turn_upright(imagecodecs.png_decode(content), image.getexif().get(ExifTags.Base.Orientation))
    if image.format == "TIFF":
        bits = image.tag_v2.get(_BITS, ())  # type: ignore[attr-defined]
        return read_wide_colors(source, name, max_pixels)[0] if len(bits) > 1 and set(bits) == {16} else None
    if image.format == "PPM" and image.mode == "RGB" and getattr(image, "tile", None):
        codec, _, _, arguments = image.tile[0]  # type: ignore[attr-defined]
        if codec.startswith("ppm") and arguments[1] > 255:
            raise ValueError("it has PPM colors of 16 bits; convert it to .png or .tif")
    return None


def has_signed_bytes(image: Image.Image) -> bool:
    """Return whether a TIFF file has signed 8-bit samples, which Pillow reads as unsigned."""
    tags: Any = getattr(image, "tag_v2", {})
    return image.format == "TIFF" and 8 in tags.get(_BITS, ()) and _SIGNED in tags.get(_SAMPLE_FORMAT, ())


def dropped_bits(image: Image.Image, source: Source) -> str | None:
    """Describe the bits that Pillow drops from AVIF and JPEG 2000 files, or return None."""
    header, bits = _header(source, _HEADER), 8
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


def encode_wide(numbers: NDArray[np.uint16], kind: str, metadata: Metadata) -> tuple[bytes, Metadata]:
    """Encode `[height, width, 2 to 4 channels]` as one of `WIDE_FORMATS`; also return the metadata in the file."""
    if kind == "TIFF":
        return encode_wide_colors(numbers, metadata)
    import imagecodecs

    return bytes(imagecodecs.png_encode(np.ascontiguousarray(numbers))), Metadata()
