"""Tensors full of one number, and sums over the first axis: as launches, which can be recorded (`replay.py`)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.launch import cdiv, launch

_FILL_BLOCK = 2048
# rows that are summed at once, and columns of a program
_SUM_BLOCK, _SUM_COLUMNS = 64, 32


@triton.jit(do_not_specialize=["size"])
def fill_kernel(output, size, NUMBER: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    place = output + start + tl.arange(0, BLOCK)
    number = tl.full([BLOCK], NUMBER, output.dtype.element_ty)
    # a mask of any size would keep threads from storing several numbers at once
    if start + BLOCK <= size:
        tl.store(place, number)
    else:
        tl.store(place, number, mask=start + tl.arange(0, BLOCK) < size)


@triton.jit(do_not_specialize=["num_rows"])
def sum_kernel(values, output, num_rows, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr):
    """The sum of all rows of `values [num_rows, COLUMNS]`, always in the same order."""
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = column < COLUMNS
    total = tl.zeros([BLOCK, BLOCK_C], values.dtype.element_ty)
    for start in range(0, num_rows, BLOCK):
        row = start + tl.arange(0, BLOCK)
        place = values + row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
        total += tl.load(place, mask=(row < num_rows)[:, None] & known[None, :], other=0.0)
    tl.store(output + column, tl.sum(total, axis=0).to(output.dtype.element_ty), mask=known)


def filled(shape: tuple[int, ...], number: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor full of `number`."""
    output = torch.empty(shape, dtype=dtype, device=device)
    if output.numel():
        grid = (cdiv(output.numel(), _FILL_BLOCK),)
        launch(fill_kernel, grid, output, output.numel(), NUMBER=number, BLOCK=_FILL_BLOCK, num_warps=4)
    return output


def sum_into(output: Tensor, values: Tensor) -> None:
    """Sum `values [rows, ...]`, contiguous, over its rows."""
    columns = output.numel()
    launch(
        sum_kernel, (cdiv(columns, _SUM_COLUMNS),), values, output, values.shape[0], COLUMNS=columns, BLOCK=_SUM_BLOCK,
        BLOCK_C=_SUM_COLUMNS, num_warps=4,
    )  # fmt: skip
