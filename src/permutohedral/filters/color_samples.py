"""Some of the colors of pictures, from which is found out how they are filtered."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def sample_colors(guide: Tensor, most: int) -> NDArray[np.float64]:
    """`[colors, guide channels]`, of pixels all over all of the pictures.

    Args:
        guide: `[items, guide channels, height, width]`.
        most: how many are taken at most; of fewer pixels all.

    >>> sample_colors(torch.ones(1, 2, 3, 4), 100).shape
    (12, 2)
    """
    items, channels, height, width = guide.shape
    plane = height * width
    if items * plane == 0:
        return np.zeros((0, channels))
    taken = guide.detach().take(_places(min(most, items * plane), items, channels, plane).to(guide.device))
    colors: NDArray[np.float64] = taken.cpu().double().numpy()
    return colors


@lru_cache(maxsize=4)
def _places(count: int, items: int, channels: int, plane: int) -> Tensor:
    """`[count, channels]`: places at random, one in each of equal parts, against patterns in the picture."""
    pixels = items * plane
    drawn = (np.arange(count) + np.random.default_rng(0).random(count)) * (pixels / count)
    places = drawn.astype(np.int64).clip(max=pixels - 1)
    first = places // plane * (channels * plane) + places % plane
    return torch.from_numpy(first[:, None] + plane * np.arange(channels))
