"""Exact sums in Triton's interpreter against the reference."""

from __future__ import annotations

import pytest
import torch
from support import assert_close

from permutohedral.ops import reference
from permutohedral.ops.triton import BACKEND as kernels


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("channels", "guides"), [(1, 1), (6, 3)])
def test_exact_sums_in_windows(dtype: torch.dtype, channels: int, guides: int) -> None:
    values = torch.randn(2, channels, 9, 15, dtype=dtype)
    guide = torch.randn(2, 9, 15, guides, dtype=dtype).movedim(-1, 1)
    window = 0.6, 0.9, 2.0
    assert_close(kernels.sum_window(values, guide, *window), reference.sum_window(values, guide, *window))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("dimension", "channels"), [(1, 1), (5, 6)])
def test_exact_sums_between_points(dtype: torch.dtype, dimension: int, channels: int) -> None:
    features, targets = 2 * torch.randn(70, dimension, dtype=dtype), 2 * torch.randn(35, dimension, dtype=dtype)
    values = torch.randn(70, channels, dtype=dtype)
    actual = kernels.sum_neighbors(values, features, targets, 3.0)
    assert_close(actual, reference.sum_neighbors(values, features, targets, 3.0))


def test_exact_sums_of_nothing() -> None:
    nothing = torch.zeros(0, 2)
    assert kernels.sum_neighbors(nothing, nothing, torch.zeros(3, 2), 3.0).tolist() == [[0.0, 0.0]] * 3
    assert kernels.sum_window(torch.zeros(0, 1, 2, 2), torch.zeros(0, 1, 2, 2), 1.0, 1.0, 3.0).shape == (0, 1, 2, 2)
