"""A loop whose end is an argument: some versions of Triton's interpreter and of NumPy do not go together."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def count_kernel(output, end):  # type: ignore[no-untyped-def]
    total = 0
    for step in range(tl.load(output), end):
        total += step
    tl.store(output, total)


def run_loop() -> None:
    """Raises where the two do not go together."""
    output = torch.zeros(1, dtype=torch.int32)
    count_kernel[(1,)](output, 4)
    assert int(output) == 6
