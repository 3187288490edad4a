"""Time and memory of one computation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Cost:
    """What a computation took.

    Attributes:
        seconds: of the clock.
        peak_bytes: the most memory that the process had meanwhile; None where the system does not tell.
    """

    seconds: float = 0.0
    peak_bytes: int | None = None


@contextmanager
def measured() -> Iterator[Cost]:
    """Measure the block; the cost is filled in at its end.

    >>> with measured() as cost:
    ...     _ = sum(range(1000))
    >>> cost.seconds > 0
    True
    """
    cost = Cost()
    with suppress(OSError):
        # from here on VmHWM is the peak, see proc(5)
        Path("/proc/self/clear_refs").write_text("5")
    started = time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - started
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM:"))
        cost.peak_bytes = int(peak.split()[1]) * 1024
