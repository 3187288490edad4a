"""Filters and training steps captured as CUDA graphs, replayed on other values, and compared with calls."""

from __future__ import annotations

import copy
import gc
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
    output = layer(leaf, lattice)
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


def test_bounded_lattices_give_the_same_bits_in_deterministic_mode() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    layer = ph.nn.PermutohedralConv(3, 5, dimension=3, device="cuda")
    features, values = 4 * torch.randn(20_000, 3, device="cuda"), torch.randn(20_000, 3, device="cuda")
    runs = [step(layer, values, ph.lattice.build_bounded_lattice(features, 60_000)[0]) for _ in range(5)]
    for found in runs[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found, runs[0], strict=True))


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
        return [ph.gaussian_filter(values, lattice), number]

    with torch.no_grad():
        graph, (found, number) = capture(run)
        for scale in (4.0, 1.0, 7.0):
            features.normal_(std=scale)
            values.uniform_()
            graph.replay()
            assert int(number) <= 40_000
            assert_near(found, ph.gaussian_filter(values, features), TOLERANCE)


def train_with(network: torch.nn.Module, scaled: bool) -> Callable[..., Tensor]:
    """A step of AdamW; with a scaler, under autocast in float16."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True, capturable=True)
    scaler = torch.amp.GradScaler("cuda", enabled=scaled)

    def train(pyramid: ph.levels.LatticePyramid, values: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.float16, enabled=scaled):
            loss = torch.nn.functional.cross_entropy(network(values, pyramid=pyramid).float().mT, labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return train


@pytest.mark.parametrize("scaled", [False, True], ids=["float32", "autocast"])
def test_captured_step_of_a_u_net(scaled: bool) -> None:
    """Clouds that change, one that needs more room, and one of another size; losses and weights are those of eager."""
    network = ph.nn.LatticeUNet(2, 3, step=1.0, widths=(16, 32, 32)).cuda()
    other = copy.deepcopy(network)
    step, eager = ph.nn.capture_step(train_with(network, scaled), num_levels=3), train_with(other, scaled)
    for number, scale in enumerate((3.0, 3.0, 2.0, 3.0, 3.0, 9.0, 3.0, 3.0, 9.0, 3.0, 4.0)):
        points = 900 if number == 7 else 4000
        features, values = scale * torch.randn(2, points, 3, device="cuda"), torch.randn(2, points, 2, device="cuda")
        labels = torch.randint(0, 3, (2, points), device="cuda")
        loss = step(features, values, labels)
        expected = eager(ph.levels.build_pyramid(features, 3), values, labels)
        assert_near(loss, expected, 0.02 if scaled else 1e-3)
    assert set(step.recordings) == {"lattice", "step"}


def test_captured_step_of_one_cloud_is_replayed() -> None:
    layer = ph.nn.PermutohedralConv(4, 8, dimension=3, device="cuda")

    def train(lattice: ph.Lattice, values: Tensor) -> Tensor:
        result: Tensor = layer(values, lattice)
        return result.square().mean().detach()

    step = ph.nn.capture_step(train)
    for _ in range(5):
        features, values = 3 * torch.randn(1, 4000, 3, device="cuda"), torch.randn(1, 4000, 4, device="cuda")
        assert_near(step(features, values), train(ph.build_lattice(features), values), TOLERANCE)
    assert set(step.recordings) == {"lattice", "step"}


def test_captured_step_does_not_wait_for_the_device() -> None:
    """Except for the numbers of lattice points, which the step itself does not read."""
    network = ph.nn.LatticeUNet(2, 3, step=1.0, widths=(16, 32)).cuda()
    train = train_with(network, False)
    features, values = 3 * torch.randn(2, 4000, 3, device="cuda"), torch.randn(2, 4000, 2, device="cuda")
    labels = torch.randint(0, 3, (2, 4000), device="cuda")
    train(ph.levels.build_pyramid(features, 2), values, labels)
    try:
        torch.cuda.set_sync_debug_mode("error")
        pyramid, _ = ph.levels.build_bounded_pyramid(features, [60_000, 30_000])
        train(pyramid, values, labels)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_captured_steps_release_their_memory() -> None:
    network = ph.nn.LatticeUNet(2, 3, step=1.0, widths=(16, 32)).cuda()
    train = train_with(network, False)

    def allocated(steps: int, scale: float) -> int:
        step = ph.nn.capture_step(train, num_levels=2, headroom=1.0)
        for number in range(steps):
            # each is larger than the one before, or all are of one size
            features = (scale * number + 1) * torch.randn(1, 4000, 3, device="cuda")
            step(features, torch.randn(1, 4000, 2, device="cuda"), torch.randint(0, 3, (1, 4000), device="cuda"))
        del step
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    allocated(5, 0.0)
    before = allocated(5, 0.0)
    assert allocated(9, 0.3) <= before + (1 << 20)
