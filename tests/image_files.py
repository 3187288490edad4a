"""Helpers for tests on image files. Other libraries read and write 16 bits."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import tifffile
from typer.testing import CliRunner

from permutohedral.apps.cli.application import application


def invoke(command: str, *arguments: object, stdin: bytes | None = None) -> Any:
    """Run `permutohedral image COMMAND ...`, or `permutohedral map COMMAND ...`."""
    group = "map" if command in ("upsample", "solve", "fill") else "image"
    return CliRunner().invoke(application, [group, command, *map(str, arguments)], input=stdin)


def assert_one_line_error(result: Any, *words: str) -> None:
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def write_integers(path: Path, integers: np.ndarray[Any, Any], **options: Any) -> Path:
    """Write `[height, width, channels]` of 16 bits as PNG or TIFF, with options of tifffile."""
    channels = integers.shape[2]
    if path.suffix == ".png":
        path.write_bytes(imagecodecs.png_encode(integers))
        return path
    options.setdefault("photometric", "rgb" if channels > 2 else "minisblack")
    if channels in (2, 4):
        options.setdefault("extrasamples", ["unassalpha"])
    tifffile.imwrite(path, integers, **options)
    return path


def read_integers(path: Path) -> np.ndarray[Any, Any]:
    """Read `[height, width, channels]` of PNG or TIFF."""
    content: np.ndarray[Any, Any] = (
        imagecodecs.png_decode(path.read_bytes()) if path.suffix == ".png" else tifffile.imread(path)
    )
    return content


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_of_claimed_size(width: int, height: int) -> bytes:
    """Return a small PNG file that claims any size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1000)
    parts = (b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(kind, content) for kind, content in parts)
