"""Block shapes of the convolution and of its gradient: those that were fastest on an H200, smaller if they must be.

To tune them for another GPU, change a shape here and compare it with the last commit:

    python -m benchmarks compare HEAD --device cuda --only G2
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from triton.runtime.errors import OutOfResources

from permutohedral.ops.triton.kernel import power_of_two

Result = TypeVar("Result")
# fewer targets do not fill the GPU with the programs that four taps per program leave
_WORTH_FOUR_TAPS = 1 << 20


class Blocks(NamedTuple):
    """The shape of a tile, in the order of the kernels' constants; the convolution has no TAPS."""

    taps: int
    block_m: int
    block_k: int
    block_n: int
    num_warps: int
    num_stages: int


def convolution_blocks(precision: str, dtype: torch.dtype, in_channels: int, out_channels: int, targets: int) -> Blocks:
    """Return the shape for `convolve_kernel`; the channels are those of a group."""
    few = min(in_channels, out_channels) < 64
    block_n = min(power_of_two(out_channels, 16), 128)
    block_k = min(power_of_two(in_channels, 16), 32 if dtype == torch.float32 else 64)
    block_m = 64 if targets < 2**15 or (precision == "tf32x3" and not few) else 128
    return Blocks(1, block_m, block_k, block_n, 8 if block_n > 64 and block_m > 64 else 4, 5)


def gradient_blocks(precision: str, in_channels: int, out_channels: int, targets: int) -> Blocks:
    """Return the shape for `weight_gradient_kernel`; the channels are those of a group."""
    least, most = sorted((in_channels, out_channels))
    block_k, block_n = (min(power_of_two(each, 16), 64) for each in (in_channels, out_channels))
    if precision == "tf32x3":
        # with fewer warps the sums of a thread exceed its registers, and take a minute to compile
        warps = max(block_k * block_n // 1024, 1)
        if least < 64 <= most:
            return Blocks(2, 64, block_k, block_n, warps, 3)
        return Blocks(2, 32, block_k, block_n, warps, 1)
    if precision == "tf32":
        return Blocks(2, 128, block_k, block_n, 2, 2)
    if least >= 64:
        return Blocks(2, 64, block_k, block_n, 4, 3)
    taps = 4 if most < 64 and targets >= _WORTH_FOUR_TAPS else 2
    return Blocks(taps, 64, block_k, block_n, 2, 3)


def smaller(blocks: Blocks) -> Blocks | None:
    """Return blocks that need less shared memory, or None."""
    if blocks.num_stages > 1:
        return blocks._replace(num_stages=blocks.num_stages - 1)
    return blocks._replace(block_m=blocks.block_m // 2) if blocks.block_m > 16 else None


# blocks that fit, for kernels and devices that the table's do not fit
_SHRUNK: dict[tuple[object, ...], Blocks] = {}


def launch_fitting(key: tuple[object, ...], blocks: Blocks, launch: Callable[[Blocks], Result]) -> Result:
    """Launch with `blocks`, or with the largest smaller ones that fit the GPU; also while a graph is captured.

    Args:
        key: everything that the need for shared memory depends on: device, kernel, dtype and constants.
        blocks: from the table.
        launch: launches the kernel with the blocks it is given.
    """
    wanted = blocks
    blocks = _SHRUNK.get((key, wanted), wanted)
    while True:
        try:
            # Triton raises before it launches
            return launch(blocks)
        except OutOfResources:
            less = smaller(blocks)
            if less is None:
                raise
            blocks = _SHRUNK[key, wanted] = less
