"""The report of an insertion: a kernel writes it into pinned memory of the host, which polls it.

An event or a copy would cost the host several times what the GPU needs to write these few words (9-15 us).
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from permutohedral.ops.triton.build.hash_table import BAD_FEATURE, COUNT, PackedTable
from permutohedral.ops.triton.kernel import kernel

# not a count and not a flag
_PENDING = -(2**62)
# looks (some milliseconds) before the host lets other threads run, and how often it then asks whether the GPU failed
_EAGER_LOOKS = 10_000
_LOOKS_PER_QUESTION = 2000


class Report(NamedTuple):
    """The outcome of an insertion, in the order of the words in memory."""

    num_lattice_points: int
    bad_feature: int
    no_room: int
    full: int


@kernel(options=["num_warps"])
def report_kernel(table, words):
    """Copy the count and the three flags of a table."""
    word = tl.arange(0, 4)
    tl.store(words + word, tl.load(table + tl.where(word == 0, COUNT, BAD_FEATURE - 1 + word)))


class _Scratch(threading.local):
    """Memory for the reports of a thread, by device; pinned, so that a GPU can write to it."""

    def __init__(self) -> None:
        self.memory: dict[int | None, tuple[Tensor, Any]] = {}

    def on(self, device: torch.device) -> tuple[Tensor, Any]:
        """Return the words and a NumPy view of them."""
        if device.index not in self.memory:
            words = torch.empty(len(Report._fields), dtype=torch.int64, device="cpu")
            words = words.pin_memory() if device.type == "cuda" else words
            self.memory[device.index] = words, words.numpy()
        return self.memory[device.index]


_scratch = _Scratch()


class HostReport:
    """A report that a kernel on the current stream of `device` is about to write."""

    def __init__(self, device: torch.device) -> None:
        self._device, (self.words, self._view) = device, _scratch.on(device)
        self._view.fill(_PENDING)

    def __enter__(self) -> HostReport:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # after an error, a kernel that is still queued must not write into the next report
        if kind is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def write(self, table: PackedTable) -> None:
        """Queue the kernel that writes the report of `table`."""
        report_kernel[1,]((1, 1, 1), (table.storage, self.words), ())

    def read(self) -> Report:
        """Wait until the GPU has written the report."""
        view = self._view
        looks = 0
        while True:
            words: list[int] = view.tolist()
            if _PENDING not in words:
                return Report(*words)
            looks += 1
            if looks < _EAGER_LOOKS:
                continue
            time.sleep(0)
            if looks % _LOOKS_PER_QUESTION == 0 and torch.cuda.current_stream(self._device).query():
                # raises if a kernel has failed; otherwise everything is written by now
                torch.cuda.synchronize(self._device)
                if _PENDING in view.tolist():
                    raise RuntimeError("the GPU finished without reporting the number of lattice points")
