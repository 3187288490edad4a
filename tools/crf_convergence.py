"""Whether the free energy of a mean field falls, for many random costs: `python tools/crf_convergence.py`.

Every field is solved with damping "auto", each tenth also without damping. Takes some minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import permutohedral as ph
from permutohedral.reporting.atomic import write_bytes
from permutohedral.reporting.provenance import find_commit, find_processor

HEIGHT, WIDTH, STEPS = 12, 10, 25
# relative to the largest free energy on the way
ALLOWED_RISE = 1e-6


def random_field(random: np.random.Generator) -> tuple[Tensor, list[ph.crf.Kernel]]:
    """Energies over a random picture, and two kernels with symmetric costs of any sign and size."""
    labels = int(random.integers(2, 9))
    energies = torch.from_numpy(random.normal(size=(labels, HEIGHT, WIDTH)) * 10 ** random.uniform(-2, 0.5))
    guide = torch.from_numpy(random.random((1, HEIGHT, WIDTH)))
    kernels = []
    for sigma_space, sigma_range in ((2.0, 1e6), (random.uniform(3, 20), random.uniform(0.1, 1.0))):
        costs = random.normal(size=(labels, labels)) * 10 ** random.uniform(-1, 1.5)
        normalization: Any = random.choice(["symmetric", "none"])
        kernels.append(
            ph.crf.bilateral_kernel(guide, sigma_space, sigma_range, torch.from_numpy(costs + costs.T), normalization)
        )
    return energies, kernels


def largest_rise(energies: Tensor, kernels: list[ph.crf.Kernel], damping: Any) -> float:
    """Of the free energy in one step, relative to its largest magnitude."""
    lattices = [kernel.build_lattice() for kernel in kernels]
    marginals, found = ph.crf.mean_field(energies, kernels, 0, lattices=lattices), []
    for _ in range(STEPS):
        found.append(float(ph.crf.free_energy(marginals, energies, kernels, lattices)))
        marginals = ph.crf.mean_field(energies, kernels, 1, damping, lattices=lattices, start=marginals)
    return float(np.diff(found).max() / np.abs(found).max())


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fields", type=int, default=1000)
    parser.add_argument("--json", type=Path, default=Path("results/crf/convergence.json"))
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    rises: dict[str, list[float]] = {"auto": [], "none": []}
    for number in range(arguments.fields):
        field = random_field(random)
        rises["auto"].append(largest_rise(*field, "auto"))
        if number % 10 == 0:
            rises["none"].append(largest_rise(*field, 0.0))
    result: dict[str, Any] = {
        "fields": arguments.fields,
        "steps": STEPS,
        "allowed_rise": ALLOWED_RISE,
        "commit": find_commit(),
        "processor": find_processor(),
    }
    for name, found in rises.items():
        share = float(np.mean(np.array(found) > ALLOWED_RISE))
        result[name] = {"fields": len(found), "largest_rise": max(found), "share_of_fields_that_rise": share}
        print(f"damping {name}: largest rise {max(found):.3g}, {share:.1%} of the fields rise")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(arguments.json, (json.dumps(result, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
