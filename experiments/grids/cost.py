"""Places, memory and processor time of one filter of one image."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

import permutohedral as ph
from experiments.grids.places import Kind, build_places
from permutohedral.errors import MemoryLimitError

# float32 arrays of a dense grid: sums and results
_DENSE_ARRAYS, _FLOAT = 2, 4


def measure_plain(
    kind: Kind, features: Tensor, values: Tensor, weight: Tensor | None, size: int, limit: float
) -> dict[str, float]:
    """Count places, and filter in plain torch unless `weight` is None or a dense grid would exceed `limit` bytes."""
    places = build_places(kind, features, size).num_places
    found: dict[str, float] = {"places": places}
    if kind == "dense":
        found["needed"] = _DENSE_ARRAYS * _FLOAT * places * (values.shape[1] + 1)
    if weight is None or found.get("needed", 0) > limit:
        return found
    return found | _measure(lambda: build_places(kind, features, size).filter(values, weight))


def measure_library(
    backend: str, features: Tensor, values: Tensor, weight: Tensor, size: int, limit: float
) -> dict[str, float]:
    """Filter with the library on a backend, unless its table of neighbors would exceed `limit` bytes."""

    def run() -> Tensor:
        lattice = ph.build_lattice(features, neighborhood_size=size, memory_limit=int(limit))
        return ph.permutohedral_filter(values, lattice, weight, normalization="homogeneous")

    with ph.backends.use(backend):
        try:
            return _measure(run)
        except MemoryLimitError:
            return {}


def _measure(run: Callable[[], Tensor]) -> dict[str, float]:
    """Return processor seconds of a call, and its peak of resident bytes beyond those before (on Linux)."""
    before = _reset_peak()
    started = time.process_time()
    result = run()
    seconds = time.process_time() - started
    found = {"seconds": seconds} | ({} if before is None else {"bytes": _read_status("VmHWM") - before})
    del result
    return found


def _reset_peak() -> int | None:
    """Forget the peak so far; return the bytes in use, or None where the system does not count them."""
    gc.collect()
    # memory freed before must not serve the call unseen
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    try:
        # writing 5 resets VmHWM to VmRSS (see proc(5))
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _read_status("VmRSS")


def _read_status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
