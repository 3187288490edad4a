"""MNIST, and interpolation of its digits."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from experiments.data.download import find_files, verify
from experiments.data.sample import draw_digits, is_sample
from permutohedral.errors import DataError, InputError

MnistSplit = Literal["train", "test"]

_MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)


# SHA-256 of the archive and of its content; copies are often compressed again, which changes the archive only
_FILES = {
    ("train", "images"): (
        "train-images-idx3-ubyte.gz",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    ("train", "labels"): (
        "train-labels-idx1-ubyte.gz",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    ("test", "images"): (
        "t10k-images-idx3-ubyte.gz",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    ("test", "labels"): (
        "t10k-labels-idx1-ubyte.gz",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}


def load_mnist(split: MnistSplit, folder: str | Path | None = None) -> tuple[Tensor, Tensor]:
    """Read images uint8 `[images, 28, 28]` and labels int64 `[images]`: 60,000 to train, 10,000 to test.

    Args:
        split: "train" or "test".
        folder: see `find_files`.

    Raises:
        DataError: a file is missing or damaged.
    """
    if split not in ("train", "test"):
        raise InputError(f"split must be 'train' or 'test', got {split!r}")
    if is_sample(folder):
        return draw_digits(6000, 0) if split == "train" else draw_digits(500, 1)
    parts = []
    for kind in ("images", "labels"):
        name, archive, content = _FILES[split, kind]
        [path] = find_files("mnist", {name: archive}, _MIRRORS, folder, check=False)
        try:
            unpacked = gzip.decompress(path.read_bytes())
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path} is damaged: {error}; delete it and fetch it again") from error
        parts.append(read_idx(verify(unpacked, content, path)))
    return parts[0], parts[1].long()


def read_idx(content: bytes) -> Tensor:
    """Decode an IDX file: two zeros, 8 for uint8, the number of axes, their sizes, the data.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])).tolist()
    [7, 8, 9]
    """
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise InputError(f"not an IDX file of bytes: it begins with {content[:4]!r}")
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    data = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * content[3])
    if data.size != np.prod(shape):
        raise InputError(f"an IDX file of shape {shape} holds {int(np.prod(shape))} bytes of data, got {data.size}")
    return torch.from_numpy(data.reshape(shape).copy())


def interpolate(images: Tensor, positions: Tensor) -> Tensor:
    """Interpolate `images [batch, height, width]` bilinearly at `positions [batch, samples, 2]`.

    >>> interpolate(torch.tensor([[[0.0, 1.0], [2.0, 3.0]]]), torch.tensor([[[0.5, 0.5], [1.0, 0.0]]])).tolist()
    [[1.5, 2.0]]
    """
    batch, height, width = images.shape
    corner = [
        positions[..., axis].floor().clamp(0, max(size - 2, 0)).long() for axis, size in enumerate((height, width))
    ]
    y, x = (positions[..., axis] - corner[axis] for axis in range(2))
    flat = images.reshape(batch, -1)

    def at(dy: int, dx: int) -> Tensor:
        row, column = (corner[0] + dy).clamp_max(height - 1), (corner[1] + dx).clamp_max(width - 1)
        return flat.gather(1, row * width + column)

    top = (1 - x) * at(0, 0) + x * at(0, 1)
    bottom = (1 - x) * at(1, 0) + x * at(1, 1)
    return (1 - y) * top + y * bottom
