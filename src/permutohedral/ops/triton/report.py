"""What building a lattice tells the host: written by a kernel into the host's own memory, which the host watches.

Waiting through an event or a copy costs the host several times more than the GPU needs to write these few words.
"""

from __future__ import annotations

import threading
import time

import torch
import triton.language as tl

# words of a report
REPORT = tl.constexpr(8)
# reports that are read together: of sources and of targets
_MOST = 2
# no count, no flag
_PENDING = -(2**62)
# how often the host looks (some milliseconds) before it lets other threads run, and asks whether the GPU has failed
_EAGER_LOOKS = 10_000
_LOOKS_PER_QUESTION = 2000


class Reports:
    """Memory for the reports of one thread from one device, used again and again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # the GPU writes to pinned memory of the host as to its own; each report has memory of its own
        rows = [torch.full((REPORT.value,), _PENDING, dtype=torch.int64) for _ in range(_MOST)]
        self.rows = [row.pin_memory() if device.type == "cuda" else row for row in rows]
        self._views = [row.numpy() for row in self.rows]

    def expect(self) -> None:
        """Forget what was reported before."""
        for view in self._views:
            view.fill(_PENDING)

    def read(self, number: int, size: int) -> list[int]:
        """The first `size` words of a report, as soon as the GPU has written them."""
        view = self._views[number][:size]
        looks = 0
        while True:
            words: list[int] = view.tolist()
            if _PENDING not in words:
                return words
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
                return words


_of_thread = threading.local()
# a kernel that nobody waits for any more may still write to these
_abandoned: list[Reports] = []


def abandon_reports() -> None:
    """After an interruption: use other memory from now on."""
    _abandoned.extend(_of_thread.__dict__.values())
    _of_thread.__dict__.clear()


def reports_on(device: torch.device) -> Reports:
    """The reports of this thread from `device`, empty."""
    known = _of_thread.__dict__
    name = str(device.index)
    if name not in known:
        known[name] = Reports(device)
    reports: Reports = known[name]
    reports.expect()
    return reports
