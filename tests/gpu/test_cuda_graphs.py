"""Filters and training steps captured as CUDA graphs, replayed on other values, and compared with calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gpu.exactness import L2_TOLERANCE, assert_near
from support import INTERPRETED
from torch import Tensor

import permutohedral as ph

pytestmark = pytest.mark.skipif(
    INTERPRETED, reason="no CUDA graphs there; tests/interpreted/test_build.py has their lattices"
)

TOLERANCE = 4 * L2_TOLERANCE[torch.float32]


def capture(run: Callable[[], list[Tensor]]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    """A graph of `run`, and the tensors that every replay fills."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    return graph, results


def step(layer: torch.nn.Module, values: Tensor, lattice: ph.Lattice) -> list[Tensor]:
    """The result of a layer, and the gradients of values and parameters."""
    leaf = values.detach().requires_grad_()
    output = layer(leaf, lattice=lattice)
    return [output.detach(), *torch.autograd.grad(output.square().mean(), [leaf, *layer.parameters()])]


@pytest.mark.parametrize("channels", [(3, 5), (16, 32)])
def test_training_step_on_fixed_lattice(channels: tuple[int, int]) -> None:
    layer = ph.nn.PermutohedralConv(*channels, dimension=3, device="cuda")
    features, values = 4 * torch.randn(20_000, 3, device="cuda"), torch.randn(20_000, channels[0], device="cuda")
    lattice = layer.build_lattice(features)
    graph, results = capture(lambda: step(layer, values, lattice))
    for _ in range(3):
        values.normal_()
        with torch.no_grad():
            layer.weight.normal_()
        graph.replay()
        for found, expected in zip(results, step(layer, values, lattice), strict=True):
            assert_near(found, expected, TOLERANCE)


@pytest.mark.parametrize("channels", [(3, 5), (16, 32)])
def test_training_step_on_changing_features(channels: tuple[int, int]) -> None:
    layer = ph.nn.PermutohedralConv(*channels, dimension=3, device="cuda")
    features = 4 * torch.randn(2, 10_000, 3, device="cuda")
    values = torch.randn(2, 10_000, channels[0], device="cuda")

    def run() -> list[Tensor]:
        lattice, number = ph.lattice.build_bounded_lattice(features, 60_000)
        return [number, *step(layer, values, lattice)]

    graph, (number, *results) = capture(run)
    for scale in (4.0, 1.0, 7.0):
        features.normal_(std=scale)
        values.normal_()
        graph.replay()
        lattice = layer.build_lattice(features)
        assert int(number) == lattice.num_lattice_points <= 60_000
        for found, expected in zip(results, step(layer, values, lattice), strict=True):
            assert_near(found, expected, TOLERANCE)


def test_gaussian_of_changing_features() -> None:
    features, values = 4 * torch.randn(20_000, 3, device="cuda"), torch.rand(20_000, 3, device="cuda")

    def run() -> list[Tensor]:
        lattice, number = ph.lattice.build_bounded_lattice(features, 40_000, neighborhood_size=0, separable=True)
        return [ph.gaussian_filter(values, None, lattice=lattice), number]

    with torch.no_grad():
        graph, (found, number) = capture(run)
        for scale in (4.0, 1.0, 7.0):
            features.normal_(std=scale)
            values.uniform_()
            graph.replay()
            assert int(number) <= 40_000
            assert_near(found, ph.gaussian_filter(values, features), TOLERANCE)
