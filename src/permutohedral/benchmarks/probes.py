"""Quantities that need a process of their own: peak memory and the time of the import."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from permutohedral.benchmarks import peers
from permutohedral.benchmarks.inputs import Inputs
from permutohedral.benchmarks.registry import OURS, Measured
from permutohedral.benchmarks.timing import Absent
from permutohedral.errors import PermutohedralError

_IMPORT = """
import time, torch, numpy
started = time.perf_counter()
import permutohedral
print(1000 * (time.perf_counter() - started))
"""


def measure_import(inputs: Inputs, threads: int, repeats: int, with_peers: bool) -> Measured:
    """Milliseconds that `import permutohedral` takes once torch is there, in fresh processes."""
    # the first process writes the bytecode and fills the disk cache
    _run(["-c", _IMPORT], threads)
    return Measured({OURS: [float(_run(["-c", _IMPORT], threads)) for _ in range(repeats)]})


def measure_memory(inputs: Inputs, threads: int, repeats: int, with_peers: bool) -> Measured:
    """Megabytes that W1 takes at its peak beyond inputs and outputs, ours and a peer's, in fresh processes."""
    samples, absent = {}, []
    names = [OURS]
    if with_peers and peers.version_of(peers.DENSECRF) is not None:
        names.append(peers.DENSECRF)
    elif with_peers:
        absent.append(Absent(peers.DENSECRF, "not installed: pip install 'permutohedral[bench]'"))
    for name in names:
        arguments = ["-m", "permutohedral.benchmarks.probes", name, str(threads)]
        if inputs.data is not None:
            arguments.append(str(inputs.data))
        samples[name] = [float(_run(arguments, threads)) for _ in range(min(repeats, 3))]
    return Measured(samples, absent)


def _run(arguments: list[str], threads: int) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    # the package may be importable because of a path that only this process has
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PermutohedralError(f"a process that measures the package failed:\n{done.stderr.strip()}")
    return done.stdout.strip()


def peak_memory(name: str, threads: int, data: Path | None) -> float:
    """Megabytes (10^6 bytes) that W1 takes in this process, done by `name`."""
    from permutohedral.benchmarks.workloads import problem_of
    from permutohedral.functional import gaussian_filter

    peers.set_threads(threads)
    inputs = Inputs(data, torch.device("cpu"))
    problem = problem_of("W1", inputs)
    # libraries, threads and their stacks are not the operation's
    small = problem.small()
    gaussian_filter(small.values, small.features)
    if name == OURS:
        before = _reset_peak()
        result = gaussian_filter(problem.values, problem.features)
        return (_status("VmHWM") - before - result.numel() * result.element_size()) / 1e6
    contender = peers.densecrf_filter(problem, None)
    if isinstance(contender, Absent):
        raise PermutohedralError(contender.reason)
    # its scratch matrices, which were made just now and count as its inputs and outputs, are touched already
    before = _reset_peak()
    kept = contender.run()
    del kept
    return (_status("VmHWM") - before) / 1e6


def _reset_peak() -> int:
    """Forget the peak so far; the bytes in use now."""
    gc.collect()
    # what was freed before must not serve the operation unseen; only glibc keeps and returns it this way
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    # writing 5 resets VmHWM to VmRSS (see proc(5))
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise PermutohedralError(f"the system does not tell {field}; memory is measured on Linux only")


if __name__ == "__main__":
    print(json.dumps(peak_memory(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)))
