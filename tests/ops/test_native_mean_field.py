"""The mean field of the compiled core against its definition in plain torch, on every instruction set."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mean_field_cases import defined, field, marginals_and_gradients
from support import assert_close
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.ops.backend import Backend
from permutohedral.ops.contract import FieldPlan, PairwiseTables


def run(native: Any, energies: Tensor, start: Tensor | None, kernels: list[PairwiseTables], steps: int) -> Tensor:
    """The marginals."""
    found: Tensor = native.mean_field(energies, start, FieldPlan(kernels, steps, False))[0]
    return found


@pytest.mark.parametrize("with_costs", [False, True])
@pytest.mark.parametrize("labels", [1, 2, 3, 4, 5, 8, 21, 70])
def test_it_is_as_defined(native: Backend, labels: int, with_costs: bool, dtype: torch.dtype) -> None:
    energies, kernels = field(labels, 151, dtype, with_costs)
    start = torch.softmax(torch.randn(2, labels, 151, dtype=dtype), dim=1)
    for steps in (0, 3):
        assert_close(
            run(native, energies, None, kernels, steps),
            defined(energies, None, kernels, steps),
        )
    assert_close(run(native, energies, start, kernels, 2), defined(energies, start, kernels, 2))
    strided = energies.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(
        run(native, strided, None, kernels, 2),
        run(native, energies, None, kernels, 2),
    )


@pytest.mark.parametrize(("labels", "points"), [(2, 40), (40, 7), (3, 1), (21, 16), (2, 8)])
def test_few_points(native: Backend, labels: int, points: int) -> None:
    energies, kernels = field(labels, points, torch.float32, False)
    assert_close(run(native, energies, None, kernels, 2), defined(energies, None, kernels, 2))


@pytest.mark.parametrize("labels", [2, 60])
def test_any_number_of_threads_gives_the_same_bits(native: Any, labels: int) -> None:
    """More points than a window holds, and more threads than kernels."""
    energies, kernels = field(labels, 11000, torch.float32, labels == 60)
    gradient, before, found = torch.randn(energies.shape), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 9):
            torch.set_num_threads(threads)
            _, kept = native.mean_field(energies, None, FieldPlan(kernels, 2, True))
            needed = (True,) * (2 + len(kernels))
            to_energies, _, *to_kernels = native.mean_field_backward(
                gradient, (energies, None), kept, needed, FieldPlan(kernels, 2, True)
            )
            found.append([run(native, energies, None, kernels, 2), to_energies, *to_kernels])
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], others, strict=True))
    assert_close(found[0][0], defined(energies, None, kernels, 2))


def test_exponentials_of_any_size(native: Backend) -> None:
    """Energies from nothing to what no exponential holds, infinity among them: no NaN, and as exact as float32 can."""
    _, kernels = field(3, 400, torch.float32, False)
    # sixteenths, whose differences are exact
    energies = (torch.randn(2, 3, 400) * torch.logspace(0, 9, 400, base=2)).round() / 16
    energies[:, 1, ::7] = torch.inf
    for labels in (3, 2):
        cut = energies[:, :labels]
        actual = run(native, cut, None, kernels, 0)
        expected = torch.softmax(-cut.double(), dim=1)
        assert_close(actual, expected)
        large = expected > 1e-30
        assert float(expected[large].min()) < 1e-15
        assert float(((actual - expected).abs() / expected)[large].max()) < 4e-7
    nothing = run(native, torch.full((1, 3, 800), torch.inf), None, kernels, 2)
    assert bool(nothing.isfinite().all())


@pytest.mark.parametrize("odd", [[torch.nan], [torch.inf, -torch.inf]])
def test_rejects_energies_without_a_sum(native: Backend, odd: list[float], dtype: torch.dtype) -> None:
    energies, kernels = field(3, 151, dtype, False)
    energies.flatten()[-len(odd) :] = torch.tensor(odd, dtype=dtype)
    with pytest.raises(InputError, match="NaN"):
        native.mean_field(energies, None, FieldPlan(kernels, 1, False))


@pytest.mark.parametrize("with_costs", [False, True])
@pytest.mark.parametrize("labels", [2, 5, 21])
def test_gradients_are_those_of_the_definition(
    native: Backend, labels: int, with_costs: bool, dtype: torch.dtype
) -> None:
    energies, kernels = field(labels, 43, dtype, with_costs)
    start = torch.softmax(torch.randn(2, labels, 43, dtype=dtype), dim=1)
    for begin, steps in ((None, 3), (start, 2)):
        (marginals, expected), *gradients = marginals_and_gradients(native, energies, begin, kernels, steps)
        assert_close(marginals, expected, dtype)
        for one, other in gradients:
            assert_close(one, other)
