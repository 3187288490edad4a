"""Memory full of zeros, cleared by a kernel that is started like the others, without torch's dispatcher."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.runtime import Launch, bind, cdiv

_BLOCK = 4096


@triton.jit
def fill_block(elements, first, number, CONTENT: tl.constexpr, BLOCK: tl.constexpr):
    """The same number from the element `first` on, up to a BLOCK of them, of a `number` in all."""
    place = first + tl.arange(0, BLOCK)
    content = tl.full([BLOCK], CONTENT, elements.dtype.element_ty)
    if first + BLOCK <= number:
        # without a mask a thread stores several at once
        tl.store(elements + place, content)
    else:
        tl.store(elements + place, content, mask=place < number)


@triton.jit(do_not_specialize=["number"])
def clear_kernel(elements, number, BLOCK: tl.constexpr):
    fill_block(elements, tl.program_id(0).to(tl.int64) * BLOCK, number, 0, BLOCK)


_clear = bind(clear_kernel, BLOCK=_BLOCK, num_warps=8)


def clear(elements: Tensor) -> Launch:
    """What fills a contiguous tensor, which is not empty, with zeros."""
    number = elements.numel()
    return _clear, (cdiv(number, _BLOCK), 1, 1), (elements,), (number,)


def zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`torch.zeros`, on the current device."""
    output = torch.empty(shape, dtype=dtype, device=device)
    number = output.numel()
    if number:
        _clear((-(-number // _BLOCK), 1, 1), (output,), (number,))
    return output
