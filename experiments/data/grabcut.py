"""The GrabCut database: photographs with trimaps and the true foreground.

A. Blake, C. Rother, M. Brown, P. Perez, P. Torr: Interactive image segmentation using an adaptive GMMRF model. ECCV
2004. Its files are not served one by one, so they are not downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from experiments.data.bsds500 import read_pixels, spread
from experiments.data.download import find_folder
from experiments.data.sample import draw_object, is_sample
from permutohedral.errors import DataError, InputError

TrimapKind = Literal["lasso", "rect"]
TRIMAP_KINDS: tuple[TrimapKind, ...] = get_args(TrimapKind)

_OUTSIDE, _BACKGROUND, _UNKNOWN, _FOREGROUND = 0, 64, 128, 255

_LAYOUT = (
    "images/NAME.jpg (or .png), lasso/NAME.png, rect/NAME.png (0 outside, 64 background, 128 unknown, 255 foreground) "
    "and truth/NAME.png (0, 128 mixed, 255)"
)


@dataclass(frozen=True)
class Photograph:
    """A photograph with its trimap.

    Attributes:
        name: of its files.
        pixels: uint8 `[height, width, 3]`.
        background: bool `[height, width]`: known, and near enough to learn the colors from.
        foreground: bool `[height, width]`: known; empty with a rectangle.
        unknown: bool `[height, width]`. Pixels in no mask are background, too.
        truth: bool `[height, width]`: the foreground.
        counted: bool `[height, width]`: false where foreground and background mix in a pixel.
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

    Photographs whose trimap marks no background are left out: one rectangle is the whole image.

    Args:
        trimap: "lasso" or "rect".
        folder: holds the folder grabcut, or is it. Default: `PERMUTOHEDRAL_DATA`.
        limit: number of photographs. Default: all.

    Raises:
        DataError: a file is missing or damaged.
    """
    if trimap not in TRIMAP_KINDS:
        raise InputError(f"trimap must be one of {', '.join(map(repr, TRIMAP_KINDS))}, got {trimap!r}")
    if is_sample(folder):
        return [Photograph(**draw_object(number, trimap == "lasso")) for number in range(limit or 4)]
    root = find_folder("grabcut", folder, _LAYOUT)
    paths = {path.stem: path for path in sorted((root / "images").glob("*")) if path.suffix in (".jpg", ".png")}
    if not paths:
        raise DataError(f"there are no photographs in {root / 'images'}; the folder holds {_LAYOUT}")
    found = [_read(name, paths[name], root, trimap) for name in spread(sorted(paths), limit)]
    return [photo for photo in found if bool(photo.background.any())]


def _read(name: str, path: Path, root: Path, trimap: TrimapKind) -> Photograph:
    pixels = read_pixels(path)
    marks, truth = (read_pixels(root / kind / f"{name}.png", "L") for kind in (trimap, "truth"))
    if marks.shape != pixels.shape[:2] or truth.shape != pixels.shape[:2]:
        raise DataError(f"photograph, trimap and truth of {name} in {root} differ in size")
    unknown = {*np.unique(marks)} - {_OUTSIDE, _BACKGROUND, _UNKNOWN, _FOREGROUND}
    if unknown:
        raise DataError(f"{root / trimap / name}.png holds {sorted(map(int, unknown))}; the database has {_LAYOUT}")
    masks = (marks == _BACKGROUND, marks == _FOREGROUND, marks == _UNKNOWN, truth == _FOREGROUND, truth != _UNKNOWN)
    return Photograph(name, torch.from_numpy(pixels), *map(torch.from_numpy, masks))
