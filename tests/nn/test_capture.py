"""Captured steps on a device without graphs run as usual."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from support import DEVICE, assert_close
from torch import Tensor

import permutohedral as ph

pytestmark = pytest.mark.skipif(DEVICE.type == "cuda", reason="tests/gpu/test_cuda_graphs.py has these for graphs")


@pytest.mark.parametrize("num_levels", [None, 2])
def test_steps_run_as_usual(num_levels: int | None) -> None:
    def total(lattice: ph.Lattice | ph.levels.LatticePyramid, values: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(lattice, ph.Lattice) == (num_levels is None)
        finest = lattice if isinstance(lattice, ph.Lattice) else lattice.levels[0]
        return ph.slice(ph.splat(values, finest), finest), values

    step = ph.nn.capture_step(total, num_levels=num_levels)
    for points in (9, 9, 9, 5):
        features, values = torch.randn(points, 2), torch.randn(points, 3, requires_grad=True)
        found, same = step(features, values)
        lattice = ph.build_lattice(features)
        assert_close(found, ph.slice(ph.splat(values, lattice), lattice))
        assert same is not values
        assert not found.requires_grad


class Losses(NamedTuple):
    total: Tensor
    parts: dict[str, Tensor]


def test_results_are_copied_in_all_containers() -> None:
    part = torch.zeros((), requires_grad=True)
    step = ph.nn.capture_step(lambda lattice: Losses(lattice.source.barycentric.sum(), {"part": part}))
    found = step(torch.randn(9, 2))
    assert isinstance(found, Losses)
    assert_close(found.total, torch.tensor(9.0))
    assert found.parts["part"] is not part
    assert not found.parts["part"].requires_grad
