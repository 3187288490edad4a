"""The permutohedral encoding on a GPU against float64 on the CPU, also as a captured training step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu.exactness import DTYPES, L2_TOLERANCE, assert_near, exact
from gpu.test_cuda_graphs import capture
from support import INTERPRETED
from torch import Tensor, nn

import permutohedral as ph

pytestmark = pytest.mark.skipif(INTERPRETED, reason="tests/interpreted has these for the interpreter")


@pytest.mark.parametrize("dimension", [2, 3, 6, 12])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_encoding(dtype: torch.dtype, dimension: int) -> None:
    """Features, gradients, and gradients of a loss of the slope, on inputs that change from call to call."""
    options: dict[str, Any] = {"num_levels": 10, "table_size": 2**12, "sigmas": torch.logspace(0, -1, 10)}
    layer = ph.nn.PermutohedralEncoding(dimension, **options, device="cuda", dtype=dtype)
    truth = ph.nn.PermutohedralEncoding(dimension, **options, dtype=torch.float64)
    nn.init.normal_(layer.table)
    truth.load_state_dict(layer.state_dict())
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for points in (5000, 777, 5000):
        positions = _away_from_faces(truth, torch.rand(points, dimension, device="cuda", dtype=wide))
        upper = torch.randn(len(positions), 20, device="cuda").to(dtype)
        along = torch.randn_like(positions)
        found = _derivatives(layer, positions, upper, along)
        expected = _derivatives(truth, exact(positions), exact(upper), exact(along))
        for ours, theirs in zip(found, expected, strict=True):
            assert_near(ours, theirs, 1e-3 if dtype == torch.float32 else 8 * L2_TOLERANCE[dtype])


def _away_from_faces(truth: ph.nn.PermutohedralEncoding, positions: Tensor) -> Tensor:
    """Leave out positions that may round to the other side of a face: their slope changes nearby."""
    upper = torch.randn(20, dtype=torch.float64)

    def slope(shifted: Tensor) -> Tensor:
        leaf = shifted.requires_grad_()
        return torch.autograd.grad(truth(leaf) @ upper, leaf, torch.ones(len(leaf), dtype=torch.float64))[0]

    there = exact(positions)
    before, kept = slope(there.clone()), torch.ones(len(there), dtype=torch.bool)
    for _ in range(4):
        after = slope(there + 1e-5 * torch.randn_like(there))
        kept &= (after - before).abs().amax(dim=1) <= 1e-6 * before.abs().amax(dim=1)
    assert kept.double().mean() > 0.3
    return positions[kept.to(positions.device)]


def _derivatives(layer: ph.nn.PermutohedralEncoding, positions: Tensor, upper: Tensor, along: Tensor) -> list[Tensor]:
    leaf, upper = positions.requires_grad_(), upper.requires_grad_()
    features = layer(leaf)
    (slope,) = torch.autograd.grad(features, leaf, upper, create_graph=True)
    (to_table,) = torch.autograd.grad(features, layer.table, upper, retain_graph=True)
    return [features, slope, to_table, *torch.autograd.grad(slope, [layer.table, upper], along)]


def test_captured_training_step() -> None:
    """A step with an eikonal loss waits for nothing on the device."""
    encoding = ph.nn.PermutohedralEncoding(3, table_size=2**14, device="cuda")
    field = nn.Sequential(encoding, nn.Linear(32, 64), nn.Softplus(), nn.Linear(64, 1)).cuda()
    positions = torch.rand(4096, 3, device="cuda")

    def step() -> list[Tensor]:
        leaf = positions.detach().requires_grad_()
        distance = field(leaf)
        (slope,) = torch.autograd.grad(distance.sum(), leaf, create_graph=True)
        loss = distance.abs().mean() + (slope.norm(dim=1) - 1).square().mean()
        return list(torch.autograd.grad(loss, list(field.parameters())))

    graph, results = capture(step)
    for _ in range(2):
        positions.uniform_()
        graph.replay()
        for found, expected in zip(results, step(), strict=True):
            assert_near(found, expected, 1e-4)
