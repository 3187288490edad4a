"""Bits that Pillow drops: it reads AVIF, and JPEG 2000 of several channels, as 8 bits, whatever the file holds."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

# where the description of a JPEG 2000 code stream says how many bits its first channel has
_BITS_IN_CODE_STREAM = 42
# enough for all that precedes the pixels
_HEADER = 1 << 16


def describe_dropped_bits(image: Image.Image, source: Path | io.BytesIO) -> str | None:
    """What the file holds beyond the 8 bits that are read, None if nothing."""
    bits = None
    if image.format == "AVIF":
        bits = _bits_of_avif(_header(source))
    elif image.format == "JPEG2000" and len(image.getbands()) > 1:
        bits = _bits_of_jpeg2000(_header(source))
    return None if bits is None or bits <= 8 else f"{bits} bits per channel, read as 8"


def _header(source: Path | io.BytesIO) -> bytes:
    if isinstance(source, io.BytesIO):
        return source.getvalue()[:_HEADER]
    with open(source, "rb") as file:
        return file.read(_HEADER)


def _bits_of_avif(header: bytes) -> int | None:
    """From the box av1C: its third byte has a flag for more than 8 bits, and one for 12."""
    place = header.find(b"av1C")
    if place < 0 or len(header) < place + 7:
        return None
    flags = header[place + 6]
    return (12 if flags & 0x20 else 10) if flags & 0x40 else 8


def _bits_of_jpeg2000(header: bytes) -> int | None:
    """From the box ihdr after height, width and channels, or from the code stream if there are no boxes."""
    place = header.find(b"ihdr")
    place = _BITS_IN_CODE_STREAM if header.startswith(b"\xff\x4f") else place + 14 if place >= 0 else len(header)
    if len(header) <= place:
        return None
    # one less than the number, and a bit for the sign
    return (header[place] & 0x7F) + 1
