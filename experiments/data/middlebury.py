"""Scenes of the Middlebury stereo data sets: photographs, and disparities without holes.

D. Scharstein, R. Szeliski: A taxonomy and evaluation of dense two-frame stereo correspondence algorithms. IJCV 2002;
High-accuracy stereo depth maps using structured light. CVPR 2003. D. Scharstein, C. Pal: Learning conditional random
fields for stereo. CVPR 2007. They may be used for research, and are neither shipped nor downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from experiments.data.bsds500 import read_pixels
from experiments.data.download import find_folder
from experiments.data.sample import draw_scene, is_sample
from permutohedral.errors import DataError

_LAYOUT = "color/NAME.png and disparity/NAME.png (gray, 8 bits, without holes)"


@dataclass(frozen=True)
class Scene:
    """A photograph with its disparities.

    Attributes:
        name: of its files.
        color: float32 `[3, height, width]` between 0 and 1.
        disparity: float32 `[1, height, width]` between 0 and 255.
    """

    name: str
    color: Tensor
    disparity: Tensor


def load_scene(name: str, folder: str | Path | None = None) -> Scene:
    """Read a scene.

    Args:
        name: of its files.
        folder: holds the folder middlebury, or is it. Default: `PERMUTOHEDRAL_DATA`.

    Raises:
        DataError: a file is missing or the sizes differ.
    """
    if is_sample(folder):
        return Scene(name, *draw_scene(name))
    root = find_folder("middlebury", folder, _LAYOUT)
    color = torch.from_numpy(read_pixels(root / "color" / f"{name}.png")).float()
    disparity = torch.from_numpy(read_pixels(root / "disparity" / f"{name}.png", "L")).float()
    if color.shape[:2] != disparity.shape:
        raise DataError(f"photograph and disparity of {name} in {root} differ in size")
    return Scene(name, color.permute(2, 0, 1) / 255, disparity[None])
