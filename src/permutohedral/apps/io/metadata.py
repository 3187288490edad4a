"""Metadata of image files: EXIF, resolution, texts, XMP and color profile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo

# tags about the image as a whole; others, such as the orientation, describe the old file
_KEPT_TAGS = (
    *(ExifTags.Base.ImageDescription, ExifTags.Base.Make, ExifTags.Base.Model, ExifTags.Base.Software),
    *(ExifTags.Base.DateTime, ExifTags.Base.Artist, ExifTags.Base.HostComputer, ExifTags.Base.Copyright),
    *(ExifTags.Base.XResolution, ExifTags.Base.YResolution, ExifTags.Base.ResolutionUnit, ExifTags.Base.Rating),
    *(ExifTags.Base.XPTitle, ExifTags.Base.XPComment, ExifTags.Base.XPAuthor, ExifTags.Base.XPKeywords),
    ExifTags.Base.XPSubject,
)
# an offset in the old file
_INTEROPERABILITY = 40965
_XMP_TEXT = "XML:com.adobe.xmp"
_XMP_ORIENTATION = re.compile(rb"(tiff:Orientation(?:=['\"]|>))\d")
# profiles of other modes, such as CMYK, do not apply to gray or RGB
_MODES_OF_PROFILES = ("L", "LA", "P", "PA", "RGB", "RGBA", "I;16", "I;16L", "I;16B", "I;16N", "I")
# defaults of decoders for files without a resolution
_NO_RESOLUTION = ((1.0, 1.0), (72.0, 72.0))


@dataclass(frozen=True)
class Metadata:
    """Metadata of an image, which writers keep as far as their format holds it.

    Attributes:
        color_profile: ICC profile.
        exif: EXIF block without orientation and thumbnail.
        dpi: pixels per inch, in x and y.
        text: texts by name; the comment of JPEG and GIF is "Comment".
        xmp: XMP packet.
    """

    color_profile: bytes | None = None
    exif: bytes | None = None
    dpi: tuple[float, float] | None = None
    text: Mapping[str, str] = field(default_factory=dict)
    xmp: bytes | None = None


def read_metadata(image: Image.Image, size: tuple[int, int]) -> Metadata:
    """Read the metadata of `image`; `size` is the width and height after it was turned upright."""
    try:
        exif = _kept_exif(image, size)
    # damaged EXIF raises any exception, and the pixels are still good
    except Exception:
        exif = None
    profile = image.info.get("icc_profile") if image.mode in _MODES_OF_PROFILES else None
    xmp = image.info.get("xmp")
    if xmp:
        xmp = _XMP_ORIENTATION.sub(rb"\g<1>1", xmp.encode() if isinstance(xmp, str) else xmp)
    return Metadata(profile or None, exif, _resolution(image), _texts(image), xmp or None)


def _kept_exif(image: Image.Image, size: tuple[int, int]) -> bytes | None:
    found, kept = image.getexif(), Image.Exif()
    for tag in _KEPT_TAGS:
        if tag in found:
            kept[tag] = found[tag]
    # every TIFF file has a resolution
    is_empty = not set(kept) - {ExifTags.Base.XResolution, ExifTags.Base.YResolution, ExifTags.Base.ResolutionUnit}
    for part in (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo):
        entries = dict(found.get_ifd(part))
        entries.pop(_INTEROPERABILITY, None)
        if part == ExifTags.IFD.Exif and ExifTags.Base.ExifImageWidth in entries:
            entries[ExifTags.Base.ExifImageWidth], entries[ExifTags.Base.ExifImageHeight] = size
        if entries:
            kept[part] = entries
            is_empty = False
    return None if is_empty else kept.tobytes()


def _resolution(image: Image.Image) -> tuple[float, float] | None:
    try:
        x, y = (float(number) for number in image.info["dpi"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    return None if (x, y) in _NO_RESOLUTION or not (0 < x < 1e6 and 0 < y < 1e6) else (x, y)


def _texts(image: Image.Image) -> dict[str, str]:
    texts: Mapping[str, str] = getattr(image, "text", {}) if image.format == "PNG" else {}
    # raw profiles are EXIF in an old encoding
    kept = {k: str(text) for k, text in texts.items() if k != _XMP_TEXT and not k.startswith("Raw profile type ")}
    comment = image.info.get("comment")
    if comment and image.format in ("JPEG", "MPO", "GIF"):
        kept["Comment"] = comment.decode("utf-8", "replace") if isinstance(comment, bytes) else str(comment)
    return kept


def save_options(metadata: Metadata, kind: str | None) -> dict[str, Any]:
    """Return the options of Pillow that write `metadata` into a file of the format `kind`."""
    options: dict[str, Any] = {"icc_profile": metadata.color_profile}
    for name in ("exif", "dpi", "xmp"):
        if (value := getattr(metadata, name)) is not None:
            options[name] = value
    if kind == "PNG":
        options["pnginfo"] = chunks = PngInfo()
        for name, text in metadata.text.items():
            chunks.add_itxt(name, text)
        if metadata.xmp is not None:
            chunks.add_itxt(_XMP_TEXT, metadata.xmp.decode("utf-8", "replace"))
    elif kind in ("JPEG", "MPO", "GIF") and "Comment" in metadata.text:
        options["comment"] = metadata.text["Comment"].encode()
    return options
