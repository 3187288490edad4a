"""Colors of 16 bits per channel."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps, features

from permutohedral.errors import InputError
from permutohedral.pictures.files import Picture, read_picture, write_picture
from permutohedral.pictures.sixteen_bit import is_wide, read_wide, write_wide

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


@pytest.mark.parametrize("ending", ["png", "tif"])
@pytest.mark.parametrize("channels", [3, 4])
def test_all_sixteen_bits_survive_the_file(ending: str, channels: int, tmp_path: Path) -> None:
    path, expected = tmp_path / f"wide.{ending}", numbers(channels)
    with open(path, "wb") as file:
        write_wide(expected, file, {"png": "PNG", "tif": "TIFF"}[ending])
    with Image.open(path) as image:
        assert is_wide(image)
    assert np.array_equal(read_wide(path), expected)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_tiff_of_either_byte_order_is_read(order: str, compression: str | None, tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    path, expected = tmp_path / "wide.tif", numbers(3)
    tifffile.imwrite(path, expected, photometric="rgb", byteorder=order, compression=compression)
    assert np.array_equal(read_wide(path), expected)


def test_other_software_reads_the_png(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed")
    with open(tmp_path / "wide.png", "wb") as file:
        write_wide(numbers(3), file, "PNG")
    assert np.array_equal(cv2.imread(str(tmp_path / "wide.png"), cv2.IMREAD_UNCHANGED)[..., ::-1], numbers(3))


def test_pictures_of_eight_bits_or_one_channel_are_not_wide(tmp_path: Path) -> None:
    Image.fromarray(numbers(3).astype(np.uint8)).save(tmp_path / "color.png")
    Image.fromarray(numbers(1)[..., 0]).save(tmp_path / "gray.png")
    for name in ("color", "gray"):
        with Image.open(tmp_path / f"{name}.png") as image:
            assert not is_wide(image)


@pytest.mark.parametrize("ending", ["png", "tif"])
@pytest.mark.parametrize("channels", [3, 4])
def test_a_picture_keeps_its_sixteen_bits(ending: str, channels: int, tmp_path: Path) -> None:
    path, copy = tmp_path / f"wide.{ending}", tmp_path / f"copy.{ending}"
    with open(path, "wb") as file:
        write_wide(numbers(channels), file, {"png": "PNG", "tif": "TIFF"}[ending])
    picture = read_picture(path)
    assert picture.levels == 65535
    assert picture.pixels.shape == (3, 23, 31)
    assert (picture.alpha is not None) == (channels == 4)
    write_picture(picture, copy)
    assert np.array_equal(read_wide(copy), numbers(channels))


def test_a_format_without_sixteen_bits_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "wide.png", "wb") as file:
        write_wide(numbers(3), file, "PNG")
    picture: Picture = read_picture(tmp_path / "wide.png")
    with pytest.raises(InputError, match="16 bits per channel"):
        write_picture(picture, tmp_path / "wide.jpg")
    assert not (tmp_path / "wide.jpg").exists()


@pytest.mark.parametrize("ending", ["webp", "avif", "gif", "bmp", "jpg"])
def test_gray_of_sixteen_bits_is_refused_where_it_would_turn_white_or_black(ending: str, tmp_path: Path) -> None:
    picture = Picture(torch.rand(1, 23, 31), levels=65535)
    with pytest.raises(InputError, match=r"16 bits per channel fits into \.png"):
        write_picture(picture, tmp_path / f"gray.{ending}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ["png", "tif", "jp2", "pgm"])
def test_gray_of_sixteen_bits_stays(ending: str, tmp_path: Path) -> None:
    pixels = torch.from_numpy(numbers(1)[..., 0].astype(np.float32))[None] / 65535
    write_picture(Picture(pixels, levels=65535), tmp_path / f"gray.{ending}")
    copy = read_picture(tmp_path / f"gray.{ending}")
    assert copy.levels == 65535
    torch.testing.assert_close(copy.pixels, pixels)


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_gray_with_alpha_stays(ending: str, tmp_path: Path) -> None:
    path, copy = tmp_path / f"wide.{ending}", tmp_path / f"copy.{ending}"
    with open(path, "wb") as file:
        write_wide(numbers(2), file, {"png": "PNG", "tif": "TIFF"}[ending])
    picture = read_picture(path)
    assert picture.levels == 65535
    assert picture.pixels.shape == (1, 23, 31)
    assert picture.alpha is not None
    write_picture(picture, copy)
    assert np.array_equal(read_wide(copy), numbers(2))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("channels", [2, 3, 4])
def test_planes_keep_all_bits(order: str, compression: str | None, channels: int, tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    tifffile.imwrite(
        tmp_path / "planes.tif",
        np.moveaxis(numbers(channels), -1, 0),
        photometric="rgb" if channels > 2 else "minisblack",
        planarconfig="separate",
        extrasamples=["unassalpha"] if channels in (2, 4) else None,
        byteorder=order,
        compression=compression,
    )
    picture = read_picture(tmp_path / "planes.tif")
    assert picture.levels == 65535
    write_picture(picture, tmp_path / "copy.png")
    assert np.array_equal(read_wide(tmp_path / "copy.png"), numbers(channels))


def test_colors_multiplied_by_alpha_are_divided_once(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    plain = numbers(4)
    plain[..., 3] = np.maximum(plain[..., 3], 5000)
    multiplied = plain.copy()
    multiplied[..., :3] = (plain[..., :3] / 65535 * plain[..., 3:]).round()
    tifffile.imwrite(tmp_path / "a.tif", multiplied, photometric="rgb", extrasamples=["assocalpha"])
    found = read_picture(tmp_path / "a.tif").pixels.permute(1, 2, 0).numpy() * 65535
    # half a level before the division by an alpha of at least 5000 levels
    assert np.abs(found - plain[..., :3]).max() <= 0.5 * 65535 / 5000 + 1


def test_inks_of_sixteen_bits_are_refused(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    tifffile.imwrite(tmp_path / "inks.tif", numbers(4), photometric="separated")
    with pytest.raises(InputError, match="convert it to gray or RGB"):
        read_picture(tmp_path / "inks.tif")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_either_kind_is_turned_alike(orientation: int, planar: str, tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    pixels = numbers(3) if planar == "contig" else np.moveaxis(numbers(3), -1, 0)
    tag = [(274, "H", 1, orientation, True)]
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="rgb", planarconfig=planar, extratags=tag)
    upright = Image.fromarray((numbers(3) // 256).astype(np.uint8))
    upright.getexif()[274] = orientation
    expected = np.asarray(ImageOps.exif_transpose(upright))
    found = read_picture(tmp_path / "a.tif").pixels.permute(1, 2, 0).numpy() * 65535 // 256
    assert np.array_equal(found, expected)


def test_other_software_reads_the_tiff(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    for channels in (2, 3, 4):
        with open(tmp_path / "wide.tif", "wb") as file:
            write_wide(numbers(channels), file, "TIFF")
        assert np.array_equal(tifffile.imread(tmp_path / "wide.tif"), numbers(channels))


@pytest.mark.parametrize("white", [256, 1023, 65535])
@pytest.mark.parametrize("digits", [False, True], ids=["binary", "digits"])
def test_colors_of_ppm_keep_their_bits(white: int, digits: bool, tmp_path: Path) -> None:
    pixels = (numbers(3).astype(np.int64) * white + 32767) // 65535
    if digits:
        rows = [f"{' '.join(map(str, row.flatten()))} # a row" for row in pixels]
        (tmp_path / "a.ppm").write_text("\n".join([f"P3 31 23 {white}", *rows]))
    else:
        content = f"P6 31 23 {white}\n".encode() + pixels.astype(">u2").tobytes()
        (tmp_path / "a.ppm").write_bytes(content)
    picture = read_picture(tmp_path / "a.ppm")
    assert picture.levels == 65535
    found = picture.pixels.permute(1, 2, 0).numpy() * white
    assert np.array_equal(found.round(), pixels)
    for ending in ("ppm", "png"):
        assert write_picture(picture, tmp_path / f"b.{ending}") == []
        assert torch.equal(read_picture(tmp_path / f"b.{ending}").pixels, picture.pixels)


def test_damaged_and_wrong_ppm_is_refused(tmp_path: Path) -> None:
    for name, content in (("short", b"P6 4 4 1000\n" + bytes(90)), ("bright", b"P6 1 1 1000\n" + b"\xff" * 6)):
        (tmp_path / f"{name}.ppm").write_bytes(content)
        with pytest.raises(InputError, match="cannot read"):
            read_picture(tmp_path / f"{name}.ppm")
    transparent = Picture(torch.rand(3, 8, 9), alpha=torch.rand(1, 8, 9), levels=65535)
    with pytest.raises(InputError, match=r"transparency of 16 bits fits into \.png and \.tif"):
        write_picture(transparent, tmp_path / "a.ppm")


@pytest.mark.parametrize("ending", NARROWED)
def test_bits_that_are_not_read_are_told(ending: str, tmp_path: Path) -> None:
    bits, content = NARROWED[ending]
    (tmp_path / f"a.{ending}").write_bytes(base64.b64decode(content))
    if ending == "avif" and not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    picture = read_picture(tmp_path / f"a.{ending}")
    assert abs(float(picture.pixels.mean()) * 65535 - 40000) < 300
    assert write_picture(picture, tmp_path / "b.png") == [f"{bits} bits per channel, read as 8"]
    Image.new("RGB", (8, 9)).save(tmp_path / f"eight.{ending}")
    assert write_picture(read_picture(tmp_path / f"eight.{ending}"), tmp_path / "b.png") == []
