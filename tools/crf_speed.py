"""How long a mean field takes, lattices included, beside pydensecrf: `python tools/crf_speed.py`.

pydensecrf (`pip install pydensecrf2`) is left out where it is absent, as with `--device cuda`. Both get the same
energies, features and costs, in turn; times are medians. Peak memory is measured in a process for each contender.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.reporting.atomic import write_bytes
from permutohedral.reporting.provenance import find_commit, find_processor


@dataclass(frozen=True)
class Case:
    """A picture or volume with a random labelling; bandwidths are those of many programs."""

    space: tuple[int, ...]
    labels: int
    steps: int

    @property
    def name(self) -> str:
        return f"{'x'.join(map(str, self.space))}, {self.labels} labels, {self.steps} steps"


CASES = [
    Case((375, 500), 21, 5),
    Case((375, 500), 21, 10),
    Case((375, 500), 2, 5),
    Case((1024, 1024), 21, 10),
    Case((1024, 1024), 2, 10),
    Case((99, 117, 95), 4, 5),
]
WEIGHTS, SIGMA, SIGMA_BILATERAL, SIGMA_RANGE = (3.0, 10.0), 3.0, 80.0, 13.0


def make(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Energies `[labels, pixels]`, features of both kernels: x before y, as pydensecrf has them."""
    random = np.random.default_rng(0)
    axes = np.meshgrid(*(np.arange(extent, dtype=np.float32) for extent in case.space), indexing="ij")
    positions = np.stack([axis.ravel() for axis in reversed(axes)], axis=1)
    waves = [np.sin(sum(axes) / 61), np.sin(axes[-1] / 37) + np.cos(axes[-2] / 53), np.cos((axes[-1] - axes[-2]) / 80)]
    colors = np.stack([wave.ravel() for wave in (waves if len(case.space) == 2 else waves[:1])], axis=1) * 60 + 128
    colors = np.clip(colors + random.normal(size=colors.shape) * 8, 0, 255).astype(np.uint8).astype(np.float32)
    truth = (colors[:, 0] // (256 / case.labels)).astype(np.int64)
    logits = random.normal(size=(case.labels, len(truth))).astype(np.float32)
    logits[truth, np.arange(len(truth))] += 1.5
    both = np.concatenate([positions / SIGMA_BILATERAL, colors / SIGMA_RANGE], axis=1)
    energies = -torch.log_softmax(torch.from_numpy(logits), dim=0)
    return energies, torch.from_numpy(positions / SIGMA), torch.from_numpy(both)


def ours(case: Case, energies: Tensor, *features: Tensor) -> Tensor:
    """The marginals `[labels, pixels]`."""
    kernels = [ph.crf.Kernel(each, weight, space=case.space) for each, weight in zip(features, WEIGHTS, strict=True)]
    planes = energies.reshape(case.labels, *case.space)
    return ph.crf.mean_field(planes, kernels, case.steps).reshape(case.labels, -1)


def theirs(case: Case, energies: Tensor, *features: Tensor) -> Tensor:
    """The same by pydensecrf."""
    import pydensecrf.densecrf as dcrf

    field = dcrf.DenseCRF(energies.shape[1], case.labels)
    field.setUnaryEnergy(energies.numpy())
    for each, weight in zip(features, WEIGHTS, strict=True):
        field.addPairwiseEnergy(np.ascontiguousarray(each.numpy().T), compat=weight)
    return torch.from_numpy(np.array(field.inference(case.steps)))


CONTENDERS: dict[str, Callable[..., Tensor]] = {"permutohedral": ours, "pydensecrf": theirs}


def clock(device: str, processor_time: bool) -> float:
    """Seconds, when the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if processor_time else time.perf_counter()


def measure(case: Case, names: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Times in seconds, the ratio, and how far the marginals are apart."""
    inputs = [each.to(arguments.device) for each in make(case)]
    times: dict[str, list[float]] = {name: [] for name in names}
    results: dict[str, Tensor] = {}
    for _ in range(arguments.repeats + 1):
        for name in names:
            begin = clock(arguments.device, arguments.processor_time)
            results[name] = CONTENDERS[name](case, *inputs)
            times[name].append(clock(arguments.device, arguments.processor_time) - begin)
    # the first of each warms up
    row: dict[str, Any] = {name: statistics.median(found[1:]) for name, found in times.items()}
    if len(names) == 2:
        first, second = (results[name] for name in names)
        row["ratio"] = row[names[1]] / row[names[0]]
        row["largest_difference"] = float((first - second).abs().max())
        row["equal_labels"] = float((first.argmax(dim=0) == second.argmax(dim=0)).float().mean())
    return row


def print_profile(case: Case, device: str) -> None:
    """Where the time of one call goes: kernels of a GPU, operators of torch, and what the host waits for."""
    inputs = [each.to(device) for each in make(case)]
    ours(case, *inputs)
    ours(case, *inputs)
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if device == "cuda" else []
    clock(device, False)
    with torch.profiler.profile(activities=activities) as profiler:
        ours(case, *inputs)
        clock(device, False)
    for key in (["cuda_time_total"] if device == "cuda" else []) + ["cpu_time_total"]:
        print(profiler.key_averages().table(sort_by=key, row_limit=30, max_name_column_width=60))


def peak_memory(case: Case, name: str) -> int:
    """MiB above the inputs, in a process of its own."""
    command = [sys.executable, __file__, "--child", name, str(CASES.index(case))]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(output.split()[-1])


def run_child(name: str, case: Case) -> None:
    """Print the growth of the largest resident size over one call."""
    inputs = make(case)
    # loads what is loaded once
    small = Case((20, 20), case.labels, 1)
    CONTENDERS[name](small, *make(small))
    # the largest size so far includes the making of the inputs, which took more than they hold
    held = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024
    Path("/proc/self/clear_refs").write_text("5")
    CONTENDERS[name](case, *inputs)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print((int(peak.split()[1]) - held) // 1024)


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processor-time", action="store_true", help="for a machine that others use")
    parser.add_argument("--memory", action="store_true", help="measure peak memory, too")
    parser.add_argument("--profile", type=int, metavar="CASE", help="print where the time of this case goes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.child:
        return run_child(arguments.child[0], CASES[int(arguments.child[1])])
    if arguments.profile is not None:
        return print_profile(CASES[arguments.profile], arguments.device)
    names = [
        name for name in CONTENDERS if arguments.device == "cpu" and importlib.util.find_spec(name) is not None
    ] or ["permutohedral"]
    rows: dict[str, Any] = {}
    for case in CASES:
        rows[case.name] = measure(case, names, arguments)
        if arguments.memory:
            rows[case.name]["peak_memory_mib"] = {name: peak_memory(case, name) for name in names}
        print(
            case.name,
            {
                key: value if isinstance(value, dict) else float(f"{value:.4g}")
                for key, value in rows[case.name].items()
            },
            flush=True,
        )
    if arguments.json is None:
        return None
    hardware = torch.cuda.get_device_name() if arguments.device == "cuda" else find_processor()
    clock_name = "processor" if arguments.processor_time else "wall"
    settings = {"hardware": hardware, "threads": arguments.threads, "clock": clock_name, "commit": find_commit()}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(arguments.json, (json.dumps({**settings, "rows": rows}, indent=2) + "\n").encode())
    return None


if __name__ == "__main__":
    main()
