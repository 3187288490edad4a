"""Which block shape the convolution uses: what is likely best, refined by a short search on the device.

The search runs once per process, device and shape; `PERMUTOHEDRAL_AUTOTUNE=0` and torch's deterministic mode leave it
out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from triton.runtime.errors import OutOfResources

from permutohedral.ops.triton.runtime import INTERPRETED, Bound, bind, power_of_two

Blocks = dict[str, int]

# below this many multiply-adds a search would cost more than it can ever save
_WORTH_SEARCHING = 2**31
# four taps at once leave half as many programs, which fewer targets do not fill
_WORTH_FOUR_TAPS = 1 << 20
_REPEATS = 10
# in turn, so that a GPU that slows down meanwhile slows all of them
_ROUNDS = 3


class Tuned(NamedTuple):
    """A kernel with all its constants, the block shape among them."""

    bound: Bound
    blocks: Blocks


class Shape(NamedTuple):
    """What the best block shape depends on, besides the device."""

    kernel: str
    precision: str
    dtype: torch.dtype
    in_channels: int
    out_channels: int
    targets: int


def likely_blocks(shape: Shape) -> Blocks:
    """What was best on an H200."""
    if shape.kernel == "gradient":
        return _likely_of_gradient(shape)
    few = min(shape.in_channels, shape.out_channels) < 64
    block_n = min(power_of_two(shape.out_channels, 16), 128)
    block_k = min(power_of_two(shape.in_channels, 16), 32 if shape.dtype == torch.float32 else 64)
    block_m = 64 if shape.targets < 2**15 or (shape.precision == "tf32x3" and not few) else 128
    warps = 8 if block_n > 64 and block_m > 64 else 4
    return {"BLOCK_M": block_m, "BLOCK_K": block_k, "BLOCK_N": block_n, "num_warps": warps, "num_stages": 5}


def _likely_of_gradient(shape: Shape) -> Blocks:
    least, most = sorted((shape.in_channels, shape.out_channels))
    block_k, block_n = (min(power_of_two(each, 16), 64) for each in (shape.in_channels, shape.out_channels))
    if shape.precision == "tf32x3":
        taps, block_m, stages = (2, 64, 3) if least < 64 <= most else (2, 32, 1)
        # more sums a thread do not fit into its registers, and take a minute to compile
        warps = max(block_k * block_n // 1024, 1)
    elif shape.precision == "tf32":
        taps, block_m, warps, stages = 2, 128, 2, 2
    else:
        few = (4, 64, 2, 3) if most < 64 and shape.targets >= _WORTH_FOUR_TAPS else (2, 64, 2, 3)
        taps, block_m, warps, stages = few if least < 64 else (2, 64, 4, 3)
    tiles = {"TAPS": taps, "BLOCK_M": block_m, "BLOCK_K": block_k, "BLOCK_N": block_n}
    return {**tiles, "num_warps": warps, "num_stages": stages}


def candidates(shape: Shape) -> list[Blocks]:
    """The likely choice, then its neighbors: few, since each is compiled."""
    likely = likely_blocks(shape)
    other_height = {**likely, "BLOCK_M": 64 if likely["BLOCK_M"] == 128 else 128}
    if shape.kernel == "gradient":
        return [likely, other_height]
    return [likely, other_height, {**likely, "num_stages": 3}]


def smaller(blocks: Blocks) -> Blocks | None:
    """Blocks that need less shared memory, for a GPU that has less."""
    if blocks["num_stages"] > 1:
        return {**blocks, "num_stages": blocks["num_stages"] - 1}
    return {**blocks, "BLOCK_M": blocks["BLOCK_M"] // 2} if blocks["BLOCK_M"] > 16 else None


def _may_search(shape: Shape) -> bool:
    work = shape.targets * shape.in_channels * shape.out_channels
    if INTERPRETED or work < _WORTH_SEARCHING or os.environ.get("PERMUTOHEDRAL_AUTOTUNE", "1") == "0":
        return False
    # what was fastest in one process need not be so in another, and other blocks add in another order
    return not torch.are_deterministic_algorithms_enabled()


def _fit(launch: Callable[[Blocks], None], blocks: Blocks) -> Blocks:
    """Launch with `blocks`, or with the largest smaller ones that the GPU has room for; those that ran."""
    while True:
        try:
            launch(blocks)
        except OutOfResources:
            less = smaller(blocks)
            if less is None:
                raise
            blocks = less
        else:
            return blocks


def _time(launch: Callable[[Blocks], None], blocks: Blocks) -> float:
    """Milliseconds of a few launches in a row, which the host prepares faster than the GPU runs them."""
    blocks = _fit(launch, blocks)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(_REPEATS):
        launch(blocks)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def _search(choices: list[Blocks], launch: Callable[[Blocks], None]) -> Blocks:
    """The choice that was fastest in one of several rounds."""
    fastest = [float("inf")] * len(choices)
    for _ in range(_ROUNDS):
        fastest = [min(before, _time(launch, each)) for before, each in zip(fastest, choices, strict=True)]
    return choices[fastest.index(min(fastest))]


def may_keep() -> bool:
    """Whether what is chosen may serve later calls: not while a CUDA graph is captured, which rules a search out."""
    return not INTERPRETED and not torch.cuda.is_current_stream_capturing()


def choose(shape: Shape, kernel: Any, constants: dict[str, Any], start: Callable[[Tuned], object]) -> Tuned:
    """The kernel with the best known block shape; for large shapes that is searched for.

    It depends on the constants, the dtype, the number of targets as a power of two, the device, and whether torch's
    mode is deterministic.

    Args:
        shape: what block shapes depend on.
        kernel: from `triton.jit`.
        constants: all but the block shape.
        start: starts it, with blocks that may not fit the GPU.
    """

    def bound_to(blocks: Blocks) -> Tuned:
        return Tuned(bind(kernel, **constants, **blocks), blocks)

    def launch(blocks: Blocks) -> None:
        start(bound_to(blocks))

    if not may_keep():
        return bound_to(likely_blocks(shape))
    blocks = _search(candidates(shape), launch) if _may_search(shape) else likely_blocks(shape)
    return bound_to(_fit(launch, blocks))
