"""Scenes of Middlebury: layout and ranges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.data.middlebury import load_scene
from permutohedral.errors import DataError


def write(folder: Path, height: int = 3) -> None:
    for kind in ("color", "disparity"):
        (folder / kind).mkdir(parents=True)
    Image.fromarray(np.full((3, 4, 3), 255, np.uint8)).save(folder / "color" / "art.png")
    Image.fromarray(np.full((height, 4), 200, np.uint8)).save(folder / "disparity" / "art.png")


def test_scenes_are_read(tmp_path: Path) -> None:
    write(tmp_path / "middlebury")
    for folder in (tmp_path, tmp_path / "middlebury"):
        scene = load_scene("art", folder)
        assert (scene.color.shape, scene.disparity.shape) == ((3, 3, 4), (1, 3, 4))
        assert (float(scene.color.max()), float(scene.disparity.max())) == (1.0, 200.0)


def test_sizes_must_agree(tmp_path: Path) -> None:
    write(tmp_path, height=2)
    with pytest.raises(DataError, match="differ in size"):
        load_scene("art", tmp_path)
