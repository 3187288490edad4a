"""Images, maps and labels of strangers: small files that claim any size, and formats whose decoders are not safe."""

from __future__ import annotations

import io
import os
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
import tifffile
from image_files import invoke, png_of_claimed_size, write_integers
from PIL import Image

import permutohedral as ph
from permutohedral.apps.io.image import read_image
from permutohedral.apps.io.labels import read_label_map
from permutohedral.apps.io.maps import read_map
from permutohedral.errors import DataError, InputError, PermutohedralError

LIMIT = "PERMUTOHEDRAL_MAX_PIXELS"
# types of TIFF, and tags
SHORT, LONG = 3, 4
WIDTH, HEIGHT, BITS, COMPRESSION, COLORS, OFFSETS, SAMPLES, ROWS, COUNTS = 256, 257, 258, 259, 262, 273, 277, 278, 279
TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_COUNTS, SAMPLE_FORMAT, DEPTH = 322, 323, 324, 325, 339, 32997
DEFLATE, FLOAT = 8, 3


def tiff(tags: dict[int, int | tuple[int, int]], pixels: bytes = b"") -> bytes:
    """Return a TIFF file of tags, each a number or the count of numbers at the begin of the file, and of pixels."""
    start = 8 + 2 + 12 * len(tags) + 4
    entries = b""
    for tag, value in sorted(tags.items()):
        count, number = value if isinstance(value, tuple) else (1, value)
        kind = LONG if (isinstance(value, int) and value > 0xFFFF) or tag in (OFFSETS, TILE_OFFSETS) else SHORT
        number = start if tag in (OFFSETS, TILE_OFFSETS) and pixels else number
        entries += struct.pack("<HHII", tag, kind, count, number)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + pixels


def sparse(width: int, height: int, samples: int = 1, bits: int = 32, depth: int = 1) -> bytes:
    """Return a TIFF file whose strip is missing, which tifffile fills with zeros."""
    return tiff({
        WIDTH: width, HEIGHT: height, BITS: bits, COMPRESSION: DEFLATE, COLORS: 1, OFFSETS: 0, SAMPLES: samples,
        ROWS: height, COUNTS: 0, SAMPLE_FORMAT: FLOAT if bits == 32 else 1, DEPTH: depth,
    })  # fmt: skip


def npy(shape: str) -> bytes:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(48)


