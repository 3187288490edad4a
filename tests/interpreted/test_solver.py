"""The solver in one call, in Triton's interpreter, against the same composed of operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import assert_close

import permutohedral as ph
from permutohedral.ops.dispatch import use_backend

WEIGHTS = torch.linspace(0, 1, 12, dtype=torch.float64).view(3, 4)


@pytest.mark.parametrize(
    ("shape", "guide", "options"),
    [
        ((1, 2, 2), (1, 4, 6), {"observe": "cells", "iterations": 3, "tolerance": 0.0}),
        ((2, 2, 2, 1), (2, 1, 3, 4), {"observe": "cells", "iterations": 2, "tolerance": 0.0}),
        ((2, 3, 4), (1, 3, 4), {"confidence": WEIGHTS, "iterations": 60, "tolerance": 1e-11}),
    ],
    ids=["cells", "items", "pixels"],
)
def test_solve_on_lattice(shape: tuple[int, ...], guide: tuple[int, ...], options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    target = torch.rand(shape, generator=generator, dtype=torch.float64)
    picture = torch.rand(guide, generator=generator, dtype=torch.float64)
    with use_backend("reference"):
        expected = ph.bilateral_solver(target, picture, sigma_space=1.7, sigma_range=0.6, **options)
    with use_backend("triton"):
        assert_close(ph.bilateral_solver(target, picture, sigma_space=1.7, sigma_range=0.6, **options), expected)
