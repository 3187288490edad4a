"""Integer tensors that many lattices share: made once for each device, so that small calls need not make them."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from permutohedral.ops.tracing import is_traced

# larger tensors are cheaper to recompute than to cache
_LARGEST = 1 << 21


def items_of_points(items: int, points: int, device: torch.device) -> Tensor:
    """The item of each point, `points` of every item one after another: int32 `[items * points]`. Do not write to it.

    >>> items_of_points(2, 3, torch.device("cpu")).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    if is_traced() or items * points > _LARGEST:
        return _make_items(items, points, device)
    return _known_items(items, points, device)


def row_numbers(rows: int, device: torch.device) -> Tensor:
    """0, 1, 2, ...: int32 `[1, rows]`. Do not write to it.

    >>> row_numbers(3, torch.device("cpu")).tolist()
    [[0, 1, 2]]
    """
    if is_traced() or rows > _LARGEST:
        return torch.arange(rows, dtype=torch.int32, device=device)[None]
    # the fastest of the ways to shorten it
    return _known_rows(max(1 << max(rows - 1, 0).bit_length(), 1024), device).as_strided((1, rows), (rows, 1))


def _make_items(items: int, points: int, device: torch.device) -> Tensor:
    return torch.arange(items, dtype=torch.int32, device=device).repeat_interleave(points)


@lru_cache(maxsize=8)
def _known_items(items: int, points: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return _settled(_make_items(items, points, device))


@lru_cache(maxsize=16)
def _known_rows(rows: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return _settled(torch.arange(rows, dtype=torch.int32, device=device)[None])


def _settled(tensor: Tensor) -> Tensor:
    """Wait until it is written: it will be read on other streams, too."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
    return tensor
