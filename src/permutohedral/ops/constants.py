"""Integer tensors that many lattices share, cached for each device. Do not write to them."""

from __future__ import annotations

from collections.abc import Callable
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
    return _cached(_make_items, items, points, device)


def row_numbers(rows: int, device: torch.device) -> Tensor:
    """Return 0, 1, 2, ...: int32 `[1, rows]`.

    >>> row_numbers(3, torch.device("cpu")).tolist()
    [[0, 1, 2]]
    """
    if is_traced() or rows > _LARGEST:
        return _make_rows(rows, device)
    room = max(1 << max(rows - 1, 0).bit_length(), 1024)
    # the fastest of the ways to shorten it
    return _cached(_make_rows, room, device).as_strided((1, rows), (rows, 1))


def _make_items(items: int, points: int, device: torch.device) -> Tensor:
    return torch.arange(items, dtype=torch.int32, device=device).repeat_interleave(points)


def _make_rows(rows: int, device: torch.device) -> Tensor:
    return torch.arange(rows, dtype=torch.int32, device=device)[None]


@lru_cache(maxsize=24)
def _cached(make: Callable[..., Tensor], *arguments: int | torch.device) -> Tensor:
    with torch.inference_mode(False):
        tensor = make(*arguments)
    if tensor.is_cuda:
        # other streams will read it, too
        torch.cuda.current_stream(tensor.device).synchronize()
    return tensor
