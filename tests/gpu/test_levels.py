"""Levels and networks on them on a GPU against the same on the CPU, on inputs that change from call to call."""

from __future__ import annotations

import copy
from typing import get_args

import pytest
import torch
from support import INTERPRETED, relative_error

import permutohedral as ph
from permutohedral.nn.unet import Between

pytestmark = pytest.mark.skipif(INTERPRETED, reason="tests/interpreted has these for the interpreter")


@pytest.mark.parametrize("dimension", [2, 3, 6])
def test_pyramids_of_changing_points(dimension: int) -> None:
    """As many lattice points on each level, each fine one with its taps, and the law between levels."""
    for points in (1, 5000, 20_000, 300):
        features = 9 * torch.randn(points, dimension, device="cuda", dtype=torch.float64)
        batch = torch.randint(0, 5, (points,), device="cuda")
        pyramid, expected = (
            ph.levels.build_pyramid(f, 3, batch=b) for f, b in ((features, batch), (features.cpu(), batch.cpu()))
        )
        values = torch.randn(points, 3, device="cuda", dtype=torch.float64)
        for number, (level, other) in enumerate(zip(pyramid.levels, expected.levels, strict=True)):
            assert level.num_lattice_points == other.num_lattice_points
            sliced = ph.slice(ph.splat(values, level), level)
            assert relative_error(sliced.cpu(), ph.slice(ph.splat(values.cpu(), other), other)) < 1e-12
            if number:
                coarsened = ph.levels.coarsen(ph.splat(values, pyramid.levels[number - 1]), pyramid, number - 1)
                assert relative_error(coarsened, ph.splat(values, level)) < 1e-12
        for table, other_table in zip(pyramid.tables, expected.tables, strict=True):
            assert int((table.down >= 0).sum()) == int((other_table.down >= 0).sum())
            assert int((table.up >= 0).sum()) == int((table.down >= 0).sum())


@pytest.mark.parametrize(
    ("points", "radius", "levels"), [(100_000, 38.0, 4), (160_000, 30.0, 4), (500_000, 150.0, 3), (3_000_000, 400.0, 2)]
)
def test_forecast_bounds_peak_of_pyramid(points: int, radius: float, levels: int) -> None:
    """Points near a sphere, in no order; from memory that holds nothing else."""
    features = radius * torch.nn.functional.normalize(torch.randn(points, 3, device="cuda"))
    ph.levels.build_pyramid(features[:1000], levels)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    pyramid = ph.levels.build_pyramid(features, levels)
    peak = torch.cuda.max_memory_allocated() - before
    numbers = [level.num_lattice_points for level in pyramid.levels]
    forecast = ph.lattice.forecast_memory(points, 3, 1, 0, numbers, levels=levels, device="cuda")
    assert peak <= forecast.total, (peak, forecast)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_maximum_of_changing_points(dtype: torch.dtype) -> None:
    """Of points and of finer levels, with what goes back: some lattice points crowded, many values equal."""
    for points, channels, scale in ((1, 1, 1.0), (20_000, 32, 0.2), (3000, 70, 9.0), (40_000, 5, 6.0)):
        # values of 16 bits go with features of 32
        wide = torch.promote_types(dtype, torch.float32)
        pyramid = ph.levels.build_pyramid(scale * torch.randn(points, 3, device="cuda", dtype=wide), 2)
        found = []
        values = torch.randint(-99, 99, (points, channels), device="cuda").to(dtype)
        for each in (pyramid, pyramid.to("cpu")):
            leaf = values.to(each.device).requires_grad_()
            pooled = ph.levels.pool(ph.splat(leaf, each.levels[0], reduce="max"), each, 0)
            # whole numbers, whose sums are exact
            upstream = torch.arange(pooled.numel()).view(pooled.shape).remainder(3).to(pooled)
            found.append([pooled.detach().cpu(), torch.autograd.grad(pooled, leaf, upstream)[0].cpu()])
        for expected, actual in zip(*found[::-1], strict=True):
            assert torch.equal(actual, expected)


@pytest.mark.parametrize("between", get_args(Between))
def test_networks_and_their_gradients(between: Between) -> None:
    """Normalization, convolutions on levels and between them; in float64, where the kernels are the same."""
    torch.manual_seed(0)
    network = ph.nn.LatticeUNet(2, 3, step=1.0, widths=(16, 24, 40), between=between).double()
    on_gpu = copy.deepcopy(network).cuda()
    for points in (2000, 700):
        features, values = 6 * torch.rand(points, 3, dtype=torch.float64), torch.randn(points, 2, dtype=torch.float64)
        batch, upstream = torch.arange(points) % 4, torch.randn(points, 3, dtype=torch.float64)
        found = []
        for each, device in ((network, "cpu"), (on_gpu, "cuda")):
            scores = each(values.to(device), features.to(device), batch.to(device))
            gradients = torch.autograd.grad(scores, list(each.parameters()), upstream.to(device))
            found.append([scores, *gradients])
        for expected, actual in zip(*found, strict=True):
            assert relative_error(actual.detach().cpu(), expected.detach()) < 1e-9
