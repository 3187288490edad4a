"""Comparison of GPU results with float64 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# relative error of a result, in L2: of rounding for float64 and float32, of the stored result for 16 bits
L2_TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 8e-4}


def exact(tensor: Tensor) -> Tensor:
    """In float64 on the CPU."""
    return tensor.detach().cpu().double()


def l2_error(result: Tensor, expected: Tensor) -> float:
    """|result - expected| / |expected|, Euclidean, in float64."""
    assert result.shape == expected.shape
    return float((exact(result) - exact(expected)).norm() / exact(expected).norm().clamp_min(1e-300))


def assert_near(result: Tensor, expected: Tensor, tolerance: float) -> None:
    """NaN is near nothing."""
    error = l2_error(result, expected)
    assert error <= tolerance, f"relative L2 error {error:.3g} exceeds {tolerance:g}"
