"""Small data in place of every data set: `--data sample`, the default of `--smoke`.

Photographs are parts of those that come with scikit-image, everything else is drawn. Figures mean nothing.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

# in place of the folder of the data sets
SAMPLE = Path("sample")

_PICTURES = ("astronaut", "coffee", "rocket", "immunohistochemistry")
_HEIGHT, _WIDTH = 321, 481


def is_sample(folder: str | Path | None) -> bool:
    """Return whether the sample is to stand in for the data sets."""
    return folder is not None and Path(folder) == SAMPLE


@lru_cache(maxsize=2)
def draw_digits(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw digits of a font, turned, scaled and moved: uint8 `[number, 28, 28]`, and labels int64 `[number]`."""
    from PIL import Image, ImageDraw, ImageFont

    glyphs = []
    for digit in range(10):
        image = Image.new("L", (28, 28))
        ImageDraw.Draw(image).text((14, 14), str(digit), fill=255, font=ImageFont.load_default(22), anchor="mm")
        glyphs.append(torch.from_numpy(np.array(image)).float())
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (number,), generator=generator)
    turn, scale, shift = (torch.rand(number, size, generator=generator) - 0.5 for size in (1, 1, 2))
    turn, scale, shift = 0.5 * turn, 1.1 + 0.3 * scale, 0.3 * shift
    rows = torch.cat([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], dim=1).view(-1, 2, 2) * scale[:, :, None]
    grid = functional.affine_grid(torch.cat([rows, shift[:, :, None]], dim=2), [number, 1, 28, 28], align_corners=False)
    images = functional.grid_sample(torch.stack(glyphs)[labels, None], grid, align_corners=False)[:, 0]
    return images.round().clamp(0, 255).byte(), labels


def cut_photograph(name: str) -> NDArray[np.uint8]:
    """Cut a part out of one of the photographs of scikit-image, `[321, 481, 3]`; name and part always fit."""
    import skimage.data

    random = np.random.default_rng(zlib.crc32(name.encode()))
    picture = getattr(skimage.data, random.choice(_PICTURES))()
    top, left = (random.integers(have - need + 1) for have, need in zip(picture.shape, (_HEIGHT, _WIDTH), strict=False))
    part: NDArray[np.uint8] = picture[top : top + _HEIGHT, left : left + _WIDTH]
    return part[:, ::-1].copy() if random.random() < 0.5 else part


def draw_scene(name: str) -> tuple[Tensor, Tensor]:
    """Draw overlapping discs: colors float32 `[3, 96, 128]`, and a disparity `[1, 96, 128]` of each disc."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    y, x = torch.meshgrid(torch.arange(96.0), torch.arange(128.0), indexing="ij")
    color, disparity = torch.full((3, 96, 128), 0.5), (40 + 0.3 * y)[None]
    for center_y, center_x, radius, depth, *paint in torch.rand(12, 7, generator=generator).tolist():
        inside = (y - 96 * center_y).square() + (x - 128 * center_x).square() < (5 + 20 * radius) ** 2
        color = torch.where(inside, torch.tensor(paint)[:, None, None], color)
        disparity = torch.where(inside, 60 + 150 * depth, disparity)
    noise = 0.03 * torch.randn(color.shape, generator=generator)
    return (color + noise).clamp(0, 1), disparity


def draw_object(number: int, has_foreground: bool) -> dict[str, Any]:
    """Draw a disc before another color, with the masks of `experiments.data.grabcut.Photograph`."""
    generator = torch.Generator().manual_seed(number)
    y, x = torch.meshgrid(torch.arange(60.0), torch.arange(80.0), indexing="ij")
    distance = (y - 30).hypot(x - 40)
    truth = distance < 18
    paint = torch.where(truth[..., None], torch.tensor([200.0, 90.0, 60.0]), torch.tensor([60.0, 110.0, 150.0]))
    pixels = (paint + 25 * torch.randn(60, 80, 3, generator=generator)).clamp(0, 255).byte()
    foreground = (distance < 12) & has_foreground
    return {
        "name": f"disc{number}",
        "pixels": pixels,
        "background": distance > 26,
        "foreground": foreground,
        "unknown": (distance <= 26) & ~foreground,
        "truth": truth,
        "counted": (distance - 18).abs() > 0.7,
    }


def draw_town(seed: int, points: int = 6000, side: float = 80.0) -> tuple[Tensor, Tensor]:
    """Draw a slope with houses and trees: float32 `[points, 3]` in meters, and classes 0 (ground) to 2 (building)."""
    random = np.random.default_rng(seed)
    flat = random.uniform(-side / 2, side / 2, size=(points, 2))
    height, labels = 0.1 * flat[:, 0] + 0.02 * random.normal(size=points), np.zeros(points, dtype=np.int64)
    for corner in random.uniform(-side / 2, side / 2, size=(8, 2)):
        house = (np.abs(flat - corner) < 5).all(axis=1)
        tree = np.linalg.norm(flat - corner - 9, axis=1) < 4
        height[house] += 6
        height[tree] += random.uniform(2, 8, size=int(tree.sum()))
        labels[house], labels[tree] = 2, 1
    return torch.from_numpy(np.column_stack([flat, height])).float(), torch.from_numpy(labels)
