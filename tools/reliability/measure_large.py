"""A result of more than 2^31 numbers: right at its beginning, its end, and around the limits of 32 bits.

`python tools/reliability/measure_large.py` writes `results/reliability/large.json`; needs 12 GB of memory.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

import permutohedral as ph

ROOT = Path(__file__).resolve().parents[2]

POINTS, CHANNELS = 34_000_000, 64


def main() -> None:
    """Filter a constant along one dimension: every result must be that constant."""
    features = (torch.arange(POINTS, dtype=torch.float32) % 1000)[:, None] / 10
    lattice = ph.build_lattice(features, neighborhood_size=0)
    rows = torch.arange(1, CHANNELS + 1, dtype=torch.float32).expand(lattice.num_lattice_points, CHANNELS)
    sliced = ph.slice(rows.contiguous(), lattice)
    flat = sliced.view(-1)
    wrong = 0
    for place in (0, 2**31 - CHANNELS, 2**31, flat.numel() - CHANNELS):
        wrong += int(((flat[place : place + CHANNELS] - rows[0]).abs() > 1e-4).sum())
    wrong += int(((sliced[:: POINTS // 10_000] - rows[0]).abs() > 1e-4).sum())
    result = {
        "command": "python tools/reliability/measure_large.py",
        "elements": flat.numel(),
        "beyond_2_31": flat.numel() > 2**31,
        "wrong": wrong,
        "backend": ph.explain_backend().split(":")[0],
    }
    path = ROOT / "results" / "reliability" / "large.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(result)


if __name__ == "__main__":
    main()
