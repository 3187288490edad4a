"""What building a lattice tells the host: written by a kernel into the host's own memory, which the host watches.

Waiting through an event or a copy costs the host several times more than the GPU needs to write these few words.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

import torch

# reports that are read together: of sources and of targets
_MOST = 2
# no count and no flag
_PENDING = -(2**62)
# how often the host looks (some milliseconds) before it lets other threads run, and asks whether the GPU has failed
_EAGER_LOOKS = 10_000
_LOOKS_PER_QUESTION = 2000


class Report(NamedTuple):
    """What is known once all points are inserted; the words of the memory, in this order."""

    num_lattice_points: int
    bad_feature: int
    no_room: int
    full: int
    # of some pairs of consecutive points, how many lie far apart; 0 if nobody asked
    far_pairs: int


class _Memory:
    """Memory for the reports of a device: pinned, so that a GPU writes to it as to its own; and views of NumPy."""

    def __init__(self, device: torch.device) -> None:
        rows = [torch.empty(len(Report._fields), dtype=torch.int64) for _ in range(_MOST)]
        self.words = [row.pin_memory() if device.type == "cuda" else row for row in rows]
        self.views = [row.numpy() for row in self.words]


class _Scratch(threading.local):
    """What a thread uses again and again, by device."""

    def __init__(self) -> None:
        self.memory: dict[int | None, _Memory] = {}

    def on(self, device: torch.device) -> _Memory:
        if device.index not in self.memory:
            self.memory[device.index] = _Memory(device)
        return self.memory[device.index]


_scratch = _Scratch()


class HostReports:
    """Up to two reports that kernels on the current stream of `device` are about to write.

    >>> with HostReports(torch.device("cpu")) as reports:
    ...     _ = reports.words[0].copy_(torch.tensor([7, 0, 0, 0, 0]))
    ...     reports.read(0).num_lattice_points
    7
    """

    def __init__(self, device: torch.device) -> None:
        memory = _scratch.on(device)
        self._device, self.words, self._views = device, memory.words, memory.views
        for view in self._views:
            view.fill(_PENDING)

    def __enter__(self) -> HostReports:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # a kernel that nobody waits for any more must not write into the next report
        if kind is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def read(self, number: int) -> Report:
        """A report, as soon as the GPU has written it."""
        view = self._views[number]
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
                # raises if a kernel has failed; else all is written by now
                torch.cuda.synchronize(self._device)
                words = view.tolist()
                if _PENDING in words:
                    raise RuntimeError("the GPU finished without reporting how many lattice points there are")
                return Report(*words)
