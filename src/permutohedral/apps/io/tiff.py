"""TIFF files that Pillow does not read: maps of floats, and colors of 16 bits."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags

from permutohedral.apps.io.limits import check_size
from permutohedral.apps.io.metadata import Metadata
from permutohedral.apps.io.settings import reading
from permutohedral.errors import InputError

Source = Path | io.BytesIO

_MAGIC = b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"
# TIFF's names for numbers
_PLANAR, _WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB = 2, 0, 1, 2
_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA = 1, 2
_XMP, _INCH = 700, 2
# others hold a size of their own, which is not checked: none, LZW, Deflate, PackBits, LZMA and Zstandard
_COMPRESSIONS = 1, 5, 8, 32946, 32773, 34925, 34926, 50000


def is_tiff(source: Source) -> bool:
    """Return whether a file begins as TIFF files do."""
    if isinstance(source, io.BytesIO):
        return source.getvalue()[:4] in _MAGIC
    with open(source, "rb") as file:
        return file.read(4) in _MAGIC


def read_floats(path: Path, max_pixels: int | None = None) -> NDArray[Any] | None:
    """Return floats `[height, width]` or `[channels, height, width]`, None if the file is no TIFF file of floats.

    Raises `DataError` if the file is damaged, `InputError` if it has several images or is too large.
    """
    with reading(str(path)):
        if not is_tiff(path):
            return None
        with _open_page(path) as (page, num_pages):
            if page.dtype is None or page.dtype.kind != "f":
                return None
            if num_pages > 1:
                raise InputError(
                    f"{path} holds {num_pages} images; store channels in one, with planarconfig='separate', or as .npy"
                )
            numbers = _read_page(page, path, max_pixels)
    return numbers[..., 0] if numbers.shape[2] == 1 else np.moveaxis(numbers, -1, 0)


def read_wide_colors(
    source: Source, name: object, max_pixels: int | None = None
) -> tuple[NDArray[np.uint16], Metadata]:
    """Return `[height, width, 1 to 4 channels]` of 16 bits upright, with color profile, resolution and XMP.

    Raises `InputError` if the file has several images or is too large, `ValueError` if it is damaged, or has other
    colors than gray and RGB or other bits.
    """
    with _open_page(source) as (page, num_pages):
        if num_pages > 1:
            raise InputError(f"{name} has {num_pages} frames; extract one")
        colors = {_WHITE_IS_ZERO: 1, _BLACK_IS_ZERO: 1, _RGB: 3}.get(int(page.photometric))
        if colors is None or page.dtype != np.uint16:
            raise ValueError(
                f"it holds {page.dtype} numbers in {page.photometric.name} colors; "
                "convert it to gray or RGB, 8 or 16 bits per channel"
            )
        numbers: NDArray[np.uint16] = _read_page(page, name, max_pixels)
        extra = [int(kind) for kind in page.extrasamples]
        is_inverted, orientation = int(page.photometric) == _WHITE_IS_ZERO, page.tags.valueof(ExifTags.Base.Orientation)
        unit = page.tags.valueof(ExifTags.Base.ResolutionUnit, default=1)
        dpi = page.get_resolution(_INCH) if int(unit) > 1 else None
        metadata = Metadata(page.iccprofile, dpi=dpi, xmp=page.tags.valueof(_XMP))
    has_alpha = numbers.shape[2] > colors and (not extra or extra[0] in (_ASSOCIATED_ALPHA, _UNASSOCIATED_ALPHA))
    numbers = numbers[..., : colors + has_alpha].copy()
    if is_inverted:
        numbers[..., 0] = 65535 - numbers[..., 0]
    if has_alpha and extra and extra[0] == _ASSOCIATED_ALPHA:
        alpha = np.maximum(numbers[..., -1:], 1).astype(np.float64)
        numbers[..., :-1] = np.minimum(numbers[..., :-1] / alpha * 65535, 65535).round()
    return turn_upright(numbers, orientation), metadata


@contextmanager
def _open_page(source: Source) -> Iterator[tuple[Any, int]]:
    """Yield the first image of a file, and the number of images without smaller copies and masks."""
    import tifffile

    with tifffile.TiffFile(source) as file:
        pages = cast(Any, file.pages)
        yield pages[0], max(1, sum(not (page.is_reduced or page.is_mask) for page in pages))


def _read_page(page: Any, name: object, max_pixels: int | None) -> NDArray[Any]:
    """Return `[height, width, samples]`, after a check of all sizes that the decoder will believe."""
    if page.imagedepth != 1 or page.tiledepth != 1:
        raise InputError(f"{name} is a volume; filter it by `permutohedral array filter`, and name OUTPUT .zarr")
    for width, height in ((page.imagewidth, page.imagelength), (page.tilewidth, page.tilelength)):
        check_size(name, width, height, page.samplesperpixel, max_pixels)
    if int(page.compression) not in _COMPRESSIONS:
        method = getattr(page.compression, "name", page.compression)
        raise InputError(f"{name} is compressed by {method}; store it with Deflate or LZW, or without compression")
    numbers: NDArray[Any] = page.asarray()
    if int(page.planarconfig) == _PLANAR and page.samplesperpixel > 1:
        numbers = np.moveaxis(numbers, 0, -1)
    return numbers.reshape(page.imagelength, page.imagewidth, -1)


def turn_upright(numbers: NDArray[np.uint16], orientation: int | None) -> NDArray[np.uint16]:
    """Turn `[height, width, channels]` upright from an orientation of EXIF."""
    if orientation in (2, 3):
        numbers = numbers[:, ::-1]
    elif orientation in (5, 6, 7, 8):
        numbers = numbers.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        numbers = numbers[::-1]
    if orientation in (6, 7):
        numbers = numbers[:, ::-1]
    return np.ascontiguousarray(numbers)


def encode_wide_colors(numbers: NDArray[np.uint16], metadata: Metadata) -> bytes:
    """Encode `[height, width, 2 to 4 channels]` of 16 bits with color profile, resolution and XMP."""
    import tifffile

    content, channels = io.BytesIO(), numbers.shape[2]
    options: dict[str, Any] = {}
    if metadata.dpi is not None:
        options |= {"resolution": metadata.dpi, "resolutionunit": _INCH}
    if metadata.xmp is not None:
        options["extratags"] = [(_XMP, "B", len(metadata.xmp), metadata.xmp, True)]
    tifffile.imwrite(
        content,
        numbers,
        photometric="rgb" if channels > 2 else "minisblack",
        planarconfig="contig",
        extrasamples=["unassalpha"] if channels in (2, 4) else None,
        iccprofile=metadata.color_profile,
        metadata=None,
        software=False,
        **options,
    )
    return content.getvalue()
