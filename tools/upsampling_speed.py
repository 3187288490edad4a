"""How long upsampling along edges takes, lattices included: `python tools/upsampling_speed.py`.

Torch's bilinear interpolation, which knows no edges, runs in turn with it. Times are the least of all repeats: other
work on the machine only adds to them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import permutohedral as ph
from permutohedral.reporting.atomic import write_bytes
from permutohedral.reporting.provenance import find_commit, find_processor

SIGMA_RANGE = (0.2, 0.05, 0.05)


def photograph(height: int, width: int) -> Tensor:
    """Waves of color with some noise, in opponent colors."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    waves = torch.stack([torch.sin((x + y) / 61), torch.sin(x / 37) * torch.cos(y / 53), torch.cos((x - y) / 80)])
    noise = torch.randn(waves.shape, generator=torch.Generator().manual_seed(0))
    return ph.opponent_colors(0.5 + 0.25 * waves + 0.03 * noise)


def cases(device: str) -> dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]]:
    """By name, what is ours and what is torch's."""
    large, patch = photograph(1024, 1024).to(device), photograph(518, 518).to(device)
    poster = photograph(1088, 1376).to(device)
    maps = {shape: torch.rand(*shape, device=device) for shape in ((1, 128, 128), (384, 37, 37), (384, 64, 64))}
    solved = torch.rand(1, 136, 172, device=device)

    def last(coarse: Tensor) -> Tensor:
        return coarse[None].contiguous(memory_format=torch.channels_last)[0]

    def pair(coarse: Tensor, guide: Tensor, **options: Any) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        size = tuple(guide.shape[1:])
        return (
            lambda: ph.upsample(coarse, guide, sigma_range=SIGMA_RANGE, **options),
            lambda: functional.interpolate(coarse[None], size, mode="bilinear", align_corners=False),
        )

    features = {"sigma_space": 14.0, "steps": 0}
    return {
        "1 x 128^2 to 1024^2, gaussian, steps=0": pair(maps[1, 128, 128], large, steps=0),
        "1 x 128^2 to 1024^2, gaussian": pair(maps[1, 128, 128], large),
        "1 x 136 x 172 to 1088 x 1376, solver": pair(solved, poster, mode="solver"),
        "384 x 37^2 to 518^2, channels first": pair(maps[384, 37, 37], patch, **features),
        "384 x 37^2 to 518^2, channels last": pair(last(maps[384, 37, 37]), patch, **features),
        "384 x 64^2 to 1024^2, channels first": pair(maps[384, 64, 64], large, **{**features, "sigma_space": 16.0}),
        "384 x 64^2 to 1024^2, channels last": pair(
            last(maps[384, 64, 64]), large, **{**features, "sigma_space": 16.0}
        ),
    }


def measure(run: Callable[[], Tensor], device: str, repeats: int) -> dict[str, float]:
    """Milliseconds, wall time on a GPU and processor time else, and on a GPU the memory beyond what was held."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    least, peak = float("inf"), 0
    for _ in range(repeats + 1):
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        begin = clock()
        result = run()
        if device == "cuda":
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - held
        least = min(least, clock() - begin)
        del result
    return {"milliseconds": 1000 * least, **({"gigabytes": peak / 1e9} if peak else {})}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows: dict[str, Any] = {}
    with torch.no_grad():
        for name, (ours, theirs) in cases(arguments.device).items():
            runs = {"permutohedral": ours, "torch bilinear": theirs}
            rows[name] = {who: measure(run, arguments.device, arguments.repeats) for who, run in runs.items()}
            print(name, rows[name], flush=True)
    if arguments.json is not None:
        hardware = torch.cuda.get_device_name() if arguments.device == "cuda" else find_processor()
        settings = {"hardware": hardware, "threads": arguments.threads, "commit": find_commit()}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(arguments.json, (json.dumps({**settings, "rows": rows}, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
