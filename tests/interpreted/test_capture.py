"""Captured steps where nothing can be recorded: bounds that grow, copies of inputs, results as without capture."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from interpreted.test_bounded_pyramid import NoHostReads
from support import assert_close
from torch import Tensor

import permutohedral as ph
from permutohedral.errors import FeatureRangeError, InputError
from permutohedral.ops.dispatch import use as use_backend

Step = Callable[..., Tensor]


class OnTwoLevels(torch.nn.Module):
    """To the coarse level, a norm, and back: a U-Net would take minutes in the interpreter."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = ph.nn.LatticeLinearDown(2, 2, 2), ph.nn.LatticeLinearUp(2, 2)
        self.norm = ph.nn.LatticeGroupNorm(1, 2)

    def forward(self, values: Tensor, pyramid: ph.levels.LatticePyramid) -> Tensor:
        fine, coarse = pyramid.levels
        normalized = self.norm(self.down(ph.splat(values, fine), pyramid, 0), coarse)
        return ph.slice(self.up(normalized, pyramid, 0), fine)


def trainer(network: torch.nn.Module, pyramid: bool) -> Step:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def train(lattice: object, values: Tensor) -> Tensor:
        output = network(values, pyramid=lattice) if pyramid else network(values, lattice)
        loss: Tensor = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return train


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("pyramid", [False, True], ids=["lattice", "pyramid"])
def test_steps_are_those_of_eager(pyramid: bool) -> None:
    """Lattices that grow beyond the bound, inputs of another size in between, and weights that change."""
    network: torch.nn.Module = (
        OnTwoLevels().double() if pyramid else ph.nn.PermutohedralConv(2, 2, 2, dtype=torch.float64)
    )
    other = copy.deepcopy(network)
    train, eager = trainer(network, pyramid), trainer(other, pyramid)
    step = ph.nn.capture_step(train, num_levels=2 if pyramid else None, headroom=1.0)
    rows, recorded = [], []
    # small lattices, larger ones, small ones again
    for seed, scale in enumerate((0.5, 0.4, 0.3, 0.2, 3.0, 0.5, 0.5, 0.5, 0.5)):
        points = 3 if seed == 6 else 5
        features, values = scale * draw(points, 2, seed=seed), draw(points, 2, seed=seed + 50)
        with use_backend("triton"):
            loss = step(features, values)
        lattice = ph.levels.build_pyramid(features, 2) if pyramid else ph.build_lattice(features)
        assert_close(loss, eager(lattice, values))
        assert not loss.requires_grad
        rows.append(step.max_lattice_points)
        recorded.append(set(step.recordings))
    for one, another in zip(network.parameters(), other.parameters(), strict=True):
        assert_close(one, another)
    assert rows[0] == rows[3]
    assert rows[4][0] > rows[3][0]
    assert rows[4] == rows[8]
    # two steps after each growth, a step is recorded; growth drops the recordings
    assert recorded[3] == recorded[8] == {"lattice", "step"}
    assert recorded[2] == recorded[4] == recorded[7] == set()


def test_host_reads_only_the_numbers_of_lattice_points() -> None:
    """Everything else of a step can be recorded."""
    network = OnTwoLevels().double()
    train = trainer(network, True)

    def strict(*arguments: object) -> Tensor:
        if not steps:
            return train(*arguments)
        with NoHostReads():
            return train(*arguments)

    step, steps = ph.nn.capture_step(strict, num_levels=2), []
    with use_backend("triton"):
        for seed in range(2):
            step(0.5 * draw(5, 2, seed=0), draw(5, 2, seed=seed))
            steps.append(seed)


def test_features_without_keys_raise() -> None:
    step = ph.nn.capture_step(trainer(ph.nn.PermutohedralConv(2, 2, 2, dtype=torch.float64), False))
    features = 0.5 * draw(5, 2, seed=0)
    with use_backend("triton"):
        step(features, draw(5, 2, seed=1))
        features[2] = float("nan")
        with pytest.raises(FeatureRangeError, match="finite"):
            step(features, draw(5, 2, seed=1))


def test_rejects_wrong_arguments() -> None:
    with pytest.raises(InputError, match="step must be a function"):
        ph.nn.capture_step(None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="headroom"):
        ph.nn.capture_step(print, headroom=0.5)
    with pytest.raises(InputError, match=r"inputs\[0\] must be a torch.Tensor"):
        ph.nn.capture_step(print)(torch.zeros(3, 2), 5)  # type: ignore[arg-type]
