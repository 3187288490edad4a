"""Metadata of image files."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_files import invoke, read_integers, write_integers
from PIL import ExifTags, Image, ImageCms, features
from PIL.PngImagePlugin import PngInfo

from permutohedral.apps.io.image import ImageData, read_image, write_image
from permutohedral.apps.io.metadata import Metadata

DATE = "2021:05:04 03:02:01"


def exif(orientation: int | None = None) -> Image.Exif:
    block = Image.Exif()
    block[ExifTags.Base.Make] = "Camera"
    block[ExifTags.Base.DateTime] = DATE
    if orientation is not None:
        block[ExifTags.Base.Orientation] = orientation
    block[ExifTags.IFD.Exif] = {ExifTags.Base.DateTimeOriginal: DATE, ExifTags.Base.ExifImageWidth: 12}
    block[ExifTags.IFD.GPSInfo] = {ExifTags.GPS.GPSLatitudeRef: "N", ExifTags.GPS.GPSLatitude: (48.0, 31.0, 2.0)}
    return block


def pixels(channels: int = 3, height: int = 9, width: int = 12) -> np.ndarray[Any, Any]:
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@cache
def profile() -> bytes:
    """One for all tests: it carries the time when it was made."""
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def assert_exif_is_kept(image: Image.Image) -> None:
    found = image.getexif()
    assert found[ExifTags.Base.Make] == "Camera"
    assert found[ExifTags.Base.DateTime] == DATE
    assert found.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] == DATE
    assert found.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitude] == (48.0, 31.0, 2.0)


@pytest.mark.parametrize("source_ending", ["jpg", "png", "tif", "webp"])
@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "webp"])
def test_keeps_exif(source_ending: str, ending: str, tmp_path: Path) -> None:
    source, output = tmp_path / f"source.{source_ending}", tmp_path / f"output.{ending}"
    Image.fromarray(pixels()).save(source, exif=exif().tobytes())
    result = invoke("filter", source, output)
    assert (result.exit_code, result.stderr) == (0, "")
    with Image.open(output) as image:
        assert_exif_is_kept(image)


@pytest.mark.parametrize("source_ending", ["jpg", "png", "tif"])
@pytest.mark.parametrize("ending", ["jpg", "png", "tif"])
def test_keeps_the_resolution(source_ending: str, ending: str, tmp_path: Path) -> None:
    source, output = tmp_path / f"source.{source_ending}", tmp_path / f"output.{ending}"
    Image.fromarray(pixels()).save(source, dpi=(300, 200))
    assert invoke("filter", source, output).stderr == ""
    with Image.open(output) as image:
        assert [round(float(number)) for number in image.info["dpi"]] == [300, 200]


def test_keeps_texts_and_comments(tmp_path: Path) -> None:
    texts = PngInfo()
    texts.add_text("Title", "Stone")
    texts.add_itxt("Author", "Ä. Müller")
    Image.fromarray(pixels()).save(tmp_path / "a.png", pnginfo=texts)
    assert invoke("filter", tmp_path / "a.png", tmp_path / "b.png").exit_code == 0
    with Image.open(tmp_path / "b.png") as image:
        assert image.text == {"Title": "Stone", "Author": "Ä. Müller"}  # type: ignore[attr-defined]
    Image.fromarray(pixels()).save(tmp_path / "a.jpg", comment="by hand")
    assert invoke("filter", tmp_path / "a.jpg", tmp_path / "b.jpg").exit_code == 0
    assert invoke("filter", tmp_path / "a.jpg", tmp_path / "c.png").stderr == ""
    with Image.open(tmp_path / "b.jpg") as image:
        assert image.info["comment"] == b"by hand"
    with Image.open(tmp_path / "c.png") as image:
        assert image.info["Comment"] == "by hand"


@pytest.mark.parametrize("ending", ["jpg", "png", "webp"])
def test_keeps_xmp_without_the_old_orientation(ending: str, tmp_path: Path) -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="6" dc:rights="mine"/></x:xmpmeta>'
    Image.fromarray(pixels()).save(tmp_path / "a.webp", xmp=xmp, lossless=True)
    assert invoke("filter", tmp_path / "a.webp", tmp_path / f"b.{ending}").stderr == ""
    with Image.open(tmp_path / f"b.{ending}") as image:
        found = image.info["xmp"]
    found = found.encode() if isinstance(found, str) else found
    assert b'dc:rights="mine"' in found
    assert b'tiff:Orientation="1"' in found


def test_turned_image_is_not_turned_again(tmp_path: Path) -> None:
    Image.fromarray(pixels()).save(tmp_path / "a.jpg", exif=exif(orientation=6))
    assert invoke("filter", tmp_path / "a.jpg", tmp_path / "b.jpg").exit_code == 0
    with Image.open(tmp_path / "b.jpg") as image:
        assert image.size == (9, 12)
        assert ExifTags.Base.Orientation not in image.getexif()
        assert_exif_is_kept(image)
        assert image.getexif().get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.ExifImageWidth] == 9


@pytest.mark.parametrize("ending", ["png", "tif"])
@pytest.mark.parametrize("channels", [2, 3, 4])
def test_sixteen_bits_of_color_keep_numbers_and_some_metadata(ending: str, channels: int, tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).integers(0, 65536, (9, 12, channels), dtype=np.uint16)
    path, copy = tmp_path / f"source.{ending}", tmp_path / f"copy.{ending}"
    write_integers(path, numbers)
    read = read_image(path)
    assert (read.levels, read.pixels.shape) == (65535, (3 if channels > 2 else 1, 9, 12))
    assert (read.alpha is not None) == (channels in (2, 4))
    metadata = Metadata(profile(), exif().tobytes(), (300, 300))
    write_image(replace(read, metadata=metadata), path)
    write_image(read_image(path), copy)
    np.testing.assert_array_equal(read_integers(copy), numbers)
    kept = read_image(copy).metadata
    assert (kept.color_profile, kept.dpi) == ((profile(), (300, 300)) if ending == "tif" else (None, None))


def test_sixteen_bits_of_gray_keep_their_profile(tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).integers(0, 65536, (9, 12), dtype=np.uint16)
    Image.fromarray(numbers).save(tmp_path / "a.png", icc_profile=profile())
    write_image(read_image(tmp_path / "a.png"), tmp_path / "b.png")
    with Image.open(tmp_path / "b.png") as image:
        assert image.info["icc_profile"] == profile()


def test_drops_metadata_too_long_for_the_format(tmp_path: Path) -> None:
    block = exif()
    block[ExifTags.Base.ImageDescription] = "x" * 100_000
    Image.fromarray(pixels()).save(tmp_path / "a.png", exif=block)
    result = invoke("filter", tmp_path / "a.png", tmp_path / "b.jpg")
    assert result.exit_code == 0
    assert read_image(tmp_path / "b.jpg").pixels.shape == (3, 9, 12)


def test_reads_images_with_damaged_exif(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(pixels()).save(file, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\xff" * 40)
    (tmp_path / "a.jpg").write_bytes(file.getvalue())
    assert read_image(tmp_path / "a.jpg").pixels.shape == (3, 9, 12)


def test_image_without_metadata_gets_none(tmp_path: Path) -> None:
    for ending in ("png", "jpg", "tif", "webp"):
        Image.fromarray(pixels()).save(tmp_path / f"a.{ending}")
        assert read_image(tmp_path / f"a.{ending}").metadata == Metadata()


@pytest.mark.parametrize("ending", ["webp", "avif"])
def test_drops_profiles_of_gray_where_gray_becomes_rgb(ending: str, tmp_path: Path) -> None:
    if not features.check(ending):
        pytest.skip(f"this Pillow does not write {ending}")
    Image.new("L", (8, 9), 90).save(tmp_path / "gray.png", icc_profile=b"profile of gray")
    image = read_image(tmp_path / "gray.png")
    write_image(image, tmp_path / f"gray.{ending}")
    with Image.open(tmp_path / f"gray.{ending}") as written:
        assert "icc_profile" not in written.info


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow does not write AVIF")
def test_avif_keeps_colors(tmp_path: Path) -> None:
    pixels = torch.rand(3, 40, 50, generator=torch.Generator().manual_seed(0))
    write_image(ImageData(pixels), tmp_path / "a.avif")
    # Pillow's default halves the resolution of colors
    assert float((read_image(tmp_path / "a.avif").pixels - pixels).square().mean().sqrt()) < 0.03
