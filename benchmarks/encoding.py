"""Workloads of the permutohedral encoding: 16 levels of 2 features, tables of 2^19 rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

import permutohedral as ph
from benchmarks.inputs import Inputs
from benchmarks.registry import OURS, Contender, Prepared, Workload, yardstick
from experiments.quality import relative_error

LEVELS, GROWTH = 16, 1.38
NUM_INPUTS = 4


def _prepare(
    inputs: Inputs, dimension: int, backward: bool, points: int = 2**18, dtype: torch.dtype = torch.float32
) -> Prepared:
    """Encode points that change from call to call; backward to table and positions."""
    torch.manual_seed(0)
    sigmas = [1 / (16 * GROWTH**level) for level in range(LEVELS)]
    layer = ph.nn.PermutohedralEncoding(dimension, 16, 2, 2**19, sigmas=sigmas, device=inputs.device, dtype=dtype)
    torch.nn.init.normal_(layer.table)
    positions = [torch.rand(points, dimension, device=inputs.device) for _ in range(NUM_INPUTS)]
    gradient = torch.randn(points, layer.out_features, device=inputs.device, dtype=dtype)

    def encode(number: int) -> Tensor:
        features: Tensor = layer(positions[number % NUM_INPUTS])
        return features

    def train(number: int) -> Any:
        leaf = positions[number % NUM_INPUTS].requires_grad_()
        return torch.autograd.grad(layer(leaf), [leaf, layer.table], gradient)

    def error(features: Tensor) -> float:
        few = 2**12
        exact = ph.nn.PermutohedralEncoding(dimension, 16, 2, 2**19, sigmas=sigmas, dtype=torch.float64)
        exact.load_state_dict(layer.state_dict())
        return relative_error(features[:few].cpu(), exact(positions[0][:few].cpu().double()).detach())

    def run(number: int, backward: bool = backward) -> Any:
        with torch.set_grad_enabled(backward):
            return train(number) if backward else encode(number)

    def run_reference(number: int) -> Any:
        with ph.backends.use("reference"):
            return run(number)

    ours = Contender(OURS, run, error=None if backward else error)
    others = [yardstick("our reference backend", run_reference)] if dimension == 3 and points == 2**18 else []
    if backward and points > 2**18:
        others = [yardstick("forward only", partial(run, backward=False))]
    return Prepared(ours, others, num_inputs=NUM_INPUTS)


WORKLOADS = (
    *(
        Workload(
            f"encoding-{dimension}d{'-training' if backward else ''}",
            f"encoding of 2^18 points, d = {dimension}, 16 levels x 2, forward{' and backward' if backward else ''}",
            "any",
            "encoding",
            partial(_prepare, dimension=dimension, backward=backward),
        )
        for dimension in (3, 6)
        for backward in (False, True)
    ),
    *(
        Workload(
            f"encoding-3d-1m-{name}{'-training' if backward else ''}",
            f"the same of 2^20 points, d = 3, {name} table, forward{' and backward' if backward else ''}",
            "cuda",
            "encoding",
            partial(_prepare, dimension=3, backward=backward, points=2**20, dtype=dtype),
        )
        for name, dtype, backward in (
            ("float16", torch.float16, False),
            ("float32", torch.float32, False),
            ("float32", torch.float32, True),
        )
    ),
)
