"""Integer tensors that many lattices share, cached for each device. Do not write to them."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from permutohedral.ops.tracing import is_traced

# larger tensors are cheaper to recompute than to cache
_LARGEST = 1 << 21


def items_of_points(items: int, points: int, device: torch.device) -> Tensor:
    """Return the item of each point, `points` of each item in sequence: int32 `[items * points]`.

    >>> items_of_points(2, 3, torch.device("cpu")).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    if is_traced() or items * points > _LARGEST:
        return _make_items(items, points, device)
    return _cached_items(items, points, device)


def _make_items(items: int, points: int, device: torch.device) -> Tensor:
    return torch.arange(items, dtype=torch.int32, device=device).repeat_interleave(points)


@lru_cache(maxsize=24)
def _cached_items(items: int, points: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        tensor = _make_items(items, points, device)
    if tensor.is_cuda:
        # other streams will read it, too
        torch.cuda.current_stream(tensor.device).synchronize()
    return tensor
