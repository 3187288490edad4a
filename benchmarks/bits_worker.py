"""Run the cases of `tests/public_cases.py` for `benchmarks.bits`: a process of one source tree, which saves results.

Started by path with the package of a tree first on PYTHONPATH. A case that a tree does not have is saved as its error.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import permutohedral as ph

# the package of another tree may lack what the helpers of the tests import
sys.modules["support"] = SimpleNamespace(DEVICE=torch.device("cpu"))  # type: ignore[assignment]
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from public_cases import CASES, run  # noqa: E402

# backends have other functions for each
GRADIENTS = ("all", "values", "none")


def main(path: str, only: str) -> None:
    """Run the cases whose names contain `only`, and save their results by name."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"package": ph.__file__}
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    for backend, dtype, gradients, case in product(("native", "reference"), dtypes, GRADIENTS, CASES):
        name = f"{backend} {str(dtype)[6:]} {gradients} {case}"
        if only not in name:
            continue
        torch.manual_seed(0)
        try:
            with ph.backends.use(backend):
                found[name] = [*run(CASES[case], dtype, gradients=gradients).values()]
        except (ph.errors.PermutohedralError, AttributeError, RuntimeError, TypeError, ValueError) as error:
            # the other version should raise it, too
            found[name] = f"{type(error).__name__}: {error}"
    torch.save(found, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
