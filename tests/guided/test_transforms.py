"""`torch.func` and dual tensors along a guide: equal to finite differences and single calls, or rejected."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import permutohedral as ph

STEP, TOLERANCE = 1e-6, 1e-6


def draw(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(len(shape) + shape[0]), dtype=torch.float64)


@pytest.fixture(params=["gaussian", "affine"])
def upsample(request: pytest.FixtureRequest) -> Callable[[Tensor], Tensor]:
    """A map as a function of its coarse one."""
    guide = draw(3, 10, 12)
    return lambda coarse: ph.upsample(coarse, guide, sigma_space=1.3, sigma_color=0.37, mode=request.param)


def test_tangents_of_maps(upsample: Callable[[Tensor], Tensor]) -> None:
    coarse, tangent = draw(2, 5, 6), draw(4, 5, 6)[:2]
    expected = (upsample(coarse + STEP * tangent) - upsample(coarse - STEP * tangent)) / (2 * STEP)
    pushed = torch.func.jvp(upsample, (coarse,), (tangent,))[1]
    torch.testing.assert_close(pushed, expected, atol=TOLERANCE, rtol=TOLERANCE)
    value, linear = torch.func.linearize(upsample, coarse)
    torch.testing.assert_close(linear(tangent), expected, atol=TOLERANCE, rtol=TOLERANCE)
    torch.testing.assert_close(value, upsample(coarse))


def test_maps_of_torch_vmap_with_unknown_samples(upsample: Callable[[Tensor], Tensor]) -> None:
    coarse = draw(7, 2, 5, 6)
    coarse[0, 0, 1, 1] = torch.nan
    torch.testing.assert_close(torch.vmap(upsample)(coarse), torch.stack([upsample(each) for each in coarse]))


def test_unknown_samples_do_not_spread_while_traced(upsample: Callable[[Tensor], Tensor]) -> None:
    coarse = draw(2, 5, 6)
    coarse[0, 1, 1] = torch.nan
    value, _ = torch.func.linearize(upsample, coarse)
    torch.testing.assert_close(value, upsample(coarse))


def test_rejects_vmap_over_guides() -> None:
    guides, coarse = draw(2, 3, 10, 12), draw(2, 5, 6)
    for mode in ("gaussian", "affine", "solver"):
        with pytest.raises(ph.errors.InputError, match="cannot map over guides"):
            torch.vmap(lambda guide, mode=mode: ph.upsample(coarse, guide, mode=mode, sigma_color=0.1))(guides)


def test_solver_rejects_function_transforms() -> None:
    guide, target = draw(3, 5, 6), draw(2, 5, 6)

    def solve(values: Tensor) -> Tensor:
        return ph.bilateral_solver(values, guide, sigma_color=0.1)

    def push() -> None:
        with forward_ad.dual_level():
            solve(forward_ad.make_dual(target, target))

    for attempt in (
        lambda: torch.func.jvp(solve, (target,), (target,)),
        lambda: torch.func.grad(lambda values: solve(values).sum())(target),
        lambda: torch.func.linearize(solve, target),
        lambda: torch.vmap(solve)(target[:, None]),
        push,
    ):
        with pytest.raises(ph.errors.InputError, match=r"take gradients with backward\(\) or torch.autograd.grad"):
            attempt()
