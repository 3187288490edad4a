"""Photos, layers, uploads that cannot be read, and addresses that cannot be used."""

from __future__ import annotations

import asyncio
import io
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
import torch
from nicegui.elements.upload_files import SmallFileUpload
from PIL import Image

from permutohedral.apps.io.image import ImageData
from permutohedral.apps.playground import controls, server
from permutohedral.apps.playground.compute import user_map
from permutohedral.apps.playground.photos import PREVIEW_PIXELS, Photo, encode_png, make_layer, read_photo, shrink
from permutohedral.apps.playground.strokes import Stroke, draw_strokes
from permutohedral.errors import DataError, InputError

if TYPE_CHECKING:
    from permutohedral.apps.playground.session import Session


def huge_png() -> bytes:
    """A small file that claims 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def png(pixels: np.ndarray) -> bytes:
    picture = torch.from_numpy(pixels).permute(2, 0, 1) / 255
    return encode_png(ImageData(picture[:3], picture[3:] if len(picture) == 4 else None))


RGB = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an image"),
        (b"#!/bin/sh\necho no\n", "not an image"),
        (png(RGB)[:90], "cannot read|not an image"),
        (huge_png(), "holiday.png has too many pixels"),
    ],
    ids=["empty", "text", "cut off", "huge"],
)
def test_errors_of_uploads_name_the_file_of_the_user(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "17.png"
    path.write_bytes(content)
    with pytest.raises((DataError, InputError), match=message) as caught:
        read_photo(path, "holiday.png")
    assert "holiday.png" in caught.value.message
    assert str(tmp_path) not in caught.value.message


def shown(photo: Photo) -> np.ndarray:
    """Return the image that the browser decodes."""
    return np.asarray(Image.open(io.BytesIO(photo.layer.content)))


def test_opaque_alpha_channel_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(np.dstack([RGB, np.full((9, 7), 255, np.uint8)])).save(path)
    photo = read_photo(path, "a.png")
    assert photo.small_alpha is None
    assert np.array_equal(shown(photo), RGB)


def write_photo(path: Path, pixels: torch.Tensor, alpha: torch.Tensor | None = None) -> Photo:
    path.write_bytes(encode_png(ImageData(pixels, alpha)))
    return read_photo(path, path.name)


def test_transparent_photo_is_shown_on_white_without_hidden_colors_in_the_preview(tmp_path: Path) -> None:
    pixels, alpha = torch.full((3, 300, 400), 51 / 255), torch.full((1, 300, 400), 0.4)
    # an invisible color in every other row
    pixels[:, ::2], alpha[:, ::2] = 0.9, 0.0
    photo = write_photo(tmp_path / "a.png", pixels, alpha)
    assert photo.factor == 2
    # 0.4 of 0.2 and 0.6 of white
    assert shown(photo)[:2, 0, 0].tolist() == [255, round(255 * 0.68)]
    assert torch.allclose(photo.small, torch.tensor(0.2))
    assert photo.small_alpha is not None
    assert torch.allclose(photo.small_alpha, torch.tensor(0.2))


def test_rejects_a_map_larger_than_the_photo(tmp_path: Path) -> None:
    photo = write_photo(tmp_path / "a.png", torch.rand(3, 9, 7))
    np.save(tmp_path / "0.npy", np.ones((9, 8), np.float32))
    with pytest.raises(InputError, match=r"depth\.npy has 8 x 9 pixels and the photo 7 x 9"):
        user_map(tmp_path / "0.npy", "depth.npy", photo)


def test_rejects_a_single_visible_label() -> None:
    below, above = Stroke(0, 1.0, ((4.0, 4.0),)), Stroke(1, 3.0, ((4.0, 4.0),))
    assert set(np.unique(draw_strokes([above, below], 10, 20))) == {-1, 0, 1}
    with pytest.raises(InputError, match="two regions"):
        draw_strokes([below, above], 10, 20)


def test_small_photo_has_means_of_squares(tmp_path: Path) -> None:
    pixels = torch.rand(3, 7, 10)
    small = shrink(pixels, 3)
    expected = [[pixels[:, y : y + 3, x : x + 3].mean(dim=(1, 2)) for x in (0, 3, 6, 9)] for y in (0, 3, 6)]
    assert torch.allclose(small, torch.stack([torch.stack(row, dim=1) for row in expected], dim=1))
    photo = write_photo(tmp_path / "a.png", torch.rand(1, 300, 700))
    assert photo.small.shape[1] * photo.small.shape[2] <= 1.1 * PREVIEW_PIXELS
    assert make_layer(photo.small, factor=photo.factor).region[2] >= 700


def test_shows_the_error_of_an_upload_that_cannot_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full, or the name is not valid."""
    errors: list[Exception] = []
    monkeypatch.setattr(controls, "show_error", errors.append)
    runner = SimpleNamespace(is_closed=False)
    session = cast("Session", SimpleNamespace(runner=runner, name_upload=lambda name: tmp_path / name))
    for name, error in (("a\0.png", ValueError), ("a" * 300, OSError)):
        upload = SmallFileUpload(name, "", b"")
        assert asyncio.run(controls.read_upload(session, upload, read_photo)) is None
        assert isinstance(errors[-1], error)


def test_rejects_addresses_that_cannot_be_used() -> None:
    with server._listen("127.0.0.1", 0) as taken, pytest.raises(InputError, match="cannot listen at"):
        server._listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(InputError, match=r"cannot listen at a+, port 0"):
        server._listen("a" * 70, 0)
