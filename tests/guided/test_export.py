"""torch.export of everything that follows a guide, and training on what was built in inference mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import DEVICE, assert_close
from torch import Tensor, nn

import permutohedral as ph


class Function(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def image(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64).to(DEVICE)


CASES: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
    "DenseCRF": (ph.nn.DenseCRF(3, sigma_color=0.1, num_iterations=2), (image(3, 5, 6), image(1, 5, 6))),
    "BilateralSolver": (ph.nn.BilateralSolver(sigma_space=4.0, num_iterations=3), (image(1, 5, 6), image(1, 5, 6))),
    "gaussian": (Function(ph.upsample), (image(1, 2, 3), image(1, 6, 9))),
    "affine": (
        Function(lambda coarse, guide: ph.upsample(coarse, guide, mode="affine", sigma_color=0.1)),
        (image(1, 2, 3), image(1, 6, 9)),
    ),
    "solver": (
        Function(lambda coarse, guide: ph.upsample(coarse, guide, mode="solver", num_iterations=3, sigma_color=0.1)),
        (image(1, 2, 3), image(1, 6, 9)),
    ),
    "interpolate": (
        Function(ph.interpolate),
        (image(9, 1), 3 * image(9, 2)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_exported_programs_compute_the_same(name: str) -> None:
    module, inputs = CASES[name]
    module = module.to(DEVICE, torch.float64)
    exported = torch.export.export(module, inputs).module()
    assert_close(exported(*inputs), module(*inputs).detach(), torch.float32)


LATTICES: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "Upsampler": lambda: ph.guided.Upsampler(image(1, 6, 8), (3, 4), mode="gaussian", sigma_color=0.1),
    "affine": lambda: ph.guided.Upsampler(image(1, 6, 8), (3, 4), mode="affine", sigma_color=0.1),
    "splat": lambda: _filter(ph.build_lattice(image(12, 2))),
    "pool": lambda: _pool(ph.levels.build_pyramid(3 * image(12, 2), num_levels=2)),
}


def _filter(lattice: ph.Lattice) -> Callable[[Tensor], Tensor]:
    return lambda values: ph.slice(ph.splat(values.view(12, 1), lattice), lattice)


def _pool(pyramid: Any) -> Callable[[Tensor], Tensor]:
    return lambda values: ph.nn.LatticePool()(ph.splat(values.view(12, 1), pyramid.levels[0]), pyramid, 0)


@pytest.mark.parametrize("name", LATTICES)
def test_trains_with_a_lattice_built_in_inference_mode(name: str) -> None:
    with torch.inference_mode():
        run = LATTICES[name]()
    values = image(1, 3, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(run(values).square().sum(), values)
    assert bool((gradient != 0).any())
