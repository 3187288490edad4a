"""Scenes of the Middlebury stereo sets: photographs, and disparities without holes.

D. Scharstein, R. Szeliski: A taxonomy and evaluation of dense two-frame stereo correspondence algorithms. IJCV 2002;
High-accuracy stereo depth maps using structured light. CVPR 2003. D. Scharstein, C. Pal: Learning conditional random
fields for stereo. CVPR 2007. They may be used for research, and are neither shipped nor downloaded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from permutohedral.data.download import DATA_VARIABLE
from permutohedral.errors import DataError

_LAYOUT = "color/NAME.png and disparity/NAME.png (gray, 8 bits, without holes)"


@dataclass(frozen=True)
class Scene:
    """A scene.

    Attributes:
        name: of its files.
        color: float32 `[3, height, width]`, white being 1.
        disparity: float32 `[1, height, width]`, from 0 to 255.
    """

    name: str
    color: Tensor
    disparity: Tensor


def load_scene(name: str, folder: str | Path | None = None) -> Scene:
    """Read a scene.

    Args:
        name: of its files.
        folder: holds the folder middlebury, or is it; default: `PERMUTOHEDRAL_DATA`.

    Raises:
        DataError: there is no folder, or a file is missing; says how the folder is laid out.
    """
    from PIL import Image, UnidentifiedImageError

    given = folder or os.environ.get(DATA_VARIABLE)
    if not given:
        raise DataError(
            "the Middlebury scenes are not downloaded, since they are for research only. Point --data or "
            f"{DATA_VARIABLE} to a folder that holds a folder middlebury with {_LAYOUT}"
        )
    root = Path(given).expanduser()
    root = root / "middlebury" if (root / "middlebury").is_dir() else root
    layers = []
    for kind, mode in (("color", "RGB"), ("disparity", "L")):
        path = root / kind / f"{name}.png"
        try:
            with Image.open(path) as image:
                layers.append(torch.from_numpy(np.array(image.convert(mode), dtype=np.float32)))
        except (UnidentifiedImageError, OSError) as error:
            raise DataError(f"cannot read {path}: {error}; the scenes are laid out as {_LAYOUT}") from error
    color, disparity = layers
    if color.shape[:2] != disparity.shape:
        raise DataError(f"photograph and disparity of {name} in {root} differ in size")
    return Scene(name, color.permute(2, 0, 1) / 255, disparity[None])
