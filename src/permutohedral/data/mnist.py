"""MNIST, and samples of its digits at random continuous positions."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from permutohedral.data.download import RemoteFile, checksum, damaged, find_files
from permutohedral.errors import InputError

MnistSplit = Literal["train", "test"]

_MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)


@dataclass(frozen=True)
class _IdxFile:
    """One of the four files: checksums of the published archive and of what it holds.

    Copies are often compressed anew, which changes the first and never the second.
    """

    name: str
    archive_sha256: str
    content_sha256: str


_FILES = {
    ("train", "images"): _IdxFile(
        "train-images-idx3-ubyte.gz",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    ("train", "labels"): _IdxFile(
        "train-labels-idx1-ubyte.gz",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    ("test", "images"): _IdxFile(
        "t10k-images-idx3-ubyte.gz",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    ("test", "labels"): _IdxFile(
        "t10k-labels-idx1-ubyte.gz",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}


def load_mnist(split: MnistSplit, folder: str | Path | None = None) -> tuple[Tensor, Tensor]:
    """Images uint8 `[images, 28, 28]` and labels int64 `[images]`; 60,000 to train with and 10,000 to test with.

    Args:
        split: "train" or "test".
        folder: see `find_files`; default: `PERMUTOHEDRAL_DATA`, else downloaded.

    Raises:
        DataError: a file is missing or damaged.
    """
    if split not in ("train", "test"):
        raise InputError(f"split must be 'train' or 'test', got {split!r}")
    images, labels = (_load(_FILES[split, kind], folder) for kind in ("images", "labels"))
    return images, labels.long()


def _load(file: _IdxFile, folder: str | Path | None) -> Tensor:
    remote = RemoteFile(file.name, file.archive_sha256, tuple(mirror + file.name for mirror in _MIRRORS))
    [path] = find_files("mnist", [remote], folder, check=False)
    try:
        content = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise damaged(path) from error
    if checksum(content) != file.content_sha256:
        raise damaged(path)
    return read_idx(content)


def read_idx(content: bytes) -> Tensor:
    """Decode an IDX file of bytes: two zeros, 8 for uint8, the number of axes, their sizes, the data.

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


@dataclass(frozen=True)
class RandomSamples:
    """Samples images at random continuous positions instead of at pixels.

    The positions are uniform over the image, between the centers of its outermost pixels; values are interpolated
    bilinearly. The positions of an image depend on the seed, its number and the epoch alone, never on the batch.

    Attributes:
        share: samples over pixels, such as 0.6.
        seed: of the positions.

    >>> positions, values = RandomSamples(share=0.2)(torch.rand(4, 28, 28), indices=[0, 1, 2, 3])
    >>> positions.shape, values.shape
    (torch.Size([4, 157, 2]), torch.Size([4, 157, 1]))
    """

    share: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.share > 0:
            raise InputError(f"share must be positive, got {self.share}")

    def __call__(self, images: Tensor, indices: Sequence[int], epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Sample a batch.

        Args:
            images: float `[batch, height, width]`.
            indices: number of each image in its dataset.
            epoch: pass another one to draw fresh positions.

        Returns:
            positions: like images `[batch, samples, 2]`, (y, x) in pixels.
            values: like images `[batch, samples, 1]`.
        """
        height, width = images.shape[1:]
        if len(indices) != images.shape[0]:
            raise InputError(f"indices must number each of the {images.shape[0]} images, got {len(indices)}")
        samples = max(1, round(self.share * height * width))
        drawn = [np.random.default_rng((self.seed, epoch, int(index))).random((samples, 2)) for index in indices]
        extent = torch.tensor([height - 1, width - 1], dtype=images.dtype, device=images.device)
        unit = torch.from_numpy(np.stack(drawn)).to(images) if drawn else images.new_zeros(0, samples, 2)
        positions = unit * extent
        return positions, interpolate(images, positions)[..., None]


def interpolate(images: Tensor, positions: Tensor) -> Tensor:
    """Bilinear interpolation of `images [batch, height, width]` at `positions [batch, samples, 2]`, (y, x) in pixels.

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
