"""Machine, versions, and a yardstick that relates figures of different machines."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import time
from typing import Any

import numpy
import psutil
import torch

import permutohedral as ph
from benchmarks import peers
from experiments.provenance import find_commit, find_processor
from permutohedral.version import __version__

# where the recorded figures of the peers were measured
RECORDED_ON = {
    "cpu": {"machine": "2 cores of an AMD EPYC, Zen 4", "yardstick_seconds": 0.46, "yardstick_threads": 2},
    "cuda": {"machine": "NVIDIA H200", "yardstick_seconds": 0.73e-3, "yardstick_threads": 0},
}
_YARDSTICK_KEYS = 6_000_000
_YARDSTICK_REPEATS = 5


def describe(device: torch.device) -> dict[str, Any]:
    """Return hardware, versions, backend, commit and date."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": find_commit(),
        "device": device.type,
        "backend": ph.explain_backend(torch.zeros(1, device=device)).split(":")[0],
        "processor": find_processor(),
        "cores": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "system": platform.platform(),
        "versions": {
            "permutohedral": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": numpy.__version__,
            "triton": _triton_version(),
            **{name: peers.version_of(name) for name in peers.LIBRARIES},
        },
    }


def yardstick(device: torch.device) -> dict[str, Any]:
    """Time torch's sort of 6 M int64 keys, and compare with the machine of the recorded figures."""
    recorded: dict[str, Any] = RECORDED_ON[device.type]
    threads = min(recorded["yardstick_threads"], cores()) if device.type == "cpu" else 0
    previous = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(2**62, (_YARDSTICK_KEYS,), generator=generator).to(device)
    samples = []
    for _ in range(_YARDSTICK_REPEATS + 1):
        _synchronize(device)
        started = time.perf_counter()
        torch.sort(keys)
        _synchronize(device)
        samples.append(time.perf_counter() - started)
    torch.set_num_threads(previous)
    seconds = statistics.median(samples[1:])
    return {
        "what": "torch.sort of 6 M int64 keys, seconds",
        "seconds": seconds,
        "threads": threads,
        "recorded_seconds": recorded["yardstick_seconds"],
        "recorded_machine": recorded["machine"],
        # above 1: this machine is slower than the one of the recorded figures
        "ratio": seconds / recorded["yardstick_seconds"],
    }


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _triton_version() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)
