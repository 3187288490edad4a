"""BSDS500: 500 photographs of natural scenes, split into train (200), val (100) and test (200).

Gray images are means over the channels. Noise is not clipped and depends on the name of an image and a seed only.
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

from experiments.data.download import find_files
from experiments.data.sample import cut_photograph, is_sample
from permutohedral.errors import DataError, InputError

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

NOISE_SIGMA = 25 / 255

# one commit of the mirror of the Berkeley Institute for Data Science
_MIRROR = "https://raw.githubusercontent.com/BIDS/BSDS500/a04b7c6c3a9f0ace74bf205c72a43d32e1c72722/BSDS500/data/images/"


@dataclass(frozen=True)
class GrayImage:
    """An image without noise.

    Attributes:
        name: such as `test/100007`.
        pixels: float32 `[height, width]` between 0 and 1.
    """

    name: str
    pixels: Tensor


@cache
def _manifest() -> dict[str, str]:
    text = resources.files("experiments.data").joinpath("bsds500.sha256").read_text()
    return {name: sha256 for sha256, name in (line.split() for line in text.splitlines())}


def image_names(split: Split) -> list[str]:
    """Return the names of a split, sorted by number.

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
    """Read the gray images of a split, or `limit` of them, evenly spread.

    Args:
        split: "train", "val" or "test".
        folder: see `find_files`.
        limit: number of images. Default: all.

    Raises:
        DataError: an image is missing or damaged.
    """
    pictures = _read(spread(image_names(split), limit), folder)
    # float64 sums, as in the published figures
    return [
        GrayImage(name, torch.from_numpy(pixels.mean(axis=2, dtype=np.float64) / 255).float())
        for name, pixels in pictures.items()
    ]


def load_colors(split: Split, folder: str | Path | None = None, limit: int | None = None) -> dict[str, Tensor]:
    """Read color images by name, float32 `[3, height, width]` between 0 and 1; see `load_images`.

    `limit` images are evenly spread over the names in alphabetical order, as in published comparisons.
    """
    pictures = _read(spread(sorted(image_names(split)), limit), folder)
    return {name: torch.from_numpy(pixels).permute(2, 0, 1).float() / 255 for name, pixels in pictures.items()}


def _read(names: Sequence[str], folder: str | Path | None) -> dict[str, NDArray[np.uint8]]:
    if is_sample(folder):
        return {name: cut_photograph(name) for name in names}
    registry = {f"{name}.jpg": _manifest()[f"{name}.jpg"] for name in names}
    paths = find_files("bsds500", registry, [_MIRROR], folder)
    return {name: read_pixels(path) for name, path in zip(names, paths, strict=True)}


def spread(names: Sequence[str], limit: int | None) -> list[str]:
    """Return `limit` of the names, evenly spread.

    >>> spread(["a", "b", "c", "d"], 2)
    ['a', 'c']
    """
    if limit is None or limit >= len(names):
        return list(names)
    if limit < 1:
        raise InputError(f"limit must be at least 1, got {limit}")
    return [names[i * len(names) // limit] for i in range(limit)]


def read_pixels(path: Path, mode: str = "RGB") -> NDArray[np.uint8]:
    """Read an image as `[height, width, 3]`, or `[height, width]` with mode "L".

    Raises:
        DataError: the file cannot be read.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return np.array(image.convert(mode))
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"cannot read the image {path}: {error}") from error


def add_noise(image: GrayImage, sigma: float = NOISE_SIGMA, seed: int = 0) -> Tensor:
    """Return the image plus noise N(0, sigma^2), float32 `[height, width]`, not clipped.

    >>> image = GrayImage("test/0", torch.zeros(300, 300))
    >>> abs(float(add_noise(image).std()) - NOISE_SIGMA) < 0.001
    True
    >>> torch.equal(add_noise(image), add_noise(image))
    True
    """
    generator = np.random.default_rng((seed, zlib.crc32(image.name.encode())))
    noise = torch.from_numpy(generator.standard_normal(tuple(image.pixels.shape)))
    return (image.pixels + sigma * noise).float()