@contextmanager
def at_most(most: int) -> Iterator[None]:
    """Check how many bytes Python and NumPy allocate in the block."""
    Image.init()
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def save(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


BOMBS: dict[str, bytes] = {
    "a.png": png_of_claimed_size(60_000, 60_000),
    "float.tif": sparse(20_000, 20_000),
    "channels.tif": sparse(10_000, 10_000, 60),
    "gray and alpha.tif": sparse(20_000, 20_000, 2, 16),
    "tile.tif": tiff({
        WIDTH: 10, HEIGHT: 10, BITS: 8, COMPRESSION: DEFLATE, COLORS: 1, SAMPLES: 1, TILE_WIDTH: 40_000,
        TILE_HEIGHT: 40_000, TILE_OFFSETS: 0, TILE_COUNTS: 1000,
    }, zlib.compress(bytes(1_000_000))),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_files_that_claim_to_be_large_are_rejected(name: str, tmp_path: Path) -> None:
    with at_most(1 << 23), pytest.raises(InputError, match=f"{name} has .*pixels"):
        read_map(save(tmp_path / name, BOMBS[name]))


def test_depth_multiplies_the_size(tmp_path: Path) -> None:
    """Pillow sees 10 x 10 pixels, and tifffile 2,000,000 slices of them."""
    path = tmp_path / "a.tif"
    content = tiff({
        WIDTH: 10, HEIGHT: 10, BITS: (3, 8), COMPRESSION: DEFLATE, COLORS: 2, OFFSETS: 0, SAMPLES: 3, ROWS: 10,
        COUNTS: 0, DEPTH: 4,
    })  # fmt: skip
    # the bits are at the end of the file
    bits = content.replace(struct.pack("<HHII", BITS, SHORT, 3, 8), struct.pack("<HHII", BITS, SHORT, 3, len(content)))
    for place in (save(path, bits + struct.pack("<3H", 16, 16, 16)), save(path, sparse(10, 10, depth=4))):
        with pytest.raises(InputError, match=r"a\.tif is a volume"):
            read_map(place)


def test_bits_of_many_samples_need_no_memory(tmp_path: Path) -> None:
    content = tiff({
        WIDTH: 10, HEIGHT: 10, BITS: (20_000_000, 8), COMPRESSION: 1, COLORS: 1, OFFSETS: 8, SAMPLES: 2, ROWS: 10,
        COUNTS: 400,
    })  # fmt: skip
    with at_most(1 << 24), pytest.raises(DataError, match=r"a\.tif"):
        read_image(save(tmp_path / "a.tif", content))


@pytest.mark.parametrize("name", ["a.png", "a.tif", "wide.tif", "gray.tif", "float.tif", "a.npy"])
def test_the_environment_lowers_the_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    if name == "a.npy":
        np.save(path, np.zeros((11, 10)))
    elif name == "a.png":
        Image.new("L", (10, 11)).save(path)
    else:
        dtype = {"a": np.uint8, "float": np.float32}.get(path.stem, np.uint16)
        write_integers(path, np.zeros((11, 10, {"wide": 3, "gray": 2}.get(path.stem, 1)), dtype))
    for given in ("110", "999999999999"):
        monkeypatch.setenv(LIMIT, given)
        assert read_map(path).values.shape[1:] == (11, 10)
    for limit, most in (("109", None), ("110", 109), ("999999999999", 109)):
        monkeypatch.setenv(LIMIT, limit)
        with pytest.raises(InputError, match=rf"{name} has 10 x 11 pixels, more than 109; crop or scale it"):
            read_map(path, max_pixels=most)
    for wrong in ("²", "12.5", "many", "", "9" * 5000):
        monkeypatch.setenv(LIMIT, wrong)
        with pytest.raises(InputError, match="must be a whole number of pixels"):
            read_map(path)


def test_the_environment_raises_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, str(10**12))
    path = save(tmp_path / "a.png", png_of_claimed_size(12_000, 12_000))
    with pytest.warns(Image.DecompressionBombWarning), pytest.raises(InputError, match="more than 134,217,728"):
        read_image(path)
    # the command has no second warning
    result = invoke("filter", path, tmp_path / "b.png")
    assert result.stderr == f"error: {path} has 12,000 x 12,000 pixels, more than 134,217,728; crop or scale it\n"


@pytest.mark.parametrize("read", [read_image, lambda path: read_label_map(path, True), read_map])
def test_the_limit_of_pillow_holds(
    read: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may lower it; files are read in several threads, which must not change it."""
    Image.fromarray(np.arange(110, dtype=np.uint8).reshape(11, 10)).save(tmp_path / "a.png")
    read(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(InputError, match=r"a\.png has too many pixels"):
        read(tmp_path / "a.png")


@pytest.mark.parametrize("kind", ["ICO", "ICNS", "XBM", "SPIDER"])
def test_other_formats_are_rejected_whatever_their_name(kind: str, tmp_path: Path) -> None:
    content = io.BytesIO()
    Image.new({"XBM": "1", "SPIDER": "F"}.get(kind, "RGBA"), (32, 32)).save(content, kind)
    with pytest.raises(DataError, match=r"photo\.png is not an image of a known format"):
        read_image(save(tmp_path / "photo.png", content.getvalue()))


@pytest.mark.skipif(sys.platform == "win32", reason="Ghostscript has another name there")
def test_no_program_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow starts Ghostscript for EPS files."""
    gs = save(tmp_path / "gs", f"#!/bin/sh\ntouch '{tmp_path}/started'\n".encode())
    gs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    content = io.BytesIO()
    Image.new("RGB", (8, 9)).save(content, "EPS")
    assert invoke("filter", save(tmp_path / "photo.png", content.getvalue()), tmp_path / "out.png").exit_code == 1
    assert not (tmp_path / "started").exists()


def test_a_large_file_is_not_read_to_look_at_its_first_bytes(tmp_path: Path) -> None:
    for name in ("film.png", "film.tif", "film.npy"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(1 << 26)
        with at_most(1 << 23), pytest.raises(DataError, match="film"):
            read_map(tmp_path / name)


@pytest.mark.parametrize("shape", ["(200000, 200000)", "(4294967296, 4294967296)", "(3, -4, -5)", "(0, 3)", "(7,)"])
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_headers_of_arrays_that_claim_too_much(shape: str, tmp_path: Path) -> None:
    """One bad file does not end a batch."""
    for folder in ("maps", "photos"):
        (tmp_path / folder).mkdir()
    for name in "abc":
        np.save(tmp_path / "maps" / f"{name}.npy", np.ones((2, 3)))
        Image.new("RGB", (6, 4)).save(tmp_path / "photos" / f"{name}.png")
    save(tmp_path / "maps" / "b.npy", npy(shape))
    result = invoke("upsample", tmp_path / "maps", tmp_path / "photos", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "b.npy" in result.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.npy", "c.npy"]


@pytest.mark.parametrize(
    ("compression", "codec", "dtype"),
    [
        ("lerc", "LERC", np.float32),
        ("lerc", "LERC", np.uint16),
        ("jpeg2000", "JPEG2K", np.uint16),
        ("png", "PNG", np.uint16),
    ],
)
def test_compressions_with_a_size_of_their_own_are_rejected(
    compression: str, codec: str, dtype: Any, tmp_path: Path
) -> None:
    """The size in the stream may be larger than that of the image."""
    if not getattr(imagecodecs, codec).available:
        pytest.skip("this imagecodecs lacks the codec")
    write_integers(tmp_path / "a.tif", np.zeros((8, 9, 3), dtype), compression=compression)
    with pytest.raises(InputError, match=r"a\.tif is compressed by .*; store it with Deflate"):
        read_map(tmp_path / "a.tif")


@pytest.mark.parametrize("name", ["float.tif", "wide.tif", "gray.tif", "wide.png", "a.npy"])
def test_damaged_files_are_read_or_rejected(name: str, tmp_path: Path) -> None:
    path, random = tmp_path / name, np.random.default_rng(0)
    channels = {"wide": 3, "gray": 2}.get(path.stem, 1)
    pixels = random.integers(0, 65536, (11, 10, channels)).astype(np.float32 if channels == 1 else np.uint16)
    if path.suffix == ".tif":
        write_integers(path, pixels, compression="zlib")
    elif path.suffix == ".png":
        path.write_bytes(imagecodecs.png_encode(pixels))
    else:
        np.save(path, pixels[..., 0])
    content = path.read_bytes()
    for number, place in enumerate(random.integers(len(content), size=80).tolist()):
        path.write_bytes(
            content[:place] if number % 4 == 0 else content[:place] + bytes([number * 3]) + content[place + 1 :]
        )
        try:
            read_map(path)
        except PermutohedralError as error:
            assert name in str(error)  # noqa: PT017


def test_resume_replaces_a_result_that_is_no_image(tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 9, 3), np.uint8)).save(tmp_path / "photo.png")
    Image.fromarray(np.arange(72, dtype=np.uint8).reshape(8, 9) // 36 + 1).save(tmp_path / "labels.png")
    arguments = tmp_path / "photo.png", tmp_path / "out.png"
    for content in (png_of_claimed_size(60_000, 60_000), b"no image"):
        (tmp_path / "out.png").write_bytes(content)
        [result] = ph.apps.segment_image(*arguments, labels=tmp_path / "labels.png", resume=True)
        assert not result.resumed
        assert read_image(tmp_path / "out.png").pixels.shape[1:] == (8, 9)


def test_labels_of_gray_and_alpha_with_sixteen_bits(tmp_path: Path) -> None:
    numbers = np.stack([np.arange(72).reshape(8, 9) // 36 + 300, np.full((8, 9), 65535)], axis=2).astype(np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", numbers, photometric="minisblack", extrasamples=["unassalpha"])
    found = read_label_map(tmp_path / "a.tif", False)
    assert (found.labels.numpy() == numbers[..., 0] - 300).all()


def test_closed_streams_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (6, 4)).save(tmp_path / "a.png")
    with monkeypatch.context() as streams:
        streams.setattr(sys, "stdin", None)
        with pytest.raises(DataError, match="stdin is empty"):
            ph.apps.filter_image("-", tmp_path / "b.png")
        streams.setattr(sys, "stdout", None)
        with pytest.raises(PermutohedralError, match="cannot write to stdout"):
            ph.apps.filter_image(tmp_path / "a.png", "-")
