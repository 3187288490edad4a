"""The GrabCut database: 50 photographs with trimaps, drawn with a lasso or as a rectangle, and the true foreground.

A. Blake, C. Rother, M. Brown, P. Perez, P. Torr: Interactive image segmentation using an adaptive GMMRF model. ECCV
2004.
It is not downloaded: nobody serves these files one by one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.data.bsds500 import spread
from permutohedral.data.download import DATA_VARIABLE
from permutohedral.errors import DataError, InputError

TrimapKind = Literal["lasso", "rect"]
TRIMAP_KINDS: tuple[TrimapKind, ...] = get_args(TrimapKind)

# what the numbers in the files mean
_OUTSIDE, _BACKGROUND, _UNKNOWN, _FOREGROUND = 0, 64, 128, 255

_LAYOUT = (
    "images/NAME.jpg (or .png), lasso/NAME.png, rect/NAME.png (0 outside, 64 background, 128 unknown, 255 foreground) "
    "and truth/NAME.png (0, 128 mixed, 255)"
)


@dataclass(frozen=True)
class Photograph:
    """A picture to be cut out.

    Attributes:
        name: of its files.
        pixels: uint8 `[height, width, 3]`.
        background: bool `[height, width]`: known, near enough to learn the colors from.
        foreground: bool `[height, width]`: known; nowhere with a rectangle.
        unknown: bool `[height, width]`: what is to be decided. All that is none of these is background, too.
        truth: bool `[height, width]`: the foreground.
        counted: bool `[height, width]`: false where foreground and background are mixed in a pixel.
    """

    name: str
    pixels: Tensor
    background: Tensor
    foreground: Tensor
    unknown: Tensor
    truth: Tensor
    counted: Tensor


def load_photographs(
    trimap: TrimapKind, folder: str | Path | None = None, limit: int | None = None
) -> list[Photograph]:
    """Read the photographs with one kind of trimap, or `limit` of them, evenly spread, by name.

    A photograph whose trimap marks no background is left out: one rectangle is the whole picture.

    Args:
        trimap: "lasso" or "rect".
        folder: holds the folder grabcut, or is it; default: `PERMUTOHEDRAL_DATA`.
        limit: number of photographs; default: all.

    Raises:
        DataError: there is no folder, or a file is missing; says how the folder is laid out.
    """
    if trimap not in TRIMAP_KINDS:
        raise InputError(f"trimap must be one of {', '.join(map(repr, TRIMAP_KINDS))}, got {trimap!r}")
    root = _find_folder(folder)
    paths = {path.stem: path for path in sorted((root / "images").iterdir()) if path.suffix in (".jpg", ".png")}
    if not paths:
        raise DataError(f"there are no photographs in {root / 'images'}; the folder holds {_LAYOUT}")
    found = [_read(name, paths[name], root, trimap) for name in spread(sorted(paths), limit)]
    return [photo for photo in found if bool(photo.background.any())]


def _find_folder(folder: str | Path | None) -> Path:
    given = folder or os.environ.get(DATA_VARIABLE)
    if not given:
        raise DataError(
            "the GrabCut database is not downloaded, since nobody serves its files one by one. Point --data or "
            f"{DATA_VARIABLE} to a folder that holds a folder grabcut with {_LAYOUT}"
        )
    root = Path(given).expanduser()
    root = root / "grabcut" if (root / "grabcut").is_dir() else root
    if not (root / "images").is_dir():
        raise DataError(f"{root} has no folder images; the GrabCut database is laid out as {_LAYOUT}")
    return root


def _read(name: str, path: Path, root: Path, trimap: TrimapKind) -> Photograph:
    pixels = _numbers(path, "RGB")
    marks, truth = (_numbers(root / kind / f"{name}.png", "L") for kind in (trimap, "truth"))
    if marks.shape != pixels.shape[:2] or truth.shape != pixels.shape[:2]:
        raise DataError(f"photograph, trimap and truth of {name} in {root} differ in size")
    unknown = {*np.unique(marks)} - {_OUTSIDE, _BACKGROUND, _UNKNOWN, _FOREGROUND}
    if unknown:
        raise DataError(f"{root / trimap / name}.png holds {sorted(map(int, unknown))}; the database has {_LAYOUT}")
    masks = (marks == _BACKGROUND, marks == _FOREGROUND, marks == _UNKNOWN, truth == _FOREGROUND, truth != _UNKNOWN)
    return Photograph(name, torch.from_numpy(pixels.copy()), *map(torch.from_numpy, masks))


def _numbers(path: Path, mode: str) -> NDArray[Any]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert(mode))
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"cannot read {path}: {error}; the GrabCut database is laid out as {_LAYOUT}") from error
