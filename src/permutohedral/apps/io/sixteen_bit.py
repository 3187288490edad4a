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
# place of the bits per channel in a PNG file
_BITS_IN_PNG = 24
# TIFF tags and their values
_BITS, _SAMPLE_FORMAT, _SIGNED = 258, 339, 2


def read_wide(image: Image.Image, source: Source, name: object, max_pixels: int | None) -> NDArray[np.uint16] | None:
    """Return `[height, width, 1 to 4 channels]` upright, or None if `image` has 8 bits or one channel.

    Raises `InputError` if it is too large, `ValueError` if it is damaged, or has other colors than gray and RGB.
    """
    if image.format == "PNG":
        content: Any = source.getvalue() if isinstance(source, io.BytesIO) else np.memmap(source, mode="r")
        if content[_BITS_IN_PNG] != 16 or len(image.getbands()) < 2:
            return None
        import imagecodecs

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


def encode_wide(numbers: NDArray[np.uint16], kind: str, metadata: Metadata) -> bytes:
    """Encode `[height, width, 2 to 4 channels]` as one of `WIDE_FORMATS`; PNG gets no metadata."""
    if kind == "TIFF":
        return encode_wide_colors(numbers, metadata)
    import imagecodecs

    return bytes(imagecodecs.png_encode(np.ascontiguousarray(numbers)))
