"""Colors of 16 bits per channel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from permutohedral.errors import InputError
from permutohedral.pictures.files import Picture, read_picture, write_picture
from permutohedral.pictures.sixteen_bit import is_wide, read_wide, write_wide


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
