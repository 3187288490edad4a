"""BSDS500: 500 photographs of natural scenes, split into train (200), val (100) and test (200).

For denoising they are made gray by the mean over the channels, and noise N(0, sigma^2) is added, not clipped.
The noise of a picture depends on its name and a seed alone, so every method sees the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.data.download import RemoteFile, find_files
from permutohedral.errors import DataError, InputError

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

NOISE_SIGMA = 25 / 255

# the unmodified pictures, at one commit of the mirror that the Berkeley Institute for Data Science keeps
_MIRROR = "https://raw.githubusercontent.com/BIDS/BSDS500/a04b7c6c3a9f0ace74bf205c72a43d32e1c72722/BSDS500/data/images"


@dataclass(frozen=True)
class GrayImage:
    """A picture without noise.

    Attributes:
        name: such as `test/100007`.
        pixels: float32 `[height, width]` between 0 and 1.
    """

    name: str
    pixels: Tensor


@cache
def _manifest() -> dict[str, str]:
    text = resources.files("permutohedral.data").joinpath("bsds500.sha256").read_text()
    return {name: sha256 for sha256, name in (line.split() for line in text.splitlines())}


def image_names(split: Split) -> list[str]:
    """The pictures of a split, sorted by number.

    >>> [len(image_names(split)) for split in SPLITS]
    [200, 100, 200]
    >>> image_names("test")[0]
    'test/2018'
    """
    if split not in SPLITS:
        raise InputError(f"split must be one of {', '.join(map(repr, SPLITS))}, got {split!r}")
    names = [Path(name).with_suffix("").as_posix() for name in _manifest() if name.startswith(split + "/")]
    return sorted(names, key=lambda name: int(name.partition("/")[2]))


def load_images(split: Split, folder: str | Path | None = None, limit: int | None = None) -> list[GrayImage]:
    """Read the gray pictures of a split, or `limit` of them, evenly spread.

    Args:
        split: "train", "val" or "test".
        folder: see `find_files`; default: `PERMUTOHEDRAL_DATA`, else downloaded.
        limit: number of pictures; default: all.

    Raises:
        DataError: a picture is missing or damaged.
    """
    return [GrayImage(name, read_gray(path)) for name, path in _find_paths(spread(image_names(split), limit), folder)]


def load_colors(split: Split, folder: str | Path | None = None, limit: int | None = None) -> dict[str, Tensor]:
    """The pictures of a split in color, float32 `[3, height, width]`, white being 1, by name; see `load_images`.

    A part of them is evenly spread among the names in alphabetical order, as others choose theirs.
    """
    paths = _find_paths(spread(sorted(image_names(split)), limit), folder)
    return {name: torch.from_numpy(_read_pixels(path)).permute(2, 0, 1).float() / 255 for name, path in paths}


def _find_paths(names: Sequence[str], folder: str | Path | None) -> list[tuple[str, Path]]:
    files = [RemoteFile(f"{name}.jpg", _manifest()[f"{name}.jpg"], (f"{_MIRROR}/{name}.jpg",)) for name in names]
    return list(zip(names, find_files("bsds500", files, folder), strict=True))


def spread(names: Sequence[str], limit: int | None) -> list[str]:
    """`limit` of the names, evenly spread.

    >>> spread(["a", "b", "c", "d"], 2)
    ['a', 'c']
    """
    if limit is None or limit >= len(names):
        return list(names)
    if limit < 1:
        raise InputError(f"limit must be at least 1, got {limit}")
    return [names[i * len(names) // limit] for i in range(limit)]


def read_gray(path: Path) -> Tensor:
    """A picture as float32 `[height, width]`: the mean over its channels, white being 1."""
    return torch.from_numpy(_read_pixels(path).mean(axis=2, dtype=np.float64) / 255).float()


def _read_pixels(path: Path) -> NDArray[np.uint8]:
    """RGB, `[height, width, 3]`."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return np.array(image.convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def add_noise(image: GrayImage, sigma: float = NOISE_SIGMA, seed: int = 0) -> Tensor:
    """The picture with noise N(0, sigma^2), float32 `[height, width]`, not clipped.

    >>> image = GrayImage("test/0", torch.zeros(300, 300))
    >>> abs(float(add_noise(image).std()) - NOISE_SIGMA) < 0.001
    True
    >>> torch.equal(add_noise(image), add_noise(image))
    True
    """
    generator = np.random.default_rng((seed, zlib.crc32(image.name.encode())))
    noise = torch.from_numpy(generator.standard_normal(tuple(image.pixels.shape)))
    return (image.pixels + sigma * noise).float()
