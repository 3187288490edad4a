"""Convergence: the free energy falls where compatibilities repel, and nothing changes where they attract."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import DEVICE, assert_close, to_tensor
from torch import Tensor

import permutohedral as ph
from permutohedral.crf.damping import largest_eigenvalue


def photo_field(labels: int, compatibility: float | Tensor, normalization: Any) -> tuple[Tensor, list[ph.crf.Kernel]]:
    random = np.random.default_rng(labels)
    energies = to_tensor(random.normal(size=(labels, 9, 8)))
    guide = to_tensor(random.random((1, 9, 8)))
    kernels = [
        ph.crf.spatial_kernel((9, 8), 2.0, compatibility=1.0, device=DEVICE, dtype=torch.float64),
        ph.crf.bilateral_kernel(
            guide, sigma_space=6.0, sigma_color=0.3, compatibility=compatibility, normalization=normalization
        ),
    ]
    return energies, kernels


def free_energies(energies: Tensor, kernels: list[ph.crf.Kernel], steps: int, **options: float) -> Tensor:
    marginals, found = ph.crf.mean_field(energies, kernels, num_iterations=0), []
    for _ in range(steps):
        found.append(ph.crf.free_energy(marginals, energies, kernels))
        marginals = ph.crf.mean_field(energies, kernels, num_iterations=1, start=marginals, **options)  # type: ignore[arg-type]
    return torch.stack(found)


@pytest.mark.parametrize("normalization", ["symmetric", "none"])
def test_free_energy_never_rises(normalization: str) -> None:
    random = np.random.default_rng(1)
    for labels in (2, 3, 5):
        for _ in range(3):
            matrix = random.normal(size=(labels, labels)) * 10 ** random.uniform(0, 1.5)
            found = free_energies(*photo_field(labels, to_tensor(matrix), normalization), steps=25)
            rises = (found.diff() / found.abs().max()).clamp_min(0)
            assert float(rises.max()) <= 1e-6


def test_repulsion_oscillates_without_damping() -> None:
    """As in programs that pass the identity as compatibility."""
    energies, kernels = photo_field(3, 10 * torch.eye(3, dtype=torch.float64), "symmetric")
    energies = energies * 0.01
    wild = [ph.crf.mean_field(energies, kernels, num_iterations=steps, damping=0) for steps in (40, 41)]
    assert float((wild[0] - wild[1]).abs().max()) > 0.1
    calm = ph.crf.mean_field(energies, kernels, num_iterations=400, tolerance=1e-5)
    assert float((ph.crf.mean_field(energies, kernels, num_iterations=1, start=calm) - calm).abs().max()) <= 1e-5


def test_attraction_is_not_damped() -> None:
    energies, kernels = photo_field(4, 3.0, "symmetric")
    # a GPU adds in the same order in this mode only
    torch.use_deterministic_algorithms(True)
    assert torch.equal(
        ph.crf.mean_field(energies, kernels, num_iterations=4),
        ph.crf.mean_field(energies, kernels, num_iterations=4, damping=0),
    )
    costs = 3 * (1 - torch.eye(4, dtype=torch.float64, device=DEVICE))
    energies, others = photo_field(4, costs, "symmetric")
    assert_close(
        ph.crf.mean_field(energies, others, num_iterations=4, damping=0),
        ph.crf.mean_field(energies, kernels, num_iterations=4),
    )
    # filtered both ways, and not held back
    both_ways = ph.crf.mean_field(energies, others, num_iterations=4)
    assert 1e-6 < float((both_ways - ph.crf.mean_field(energies, kernels, num_iterations=4)).abs().max()) < 0.05


def test_traced_calls_do_the_same() -> None:
    """Where torch transforms a call, numbers of tensors are not read."""
    for costs in (2.0, torch.tensor(2.0), torch.tensor([-1.0, 2.0, -0.5]), 3 * torch.eye(3)):
        given = costs if isinstance(costs, float) else costs.to(DEVICE, torch.float64)
        energies, kernels = photo_field(3, given, "symmetric")
        field = partial(ph.crf.mean_field, kernels=kernels, num_iterations=3)
        traced = torch.func.jvp(field, (energies,), (energies,))[0]
        assert_close(traced, ph.crf.mean_field(energies, kernels, num_iterations=3))


def test_the_largest_eigenvalue_is_that_on_zero_sums() -> None:
    random = np.random.default_rng(0)
    for labels in (2, 3, 7):
        matrix = random.normal(size=(labels, labels))
        matrix = matrix + matrix.T
        # an orthonormal basis of the vectors that sum to zero
        basis = np.linalg.qr(np.concatenate([np.ones((labels, 1)), np.eye(labels)[:, 1:]], axis=1))[0][:, 1:]
        expected = max(0.0, float(np.linalg.eigvalsh(basis.T @ matrix @ basis).max()))
        assert abs(float(largest_eigenvalue(torch.as_tensor(matrix), labels)) - expected) < 1e-10
    assert largest_eigenvalue(-2.0, 1) == 0.0


def test_custom_damping() -> None:
    """The fixed points are the same, the way there is shorter."""
    energies, kernels = photo_field(3, 2.0, "symmetric")
    first, slow = (ph.crf.mean_field(energies, kernels, num_iterations=1, damping=t) for t in (0.0, 3.0))
    begin = ph.crf.mean_field(energies, kernels, num_iterations=0)
    assert float((slow - begin).abs().max()) < 0.5 * float((first - begin).abs().max())
    ends = [ph.crf.mean_field(energies, kernels, num_iterations=500, damping=t, tolerance=1e-12) for t in (0.0, 3.0)]
    assert float((ends[0] - ends[1]).abs().max()) < 1e-9


@pytest.mark.parametrize("number", [-2.0, 2.0])
def test_a_tensor_of_one_number_is_that_number(number: float) -> None:
    energies, kernels = photo_field(3, number, "symmetric")
    cost = torch.tensor(number, dtype=torch.float64, device=DEVICE)
    _, others = photo_field(3, cost, "symmetric")
    expected = ph.crf.mean_field(energies, kernels, num_iterations=4)
    assert_close(ph.crf.mean_field(energies, others, num_iterations=4), expected)
    traced = torch.func.jvp(partial(ph.crf.mean_field, kernels=others, num_iterations=4), (energies,), (energies,))[0]
    assert_close(traced, expected)


@pytest.mark.parametrize("shape", [(), (3,), (3, 3)], ids=["number", "diagonal", "matrix"])
def test_gradients_include_those_of_the_damping(shape: tuple[int, ...]) -> None:
    """Kernels repel, so that steps are damped by an amount that depends on costs and features."""
    random = np.random.default_rng(2)
    costs = to_tensor(random.normal(size=shape) if shape else -2.0)
    features, energies = to_tensor(random.random((8, 2)) * 3), to_tensor(random.normal(size=(8, 3)))
    inputs = [each.requires_grad_() for each in (costs, features, energies)]

    def run(costs: Tensor, features: Tensor, energies: Tensor) -> Tensor:
        return ph.crf.mean_field(energies, [ph.crf.Kernel(features, costs)], num_iterations=3)

    # a GPU adds in another order each time
    assert torch.autograd.gradcheck(run, inputs, atol=1e-7, nondet_tol=1e-10)
