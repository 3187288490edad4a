"""Run the workloads of one source tree on request: a child process of `benchmarks.compare`.

Started by path with the tree first on PYTHONPATH, so it imports nothing of its own package but the registry of that
tree. Requests and replies are lines of JSON; what a workload prints goes to standard error.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Worker:
    """The workloads of a tree, one of them prepared.

    Args:
        device: "cpu" or "cuda".
        threads: of torch and the native core.
        data: folder of data sets, or None.
    """

    def __init__(self, device: str, threads: int, data: Path | None) -> None:
        import torch

        from benchmarks import inputs, peers, runner

        self.torch, self.device, self.threads = torch, torch.device(device), threads
        peers.set_threads(threads)
        self.make_inputs: Callable[[], Any] = lambda: inputs.Inputs(data, self.device)
        self.workloads: dict[str, Any] = {workload.name: workload for workload in runner.WORKLOADS}
        self.call: Callable[[int], float] | None = None

    def describe(self) -> dict[str, Any]:
        """Return the names of the workloads and the folder of the package."""
        import permutohedral

        return {"names": list(self.workloads), "package": str(Path(permutohedral.__file__ or "").parent)}

    def prepare(self, name: str) -> dict[str, Any]:
        """Prepare a workload in place of the last one."""
        self.call = None
        gc.collect()
        if self.device.type == "cuda":
            self.torch.cuda.empty_cache()
        workload, inputs = self.workloads[name], self.make_inputs()
        if workload.prepare is None:
            self.call = lambda number: workload.measure(inputs, self.threads, 1, False).samples["permutohedral"][0]
        else:
            prepared = workload.prepare(inputs)
            self.call = lambda number: prepared.per_second * self._time(prepared.ours, number)
        return {}

    def run(self, first: int, count: int, warm: bool) -> dict[str, Any]:
        """Return the figures of calls `first` to `first + count`, after an untimed call if `warm`."""
        assert self.call is not None
        if warm:
            self.call(first)
        return {"samples": [self.call(number) for number in range(first, first + count)]}

    def _time(self, contender: Any, number: int) -> float:
        if contender.before is not None:
            contender.before(number)
        self._wait()
        started = time.perf_counter()
        # kept until the clock is read: freeing the result is not part of the operation
        output = contender.run(number)
        self._wait()
        seconds = time.perf_counter() - started
        del output
        return seconds

    def _wait(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def memory(self) -> dict[str, Any]:
        """Return the peak memory of a call in megabytes beyond what was in use before it, its result included."""
        assert self.call is not None
        if self.device.type == "cuda":
            before = self.torch.cuda.memory_allocated()
            self.torch.cuda.reset_peak_memory_stats()
            self.call(0)
            return {"megabytes": (self.torch.cuda.max_memory_allocated() - before) / 1e6}
        if not sys.platform.startswith("linux"):
            return {"megabytes": None}
        before = reset_peak()
        self.call(0)
        return {"megabytes": (read_status("VmHWM") - before) / 1e6}


def reset_peak() -> int:
    """Forget the peak of memory so far; return the bytes in use now."""
    import ctypes

    gc.collect()
    # memory freed before must not serve the call unseen; only glibc keeps and returns it this way
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    # writing 5 resets VmHWM to VmRSS (see proc(5))
    Path("/proc/self/clear_refs").write_text("5")
    return read_status("VmRSS")


def read_status(field: str) -> int:
    """Return a field of Linux's status of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def serve(device: str, threads: int, data: Path | None) -> None:
    """Answer requests until standard input ends."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker: Worker | None = None
    for line in sys.stdin:
        action, arguments = json.loads(line)
        try:
            worker = worker or Worker(device, threads, data)
            reply = getattr(worker, action)(*arguments)
        except Exception as error:  # one failing workload must not cost the figures of the others
            reply = {"error": f"{type(error).__name__}: {error}"[:400]}
        replies.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
