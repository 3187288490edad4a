"""Which block shape the convolution uses: a heuristic, refined by a short search on the device that is remembered."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from permutohedral.ops.triton.launch import interpreted, power_of_two

Blocks = dict[str, int]

# below this many multiply-adds a search would cost more than it can ever save
_WORTH_SEARCHING = 2**31
_REPEATS = 5
_cache: dict[tuple[object, ...], Blocks] = {}


@dataclass(frozen=True)
class Shape:
    """What the best block shape depends on."""

    kernel: str
    precision: str
    dtype: torch.dtype
    in_channels: int
    out_channels: int
    targets: int

    def key(self, device: torch.device) -> tuple[object, ...]:
        size = self.targets.bit_length()
        return device, self.kernel, self.precision, self.dtype, self.in_channels, self.out_channels, size


def best_blocks(shape: Shape) -> Blocks:
    """The heuristic."""
    element = torch.finfo(shape.dtype).bits // 8
    block_n = min(power_of_two(shape.out_channels, 16), 64 if shape.kernel == "gradient" else 128)
    block_k = min(power_of_two(shape.in_channels, 16), 64 if element < 4 or shape.kernel == "gradient" else 32)
    if shape.kernel == "gradient":
        return {"BLOCK_M": 64, "BLOCK_K": block_k, "BLOCK_N": block_n, "num_warps": 4, "num_stages": 3}
    block_m = 64 if block_n > 64 or shape.targets < 2**15 else 128
    return {"BLOCK_M": block_m, "BLOCK_K": block_k, "BLOCK_N": block_n, "num_warps": 4, "num_stages": 4}


def candidates(shape: Shape) -> list[Blocks]:
    """The heuristic's choice first, then its neighbors."""
    first = best_blocks(shape)
    others = [{"BLOCK_M": 64}, {"BLOCK_M": 256, "num_warps": 8}, {"num_stages": 3}, {"num_stages": 6}]
    return [first, *({**first, **change} for change in others)]


def _may_search(shape: Shape) -> bool:
    work = shape.targets * shape.in_channels * shape.out_channels
    if interpreted() or work < _WORTH_SEARCHING or os.environ.get("PERMUTOHEDRAL_AUTOTUNE", "1") == "0":
        return False
    return not torch.cuda.is_current_stream_capturing()


def _time(launch: Callable[[Blocks], None], blocks: Blocks) -> float:
    """Milliseconds of one launch, the best of a few; infinite where the device cannot run it."""
    from triton.runtime.errors import OutOfResources

    try:
        launch(blocks)
    except OutOfResources:
        return float("inf")
    best = float("inf")
    for _ in range(_REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        launch(blocks)
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end))
    return best


def run_blocks(shape: Shape, launch: Callable[[Blocks], None], device: torch.device) -> None:
    """Launch with the best known block shape; the first time a large shape is met, find it."""
    key = shape.key(device)
    blocks = _cache.get(key)
    if blocks is None:
        blocks = best_blocks(shape)
        if _may_search(shape):
            blocks = min(candidates(shape), key=lambda choice: _time(launch, choice))
            _cache[key] = blocks
    launch(blocks)
