"""Measurements that need a new process: peak memory, first call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import permutohedral as ph
from benchmarks import peers
from benchmarks.inputs import Inputs
from benchmarks.registry import OURS, Absent, Contender, Measured
from benchmarks.worker import read_status, reset_peak
from permutohedral.errors import PermutohedralError

_FIRST_CALL = """
import time, torch
torch.zeros(1, device="cuda").sum().item(); torch.cuda.synchronize()
started = time.perf_counter()
import permutohedral as ph
ph.bilateral_filter(torch.rand(3, 512, 512, device="cuda"), sigma_space=16.0, sigma_color=0.1)
torch.cuda.synchronize()
print(1000 * (time.perf_counter() - started))
"""


def measure_first_call(inputs: Inputs, threads: int, repeats: int, with_peers: bool) -> Measured:
    """Measure the milliseconds of import and first call on a GPU, with kernels in the disk cache."""
    _run(["-c", _FIRST_CALL], threads)
    return Measured({OURS: [float(_run(["-c", _FIRST_CALL], threads)) for _ in range(min(repeats, 3))]})


def measure_memory(inputs: Inputs, threads: int, repeats: int, with_peers: bool, workload: str) -> Measured:
    """Measure the peak memory of a workload beyond inputs and outputs in megabytes, also of pydensecrf2."""
    samples, absent, names = {}, [], [OURS]
    if with_peers and peers.version_of(peers.DENSECRF) is not None:
        names.append(peers.DENSECRF)
    elif with_peers:
        absent.append(Absent(peers.DENSECRF))
    for name in names:
        arguments = ["-m", "benchmarks.probes", workload, name, str(threads)]
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
        raise PermutohedralError(f"the measuring process failed:\n{done.stderr.strip()}")
    return done.stdout.strip()


def peak_memory(workload: str, name: str, threads: int, data: Path | None) -> float:
    """Return the megabytes (10^6 bytes) that one call of a contender takes in this process."""
    from benchmarks.runner import WORKLOADS

    peers.set_threads(threads)
    prepare = next(each.prepare for each in WORKLOADS if each.name == workload)
    assert prepare is not None
    prepared = prepare(Inputs(data, torch.device("cpu")))
    contenders = [prepared.ours, *prepared.others]
    chosen = next((each for each in contenders if each.name == name and isinstance(each, Contender)), None)
    if chosen is None:
        raise PermutohedralError(f"{name} does not take part in {workload}")
    # libraries, threads and their stacks do not count
    ph.gaussian_filter(torch.rand(1500, 3), torch.rand(1500, 5))
    before = reset_peak()
    result: Any = chosen.run(0)
    return (read_status("VmHWM") - before - (result.nbytes if chosen is prepared.ours else 0)) / 1e6


if __name__ == "__main__":
    print(peak_memory(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]) if len(sys.argv) > 4 else None))
