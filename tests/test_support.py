"""The suite's own tools can fail: a comparison that never does, or memory that is not poisoned, would hide errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import DETERMINISTIC, assert_close, relative_error


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64])
def test_uninitialized_numbers_are_not_numbers(dtype: torch.dtype) -> None:
    like = torch.zeros(4, 5, dtype=dtype)
    assert torch.empty(100, dtype=dtype).isnan().all()
    assert torch.empty_like(like).isnan().all()
    assert torch.empty_strided((4, 5), (1, 4), dtype=dtype).isnan().all()
    assert like.new_empty(3).isnan().all()
    assert like.new_empty_strided((4, 5), (1, 4)).isnan().all()
    assert torch.empty(7, dtype=dtype, requires_grad=True).isnan().all()


def test_uninitialized_integers_are_the_largest() -> None:
    assert (torch.empty(7, dtype=torch.int32) == 2**31 - 1).all()
    assert (torch.zeros(3, dtype=torch.int64).new_empty(7) == 2**63 - 1).all()
    assert torch.empty(7, dtype=torch.bool).all()


def test_memory_of_the_native_core_is_poisoned() -> None:
    lending = pytest.importorskip("permutohedral.ops.native.lending", reason="the compiled core is not installed")
    # large enough for memory that the core keeps, where old results lie about
    assert lending.empty((1 << 16,), torch.float32).isnan().all()
    assert (lending.empty((1 << 16,), torch.int32) == 2**31 - 1).all()


def test_poison_leaves_the_kernels_alone() -> None:
    assert torch.are_deterministic_algorithms_enabled() == DETERMINISTIC


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (torch.tensor([1.0, float("nan")]), [1.0, float("nan")]),
        (torch.tensor([1.0, float("inf")]), [1.0, float("inf")]),
        (torch.tensor([1.0]), [[1.0]]),
        (torch.tensor([1.0, 2.0]), [1.0, 2.0001]),
        (torch.tensor([1.0, 2.0], dtype=torch.float64), [1.0, 2.0 + 1e-9]),
        (torch.tensor([1e-3]), [0.0]),
    ],
)
def test_comparisons_fail_when_they_should(actual: torch.Tensor, expected: list[float]) -> None:
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(actual, np.array(expected))


def test_errors_are_relative_to_the_largest_magnitude() -> None:
    assert relative_error(torch.tensor([1.0, 200.0]), np.array([3.0, 200.0])) == pytest.approx(0.01)
    assert relative_error(torch.empty(0, 3), np.empty((0, 3))) == 0
