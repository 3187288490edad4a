"""Uploads that are no photos get a sentence; layers hold the bytes of the file."""

from __future__ import annotations

import asyncio
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
import torch
from PIL import Image

from permutohedral.errors import InputError
from permutohedral.pictures.files import Picture
from permutohedral.playground import server, uploads
from permutohedral.playground.compute.filtering import check_guide
from permutohedral.playground.compute.layers import encode_png, make_layer
from permutohedral.playground.compute.photos import PREVIEW_PIXELS, make_photo, read_photo, shrink

if TYPE_CHECKING:
    from permutohedral.playground.session import Session


def huge_png() -> bytes:
    """A small file that claims 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def png(pixels: np.ndarray) -> bytes:
    picture = torch.from_numpy(pixels).permute(2, 0, 1) / 255
    return encode_png(Picture(picture[:3], picture[3:] if len(picture) == 4 else None))


RGB = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not a picture"),
        (b"#!/bin/sh\necho no\n", "not a picture"),
        (png(RGB)[:90], "cannot read|not a picture"),
        (huge_png(), "60,000 x 60,000 pixels, more than 24,000,000"),
    ],
    ids=["empty", "text", "cut off", "huge"],
)
def test_a_bad_upload_gets_a_sentence_with_the_users_name_of_it(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "17.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match=told) as caught:
        read_photo(path, "holiday.png")
    assert "holiday.png" in caught.value.message
    assert str(tmp_path) not in caught.value.message


def test_an_opaque_alpha_channel_is_no_transparency(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(np.dstack([RGB, np.full((9, 7), 255, np.uint8)])).save(path)
    photo = read_photo(path, "a.png")
    assert not photo.is_transparent
    assert photo.layer.planes == np.moveaxis(RGB, -1, 0).tobytes()
    assert (photo.layer.channels, photo.layer.height, photo.layer.width) == (3, 9, 7)


def test_a_transparent_photo_is_shown_on_white_and_its_small_one_has_no_hidden_colors() -> None:
    pixels, alpha = torch.full((3, 300, 400), 0.25), torch.full((1, 300, 400), 0.4)
    # a color that nobody sees, in half of the squares of two pixels
    pixels[:, ::2], alpha[:, ::2] = 0.9, 0.0
    photo = make_photo(Picture(pixels, alpha), "a.png")
    assert photo.is_transparent
    assert photo.factor == 2
    rows = np.frombuffer(photo.layer.planes, np.uint8).reshape(3, 300, 400)
    # 0.4 of 0.25 and 0.6 of white
    assert rows[0, :2, 0].tolist() == [255, round(255 * 0.7)]
    assert torch.allclose(photo.small, torch.tensor(0.25))
    assert photo.small_alpha is not None
    assert torch.allclose(photo.small_alpha, torch.tensor(0.2))


def test_a_guide_must_have_the_size_of_the_photo() -> None:
    photo, guide = (make_photo(Picture(torch.rand(3, 9, width)), f"{width}.png") for width in (7, 8))
    assert check_guide(photo, photo) is photo
    with pytest.raises(InputError, match=r"8\.png has 8 x 9 pixels and the photo 7 x 9"):
        check_guide(photo, guide)


def test_the_small_photo_has_the_means_of_squares() -> None:
    pixels = torch.rand(3, 7, 10)
    small = shrink(pixels, 3)
    expected = [[pixels[:, y : y + 3, x : x + 3].mean(dim=(1, 2)) for x in (0, 3, 6, 9)] for y in (0, 3, 6)]
    assert torch.allclose(small, torch.stack([torch.stack(row, dim=1) for row in expected], dim=1))
    photo = make_photo(Picture(torch.rand(1, 300, 700)), "a")
    assert photo.small.shape[1] * photo.small.shape[2] <= 1.1 * PREVIEW_PIXELS
    assert make_layer(photo.small, photo.factor).region[2] >= 700


def test_an_upload_that_cannot_be_kept_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, or a name that no file can have."""
    told: list[Exception] = []
    monkeypatch.setattr(uploads, "tell_error", told.append)
    session = SimpleNamespace(keep_upload=lambda name, content: Path("a\0.png").write_bytes(content))
    assert asyncio.run(uploads.photo_of_upload(cast("Session", session), "a.png", b"")) is None
    assert isinstance(told[0], ValueError)


def test_addresses_that_cannot_be_had_are_refused() -> None:
    with server._listen("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(InputError, match="cannot listen at"):
            server._listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(InputError, match="there is no address"):
        server._listen("a" * 70, 0)
