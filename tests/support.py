"""Device, tolerances and comparisons that tests share.

`PERMUTOHEDRAL_TEST_DEVICE` names the device (default: cpu); the same suite runs on a GPU machine with `cuda`.
`PERMUTOHEDRAL_TEST_DETERMINISTIC=1` runs it in torch's deterministic mode.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from permutohedral.errors import PermutohedralError
from permutohedral.ops import dispatch

DEVICE = torch.device(os.environ.get("PERMUTOHEDRAL_TEST_DEVICE", "cpu"))
DETERMINISTIC = os.environ.get("PERMUTOHEDRAL_TEST_DETERMINISTIC", "0") == "1"
# largest difference of two equal backward passes: on a GPU atomic additions have no fixed order
NONDETERMINISM = 0.0 if DEVICE.type == "cpu" or DETERMINISTIC else 1e-10
# whether the Triton kernels run in Triton's interpreter, on the CPU
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"

# largest error allowed, relative to the largest magnitude expected; of 16 bits, one unit in the last place
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 1e-5,
    torch.float16: torch.finfo(torch.float16).eps,
    torch.bfloat16: torch.finfo(torch.bfloat16).eps,
}


def usable_backends() -> list[str]:
    """Return the names of the backends that run on the device."""
    return [backend.name for backend in dispatch._BACKENDS if backend.blocker(DEVICE.type) is None]


# for tests of compilation, which is the same on every backend
on_default_backend = pytest.mark.parametrize("backend", usable_backends()[:1], indirect=True)


def relative_error(actual: Tensor, expected: ArrayLike | Tensor) -> float:
    """Return max |actual - expected| / max |expected|; infinite for different shapes or NaN."""
    left = actual.detach().cpu().double()
    right = torch.as_tensor(expected).detach().cpu().double()
    if left.shape != right.shape:
        return float("inf")
    if left.numel() == 0:
        return 0.0
    error, scale = (left - right).abs().max(), right.abs().max()
    if not bool(torch.isfinite(error)):
        return float("inf")
    return float(error) if float(scale) == 0.0 else float(error / scale)


def assert_close(actual: Tensor, expected: ArrayLike | Tensor, dtype: torch.dtype | None = None) -> None:
    """Compare with the tolerance of the result's dtype, or of `dtype` if the inputs were coarser."""
    tolerance = TOLERANCE[dtype or actual.dtype]
    error = relative_error(actual, expected)
    shapes = f"shapes {tuple(actual.shape)} and {tuple(torch.as_tensor(expected).shape)}"
    assert error <= tolerance, f"relative error {error:.3g} exceeds {tolerance:g} ({shapes})"


def to_tensor(array: ArrayLike, dtype: torch.dtype = torch.float64) -> Tensor:
    """Convert an array to a tensor on the device."""
    return torch.as_tensor(np.asarray(array)).to(device=DEVICE, dtype=dtype)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Tensor:
    """Draw normal numbers that depend on the seed and the shape only."""
    return to_tensor(scale * np.random.default_rng([seed, *shape]).normal(size=shape), dtype)


def to_numpy(tensor: Tensor) -> NDArray[np.float64]:
    """Convert a tensor to float64 NumPy, for the oracle."""
    return tensor.detach().cpu().double().numpy()


def vertices_of(keys: Tensor) -> NDArray[np.int64]:
    """Return all d+1 coordinates of the vertices with keys `[lattice_points, 1 + d]`."""
    first = keys.cpu().numpy()[:, 1:].astype(np.int64)
    return np.concatenate([first, -first.sum(axis=1, keepdims=True)], axis=1)


def ascending(vertices: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the order that sorts vertices as the oracle does."""
    return np.lexsort(vertices.T[::-1])


# call, error, and a pattern of its message
ErrorCase = tuple[Callable[[], object], type[Exception], str]


def assert_raises(call: Callable[[], object], error: type[Exception], message: str) -> None:
    """Check that the call raises this error of the package, with a matching message."""
    with pytest.raises(error, match=message) as raised:
        call()
    assert isinstance(raised.value, PermutohedralError)
