"""Images of 16 bits per channel."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import tifffile
import torch
from image_files import read_integers, write_integers
from PIL import Image, ImageOps, features

from permutohedral.apps.io.image import ImageData, read_image, write_image
from permutohedral.errors import DataError, InputError

# 4 x 4 pixels of one gray as other software writes them: the ending, the bits of a channel, the file
NARROWED = {
    "jp2": (
        16,
        "AAAADGpQICANCocKAAAAFGZ0eXBqcDIgAAAAAGpwMiAAAAAtanAyaAAAABZpaGRyAAAABAAAAAQAAw8HAAAAAAAPY29scgEAAAAA"
        "ABAAAACbanAyY/9P/1EALwAAAAAABAAAAAQAAAAAAAAAAAAAAAQAAAAEAAAAAAAAAAAAAw8BAQ8BAQ8BAf9SAAwAAAABAQAEBAAB"
        "/1wABECA/2QAJQABQ3JlYXRlZCBieSBPcGVuSlBFRyB2ZXJzaW9uIDIuNS40/5AACgAAAAAAIwAB/5PD/wAHABQAXIhC4SDynwYH"
        "lTJfgID/2Q==",
    ),
    "j2k": (
        16,
        "/0//UQAvAAAAAAAEAAAABAAAAAAAAAAAAAAABAAAAAQAAAAAAAAAAAADDwEBDwEBDwEB/1IADAAAAAEBAAQEAAH/XAAEQID/ZAAl"
        "AAFDcmVhdGVkIGJ5IE9wZW5KUEVHIHZlcnNpb24gMi41LjT/kAAKAAAAAAAjAAH/k8P/AAcAFABciELhIPKfBgeVMl+AgP/Z",
    ),
    "avif": (
        10,
        "AAAAIGZ0eXBhdmlmAAAAAGF2aWZtaWYxbWlhZk1BMUEAAADrbWV0YQAAAAAAAAAhaGRscgAAAAAAAAAAcGljdAAAAAAAAAAAAAAA"
        "AAAAAAAOcGl0bQAAAAAAAQAAAB5pbG9jAAAAAEQAAAEAAQAAAAEAAAETAAAAIQAAAChpaW5mAAAAAAABAAAAGmluZmUCAAAAAAEA"
        "AGF2MDFDb2xvcgAAAABqaXBycAAAAEtpcGNvAAAAFGlzcGUAAAAAAAAABAAAAAQAAAAQcGl4aQAAAAADCgoKAAAADGF2MUOBIEAA"
        "AAAAE2NvbHJuY2x4AAIAAgAAgAAAABdpcG1hAAAAAAAAAAEAAQQBAoMEAAAAKW1kYXQSAAoIOAR/nAgIAkAyExAAAAAP+I83huuW"
        "LIv3A55Vd9A=",
    ),
}


def numbers(channels: int) -> np.ndarray:
    return np.random.default_rng(channels).integers(0, 65536, (23, 31, channels), dtype=np.uint16)


def test_rejects_formats_without_sixteen_bits(tmp_path: Path) -> None:
    write_integers(tmp_path / "wide.png", numbers(3))
    image: ImageData = read_image(tmp_path / "wide.png")
    with pytest.raises(InputError, match="16-bit colors and transparency need"):
        write_image(image, tmp_path / "wide.jpg")
    assert not (tmp_path / "wide.jpg").exists()


@pytest.mark.parametrize("ending", ["webp", "avif", "gif", "bmp", "jpg"])
def test_rejects_formats_that_clip_sixteen_bit_gray(ending: str, tmp_path: Path) -> None:
    image = ImageData(torch.rand(1, 23, 31), levels=65535)
    with pytest.raises(InputError, match="16-bit gray needs"):
        write_image(image, tmp_path / f"gray.{ending}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ["png", "tif", "jp2", "pgm"])
def test_keeps_sixteen_bit_gray(ending: str, tmp_path: Path) -> None:
    pixels = torch.from_numpy(numbers(1)[..., 0].astype(np.float32))[None] / 65535
    write_image(ImageData(pixels, levels=65535), tmp_path / f"gray.{ending}")
    copy = read_image(tmp_path / f"gray.{ending}")
    assert copy.levels == 65535
    torch.testing.assert_close(copy.pixels, pixels)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("compression", [None, "zlib", "lzw"])
@pytest.mark.parametrize(("channels", "planar"), [(3, "contig"), (2, "separate"), (3, "separate"), (4, "separate")])
def test_reads_tiff(
    order: Literal["<", ">"],
    compression: str | None,
    channels: int,
    planar: Literal["contig", "separate"],
    tmp_path: Path,
) -> None:
    tifffile.imwrite(
        tmp_path / "wide.tif",
        numbers(channels) if planar == "contig" else np.moveaxis(numbers(channels), -1, 0),
        photometric="rgb" if channels > 2 else "minisblack",
        planarconfig=planar,
        extrasamples=["unassalpha"] if channels in (2, 4) else None,
        byteorder=order,
        compression=compression,
    )
    image = read_image(tmp_path / "wide.tif")
    assert image.levels == 65535
    write_image(image, tmp_path / "copy.png")
    assert np.array_equal(read_integers(tmp_path / "copy.png"), numbers(channels))


def test_divides_associated_alpha(tmp_path: Path) -> None:
    plain = numbers(4)
    plain[..., 3] = np.maximum(plain[..., 3], 5000)
    multiplied = plain.copy()
    multiplied[..., :3] = (plain[..., :3] / 65535 * plain[..., 3:]).round()
    tifffile.imwrite(tmp_path / "a.tif", multiplied, photometric="rgb", extrasamples=["assocalpha"])
    found = read_image(tmp_path / "a.tif").pixels.permute(1, 2, 0).numpy() * 65535
    # half a level before the division by an alpha of at least 5000 levels
    assert np.abs(found - plain[..., :3]).max() <= 0.5 * 65535 / 5000 + 1


def test_rejects_sixteen_bit_cmyk(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "inks.tif", numbers(4), photometric="separated")
    with pytest.raises(DataError, match="convert it to gray or RGB"):
        read_image(tmp_path / "inks.tif")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_turns_sixteen_bit_images_upright(orientation: int, planar: str, tmp_path: Path) -> None:
    pixels = numbers(3) if planar == "contig" else np.moveaxis(numbers(3), -1, 0)
    tag = [(274, "H", 1, orientation, True)]
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="rgb", planarconfig=planar, extratags=tag)
    upright = Image.fromarray((numbers(3) // 256).astype(np.uint8))
    upright.getexif()[274] = orientation
    expected = np.asarray(ImageOps.exif_transpose(upright))
    found = read_image(tmp_path / "a.tif").pixels.permute(1, 2, 0).numpy() * 65535 // 256
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("ending", NARROWED)
def test_reads_more_than_eight_bits_as_eight(ending: str, tmp_path: Path) -> None:
    _, content = NARROWED[ending]
    (tmp_path / f"a.{ending}").write_bytes(base64.b64decode(content))
    if ending == "avif" and not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    image = read_image(tmp_path / f"a.{ending}")
    assert abs(float(image.pixels.mean()) * 65535 - 40000) < 300
