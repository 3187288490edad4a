"""What torch would do on several threads, on the calling one: those of torch wait for each other without sleep."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# rows that are added one after another
_AT_ONCE = 512


def ones(points: int, dtype: torch.dtype) -> Tensor:
    """`[points, 1]` of float64, or else of float32.

    >>> ones(2, torch.float64).tolist()
    [[1.0], [1.0]]
    """
    return torch.from_numpy(np.ones((points, 1), np.float64 if dtype == torch.float64 else np.float32))


def sum_rows(rows: Tensor) -> Tensor:
    """Contiguous `[rows, channels]` to `[channels]`.

    >>> sum_rows(torch.ones(3000, 2)).tolist()
    [3000.0, 3000.0]
    """
    if rows.dtype not in (torch.float32, torch.float64):
        # unknown to NumPy
        return rows.sum(dim=0)
    array = rows.numpy()
    while (many := len(array) // _AT_ONCE) > 1:
        # long rows are added fast, and few of them with little rounding
        first = array[: many * _AT_ONCE].reshape(_AT_ONCE, -1).sum(axis=0)
        array = np.concatenate([first.reshape(many, -1), array[many * _AT_ONCE :]])
    return torch.from_numpy(array.sum(axis=0))
