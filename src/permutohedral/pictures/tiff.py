"""TIFF files of 16 bits per channel that Pillow does not open, or reads with a loss it does not tell of."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_WIDTH, _BITS, _ORIENTATION, _PLANAR, _SAMPLE_FORMAT = 256, 258, 274, 284, 339
_SIGNED = 2
# photometric interpretations
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB = 0, 1, 2
_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA = 1, 2
_SHORT, _LONG = 3, 4


def patch_tiff(content: bytes, bits: int, width: int | None = None) -> bytes | None:
    """A TIFF file that claims other bits per sample, and another width, for the same bytes of pixels.

    None if it is no TIFF file, one of a kind beyond 4 GB, or has one sample per pixel.
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


def has_signed_bytes(image: Image.Image) -> bool:
    """Whether Pillow would take negative numbers for large ones: samples of 8 bits, one of them the sign."""
    tags: Any = getattr(image, "tag_v2", {})
    return image.format == "TIFF" and 8 in tags.get(_BITS, ()) and _SIGNED in tags.get(_SAMPLE_FORMAT, ())


def needs_tifffile(image: Image.Image) -> bool:
    """Whether Pillow would read only a part of the bits, or divide each byte by alpha: planes, or multiplied colors."""
    tags: Any = getattr(image, "tag_v2", {})
    bits = tags.get(_BITS, ())
    if image.format != "TIFF" or len(bits) < 2 or set(bits) != {16}:
        return False
    multiplied = any("a;16" in str(tile[3]) for tile in getattr(image, "tile", []))
    return multiplied or image.mode == "CMYK" or tags.get(_PLANAR, 1) == 2


def read_with_tifffile(source: Path | io.BytesIO) -> NDArray[np.uint16]:
    """Gray or RGB of 16 bits, with alpha if the file has it: `[height, width, 1 to 4 channels]`, upright.

    Raises:
        ValueError: the colors are of another kind.
    """
    import tifffile

    if not isinstance(source, Path):
        source.seek(0)
    with tifffile.TiffFile(source) as file:
        page: Any = file.pages[0]
        colors = {_WHITE_IS_ZERO: 1, _BLACK_IS_ZERO: 1, _RGB: 3}.get(int(page.photometric))
        if colors is None or page.dtype != np.uint16:
            raise ValueError(
                f"it holds {page.dtype} numbers in colors of the kind {page.photometric.name}; "
                "convert it to gray or RGB, 8 or 16 bits per channel"
            )
        numbers: NDArray[np.uint16] = page.asarray()
        if int(page.planarconfig) == 2 and page.samplesperpixel > 1:
            numbers = np.moveaxis(numbers, 0, -1)
        extra = [int(kind) for kind in page.extrasamples]
        orientation = page.tags[_ORIENTATION].value if _ORIENTATION in page.tags else 1
        inverted = int(page.photometric) == _WHITE_IS_ZERO
    numbers = numbers.reshape(*numbers.shape[:2], -1)
    has_alpha = numbers.shape[2] > colors and (not extra or extra[0] in (_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA))
    numbers = numbers[..., : colors + has_alpha].copy()
    if inverted:
        numbers[..., 0] = 65535 - numbers[..., 0]
    if has_alpha and extra and extra[0] == _ASSOCIATED_ALPHA:
        alpha = np.maximum(numbers[..., -1:], 1).astype(np.float64)
        numbers[..., :-1] = np.minimum(numbers[..., :-1] / alpha * 65535, 65535).round()
    return _upright(numbers, int(orientation))


def _upright(numbers: NDArray[np.uint16], orientation: int) -> NDArray[np.uint16]:
    """As the entry of the file asks for, whose values count mirrored and turned pictures."""
    if orientation in (2, 3):
        numbers = numbers[:, ::-1]
    elif orientation in (5, 6, 7, 8):
        numbers = numbers.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        numbers = numbers[::-1]
    if orientation in (6, 7):
        numbers = numbers[:, ::-1]
    return np.ascontiguousarray(numbers)
