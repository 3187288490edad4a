"""How long upsampling along edges takes, lattices included: `python tools/upsampling_speed.py --data FOLDER`.

Torch's bilinear interpolation, which knows no edges, runs in turn with it. Every call has another guide, a part of a
photograph of Middlebury in opponent colors, and another map. Times are medians: wall time on a GPU, else processor
time. Memory is what a call takes at most beyond inputs and result, on a CPU in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import permutohedral as ph
from permutohedral.data.download import DATA_VARIABLE
from permutohedral.data.middlebury import load_scene
from permutohedral.reporting.atomic import write_bytes
from permutohedral.reporting.provenance import find_commit, find_processor

SIGMA_RANGE = (0.2, 0.05, 0.05)
# those that are large enough
SCENES = ("art", "books", "moebius")


@dataclass(frozen=True)
class Case:
    """A map to bring to the size of a photograph."""

    coarse: tuple[int, int, int]
    size: tuple[int, int]
    options: dict[str, Any] = field(default_factory=dict)
    channels_last: bool = False

    @property
    def name(self) -> str:
        shapes = " to ".join(" x ".join(map(str, shape)) for shape in (self.coarse, self.size))
        words = [f"{key}={value}" for key, value in self.options.items()]
        return ", ".join([shapes, *words, *(["channels last"] if self.channels_last else [])])

    def inputs(self, number: int, device: str) -> tuple[Tensor, Tensor]:
        """Map and guide of a call."""
        generator = torch.Generator().manual_seed(number)
        coarse = torch.rand(1, *self.coarse, generator=generator).to(device)
        if self.channels_last:
            coarse = coarse.contiguous(memory_format=torch.channels_last)
        return coarse, photograph(*self.size, generator).to(device)[None]


FEATURES = {"steps": 0}
CASES = [
    Case((1, 128, 128), (1024, 1024), {"steps": 0}),
    Case((1, 128, 128), (1024, 1024)),
    Case((1, 128, 128), (1024, 1024), {"mode": "solver"}),
    Case((1, 136, 172), (1088, 1376), {"mode": "solver"}),
    Case((384, 37, 37), (518, 518), FEATURES),
    Case((384, 37, 37), (518, 518), FEATURES, channels_last=True),
    Case((384, 64, 64), (1024, 1024), FEATURES),
    Case((384, 64, 64), (1024, 1024), FEATURES, channels_last=True),
]


@cache
def load_photograph(name: str) -> Tensor:
    """A photograph of 1088 x 1376 pixels, in opponent colors."""
    return ph.opponent_colors(load_scene(name).color)


def photograph(height: int, width: int, generator: torch.Generator) -> Tensor:
    """A part of one of them, as often as not seen in a mirror."""
    scene, top, left, mirrored = torch.rand(4, generator=generator).tolist()
    whole = load_photograph(SCENES[int(scene * len(SCENES))])
    y, x = int(top * (1 + whole.shape[1] - height)), int(left * (1 + whole.shape[2] - width))
    cut = whole[:, y : y + height, x : x + width]
    return (cut.flip(-1) if mirrored < 0.5 else cut).contiguous()


def ours(case: Case, coarse: Tensor, guide: Tensor) -> Tensor:
    """Along the edges."""
    found: Tensor = ph.upsample(coarse, guide, sigma_range=SIGMA_RANGE, **case.options)
    return found


def bilinear(case: Case, coarse: Tensor, guide: Tensor) -> Tensor:
    """Without the guide."""
    return functional.interpolate(coarse, case.size, mode="bilinear", align_corners=False)


CONTENDERS: dict[str, Callable[[Case, Tensor, Tensor], Tensor]] = {"permutohedral": ours, "torch bilinear": bilinear}


def clock(device: str) -> float:
    """Seconds, when the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def measure(case: Case, device: str, repeats: int) -> dict[str, dict[str, float]]:
    """Medians in milliseconds, and gigabytes beyond inputs and result."""
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    memory = dict.fromkeys(CONTENDERS, 0.0)
    for number in range(repeats + 1):
        inputs = case.inputs(number, device)
        for name, run in CONTENDERS.items():
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
            begin = clock(device)
            result = run(case, *inputs)
            times[name].append(clock(device) - begin)
            if device == "cuda":
                memory[name] = (torch.cuda.max_memory_allocated() - held - result.nbytes) / 1e9
            del result
    if device != "cuda":
        memory = {name: peak_memory(case, name) for name in CONTENDERS}
    # the first of each warms up
    return {
        name: {"milliseconds": 1000 * statistics.median(times[name][1:]), "gigabytes": memory[name]}
        for name in CONTENDERS
    }


def peak_memory(case: Case, name: str) -> float:
    """Gigabytes beyond inputs and result, in a process of its own."""
    command = [sys.executable, __file__, "--child", name, str(CASES.index(case))]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def run_child(name: str, case: Case) -> None:
    """Print the growth of the largest resident size over one call, less the result."""
    inputs = case.inputs(0, "cpu")
    # loads what is loaded once
    small = Case(case.coarse, (case.coarse[1] * 2, case.coarse[2] * 2), case.options)
    CONTENDERS[name](small, *small.inputs(0, "cpu"))
    held = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    Path("/proc/self/clear_refs").write_text("5")
    result = CONTENDERS[name](case, *inputs)
    status = Path("/proc/self/status").read_text()
    peak = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
    print((peak - held - result.nbytes) / 1e9)


def print_profile(case: Case, device: str) -> None:
    """Where the time of a call goes."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if device == "cuda" else []
    for number in range(2):
        ours(case, *case.inputs(number, device))
    inputs = case.inputs(2, device)
    clock(device)
    with torch.profiler.profile(activities=activities) as profiler:
        ours(case, *inputs)
        clock(device)
    print(case.name)
    for key in (["cuda_time_total"] if device == "cuda" else []) + ["cpu_time_total"]:
        print(profiler.key_averages().table(sort_by=key, row_limit=25, max_name_column_width=50))


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help=f"folder of the datasets; default: {DATA_VARIABLE}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases")
    parser.add_argument("--profile", action="store_true", help="print where the time goes instead")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.data is not None:
        os.environ[DATA_VARIABLE] = str(arguments.data)
    rows: dict[str, Any] = {}
    with torch.no_grad():
        if arguments.child is not None:
            run_child(arguments.child[0], CASES[int(arguments.child[1])])
            return
        for case in CASES if arguments.only is None else [CASES[number] for number in arguments.only]:
            if arguments.profile:
                print_profile(case, arguments.device)
                continue
            rows[case.name] = measure(case, arguments.device, arguments.repeats)
            print(case.name, rows[case.name], flush=True)
    if arguments.json is not None:
        hardware = torch.cuda.get_device_name() if arguments.device == "cuda" else find_processor()
        settings = {"hardware": hardware, "threads": arguments.threads, "commit": find_commit()}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(arguments.json, (json.dumps({**settings, "rows": rows}, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
