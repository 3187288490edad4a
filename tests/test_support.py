"""The suite's own tools can fail: a comparison that never does, or memory that is not poisoned, would hide errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import assert_close, relative_error


def test_uninitialized_memory_is_poisoned() -> None:
    assert torch.empty(100).isnan().all()
    assert torch.zeros(3).new_empty(4, 5).isnan().all()
    assert (torch.empty(7, dtype=torch.int32) == 2**31 - 1).all()


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
