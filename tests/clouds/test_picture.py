"""Pictures of point clouds from above."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from PIL import Image

from permutohedral.clouds.picture import draw_from_above


def test_a_corridor_is_no_endless_picture(tmp_path: Path) -> None:
    """A power line from south to north: as wide as others, its picture would be hundreds of meters high."""
    line = torch.stack([torch.zeros(2000), torch.arange(2000) * 10.0, torch.ones(2000)], dim=1)
    draw_from_above(line, torch.zeros(2000, dtype=torch.int64), ["wire"], tmp_path / "above.png")
    with Image.open(tmp_path / "above.png") as picture:
        assert max(picture.size) < 4000
