"""Color pictures of 16 bits per channel: Pillow reads the upper 8 bits of each channel only, and writes none."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

# how Pillow unpacks samples: the upper byte of big-endian, of little-endian, of the machine's own order
_OTHER_BYTE = {"16B": "16L", "16L": "16B", "16N": "16B" if sys.byteorder == "little" else "16L"}
# by number of channels
_PNG_COLOR_TYPES = {2: 4, 3: 2, 4: 6}


def is_wide(image: Image.Image) -> bool:
    """Whether the file behind a picture just opened holds 16 bits of each of several channels."""
    modes = {_raw_mode(tile[3]) for tile in getattr(image, "tile", [])}
    return bool(modes) and all(mode.partition(";")[2] in _OTHER_BYTE for mode in modes) and len(image.getbands()) > 1


def read_wide(path: Path) -> NDArray[np.uint16]:
    """All 16 bits, `[height, width, channels]`, turned upright.

    The file is decoded once for the upper and once for the lower bytes.
    """
    with Image.open(path) as image:
        upper = np.asarray(ImageOps.exif_transpose(image)).astype(np.uint16)
    with Image.open(path) as image:
        tiled: Any = image
        tiled.tile = [_with_other_byte(tile) for tile in tiled.tile]
        lower = np.asarray(ImageOps.exif_transpose(image)).astype(np.uint16)
    return upper * np.uint16(256) + lower


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
    return image_format in ("PNG", "TIFF")


def write_wide(numbers: NDArray[np.uint16], file: IO[bytes], image_format: str | None) -> None:
    """Write `[height, width, 2 to 4 channels]` of 16 bits as PNG or TIFF."""
    if image_format == "TIFF":
        import tifffile

        photometric = "rgb" if numbers.shape[2] > 2 else "minisblack"
        extra = ["unassalpha"] if numbers.shape[2] in (2, 4) else []
        tifffile.imwrite(
            file, numbers, photometric=photometric, extrasamples=extra, planarconfig="contig", compression="zlib"
        )
        return
    height, width, channels = numbers.shape
    rows = np.ascontiguousarray(numbers, dtype=">u2").view(np.uint8).reshape(height, -1)
    # PNG's filter 2, the difference to the row above, compresses well and needs no loop over pixels
    differences = np.diff(rows, axis=0, prepend=np.zeros_like(rows[:1]))
    filtered = np.concatenate([np.full((height, 1), 2, np.uint8), differences], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 16, _PNG_COLOR_TYPES[channels], 0, 0, 0)
    file.write(b"\x89PNG\r\n\x1a\n")
    for kind, content in ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes())), (b"IEND", b"")):
        file.write(struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content)))
